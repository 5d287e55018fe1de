// pair.h - two values of each knob that show what it does, and the neighbours of a value.
//
// Place in the flow: `haggle knobs --check` measures a value against its neighbour, and
// tests/api/test_effects.c asks of every knob whether its two values differ where knob.def says that
// they show. Most knobs need no line here: a neighbour follows from the type. A line says beside
// which other settings a knob has an effect, or names values where the neighbour would show little.
//
// Settings are text: "recompute.mode=full data.path={dir}/chat.jsonl", where {dir} is a folder of
// sample files that the caller has made (api/effects.h).
#ifndef HAGGLE_KNOB_PAIR_H
#define HAGGLE_KNOB_PAIR_H

#include "knob/knob.h"

struct knob_pair {
    const char *with;       // settings beside which the knob has an effect; "": any
    const char *a, *b;      // NULL: the value in force, and its neighbour
    const char *unmeasured; // why trials of steps cannot tell its values apart; NULL: they can
};

const struct knob_pair *knob_pair_of(int id); // never NULL
// The two values, as text: from the table, else the value in k and its neighbour. ERR_UNSUPPORTED
// when there is no neighbour: a text needs a line in the table.
int knob_pair_values(const struct knobs *k, int id, const char *dir, char a[KNOB_VALUE_BYTES],
                     char b[KNOB_VALUE_BYTES], struct err *e);
// Another value near the one in k: the other of a bool, the next choice, of a number the double, or
// the half where the double is not accepted.
int knob_neighbour(const struct knobs *k, int id, char out[KNOB_VALUE_BYTES], struct err *e);

// Sets each of "knob=value knob=value ..." with {dir} replaced. unless_set: those that somebody has
// set already stay.
int knobs_set_list(struct knobs *k, const char *settings, const char *dir, bool unless_set,
                   enum set_by by, struct err *e);

#endif
