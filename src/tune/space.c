// space.c - the settings a search may look at: which values of a tunable knob are worth trying, and
// the product of the knobs that trade time for memory.
//
// Most knobs need no code of their own. A new tunable knob takes part with the general values: both
// values of a switch, all of a choice, a quarter, half, double and four times a number.
#include "tune/tune_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool in_group(int id, const char *group) {
    const char *name = knob_info(id)->name;
    size_t n = strlen(group);
    return strncmp(name, group, n) == 0 && name[n] == '.';
}

static bool allows(const struct tune_request *r, enum tune_allow a) {
    return r->allow >> a & 1;
}

enum tune_stage space_stage(int id, const struct tune_request *r) {
    const unsigned flags = knob_info(id)->flags;
    if (id == KNOB_precision)
        return allows(r, ALLOW_PRECISION) ? STAGE_SPLIT : STAGE_COUNT;
    if (id == KNOB_optim_state)
        return allows(r, ALLOW_STATE) ? STAGE_SPLIT : STAGE_COUNT;
    if (!(flags & KNOB_TUNABLE))
        return STAGE_COUNT;
    // knobs_idle knows what device= says, not what auto found, so it is decided here.
    bool of_device = in_group(id, "cuda"), of_cpu = in_group(id, "cpu") || id == KNOB_threads;
    if (r->on_device ? of_cpu : of_device)
        return STAGE_COUNT;
    if (in_group(id, "fuse"))
        return STAGE_FUSION;
    if (in_group(id, "data") || !(flags & (KNOB_MEMORY | KNOB_FACTOR)))
        return STAGE_DATA;
    return STAGE_SPLIT;
}

// ---------------------------------------------------------------- values of one knob

static void put(struct space_values *v, const char *text) {
    for (int i = 0; i < v->n; i++)
        if (strcmp(v->text[i], text) == 0)
            return;
    if (v->n < SPACE_VALUES_MOST)
        snprintf(v->text[v->n++], SPACE_VALUE_BYTES, "%s", text);
}

static void put_number(struct space_values *v, int64_t x, int64_t least, int64_t most) {
    char text[SPACE_VALUE_BYTES];
    if (x < least || x > most)
        return;
    snprintf(text, sizeof text, "%" PRId64, x);
    put(v, text);
}

// For some knobs the values depend on the machine or on the batch.
static void whole_numbers(const struct knobs *k, int id, const struct tune_request *r,
                          struct space_values *out) {
    const struct knob_info *info = knob_info(id);
    const int64_t now = *(const int64_t *)((const char *)k + info->offset);
    const int64_t least = info->least_int, most = info->most_int;
    put_number(out, now, least, most);
    if (id == KNOB_threads || id == KNOB_data_workers) {
        int64_t all = r->cpus > 0 ? r->cpus : 1;
        for (int64_t n = 1; n < all; n *= 2)
            put_number(out, n, least, most);
        if (now != 0) // threads=0 means all
            put_number(out, all, least, most);
    } else if (id == KNOB_logits_chunk) { // rows / 1 would be the same as 0: no chunks
        int64_t rows = k->batch_micro * k->seq;
        put_number(out, 0, least, most);
        for (int64_t part = 2; part <= 32; part *= 4)
            if (rows / part >= 16)
                put_number(out, rows / part, least, most);
    } else if (id == KNOB_data_prefetch) {
        const int64_t depths[] = {0, 1, 2, 8};
        for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
            put_number(out, depths[i], least, most);
    } else {
        for (int64_t part = 4; part > 1; part /= 2)
            put_number(out, now / part > 0 ? now / part : now, least, most);
        for (int64_t times = 2; times <= 4 && now <= most / 4; times *= 2)
            put_number(out, now * times, least, most);
    }
}

static void sizes(const struct knobs *k, int id, struct space_values *out) {
    const struct knob_info *info = knob_info(id);
    const uint64_t now = *(const uint64_t *)((const char *)k + info->offset);
    const uint64_t ladder[] = {now, 0, now / 4, now * 4, 16u << 20, 256u << 20, 2147483648u};
    char text[SPACE_VALUE_BYTES];
    for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++) {
        if (ladder[i] < info->least_u64 || ladder[i] > info->most_u64)
            continue;
        snprintf(text, sizeof text, "%" PRIu64, ladder[i]);
        put(out, text);
    }
}

void space_values(const struct knobs *k, int id, const struct tune_request *r,
                  struct space_values *out) {
    const struct knob_info *info = knob_info(id);
    char text[KNOB_VALUE_BYTES];
    out->n = 0;
    switch (info->type) {
    case KNOB_INT:
        whole_numbers(k, id, r, out);
        return;
    case KNOB_BYTES:
        sizes(k, id, out);
        return;
    case KNOB_BOOL:
        put(out, knobs_value(k, id, text));
        put(out, "true");
        put(out, "false");
        return;
    case KNOB_CHOICE:
        put(out, knobs_value(k, id, text));
        for (int i = 0; i < info->n_choices; i++)
            put(out, info->choices[i]);
        return;
    default: // a text, a duration, a real number: only the present value
        if (strlen(knobs_value(k, id, text)) < SPACE_VALUE_BYTES)
            put(out, text);
    }
}

