// snapshot.h - a session's persistent tensors as two safetensors files.
//
// Place: checkpoint.c decides where and when. This file knows which tensors belong in which file.
// It streams them between the arena and the disk through one fixed buffer, or without a buffer if
// the host can access the arena.
//
// Invariants: the model file holds exactly the model's parameters under their Hugging Face names.
// The optimizer file holds every other weight or optimizer tensor that outlives a step. Reading
// demands the same set of names, types and dimensions, and copies bits unchanged. Both files hold
// whole logical tensors: all ranks write them together, and every rank reads its parts.
#ifndef HAGGLE_TRAIN_SNAPSHOT_H
#define HAGGLE_TRAIN_SNAPSHOT_H

#include "train/manifest.h"
#include "train/pause.h"
#include "engine/engine.h"

// The buffer through which tensors of a device pass. It is large enough that the transfer takes
// longer than the call.
enum { SNAPSHOT_BUFFER_BYTES = 1 << 20 };
// A tensor that the host can access is written in pieces of this size. One takes milliseconds, so a
// request waits no longer than that.
enum { SNAPSHOT_PIECE_BYTES = 1 << 22 };

// Upper bound of the two files together.
uint64_t snapshot_bytes(const struct plan *plan);
// Writes dir/model.safetensors and dir/optimizer.safetensors durably. files[MANIFEST_MODEL] and
// files[MANIFEST_OPTIMIZER] receive size and hash. `between` (may be NULL) is called after every
// tensor, after every piece of a large one, and while a file is made durable.
int snapshot_write(struct session *s, const char *dir, const struct pause *between,
                   struct manifest_file files[MANIFEST_FILES], struct err *e);
// ERR_MISMATCH, naming the tensor, when the files hold other tensors than the session.
int snapshot_read(struct session *s, const char *dir, struct err *e);

#endif
