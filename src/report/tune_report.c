// tune_report.c - see tune_report.h.
#include "report/tune_report.h"

#include "base/text.h"
#include "report/html.h"
#include "report/tune_page.h"

#include <stdlib.h>
#include <string.h>

static int write_page(const char *path, const struct tune *t, const struct tune_facts *facts,
                      uint64_t *bytes, struct err *e) {
    struct html_file h;
    TRY(html_file_open(&h, e));
    return html_file_save(&h, path, tune_page(h.f, t, facts, e), bytes, e);
}

// A setting that cannot be planned has no bytes to show.
static void fill_memory(struct stored_memory *out, const struct knobs *k) {
    struct plan p;
    if (plan_run(&p, k, NULL) == 0) {
        out->known = true;
        memcpy(out->by_class, p.layout.by_class, sizeof out->by_class);
        out->second_bytes = plan_second_bytes(&p);
    }
    plan_free(&p);
}

int tune_report_write(const struct tuning *t, const char *path, struct err *e) {
    const struct tune *tune = &t->tune;
    char machine[256], memory[TEXT_UNIT_BYTES];
    uint64_t bytes;
    char *recipe = NULL;
    snprintf(machine, sizeof machine, "%s, %d CPUs, %s%s", t->machine.hw.cpu,
             t->machine.hw.usable_cpus, text_bytes(memory, t->machine.hw.memory_bytes),
             t->request.on_device ? "; a GPU computes" : "");
    struct tune_facts facts = {.model = t->base.model,
                               .machine = machine,
                               .verdict = t->sentences.lines,
                               .saved_as = t->recipe_path,
                               .tuning = t->history.id,
                               .memory_budget = t->base.memory};
    fill_memory(&facts.given, &tune->settings[0].knobs);
    if (tune->chosen >= 0) {
        fill_memory(&facts.chosen, &tune->settings[tune->chosen].knobs);
        facts.recipe = recipe = knobs_recipe_text(&tune->settings[tune->chosen].knobs);
    }
    int rc = write_page(path, tune, &facts, &bytes, e);
    free(recipe);
    return rc;
}

int tune_report_write_stored(const struct stored *s, const char *path, uint64_t *bytes,
                             struct err *e) {
    const struct tune *tune = &s->tune;
    char *recipe =
        tune->chosen >= 0 ? knobs_recipe_text(&tune->settings[tune->chosen].knobs) : NULL;
    const struct tune_facts facts = {.model = s->model,
                                     .verdict = s->verdict,
                                     .recipe = recipe,
                                     .missing = s->missing.lines,
                                     .tuning = s->id,
                                     .memory_budget = s->memory_budget,
                                     .given = s->given,
                                     .chosen = s->of_choice};
    int rc = write_page(path, tune, &facts, bytes, e);
    free(recipe);
    return rc;
}
