// perfetto.h - the trace ring as Chrome trace JSON, for ui.perfetto.dev.
//
// Place: written at the end of a run, or on request, from measure/trace.h. The pid is the rank, the
// tid the stream. Steps have a separate track. Times are microseconds since the earliest event in
// the ring, or since a moment that all ranks of a run have in common.
//
// Invariant: no two events of a track overlap partly, as the format requires. Streams run in order.
#ifndef HAGGLE_REPORT_PERFETTO_H
#define HAGGLE_REPORT_PERFETTO_H

#include "measure/trace.h"

struct perfetto_rank {
    int rank;
    uint64_t origin_ns;               // that times are counted from; 0: the earliest event
    const char *const *segment_names; // by index; NULL: not known
    int n_segments;
    const char *label; // stands beside the rank's name; NULL: none
};
// Writes a temporary file, then renames it.
int perfetto_write(const struct trace *t, const char *path, const struct perfetto_rank *r,
                   struct err *e);
// The file of another rank of the run: path.rankN. perfetto_join appends the events of ranks 1 to
// ranks - 1 to the file of rank 0 and removes theirs.
int perfetto_rank_path(char *out, size_t bytes, const char *path, int rank, struct err *e);
int perfetto_join(const char *path, int ranks, struct err *e);

#endif
