// pattern.h - regular expressions as tokenizer files write them (Oniguruma's Ruby syntax), matched in
// linear time.
//
// Place: a step of a tokenizer's split holds one. pattern_parse.c reads the text into a tree,
// pattern.c makes a deterministic automaton of it over classes of characters, pattern_match.c runs
// it. Matching prefers what a backtracking matcher prefers (the first alternative, greedy unless
// said otherwise), but never goes back: a pattern from a file cannot stall on any text.
//
// Supported: alternatives, groups, greedy and lazy quantifiers, possessive ones of one character,
// classes with ranges, nesting, && and properties, (?i) (?m), anchors, word boundaries and lookaround.
// Anything else (backreferences, atomic groups, recursion) is ERR_UNSUPPORTED with the place in the
// pattern.
#ifndef HAGGLE_MODEL_PATTERN_H
#define HAGGLE_MODEL_PATTERN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pattern;

// `literal`: the text stands for itself.
int pattern_open(struct pattern **out, const char *text, size_t bytes, bool literal, struct err *e);
void pattern_close(struct pattern *p); // NULL is fine

// Finds the matches of a text one after another. Invalid bytes count as U+FFFD each.
struct pattern_scan {
    const struct pattern *p;
    const uint8_t *text;
    size_t n;
    bool mapped; // each byte is a character of the byte-level alphabet
    size_t at, last_end;
    bool any;        // last_end is of a match
    uint8_t *around; // what lookarounds say of each place; owned
    uint64_t *dead;  // (state, place) pairs from where nothing is to be found; owned
    bool failed;     // memory for that could not be had
    uint64_t steps;  // characters read, over and over: what linear time is about
};
void pattern_scan_begin(struct pattern_scan *s, const struct pattern *p, const uint8_t *text,
                        size_t n, bool mapped);
bool pattern_scan_next(struct pattern_scan *s, size_t *begin, size_t *end);
int pattern_scan_end(struct pattern_scan *s, struct err *e); // ERR_MEMORY when it had to give up

#endif
