// kept.h - what a process keeps from one session to the next, so that a trial costs its steps and not a
// start-up: threads and backend (with a device's context), the arena's pages, the model's state in
// them, the data.
//
// Place: a long-lived process (tune/worker.h) opens one and names it in session_options; session.c and
// trainer.c then borrow from it what fits and leave what they open to it. One session at a time.
// Without one, a session takes and gives back everything, as `haggle train` wants it.
//
// What is kept only while it is the same:
//   threads, cpu.*, device   threads and backend
//   data.*, tokenizer, ...   the dataset
//   the model, and places and types of its weights and moments   their values
// Weights stay as former trials have trained them. They are not the initial ones, so losses say nothing
// about a configuration (session.kept_weights); times do not depend on them. What a failed session
// leaves is never used again.
//
// Memory: the arena is a range (base/range.h) from its beginning. Pages beyond the present plan are
// former plans'; they stay while there is room, and are left out of every figure
// (session_process_peak_bytes), which are those of a process that has run nothing else.
#ifndef HAGGLE_TRAIN_KEPT_H
#define HAGGLE_TRAIN_KEPT_H

#include "base/range.h"
#include "train/session.h"

struct dataset;
struct shard_listener;

struct kept;

int kept_open(struct kept **out, struct err *e);
void kept_close(struct kept *k); // NULL is accepted

// For session.c. The session is planned; its mem, pool and backend are set where they can be lent.
// What cannot is closed.
void kept_lend(struct kept *k, struct session *s);
// What the session has opened is the keeper's from now on.
void kept_adopt(struct kept *k, struct session *s);
// Where the session's arena is to be, with an open backend; NULL: the session takes its own. Sets
// s->kept_weights when the state of the model is there already, and clears what is not.
int kept_arena(struct kept *k, struct session *s, void **out, struct err *e);
// The session's turns are all complete: what they left in the arena may be used again.
void kept_state_sound(struct kept *k);
// The session ends: what it has borrowed is no longer its own.
void kept_return(struct kept *k, struct session *s);

// Bytes of this process that a process without a past would not have: all, and beyond `arena_bytes`.
uint64_t kept_resident_bytes(const struct kept *k);
uint64_t kept_tail_bytes(const struct kept *k, uint64_t arena_bytes);
// Of a device: its arena, which is not free.
uint64_t kept_device_bytes(const struct kept *k);

// For trainer.c: the dataset of the session's knobs, the keeper's.
int kept_dataset(struct kept *k, const struct session *s, const struct shard_listener *l,
                 struct dataset **out, struct err *e);

#endif
