// data.c - haggle_data: the data as the model will see it, before anything is trained on it.
//
// Opens the dataset exactly as training does (same shards, split and packing) and reports on it:
// what the figures say is what a run with these knobs would get.
#include "api/api.h"
#include "api/data_samples.h"
#include "api/watch.h"

#include "base/clock.h"
#include "base/text.h"
#include "data/dataset.h"
#include "data/loader.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUCKETS = 33,     // of lengths: bucket b has 2^(b-1) + 1 to 2^b tokens
    BAR_COLUMNS = 40, // of the longest bar
    SAMPLES_DEFAULT = 2,
    MODES = 3
};
// Long enough for a steady figure, short enough not to be waited for.
static const double LOADER_SECONDS = 0.1;

struct figures {
    struct shard_counts all; // over the files
    struct pack_stats train; // as training would use it
    uint64_t windows[SPLITS];
    uint64_t histogram[BUCKETS];
    uint64_t least, p50, p95, p99, most; // tokens per document
    uint64_t cut_documents;              // longer than seq and cut off, over both splits
    struct {
        enum data_pack mode;
        uint64_t windows;
        double padding; // share of columns; NaN: that packing is not possible here
    } modes[MODES];
    uint64_t made_tokens, made_bytes; // tokenized now, not reused
    double made_seconds, all_seconds; // of those; of all files
    double loader_tokens_per_s;
    int64_t samples;
};

struct data_call {
    struct call *call;
    struct knobs knobs;
    struct dataset *data;
    struct figures f;
};

static double share(uint64_t part, uint64_t of) {
    return of > 0 ? (double)part / (double)of : 0;
}

// ---------------------------------------------------------------- figures

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void add_counts(struct figures *f, const struct shard *s) {
    f->all.documents += s->counts.documents;
    f->all.tokens += s->counts.tokens;
    f->all.trained += s->counts.trained;
    f->all.end_trained += s->counts.end_trained;
    f->all.untrained += s->counts.untrained;
    f->all.source_bytes += s->counts.source_bytes;
    f->all_seconds += s->seconds;
    if (s->reused)
        return;
    f->made_tokens += s->counts.tokens;
    f->made_bytes += s->counts.source_bytes;
    f->made_seconds += s->seconds;
}

static int bucket_of(uint64_t tokens) {
    int b = 0;
    while (b < BUCKETS - 1 && UINT64_C(1) << b < tokens)
        b++;
    return b;
}

// Nearest rank, as everywhere in this program.
static uint64_t rank_of(const uint64_t *sorted, uint64_t n, double p) {
    uint64_t rank = (uint64_t)ceil(p * (double)n);
    return sorted[rank > 0 ? rank - 1 : 0];
}

static int measure_lengths(struct data_call *t, struct err *e) {
    struct figures *f = &t->f;
    uint64_t n = 0, *lengths = malloc((f->all.documents + 1) * sizeof *lengths);
    if (lengths == NULL)
        return err_set(e, ERR_MEMORY, "out of memory for the lengths of %" PRIu64 " documents",
                       f->all.documents);
    for (size_t i = 0; i < dataset_files(t->data); i++) {
        const struct shard *s = dataset_file_shard(t->data, i);
        for (uint64_t k = 0; k < s->counts.documents; k++) {
            lengths[n] = s->offsets[k + 1] - s->offsets[k];
            f->histogram[bucket_of(lengths[n++])]++;
        }
    }
    qsort(lengths, (size_t)n, sizeof *lengths, compare_u64);
    if (n > 0) {
        f->least = lengths[0];
        f->p50 = rank_of(lengths, n, 0.50);
        f->p95 = rank_of(lengths, n, 0.95);
        f->p99 = rank_of(lengths, n, 0.99);
        f->most = lengths[n - 1];
    }
    free(lengths);
    return 0;
}

static int measure_packing(struct data_call *t, struct err *e) {
    static const enum data_pack modes[MODES] = {DATA_PACK_BEST_FIT, DATA_PACK_STREAM,
                                                DATA_PACK_NONE};
    for (int i = 0; i < MODES; i++) {
        struct pack_stats s;
        uint64_t windows;
        TRY(dataset_try_pack(t->data, modes[i], &s, &windows, e));
        t->f.modes[i].mode = modes[i];
        t->f.modes[i].windows = windows;
        t->f.modes[i].padding = share(s.padding, s.padding + s.used);
    }
    return 0;
}

