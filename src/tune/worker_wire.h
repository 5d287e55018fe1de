// worker_wire.h - what a worker and its owner say to each other, for the files of this folder.
//
// A pair of sockets that keep messages whole. Both ends are the same program (the worker is a fork), so
// messages are structs as they are. The owner sends a job, and perhaps a stop for it; the worker sends
// its steps, signs of life, and one result.
#ifndef HAGGLE_TUNE_WORKER_WIRE_H
#define HAGGLE_TUNE_WORKER_WIRE_H

#include "tune/worker.h"

enum wire_kind { WIRE_JOB, WIRE_STOP, WIRE_STEPS, WIRE_ALIVE, WIRE_RESULT };

struct wire_head {
    enum wire_kind kind;
    int64_t job; // number: a stop that comes too late must not end the next one
};

struct wire_job {
    struct wire_head head;
    struct knobs knobs;
    int64_t warmup, steps;
};

enum { WIRE_SAMPLES = 64 };
struct wire_steps { // only the first n are sent
    struct wire_head head;
    int64_t n;
    struct trial_sample samples[WIRE_SAMPLES];
};

struct wire_result {
    struct wire_head head;
    struct trial_result result; // without step_ns, which the steps were
};

union wire_message {
    struct wire_head head;
    struct wire_job job;
    struct wire_steps steps;
    struct wire_result result;
};

// false: the other end is gone.
bool wire_send(int fd, const void *message, size_t bytes);
// The bytes of one message; 0: the other end is gone; -1: none is there (wait is false).
long wire_receive(int fd, union wire_message *m, bool wait);

// The worker's side: serves jobs until the owner is gone. Never returns.
_Noreturn void worker_serve(int fd, const struct worker_options *o);

#endif
