// files.c - the files of an export beside its weights: those copied from the source byte for
// byte, those made here because the source lacks them, the model card, and haggle.json, which holds
// the hash of every file.
#include "export/parts.h"
#include "base/array.h"
#include "train/checkpoint_dir.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "data/bytes.h"
#include "model/export_config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MOST_BYTES = 16 << 20, MANIFEST_MOST_BYTES = 16 << 20, FILES_MOST = 20000 };
enum { COPY_BYTES = 1 << 16 };
static const uint64_t COPY_MOST_BYTES = UINT64_C(1) << 30; // the largest tokenizers have 50 MB

// Files that are copied if they exist: the tokenizer's from its folder, the others from the source
// folder. Terms of use are copied because they go with the model.
enum kind { TOKENIZER, TOKENIZER_PART, OTHER };
static const struct {
    const char *name;
    enum kind kind; // TOKENIZER: a folder with this file has a tokenizer
} copied[] = {
    {"tokenizer.json", TOKENIZER},
    {"tokenizer.model", TOKENIZER},
    {"vocab.json", TOKENIZER},
    {"vocab.txt", TOKENIZER},
    {"spiece.model", TOKENIZER},
    {"merges.txt", TOKENIZER_PART},
    {"tokenizer_config.json", TOKENIZER_PART},
    {"special_tokens_map.json", TOKENIZER_PART},
    {"added_tokens.json", TOKENIZER_PART},
    {"chat_template.jinja", TOKENIZER_PART},
    {"chat_template.json", TOKENIZER_PART},
    {"generation_config.json", OTHER},
    {"LICENSE", OTHER},
    {"LICENSE.txt", OTHER},
    {"LICENSE.md", OTHER},
    {"NOTICE", OTHER},
    {"USE_POLICY.md", OTHER},
};
enum { COPIED = sizeof copied / sizeof *copied };

bool export_has_file(const char *dir, const char *name) {
    char path[PATH_MAX];
    return file_join(path, sizeof path, dir, name, NULL) == 0 && file_exists(path);
}

bool export_has_tokenizer(const char *dir) {
    for (size_t i = 0; i < COPIED; i++)
        if (copied[i].kind == TOKENIZER && export_has_file(dir, copied[i].name))
            return true;
    return false;
}

// The path that file i is copied from; false when there is none.
static bool find_copied(const struct exporter *x, size_t i, char path[PATH_MAX]) {
    const char *dir = copied[i].kind == OTHER ? x->out->source : x->tokenizer_dir;
    if (i == 0 && x->tokenizer_file[0] != '\0') { // tokenizer.json, maybe under another name
        snprintf(path, PATH_MAX, "%s", x->tokenizer_file);
        return true;
    }
    return dir[0] != '\0' && export_has_file(dir, copied[i].name) &&
           file_join(path, PATH_MAX, dir, copied[i].name, NULL) == 0;
}

uint64_t export_copied_bytes(const struct exporter *x) {
    char path[PATH_MAX];
    uint64_t bytes, sum = 0;
    for (size_t i = 0; i < COPIED; i++)
        if (find_copied(x, i, path) && file_size(path, &bytes, NULL) == 0 &&
            bytes <= COPY_MOST_BYTES)
            sum += bytes;
    return sum;
}

// ---------------------------------------------------------------- one file

int export_note_file(struct exporter *x, const char *name, uint64_t bytes, const char *hash) {
    struct export_result *r = x->out;
    if (!array_room(&r->files, r->n_files, 1, &r->capacity, sizeof *r->files, 16))
        return err_set(x->e, ERR_MEMORY, "no memory for the list of exported files");
    struct export_file *f = &r->files[r->n_files++];
    *f = (struct export_file){.bytes = bytes};
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->hash, sizeof f->hash, "%s", hash);
    r->bytes += bytes;
    return 0;
}

int export_write_file(struct exporter *x, const char *name, const void *data, size_t bytes) {
    char path[PATH_MAX], hash[HASH_TEXT_BYTES];
    TRY(file_join(path, sizeof path, x->dir, name, x->e));
    TRY(file_write_atomic(path, data, bytes, x->e));
    hash_of(data, bytes, hash);
    return export_note_file(x, name, bytes, hash);
}

