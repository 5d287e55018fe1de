// fit.c - see fit.h. Candidates come from the table of knobs: every knob that changes memory and
// that the tuner may change, or that chooses an element type. batch.micro changes together with
// batch.accum.
#include "predict/fit.h"

#include "base/clock.h"
#include "base/text.h"
#include "predict/predict.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Two moves per knob are kept for combinations: the one with the fewest bytes and the one with the
// least time.
enum { MOVES_MOST = 96, KEPT_PER_KNOB = 2, COMBINED_MOST = 3 };
// Limits the search, so that a refusal stays quick for models whose programs take long to lay out.
static const uint64_t BUDGET_NS = 8000000000;
// Predicted times that differ by less than this share count as equal.
static const double TIME_TOLD = 0.005;

struct move { // a change of one knob (and batch.accum with batch.micro)
    int id;
    struct knobs knobs;
    bool planned; // it could be planned: bytes and seconds are known
    uint64_t bytes;
    double seconds;
};

struct search {
    const struct fit_question *q;
    const struct knobs *now; // as requested
    struct fit *out;
    struct move moves[MOVES_MOST];
    int n_moves;
    uint64_t begin_ns;
};

// ---------------------------------------------------------------- a setting, planned

// One of several ranks cannot be simulated alone: it would wait for the others. The sum of its ops
// says as much about a setting's price.
static double sum_of_ops(const struct program *p, const struct hw_device *device) {
    static const struct hw_link link = {.name = "nominal", .bytes_per_s = 1e10, .latency_s = 5e-6};
    double seconds = 0;
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *s = &p->segments[p->order[i].segment];
        for (int k = 0; k < s->n_ops; k++)
            seconds += predict_op(p, &s->ops[k], device, &link);
    }
    return seconds;
}

static int step_seconds(const struct plan *plan, const struct hw_device *device, double *out,
                        struct err *e) {
    struct program *train = plan_program(plan, PLAN_TRAIN);
    struct prediction p;
    if (train->world > 1) {
        *out = sum_of_ops(train, device);
        return 0;
    }
    TRY(predict_programs(&train, 1, device, NULL, &p, e));
    *out = p.seconds;
    prediction_free(&p);
    return 0;
}

// False when the setting cannot be planned. That is not an error of the search.
static bool try_plan(struct search *f, const struct knobs *k, uint64_t *bytes, double *seconds) {
    const struct fit_question *q = f->q;
    struct plan p;
    f->out->planned++;
    bool ok = plan_like(&p, q->plan, k, NULL) == 0 && q->types >> plan_real_type(&p) & 1 &&
              q->count(q->count_arg, &p, NULL) == 0;
    if (ok)
        plan_set_process(&p, q->plan->process_bytes, q->plan->process_how);
    ok = ok && step_seconds(&p, q->device, seconds, NULL) == 0;
    *bytes = ok ? plan_need_bytes(&p, q->on_device) : 0;
    plan_free(&p);
    return ok;
}

static bool in_time(const struct search *f) {
    return clock_ns() - f->begin_ns < BUDGET_NS;
}

// ---------------------------------------------------------------- moves

static void add_move(struct search *f, int id, const struct knobs *k) {
    if (f->n_moves < MOVES_MOST)
        f->moves[f->n_moves++] = (struct move){.id = id, .knobs = *k};
}

static void add_value(struct search *f, int id, const char *value) {
    struct knobs k = *f->now;
    if (knobs_set_at(&k, id, value, SET_BY_PLANNER, NULL) == 0 && !knobs_same(&k, f->now, id) &&
        knobs_idle(&k, id) == NULL)
        add_move(f, id, &k);
}

