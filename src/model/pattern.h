// pattern.h - regular expressions as tokenizer files write them (Oniguruma's Ruby syntax), matched
// in linear time.
//
// Place: a step of a tokenizer's split has one. pattern_parse.c reads the text into a tree.
// pattern.c turns the tree into a deterministic automaton over classes of characters.
// pattern_match.c runs the automaton. It finds the same match as a backtracking matcher (the first
// alternative, greedy unless marked lazy), but never goes back. A pattern from a file can therefore
// not stall on any text.
//
// Supported: alternatives, groups, greedy and lazy quantifiers, possessive quantifiers of one
// character, classes with ranges, nesting, && and properties, (?i) (?m), anchors, word boundaries
// and lookaround. Anything else (backreferences, atomic groups, recursion) is ERR_UNSUPPORTED and
// names the place in the pattern.
#ifndef HAGGLE_MODEL_PATTERN_H
#define HAGGLE_MODEL_PATTERN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pattern;

// With `literal` the text is not an expression and matches itself.
int pattern_open(struct pattern **out, const char *text, size_t bytes, bool literal, struct err *e);
void pattern_close(struct pattern *p); // NULL is fine

// Finds the matches in a text one after another. Each invalid byte counts as U+FFFD.
struct pattern_scan {
    const struct pattern *p;
    const uint8_t *text;
    size_t n;
    bool mapped; // each byte is a character of the byte-level alphabet
    size_t at, last_end;
    bool any;        // there was a match, which ended at last_end
    uint8_t *around; // which lookarounds hold at each place; owned
    uint64_t *dead;  // (state, place) pairs from which no match can be found; owned
    bool failed;     // there was no memory for around or dead
    uint64_t steps;  // characters read, counting each reading; linear in the length of the text
};
void pattern_scan_begin(struct pattern_scan *s, const struct pattern *p, const uint8_t *text,
                        size_t n, bool mapped);
bool pattern_scan_next(struct pattern_scan *s, size_t *begin, size_t *end);
int pattern_scan_end(struct pattern_scan *s, struct err *e); // ERR_MEMORY when the scan failed

#endif
