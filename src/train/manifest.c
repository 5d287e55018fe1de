// manifest.c - see manifest.h.
//
// The file is one JSON object whose first line is {"hash":"<32 digits>", and the hash covers every
// byte after that comma. So it can be checked before anything is parsed, and other programs can
// still read the file as plain JSON.
#include "train/manifest.h"

#include "base/file.h"
#include "base/json.h"
#include "model/adapter.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT  "haggle checkpoint"
#define OPENING "{\"hash\":\""
static const size_t HASH_AT = sizeof OPENING - 1;          // where the digits begin
static const size_t REST_AT = sizeof OPENING - 1 + 32 + 2; // after the digits and ",
enum { HASH_DIGITS = HASH_TEXT_BYTES - 1, STEPS_MOST = 1000000000 };
// The largest count of samples, tokens or bytes that is accepted. It is more than any run reaches,
// and far enough below 2^63 that a run resumed from it can count on without overflow.
static const int64_t COUNT_MOST = INT64_C(1) << 60;
static const double LOSS_MOST = 1e300; // of a float32, or of a sum of them

static const char *const file_names[MANIFEST_FILES] = {
#define X(id, name) [id] = name,
    MANIFEST_FILE_LIST(X)
#undef X
};

const char *manifest_file_name(int id) {
    return id >= 0 && id < MANIFEST_FILES ? file_names[id] : "";
}

const char *manifest_name_of(int id, bool of_adapter) {
    return of_adapter && id == MANIFEST_MODEL ? ADAPTER_FILE : manifest_file_name(id);
}

void manifest_free(struct manifest *m) {
    region_free(&m->strings);
    memset(m, 0, sizeof *m);
}

int manifest_set_knobs(struct manifest *m, const struct knobs *k, struct err *e) {
    char value[KNOB_VALUE_BYTES];
    for (int i = 0; i < KNOB_COUNT; i++) {
        m->knobs[i] = region_copy(&m->strings, knobs_value(k, i, value));
        if (m->knobs[i] == NULL)
            return err_set(e, ERR_MEMORY, "no memory for the knobs of a manifest");
    }
    m->seed = k->seed;
    return knobs_hash(k, KNOB_MATH, m->math, e);
}

// ---------------------------------------------------------------- writing