// Windows made one after the other by one thread, as a worker of the loader makes them.
static int measure_loader(struct data_call *t, struct err *e) {
    struct mem *mem;
    struct loader *l = NULL;
    TRY(mem_open(&mem, e));
    const struct loader_options o = {
        .dataset = t->data, .batch = 1, .micro_batches = 1, .replicas = 1};
    int rc = loader_open(&l, &o, mem, e);
    const uint64_t begin = clock_ns();
    uint64_t tokens = 0;
    double seconds = 0;
    while (rc == 0 && seconds < LOADER_SECONDS) {
        struct loader_batch b;
        rc = loader_next(l, &b, e);
        if (rc == 0)
            loader_release(l);
        tokens += (uint64_t)t->knobs.seq;
        seconds = 1e-9 * (double)(clock_ns() - begin);
    }
    loader_close(l);
    mem_close(mem);
    t->f.loader_tokens_per_s = seconds > 0 ? (double)tokens / seconds : 0;
    return rc;
}

static int measure(struct data_call *t, struct err *e) {
    struct figures *f = &t->f;
    for (size_t i = 0; i < dataset_files(t->data); i++)
        add_counts(f, dataset_file_shard(t->data, i));
    f->train = dataset_stats(t->data, SPLIT_TRAIN);
    f->cut_documents = f->train.truncated + dataset_stats(t->data, SPLIT_VALIDATION).truncated;
    for (int i = 0; i < SPLITS; i++)
        f->windows[i] = dataset_windows(t->data, (enum dataset_split)i);
    TRY(measure_lengths(t, e));
    TRY(measure_packing(t, e));
    return measure_loader(t, e);
}

// ---------------------------------------------------------------- for people

static const char *shape_text(const struct shard *s) {
    return s->shape == RENDER_AUTO ? "plain text" : render_shape_name(s->shape);
}

static void print_files(const struct data_call *t, FILE *f) {
    char tokens[TEXT_UNIT_BYTES], bytes[TEXT_UNIT_BYTES];
    const size_t n = dataset_files(t->data);
    bool weighted = false;
    for (size_t i = 0; i < n; i++)
        weighted = weighted || dataset_file_share(t->data, i) < 1;
    for (size_t i = 0; i < n; i++) {
        const struct shard *s = dataset_file_shard(t->data, i);
        fprintf(f, "%-10s%s: %s, %" PRIu64 " document%s, %s tokens, %s%s", i == 0 ? "files" : "",
                dataset_file_path(t->data, i), shape_text(s), s->counts.documents,
                s->counts.documents == 1 ? "" : "s", text_count(tokens, (double)s->counts.tokens),
                text_bytes(bytes, s->counts.source_bytes), s->reused ? ", reused" : "");
        if (dataset_file_validates(t->data, i))
            fprintf(f, ", for validation");
        else if (weighted)
            fprintf(f, ", %.1f %% of all samples", 100 * dataset_file_share(t->data, i));
        fputc('\n', f);
    }
    fprintf(f, "tokenizer %s; template %s\n", tokenizer_describe(dataset_tokenizer(t->data)),
            renderer_template(dataset_renderer(t->data)));
}

static void print_counts(const struct data_call *t, FILE *f) {
    const struct figures *x = &t->f;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(
        f, "documents %" PRIu64 ", of which %" PRIu64 " train the token they end with (%.1f %%)\n",
        x->all.documents, x->all.end_trained, 100 * share(x->all.end_trained, x->all.documents));
    fprintf(f, "tokens    %s, of which %s trained (%.1f %%)\n",
            text_count(a, (double)x->all.tokens), text_count(b, (double)x->all.trained),
            100 * share(x->all.trained, x->all.tokens));
    fprintf(f, "skipped   %" PRIu64 " documents and %" PRIu64 " pieces without a trained token\n",
            x->all.untrained, x->train.untrained_pieces);
    fprintf(f,
            "truncated %" PRIu64 " documents (%.1f %%) longer than seq=%" PRId64 ": %" PRIu64
            " tokens (%.1f %%), %" PRIu64 " of them trained; %" PRIu64 " dropped\n",
            x->cut_documents, 100 * share(x->cut_documents, x->all.documents), t->knobs.seq,
            x->train.cut_columns, 100 * share(x->train.cut_columns, x->all.tokens),
            x->train.cut_trained, x->train.dropped);
}