// Halves the value repeatedly and doubles it. 0 often means "all" or "none", so from 0 it tries 32
// and four larger values.
static void add_whole_numbers(struct search *f, int id) {
    const int64_t now = *(const int64_t *)((const char *)f->now + knob_info(id)->offset);
    char text[32];
    for (int i = 1; i <= 5; i++) {
        snprintf(text, sizeof text, "%" PRId64, now ? now >> i : (int64_t)8 << (2 * i));
        add_value(f, id, text);
    }
    for (int i = 1; now > 0 && now < INT64_MAX / 8 && i <= 2; i++) {
        snprintf(text, sizeof text, "%" PRId64, now << i);
        add_value(f, id, text);
    }
}

static void add_sizes(struct search *f, int id) {
    const uint64_t now = *(const uint64_t *)((const char *)f->now + knob_info(id)->offset);
    char text[32];
    for (int i = 1; i <= 5; i++) {
        snprintf(text, sizeof text, "%" PRIu64, i < 5 ? now >> (2 * i) : 0);
        add_value(f, id, text);
    }
}

static void add_numbers(struct search *f, int id) {
    const double now = *(const double *)((const char *)f->now + knob_info(id)->offset);
    char text[32];
    for (int i = -2; i <= 2; i++) {
        snprintf(text, sizeof text, "%.17g", now * pow(10, i));
        add_value(f, id, text);
    }
}

// The same step, split into more and smaller micro-batches.
static void add_splits(struct search *f) {
    const struct knobs *now = f->now;
    for (int64_t parts = 2; parts <= now->batch_micro && parts <= 1024; parts++) {
        struct knobs k = *now;
        if (now->batch_micro % parts != 0 ||
            now->batch_accum > knob_info(KNOB_batch_accum)->most_int / parts)
            continue;
        k.batch_micro = now->batch_micro / parts;
        k.batch_accum = now->batch_accum * parts;
        add_move(f, KNOB_batch_micro, &k);
    }
}

static void list_moves(struct search *f) {
    add_splits(f);
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct knob_info *info = knob_info(id);
        if (!(info->flags & KNOB_MEMORY) || info->flags & KNOB_FACTOR || id == KNOB_device)
            continue;
        if (info->type == KNOB_CHOICE) // including element types, which the tuner may not change
            for (int i = 0; i < info->n_choices; i++)
                add_value(f, id, info->choices[i]);
        else if (!(info->flags & KNOB_TUNABLE))
            continue;
        else if (info->type == KNOB_INT)
            add_whole_numbers(f, id);
        else if (info->type == KNOB_BYTES)
            add_sizes(f, id);
        else if (info->type == KNOB_FLOAT)
            add_numbers(f, id);
        else if (info->type == KNOB_BOOL)
            add_value(f, id,
                      *((const bool *)((const char *)f->now + info->offset)) ? "false" : "true");
    }
}

// ---------------------------------------------------------------- what fits

static void describe(const struct search *f, struct fit_change *c) {
    char value[KNOB_VALUE_BYTES];
    size_t at = 0;
    c->text[0] = '\0';
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct knob_info *info = knob_info(id);
        if (knobs_same(&c->knobs, f->now, id))
            continue;
        if (at < sizeof c->text)
            at += (size_t)snprintf(c->text + at, sizeof c->text - at, "%s%s=%s", at ? " " : "",
                                   info->name, knobs_value(&c->knobs, id, value));
        c->math = c->math || (info->flags & KNOB_MATH && !(info->flags & KNOB_FACTOR));
    }
}

// Whether two changes differ at most in integer values: it is enough to report one of them.
static bool alike(const struct search *f, const struct fit_change *a, const struct fit_change *b) {
    for (int id = 0; id < KNOB_COUNT; id++) {
        bool in_a = !knobs_same(&a->knobs, f->now, id);
        bool in_b = !knobs_same(&b->knobs, f->now, id);
        if (in_a != in_b ||
            (knob_info(id)->type != KNOB_INT && !knobs_same(&a->knobs, &b->knobs, id)))
            return false;
    }
    return true;
}

