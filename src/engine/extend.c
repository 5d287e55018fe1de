// extend.c - turns that extend sequences: chooses the programs for some rows, writes their inputs,
// reads what the rows ask for. See program/extend.h for what such a program is.
#include "engine/engine.h"
#include "program/extend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct turn { // a program of PLAN_EXTEND
    int64_t rows, asked;
    int program, in, ids, logits; // index in the plan, and of its tensors
};

struct extender {
    struct turn turns[PLAN_PROGRAMS_MOST]; // by rows, ascending
    int n;
    int32_t *in; // what the host writes before a turn: room for the largest
};

void session_free_extender(struct session *s) {
    if (s->extender)
        free(s->extender->in);
    free(s->extender);
    s->extender = NULL;
}

static int find_tensor(const struct program *p, const char *prefix, int64_t n) {
    char name[64];
    snprintf(name, sizeof name, "%s%lld", prefix, (long long)n);
    return program_find(p, name);
}

static int make_extender(struct session *s, struct err *e) {
    const struct plan *plan = s->plan;
    int64_t rows[PLAN_PROGRAMS_MOST];
    const int n = plan_extend_rows(plan, rows);
    if (n == 0)
        return err_set(e, ERR_INTERNAL, "the plan has no programs that extend sequences");
    struct extender *x = s->extender = calloc(1, sizeof *x);
    if (!x || !(x->in = calloc(4 * (size_t)rows[n - 1], sizeof *x->in)))
        return err_set(e, ERR_MEMORY, "out of memory for %lld rows of tokens",
                       (long long)rows[n - 1]);
    for (x->n = 0; x->n < n; x->n++) {
        struct turn *t = &x->turns[x->n];
        char name[PLAN_NAME_BYTES];
        plan_extend_name(rows[x->n], name);
        t->rows = rows[x->n];
        t->asked = extend_asked(t->rows, plan->extend.sequences);
        t->program = plan_find(plan, name);
        const struct program *p = plan->programs[t->program];
        t->in = find_tensor(p, NAME_EXTEND, t->rows);
        t->ids = find_tensor(p, NAME_IDS, t->asked);
        t->logits = find_tensor(p, NAME_ASKED, t->asked);
    }
    return 0;
}

// A turn reads all weights, which takes about as long as computing so many more rows.
enum { WEIGHTS_ROWS_HOST = 8, WEIGHTS_ROWS_DEVICE = 256 };

// The smallest turn that holds all rows, or the largest that they fill and another one for the
// rest, if that computes less.
static const struct turn *choose(const struct session *s, int64_t rows) {
    const struct extender *x = s->extender;
    const int64_t again = engine_on_device(s->engine) ? WEIGHTS_ROWS_DEVICE : WEIGHTS_ROWS_HOST;
    int i = 0;
    while (i < x->n - 1 && x->turns[i].rows < rows)
        i++;
    return i > 0 && x->turns[i].rows > rows + again ? &x->turns[i - 1] : &x->turns[i];
}

static int check_row(const struct session *s, const struct session_row *r, struct err *e) {
    const struct plan *p = s->plan;
    if (r->sequence >= 0 && r->sequence < p->extend.sequences && r->position >= 0 &&
        r->position < p->extend.context)
        return 0;
    return err_set(e, ERR_INTERNAL,
                   "position %d of sequence %d is outside of the cache: %lld sequences of %lld "
                   "tokens",
                   r->position, r->sequence, (long long)p->extend.sequences,
                   (long long)p->extend.context);
}

// One turn with the first n rows. Returns in *asked how many of them were asked.
static int run_turn(struct session *s, const struct turn *t, const struct session_row *rows,
                    int64_t n, int32_t *ids, float *logits, int64_t *asked, struct err *e) {
    int32_t *in = s->extender->in, *positions = in + t->rows, *sequences = positions + t->rows,
            *wanted = sequences + t->rows;
    const int64_t vocab = s->plan->shape.vocab;
    *asked = 0;
    for (int64_t i = 0; i < t->rows; i++) {
        const bool idle = i >= n;
        if (!idle)
            TRY(check_row(s, &rows[i], e));
        in[i] = idle ? 0 : rows[i].token;
        positions[i] = idle ? 0 : rows[i].position;
        sequences[i] = idle ? -1 : rows[i].sequence;
        if (!idle && rows[i].asked && *asked == t->asked)
            return err_set(e, ERR_INTERNAL, "more rows are asked than there are sequences");
        if (!idle && rows[i].asked)
            wanted[(*asked)++] = (int32_t)i;
    }
    for (int64_t i = *asked; i < t->asked; i++)
        wanted[i] = 0;
    TRY(exec_write(s->exec, t->program, t->in, in, (uint64_t)(3 * t->rows + t->asked) * sizeof *in,
                   e));
    TRY(exec_run(s->exec, t->program, NULL, NULL, NULL, e));
    if (*asked == 0)
        return 0;
    TRY(exec_read_part(s->exec, t->program, t->ids, 0, ids, (uint64_t)*asked * sizeof *ids, e));
    return logits ? exec_read_part(s->exec, t->program, t->logits, 0, logits,
                                   (uint64_t)(*asked * vocab) * sizeof *logits, e)
                  : 0;
}

int session_extend(struct session *s, const struct session_row *rows, int64_t n, int32_t *ids,
                   float *logits, struct err *e) {
    if (!s->extender)
        TRY(make_extender(s, e));
    for (int64_t at = 0, asked; at < n;) {
        const struct turn *t = choose(s, n - at);
        const int64_t part = n - at < t->rows ? n - at : t->rows;
        TRY(run_turn(s, t, rows + at, part, ids, logits, &asked, e));
        ids += asked;
        if (logits)
            logits += asked * s->plan->shape.vocab;
        at += part;
    }
    return 0;
}