static int copy_bytes(int fd, const char *from, struct file_writer *w, struct err *e) {
    char buffer[COPY_BYTES];
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_IO, "cannot read '%s': %s", from, strerror(errno));
        if (n == 0)
            return 0;
        if (w->bytes + (uint64_t)n > COPY_MOST_BYTES)
            return err_set(e, ERR_FORMAT, "'%s' is larger than %" PRIu64 " bytes", from,
                           COPY_MOST_BYTES);
        TRY(file_writer_put(w, buffer, (size_t)n, e));
    }
}

static int copy_open(int fd, const char *from, struct exporter *x, const char *name,
                     struct hash *hash) {
    char to[PATH_MAX], text[HASH_TEXT_BYTES];
    struct stat st;
    struct file_writer w;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return err_set(x->e, ERR_FORMAT, "'%s' is not a regular file", from);
    TRY(file_join(to, sizeof to, x->dir, name, x->e));
    TRY(file_writer_begin(&w, to, x->e));
    w.hash = hash;
    int rc = copy_bytes(fd, from, &w, x->e);
    uint64_t bytes = w.bytes;
    if (rc == 0)
        rc = file_writer_end(&w, x->e);
    if (rc != 0) {
        file_writer_abort(&w);
        return rc;
    }
    hash_text(hash, text);
    return export_note_file(x, name, bytes, text);
}

static int copy_file(struct exporter *x, const char *from, const char *name) {
    // O_NONBLOCK: if the path is a pipe, opening it must not wait.
    int fd = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_set(x->e, ERR_IO, "cannot open '%s': %s", from, strerror(errno));
    struct hash *hash = hash_new();
    int rc = hash != NULL ? copy_open(fd, from, x, name, hash)
                          : err_set(x->e, ERR_MEMORY, "no memory to copy '%s'", from);
    hash_free(hash);
    close(fd);
    return rc;
}

// Files that are written instead.
static bool is_replaced(const struct exporter *x, const char *name) {
    if (strcmp(name, "generation_config.json") == 0)
        return true;
    return x->chat.source != NULL &&
           (strcmp(name, "tokenizer_config.json") == 0 ||
            strcmp(name, "chat_template.jinja") == 0 || strcmp(name, "chat_template.json") == 0);
}

static int copy_files(struct exporter *x) {
    char from[PATH_MAX];
    for (size_t i = 0; i < COPIED; i++)
        if (!is_replaced(x, copied[i].name) && find_copied(x, i, from))
            TRY(copy_file(x, from, copied[i].name));
    return 0;
}

int export_copy_beside(struct exporter *x) {
    char from[PATH_MAX];
    snprintf(x->tokenizer_dir, sizeof x->tokenizer_dir, "%s", x->out->source);
    for (size_t i = 0; i < COPIED; i++)
        if (find_copied(x, i, from))
            TRY(copy_file(x, from, copied[i].name));
    return 0;
}

// ---------------------------------------------------------------- configuration

// The type in which the transformers library will load the weights: the one they are stored in.
// NULL keeps the source's own entry, when the types are the source's.
static const char *config_dtype(const struct exporter *x) {
    if (x->o->as_source && x->has_source)
        return NULL;
    return export_config_dtype(x->o->as_source ? DTYPE_F32 : x->o->dtype);
}

static int make_config(struct exporter *x, char **text, size_t *bytes) {
    char path[PATH_MAX], hash[HASH_TEXT_BYTES];
    if (x->has_source) {
        TRY(file_join(path, sizeof path, x->out->source, "config.json", x->e));
        return file_read_all(path, CONFIG_MOST_BYTES, text, bytes, x->e);
    }
    struct model_shape shape = x->shape;
    if (x->bytes) // the published model of this name has other ids; this run was trained on bytes
        shape.bos_id = shape.eos_id = BYTES_END_OF_TEXT;
    return checkpoint_model_identity(&shape, hash, text, bytes, x->e);
}

// The source's generation_config.json, or one that its config.json implies.
static int make_generation(struct exporter *x, const char *config, size_t config_bytes, char **text,
                           size_t *bytes) {
    char path[PATH_MAX];
    if (!x->has_source || !export_has_file(x->out->source, "generation_config.json"))
        return export_config_generation("config.json", config, config_bytes, text, bytes, x->e);
    TRY(file_join(path, sizeof path, x->out->source, "generation_config.json", x->e));
    return file_read_all(path, CONFIG_MOST_BYTES, text, bytes, x->e);
}