// Whether a changes everything that b changes, to the same values. If b fits, a changes more than
// is needed.
static bool includes(const struct search *f, const struct fit_change *a,
                     const struct fit_change *b) {
    for (int id = 0; id < KNOB_COUNT; id++)
        if (!knobs_same(&b->knobs, f->now, id) && !knobs_same(&a->knobs, &b->knobs, id))
            return false;
    return true;
}

// Times that differ by less than predictions can tell count as equal. Then fewer bytes win.
static bool cheaper(const struct fit_change *a, const struct fit_change *b) {
    if (fabs(a->seconds - b->seconds) > TIME_TOLD * b->seconds)
        return a->seconds < b->seconds;
    return a->bytes < b->bytes;
}

static void consider(struct search *f, const struct knobs *k, int changed, uint64_t bytes,
                     double seconds) {
    struct fit *out = f->out;
    struct fit_change c = {
        .knobs = *k, .bytes = bytes, .seconds = seconds, .knobs_changed = changed};
    describe(f, &c);
    if (out->least.bytes == 0 || bytes < out->least.bytes)
        out->least = c;
    if (bytes + FIT_MARGIN_BYTES > out->have)
        return;
    for (int i = 0; i < out->n; i++)
        if (out->changes[i].knobs_changed < changed && includes(f, &c, &out->changes[i]))
            return;
    for (int i = 0; i < out->n; i++)
        if (alike(f, &c, &out->changes[i])) {
            if (!cheaper(&c, &out->changes[i]))
                return;
            out->n--;
            memmove(&out->changes[i], &out->changes[i + 1], sizeof c * (size_t)(out->n - i));
            break;
        }
    int at = out->n;
    while (at > 0 && seconds < out->changes[at - 1].seconds)
        at--;
    if (at == FIT_CHANGES)
        return;
    out->n = out->n < FIT_CHANGES ? out->n + 1 : FIT_CHANGES;
    memmove(&out->changes[at + 1], &out->changes[at], sizeof c * (size_t)(out->n - 1 - at));
    out->changes[at] = c;
}

static void try_singles(struct search *f) {
    for (int i = 0; i < f->n_moves && in_time(f); i++) {
        struct move *m = &f->moves[i];
        m->planned = try_plan(f, &m->knobs, &m->bytes, &m->seconds);
        if (m->planned)
            consider(f, &m->knobs, 1, m->bytes, m->seconds);
    }
}

// For each knob, keeps the moves worth combining: the one with the fewest bytes, and the fastest
// one that saves memory. Moves that fit alone need no combination.
static void keep_best(struct search *f) {
    struct move kept[MOVES_MOST];
    int n = 0;
    for (int id = 0; id < KNOB_COUNT; id++) {
        const struct move *best[KEPT_PER_KNOB] = {NULL, NULL};
        for (int i = 0; i < f->n_moves; i++) {
            const struct move *m = &f->moves[i];
            if (!m->planned || m->id != id || m->bytes >= f->out->need ||
                m->bytes + FIT_MARGIN_BYTES <= f->out->have)
                continue;
            if (!best[0] || m->bytes < best[0]->bytes)
                best[0] = m;
            if (!best[1] || m->seconds < best[1]->seconds)
                best[1] = m;
        }
        for (int i = 0; i < KEPT_PER_KNOB; i++)
            if (best[i] && (i == 0 || best[i] != best[0]))
                kept[n++] = *best[i];
    }
    memcpy(f->moves, kept, sizeof *kept * (size_t)n);
    f->n_moves = n;
}

// k with the changes of m.
static struct knobs combined(const struct search *f, const struct knobs *k, const struct move *m) {
    struct knobs out = *k;
    char value[KNOB_VALUE_BYTES];
    for (int id = 0; id < KNOB_COUNT; id++)
        if (!knobs_same(&m->knobs, f->now, id))
            knobs_set_at(&out, id, knobs_value(&m->knobs, id, value), SET_BY_PLANNER, NULL);
    return out;
}

