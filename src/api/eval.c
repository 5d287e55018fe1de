// eval.c - haggle_eval: the loss of models on data, and how much two of them differ.
//
// The data of every model is opened before the first one computes, so that models that cannot be
// compared are refused at once.
#include "api/api.h"

#include "base/file.h"
#include "report/score_print.h"
#include "report/watch.h"
#include "train/source.h"

#include <stdlib.h>
#include <string.h>

// A context of more tokens costs memory and time, and few records are longer.
enum { SEQ_MOST = 2048 };

struct subject { // a model
    struct knobs knobs;
    char adapter[PATH_MAX]; // a checkpoint of an adapter; "": none
};

struct evaluation {
    struct call *c;
    const struct haggle_eval *x;
    size_t n;
    const char **names, **adapters;
    struct subject *subjects;
    struct score *scores;
    struct score_comparison *comparisons;
    size_t at; // the model that computes
};

static void show_tokenizing(void *arg, const struct shard_progress *p) {
    struct evaluation *v = arg;
    watch_show_progress(&v->c->log, p);
}

static void say(void *arg, enum log_level level, const char *text) {
    struct evaluation *v = arg;
    call_say(&v->c->log, level, text);
}

static int stop_asked(void *arg) {
    (void)arg;
    return *stop_flag();
}

static void show_scoring(void *arg, uint64_t done, uint64_t windows) {
    struct evaluation *v = arg;
    char line[256];
    snprintf(line, sizeof line, "scoring %.150s  %.0f %%", v->names[v->at],
             100 * (double)done / (double)windows);
    log_live(&v->c->log, line);
}

static struct score_listener listen_to(struct evaluation *v) {
    return (struct score_listener){
        .data = {.arg = v, .say = say, .progress = show_tokenizing, .stop = stop_asked},
        .arg = v,
        .progress = show_scoring,
        .stop = stop_flag()};
}

// ---------------------------------------------------------------- what was asked for

static int read_request(struct knobs *k, const struct haggle_eval *x, struct err *e) {
    if (x->n_models == 0 && k->by[KNOB_model] == SET_BY_DEFAULT)
        return err_set(e, ERR_USAGE, "which model? accepted: haggle eval FOLDER ... --data FILE");
    if (x->n_models > 0 && k->by[KNOB_model] == SET_BY_COMMAND_LINE)
        return err_set(e, ERR_USAGE, "model=%s and '%s' are both given; accepted: one of them",
                       k->model, x->models[0]);
    if (x->data != NULL && k->by[KNOB_data_path] == SET_BY_COMMAND_LINE)
        return err_set(e, ERR_USAGE,
                       "data.path=%s and --data %s are both given; accepted: one of "
                       "them",
                       k->data_path, x->data);
    if (x->data != NULL)
        TRY(knobs_set_at(k, KNOB_data_path, x->data, SET_BY_COMMAND_LINE, e));
    if (k->data_path[0] == '\0')
        return err_set(e, ERR_USAGE, "which data? accepted: haggle eval FOLDER ... --data FILE");
    if (x->adapter != NULL)
        TRY(knobs_set_at(k, KNOB_lora_from, x->adapter, SET_BY_COMMAND_LINE, e));
    return 0;
}

// Beside a run there may be models that are none, and have no best checkpoint.
static bool takes_best(const struct evaluation *v, const struct knobs *k) {
    char checkpoints[PATH_MAX];
    return v->x->best && (v->n == 1 || (file_join(checkpoints, sizeof checkpoints, k->model,
                                                  "checkpoints", NULL) == 0 &&
                                        file_is_dir(checkpoints)));
}

// The knob lora.from means the last model: beside its base it shows what an adapter changes.
static int find_subject(struct evaluation *v, size_t i, const struct knobs *k, struct err *e) {
    struct subject *s = &v->subjects[i];
    struct model_shape shape;
    bool from_folder = false, of_run;
    s->knobs = *k;
    if (i + 1 < v->n)
        s->knobs.lora_from[0] = '\0';
    if (v->x->n_models > 0)
        TRY(knobs_set_at(&s->knobs, KNOB_model, v->x->models[i], SET_BY_COMMAND_LINE, e));
    v->names[i] = v->x->n_models > 0 ? v->x->models[i] : k->model;
    v->adapters[i] = s->knobs.lora_from[0] ? s->knobs.lora_from : NULL;
    TRY(call_find_checkpoint(v->c, &s->knobs, takes_best(v, &s->knobs), e));
    TRY(source_template(&s->knobs, &of_run, e));
    TRY(call_find_adapter(&s->knobs, s->adapter, e));
    TRY(call_find_model(v->c, &s->knobs, e));
    TRY(model_shape_open(&shape, s->knobs.model, &from_folder, e));
    if (!from_folder && !s->adapter[0])
        log_put(&v->c->log, LOG_WARN, "%s is a shape, not a trained model: its weights are random",
                s->knobs.model);
    return 0;
}