static int write_configs(struct exporter *x) {
    char *text = NULL, *edited = NULL, *generation = NULL;
    size_t bytes = 0, edited_bytes = 0, generation_bytes = 0;
    int rc = make_config(x, &text, &bytes);
    if (rc == 0 && !x->bytes) // a folder's config.json knows nothing of bytes
        rc = export_edit_ends(x, "config.json", false, &text, &bytes);
    if (rc == 0)
        rc = export_config_edit("config.json", text, bytes, x->shape.family, config_dtype(x),
                                !x->has_source, &edited, &edited_bytes, x->e);
    if (rc == 0)
        rc = export_write_file(x, "config.json", edited, edited_bytes);
    if (rc == 0)
        rc = make_generation(x, text, bytes, &generation, &generation_bytes);
    if (rc == 0)
        rc = export_edit_ends(x, "generation_config.json", true, &generation, &generation_bytes);
    if (rc == 0)
        rc = export_write_file(x, "generation_config.json", generation, generation_bytes);
    free(text);
    free(edited);
    free(generation);
    return rc;
}

// ---------------------------------------------------------------- the card

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

// Knobs that hold paths of this machine. They are private, so the card shows only the last part of
// each path.
static bool is_path(int id) {
    return id == KNOB_model || id == KNOB_tokenizer || id == KNOB_data_path ||
           id == KNOB_data_val_path;
}

static void put_cell(FILE *f, const char *text, bool paths) {
    for (const char *at = text; *at; at++) {
        const char *slash = paths ? strpbrk(at, "/,") : NULL;
        if (slash != NULL && *slash == '/' && slash[1] != '\0' && slash[1] != ',') {
            at = slash; // skip the name of a folder
            continue;
        }
        if (strchr("|\\`<", *at) != NULL)
            fprintf(f, "\\%c", *at);
        else
            fputc(*at == '\n' ? ' ' : *at, f);
    }
}

static void put_settings(const struct exporter *x, FILE *f) {
    fprintf(f, "| setting | value |\n|---|---|\n");
    for (int i = 0; i < KNOB_COUNT; i++) {
        const char *value = x->manifest.knobs[i];
        if (!(knob_info(i)->flags & KNOB_MATH) || value == NULL)
            continue;
        fprintf(f, "| %s | ", knob_info(i)->name);
        put_cell(f, *value ? value : "(none)", is_path(i));
        fprintf(f, " |\n");
    }
}

static void put_description(const struct exporter *x, FILE *f) {
    const struct adapter *a = &x->adapter.adapter;
    char count[TEXT_UNIT_BYTES];
    if (export_writes_adapter(x))
        fprintf(f, "A low-rank adapter for `%s`: rank %" PRId64 ", factor %g, on %s.\n",
                last_part(x->manifest.base_name), a->rank, adapter_scale(a),
                a->targets[0] ? a->targets : "all");
    else
        fprintf(f, "A %s: %s parameters.\n", x->manifest.model,
                text_count(count, (double)model_total_elements(&x->shape)));
}

static void put_use(const struct exporter *x, FILE *f) {
    fprintf(f, "## Use\n\n```python\nfrom transformers import AutoModelForCausalLM, "
               "AutoTokenizer\n");
    if (export_writes_adapter(x))
        fprintf(
            f,
            "from peft import PeftModel\n\nbase = AutoModelForCausalLM.from_pretrained(\"%s\")\n"
            "model = PeftModel.from_pretrained(base, \".\")\n",
            last_part(x->manifest.base_name));
    else
        fprintf(f, "\nmodel = AutoModelForCausalLM.from_pretrained(\".\")\n");
    fprintf(f,
            "tokenizer = AutoTokenizer.from_pretrained(\".\")\n```\n\n`haggle train %s` trains it "
            "further.\n\n",
            export_writes_adapter(x) ? "model=BASE lora.from=." : "model=.");
}

