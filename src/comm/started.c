// started.c - whether mpirun or srun has started this process, as one of how many. Its environment
// says so, and MPI need not be loaded to ask.
#include "comm/comm.h"

#include <stdlib.h>

static bool number(const char *name, int most, int *out) {
    const char *text = getenv(name);
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    const long x = strtol(text, &end, 10);
    *out = (int)x;
    return *end == '\0' && x <= most;
}

struct comm_started comm_started(void) {
    static const struct {
        const char *size, *rank, *by;
    } known[] = {
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun"},
        {"PMI_SIZE", "PMI_RANK", "mpirun"},
        {"SLURM_STEP_NUM_TASKS", "PMIX_RANK", "srun"},
    };
    struct comm_started s = {0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (number(known[i].size, COMM_RANKS_MOST, &s.world) && s.world > 0 &&
            number(known[i].rank, s.world - 1, &s.rank)) {
            s.by = known[i].by;
            return s;
        }
    return (struct comm_started){0};
}
