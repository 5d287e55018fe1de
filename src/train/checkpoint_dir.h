// checkpoint_dir.h - what checkpoint.c (writing), resume.c (reading) and export*.c share. Private
// to src/train.
#ifndef HAGGLE_TRAIN_CHECKPOINT_DIR_H
#define HAGGLE_TRAIN_CHECKPOINT_DIR_H

#include "train/checkpoint.h"
#include "train/rundir.h"

#define CHECKPOINT_FOLDER "checkpoints"
#define CHECKPOINT_SECOND "interactive" // the second model's folder inside a checkpoint
enum { CHECKPOINT_DIGITS = 9, CHECKPOINT_TEXT_BYTES = 2048 };

struct checkpoint_dir {
    char path[PATH_MAX]; // run.dir/checkpoints
    int64_t keep;
    bool keeps_best;
    int64_t best, sound; // steps that are never removed; -1: none
    bool spares;         // `sound` is on disk beyond those that are kept
    bool saves;          // false: nothing in it may be changed
    struct comm *comm;   // of all ranks; NULL: one rank
    struct rundir_lock lock;
    struct checkpoint_listener listener;
};

// Rank 0 makes, renames and removes folders, and speaks. The others write and read tensors.
static inline bool checkpoint_leads(const struct checkpoint_dir *d) {
    return d->comm == NULL || d->comm->rank == 0;
}

// Steps that have a folder, in ascending order. Whether they verify is not checked.
struct checkpoint_list {
    int64_t *steps;
    size_t count, capacity;
};
int checkpoint_list_open(struct checkpoint_list *l, const char *dir, struct err *e);
void checkpoint_list_close(struct checkpoint_list *l);

// Renames a checkpoint to step-N.WHY ("damaged", "diverged"), or to the first free name of .WHY.1,
// .WHY.2 and so on. From then on it is not listed. Tells the listener the new name.
int checkpoint_set_aside(const struct checkpoint_dir *d, int64_t step, const char *why,
                         struct err *e);

// dir/step-000000120 + ending.
int checkpoint_path(const char *dir, int64_t step, const char *ending, char out[PATH_MAX],
                    struct err *e);
void checkpoint_say(const struct checkpoint_listener *l, enum log_level level, const char *format,
                    ...) ERR_PRINTF(3, 4);

// Hash of the shape's config.json. *config receives the text, which the caller frees; config may be
// NULL.
int checkpoint_model_identity(const struct model_shape *shape, char hash[HASH_TEXT_BYTES],
                              char **config, size_t *config_bytes, struct err *e);
void checkpoint_describe_model(const struct model_shape *s, char out[MANIFEST_MODEL_BYTES]);

#endif