static void put_card(const struct exporter *x, FILE *f) {
    const struct train_state *s = &x->manifest.state;
    char run[PATH_MAX];
    snprintf(run, sizeof run, "%s", x->o->run_dir);
    for (size_t n = strlen(run); n > 1 && run[n - 1] == '/'; n--)
        run[n - 1] = '\0';
    fprintf(f, "---\nlibrary_name: %s\npipeline_tag: text-generation\ntags:\n- haggle\n",
            export_writes_adapter(x) ? "peft" : "transformers");
    fprintf(f, "---\n\n# %s\n\n", last_part(x->out->out_dir));
    put_description(x, f);
    fprintf(f, "%s with haggle %s, run `%s`, step %" PRId64 ".\n\n",
            x->has_source ? "Fine-tuned" : "Trained from random weights", HAGGLE_VERSION,
            last_part(run), s->step);
    if (x->has_source)
        fprintf(f, "- Fine-tuned from: `%s`\n", x->source_name);
    fprintf(f, "- Trained on: %" PRIu64 " tokens, of which %" PRIu64 " were targets; data %s\n",
            s->tokens, s->trained_tokens, s->dataset);
    fprintf(f, "- Weights: %s, %" PRId64 " file%s\n", x->out->dtype, x->shards,
            x->shards == 1 ? "" : "s");
    fprintf(f, "- Text: %s\n\n",
            x->bytes              ? "bytes, one id each; id 256 is `<|endoftext|>`"
            : x->tokenizer_dir[0] ? "the tokenizer beside this file, as the run used it"
                                  : "token ids; the model came without a tokenizer");
    put_use(x, f);
    fprintf(f, "## Settings\n\n");
    put_settings(x, f);
}

static int write_card(struct exporter *x) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    int rc = f != NULL ? 0 : err_set(x->e, ERR_MEMORY, "no memory for README.md");
    if (f != NULL) {
        put_card(x, f);
        if (fclose(f) != 0)
            rc = err_set(x->e, ERR_MEMORY, "no memory for README.md");
    }
    if (rc == 0)
        rc = export_write_file(x, "README.md", text, bytes);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- haggle.json

static int write_manifest(struct exporter *x) {
    struct json_writer w;
    json_writer_to_buffer(&w, 2);
    json_put_object_begin(&w);
    json_member_string(&w, "haggle", HAGGLE_VERSION);
    json_member_i64(&w, "export", EXPORT_VERSION);
    json_member_i64(&w, "step", x->out->step);
    json_member_string(&w, "weights", x->manifest.files[MANIFEST_MODEL].hash);
    json_member_string(&w, "dtype", x->out->dtype);
    json_member_object(&w, "files");
    for (size_t i = 0; i < x->out->n_files; i++) {
        const struct export_file *f = &x->out->files[i];
        json_put_key(&w, f->name);
        json_put_object_begin(&w);
        json_member_i64(&w, "bytes", (int64_t)f->bytes);
        json_member_string(&w, "hash", f->hash);
        json_put_object_end(&w);
    }
    json_put_object_end(&w);
    json_put_object_end(&w);
    char path[PATH_MAX];
    int rc = json_writer_finish(&w, x->e);
    if (rc == 0)
        rc = file_join(path, sizeof path, x->dir, EXPORT_MANIFEST, x->e);
    if (rc == 0)
        rc = file_write_atomic(path, w.buffer, w.bytes, x->e);
    free(w.buffer);
    return rc;
}

// For a tokenizer.json without a tokenizer_config.json. Without this file tools would take the
// tokenizer class of the model's family, which may override what tokenizer.json says.
int export_tokenizer_class(struct exporter *x, char **text, size_t *bytes) {
    const size_t room = 160;
    *text = malloc(room);
    if (*text == NULL)
        return err_set(x->e, ERR_MEMORY, "no memory for tokenizer_config.json");
    *bytes = (size_t)snprintf(*text, room,
                              "{\n  \"model_max_length\": %" PRId64
                              ",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
                              x->shape.max_positions);
    return 0;
}

static int write_tokenizer_class(struct exporter *x) {
    char *text;
    size_t bytes;
    if (x->tokenizer_file[0] == '\0' || strcmp(x->tokenizer_dir, x->out->source) == 0 ||
        export_has_file(x->tokenizer_dir, "tokenizer_config.json") || x->chat.source != NULL)
        return 0;
    TRY(export_tokenizer_class(x, &text, &bytes));
    int rc = export_write_file(x, "tokenizer_config.json", text, bytes);
    free(text);
    return rc;
}

