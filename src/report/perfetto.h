// perfetto.h - the trace ring as Chrome trace JSON, for ui.perfetto.dev.
//
// Place: written at the end of a run (or on request) from measure/trace.h. pid = rank, tid =
// stream; steps have a track of their own. Times are microseconds from the first event held.
//
// Invariant: events of one track never overlap partly (streams run in order), as the format
// requires.
#ifndef HAGGLE_REPORT_PERFETTO_H
#define HAGGLE_REPORT_PERFETTO_H

#include "measure/trace.h"

// Durable: temporary file, then rename. segment_names (may be NULL) names segments by index.
int perfetto_write(const struct trace *t, const char *path, int rank,
                   const char *const *segment_names, int n_segments, struct err *e);

#endif
