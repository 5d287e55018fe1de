// live.h - the status line of a training run: loss, lr, grad norm, tokens/s, step p50/p99 over the
// last steps, data wait, memory, ETA.
//
// Place: the training loop calls live_show once per step. On a terminal the line is rewritten at
// most ten times a second. Elsewhere a plain line is printed every `every` steps.
//
// Invariant: the live line never exceeds the given columns, because a longer one would wrap and
// scroll. Fields that matter less are left out first.
#ifndef HAGGLE_REPORT_LIVE_H
#define HAGGLE_REPORT_LIVE_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct live_numbers {          // NaN: not known, left out
    int64_t step, total_steps; // total_steps 0: no planned end
    double loss, lr, grad_norm;
    double tokens_per_s;
    double step_p50_ms, step_p99_ms;
    int64_t times_of;      // steps that these are about: the newest; 0: not known
    double data_wait;      // fraction of wall time
    uint64_t memory_bytes; // 0: not known
    double eta_s;
    double epoch, epochs; // passes over the data: so far, at the end; epochs 0: left out
    uint64_t answered;    // requests; 0: none, left out
    double answer_p95_ms; // of recent requests
    int slowest_rank;     // the rank with the most work in the last step; with several ranks only
    double slowest_ms;    // that work; NaN: one rank
    double ranks_wait;    // part of that step in which ranks waited, for others or for data
};

enum { LIVE_TEXT_BYTES = 256 };

// "step 120/1000  loss 2.345  lr 3.0e-04 ..." in at most `columns` characters. Returns out.
const char *live_format(char out[LIVE_TEXT_BYTES], const struct live_numbers *n, int columns);
// All the fields as one plain line, whatever its width.
const char *live_format_plain(char out[LIVE_TEXT_BYTES], const struct live_numbers *n);

struct live {
    struct log *log;
    int64_t every;           // steps between plain lines
    int columns;             // of the terminal, at most 110; 80 when unknown
    bool on_terminal;        // a live line has been drawn
    uint64_t last_ns;        // when it was drawn last
    int64_t last_plain_step; // step of the last plain line
};
void live_init(struct live *l, struct log *log, int64_t every);
void live_show(struct live *l, const struct live_numbers *n, uint64_t now_ns);
// Draws the last state and ends the line.
void live_end(struct live *l, const struct live_numbers *n);

#endif