static void put_files(struct json_writer *w, const struct manifest *m) {
    json_member_array(w, "files");
    for (int i = 0; i < MANIFEST_FILES; i++) {
        json_put_object_begin(w);
        json_member_string(w, "name", manifest_name_of(i, m->base[0] != '\0'));
        json_member_i64(w, "bytes", (int64_t)m->files[i].bytes);
        json_member_string(w, "hash", m->files[i].hash);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

// What is not known is left out, so that older versions can read the file.
static void put_judged(struct json_writer *w, const struct train_state *s) {
    if (s->best.step > 0) {
        json_member_double(w, "best_loss", s->best.loss);
        json_member_i64(w, "best_step", s->best.step);
        json_member_i64(w, "best_waited", s->best.waited);
        json_member_bool(w, "best_kept", s->best.kept);
    }
    if (s->watch.seen > 0) {
        json_member_double(w, "loss_began", s->watch.began);
        json_member_double(w, "loss_low", s->watch.low);
        json_member_double(w, "loss_level", s->watch.level);
        json_member_i64(w, "losses", s->watch.seen);
        json_member_i64(w, "high_losses", s->watch.high);
        json_member_i64(w, "high_since", s->watch.since);
    }
}

static void put_members(struct json_writer *w, const struct manifest *m) {
    json_member_string(w, "format", FORMAT);
    json_member_i64(w, "version", MANIFEST_VERSION); // before what another version may change
    json_member_string(w, "tool", m->tool);
    json_member_i64(w, "step", m->state.step);
    json_member_i64(w, "position", (int64_t)m->state.position);
    json_member_i64(w, "tokens", (int64_t)m->state.tokens);
    json_member_i64(w, "trained_tokens", (int64_t)m->state.trained_tokens);
    json_member_i64(w, "skipped_steps", m->state.skipped_steps);
    json_member_i64(w, "empty_steps", m->state.empty_steps);
    if (m->state.guest_updates > 0) // left out if 0, so that older versions can read the file
        json_member_i64(w, "guest_updates", m->state.guest_updates);
    json_member_double(w, "loss_scale", m->state.scale.value);
    json_member_i64(w, "scale_steps", m->state.scale.good_steps);
    put_judged(w, &m->state);
    json_member_string(w, "dataset", m->state.dataset);
    json_member_i64(w, "seed", m->seed);
    json_member_string(w, "math", m->math);
    json_member_string(w, "identity", m->identity);
    json_member_string(w, "model", m->model);
    put_files(w, m);
    if (m->second[0] != '\0')
        json_member_string(w, "second", m->second);
    if (m->base[0] != '\0') {
        json_member_string(w, "base", m->base);
        json_member_string(w, "base_name", m->base_name);
    }
    json_member_object(w, "knobs");
    for (int i = 0; i < KNOB_COUNT; i++)
        if (m->knobs[i] != NULL)
            json_member_string(w, knob_info(i)->name, m->knobs[i]);
    json_put_object_end(w);
}

static int write_parts(const char *path, const char *rest, size_t bytes, struct err *e) {
    struct file_writer f = {.fd = -1};
    char head[sizeof OPENING + HASH_DIGITS + 8], hash[HASH_TEXT_BYTES];
    struct hash *h = hash_new();
    if (h == NULL)
        return err_set(e, ERR_MEMORY, "no memory to write '%s'", path);
    hash_add(h, rest, bytes);
    hash_add(h, "\n", 1);
    hash_text(h, hash);
    hash_free(h);
    int length = snprintf(head, sizeof head, OPENING "%s\",", hash);
    int rc = file_writer_begin(&f, path, e);
    if (rc == 0)
        rc = file_writer_put(&f, head, (size_t)length, e);
    if (rc == 0)
        rc = file_writer_put(&f, rest, bytes, e);
    if (rc == 0)
        rc = file_writer_put(&f, "\n", 1, e);
    if (rc == 0)
        rc = file_writer_end(&f, e);
    if (rc != 0)
        file_writer_abort(&f);
    return rc;
}

int manifest_write(const struct manifest *m, const char *path, struct err *e) {
    struct json_writer w;
    json_writer_to_buffer(&w, 2);
    json_put_object_begin(&w);
    put_members(&w, m);
    json_put_object_end(&w);
    int rc = json_writer_finish(&w, e);
    if (rc == 0) // without the first {, which write_parts puts before the hash
        rc = write_parts(path, w.buffer + 1, w.bytes - 1, e);
    free(w.buffer);
    return rc;
}

// ---------------------------------------------------------------- reading

static bool is_hash(const char *text) {
    return strlen(text) == HASH_DIGITS && strspn(text, "0123456789abcdef") == HASH_DIGITS;
}

static int read_hash(struct json_reader *r, void *out) {
    const char *text;
    TRY(json_read_string(r, &text, NULL));
    if (!is_hash(text))
        return json_fail(r, ERR_FORMAT, "a hash must have %d digits of 0-9 and a-f", HASH_DIGITS);
    memcpy(out, text, HASH_TEXT_BYTES);
    return 0;
}

// The hash of the file itself was checked before parsing.
static int read_own_hash(struct json_reader *r, void *unused) {
    char checked[HASH_TEXT_BYTES];
    (void)unused;
    return read_hash(r, checked);
}

static int read_count(struct json_reader *r, int64_t most, int64_t *out) {
    TRY(json_read_i64(r, out));
    if (*out < 0 || *out > most)
        return json_fail(r, ERR_FORMAT, "%lld is out of range; accepted: 0 to %lld",
                         (long long)*out, (long long)most);
    return 0;
}

static int read_steps(struct json_reader *r, void *out) {
    return read_count(r, STEPS_MOST, out);
}

static int read_seed(struct json_reader *r, void *out) {
    return read_count(r, INT64_MAX, out);
}

static int read_u64(struct json_reader *r, void *out) {
    int64_t x = 0;
    TRY(read_count(r, COUNT_MOST, &x));
    *(uint64_t *)out = (uint64_t)x;
    return 0;
}

// Checks only the range. loss_scale_valid checks whether the value suits the run.
static int read_scale(struct json_reader *r, void *out) {
    double *scale = out;
    TRY(json_read_double(r, scale));
    if (!(*scale >= 0 && *scale <= SCALE_MOST))
        return json_fail(r, ERR_FORMAT, "a loss scale of %g is out of range; accepted: 0 to %g",
                         *scale, SCALE_MOST);
    return 0;
}

static int read_loss(struct json_reader *r, void *out) {
    double *loss = out;
    TRY(json_read_double(r, loss));
    if (!(fabs(*loss) <= LOSS_MOST))
        return json_fail(r, ERR_FORMAT, "a loss of %g is out of range", *loss);
    return 0;
}

static int read_flag(struct json_reader *r, void *out) {
    return json_read_bool(r, out);
}

static int read_version(struct json_reader *r, void *unused) {
    int64_t version;
    (void)unused;
    TRY(json_read_i64(r, &version));
    if (version != MANIFEST_VERSION)
        return json_fail(r, ERR_UNSUPPORTED,
                         "the checkpoint has format version %lld; this haggle reads version %d",
                         (long long)version, MANIFEST_VERSION);
    return 0;
}

static int read_format(struct json_reader *r, void *unused) {
    const char *text;
    (void)unused;
    TRY(json_read_string(r, &text, NULL));
    if (strcmp(text, FORMAT) != 0)
        return json_fail(r, ERR_FORMAT, "the format is not \"" FORMAT "\"");
    return 0;
}

// Reads a text that will be shown to the user. A control character (C0, DEL, or C1, which is two
// bytes in UTF-8) could control the terminal, so it is refused.
static int read_text(struct json_reader *r, void *out) {
    const char **text = out;
    TRY(json_read_string(r, text, NULL));
    for (const unsigned char *p = (const unsigned char *)*text; *p != '\0'; p++)
        if (*p < 0x20 || *p == 0x7F || (*p == 0xC2 && p[1] < 0xA0))
            return json_fail(r, ERR_FORMAT, "a text with a control character is not accepted");
    return 0;
}

static int read_model(struct json_reader *r, void *manifest) {
    struct manifest *m = manifest;
    const char *text;
    TRY(read_text(r, &text));
    if (strlen(text) >= sizeof m->model)
        return json_fail(r, ERR_FORMAT, "the model's description is longer than %zu bytes",
                         sizeof m->model - 1);
    memcpy(m->model, text, strlen(text) + 1);
    return 0;
}

static int read_file(struct json_reader *r, struct manifest *m, bool listed[MANIFEST_FILES]) {
    struct manifest_file file = {0};
    bool has_bytes = false, has_hash = false;
    const char *key, *name = NULL;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (strcmp(key, "name") == 0 && name == NULL) {
            TRY(json_read_string(r, &name, NULL));
        } else if (strcmp(key, "bytes") == 0 && !has_bytes) {
            has_bytes = true;
            TRY(read_u64(r, &file.bytes));
        } else if (strcmp(key, "hash") == 0 && !has_hash) {
            has_hash = true;
            TRY(read_hash(r, file.hash));
        } else {
            return json_fail(r, ERR_FORMAT,
                             "a file has name, bytes and hash, each once, and nothing else");
        }
    }
    TRY(r->rc);
    if (name == NULL || !has_bytes || !has_hash)
        return json_fail(r, ERR_FORMAT, "a file lacks its name, bytes or hash");
    int id = 0;
    while (id < MANIFEST_FILES && strcmp(file_names[id], name) != 0)
        id++;
    if (strcmp(name, ADAPTER_FILE) == 0) {
        id = MANIFEST_MODEL;
        m->names_adapter = true;
    }
    if (id == MANIFEST_FILES || listed[id])
        return json_fail(r, ERR_FORMAT, "a file is listed twice or is not part of a checkpoint");
    listed[id] = true;
    m->files[id] = file;
    return 0;
}

static int read_files(struct json_reader *r, void *manifest) {
    struct manifest *m = manifest;
    bool listed[MANIFEST_FILES] = {0};
    TRY(json_enter_array(r));
    while (json_next_element(r))
        TRY(read_file(r, m, listed));
    for (int i = 0; r->rc == 0 && i < MANIFEST_FILES; i++)
        if (!listed[i])
            return json_fail(r, ERR_FORMAT, "the list of files lacks %s", file_names[i]);
    return r->rc;
}

static int read_knobs(struct json_reader *r, void *manifest) {
    struct manifest *m = manifest;
    const char *name, *value;
    TRY(json_enter_object(r));
    while (json_next_key(r, &name)) {
        int id = knob_find(name);
        TRY(read_text(r, &value));
        if (id < 0) // a knob of another version of haggle
            continue;
        if (m->knobs[id] != NULL)
            return json_fail(r, ERR_FORMAT, "the knob %s occurs twice", knob_info(id)->name);
        if (strlen(value) >= KNOB_VALUE_BYTES)
            return json_fail(r, ERR_FORMAT, "the value of %s is longer than %d bytes",
                             knob_info(id)->name, KNOB_VALUE_BYTES - 1);
        m->knobs[id] = value;
    }
    return r->rc;
}

// The members in the order in which they are written. A file may have them in any order, each once.
static const struct {
    const char *name;
    int (*read)(struct json_reader *r, void *out);
    size_t at; // the offset in struct manifest of what `read` fills
    bool optional;
} members[] = {
    {"hash", read_own_hash, 0, false},
    {"format", read_format, 0, false},
    {"version", read_version, 0, false},
    {"tool", read_text, offsetof(struct manifest, tool), false},
    {"step", read_steps, offsetof(struct manifest, state.step), false},
    {"position", read_u64, offsetof(struct manifest, state.position), false},
    {"tokens", read_u64, offsetof(struct manifest, state.tokens), false},
    {"trained_tokens", read_u64, offsetof(struct manifest, state.trained_tokens), false},
    {"skipped_steps", read_steps, offsetof(struct manifest, state.skipped_steps), false},
    {"empty_steps", read_steps, offsetof(struct manifest, state.empty_steps), false},
    {"guest_updates", read_steps, offsetof(struct manifest, state.guest_updates), true},
    {"loss_scale", read_scale, offsetof(struct manifest, state.scale.value), false},
    {"scale_steps", read_steps, offsetof(struct manifest, state.scale.good_steps), false},
    {"best_loss", read_loss, offsetof(struct manifest, state.best.loss), true},
    {"best_step", read_steps, offsetof(struct manifest, state.best.step), true},
    {"best_waited", read_steps, offsetof(struct manifest, state.best.waited), true},
    {"best_kept", read_flag, offsetof(struct manifest, state.best.kept), true},
    {"loss_began", read_loss, offsetof(struct manifest, state.watch.began), true},
    {"loss_low", read_loss, offsetof(struct manifest, state.watch.low), true},
    {"loss_level", read_loss, offsetof(struct manifest, state.watch.level), true},
    {"losses", read_steps, offsetof(struct manifest, state.watch.seen), true},
    {"high_losses", read_steps, offsetof(struct manifest, state.watch.high), true},
    {"high_since", read_steps, offsetof(struct manifest, state.watch.since), true},
    {"dataset", read_hash, offsetof(struct manifest, state.dataset), false},
    {"seed", read_seed, offsetof(struct manifest, seed), false},
    {"math", read_hash, offsetof(struct manifest, math), false},
    {"identity", read_hash, offsetof(struct manifest, identity), false},
    {"model", read_model, 0, false},
    {"files", read_files, 0, false},
    {"second", read_hash, offsetof(struct manifest, second), true},
    {"base", read_hash, offsetof(struct manifest, base), true},
    {"base_name", read_text, offsetof(struct manifest, base_name), true},
    {"knobs", read_knobs, 0, false},
};
enum { MEMBERS = sizeof members / sizeof *members };

static int read_members(struct json_reader *r, struct manifest *m) {
    bool seen[MEMBERS] = {0};
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        int i = 0;
        while (i < MEMBERS && strcmp(members[i].name, key) != 0)
            i++;
        if (i == MEMBERS)
            return json_fail(r, ERR_FORMAT, "a manifest has no such member");
        if (seen[i])
            return json_fail(r, ERR_FORMAT, "\"%s\" occurs twice", members[i].name);
        seen[i] = true;
        TRY(members[i].read(r, (char *)m + members[i].at));
    }
    TRY(json_finish(r));
    for (int i = 0; i < MEMBERS; i++)
        if (!seen[i] && !members[i].optional)
            return err_set(r->e, ERR_FORMAT, "%.400s lacks \"%s\"", r->name, members[i].name);
    if (m->names_adapter != (m->base[0] != '\0') || (m->base_name != NULL) != m->names_adapter)
        return err_set(r->e, ERR_FORMAT,
                       "%.400s must have \"base\", \"base_name\" and the file " ADAPTER_FILE
                       " together or not at all",
                       r->name);
    if (m->state.skipped_steps + m->state.empty_steps > m->state.step)
        return err_set(r->e, ERR_FORMAT, "%.400s counts more skipped steps than steps", r->name);
    if (m->state.best.step > m->state.step || m->state.watch.seen > m->state.step)
        return err_set(r->e, ERR_FORMAT, "%.400s has losses of steps that it has not made",
                       r->name);
    return 0;
}

