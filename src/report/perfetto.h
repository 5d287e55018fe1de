// perfetto.h - the trace ring as Chrome trace JSON, for ui.perfetto.dev.
//
// Place: written at the end of a run, or on request, from measure/trace.h. The pid is the rank, the
// tid the stream. Steps have a separate track. Times are microseconds since the earliest event in
// the ring.
//
// Invariant: no two events of a track overlap partly, as the format requires. Streams run in order.
#ifndef HAGGLE_REPORT_PERFETTO_H
#define HAGGLE_REPORT_PERFETTO_H

#include "measure/trace.h"

// Writes a temporary file, then renames it. segment_names: the names of segments by index, or NULL.
int perfetto_write(const struct trace *t, const char *path, int rank,
                   const char *const *segment_names, int n_segments, struct err *e);

#endif
