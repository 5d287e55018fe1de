// snapshot.h - a session's persistent tensors as two safetensors files.
//
// Place: checkpoint.c decides where and when; this file knows which tensors belong in which file and
// streams them between the arena and the disk through one fixed buffer (or none, where the host may
// touch the arena).
//
// Invariants: the model file holds exactly the model's parameters under their Hugging Face names;
// the optimizer file every other weight or optimizer tensor that outlives a step. Reading demands
// the same set of names, types and dimensions, and moves bits unchanged.
#ifndef HAGGLE_TRAIN_SNAPSHOT_H
#define HAGGLE_TRAIN_SNAPSHOT_H

#include "train/manifest.h"
#include "train/pause.h"
#include "train/session.h"

// What writing or reading them takes of memory: tensors pass through a buffer.
enum { SNAPSHOT_BUFFER_BYTES = 1 << 20 };
// Of a tensor that the host can touch this much is written at once: milliseconds, for whoever waits.
enum { SNAPSHOT_PIECE_BYTES = 1 << 22 };

// Upper bound of the two files together. After session_plan.
uint64_t snapshot_bytes(const struct session *s);
// Writes dir/model.safetensors and dir/optimizer.safetensors durably; files[MANIFEST_MODEL] and
// files[MANIFEST_OPTIMIZER] receive size and hash. between (may be NULL) is let in after every tensor, after every
// piece of a large one, and while a file is made durable.
int snapshot_write(struct session *s, const char *dir, const struct pause *between,
                   struct manifest_file files[MANIFEST_FILES], struct err *e);
// ERR_MISMATCH, naming the tensor, when the files hold other tensors than the session.
int snapshot_read(struct session *s, const char *dir, struct err *e);

#endif
