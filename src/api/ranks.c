// ranks.c - haggle_ranks: whether ranks are threads or processes, and how processes are started.
#include "api/api.h"

#include "comm/installed.h"

#include <string.h>

_Static_assert((int)HAGGLE_LAUNCH_WORDS == (int)COMM_START_MOST &&
                   sizeof((struct haggle_ranks *)0)->text >=
                       PLUGIN_PATH_BYTES + sizeof((struct comm_start *)0)->ranks,
               "haggle.h has room for what comm/installed.h gives");

// The text holds the path of mpirun and the number of ranks.
static void fill(struct haggle_ranks *out, const struct comm_installed *i) {
    struct comm_start s;
    comm_start_of(&s, i, out->ranks);
    const size_t path = strlen(i->mpirun) + 1;
    memcpy(out->text, i->mpirun, path);
    memcpy(out->text + path, s.ranks, sizeof s.ranks);
    out->command[0] = out->text;
    for (int k = 0; s.arguments[k] && k + 2 < HAGGLE_LAUNCH_WORDS; k++)
        out->command[k + 1] = s.arguments[k] == s.ranks ? out->text + path : s.arguments[k];
    memcpy(out->environment, s.environment, sizeof out->environment);
    out->rank_variable = s.rank_variable;
    out->launch = true;
}

int haggle_ranks(const struct haggle_config *c, struct haggle_ranks *out, struct haggle_error *e) {
    const struct comm_started by = comm_started();
    struct comm_installed installed;
    struct plan_split split;
    struct err why = {0};
    *out = (struct haggle_ranks){.started = by.world, .rank = by.rank};
    if (!c)
        return 0;
    const struct knobs *k = &c->knobs;
    out->timeout_ns = k->comm_timeout;
    if (plan_split_of(k, &split, &why) != 0) {
        if (by.world > 0) // haggle_train has a better sentence for what mpirun has started
            return 0;
        return api_error(e, &why);
    }
    out->ranks = split.data * split.tensor * split.pipe;
    if (by.world > 0 || out->ranks == 1 || k->comm_engine == COMM_ENGINE_THREAD)
        return 0;
    comm_examine(&installed);
    if (installed.usable)
        fill(out, &installed);
    else if (k->comm_engine == COMM_ENGINE_MPI) {
        err_set(&why, ERR_UNSUPPORTED, "comm.engine=mpi: %s; 'haggle doctor' says more",
                installed.reason);
        return api_error(e, &why);
    }
    return 0;
}
