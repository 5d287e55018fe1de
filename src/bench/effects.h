// effects.h - observes one place (IN_* in knob.def) where a knob should have an effect, with one
// value of the knob.
//
// Place in the flow: `haggle knobs --check` and tests/api/test_effects.c observe a place twice,
// with two values of a knob (knob/pair.h), and compare. An observation is a text that depends only
// on the settings, not on time or chance: two equal texts mean that there is no effect.
//
// Invariants: an observation runs a model for a few steps at most, and writes only in its folder.
#ifndef HAGGLE_BENCH_EFFECTS_H
#define HAGGLE_BENCH_EFFECTS_H

#include "knob/pair.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

// One run as `haggle train` makes it, with its output for people in `out` and `log`. Returns the
// code of the verb. The verb is in src/api, which this folder must not include, so the caller
// passes it.
typedef int effects_train_fn(const struct knobs *k, FILE *out, FILE *log, struct err *e);

// Makes a new folder with sample data, which settings name as {dir}: text.txt, other.txt,
// chat.jsonl, mixed.jsonl, bad.jsonl, named.jsonl, tokenizer.json, second.yaml, the model in
// extra/, and an adapter of tiny in adapter/. The folder is locked. One that a killed process left
// is removed.
struct effects_dir {
    char path[PATH_MAX];
    int lock;
};
int effects_make_files(struct effects_dir *dir, struct err *e);
void effects_remove_files(struct effects_dir *dir); // also a zeroed one

// Whether a knob has an effect only where there is a GPU.
bool effects_need_device(int id);
// base with the settings that knob `id` needs, and small values for knobs that were not set.
int effects_settings(struct knobs *out, const struct knobs *base, int id, const char *dir,
                     struct err *e);
// Observes one place. The caller frees *out. ERR_UNSUPPORTED when this machine cannot run these
// settings. Other failures of the run are part of the observation.
int effects_observe(char **out, unsigned place, const struct knobs *k, const char *dir,
                    effects_train_fn *train, struct err *e);

#endif
