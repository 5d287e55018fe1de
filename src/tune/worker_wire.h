// worker_wire.h - the messages between a worker and its owner. Private to worker.c and
// worker_serve.c.
//
// They go over a pair of sockets that preserve message boundaries. Both ends are the same program
// (the worker is a fork), so a message is a plain struct. The owner sends a job, and perhaps a
// request to stop it. The worker sends its steps, signs of life, and one result.
#ifndef HAGGLE_TUNE_WORKER_WIRE_H
#define HAGGLE_TUNE_WORKER_WIRE_H

#include "tune/worker.h"

enum wire_kind { WIRE_JOB, WIRE_STOP, WIRE_STEPS, WIRE_ALIVE, WIRE_RESULT };

struct wire_head {
    enum wire_kind kind;
    int64_t job; // number of the job, so that a stop that comes too late does not end the next one
};

struct wire_job {
    struct wire_head head;
    struct knobs knobs;
    int64_t warmup, steps;
};

enum { WIRE_SAMPLES = 64 };
struct wire_steps {
    struct wire_head head;
    int64_t n;
    struct trial_sample samples[WIRE_SAMPLES]; // only the first n are sent
};

struct wire_result {
    struct wire_head head;
    struct trial_result result; // without step_ns, which was sent as WIRE_STEPS
};

union wire_message {
    struct wire_head head;
    struct wire_job job;
    struct wire_steps steps;
    struct wire_result result;
};

// False: the other end is closed.
bool wire_send(int fd, const void *message, size_t bytes);
// Returns the bytes of one message; 0: the other end is closed; -1: no message yet, with `wait`
// false.
long wire_receive(int fd, union wire_message *m, bool wait);

// The worker's side: serves jobs until the owner closes its end. Never returns.
_Noreturn void worker_serve(int fd, const struct worker_options *o);

#endif
