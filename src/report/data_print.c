// data_print.c - see data_print.h.
#include "report/data_print.h"

#include "base/log.h"
#include "base/text.h"
#include "report/data_samples.h"

#include <inttypes.h>
#include <math.h>

enum { BAR_COLUMNS = 40 }; // width of the longest bar

// ---------------------------------------------------------------- for people

static const char *shape_text(const struct shard *s) {
    return s->shape == RENDER_AUTO ? "plain text" : render_shape_name(s->shape);
}

static void print_files(const struct data_sight *t, FILE *f) {
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
        if (s->counts.bad > 0)
            fprintf(f, ", %" PRIu64 " bad line%s left out", s->counts.bad,
                    s->counts.bad == 1 ? "" : "s");
        if (dataset_file_validates(t->data, i))
            fprintf(f, ", for validation");
        else if (weighted)
            fprintf(f, ", %.1f %% of all samples", 100 * dataset_file_share(t->data, i));
        fputc('\n', f);
    }
    fprintf(f, "tokenizer %s; template %s\n", tokenizer_describe(dataset_tokenizer(t->data)),
            renderer_template(dataset_renderer(t->data)));
}

static void print_counts(const struct data_sight *t, FILE *f) {
    const struct data_figures *x = t->figures;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f,
            "documents %" PRIu64 ", of which %" PRIu64 " train the token they end with (%.1f %%)\n",
            x->all.documents, x->all.end_trained,
            100 * figures_share(x->all.end_trained, x->all.documents));
    fprintf(f, "tokens    %s, of which %s trained (%.1f %%)\n",
            text_count(a, (double)x->all.tokens), text_count(b, (double)x->all.trained),
            100 * figures_share(x->all.trained, x->all.tokens));
    fprintf(f, "skipped   %" PRIu64 " documents and %" PRIu64 " pieces without a trained token\n",
            x->all.untrained, x->train.untrained_pieces);
    fprintf(f,
            "truncated %" PRIu64 " documents (%.1f %%) longer than seq=%" PRId64 ": %" PRIu64
            " tokens (%.1f %%), %" PRIu64 " of them trained; %" PRIu64 " dropped\n",
            x->cut_documents, 100 * figures_share(x->cut_documents, x->all.documents), t->seq,
            x->train.cut_columns, 100 * figures_share(x->train.cut_columns, x->all.tokens),
            x->train.cut_trained, x->train.dropped);
}