static void print_lengths(const struct data_call *t, FILE *f) {
    const struct figures *x = &t->f;
    uint64_t tallest = 1;
    int first = 0, last = BUCKETS - 1;
    fprintf(f,
            "length    tokens per document: least %" PRIu64 ", p50 %" PRIu64 ", p95 %" PRIu64
            ", p99 %" PRIu64 ", most %" PRIu64 "\n",
            x->least, x->p50, x->p95, x->p99, x->most);
    for (int i = 0; i < BUCKETS; i++)
        tallest = x->histogram[i] > tallest ? x->histogram[i] : tallest;
    while (first < BUCKETS - 1 && x->histogram[first] == 0)
        first++;
    while (last > first && x->histogram[last] == 0)
        last--;
    for (int i = first; i <= last; i++) {
        if (x->histogram[i] == 0 && x->histogram[i - 1] == 0) { // first and last are not empty
            if (x->histogram[i + 1] != 0)
                fprintf(f, "  ...\n");
            continue;
        }
        const int bar = (int)(x->histogram[i] * BAR_COLUMNS / tallest);
        fprintf(f, "  up to %8" PRIu64 "  %-*.*s %" PRIu64 "\n", UINT64_C(1) << i, BAR_COLUMNS,
                bar > 0 || x->histogram[i] == 0 ? bar : 1,
                "########################################", x->histogram[i]);
    }
}

static const char *mode_name(enum data_pack mode) {
    return knob_choice(KNOB_data_pack, (int)mode);
}

// Pools may differ under data.pack=auto.
static const char *modes_text(const struct data_call *t) {
    for (size_t i = 1; i < dataset_files(t->data); i++)
        if (dataset_pack_mode(t->data, i) != dataset_pack_mode(t->data, 0))
            return "best_fit of records, stream of plain text";
    return mode_name(dataset_pack_mode(t->data, 0));
}

static void print_packing(const struct data_call *t, FILE *f) {
    const struct figures *x = &t->f;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f,
            "windows   %" PRIu64 " for training and %" PRIu64 " for validation, of seq=%" PRId64
            " tokens, packing %s\n",
            x->windows[SPLIT_TRAIN], x->windows[SPLIT_VALIDATION], t->knobs.seq, modes_text(t));
    fprintf(f, "padding  ");
    for (int i = 0; i < MODES; i++)
        fprintf(f, "%s %s %.1f %% (%" PRIu64 " windows)", i ? "," : "", mode_name(x->modes[i].mode),
                100 * x->modes[i].padding, x->modes[i].windows);
    fprintf(f, "\nspeed     %s at %s tokens/s (%.1f MB/s); batches at %s tokens/s\n",
            x->made_tokens == x->all.tokens ? "files tokenized"
            : x->made_tokens > 0            ? "files tokenized or found tokenized"
                                            : "files found tokenized",
            text_count(a, (double)x->all.tokens / x->all_seconds),
            1e-6 * (double)x->all.source_bytes / x->all_seconds,
            text_count(b, x->loader_tokens_per_s));
}

static int print_all(const struct data_call *t, FILE *f, struct err *e) {
    struct log probe;
    log_init(&probe, f); // knows about terminals and NO_COLOR
    print_files(t, f);
    print_counts(t, f);
    print_lengths(t, f);
    print_packing(t, f);
    if (t->f.samples > 0)
        fprintf(f, "\nsamples   trained tokens are %s\n",
                probe.color ? "\x1b[1;32mlike this\x1b[0m" : "in [[double brackets]]");
    for (int64_t i = 0; i < t->f.samples; i++)
        TRY(data_print_sample(t->data, i, probe.color, f, e));
    return 0;
}

// ---------------------------------------------------------------- for programs