// ---------------------------------------------------------------- the product

enum { AXES_MOST = 24, SPLITS_MOST = 64 };

struct axis {
    int id;
    struct space_values values; // [0] is that of the recipe
};

struct split {
    int64_t micro, accum;
};

struct product {
    struct tune *t;
    const struct knobs *base;
    struct axis axes[AXES_MOST];
    int n_axes;
    struct split splits[SPLITS_MOST]; // [0] is that of the recipe
    int n_splits;
    double until; // share of the search's time by which planning ends
};

static void add_split(struct product *p, int64_t micro, int64_t accum) {
    if (micro < 1 || accum < 1 || micro > knob_info(KNOB_batch_micro)->most_int ||
        accum > knob_info(KNOB_batch_accum)->most_int || p->n_splits == SPLITS_MOST)
        return;
    for (int i = 0; i < p->n_splits; i++)
        if (p->splits[i].micro == micro && p->splits[i].accum == accum)
            return;
    p->splits[p->n_splits++] = (struct split){micro, accum};
}

// All ways to split a step of so many samples into equal micro-batches.
static void splits_of(struct product *p, int64_t samples) {
    if (samples < 1)
        return;
    for (int64_t micro = 1; micro <= samples && micro <= 65536; micro++)
        if (samples % micro == 0)
            add_split(p, micro, samples / micro);
}

// With --allow batch the samples per step also change by powers of two, but do not exceed the
// critical batch where it is known.
static void list_splits(struct product *p) {
    const struct tune_request *r = &p->t->request;
    int64_t samples = tune_samples_per_step(p->base);
    add_split(p, p->base->batch_micro, p->base->batch_accum);
    splits_of(p, samples);
    if (!allows(r, ALLOW_BATCH))
        return;
    for (int64_t times = 2; times <= 16; times *= 2) {
        splits_of(p, samples % times == 0 ? samples / times : 0);
        if (r->critical_samples <= 0 ||
            (double)(knobs_samples(p->base) * times) <= r->critical_samples)
            splits_of(p, samples * times);
    }
}

static void list_axes(struct product *p) {
    for (int id = 0; id < KNOB_COUNT && p->n_axes < AXES_MOST; id++) {
        if (knob_info(id)->flags & KNOB_FACTOR || space_stage(id, &p->t->request) != STAGE_SPLIT)
            continue;
        struct axis *a = &p->axes[p->n_axes];
        a->id = id;
        space_values(p->base, id, &p->t->request, &a->values);
        p->n_axes += a->values.n > 1;
    }
}

// False if a changed knob has no effect beside the others: that is no new setting.
static bool all_work(const struct knobs *k, const struct knobs *base) {
    for (int id = 0; id < KNOB_COUNT; id++)
        if (!knobs_same(k, base, id) && knobs_idle(k, id) != NULL)
            return false;
    return true;
}

static int add_point(struct product *p, const struct knobs *k, struct err *e) {
    if (!all_work(k, p->base))
        return 0;
    int i = tune_add(p->t, k, STAGE_MEMORY, e);
    return i < 0 ? i : 0;
}

// Adds all settings that differ from k in exactly `changes` of the axes from number `from` on.
static int add_changes(struct product *p, const struct knobs *k, int from, int changes,
                       struct err *e) {
    if (tune_elapsed(p->t) > p->until || p->t->n >= TUNE_SETTINGS_MOST)
        return 0;
    if (changes == 0)
        return add_point(p, k, e);
    for (int a = from; a < p->n_axes; a++)
        for (int v = 1; v < p->axes[a].values.n; v++) {
            struct knobs next = *k;
            if (knobs_set_at(&next, p->axes[a].id, p->axes[a].values.text[v], SET_BY_TUNER, NULL))
                continue;
            TRY(add_changes(p, &next, a + 1, changes - 1, e));
        }
    return 0;
}

// Few changes first. When time is short, the settings that are left out are far from the recipe.
int space_core(struct tune *t, double share, struct err *e) {
    const struct knobs base = t->settings[0].knobs;
    struct product *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, ERR_MEMORY, "out of memory for the settings to try");
    p->t = t, p->base = &base, p->until = tune_elapsed(t) + share;
    if (t->settings[0].n > 0) // else another setting must be found, however late it is
        p->until = fmin(p->until, 1);
    list_splits(p);
    list_axes(p);
    int rc = 0;
    for (int changes = 0; changes <= p->n_axes && rc == 0; changes++) {
        for (int s = 0; s < p->n_splits && rc == 0; s++) {
            struct knobs k = base;
            if (p->splits[s].micro != base.batch_micro)
                k.batch_micro = p->splits[s].micro, k.by[KNOB_batch_micro] = SET_BY_TUNER;
            if (p->splits[s].accum != base.batch_accum)
                k.batch_accum = p->splits[s].accum, k.by[KNOB_batch_accum] = SET_BY_TUNER;
            rc = add_changes(p, &k, 0, changes, e);
        }
        t->unplanned |= changes < 2 && tune_elapsed(t) > p->until;
    }
    free(p);
    return rc;
}
