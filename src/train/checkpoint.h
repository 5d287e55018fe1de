// checkpoint.h - a run on disk: saved so that no crash loses the one before, loaded only when every
// byte verifies.
//
// Place: trainer.c saves and resumes; generate, serve and verify may open a checkpoint's folder as
// a model, because that is what it is.
//
//   run.dir/checkpoints/step-000000120/
//       model.safetensors      weights under their Hugging Face names
//       config.json            so that the folder opens as a model anywhere
//       optimizer.safetensors  adam.m.*, adam.v.*
//       manifest.json          counters, knobs, sizes and hashes of the others (manifest.h)
//       interactive/           the same four of a second model (second.h), where the run has one
//
// Invariants:
//   1. A folder named step-N is complete. It is written as step-N.tmp: each file fsynced, the
//      manifest last, the folder fsynced, renamed, the parent fsynced; only then are older ones
//      removed (and first renamed to .tmp, so that half a removal is not half a checkpoint).
//   2. A failed write or fsync voids the attempt: it is removed, never retried on the same file, and
//      what was there before is untouched.
//   3. Nothing on disk is believed before size and hash of all its files are checked.
//   4. One process saves in a run's folder: it is locked while open.
//   5. Tensors stream from the arena: no second copy of the model in memory.
//   6. What did not verify when a run began is not deleted, counted or looked at again: once an intact
//      one has been loaded, a run that saves renames the newer ones that failed to step-N.damaged.
//   7. What was just published is never removed to make room.
//   8. A second model is saved, verified, loaded, set aside and removed with the folder it is in: the two
//      are of one moment, or damaged.
#ifndef HAGGLE_TRAIN_CHECKPOINT_H
#define HAGGLE_TRAIN_CHECKPOINT_H

#include "base/log.h"
#include "train/manifest.h"
#include "train/session.h"
#include "train/snapshot.h"

#include <limits.h>
#include <stdbool.h>

// Told what a person should know: a damaged checkpoint passed over, knobs that differ.
struct checkpoint_listener {
    void *arg;
    void (*say)(void *arg, enum log_level level, const char *text); // NULL: nobody listens
};

struct checkpoint_options {
    const char *run_dir;
    int64_t keep; // newest checkpoints kept
    bool save;    // false: only looked at; nothing is created, locked or cleaned up
    bool resume;  // false with save: checkpoints of an earlier run are moved to checkpoints.1 (or
                  // the next free number), so that they neither mix with the new ones nor are lost
    struct checkpoint_listener listener;
};

struct checkpoint_dir; // run.dir/checkpoints

// With save: creates and locks the folder (ERR_USAGE when another process has it) and removes what a
// crash left unfinished.
int checkpoint_dir_open(struct checkpoint_dir **out, const struct checkpoint_options *o,
                        struct err *e);
void checkpoint_dir_close(struct checkpoint_dir *d); // NULL is accepted

// Bytes one checkpoint takes: never less than it will. After session_plan.
uint64_t checkpoint_estimate_bytes(const struct session *s);
// ERR_IO with figures when the disk cannot hold what `saves` saves will leave there at any moment:
// keep + 1 checkpoints (or `saves` when that is fewer), less those that are already there.
int checkpoint_check_space(const struct checkpoint_dir *d, const struct session *s, int64_t saves,
                           struct err *e);

struct checkpoint_saved {
    char path[PATH_MAX];
    uint64_t bytes;
};
// Writes the session's tensors and `state` as step state->step, with its second model's. On failure e names the file, and
// earlier checkpoints are as they were. Older ones that cannot be removed are only reported. between (may
// be NULL) leaves weights, optimizers and states of both models as they are.
int checkpoint_save(struct checkpoint_dir *d, struct session *s, const struct train_state *state,
                    const struct pause *between, struct checkpoint_saved *out, struct err *e);

// Loads the newest checkpoint that verifies into the session and *state; path is "" when there is
// none at all. A damaged one (a file is missing, or its size or content is not what was saved) is
// named to the listener and the one before is taken; with save the damaged one is then set aside.
// When there are only damaged ones that is ERR_FORMAT, not a silent start from zero, and they stay
// where they are. A file that cannot be read for another reason (permissions, too many open files, a
// failing disk) is ERR_IO: it may be intact, and passing over it would throw work away. Another
// model shape is ERR_MISMATCH. Another dataset and other mathematics are warnings that name what
// differs. A second model on one side only is a warning: it begins anew, or ends there.
int checkpoint_load_newest(struct checkpoint_dir *d, struct session *s, const char *dataset,
                           struct train_state *state, char path[PATH_MAX], struct err *e);

// Checks one folder: manifest, then size and hash of every file. *out may be NULL; else
// manifest_free it either way.
int checkpoint_verify(const char *path, struct manifest *out, struct err *e);
// The newest checkpoint of a run that verifies, for those who open it as a model; path is "" when
// there is none.
int checkpoint_find_newest(const char *run_dir, const struct checkpoint_listener *listener,
                           char path[PATH_MAX], struct err *e);

#endif
