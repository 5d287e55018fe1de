// score.c - see score.h. What of two scores can be compared is in score_compare.c.
#include "train/score.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "train/adapted.h"
#include "train/evaluate.h"
#include "train/score_text.h"
#include "train/source.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    // Of a turn, unless batch.micro says otherwise: enough to keep all threads, or a device, busy.
    TURN_TOKENS = 4096,
    DEVICE_TURN_TOKENS = 16384,
    // Elements of its logits, unless logits.chunk says otherwise.
    TURN_LOGITS = 16 << 20,
    DEVICE_TURN_LOGITS = 128 << 20,
    LEAST_CHUNK = 64 // rows
};

// ---------------------------------------------------------------- units

static bool is_plain(const struct shard *s) {
    return s->shape == RENDER_AUTO;
}

static uint64_t columns_of(const struct shard *s, uint64_t document) {
    return s->offsets[document + 1] - s->offsets[document] - 1;
}

// A plain text is one document, cut in sequences; other files have a unit for each document.
static uint64_t units_of(const struct shard *s, uint64_t seq) {
    return is_plain(s) && s->counts.documents > 0 ? columns_of(s, 0) / seq + 1
                                                  : s->counts.documents;
}

static struct score_unit *unit_of(const struct score *s, const struct dataset_piece *p) {
    const bool plain = is_plain(dataset_file_shard(s->data, p->file));
    const uint64_t at = plain ? p->first / (uint64_t)s->knobs.seq : p->document;
    return &s->units[s->first_unit[p->file] + at];
}

static int make_units(struct score *s, struct err *e) {
    const size_t files = dataset_files(s->data);
    const uint64_t seq = (uint64_t)s->knobs.seq;
    uint64_t n = 0;
    s->first_unit = calloc(files + 1, sizeof *s->first_unit);
    s->texts = calloc(files + 1, sizeof *s->texts);
    for (size_t i = 0; s->first_unit != NULL && i < files; i++) {
        const struct shard *shard = dataset_file_shard(s->data, i);
        s->first_unit[i] = (size_t)n;
        n += units_of(shard, seq);
        s->documents += shard->counts.documents;
        s->sequences = s->sequences || is_plain(shard);
        s->records = s->records || !is_plain(shard);
        s->ids = s->ids || shard->shape == RENDER_TOKENS;
    }
    if (s->first_unit != NULL)
        s->first_unit[files] = (size_t)n;
    s->n_units = (size_t)n;
    s->units = calloc((size_t)n + 1, sizeof *s->units);
    if (s->units == NULL || s->first_unit == NULL || s->texts == NULL)
        return err_set(e, ERR_MEMORY, "out of memory for the scores of %" PRIu64 " records", n);
    for (size_t i = 0; i < files; i++) {
        const struct shard *shard = dataset_file_shard(s->data, i);
        for (uint64_t d = 0; !is_plain(shard) && d < shard->counts.documents; d++)
            s->units[s->first_unit[i] + d].cut =
                s->knobs.data_long != DATA_LONG_SPLIT && columns_of(shard, d) > seq;
    }
    return 0;
}

// Two models read the same tokens if these hashes are equal.
static int hash_tokens(struct score *s, struct err *e) {
    struct hash *h = hash_new();
    if (h == NULL)
        return err_set(e, ERR_MEMORY, "out of memory for a hash");
    for (size_t i = 0; i < dataset_files(s->data); i++) {
        const struct shard *shard = dataset_file_shard(s->data, i);
        const uint64_t n = shard->counts.tokens;
        hash_add(h, &shard->wide, sizeof shard->wide);
        hash_add(h, shard->ids, (size_t)n * (shard->wide ? 4 : 2));
        hash_add(h, shard->trained, (size_t)((n + 63) / 64 * 8));
        hash_add(h, shard->offsets, (size_t)(shard->counts.documents + 1) * 8);
    }
    hash_text(h, s->hash);
    hash_free(h);
    return 0;
}

// ---------------------------------------------------------------- what units weigh

struct spelling {
    const struct tokenizer *t;
    int32_t *ids; // [seq + 1]
    char *text;
    size_t capacity;
    uint64_t added; // bytes that the tokenizer puts in front of a text and leaves there
};

// Some tokenizers begin every text with a space and do not take it off again. It is no byte of the
// text.
static int find_added(struct spelling *sp, struct err *e) {
    static const char probe[] = "a";
    struct tokenizer_encoder *encoder = NULL;
    struct token_list list = {0};
    size_t bytes = 0;
    TRY(tokenizer_encoder_open(&encoder, sp->t, e));
    int rc = tokenizer_encode(encoder, probe, 1, 0, &list, e);
    if (rc == 0)
        rc = tokenizer_decode(sp->t, list.ids, list.n, 0, &sp->text, &bytes, &sp->capacity, e);
    sp->added = rc == 0 && bytes == 2 && sp->text[0] == ' ' && sp->text[1] == probe[0];
    token_list_free(&list);
    tokenizer_encoder_close(encoder);
    return rc;
}