// All models read the same stretch of a record: as much as the one with the shortest context takes.
static int choose_seq(struct evaluation *v, struct err *e) {
    int64_t seq = SEQ_MOST;
    for (size_t i = 0; i < v->n; i++) {
        struct model_shape shape;
        bool from_folder;
        TRY(model_shape_open(&shape, v->subjects[i].knobs.model, &from_folder, e));
        const int64_t longest = model_shape_longest(&shape);
        seq = longest < seq ? longest : seq;
    }
    for (size_t i = 0; i < v->n; i++)
        if (v->subjects[i].knobs.by[KNOB_seq] == SET_BY_DEFAULT)
            v->subjects[i].knobs.seq = seq;
    return 0;
}

// ---------------------------------------------------------------- the work

static int open_all(struct evaluation *v, const struct score_listener *l, struct err *e) {
    enum score_pairing by;
    for (size_t i = 0; i < v->n; i++) {
        int rc = score_open(&v->scores[i], &v->subjects[i].knobs, l, e);
        log_live_end(&v->c->log);
        TRY(rc);
        if (i > 0)
            TRY(score_pair(&v->scores[i], &v->scores[0], &by, e));
    }
    return 0;
}

static int score_all(struct evaluation *v, const struct score_listener *l, struct err *e) {
    for (v->at = 0; v->at < v->n; v->at++) {
        int rc = score_model(&v->scores[v->at], v->subjects[v->at].adapter, l, e);
        log_live_end(&v->c->log);
        if (rc != 0 && v->n > 1)
            return err_context(e, "%.300s", v->names[v->at]);
        TRY(rc);
    }
    for (size_t i = 1; i < v->n; i++)
        TRY(score_compare(&v->scores[i], &v->scores[0], &v->comparisons[i], e));
    return 0;
}

static int show(const struct evaluation *v, const struct knobs *k, struct err *e) {
    const struct score_sight t = {v->n, v->scores, v->names, v->adapters, v->comparisons};
    if (v->c->out)
        TRY(score_print(&t, v->c->out, e));
    if (call_json_begin(v->c, "eval", k)) {
        TRY(score_put_json(&t, &v->c->json, e));
        json_put_object_end(&v->c->json);
    }
    return 0;
}

static int evaluate(struct evaluation *v, const struct knobs *given, struct err *e) {
    const struct score_listener l = listen_to(v);
    struct knobs k = *given;
    TRY(read_request(&k, v->x, e));
    for (size_t i = 0; i < v->n; i++)
        TRY(find_subject(v, i, &k, e));
    TRY(choose_seq(v, e));
    TRY(open_all(v, &l, e));
    TRY(score_all(v, &l, e));
    return show(v, &k, e);
}

int haggle_eval(const struct haggle_config *config, const struct haggle_eval *x,
                const struct haggle_sink *sink, struct haggle_error *e) {
    struct call c;
    struct evaluation v = {.c = &c, .x = x, .n = x->n_models > 0 ? x->n_models : 1};
    int rc;
    call_begin(&c, sink);
    v.names = calloc(2 * v.n, sizeof *v.names);
    v.subjects = calloc(v.n, sizeof *v.subjects);
    v.scores = calloc(v.n, sizeof *v.scores);
    v.comparisons = calloc(v.n, sizeof *v.comparisons);
    if (v.names && v.subjects && v.scores && v.comparisons) {
        v.adapters = v.names + v.n;
        rc = evaluate(&v, &config->knobs, &c.err);
    } else {
        rc = err_set(&c.err, ERR_MEMORY, "out of memory for %zu models", v.n);
    }
    for (size_t i = 0; v.scores && i < v.n; i++)
        score_close(&v.scores[i]);
    free(v.names);
    free(v.subjects);
    free(v.scores);
    free(v.comparisons);
    return call_end(&c, rc, e);
}
