// pair.h - for each knob, two values that show what it does.
//
// Place in the flow: `haggle knobs --check` measures a value against a neighbouring value.
// tests/api/test_effects.c checks for every knob that its two values differ in the places that
// knob.def names. Most knobs need no line in the table of pair.c, because a neighbour follows from
// the type. A line gives the other settings that a knob needs to have an effect, or names values
// where the neighbour would show little.
//
// Settings are text, such as "recompute.mode=full data.path={dir}/chat.jsonl". {dir} is a folder of
// sample files that the caller has made (bench/effects.h).
#ifndef HAGGLE_KNOB_PAIR_H
#define HAGGLE_KNOB_PAIR_H

#include "knob/knob.h"

struct knob_pair {
    const char *with;       // settings that the knob needs to have an effect; NULL: none
    const char *a, *b;      // NULL: the current value, and its neighbour
    const char *unmeasured; // why trials cannot tell the two values apart; NULL: they can
};

const struct knob_pair *knob_pair_of(int id); // never NULL
// The two values as text: from the table, else the value in k and its neighbour. ERR_UNSUPPORTED
// when there is no neighbour, which means that the knob needs a line in the table.
int knob_pair_values(const struct knobs *k, int id, const char *dir, char a[KNOB_VALUE_BYTES],
                     char b[KNOB_VALUE_BYTES], struct err *e);
// Another value near the one in k: the opposite of a bool, the next choice, or twice a number. Half
// the number where twice is not accepted.
int knob_neighbour(const struct knobs *k, int id, char out[KNOB_VALUE_BYTES], struct err *e);

// Sets each of "knob=value knob=value ..." with {dir} replaced. With unless_set, knobs that were
// already set keep their values.
int knobs_set_list(struct knobs *k, const char *settings, const char *dir, bool unless_set,
                   enum set_by by, struct err *e);

#endif