// Bytes of the text of a run of tokens. Ids without a token have no text.
static int count_bytes(struct spelling *sp, size_t n, bool begins, uint64_t *bytes, struct err *e) {
    size_t known = 0, length = 0;
    for (size_t i = 0; i < n; i++)
        if (tokenizer_has(sp->t, sp->ids[i]))
            sp->ids[known++] = sp->ids[i];
    TRY(tokenizer_decode(sp->t, sp->ids, known, begins ? 0 : TOKENIZER_CONTINUES, &sp->text,
                         &length, &sp->capacity, e));
    if (begins && sp->added > 0 && length > 0 && sp->text[0] == ' ')
        length -= sp->added;
    *bytes += length;
    return 0;
}

// Tokens are decoded in runs, because a character may consist of several of them.
static int weigh_piece(const struct score *s, struct spelling *sp, const struct dataset_piece *p,
                       struct err *e) {
    const struct shard *shard = dataset_file_shard(s->data, p->file);
    const uint64_t first = shard->offsets[p->document] + p->first + 1, end = first + p->columns;
    struct score_unit *u = unit_of(s, p);
    bool begins = true; // no text of the document comes before the run
    u->tokens += shard_count_trained(shard, first, p->columns);
    if (is_plain(shard))
        score_text_count(&s->texts[p->file], shard, p->first + 1, p->columns);
    for (uint64_t i = first - p->first - 1; s->speaks && i < first && begins; i++)
        begins = tokenizer_is_special(sp->t, shard_id(shard, i));
    for (uint64_t i = first; s->speaks && i < end; i++) {
        size_t n = 0;
        for (; i < end && shard_is_trained(shard, i); i++)
            sp->ids[n++] = shard_id(shard, i);
        if (n > 0)
            TRY(count_bytes(sp, n, begins, &u->bytes, e));
        begins = begins && n == 0 && i < end && tokenizer_is_special(sp->t, shard_id(shard, i));
    }
    return 0;
}

static int weigh(struct score *s, struct err *e) {
    struct spelling sp = {.t = dataset_tokenizer(s->data),
                          .ids = malloc(((size_t)s->knobs.seq + 1) * sizeof *sp.ids)};
    int rc = sp.ids ? 0 : err_set(e, ERR_MEMORY, "out of memory for the text of a sequence");
    s->windows = dataset_windows(s->data, SPLIT_VALIDATION);
    s->stats = dataset_stats(s->data, SPLIT_VALIDATION);
    s->speaks = !tokenizer_is_ids(sp.t);
    if (rc == 0 && s->speaks)
        rc = find_added(&sp, e);
    for (size_t i = 0; rc == 0 && i < dataset_files(s->data); i++)
        if (is_plain(dataset_file_shard(s->data, i)))
            rc = score_text_open(&s->texts[i], dataset_file_shard(s->data, i), sp.t, e);
    for (uint64_t w = 0; rc == 0 && w < s->windows; w++)
        for (struct dataset_piece p = {0};
             rc == 0 && dataset_next_piece(s->data, SPLIT_VALIDATION, w, &p);)
            rc = weigh_piece(s, &sp, &p, e);
    free(sp.ids);
    free(sp.text);
    for (size_t i = 0; i < dataset_files(s->data); i++)
        score_text_settle(&s->texts[i], dataset_file_shard(s->data, i));
    for (size_t i = 0; i < s->n_units; i++) {
        s->scored_units += s->units[i].tokens > 0;
        s->tokens += s->units[i].tokens;
        s->bytes += s->units[i].bytes;
    }
    return rc;
}

// ---------------------------------------------------------------- opening

// Windows are drawn in an order that depends on the seed, and an adapter brings its run's. One seed
// for all gives every model the same batches. Packing in order of fit fills the windows; none puts
// one record in each.
static void settle(struct knobs *k) {
    k->seed = 0;
    if (k->data_pack != DATA_PACK_NONE)
        k->data_pack = DATA_PACK_BEST_FIT;
}

// fraction below 0: all of it is the validation split.
static int open_data(struct score *s, double fraction, const struct score_listener *l,
                     struct err *e) {
    struct knobs k = s->knobs;
    char dir[PATH_MAX];
    struct model_shape shape;
    bool from_folder;
    settle(&k);
    TRY(source_tokenizer(&k, dir, e));
    TRY(model_shape_open(&shape, k.model, &from_folder, e));
    s->vocab = shape.vocab;
    const char *folder = dir[0] ? dir : NULL;
    return fraction >= 0
               ? dataset_open_divided(&s->data, &k, fraction, folder, shape.vocab, &l->data, e)
               : dataset_open_whole(&s->data, &k, folder, shape.vocab, &l->data, e);
}

