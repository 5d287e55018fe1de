// effects.h - where the effect of a knob shows: one place (knob.def's IN_*) observed with one value.
//
// Place in the flow: `haggle knobs --check` and tests/api/test_effects.c observe a place twice, with
// two values of a knob (knob/pair.h), and compare. What is seen is text that depends on the settings
// alone, never on time or chance, so that two equal texts mean no effect and two different ones an
// effect.
//
// Invariants: an observation runs a model for a few steps at most; it writes under its folder only.
#ifndef HAGGLE_API_EFFECTS_H
#define HAGGLE_API_EFFECTS_H

#include "api/api.h"
#include "knob/pair.h"

// A new folder with sample data, which settings name as {dir}: text.txt, other.txt, chat.jsonl,
// mixed.jsonl, named.jsonl, tokenizer.json.
int effects_make_files(char dir[PATH_MAX], struct err *e);
void effects_remove_files(const char *dir);

// base, made small where nobody has set otherwise, with what knob `id` needs beside it.
int effects_settings(struct knobs *out, const struct knobs *base, int id, const char *dir,
                     struct err *e);
// What is seen at one place; *out is the caller's to free. ERR_UNSUPPORTED when this machine cannot
// run these settings; other failures of the run itself are part of what is seen.
int effects_observe(char **out, unsigned place, const struct knobs *k, const char *dir,
                    struct err *e);

#endif