static int check_hash(const char *path, const char *text, size_t bytes, struct err *e) {
    char hash[HASH_TEXT_BYTES];
    if (bytes < REST_AT || memcmp(text, OPENING, HASH_AT) != 0 ||
        memcmp(text + REST_AT - 2, "\",", 2) != 0)
        return err_set(e, ERR_FORMAT, "%s is not a manifest: it does not begin with its hash",
                       path);
    hash_of(text + REST_AT, bytes - REST_AT, hash);
    if (memcmp(text + HASH_AT, hash, HASH_DIGITS) != 0)
        return err_set(e, ERR_FORMAT, "%s is damaged: its hash does not match its content", path);
    return 0;
}

int manifest_read(struct manifest *m, const char *path, struct err *e) {
    char *text;
    size_t bytes;
    memset(m, 0, sizeof *m);
    TRY(file_read_all(path, MANIFEST_MAX_BYTES, &text, &bytes, e));
    int rc = check_hash(path, text, bytes, e);
    if (rc == 0) {
        struct json_reader r;
        json_reader_init(&r, path, text, bytes, &m->strings, e);
        rc = read_members(&r, m);
    }
    free(text);
    return rc;
}

int manifest_hash(const char *path, char out[HASH_TEXT_BYTES], struct err *e) {
    char *text;
    size_t bytes;
    TRY(file_read_all(path, MANIFEST_MAX_BYTES, &text, &bytes, e));
    hash_of(text, bytes, out);
    free(text);
    return 0;
}
