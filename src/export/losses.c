// losses.c - the loss on validation data before and after an adapter is merged.
//
// Both are computed in float32 by sessions of their own, one after the other, on the same windows:
// those that the run validates on, or those of a file that the user names.
#include "export/parts.h"
#include "train/checkpoint_dir.h"

#include "data/dataset.h"
#include "train/evaluate.h"

#include <string.h>

// The knobs that say what the run's validation data is.
static bool says_data(int id) {
    return strncmp(knob_info(id)->name, "data.", 5) == 0 || id == KNOB_tokenizer ||
           id == KNOB_seq || id == KNOB_seed || id == KNOB_batch_micro || id == KNOB_eval_batches;
}

static int data_knobs(const struct exporter *x, struct knobs *k) {
    *k = *x->o->knobs;
    for (int i = 0; i < KNOB_COUNT; i++)
        if (says_data(i) && x->manifest.knobs[i] != NULL)
            TRY(knobs_set_at(k, i, x->manifest.knobs[i], SET_BY_RECIPE, x->e));
    if (x->o->data == NULL)
        return 0;
    TRY(knobs_set_at(k, KNOB_data_path, x->o->data, SET_BY_COMMAND_LINE, x->e));
    return knobs_set_at(k, KNOB_data_val_path, x->o->data, SET_BY_COMMAND_LINE, x->e);
}

static int measure(struct exporter *x, bool checkpoint, const struct knobs *data_knobs,
                   const struct dataset *data, struct train_eval *out) {
    const struct export_subject who = {.checkpoint = checkpoint};
    struct knobs k;
    struct plan plan = {0};
    struct engine *engine = NULL;
    struct evaluator *v = NULL;
    const struct plan_options o = {.knobs = &k, .programs = {PLAN_EVAL}, .real = DTYPE_F32};
    double hyper[HYPER_COUNT] = {[HYPER_LOSS_FACTOR] = 1};
    TRY(export_subject_knobs(x, &who, &k));
    k.batch_micro = data_knobs->batch_micro, k.batch_accum = 1;
    k.seq = data_knobs->seq, k.eval_batches = data_knobs->eval_batches;
    int rc = plan_make(&plan, &o, x->e);
    if (rc == 0)
        rc = engine_start(&engine, NULL, &plan, x->e);
    if (rc == 0)
        rc = export_subject_fill(x, &who, engine->session);
    if (rc == 0)
        rc = session_set_hyper(engine->session, hyper, x->e);
    if (rc == 0)
        rc = evaluator_open(&v, engine->session, data, x->e);
    if (rc == 0)
        rc = evaluator_run(v, x->out->step, NULL, NULL, NULL, out, x->e);
    evaluator_close(v);
    engine_close(engine);
    plan_free(&plan);
    return rc;
}

// Without data there is nothing to measure, unless the user asked for this file.
static int no_data(struct exporter *x, int rc, const char *why) {
    if (x->o->data != NULL)
        return err_set(x->e, rc, "--data %.200s: %.600s", x->o->data, why);
    checkpoint_say(&x->o->listener, LOG_WARN,
                   "the loss before and after merging is not measured: %s; name a file with --data",
                   why);
    return 0;
}

int export_compare_losses(struct exporter *x) {
    const char *folder = x->tokenizer_dir[0] != '\0' ? x->tokenizer_dir : NULL;
    struct dataset *data = NULL;
    struct train_eval before = {0}, after = {0};
    struct knobs k;
    struct err why = {0};
    const struct shard_listener quiet = {0};
    TRY(data_knobs(x, &k));
    int rc = dataset_open_knobs(&data, &k, folder, x->shape.vocab, &quiet, &why);
    if (rc != 0)
        return no_data(x, rc, why.text);
    if (dataset_windows(data, SPLIT_VALIDATION) == 0) {
        dataset_close(data);
        return no_data(x, ERR_USAGE, "the run has no validation data");
    }
    rc = measure(x, true, &k, data, &before);
    if (rc == 0)
        rc = measure(x, false, &k, data, &after);
    dataset_close(data);
    x->out->loss_before = before.loss;
    x->out->loss_after = after.loss;
    x->out->loss_tokens = rc == 0 ? before.trained_tokens : 0;
    return rc;
}
