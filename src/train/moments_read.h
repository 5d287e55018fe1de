// moments_read.h - reads Adam's moments into a layout that keeps them in another type.
//
// With optim.state=int8, moments have 8 bits where blocks of 256 elements stay whole on a rank, and
// 32 bits where ranks divide them (program/state.c). So a checkpoint may hold a weight's moments in
// 8 bits where this run has float32, or the other way round. Nothing is lost in the first case. In
// the second one they are rounded, to the nearest code.
#ifndef HAGGLE_TRAIN_MOMENTS_READ_H
#define HAGGLE_TRAIN_MOMENTS_READ_H

#include "engine/engine.h"
#include "model/safetensors.h"

// Whether the moment "adam.m.W" of this run, of type `here`, is read from another type.
bool moments_differ(const char *name, enum dtype here, const struct safetensors_entry *there);
// Reads both moments of weight W, and their scales. Does nothing on a rank without them.
int moments_read(struct session *s, struct safetensors *st, const char *path, const char *weight,
                 struct err *e);

#endif
