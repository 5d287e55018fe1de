// second.c - see second.h.
#include "train/second.h"

#include "base/hash.h"

#include <string.h>

bool second_wanted(const struct knobs *bulk) {
    return bulk->goal == GOAL_HYBRID && bulk->interactive_recipe[0] != '\0';
}

static bool is_interactive(int id) {
    return strncmp(knob_info(id)->name, "interactive.", strlen("interactive.")) == 0;
}

// A complete recipe, as runs and searches write them, has every knob: what counts is a value of its own.
static int check_requests(const struct knobs *k, const char *path, struct err *e) {
    char value[KNOB_VALUE_BYTES], initial[KNOB_VALUE_BYTES];
    if (k->goal == GOAL_HYBRID)
        return err_set(e, ERR_USAGE,
                       "%.400s has goal=hybrid: a second model answers requests and takes none "
                       "itself; accepted: bulk, interactive",
                       path);
    for (int id = 0; id < KNOB_COUNT; id++)
        if (is_interactive(id) && strcmp(knobs_value(k, id, value), knob_default(id, initial)) != 0)
            return err_set(e, ERR_USAGE,
                           "%.400s has %s=%.200s: interactive.* belong to the recipe that names it",
                           path, knob_info(id)->name, value);
    return 0;
}

static int check_device(const struct knobs *k, const struct knobs *bulk, const char *path,
                        struct err *e) {
    const bool device = session_wants_device(bulk);
    if (k->device == DEVICE_AUTO || (k->device == DEVICE_CUDA) == device)
        return 0;
    return err_set(e, ERR_USAGE,
                   "%.400s has device=%s and the run is on %s: both models are on one; accepted: "
                   "auto, %s",
                   path, knob_choice(KNOB_device, (int)k->device), device ? "cuda" : "cpu",
                   device ? "cuda" : "cpu");
}

// Requests and the machine are the bulk's.
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
    // A step of it is one request, and there is no other data.
    out->batch_micro = bulk->interactive_micro;
    out->batch_accum = 1;
    if (bulk->interactive_seq > 0)
        out->seq = bulk->interactive_seq;
    out->eval_every = out->noise_every = out->generate_tokens = out->save_every = 0;
    out->save_last = false;
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

void second_begin(struct second *x) {
    static const char data[] = "requests"; // whatever people send
    x->state = (struct train_state){0};
    hash_of(data, sizeof data - 1, x->state.dataset);
    loss_scale_start(&x->state.scale, &x->session.knobs);
}