// Adds `depth` more moves of different knobs to k, from index `from` on. k has `changed` already.
static void try_combined(struct search *f, const struct knobs *k, int changed, int depth,
                         int from) {
    for (int i = from; i < f->n_moves && in_time(f); i++) {
        const struct move *m = &f->moves[i];
        uint64_t bytes;
        double seconds;
        if (!knobs_same(k, f->now, m->id))
            continue;
        struct knobs both = combined(f, k, m);
        if (depth > 1)
            try_combined(f, &both, changed + 1, depth - 1, i + 1);
        else if (try_plan(f, &both, &bytes, &seconds))
            consider(f, &both, changed + 1, bytes, seconds);
    }
}

// Nothing that keeps the tokens per step fits. Looks for a shorter sequence that does.
static void try_shorter(struct search *f) {
    struct knobs k = f->out->least.bytes ? f->out->least.knobs : *f->now;
    uint64_t bytes;
    double seconds;
    while (k.seq > 1) {
        if (!in_time(f))
            return;
        k.seq /= 2;
        if (try_plan(f, &k, &bytes, &seconds) && bytes + FIT_MARGIN_BYTES <= f->out->have) {
            f->out->seq = k.seq;
            return;
        }
    }
    f->out->seq = -1;
}

// Drops changes that do not fit on another rank than the one they were planned for.
static void keep_for_all_ranks(struct search *f) {
    const struct fit_question *q = f->q;
    struct fit *out = f->out;
    const int world = mesh_world(&q->plan->ranks.mesh);
    int kept = 0;
    for (int i = 0; i < out->n; i++) {
        bool fits = true;
        for (int r = 0; fits && r < world; r++) {
            struct plan p;
            fits = plan_run_rank(&p, &out->changes[i].knobs, r, NULL) == 0 &&
                   q->count(q->count_arg, &p, NULL) == 0;
            plan_set_process(&p, q->plan->process_bytes, q->plan->process_how);
            fits = fits && plan_need_bytes(&p, q->on_device) + FIT_MARGIN_BYTES <= out->have;
            plan_free(&p);
        }
        if (fits)
            out->changes[kept++] = out->changes[i];
    }
    out->n = kept;
}

static uint64_t parameters_of(const struct plan *p) {
    return (uint64_t)model_total_elements(&p->shape) + (p->second ? parameters_of(p->second) : 0);
}

// A 16-bit weight that trains has an fp32 master, so it takes at least 4 bytes; a frozen one 2.
static uint64_t least_bytes(const struct plan *p) {
    const bool frozen = p->adapter.rank > 0 || p->knobs.train_freeze[0];
    return (uint64_t)model_total_elements(&p->shape) * (frozen ? 2 : sizeof(float)) +
           (p->second ? least_bytes(p->second) : 0);
}

// What an adapter would need instead: with the settings as requested, with weights in bf16, and
// with the settings that need the fewest bytes.
static void try_adapter(struct search *f) {
    enum { WAYS = 3 };
    for (int way = 0; way < WAYS && (way == 0 || in_time(f)); way++) {
        struct knobs k = way == 2 && f->out->least.bytes ? f->out->least.knobs : *f->now;
        uint64_t bytes;
        double seconds;
        if (k.lora_rank > 0 || knobs_set_at(&k, KNOB_lora_rank, "16", SET_BY_PLANNER, NULL) != 0)
            return;
        if (way > 0)
            knobs_set_at(&k, KNOB_precision, "bf16", SET_BY_PLANNER, NULL);
        if (!try_plan(f, &k, &bytes, &seconds) ||
            (f->out->adapter.bytes > 0 && bytes >= f->out->adapter.bytes))
            continue;
        f->out->adapter = (struct fit_change){.knobs = k, .bytes = bytes, .seconds = seconds};
        describe(f, &f->out->adapter);
        if (bytes + FIT_MARGIN_BYTES <= f->out->have)
            return;
    }
}

