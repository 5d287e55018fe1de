// agree.c - ranks agree on what all of them must know: that one failed, that one was asked to stop,
// that all of them were started alike.
#include "comm/comm.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int world_group(struct comm *c, int *out, struct err *e) {
    int *ranks = malloc(sizeof *ranks * (size_t)c->world);
    if (!ranks)
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", c->world);
    for (int i = 0; i < c->world; i++)
        ranks[i] = i;
    const int rc = c->group(c, ranks, c->world, out, e);
    free(ranks);
    return rc;
}

int comm_gather(struct comm *c, const void *mine, uint64_t bytes, void *all, struct err *e) {
    int world = -1;
    if (!c || c->world < 2) {
        memcpy(all, mine, bytes);
        return 0;
    }
    TRY(world_group(c, &world, e));
    c->note(c, "a meeting of all ranks");
    const int rc =
        c->all_gather(c, world, mine, all, (int64_t)(bytes * (uint64_t)c->world), DTYPE_U8, e);
    if (rc == 0)
        c->note(c, NULL);
    return rc;
}

static int gather(struct comm *c, const void *mine, uint64_t bytes, char **all, struct err *e) {
    *all = malloc((size_t)c->world * bytes);
    if (!*all)
        return err_set(e, ERR_MEMORY, "out of memory for %d ranks", c->world);
    return comm_gather(c, mine, bytes, *all, e);
}

int comm_share(struct comm *c, void *data, uint64_t bytes, struct err *e) {
    char *all = NULL;
    if (!c || c->world < 2)
        return 0;
    const int rc = gather(c, data, bytes, &all, e);
    if (rc == 0)
        memcpy(data, all, bytes);
    free(all);
    return rc;
}

struct opinion {
    int32_t rc;
    double words[COMM_WORDS_MOST];
    char text[ERR_TEXT_BYTES];
};

// What ranks have agreed on before names the rank.
static bool names_a_rank(const char *text) {
    int rank, used = 0;
    return sscanf(text, "rank %d: %n", &rank, &used) == 1 && used > 0;
}

// Without a text of its own, a rank says nothing but its number.
static void tell(struct err *e, const struct opinion *o, int rank) {
    if (names_a_rank(o->text))
        err_set(e, o->rc, "%s", o->text);
    else
        err_set(e, o->rc, "rank %d: %s", rank, o->text[0] ? o->text : err_phrase(o->rc));
}

int comm_agree(struct comm *c, int rc, double *words, int n, struct err *e) {
    struct opinion mine = {.rc = rc};
    struct opinion *all = NULL;
    if (!c || c->world < 2)
        return rc;
    for (int i = 0; words && i < n; i++)
        mine.words[i] = words[i];
    if (rc != 0 && e)
        snprintf(mine.text, sizeof mine.text, "%.1000s", e->text);
    struct err lost = {0};
    const int met = gather(c, &mine, sizeof mine, (char **)&all, &lost);
    int first = -1;
    for (int r = 0; met == 0 && r < c->world; r++) {
        if (all[r].rc != 0 && first < 0)
            first = r;
        for (int i = 0; words && i < n; i++)
            if (all[r].words[i] > words[i])
                words[i] = all[r].words[i];
    }
    if (met != 0 && rc == 0)
        err_set(e, met, "%s", lost.text);
    else if (first >= 0)
        tell(e, &all[first], first);
    const int out = met != 0 ? (rc != 0 ? rc : met) : first >= 0 ? all[first].rc : 0;
    free(all);
    return out;
}

int comm_same(struct comm *c, const void *data, uint64_t bytes, const char *what, struct err *e) {
    char hash[HASH_TEXT_BYTES];
    char *all = NULL;
    if (!c || c->world < 2)
        return 0;
    hash_of(data, bytes, hash);
    int rc = gather(c, hash, sizeof hash, &all, e);
    for (int r = 1; rc == 0 && r < c->world; r++)
        if (memcmp(all, all + (size_t)r * sizeof hash, sizeof hash) != 0)
            rc = err_set(e, ERR_MISMATCH,
                         "rank %d has other %s than rank 0; all ranks must be alike", r, what);
    free(all);
    return rc;
}
