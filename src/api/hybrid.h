// hybrid.h - a run that answers requests: what it takes, how long an answer may take, what came of it.
//
// Place: train.c and show.c open one for goal=hybrid. For any other goal everything here does nothing.
#ifndef HAGGLE_API_HYBRID_H
#define HAGGLE_API_HYBRID_H

#include "api/api.h"
#include "serve/requests.h"
#include "train/trainer.h"

struct hybrid {
    struct requests *requests; // NULL: the run answers none
    struct guest_source source;
    // Predicted longest times from a request to its answer; 0: not known.
    double evaluate_s, train_s;
};

// After plan_session. in, answers: may be NULL.
int hybrid_open(struct hybrid *h, const struct session *s, FILE *in, FILE *answers,
                const struct shard_listener *listener, struct err *e);
// What refuses a run, before it writes anything: not asked by those who only plan.
int hybrid_check(const struct hybrid *h, struct err *e);
void hybrid_close(struct hybrid *h);
void hybrid_set_options(const struct hybrid *h, struct trainer_options *o);
// The longest wait of an evaluation is the longest stretch between two yield points, that of a training
// sample a whole step, or the same where a second model learns it; each with its own turn.
void hybrid_predict(struct hybrid *h, const struct session *s, const struct machine *m);
void hybrid_print_plan(const struct hybrid *h, const struct session *s, FILE *f);
// A sentence where interactive.respond is less than what is predicted; "" where it is not.
enum { HYBRID_TEXT_BYTES = 512 };
const char *hybrid_warning(const struct hybrid *h, const struct knobs *k,
                           char out[HYBRID_TEXT_BYTES]);
void hybrid_put_plan_json(const struct hybrid *h, struct json_writer *w); // "requests"

// What came of it.
void hybrid_print_result(const struct guest_report *g, const struct knobs *k, FILE *f);
void hybrid_put_result_json(const struct hybrid *h, const struct guest_report *g,
                            const struct knobs *k, struct json_writer *w); // "requests"

#endif