int fit_find(const struct fit_question *q, struct fit *out, struct err *e) {
    memset(out, 0, sizeof *out);
    struct search *f = calloc(1, sizeof *f);
    if (!f)
        return err_set(e, ERR_MEMORY, "out of memory while looking for a setting that fits");
    *f = (struct search){.q = q, .now = &q->plan->knobs, .out = out, .begin_ns = clock_ns()};
    int rc = step_seconds(q->plan, q->device, &out->seconds, e);
    if (rc == 0) {
        out->need = plan_need_bytes(q->plan, q->on_device), out->have = q->have_bytes;
        out->parameters = parameters_of(q->plan);
        // Ranks can share all weights.
        out->weights = least_bytes(q->plan) / (uint64_t)mesh_world(&q->plan->ranks.mesh);
    }
    if (rc == 0 && out->weights <= out->have) {
        list_moves(f);
        try_singles(f);
        keep_best(f);
        for (int n = 2; n <= COMBINED_MOST && out->n < FIT_CHANGES; n++)
            try_combined(f, f->now, 0, n, 0);
        if (mesh_world(&q->plan->ranks.mesh) > 1)
            keep_for_all_ranks(f);
        if (out->n == 0)
            try_shorter(f);
    }
    if (rc == 0)
        try_adapter(f);
    free(f);
    return rc;
}

// ---------------------------------------------------------------- output

// Adds what an adapter would need, if it fits.
static const char *with_adapter(const struct fit *f, char out[FIT_SENTENCE_BYTES]) {
    char bytes[TEXT_UNIT_BYTES];
    const size_t at = strlen(out);
    if (f->adapter.bytes > 0 && f->adapter.bytes + FIT_MARGIN_BYTES <= f->have)
        snprintf(out + at, FIT_SENTENCE_BYTES - at,
                 ". An adapter (LoRA) trains other, far fewer weights and needs %s: %s",
                 text_bytes(bytes, f->adapter.bytes), f->adapter.text);
    return out;
}

const char *fit_sentence(const struct fit *f, char out[FIT_SENTENCE_BYTES]) {
    char bytes[TEXT_UNIT_BYTES];
    size_t at = 0;
    if (f->weights > f->have) {
        char have[TEXT_UNIT_BYTES], most[TEXT_UNIT_BYTES];
        snprintf(out, FIT_SENTENCE_BYTES,
                 "The weights alone take %s in fp32 (bf16 and fp16 keep fp32 masters as well), "
                 "more than these %s, so no setting makes it fit. Use a model with far fewer than "
                 "%s parameters, or more memory",
                 text_bytes(bytes, f->weights), text_bytes(have, f->have),
                 text_count(most, (double)(f->have / sizeof(float))));
        return with_adapter(f, out);
    }
    if (f->n == 0) {
        char seq[64] = "Use a shorter seq, a smaller model or more memory";
        if (f->seq < 0)
            snprintf(seq, sizeof seq, "Use a smaller model or more memory");
        else if (f->seq > 0)
            snprintf(seq, sizeof seq, "It fits with seq=%" PRId64 " in addition", f->seq);
        snprintf(out, FIT_SENTENCE_BYTES,
                 "No change that keeps the tokens per step makes it fit%s%s%s%s. %s",
                 f->least.bytes ? "; the smallest found is " : "",
                 f->least.bytes ? text_bytes(bytes, f->least.bytes) : "",
                 f->least.bytes ? " with " : "", f->least.bytes ? f->least.text : "", seq);
        return with_adapter(f, out);
    }
    for (int i = 0; i < f->n && at < FIT_SENTENCE_BYTES; i++) {
        const struct fit_change *c = &f->changes[i];
        at += (size_t)snprintf(out + at, FIT_SENTENCE_BYTES - at, "%s%s (%s, step %+.0f %%%s)",
                               i == 0          ? "It would fit with "
                               : i + 1 == f->n ? ", or "
                                               : ", ",
                               c->text, text_bytes(bytes, c->bytes),
                               100 * (c->seconds / f->seconds - 1),
                               c->math ? ", changes the results" : "");
    }
    return with_adapter(f, out);
}