static void print_lengths(const struct data_sight *t, FILE *f) {
    const struct data_figures *x = t->figures;
    uint64_t tallest = 1;
    int first = 0, last = FIGURES_BUCKETS - 1;
    fprintf(f,
            "length    tokens per document: least %" PRIu64 ", p50 %" PRIu64 ", p95 %" PRIu64
            ", p99 %" PRIu64 ", most %" PRIu64 "\n",
            x->least, x->p50, x->p95, x->p99, x->most);
    for (int i = 0; i < FIGURES_BUCKETS; i++)
        tallest = x->histogram[i] > tallest ? x->histogram[i] : tallest;
    while (first < FIGURES_BUCKETS - 1 && x->histogram[first] == 0)
        first++;
    while (last > first && x->histogram[last] == 0)
        last--;
    for (int i = first; i <= last; i++) {
        // first and last are not empty, so i - 1 and i + 1 exist here
        if (x->histogram[i] == 0 && x->histogram[i - 1] == 0) {
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

// With data.pack=auto files may be packed in different ways.
static const char *modes_text(const struct data_sight *t) {
    for (size_t i = 1; i < dataset_files(t->data); i++)
        if (dataset_pack_mode(t->data, i) != dataset_pack_mode(t->data, 0))
            return "best_fit of records, stream of plain text";
    return mode_name(dataset_pack_mode(t->data, 0));
}

static void print_packing(const struct data_sight *t, FILE *f) {
    const struct data_figures *x = t->figures;
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f,
            "windows   %" PRIu64 " for training and %" PRIu64 " for validation, of seq=%" PRId64
            " tokens, packing %s\n",
            x->windows[SPLIT_TRAIN], x->windows[SPLIT_VALIDATION], t->seq, modes_text(t));
    fprintf(f, "          a window is a sequence that the model reads at once; packing says how "
               "documents fill windows\npadding  ");
    for (int i = 0; i < FIGURES_MODES; i++)
        fprintf(f, "%s %s %.1f %% (%" PRIu64 " windows)", i ? "," : "", mode_name(x->modes[i].mode),
                100 * x->modes[i].padding, x->modes[i].windows);
    fprintf(f,
            "\n          padding is the rest of a window that no document fills; it is computed "
            "and not trained\nspeed     %s at %s tokens/s (%.1f MB/s); batches at %s tokens/s\n",
            x->made_tokens == x->all.tokens ? "files tokenized"
            : x->made_tokens > 0            ? "files tokenized or found tokenized"
                                            : "files found tokenized",
            text_count(a, (double)x->all.tokens / x->all_seconds),
            1e-6 * (double)x->all.source_bytes / x->all_seconds,
            text_count(b, x->loader_tokens_per_s));
}

int data_print(const struct data_sight *t, FILE *f, struct err *e) {
    struct log probe;
    log_init(&probe, f); // knows about terminals and NO_COLOR
    print_files(t, f);
    print_counts(t, f);
    print_lengths(t, f);
    print_packing(t, f);
    if (t->samples > 0)
        fprintf(f, "\nsamples   trained tokens are %s\n",
                probe.color ? "\x1b[1;32mlike this\x1b[0m" : "in [[double brackets]]");
    for (int64_t i = 0; i < t->samples; i++)
        TRY(data_print_sample(t->data, i, probe.color, f, e));
    return 0;
}

// ---------------------------------------------------------------- for programs

static void put_files(const struct data_sight *t, struct json_writer *w) {
    json_member_array(w, "files");
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
        json_member_i64(w, "bad_lines", (int64_t)s->counts.bad);
        json_member_double(w, "share", dataset_file_share(t->data, i));
        json_member_bool(w, "validates", dataset_file_validates(t->data, i));
        json_member_bool(w, "reused", s->reused);
        json_member_string(w, "shard", s->path[0] ? s->path : NULL);
        json_member_double(w, "seconds", s->seconds);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

static void put_lengths(const struct data_figures *x, struct json_writer *w) {
    json_member_object(w, "lengths");
    json_member_i64(w, "least", (int64_t)x->least);
    json_member_i64(w, "p50", (int64_t)x->p50);
    json_member_i64(w, "p95", (int64_t)x->p95);
    json_member_i64(w, "p99", (int64_t)x->p99);
    json_member_i64(w, "most", (int64_t)x->most);
    json_member_array(w, "histogram");
    for (int i = 0; i < FIGURES_BUCKETS; i++) {
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

static void put_packing(const struct data_sight *t, struct json_writer *w) {
    const struct data_figures *x = t->figures;
    json_member_string(w, "pack", modes_text(t));
    json_member_object(w, "windows");
    json_member_i64(w, "train", (int64_t)x->windows[SPLIT_TRAIN]);
    json_member_i64(w, "validation", (int64_t)x->windows[SPLIT_VALIDATION]);
    json_put_object_end(w);
    json_member_object(w, "packing");
    for (int i = 0; i < FIGURES_MODES; i++) {
        json_put_key(w, mode_name(x->modes[i].mode));
        json_put_object_begin(w);
        json_member_i64(w, "windows", (int64_t)x->modes[i].windows);
        json_member_double(w, "padding_share", x->modes[i].padding);
        json_put_object_end(w);
    }
    json_put_object_end(w);
}

int data_put_json(const struct data_sight *t, struct json_writer *w, struct err *e) {
    const struct data_figures *x = t->figures;
    put_files(t, w);
    json_member_string(w, "tokenizer", tokenizer_describe(dataset_tokenizer(t->data)));
    json_member_i64(w, "vocabulary", dataset_vocab(t->data));
    json_member_string(w, "template", renderer_template(dataset_renderer(t->data)));
    json_member_i64(w, "end_of_text", renderer_end_of_text(dataset_renderer(t->data)));
    json_member_i64(w, "seq", t->seq);
    json_member_i64(w, "documents", (int64_t)x->all.documents);
    json_member_i64(w, "tokens", (int64_t)x->all.tokens);
    json_member_i64(w, "trained_tokens", (int64_t)x->all.trained);
    json_member_double(w, "trained_share", figures_share(x->all.trained, x->all.tokens));
    json_member_i64(w, "end_trained_documents", (int64_t)x->all.end_trained);
    json_member_bool(w, "end_trained", x->all.end_trained == x->all.documents - x->all.untrained);
    json_member_i64(w, "untrained_documents", (int64_t)x->all.untrained);
    json_member_i64(w, "bad_lines", (int64_t)x->all.bad);
    json_member_i64(w, "untrained_pieces", (int64_t)x->train.untrained_pieces);
    json_member_i64(w, "truncated_documents", (int64_t)x->cut_documents);
    json_member_double(w, "truncated_share", figures_share(x->cut_documents, x->all.documents));
    json_member_i64(w, "cut_tokens", (int64_t)x->train.cut_columns);
    json_member_i64(w, "cut_trained_tokens", (int64_t)x->train.cut_trained);
    json_member_i64(w, "dropped_documents", (int64_t)x->train.dropped);
    put_lengths(x, w);
    put_packing(t, w);
    const bool made = x->made_tokens > 0; // false: all tokens came from the cache
    json_member_double(w, "tokens_per_s", (double)x->all.tokens / x->all_seconds);
    json_member_double(w, "tokenize_tokens_per_s",
                       made ? (double)x->made_tokens / x->made_seconds : NAN);
    json_member_double(w, "tokenize_bytes_per_s",
                       made ? (double)x->made_bytes / x->made_seconds : NAN);
    json_member_double(w, "loader_tokens_per_s", x->loader_tokens_per_s);
    json_member_array(w, "samples");
    for (int64_t i = 0; i < t->samples; i++)
        TRY(data_put_sample(t->data, i, w, e));
    json_put_array_end(w);
    return 0;
}
