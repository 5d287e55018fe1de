// tune_report.c - the page of a search that has just ended, and how a page comes to be a file.
#include "api/tune.h"

#include "base/file.h"
#include "base/text.h"
#include "report/tune_page.h"
#include "train/second.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int tune_report_page(const char *path, const struct tune *t, const struct tune_facts *facts,
                     uint64_t *bytes, struct err *e) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return err_set(e, ERR_MEMORY, "no memory for the report");
    int rc = tune_page(f, t, facts, e);
    bool whole = !ferror(f);
    whole = fclose(f) == 0 && whole;
    if (rc == 0 && !whole)
        rc = err_set(e, ERR_MEMORY, "no memory for the report");
    if (rc == 0)
        rc = file_write_atomic(path, text, n, e);
    *bytes = n;
    free(text);
    return rc;
}

// What cannot be planned has no bytes to show.
static void fill_memory(struct tune_memory *out, const struct knobs *k) {
    struct session s;
    if (plan_session(&s, k, NULL) == 0) {
        out->known = true;
        memcpy(out->by_class, s.layout.by_class, sizeof out->by_class);
        out->second_bytes = session_second_bytes(&s);
    }
    session_close(&s);
}

int tune_second_bytes(const struct knobs *k, uint64_t *out, struct err *e) {
    struct session s;
    *out = 0;
    if (!second_wanted(k))
        return 0;
    int rc = plan_session(&s, k, e);
    if (rc == 0)
        *out = session_second_bytes(&s);
    session_close(&s);
    return rc;
}

static int predict_turn(struct predictor *p, const struct session *s, double *seconds,
                        struct err *e) {
    const struct program *turn = s->programs[SESSION_INTERACTIVE_EVAL];
    *seconds = 0;
    for (int i = 0; turn && i < turn->n_order; i++) {
        const struct segment *segment = &turn->segments[turn->order[i].segment];
        for (int k = 0; k < segment->n_ops; k++) {
            const double op_s = predictor_op(p, s, turn, &segment->ops[k]);
            if (op_s < 0)
                return err_set(e, ERR_INTERNAL, "the turn of a request cannot be predicted");
            *seconds += op_s;
        }
    }
    return 0;
}

int tune_predict_answers(struct tune_request *r, const struct knobs *k, struct err *e) {
    struct session s;
    struct predictor *p = NULL;
    struct predicted answer = {0};
    if (r->goal != TUNE_HYBRID)
        return 0;
    int rc = plan_session(&s, k, e);
    if (rc == 0)
        rc = predictor_open(&p, NULL, e);
    if (rc == 0 && s.second) {
        rc = predictor_step(p, &s.second->session, &answer, e);
        r->answer_s = answer.seconds;
    } else if (rc == 0)
        rc = predict_turn(p, &s, &r->turn_s, e);
    predictor_close(p);
    session_close(&s);
    return rc;
}

int tune_report_write(struct tuning *t, const char *path, struct err *e) {
    const struct tune *tune = &t->tune;
    char machine[256], memory[TEXT_UNIT_BYTES];
    uint64_t bytes;
    char *recipe = NULL;
    snprintf(machine, sizeof machine, "%s, %d CPUs, %s%s", t->machine.hw.cpu,
             t->machine.hw.usable_cpus, text_bytes(memory, t->machine.hw.memory_bytes),
             t->request.on_device ? "; a GPU computes" : "");
    struct tune_facts facts = {.model = t->base.model,
                               .machine = machine,
                               .verdict = t->sentences,
                               .saved_as = t->recipe_path,
                               .tuning = t->id,
                               .memory_budget = t->base.memory};
    fill_memory(&facts.given, &tune->settings[0].knobs);
    if (tune->chosen >= 0) {
        fill_memory(&facts.chosen, &tune->settings[tune->chosen].knobs);
        facts.recipe = recipe = tune_recipe_text(&tune->settings[tune->chosen].knobs);
    }
    int rc = tune_report_page(path, tune, &facts, &bytes, e);
    free(recipe);
    return rc;
}
