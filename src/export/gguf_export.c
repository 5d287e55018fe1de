// gguf_export.c - a run, a checkpoint or a Hugging Face folder as one GGUF file.
//
// The order of things: find the model and its tokenizer, refuse what llama.cpp cannot represent,
// make the head in memory, stream the tensors behind it into FILE.tmp-export, read all of it back
// and compare with the source, rename. The file appears whole or not at all. A band of rows is all
// that is ever held of the weights.
#include "export/gguf_parts.h"

#include "base/file.h"
#include "base/text.h"
#include "train/checkpoint_dir.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_PIECE = 1 << 16 };

struct making {
    struct exporter *x;
    struct tokenizer *tokenizer;
    struct gguf_head head;
    struct gguf_item *items;
    int64_t n_items;
    float *rows, *scratch, *back; // a band each
    void *packed;
    char path[PATH_MAX]; // of the unfinished file
    struct err *e;
};

// ---------------------------------------------------------------- the source

// A Hugging Face folder, not a run or a checkpoint.
static bool is_folder(const char *dir) {
    char runs[PATH_MAX];
    return export_has_file(dir, "config.json") && !export_has_file(dir, MANIFEST_NAME) &&
           file_join(runs, sizeof runs, dir, CHECKPOINT_FOLDER, NULL) == 0 && !file_is_dir(runs);
}

static int open_folder(struct exporter *x) {
    const struct export_options *o = x->o;
    char path[PATH_MAX];
    if (o->best || o->source != NULL || o->merge)
        return err_set(x->e, ERR_USAGE, "'%.300s' is a folder with a model; %s is for runs",
                       o->run_dir,
                       o->best    ? "--best"
                       : o->merge ? "--merge"
                                  : "--source");
    snprintf(x->out->source, PATH_MAX, "%s", o->run_dir);
    snprintf(x->out->checkpoint, PATH_MAX, "%s", o->run_dir);
    TRY(file_join(path, sizeof path, o->run_dir, "config.json", x->e));
    TRY(model_shape_read_config(&x->shape, path, x->e));
    snprintf(x->source_name, sizeof x->source_name, "%s", x->shape.name);
    x->has_source = true;
    TRY(weights_open(&x->weights, o->run_dir, x->e));
    TRY(weights_refuse_extra(x->weights, &x->shape, x->e));
    TRY(export_find_tokenizer(x));
    x->bytes = false; // a folder without a tokenizer says nothing of bytes
    return 0;
}

static int find_model(struct exporter *x) {
    const char *dir = x->o->run_dir;
    if (is_folder(dir))
        return open_folder(x);
    if (export_has_file(dir, ADAPTER_CONFIG) && !export_has_file(dir, MANIFEST_NAME))
        return err_set(x->e, ERR_USAGE,
                       "'%.300s' holds an adapter for another model; give the run that trained "
                       "it, with --merge",
                       dir);
    TRY(export_find_run(x));
    if (export_writes_adapter(x))
        return err_set(x->e, ERR_USAGE,
                       "'%.300s' trained an adapter, and a GGUF file holds a whole model; add "
                       "--merge",
                       dir);
    return 0;
}

static int open_tokenizer(struct making *m) {
    struct exporter *x = m->x;
    if (x->bytes)
        return tokenizer_open_bytes(&m->tokenizer, m->e);
    if (x->tokenizer_file[0] != '\0')
        return tokenizer_open(&m->tokenizer, x->tokenizer_file, m->e);
    if (x->tokenizer_dir[0] != '\0')
        return err_set(m->e, ERR_UNSUPPORTED,
                       "'%.300s' has a tokenizer, but no tokenizer.json, which is the only form "
                       "that haggle reads; save one with transformers (AutoTokenizer, use_fast)",
                       x->tokenizer_dir);
    sentences_add(&x->out->remarks, "the model has no tokenizer: llama.cpp can run it on ids only");
    return 0;
}

// ---------------------------------------------------------------- the head

static int put_vocabulary(struct making *m) {
    struct exporter *x = m->x;
    const struct export_chat *c = &x->chat;
    TRY(open_tokenizer(m));
    TRY(export_find_chat(x));
    const int32_t ids = m->tokenizer != NULL ? tokenizer_size(m->tokenizer) : 0;
    const bool begins = c->begin >= 0, shaped = x->shape.bos_id >= 0 && x->shape.bos_id < ids;
    const struct gguf_vocabulary v = {.tokenizer = m->tokenizer,
                                      .size = x->shape.vocab,
                                      .begin = begins   ? c->begin
                                               : shaped ? (int32_t)x->shape.bos_id
                                                        : -1,
                                      .end = c->n_ends > 0 ? c->ends[0] : -1,
                                      .turn_end = c->turn_end,
                                      .add_begin = begins,
                                      .chat_template = c->text,
                                      .template_bytes = c->text_bytes};
    x->out->chat = c->text != NULL;
    return gguf_vocab_put(&m->head, &v, &x->out->tokenizer, &x->out->remarks, m->e);
}

