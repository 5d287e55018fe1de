// checkpoint.h - the state of a run on disk. A crash while saving never loses the checkpoint
// before, and a checkpoint is loaded only when every byte verifies.
//
// Place: trainer.c saves and resumes. A checkpoint's folder is also a model's folder: generate,
// serve and verify can open it as a model. One of an adapter holds the adapter alone, in
// adapter_model.safetensors instead of model.safetensors, and names its base (adapted.h).
//
//   run.dir/checkpoints/step-000000120/
//       model.safetensors      weights under their Hugging Face names
//       config.json            so that the folder opens as a model anywhere
//       optimizer.safetensors  adam.m.*, adam.v.*
//       manifest.json          counters, knobs, sizes and hashes of the others (manifest.h)
//       interactive/           the same four files for a second model (plan/second.h), if any
//
// Invariants:
//   1. A folder named step-N is complete. It is written as step-N.tmp: each file is fsynced, the
//      manifest last, then the folder is fsynced and renamed and its parent fsynced. Only then are
//      older ones removed. They are first renamed to .tmp, so that an interrupted removal does not
//      leave half a checkpoint.
//   2. A failed write or fsync ends the attempt: its files are removed and never retried. What was
//      there before is untouched.
//   3. A checkpoint is not trusted before the size and hash of all its files are checked.
//   4. Only one process saves in a run's folder: it is locked while open. If the folder is removed
//      or moved during the run, the next save makes it again and says so.
//   5. Tensors stream from the arena: there is no second copy of the model in memory.
//   6. A checkpoint that did not verify when a run began is not deleted, counted or looked at
//      again: once an intact one has been loaded, a run that saves renames the newer ones that
//      failed to step-N.damaged.
//   7. A checkpoint that was just published is never removed to make room. Nor is the best one
//      (state->best.kept), nor the newest that is known to be sound (checkpoint_sound), whatever is
//      kept beside them.
//   8. A second model is saved, verified, loaded, set aside and removed with the folder it is in.
//      Both are from the same moment, or the checkpoint counts as damaged.
#ifndef HAGGLE_TRAIN_CHECKPOINT_H
#define HAGGLE_TRAIN_CHECKPOINT_H

#include "base/log.h"
#include "train/manifest.h"
#include "engine/engine.h"
#include "train/snapshot.h"

#include <limits.h>
#include <stdbool.h>

// Receives messages for the user, e.g. that a damaged checkpoint was skipped or that knobs differ.
struct checkpoint_listener {
    void *arg;
    void (*say)(void *arg, enum log_level level, const char *text); // NULL: messages are dropped
};

struct checkpoint_options {
    const char *run_dir;
    int64_t keep; // newest checkpoints kept
    bool best;    // one more is kept: that of the best validation
    bool save;    // false: read only; nothing is created, locked or cleaned up
    bool resume;  // false with save: checkpoints of an earlier run are moved to checkpoints.1 (or
                  // the next free number), so that they neither mix with the new ones nor are lost
    struct comm *comm; // of all ranks; NULL: one rank
    struct checkpoint_listener listener;
};

struct checkpoint_dir; // run.dir/checkpoints

// With save: creates and locks the folder (ERR_USAGE when another process has locked it) and
// removes what a crash left unfinished.
int checkpoint_dir_open(struct checkpoint_dir **out, const struct checkpoint_options *o,
                        struct err *e);
void checkpoint_dir_close(struct checkpoint_dir *d); // NULL is accepted

// Bytes that one checkpoint takes on disk: an upper bound.
uint64_t checkpoint_estimate_bytes(const struct plan *p);
// ERR_IO with figures when the disk has no room for `saves` saves. They need room for at most
// keep + 1 checkpoints (keep + 2 with the best one; or `saves` when that is fewer), minus those
// that are already there.
int checkpoint_check_space(const struct checkpoint_dir *d, const struct plan *p, int64_t saves,
                           struct err *e);

struct checkpoint_saved {
    char path[PATH_MAX];
    uint64_t bytes;
};
// Writes the session's tensors and `state` as step state->step. With a second model, writes its
// tensors and state too (`second`, else NULL). On failure e names the file, and earlier checkpoints
// are unchanged. If older ones cannot be removed, that is only a warning. `between` (may be NULL)
// is called while files are written (pause.h). It must not change weights, optimizers or states of
// either model.
int checkpoint_save(struct checkpoint_dir *d, struct session *s, const struct train_state *state,
                    const struct train_state *second, const struct pause *between,
                    struct checkpoint_saved *out, struct err *e);

// The steps after this checkpoint have shown that its weights are sound. Until that is known of a
// newer one, it stays; what has stayed beyond `keep` until now is removed.
void checkpoint_sound(struct checkpoint_dir *d, int64_t step);
// The weights after `sound` have diverged: what was saved since then is renamed to
// step-N.diverged, so that the next run goes on from `sound`. Tells the listener the new names.
void checkpoint_set_diverged_aside(const struct checkpoint_dir *d, int64_t sound);

// Whether the checkpoint of a step is there with all its files in their right sizes. Their content
// is not read.
bool checkpoint_is_there(const struct checkpoint_dir *d, int64_t step);
// The path of a checkpoint that is there in this sense; "" when it is not.
void checkpoint_there(const struct checkpoint_dir *d, int64_t step, char path[PATH_MAX]);
// The path of the newest one that is there in this sense; "" when there is none.
void checkpoint_newest_there(const struct checkpoint_dir *d, char path[PATH_MAX]);

// Loads the newest checkpoint that verifies into the session, *state and, with a second model,
// *second. path is "" when there is no checkpoint at all.
//   - A damaged one (a file is missing, or its size or content is not what was saved) is named to
//     the listener and the one before is taken. With save, the damaged one is then set aside.
//   - If all are damaged, that is ERR_FORMAT, not a silent start from zero. They stay where they
//     are.
//   - A file that cannot be read for another reason (permissions, too many open files, a failing
//     disk) is ERR_IO: it may be intact, and skipping it would throw work away.
//   - Another model shape is ERR_MISMATCH.
//   - Another dataset or other knobs that change the numbers are warnings that name what differs.
//   - If only the run or only the checkpoint has a second model, that is a warning: the second
//     model starts from its initial weights, or is left out.
int checkpoint_load_newest(struct checkpoint_dir *d, struct session *s, const char *dataset,
                           struct train_state *state, struct train_state *second,
                           char path[PATH_MAX], struct err *e);

// Checks one folder: the manifest, then size and hash of every file. out may be NULL. If it is not,
// the caller frees it with manifest_free, also after a failure.
int checkpoint_verify(const char *path, struct manifest *out, struct err *e);
// Finds the newest checkpoint of a run that verifies, for callers that open it as a model. path is
// "" when there is none.
int checkpoint_find_newest(const char *run_dir, const struct checkpoint_listener *listener,
                           char path[PATH_MAX], struct err *e);
// Finds the checkpoint of the best validation (save.best), as the newest checkpoint names it, and
// verifies it. ERR_USAGE when the run has kept none.
int checkpoint_find_best(const char *run_dir, const struct checkpoint_listener *listener,
                         char path[PATH_MAX], struct err *e);

#endif
