// live.h - the line a person watches: loss, lr, grad norm, tokens/s, step p50/p99, data wait,
// memory, ETA.
//
// Place: the training loop calls live_show once per step. On a terminal the line is rewritten at
// most ten times a second; elsewhere a plain line is printed every `every` steps.
//
// Invariant: the live line never exceeds the given columns (a longer one would wrap and scroll):
// what matters less is left out first.
#ifndef HAGGLE_REPORT_LIVE_H
#define HAGGLE_REPORT_LIVE_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct live_numbers {          // NaN: not known, left out
    int64_t step, total_steps; // total 0: open end
    double loss, lr, grad_norm;
    double tokens_per_s;
    double step_p50_ms, step_p99_ms;
    double data_wait;      // fraction of wall time
    uint64_t memory_bytes; // 0: not known
    double eta_s;
    uint64_t answered;    // requests; 0: none, left out
    double answer_p95_ms; // of recent ones
};

enum { LIVE_TEXT_BYTES = 256 };

// "step 120/1000  loss 2.345  lr 3.0e-04 ..." in at most `columns` characters. Returns out.
const char *live_format(char out[LIVE_TEXT_BYTES], const struct live_numbers *n, int columns);
// The same facts as one plain line, all of them.
const char *live_format_plain(char out[LIVE_TEXT_BYTES], const struct live_numbers *n);

struct live {
    struct log *log;
    int64_t every;           // plain lines: one per so many steps
    int columns;             // of the terminal, at most 100; 80 when unknown
    bool on_terminal;        // a live line has been drawn
    uint64_t last_ns;        // when
    int64_t last_plain_step; // of the last plain line
};
void live_init(struct live *l, struct log *log, int64_t every);
void live_show(struct live *l, const struct live_numbers *n, uint64_t now_ns);
void live_end(struct live *l,
              const struct live_numbers *n); // draws the last state and ends the line

#endif
