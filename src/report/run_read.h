// run_read.h - a training run read back from its folder: log.jsonl, recipe.yaml, result.json.
//
// Place: `haggle report` reads each folder once. html.h and api/report.c show what is here.
//
// Invariants:
//   1. Files are not trusted. Nothing in them can take more memory than the limits below. What
//      cannot be understood is counted or named in `problems`, and the report goes on. Only a
//      folder without a readable log.jsonl is refused.
//   2. The log is read as a stream, whatever its length. A step that a resumed run trained again
//      counts once, as it was trained last.
//   3. What is not known is NaN, 0 or "" and must be shown as not known.
#ifndef HAGGLE_REPORT_RUN_READ_H
#define HAGGLE_REPORT_RUN_READ_H

#include "base/err.h"
#include "base/region.h"
#include "measure/sample.h"
#include "report/run_read_columns.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    RUN_TEXT_BYTES = 256,
    RUN_SENTENCE_BYTES = 512,
    RUN_PARTS_MOST = 24,      // parts of a split or classes of memory
    RUN_RANKS_MOST = 64,      // ranks with a row of their own
    RUN_TRAFFIC_MOST = 16,    // kinds of communication
    RUN_MARKS_MOST = 64,      // resumed or skipped steps kept for marks in the plots
    RUN_STARTS_MOST = 4096,   // processes of one run kept apart
    RUN_PROBLEMS_MOST = 8,    // sentences
    RUN_LINE_BYTES = 1 << 16, // longest line of a log
    RUN_RESULT_BYTES = 32 << 20,
};

struct run_part {
    char name[48];
    double amount; // a fraction of the time, or bytes
};

struct run_rank { // what one of several ranks measured; milliseconds of a step, and bytes
    int64_t rank, data, tensor, pipe;
    double step_ms, work_ms, exposed_ms, data_wait_ms, arena_bytes, planned_bytes, peak_bytes;
};

struct run_traffic { // what rank 0 sends in a step
    char op[48], group[48];
    int64_t calls;
    double bytes, textbook;
};

struct run_marks {
    int64_t step[RUN_MARKS_MOST];
    uint64_t n; // all of them; `step` holds the first RUN_MARKS_MOST
};

struct run_setting { // a knob that differs from its default
    const char *name, *value, *initial, *by;
};

struct run_result { // what the last process of the run reported at its end
    bool is_there;
    char end[24];                  // "done", "time", "stopped", "patience", "diverged", "failed"
    char best[RUN_SENTENCE_BYTES]; // path of the checkpoint of the best validation; "": none
    char error[RUN_SENTENCE_BYTES];
    char verdict[RUN_SENTENCE_BYTES];
    char cpu[RUN_TEXT_BYTES], kernel[RUN_TEXT_BYTES];
    int64_t usable_cpus;
    int64_t first_step, step, warmup_steps;
    double predicted_step_ms;
    double tokens_per_s, trained_tokens_per_s, ms_per_sample, utilization, mfu, hfu;
    double memory_predicted, memory_measured; // bytes
    bool on_device;
    struct run_part split[RUN_PARTS_MOST], memory[RUN_PARTS_MOST];
    int n_split, n_memory;
    struct run_rank ranks[RUN_RANKS_MOST]; // none: one rank
    struct run_traffic traffic[RUN_TRAFFIC_MOST];
    int n_ranks, n_traffic;
    int64_t world, slowest;   // ranks of the run; the one with the most work
    double bubble;            // of the pipeline, by its formula: a part of the step
    double waited_for_stages; // the same as it was measured
};

struct run_log {
    // Facts of the last process that began.
    char haggle[32], model[RUN_TEXT_BYTES], data[RUN_SENTENCE_BYTES];
    char device[RUN_TEXT_BYTES], isa[64], blas[RUN_TEXT_BYTES];
    int64_t parameters, steps_planned;
    double memory_predicted; // bytes

    uint64_t lines, damaged; // damaged: not a JSON object, too long, or an impossible step
    bool torn;               // the last line has no newline: being written, or cut off
    uint64_t steps;          // the steps that count
    uint64_t again;          // steps left out, because a resumed run trained them again
    int64_t first_step, last_step;
    uint64_t processes;
    struct run_marks resumed, skipped;
    uint64_t empty, saves;
    double time_first, time_last; // wall seconds since the epoch
    double loss_first, loss_last, smooth_last;
    double eval_last, eval_best;
    int64_t eval_best_step;
    uint64_t evals;
    double tokens_per_s_last;
    double wait_ms, step_ms; // sums over all steps
    int64_t smooth_steps;    // steps to each side that the smoothed loss averages

    struct samples step_ns; // without warm-up steps
    uint64_t warmup;        // warm-up steps
    struct quantile p50, p95, p99;
    struct spread spread;
    struct columns *columns;
};

struct run_read {
    char dir[1024];
    char name[RUN_TEXT_BYTES]; // last part of dir; names the run on the page
    struct run_log log;
    struct run_result result;
    struct run_setting *settings;
    size_t n_settings;
    bool has_settings; // false: there is no readable recipe
    char problems[RUN_PROBLEMS_MOST][RUN_SENTENCE_BYTES];
    int n_problems;
    struct region region;
};

// ERR_USAGE, ERR_IO, ERR_FORMAT, ERR_MEMORY. Call run_read_close in every case.
int run_read_open(struct run_read *r, const char *dir, struct err *e);
void run_read_close(struct run_read *r);

// ---------------------------------------------------------------- the parts

int run_read_log(struct run_read *r, const char *path, struct err *e); // call after run_read_result
void run_read_result(struct run_read *r, const char *path);
void run_problem(struct run_read *r, const char *format, ...) ERR_PRINTF(2, 3);
// Copies text. If it does not fit, it is cut between two UTF-8 characters.
void run_copy(char *out, size_t out_bytes, const char *text);

#endif
