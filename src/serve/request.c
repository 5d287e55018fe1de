// request.c - see request.h.
#include "serve/request.h"

#include "data/dataset.h"
#include "data/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Bytes of a line per token: an id of a vocabulary of a million with its comma and a label takes 14
// bytes, text takes less.
enum { LINE_BYTES_PER_TOKEN = 16, LINE_LEAST = 64 << 10 };

// interactive.data: the tokens of every document, one after the other.
struct kept {
    uint64_t n, tokens;
    uint64_t *offsets; // [n + 1]
    int32_t *ids;
    unsigned char *trained;
};

struct request_reader {
    const struct knobs *knobs;
    int64_t vocab;
    struct tokenizer *tokenizer;
    struct renderer *renderer;
    struct render_context *context;
    struct rendered rendered;
    struct kept kept;
};

int64_t request_columns(const struct knobs *k) {
    return k->interactive_micro * knobs_interactive_seq(k);
}

size_t request_line_most(const struct knobs *k) {
    const size_t most = (size_t)request_columns(k) * LINE_BYTES_PER_TOKEN;
    return most > LINE_LEAST ? most : LINE_LEAST;
}

uint64_t request_reader_bytes(const struct request_reader *r) {
    const struct kept *k = &r->kept;
    return k->n > 0
               ? (k->n + 1) * sizeof *k->offsets + k->tokens * (sizeof *k->ids + sizeof *k->trained)
               : 0;
}

// ---------------------------------------------------------------- records held in memory

static int kept_add(struct kept *k, const struct shard *s, struct err *e) {
    const uint64_t n = k->n + s->counts.documents, tokens = k->tokens + s->counts.tokens;
    uint64_t *offsets = realloc(k->offsets, (n + 1) * sizeof *offsets);
    if (offsets != NULL)
        k->offsets = offsets;
    int32_t *ids = realloc(k->ids, (tokens + 1) * sizeof *ids);
    if (ids != NULL)
        k->ids = ids;
    unsigned char *trained = realloc(k->trained, tokens + 1);
    if (trained != NULL)
        k->trained = trained;
    if (offsets == NULL || ids == NULL || trained == NULL)
        return err_set(e, ERR_MEMORY, "interactive.data: no memory for %" PRIu64 " tokens", tokens);
    for (uint64_t i = 0; i < s->counts.documents; i++)
        offsets[k->n + i] = k->tokens + s->offsets[i];
    offsets[n] = tokens;
    for (uint64_t i = 0; i < s->counts.tokens; i++) {
        ids[k->tokens + i] = shard_id(s, i);
        trained[k->tokens + i] = shard_is_trained(s, i);
    }
    k->n = n;
    k->tokens = tokens;
    return 0;
}

static int keep(struct request_reader *r, const struct shard_listener *listener, struct err *e) {
    const struct knobs *k = r->knobs;
    const struct shard_options so = {.tokenizer = r->tokenizer,
                                     .renderer = r->renderer,
                                     .shape = (enum render_shape)k->data_shape,
                                     .threads = 1,
                                     .listener = *listener};
    struct text_list list;
    int rc = text_list_open(&list, k->interactive_data, so.shape != RENDER_AUTO, e);
    for (size_t i = 0; rc == 0 && i < list.n; i++) {
        const struct shard_source from = {.path = list.files[i].path,
                                          .records = list.files[i].records};
        struct shard s = {.fd = -1};
        rc = shard_obtain(&s, &from, &so, e);
        if (rc == 0) {
            rc = kept_add(&r->kept, &s, e);
            shard_close(&s);
        }
    }
    text_list_close(&list);
    return rc == 0 ? 0 : err_context(e, "interactive.data");
}

// ---------------------------------------------------------------- opening

