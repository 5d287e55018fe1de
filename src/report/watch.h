// watch.h - what a training run writes as it trains: log.jsonl, TensorBoard files, the live line.
//
// Place: api/train.c opens one, hands its observer to the trainer, and closes it. The trainer does
// not know about files or terminals.
#ifndef HAGGLE_REPORT_WATCH_H
#define HAGGLE_REPORT_WATCH_H

#include "base/log.h"
#include "knob/knob.h"
#include "report/jsonl.h"
#include "report/live.h"
#include "report/tensorboard.h"
#include "train/trainer.h"

// Written by api/train.c at the end: the same object as --json.
#define WATCH_RESULT "result.json"

struct watch {
    const struct knobs *knobs;
    struct log *log;
    const struct plan *plan; // NULL until training starts
    struct live live;
    struct live_numbers numbers; // as last shown
    struct jsonl jsonl;
    bool has_jsonl;
    struct tensorboard board;
    bool has_board;
    double validation_first;       // loss of the first validation of this process; NaN: none
    int validations;               // by this process
    const struct samples *step_ns; // the trainer's, of the steps after warm-up; NULL: no step yet
    void (*starts)(void *arg);
    void *starts_arg;
};

// Opens no file yet. That happens when training starts: by then the trainer holds the run's lock
// and has checked everything, so a run that is refused does not touch the folder of another run.
// run.dir (from k) then gets recipe.yaml, log.jsonl and, with log.tensorboard, TensorBoard files.
// With resume=false an older log.jsonl is renamed. result.json of an earlier process is removed if
// there are steps left to train.
// starts: called when training starts, before any file is opened.
void watch_init(struct watch *w, const struct knobs *k, struct log *log, void (*starts)(void *arg),
                void *starts_arg);
struct train_observer watch_observer(struct watch *w);
int watch_close(struct watch *w, struct err *e); // also when no file was opened
// The live line while data is tokenized. Shown on a terminal only.
void watch_show_progress(struct log *log, const struct shard_progress *p);

#endif