static void put_general(struct making *m) {
    const struct exporter *x = m->x;
    const enum gguf_type t = x->o->gguf;
    const char *architecture = gguf_model_architecture(&x->shape);
    const char *name = x->source_name[0] != '\0' ? x->source_name : x->shape.name;
    gguf_put_text(&m->head, "general.architecture", architecture, strlen(architecture));
    gguf_put_text(&m->head, "general.type", "model", 5);
    gguf_put_text(&m->head, "general.name", name, strlen(name));
    gguf_put_u32(&m->head, "general.file_type", gguf_file_type(t));
    // The version of the quantized types' layout.
    if (gguf_block_elements(t) > 1)
        gguf_put_u32(&m->head, "general.quantization_version", 2);
}

// Says which tensors are wider than asked for, one sentence for each place in a layer.
static void note_wider(struct making *m) {
    const enum gguf_type wanted = m->x->o->gguf;
    bool told[ROLE_COUNT] = {false};
    for (int64_t i = 0; i < m->n_items; i++) {
        const struct gguf_item *t = &m->items[i];
        const char *name = t->name;
        if (t->type != GGUF_F16 || wanted == GGUF_F16 || told[t->param.role])
            continue;
        told[t->param.role] = true;
        if (t->param.layer >= 0)
            name = strchr(strchr(name, '.') + 1, '.') + 1;
        sentences_add(&m->x->out->remarks,
                      "%s%s stays f16: its rows have %" PRId64
                      " elements, and %s needs a multiple of %d",
                      name, t->param.layer >= 0 ? " of every layer" : "", t->columns,
                      gguf_type_name(wanted), GGUF_BLOCK);
    }
}

static int plan(struct making *m) {
    struct exporter *x = m->x;
    int64_t band = 0;
    TRY(find_model(x));
    TRY(gguf_model_check(&x->shape, m->e));
    gguf_head_begin(&m->head);
    put_general(m);
    gguf_model_put(&m->head, &x->shape);
    TRY(put_vocabulary(m));
    TRY(gguf_model_items(&x->shape, x->o->gguf, &m->items, &m->n_items, m->e));
    for (int64_t i = 0; i < m->n_items; i++) {
        const struct gguf_item *t = &m->items[i];
        const int64_t elements = gguf_model_band(t) * t->columns;
        gguf_put_tensor(&m->head, t->name, t->type, t->param.rank,
                        (const int64_t[]){t->columns, t->rows});
        band = elements > band ? elements : band;
    }
    TRY(gguf_head_end(&m->head, m->e));
    note_wider(m);
    m->rows = malloc((size_t)band * sizeof *m->rows);
    m->scratch = malloc((size_t)band * sizeof *m->scratch);
    m->back = malloc((size_t)band * sizeof *m->back);
    m->packed = malloc((size_t)band * sizeof *m->rows);
    if (m->rows == NULL || m->scratch == NULL || m->back == NULL || m->packed == NULL)
        return err_set(m->e, ERR_MEMORY, "no memory for the export's buffers");
    x->out->step = x->manifest.state.step;
    x->out->architecture = gguf_model_architecture(&x->shape);
    x->out->dtype = gguf_type_name(x->o->gguf);
    x->out->tensors = m->n_items;
    x->out->bytes = m->head.n + m->head.data_bytes;
    return export_check_space(x->out->out_dir, x->out->bytes, m->e);
}

// ---------------------------------------------------------------- writing

static int refuse_value(struct making *m, const struct gguf_item *t, int64_t at, float value) {
    if (!isfinite(value))
        return err_set(m->e, ERR_NUMERIC, "'%s' holds %g in '%s' (element %" PRId64 " of %s)",
                       m->x->out->checkpoint, (double)value, t->param.name, at, t->name);
    return err_set(m->e, ERR_NUMERIC, "%g in '%s' is too large for %s; choose --type bf16 or f32",
                   (double)value, t->param.name, gguf_type_name(t->type));
}

static int put_item(struct making *m, struct file_writer *w, const struct gguf_item *t) {
    static const char zeros[GGUF_ALIGNMENT];
    const int64_t band = gguf_model_band(t);
    for (int64_t r = 0; r < t->rows; r += band) {
        const int64_t n = t->rows - r < band ? t->rows - r : band, elements = n * t->columns;
        TRY(gguf_model_read(m->x, t, r, n, m->rows, m->scratch));
        const int64_t bad = gguf_encode(t->type, m->rows, elements, m->packed);
        if (bad >= 0)
            return refuse_value(m, t, r * t->columns + bad, m->rows[bad]);
        TRY(file_writer_put(w, m->packed, (size_t)gguf_bytes(t->type, elements), m->e));
    }
    return file_writer_put(w, zeros,
                           (size_t)gguf_padding(gguf_bytes(t->type, t->rows * t->columns)), m->e);
}

static int write_all(struct making *m) {
    struct file_writer w;
    TRY(file_writer_begin(&w, m->path, m->e));
    int rc = file_writer_put(&w, m->head.data, m->head.n, m->e);
    for (int64_t i = 0; rc == 0 && i < m->n_items; i++)
        rc = put_item(m, &w, &m->items[i]);
    if (rc == 0)
        rc = file_writer_end(&w, m->e);
    if (rc != 0)
        file_writer_abort(&w);
    return rc;
}

