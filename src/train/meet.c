// meet.c - see meet.h.
#include "train/meet.h"

#include <stdlib.h>

int meet_open(struct meeting *m, struct comm *c, struct err *e) {
    *m = (struct meeting){.comm = c, .world = c ? c->world : 1, .rank = c ? c->rank : 0};
    m->all = &m->own;
    if (m->world == 1)
        return 0;
    int *ranks = malloc((size_t)m->world * sizeof *ranks);
    m->all = calloc((size_t)m->world, sizeof *m->all);
    int rc = ranks && m->all ? 0 : err_set(e, ERR_MEMORY, "out of memory for %d ranks", m->world);
    for (int i = 0; rc == 0 && i < m->world; i++)
        ranks[i] = i;
    if (rc == 0)
        rc = c->group(c, ranks, m->world, &m->everyone, e);
    free(ranks);
    return rc;
}

void meet_close(struct meeting *m) {
    if (m->all != &m->own)
        free(m->all);
    *m = (struct meeting){0};
}

int meet(struct meeting *m, int rc, unsigned *flags, const struct rank_step *last,
         const struct rank_batch *next, struct err *e) {
    m->own = (struct meet_note){.rc = rc, .flags = *flags, .last = *last, .next = *next};
    if (m->world == 1)
        return rc;
    struct err lost = {0};
    m->comm->note(m->comm, "the meeting before a step");
    const int met =
        m->comm->all_gather(m->comm, m->everyone, &m->own, m->all,
                            (int64_t)(sizeof m->own * (size_t)m->world), DTYPE_U8, &lost);
    m->lost = met != 0;
    if (m->lost)
        return rc != 0 ? rc : err_set(e, met, "%s", lost.text);
    m->comm->note(m->comm, NULL);
    bool failed = false;
    for (int i = 0; i < m->world; i++) {
        *flags |= m->all[i].flags;
        failed |= m->all[i].rc != 0;
    }
    return failed ? meet_agree(m, rc, e) : 0;
}

int meet_agree(struct meeting *m, int rc, struct err *e) {
    return comm_agree(m->comm, rc, NULL, 0, e);
}

int meet_decide(struct meeting *m, bool *answer, struct err *e) {
    return comm_share(m->comm, answer, sizeof *answer, e);
}