int export_write_files(struct exporter *x) {
    TRY(export_find_chat(x));
    TRY(copy_files(x));
    TRY(write_tokenizer_class(x));
    TRY(export_write_template(x));
    if (!export_writes_adapter(x))
        TRY(write_configs(x));
    if (x->bytes)
        TRY(export_write_byte_tokenizer(x));
    else if (x->tokenizer_dir[0] == '\0')
        checkpoint_say(&x->o->listener, LOG_WARN, "no tokenizer is written: '%s' has none%s",
                       x->out->source,
                       x->shape.vocab < BYTES_VOCAB
                           ? ", and the vocabulary is too small for the built-in byte tokenizer"
                           : ", and the run was trained on ids");
    TRY(write_card(x));
    return write_manifest(x);
}

static int read_hash(struct json_reader *r, char out[HASH_TEXT_BYTES]) {
    const char *text;
    TRY(json_read_string(r, &text, NULL));
    if (strlen(text) != HASH_TEXT_BYTES - 1)
        return json_fail(r, ERR_FORMAT, "a hash must have %d digits", HASH_TEXT_BYTES - 1);
    memcpy(out, text, HASH_TEXT_BYTES);
    return 0;
}

static int read_file_entry(struct exporter *x, struct json_reader *r, const char *name) {
    const char *key;
    int64_t bytes = -1;
    char hash[HASH_TEXT_BYTES] = "";
    size_t n = strlen(name);
    if (n == 0 || n >= EXPORT_NAME_BYTES || strchr(name, '/') != NULL || name[0] == '.')
        return json_fail(r, ERR_FORMAT,
                         "a file's name must have 1 to %d bytes, no '/' and no '.' at its start",
                         EXPORT_NAME_BYTES - 1);
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (strcmp(key, "bytes") == 0)
            TRY(json_read_i64(r, &bytes));
        else if (strcmp(key, "hash") == 0)
            TRY(read_hash(r, hash));
        else
            TRY(json_skip(r));
    }
    TRY(r->rc);
    if (bytes < 0 || hash[0] == '\0')
        return json_fail(r, ERR_FORMAT, "'%s' needs its \"bytes\" and \"hash\"", name);
    if (x->out->n_files == FILES_MOST)
        return json_fail(r, ERR_FORMAT, "more than %d files are listed", FILES_MOST);
    return r->rc = export_note_file(x, name, (uint64_t)bytes, hash);
}

static int read_members(struct exporter *x, struct json_reader *r, int64_t *step, char *hash) {
    const char *key;
    int64_t version = -1;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        if (strcmp(key, "export") == 0) {
            TRY(json_read_i64(r, &version));
        } else if (strcmp(key, "step") == 0) {
            TRY(json_read_i64(r, step));
        } else if (strcmp(key, "weights") == 0) {
            TRY(read_hash(r, hash));
        } else if (strcmp(key, "files") == 0) {
            const char *name;
            TRY(json_enter_object(r));
            while (json_next_key(r, &name))
                TRY(read_file_entry(x, r, name));
            TRY(r->rc);
        } else {
            TRY(json_skip(r));
        }
    }
    TRY(json_finish(r));
    if (version != EXPORT_VERSION)
        return err_set(x->e, ERR_UNSUPPORTED,
                       "%s: \"export\" is %" PRId64 "; this haggle reads version %d", r->name,
                       version, EXPORT_VERSION);
    if (*step < 0 || *step > 1000000000 || hash[0] == '\0' || x->out->n_files == 0)
        return err_set(x->e, ERR_FORMAT, "%s: needs \"step\", \"weights\" and \"files\"", r->name);
    return 0;
}

int export_read_manifest(struct exporter *x, const char *dir, int64_t *step,
                         char model_hash[HASH_TEXT_BYTES]) {
    char path[PATH_MAX];
    char *text;
    size_t bytes;
    struct region strings = {0};
    struct json_reader r;
    *step = -1;
    model_hash[0] = '\0';
    TRY(file_join(path, sizeof path, dir, EXPORT_MANIFEST, x->e));
    if (!file_exists(path))
        return err_set(x->e, ERR_USAGE,
                       "'%s' has no " EXPORT_MANIFEST ": it was not written by haggle export", dir);
    TRY(file_read_all(path, MANIFEST_MOST_BYTES, &text, &bytes, x->e));
    json_reader_init(&r, path, text, bytes, &strings, x->e);
    int rc = read_members(x, &r, step, model_hash);
    region_free(&strings);
    free(text);
    return rc;
}