// ---------------------------------------------------------------- reading back

static int compare_head(struct making *m, struct gguf *g, int64_t *differ) {
    char piece[HEAD_PIECE];
    *differ = gguf_data_start(g) != m->head.n;
    for (size_t at = 0; *differ == 0 && at < m->head.n; at += HEAD_PIECE) {
        const size_t n = m->head.n - at < HEAD_PIECE ? m->head.n - at : HEAD_PIECE;
        TRY(gguf_read_raw(g, at, piece, n, m->e));
        for (size_t i = 0; i < n; i++)
            *differ += piece[i] != m->head.data[at + i];
    }
    return 0;
}

static int compare_item(struct making *m, struct gguf *g, const struct gguf_item *item,
                        int64_t *off, double *square, double *norm) {
    const struct gguf_tensor *t = gguf_tensor_find(g, item->name);
    const int64_t band = gguf_model_band(item);
    if (t == NULL || t->type != item->type || t->dims[0] != item->columns ||
        t->elements != item->rows * item->columns)
        return err_set(m->e, ERR_NUMERIC, "'%s' has no tensor %s of the kind that was written",
                       m->path, item->name);
    for (int64_t r = 0; r < item->rows; r += band) {
        const int64_t n = (item->rows - r < band ? item->rows - r : band) * item->columns;
        TRY(gguf_read(g, t, r * item->columns, n, m->back, m->e));
        TRY(gguf_model_read(m->x, item, r, n / item->columns, m->rows, m->scratch));
        *off += gguf_count_off(item->type, m->rows, m->back, n);
        for (int64_t i = 0; i < n; i++) {
            const double d = (double)m->back[i] - (double)m->rows[i];
            *square += d * d;
            *norm += (double)m->rows[i] * (double)m->rows[i];
        }
    }
    return 0;
}

static int compare_all(struct making *m, struct gguf *g) {
    struct exporter *x = m->x;
    int64_t differ = 0, off = 0;
    double square = 0, norm = 0;
    TRY(compare_head(m, g, &differ));
    TRY(export_add_figure(x, "bytes of the head that are not as written", (double)differ, 0));
    for (int64_t i = 0; differ == 0 && i < m->n_items; i++)
        TRY(compare_item(m, g, &m->items[i], &off, &square, &norm));
    TRY(export_add_figure(x, "values further from the source's than rounding", (double)off, 0));
    TRY(export_add_figure(x, "weights, relative L2 of the difference",
                          norm > 0 ? sqrt(square / norm) : 0, -1));
    return x->out->ok ? 0
                      : err_set(m->e, ERR_NUMERIC,
                                "'%s' is not the model that was exported: %" PRId64
                                " bytes of its head and %" PRId64 " values differ",
                                m->path, differ, off);
}

static int read_back(struct making *m) {
    const struct export_options *o = m->x->o;
    struct gguf *g;
    if (o->on_written != NULL)
        TRY(o->on_written(o->arg, m->path, m->e));
    const int opened = gguf_open(&g, m->path, m->e);
    if (opened == ERR_FORMAT || opened == ERR_UNSUPPORTED) { // damaged behind our back
        struct err why = *m->e;
        return err_set(m->e, ERR_NUMERIC, "the file that was written cannot be read: %.800s",
                       why.text);
    }
    TRY(opened);
    const int rc = compare_all(m, g);
    gguf_close(g);
    return rc;
}

// ---------------------------------------------------------------- all

static int check_target(struct making *m) {
    struct exporter *x = m->x;
    const char *path = x->o->out_dir;
    const size_t n = strlen(path);
    if (n == 0 || n + 32 > KNOB_STRING_BYTES || path[n - 1] == '/')
        return err_set(x->e, ERR_USAGE, "--gguf '%.200s': the name of a file to write is needed",
                       path);
    if (file_exists(path))
        return err_set(x->e, ERR_USAGE,
                       "'%s' exists; a new name is needed, so that no file is overwritten", path);
    snprintf(x->out->out_dir, PATH_MAX, "%s", path);
    snprintf(m->path, sizeof m->path, "%s.tmp-export", path);
    return 0;
}

static int work(struct making *m) {
    TRY(check_target(m));
    TRY(plan(m));
    TRY(file_make_parent(m->path, m->e));
    TRY(write_all(m));
    int rc = read_back(m);
    if (rc == 0)
        rc = export_probe_source(m->x);
    if (rc == 0)
        rc = file_rename(m->path, m->x->out->out_dir, m->e);
    if (rc != 0) {
        struct err why = {0};
        if (file_remove_tree(m->path, &why) != 0)
            checkpoint_say(&m->x->o->listener, LOG_WARN,
                           "the unfinished export could not be removed: %s", why.text);
    }
    return rc;
}

int export_make_gguf(struct exporter *x) {
    struct making m = {.x = x, .e = x->e};
    const int rc = work(&m);
    tokenizer_close(m.tokenizer);
    gguf_head_free(&m.head);
    free(m.items);
    free(m.rows);
    free(m.scratch);
    free(m.back);
    free(m.packed);
    return rc;
}
