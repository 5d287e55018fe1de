// data.c - haggle_data: shows data as the model will see it, before training on it.
//
// Opens the dataset exactly as training does (same shards, split and packing), so the figures are
// those that a run with these knobs would get.
#include "api/api.h"

#include "data/dataset.h"
#include "report/data_print.h"
#include "report/watch.h"

enum { SAMPLES_DEFAULT = 2 };

static void show_progress(void *arg, const struct shard_progress *p) {
    watch_show_progress(arg, p);
}

static int stop_asked(void *arg) {
    (void)arg;
    return *stop_flag();
}

// The files of the call become data.path, which all later code reads.
static int name_files(struct knobs *k, const struct haggle_data *x, struct err *e) {
    size_t used = 0;
    if (x->n_files > 0 && k->by[KNOB_data_path] == SET_BY_COMMAND_LINE)
        return err_set(e, ERR_USAGE, "data.path=%s and '%s' are both given; accepted: one of them",
                       k->data_path, x->files[0]);
    for (size_t i = 0; i < x->n_files; i++) {
        const int n = snprintf(k->data_path + used, sizeof k->data_path - used, "%s%s",
                               i > 0 ? "," : "", x->files[i]);
        if (n < 0 || (size_t)n >= sizeof k->data_path - used)
            return err_set(e, ERR_USAGE, "the names of the files are longer than %zu bytes",
                           sizeof k->data_path - 1);
        used += (size_t)n;
    }
    if (k->data_path[0] == '\0')
        return err_set(e, ERR_USAGE, "which data? accepted: haggle data FILE ... [knob=value ...]");
    return 0;
}

static int open_data(struct call *c, const struct knobs *k, struct dataset **out, struct err *e) {
    struct model_shape shape;
    bool from_folder = false;
    const struct shard_listener listener = {
        .arg = &c->log, .say = call_say, .progress = show_progress, .stop = stop_asked};
    TRY(model_shape_open(&shape, k->model, &from_folder, e));
    // With a tokenizer and no model given, any vocabulary is fine.
    const bool any_model = k->tokenizer[0] && k->by[KNOB_model] == SET_BY_DEFAULT;
    int rc = dataset_open_knobs(out, k, from_folder ? k->model : NULL, any_model ? 0 : shape.vocab,
                                &listener, e);
    log_live_end(&c->log);
    return rc;
}

static int look(struct call *c, const struct dataset *d, const struct knobs *k, int64_t samples,
                struct err *e) {
    struct data_figures figures;
    const struct data_sight sight = {d, &figures, k->seq, samples};
    if (dataset_files(d) == 0)
        return err_set(e, ERR_USAGE,
                       "the built-in corpus is generated during training and has no files to show; "
                       "accepted: haggle data FILE ...");
    TRY(figures_measure(&figures, d, k->seq, e));
    if (c->out != NULL)
        TRY(data_print(&sight, c->out, e));
    if (call_json_begin(c, "data", k)) {
        TRY(data_put_json(&sight, &c->json, e));
        json_put_object_end(&c->json);
    }
    return 0;
}

int haggle_data(const struct haggle_config *config, const struct haggle_data *x,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct knobs k = config->knobs;
    struct dataset *d = NULL;
    call_begin(&c, sink);
    int rc = name_files(&k, x, &c.err);
    if (rc == 0)
        rc = call_find_model(&c, &k, &c.err);
    if (rc == 0)
        rc = open_data(&c, &k, &d, &c.err);
    if (rc == 0)
        rc = look(&c, d, &k, x->samples < 0 ? SAMPLES_DEFAULT : x->samples, &c.err);
    dataset_close(d);
    return call_end(&c, rc, e);
}
