// adapter.c - the adapter of a plan: from the knobs lora.*, or from the folder lora.from.
//
// The folder says what the adapter is, so the plan's knobs get its values. A knob that the user has
// set must agree with them.
#include "plan/adapter.h"

#include "model/adapter_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool given(const struct plan *p, int id) {
    return p->knobs.by[id] != SET_BY_DEFAULT;
}

static int contradicts(const struct plan *p, int id, const char *folder, struct err *e) {
    char value[KNOB_VALUE_BYTES];
    return err_set(e, ERR_USAGE,
                   "%s=%.200s does not go with lora.from=%.200s, whose adapter has %.200s; leave "
                   "it out, or set it to the same",
                   knob_info(id)->name, knobs_value(&p->knobs, id, value), p->knobs.lora_from,
                   folder);
}

static int set(struct plan *p, int id, const char *value, struct err *e) {
    const int rc = knobs_set_at(&p->knobs, id, value, SET_BY_PLANNER, e);
    if (rc != 0)
        err_context(e, "lora.from=%.200s", p->knobs.lora_from);
    return rc;
}

static int set_number(struct plan *p, int id, double value, struct err *e) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    return set(p, id, text, e);
}

static bool same_targets(const struct plan *p, const struct adapter *a, const struct adapter *b) {
    struct model_param w;
    for (int role = 0; role < ROLE_COUNT; role++)
        if (model_param_get(&p->shape, (enum model_role)role, 0, &w) &&
            adapter_targets(a, &p->shape, &w) != adapter_targets(b, &p->shape, &w))
            return false;
    return true;
}

static int copy_targets(const struct knobs *k, struct adapter *a, struct err *e) {
    if (strlen(k->lora_targets) >= sizeof a->targets)
        return err_set(e, ERR_USAGE, "lora.targets is longer than %zu bytes",
                       sizeof a->targets - 1);
    strcpy(a->targets, k->lora_targets);
    return 0;
}

// What the knobs say, where they are given, else what the folder says. The factor may be written as
// another alpha with another rule.
static int join(struct plan *p, const struct adapter *folder, struct err *e) {
    const struct knobs *k = &p->knobs;
    struct adapter *a = &p->adapter;
    char text[KNOB_VALUE_BYTES];
    *a = *folder;
    snprintf(text, sizeof text, "rank %lld", (long long)folder->rank);
    if (given(p, KNOB_lora_rank) && k->lora_rank != folder->rank)
        return contradicts(p, KNOB_lora_rank, text, e);
    if (given(p, KNOB_lora_alpha))
        a->alpha = k->lora_alpha;
    if (given(p, KNOB_lora_rslora))
        a->rslora = k->lora_rslora;
    snprintf(text, sizeof text, "the factor %g, which is alpha %g%s", adapter_scale(folder),
             folder->alpha, folder->rslora ? " with rslora" : "");
    if (fabs(adapter_scale(a) - adapter_scale(folder)) > 1e-9 * adapter_scale(folder))
        return contradicts(p, given(p, KNOB_lora_alpha) ? KNOB_lora_alpha : KNOB_lora_rslora, text,
                           e);
    if (given(p, KNOB_lora_targets))
        TRY(copy_targets(k, a, e));
    TRY(adapter_check(a, &p->shape, e));
    if (!same_targets(p, a, folder))
        return contradicts(p, KNOB_lora_targets, folder->targets, e);
    if (given(p, KNOB_lora_dropout))
        a->dropout = k->lora_dropout;
    return 0;
}

// Weights that the adapter replaces train in full.
static int join_whole(struct plan *p, const struct adapter_config *c, struct err *e) {
    const bool listed = given(p, KNOB_train_also);
    char list[KNOB_STRING_BYTES] = "";
    struct model_param w;
    for (int64_t i = 0; c->whole[0] != '\0' && model_param_at(&p->shape, i, &w); i++) {
        const size_t used = strlen(list);
        if (!adapter_config_replaces(c, &w))
            continue;
        if (listed && !chosen_lists(p->knobs.train_also, w.name))
            return contradicts(p, KNOB_train_also, w.name, e);
        if (listed)
            continue;
        if (used + strlen(w.name) + 2 > sizeof list)
            return err_set(e, ERR_USAGE,
                           "lora.from=%.200s has too many whole weights to list here; name them in "
                           "train.also by a part of their names",
                           p->knobs.lora_from);
        snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? "," : "", w.name);
    }
    return list[0] != '\0' ? set(p, KNOB_train_also, list, e) : 0;
}

static int take_folder(struct plan *p, struct err *e) {
    struct adapter_config c;
    const struct adapter *a = &p->adapter;
    TRY(adapter_config_open(&c, p->knobs.lora_from, &p->shape, e));
    TRY(join(p, &c.adapter, e));
    TRY(join_whole(p, &c, e));
    TRY(set_number(p, KNOB_lora_rank, (double)a->rank, e));
    TRY(set_number(p, KNOB_lora_alpha, a->alpha, e));
    TRY(set_number(p, KNOB_lora_dropout, a->dropout, e));
    TRY(set(p, KNOB_lora_rslora, a->rslora ? "true" : "false", e));
    return set(p, KNOB_lora_targets, a->targets, e);
}

int plan_adapter_of(struct adapter *out, const struct knobs *k, struct err *e) {
    *out = (struct adapter){.rank = k->lora_rank,
                            .alpha = k->lora_alpha,
                            .dropout = k->lora_dropout,
                            .rslora = k->lora_rslora};
    return copy_targets(k, out, e);
}

int plan_take_adapter(struct plan *p, struct err *e) {
    const struct chosen c = plan_chosen(p);
    TRY(p->knobs.lora_from[0] != '\0' ? take_folder(p, e)
                                      : plan_adapter_of(&p->adapter, &p->knobs, e));
    TRY(adapter_check(&p->adapter, &p->shape, e));
    return chosen_check(&c, &p->shape, e);
}
