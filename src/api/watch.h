// watch.h - a training run as it is seen from outside: log.jsonl, TensorBoard, the live line.
//
// Place: train.c opens one, hands its observer to the trainer, and closes it. The trainer knows
// nothing of files or terminals; the files know nothing of training.
#ifndef HAGGLE_API_WATCH_H
#define HAGGLE_API_WATCH_H

#include "api/api.h"
#include "report/jsonl.h"
#include "report/live.h"
#include "report/tensorboard.h"
#include "train/trainer.h"

// Written by train.c when all is done: the object that --json gives.
#define WATCH_RESULT "result.json"

struct watch {
    const struct knobs *knobs;
    struct log *log;
    struct live live;
    struct live_numbers numbers; // as last shown
    struct jsonl jsonl;
    bool has_jsonl;
    struct tensorboard board;
    bool has_board;
    double validation_first; // loss of the first validation of this process; NaN: none
    int validations;         // of this process
    bool planning;           // nothing in work yet: between stop_plan_begin and stop_plan_end
};

// Files are opened when training starts, not here: by then the trainer holds the run's lock and has
// refused what it would refuse, so a run that never begins leaves the folder of another one alone.
// Then run.dir (whose name is in k) gets recipe.yaml, log.jsonl (an older one is moved aside with
// resume=false) and, when asked for, TensorBoard files; the result.json of an earlier process is
// removed once there are steps to train that it would not know of.
void watch_init(struct watch *w, const struct knobs *k, struct log *log);
struct train_observer watch_observer(struct watch *w);
int watch_close(struct watch *w, struct err *e); // also after watch_init alone
// The live line while data is tokenized (a terminal's only).
void watch_show_progress(struct log *log, const struct shard_progress *p);

#endif
