// second.c - see second.h.
#include "plan/second.h"

#include "plan/plan.h"

#include <string.h>

bool second_wanted(const struct knobs *bulk) {
    return bulk->goal == GOAL_HYBRID && bulk->interactive_recipe[0] != '\0';
}

static bool is_interactive(int id) {
    return strncmp(knob_info(id)->name, "interactive.", strlen("interactive.")) == 0;
}

// The recipes that runs and searches write name every knob, so only a value that is not the default
// counts as set.
static int check_requests(const struct knobs *k, const char *path, struct err *e) {
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
    if (k->goal == GOAL_HYBRID)
        return err_set(e, ERR_USAGE,
                       "%.400s has goal=hybrid, but a second model cannot take requests of its "
                       "own; accepted: bulk, interactive",
                       path);
    for (int id = 0; id < KNOB_COUNT; id++)
        if (is_interactive(id) && strcmp(knobs_value(k, id, value), knob_default(id, initial)) != 0)
            return err_set(e, ERR_USAGE,
                           "%.400s has %s=%.200s; set interactive.* in the recipe that names this "
                           "one as interactive.recipe",
                           path, knob_info(id)->name, value);
    return 0;
}

static int check_device(const struct knobs *k, const struct knobs *bulk, const char *path,
                        struct err *e) {
    const bool device = plan_wants_device(bulk);
    if (k->device == DEVICE_AUTO || (k->device == DEVICE_CUDA) == device)
        return 0;
    return err_set(e, ERR_USAGE,
                   "%.400s has device=%s but the run is on %s, and both models must be on the same "
                   "device; accepted: auto, %s",
                   path, knob_choice(KNOB_device, (int)k->device), device ? "cuda" : "cpu",
                   device ? "cuda" : "cpu");
}

// The second model takes the settings of requests and of the machine from the bulk run.
static int take_over(struct knobs *k, const struct knobs *bulk, struct err *e) {
    static const int machine[] = {KNOB_device,  KNOB_threads, KNOB_cpu_pin,     KNOB_cpu_blas,
                                  KNOB_cpu_isa, KNOB_memory,  KNOB_cuda_graphs, KNOB_data_cache};
    char value[KNOB_VALUE_BYTES];
    for (int id = 0; id < KNOB_COUNT; id++) {
        bool taken = is_interactive(id) && id != KNOB_interactive_recipe;
        for (size_t i = 0; i < sizeof machine / sizeof *machine; i++)
            taken = taken || machine[i] == id;
        if (taken)
            TRY(knobs_set_at(k, id, knobs_value(bulk, id, value), bulk->by[id], e));
    }
    return 0;
}

int second_knobs(const struct knobs *bulk, struct knobs *out, struct err *e) {
    const char *path = bulk->interactive_recipe;
    knobs_init(out);
    if (knobs_load_recipe(out, path, e) != 0)
        return err_context(e, "interactive.recipe");
    TRY(check_requests(out, path, e));
    TRY(check_device(out, bulk, path, e));
    TRY(take_over(out, bulk, e));
    // A step of the second model is one request. It has no other data, so nothing is validated,
    // sampled or saved on a schedule.
    out->batch_micro = bulk->interactive_micro;
    out->batch_accum = 1;
    if (bulk->interactive_seq > 0)
        out->seq = bulk->interactive_seq;
    out->eval_every = out->noise_every = out->generate_tokens = out->save_every = 0;
    out->save_last = out->save_best = false;
    out->stop_patience = 0;
    out->run_dir[0] = out->log_trace[0] = '\0';
    return 0;
}

void second_recipe(const struct knobs *k, struct knobs *out) {
    char initial[KNOB_VALUE_BYTES];
    *out = *k;
    for (int id = 0; id < KNOB_COUNT; id++)
        if (is_interactive(id))
            knobs_set_at(out, id, knob_default(id, initial), SET_BY_DEFAULT, NULL);
}