int score_open(struct score *s, const struct knobs *k, const struct score_listener *l,
               struct err *e) {
    *s = (struct score){.knobs = *k};
    TRY(open_data(s, -1, l, e));
    TRY(make_units(s, e));
    TRY(hash_tokens(s, e));
    return weigh(s, e);
}

int score_open_divided(struct score *s, const struct knobs *k, double fraction,
                       const struct score_listener *l, struct err *e) {
    *s = (struct score){.knobs = *k};
    TRY(open_data(s, fraction, l, e));
    s->windows = dataset_windows(s->data, fraction > 0 ? SPLIT_VALIDATION : SPLIT_TRAIN);
    s->stats = dataset_stats(s->data, fraction > 0 ? SPLIT_VALIDATION : SPLIT_TRAIN);
    return 0;
}

void score_close(struct score *s) {
    for (size_t i = 0; s->texts != NULL && i < dataset_files(s->data); i++)
        score_text_close(&s->texts[i]);
    free(s->texts);
    dataset_close(s->data);
    free(s->units);
    free(s->first_unit);
    *s = (struct score){0};
}

// ---------------------------------------------------------------- scoring

struct pass {
    struct score *s;
    const struct score_listener *l;
};

static int add_window(void *arg, uint64_t sample, const float *losses, struct err *e) {
    const struct pass *pass = arg;
    struct score *s = pass->s;
    for (struct dataset_piece p = {0}; dataset_next_piece(s->data, SPLIT_VALIDATION, sample, &p);) {
        double sum = 0;
        for (uint32_t t = p.column; t < p.column + p.columns; t++)
            sum += (double)losses[t];
        if (!isfinite(sum))
            return err_set(e, ERR_NUMERIC,
                           "%s: the loss of document %" PRIu64
                           " is not finite: the model's weights are damaged, or precision=%s is "
                           "too narrow for them",
                           dataset_file_path(s->data, p.file), p.document + 1,
                           knob_choice(KNOB_precision, (int)s->knobs.precision));
        unit_of(s, &p)->nats += sum;
        if (is_plain(dataset_file_shard(s->data, p.file)))
            score_text_add(&s->texts[p.file], losses + p.column, p.first + 1, p.columns);
        s->nats += sum;
    }
    if (pass->l->progress)
        pass->l->progress(pass->l->arg, sample + 1, s->windows);
    return 0;
}

void score_plan_knobs(const struct score *s, struct knobs *k) {
    const bool device = plan_wants_device(&s->knobs);
    const int64_t tokens = device ? DEVICE_TURN_TOKENS : TURN_TOKENS;
    const int64_t rows = (device ? DEVICE_TURN_LOGITS : TURN_LOGITS) / s->vocab;
    *k = s->knobs;
    if (k->by[KNOB_batch_micro] == SET_BY_DEFAULT)
        k->batch_micro = k->seq < tokens ? tokens / k->seq : 1;
    if ((uint64_t)k->batch_micro > s->windows)
        k->batch_micro = (int64_t)s->windows;
    if (k->by[KNOB_logits_chunk] == SET_BY_DEFAULT && rows < k->batch_micro * k->seq)
        k->logits_chunk = rows > LEAST_CHUNK ? rows : LEAST_CHUNK;
    k->batch_accum = 1;
    k->eval_batches = INT64_MAX; // all windows
}

int score_session(struct score *s, struct session *session, const struct score_listener *l,
                  struct err *e) {
    const double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    struct pass pass = {s, l};
    struct evaluator *v = NULL;
    struct train_eval out = {0};
    TRY(session_set_hyper(session, hyper, e));
    int rc = evaluator_open(&v, session, s->data, e);
    if (rc == 0)
        rc = evaluator_on_rows(v, add_window, &pass, e);
    if (rc == 0)
        rc = evaluator_run(v, 0, l->stop, NULL, NULL, &out, e);
    evaluator_close(v);
    s->seconds = 1e-9 * (double)out.total_ns;
    if (rc == 0 && !out.complete)
        rc = err_set(e, ERR_STOPPED, "stopped on request, after %lld of %lld batches",
                     (long long)out.batches,
                     (long long)((int64_t)s->windows + session->plan->knobs.batch_micro - 1) /
                         session->plan->knobs.batch_micro);
    return rc;
}

int score_model(struct score *s, const char *adapter, const struct score_listener *l,
                struct err *e) {
    struct knobs k;
    struct plan plan = {0};
    struct engine *engine = NULL;
    const struct plan_options o = {
        .knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32, .keep_row_loss = true};
    score_plan_knobs(s, &k);
    int rc = plan_make(&plan, &o, e);
    if (rc == 0)
        rc = engine_start(&engine, NULL, &plan, e);
    if (rc == 0 && adapter[0] != '\0')
        rc = adapted_fill(engine->session, adapter, e);
    if (rc == 0)
        rc = score_session(s, engine->session, l, e);
    engine_close(engine);
    plan_free(&plan);
    return rc;
}