static void put_files(const struct data_call *t, struct json_writer *w) {
    json_put_key(w, "files");
    json_put_array_begin(w);
    for (size_t i = 0; i < dataset_files(t->data); i++) {
        const struct shard *s = dataset_file_shard(t->data, i);
        json_put_object_begin(w);
        json_member_string(w, "path", dataset_file_path(t->data, i));
        json_member_string(w, "shape", s->shape == RENDER_AUTO ? "plain" : shape_text(s));
        json_member_i64(w, "bytes", (int64_t)s->counts.source_bytes);
        json_member_i64(w, "documents", (int64_t)s->counts.documents);
        json_member_i64(w, "tokens", (int64_t)s->counts.tokens);
        json_member_i64(w, "trained_tokens", (int64_t)s->counts.trained);
        json_member_i64(w, "end_trained_documents", (int64_t)s->counts.end_trained);
        json_member_i64(w, "untrained_documents", (int64_t)s->counts.untrained);
        json_member_double(w, "share", dataset_file_share(t->data, i));
        json_member_bool(w, "validates", dataset_file_validates(t->data, i));
        json_member_bool(w, "reused", s->reused);
        json_member_string(w, "shard", s->path[0] ? s->path : NULL);
        json_member_double(w, "seconds", s->seconds);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

static void put_lengths(const struct figures *x, struct json_writer *w) {
    json_put_key(w, "lengths");
    json_put_object_begin(w);
    json_member_i64(w, "least", (int64_t)x->least);
    json_member_i64(w, "p50", (int64_t)x->p50);
    json_member_i64(w, "p95", (int64_t)x->p95);
    json_member_i64(w, "p99", (int64_t)x->p99);
    json_member_i64(w, "most", (int64_t)x->most);
    json_put_key(w, "histogram");
    json_put_array_begin(w);
    for (int i = 0; i < BUCKETS; i++) {
        if (x->histogram[i] == 0)
            continue;
        json_put_object_begin(w);
        json_member_i64(w, "up_to", (int64_t)(UINT64_C(1) << i));
        json_member_i64(w, "documents", (int64_t)x->histogram[i]);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}

static void put_packing(const struct data_call *t, struct json_writer *w) {
    const struct figures *x = &t->f;
    json_member_string(w, "pack", modes_text(t));
    json_put_key(w, "windows");
    json_put_object_begin(w);
    json_member_i64(w, "train", (int64_t)x->windows[SPLIT_TRAIN]);
    json_member_i64(w, "validation", (int64_t)x->windows[SPLIT_VALIDATION]);
    json_put_object_end(w);
    json_put_key(w, "packing");
    json_put_object_begin(w);
    for (int i = 0; i < MODES; i++) {
        json_put_key(w, mode_name(x->modes[i].mode));
        json_put_object_begin(w);
        json_member_i64(w, "windows", (int64_t)x->modes[i].windows);
        json_member_double(w, "padding_share", x->modes[i].padding);
        json_put_object_end(w);
    }
    json_put_object_end(w);
}

static int put_all(const struct data_call *t, struct json_writer *w, struct err *e) {
    const struct figures *x = &t->f;
    call_json_begin(t->call, "data", &t->knobs);
    put_files(t, w);
    json_member_string(w, "tokenizer", tokenizer_describe(dataset_tokenizer(t->data)));
    json_member_i64(w, "vocabulary", dataset_vocab(t->data));
    json_member_string(w, "template", renderer_template(dataset_renderer(t->data)));
    json_member_i64(w, "end_of_text", renderer_end_of_text(dataset_renderer(t->data)));
    json_member_i64(w, "seq", t->knobs.seq);
    json_member_i64(w, "documents", (int64_t)x->all.documents);
    json_member_i64(w, "tokens", (int64_t)x->all.tokens);
    json_member_i64(w, "trained_tokens", (int64_t)x->all.trained);
    json_member_double(w, "trained_share", share(x->all.trained, x->all.tokens));
    json_member_i64(w, "end_trained_documents", (int64_t)x->all.end_trained);
    json_member_bool(w, "end_trained", x->all.end_trained == x->all.documents - x->all.untrained);
    json_member_i64(w, "untrained_documents", (int64_t)x->all.untrained);
    json_member_i64(w, "untrained_pieces", (int64_t)x->train.untrained_pieces);
    json_member_i64(w, "truncated_documents", (int64_t)x->cut_documents);
    json_member_double(w, "truncated_share", share(x->cut_documents, x->all.documents));
    json_member_i64(w, "cut_tokens", (int64_t)x->train.cut_columns);
    json_member_i64(w, "cut_trained_tokens", (int64_t)x->train.cut_trained);
    json_member_i64(w, "dropped_documents", (int64_t)x->train.dropped);
    put_lengths(x, w);
    put_packing(t, w);
    const bool made = x->made_tokens > 0; // else it was there, and only read and checked
    json_member_double(w, "tokens_per_s", (double)x->all.tokens / x->all_seconds);
    json_member_double(w, "tokenize_tokens_per_s",
                       made ? (double)x->made_tokens / x->made_seconds : NAN);
    json_member_double(w, "tokenize_bytes_per_s",
                       made ? (double)x->made_bytes / x->made_seconds : NAN);
    json_member_double(w, "loader_tokens_per_s", x->loader_tokens_per_s);
    json_put_key(w, "samples");
    json_put_array_begin(w);
    for (int64_t i = 0; i < x->samples; i++)
        TRY(data_put_sample(t->data, i, w, e));
    json_put_array_end(w);
    json_put_object_end(w);
    return 0;
}

// ---------------------------------------------------------------- the call

static void say(void *arg, enum log_level level, const char *text) {
    log_put(arg, level, "%s", text);
}

static void show_progress(void *arg, const struct shard_progress *p) {
    watch_show_progress(arg, p);
}

static int stop_asked(void *arg) {
    (void)arg;
    return *stop_flag();
}

// The files of the call become data.path, so that everything after reads one place.
static int name_files(struct knobs *k, const struct haggle_data *x, struct err *e) {
    size_t used = 0;
    if (x->n_files > 0 && k->by[KNOB_data_path] == SET_BY_COMMAND_LINE)
        return err_set(e, ERR_USAGE, "data.path=%s and '%s' are given; one of them is needed",
                       k->data_path, x->files[0]);
    for (size_t i = 0; i < x->n_files; i++) {
        const int n = snprintf(k->data_path + used, sizeof k->data_path - used, "%s%s",
                               i > 0 ? "," : "", x->files[i]);
        if (n < 0 || (size_t)n >= sizeof k->data_path - used)
            return err_set(e, ERR_USAGE, "the names of the files are longer than %zu bytes",
                           sizeof k->data_path - 1);
        used += (size_t)n;
    }
    if (k->data_path[0] == '\0')
        return err_set(e, ERR_USAGE, "which data? accepted: haggle data FILE ... [knob=value ...]");
    return 0;
}

static int open_data(struct data_call *t, struct err *e) {
    const struct knobs *k = &t->knobs;
    struct model_shape shape;
    bool from_folder = false;
    const struct shard_listener listener = {
        .arg = &t->call->log, .say = say, .progress = show_progress, .stop = stop_asked};
    TRY(model_shape_open(&shape, k->model, &from_folder, e));
    // A tokenizer may be looked through without the model it belongs to.
    const bool any_model = k->tokenizer[0] && k->by[KNOB_model] == SET_BY_DEFAULT;
    int rc = dataset_open_knobs(&t->data, k, from_folder ? k->model : NULL,
                                any_model ? 0 : shape.vocab, &listener, e);
    log_live_end(&t->call->log);
    return rc;
}

static int run(struct data_call *t, const struct haggle_data *x, struct err *e) {
    TRY(name_files(&t->knobs, x, e));
    TRY(open_data(t, e));
    if (dataset_files(t->data) == 0)
        return err_set(e, ERR_USAGE,
                       "the built-in corpus is made as it is needed: there is nothing to look at; "
                       "accepted: haggle data FILE ...");
    TRY(measure(t, e));
    t->f.samples = x->samples < 0 ? SAMPLES_DEFAULT : x->samples;
    if (t->call->out != NULL)
        TRY(print_all(t, t->call->out, e));
    return t->call->wants_json ? put_all(t, &t->call->json, e) : 0;
}

int haggle_data(const struct haggle_config *config, const struct haggle_data *x,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct data_call t = {.call = &c, .knobs = config->knobs};
    call_begin(&c, sink);
    int rc = run(&t, x, &c.err);
    dataset_close(t.data);
    return call_end(&c, rc, e);
}