int request_reader_open(struct request_reader **out, const struct request_options *o,
                        struct err *e) {
    *out = NULL;
    struct request_reader *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_set(e, ERR_MEMORY, "no memory for requests");
    r->knobs = o->knobs;
    r->vocab = o->vocab;
    int rc =
        dataset_open_renderer(&r->tokenizer, &r->renderer, o->knobs, o->model_dir, o->vocab, e);
    if (rc == 0)
        rc = render_context_open(&r->context, r->renderer, e);
    if (rc == 0 && o->knobs->interactive_data[0] != '\0')
        rc = keep(r, &o->listener, e);
    if (rc != 0) {
        request_reader_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void request_reader_close(struct request_reader *r) {
    if (r == NULL)
        return;
    rendered_free(&r->rendered);
    if (r->context != NULL)
        render_context_close(r->context);
    if (r->renderer != NULL)
        renderer_close(r->renderer);
    tokenizer_close(r->tokenizer);
    free(r->kept.offsets);
    free(r->kept.ids);
    free(r->kept.trained);
    free(r);
}

// ---------------------------------------------------------------- a document as a row

struct document {
    const int32_t *ids;
    const unsigned char *trained;
    size_t n;
};

struct row {
    int32_t *tokens, *targets, *positions, *starts;
};

static struct row row_at(int32_t *const rows[REQUEST_ROWS], int64_t column) {
    return (struct row){rows[0] + column, rows[1] + column, rows[2] + column, rows[3] + column};
}

// Pads as dataset.c does: each column is a separate document that no other column attends to.
static void pad_row(const struct request_reader *r, struct row w, int64_t from, int64_t seq) {
    int32_t pad = renderer_end_of_text(r->renderer);
    if (pad < 0 || pad >= r->vocab)
        pad = 0;
    for (int64_t t = from; t < seq; t++) {
        w.tokens[t] = pad;
        w.targets[t] = DATASET_NOT_TRAINED;
        w.positions[t] = 0;
        w.starts[t] = (int32_t)t;
    }
}

static int check_document(const struct request_reader *r, const struct document *d, struct err *e) {
    const int64_t seq = knobs_interactive_seq(r->knobs);
    if (d->n < 2 || d->n > (size_t)seq + 1)
        return err_set(e, ERR_USAGE,
                       "the record has %zu tokens; accepted: 2 to %" PRId64
                       " (interactive.seq=%" PRId64 " that are read and one more to learn)",
                       d->n, seq + 1, seq);
    for (size_t i = 0; i < d->n; i++)
        if (d->ids[i] < 0 || d->ids[i] >= r->vocab)
            return err_set(e, ERR_USAGE,
                           "token %zu is %" PRId32 "; the model has ids 0 to %" PRId64, i,
                           d->ids[i], r->vocab - 1);
    return 0;
}

static int put_document(const struct request_reader *r, const struct document *d, int64_t number,
                        int32_t *const rows[REQUEST_ROWS], struct request *out, struct err *e) {
    const int64_t seq = knobs_interactive_seq(r->knobs);
    const struct row w = row_at(rows, number * seq);
    int64_t trained = 0;
    TRY(check_document(r, d, e));
    for (size_t t = 0; t + 1 < d->n; t++) {
        w.tokens[t] = d->ids[t];
        w.targets[t] = d->trained[t + 1] ? d->ids[t + 1] : DATASET_NOT_TRAINED;
        w.positions[t] = (int32_t)t;
        w.starts[t] = 0;
        trained += d->trained[t + 1] != 0;
    }
    if (trained == 0)
        return err_set(e, ERR_USAGE, "none of the record's %zu tokens is trained (data.loss)",
                       d->n);
    pad_row(r, w, (int64_t)d->n - 1, seq);
    out->tokens += (int64_t)d->n - 1;
    out->trained_tokens += trained;
    return 0;
}

// ---------------------------------------------------------------- records

struct slice {
    const char *text;
    size_t bytes;
};

// Returns the next value as it is written in the line.
static struct slice take_value(struct json_reader *j) {
    json_peek(j);
    const char *begin = j->at;
    json_skip(j);
    return (struct slice){begin, j->rc == 0 ? (size_t)(j->at - begin) : 0};
}

// True for {"index": n} and nothing else: a record of interactive.data.
static bool is_index(const struct slice *record, int64_t *index) {
    struct region strings = {0};
    struct json_reader j;
    const char *key;
    json_reader_init(&j, "record", record->text, record->bytes, &strings, NULL);
    json_enter_object(&j);
    bool found = json_next_key(&j, &key) && strcmp(key, "index") == 0 &&
                 json_read_i64(&j, index) == 0 && !json_next_key(&j, &key) && json_finish(&j) == 0;
    region_free(&strings);
    return found;
}

static int find_kept(const struct request_reader *r, int64_t index, struct document *out,
                     struct err *e) {
    const struct kept *k = &r->kept;
    if (k->n == 0)
        return err_set(e, ERR_USAGE, "there is no record %" PRId64 ": interactive.data is empty",
                       index);
    if (index < 0 || (uint64_t)index >= k->n)
        return err_set(e, ERR_USAGE,
                       "there is no record %" PRId64 "; interactive.data has 0 to %" PRIu64, index,
                       k->n - 1);
    const uint64_t at = k->offsets[index];
    *out = (struct document){k->ids + at, k->trained + at, (size_t)(k->offsets[index + 1] - at)};
    return 0;
}

static int read_record(struct request_reader *r, const struct slice *record, int64_t number,
                       int32_t *const rows[REQUEST_ROWS], struct request *out, struct err *e) {
    enum render_shape shape = (enum render_shape)r->knobs->data_shape;
    struct document d;
    int64_t index;
    if (is_index(record, &index)) {
        TRY(find_kept(r, index, &d, e));
        return put_document(r, &d, number, rows, out, e);
    }
    if (shape == RENDER_AUTO)
        TRY(render_detect(r->context, "record", (uint64_t)number + 1, record->text, record->bytes,
                          &shape, e));
    TRY(render_line(r->context, shape, "record", (uint64_t)number + 1, record->text, record->bytes,
                    &r->rendered, e));
    d = (struct document){r->rendered.tokens.ids, r->rendered.trained, r->rendered.tokens.n};
    return put_document(r, &d, number, rows, out, e);
}

static int read_records(struct request_reader *r, const struct slice *value,
                        int32_t *const rows[REQUEST_ROWS], struct request *out, struct err *e) {
    const int64_t micro = r->knobs->interactive_micro, seq = knobs_interactive_seq(r->knobs);
    int64_t n = 0;
    if (value->text[0] != '[') {
        TRY(read_record(r, value, n++, rows, out, e));
    } else {
        struct region strings = {0};
        struct json_reader j;
        int rc = 0;
        json_reader_init(&j, "request", value->text, value->bytes, &strings, e);
        json_enter_array(&j);
        while (rc == 0 && json_next_element(&j)) {
            const struct slice record = take_value(&j);
            rc = n == micro ? err_set(e, ERR_USAGE,
                                      "a request has more than %" PRId64
                                      " records; accepted: 1 to interactive.micro=%" PRId64,
                                      micro, micro)
                 : j.rc     ? j.rc
                            : read_record(r, &record, n++, rows, out, e);
        }
        region_free(&strings);
        TRY(rc != 0 ? rc : j.rc);
    }
    if (n == 0)
        return err_set(e, ERR_USAGE, "the list of records is empty");
    for (; n < micro; n++)
        pad_row(r, row_at(rows, n * seq), 0, seq);
    return 0;
}

// ---------------------------------------------------------------- a line

static int read_id(struct json_reader *j, struct request_id *id) {
    const char *text;
    if (json_peek(j) == JSON_NUMBER) {
        TRY(json_read_i64(j, &id->number));
        id->type = REQUEST_ID_NUMBER; // set last: after an error the answer must not have id 0
        return 0;
    }
    TRY(json_read_string(j, &text, NULL));
    if (strlen(text) > REQUEST_ID_BYTES)
        return json_fail(j, ERR_USAGE,
                         "\"id\" has %zu bytes; accepted: at most %d, or a whole number",
                         strlen(text), REQUEST_ID_BYTES);
    id->type = REQUEST_ID_STRING;
    strcpy(id->text, text);
    return 0;
}

static int read_line(struct json_reader *j, struct request *out, struct slice *value) {
    bool has_id = false;
    const char *key;
    TRY(json_enter_object(j));
    while (json_next_key(j, &key)) {
        const bool train = strcmp(key, "train") == 0;
        if (train || strcmp(key, "evaluate") == 0) {
            if (value->text != NULL)
                return json_fail(j, ERR_USAGE,
                                 "a request must have exactly one of \"train\" and \"evaluate\"");
            out->kind = train ? GUEST_TRAIN : GUEST_EVALUATE;
            *value = take_value(j);
        } else if (strcmp(key, "id") == 0 && !has_id) {
            has_id = true;
            TRY(read_id(j, &out->id));
        } else {
            return json_fail(j, ERR_USAGE,
                             "a request has an unknown or repeated member \"%.40s\"; accepted: one "
                             "of \"train\" and \"evaluate\", and \"id\"",
                             key);
        }
    }
    TRY(json_finish(j));
    if (value->text == NULL)
        return json_fail(j, ERR_USAGE, "a request needs \"train\" or \"evaluate\"");
    if (value->text[0] != '{' && value->text[0] != '[')
        return json_fail(j, ERR_USAGE, "\"%s\" must be a record or a list of records",
                         out->kind == GUEST_TRAIN ? "train" : "evaluate");
    return 0;
}

int request_read(struct request_reader *r, const char *line, size_t bytes,
                 int32_t *const rows[REQUEST_ROWS], struct request *out, struct err *e) {
    struct region strings = {0};
    struct json_reader j;
    struct slice value = {0};
    *out = (struct request){0};
    json_reader_init(&j, "request", line, bytes, &strings, e);
    int rc = read_line(&j, out, &value);
    region_free(&strings);
    if (rc == 0 && rows != NULL)
        rc = read_records(r, &value, rows, out, e);
    return rc;
}
