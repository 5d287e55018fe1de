// comm_stream.h - the stream `comm` of an executor on the host: a thread that runs communication
// ops in issue order while the ops of the compute stream go on.
//
// The host runs compute ops one after the other, so whatever a communication op waits for is done
// when it is issued. Only the other direction needs waiting: an op that waits for an event of this
// stream waits until the op that records it is done. A send is done when its receiver has the data;
// the ops behind it do not wait for that.
#ifndef HAGGLE_EXEC_COMM_STREAM_H
#define HAGGLE_EXEC_COMM_STREAM_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "measure/trace.h"

struct comm_stream;

int comm_stream_open(struct comm_stream **out, struct comm *c, struct program *const *programs,
                     int n_programs, struct err *e);
void comm_stream_close(struct comm_stream *s); // NULL is accepted

// Issues an op of program `program`. It runs as soon as those before it have. at_once: waits until
// it has, and sends a copy, so that a send needs nothing of the sender any more.
int comm_stream_issue(struct comm_stream *s, int program, const struct op_call *call, int segment,
                      int micro, bool at_once, struct err *e);
enum comm_wait { WAIT_NONE, WAIT_RANKS, WAIT_STAGES }; // for whom; see SPAN_STAGE_WAIT
// Waits for the events that an op of the compute stream waits for. *waited: whether it had to.
int comm_stream_await(struct comm_stream *s, const struct op *op, enum comm_wait *waited,
                      struct err *e);
// Waits until everything that was issued is done, and adds what ran to the trace (may be NULL). To
// be called at the end of a turn.
int comm_stream_drain(struct comm_stream *s, struct trace *trace, enum comm_wait *waited,
                      struct err *e);

#endif
