// pattern_impl.h - shared by the files behind pattern.h: sets of characters, the tree, the
// automaton.
#ifndef HAGGLE_MODEL_PATTERN_IMPL_H
#define HAGGLE_MODEL_PATTERN_IMPL_H

#include "base/region.h"
#include "model/pattern.h"
#include "model/unicode.h"

enum {
    PATTERN_BYTES_MOST = 16384,
    PATTERN_DEPTH_MOST = 32,
    PATTERN_NODES_MOST = 4096,
    PATTERN_REPEAT_MOST = 1000,
    PATTERN_CODE_MOST = 8192,   // instructions
    PATTERN_STATES_MOST = 2048, // of the automaton
    PATTERN_SETS_MOST = 64,
    PATTERN_CLASSES_MOST = 250,
    PATTERN_AROUND_MOST = 4,
};

// ---------------------------------------------------------------- sets (pattern_set.c)

struct range {
    uint32_t lo, hi; // both inclusive
};
// The ranges are sorted, disjoint and do not touch, so equal sets have equal ranges.
struct set {
    struct range *ranges;
    size_t n;
};
struct category_run {
    uint32_t lo, hi;
    uint8_t category;
};
// What building sets needs: memory, and the Unicode data looked up so far.
struct set_maker {
    struct region *region;
    struct category_run *runs;
    size_t n_runs;
    struct range *folds; // lo folds to hi
    size_t n_folds;
    bool failed; // out of memory; all further sets are empty
};

struct set set_of_range(struct set_maker *m, uint32_t lo, uint32_t hi);
struct set set_union(struct set_maker *m, struct set a, struct set b);
struct set set_not(struct set_maker *m, struct set a);
struct set set_both(struct set_maker *m, struct set a, struct set b);
struct set set_any_case(struct set_maker *m, struct set a);
bool set_has(const struct set *s, uint32_t c);
enum set_test { SET_SPACE, SET_WORD, SET_ALPHANUMERIC };
struct set set_of_test(struct set_maker *m, enum set_test test);
struct set set_of_digits(struct set_maker *m); // Nd
// The set of \p{name}. False when the name is unknown.
bool set_of_property(struct set_maker *m, const char *name, size_t bytes, struct set *out);

// ---------------------------------------------------------------- tree (pattern_parse.c)

enum node_kind {
    NODE_EMPTY,
    NODE_SET,
    NODE_CAT,
    NODE_ALT,
    NODE_REPEAT,
    NODE_LOOK,   // lookaround of one character
    NODE_BORDER, // \b
    NODE_AROUND, // lookaround of more than one character
};

struct node {
    enum node_kind kind;
    int a, b;     // CAT, ALT: children; REPEAT: a is the child
    int set;      // SET, LOOK: index of the set; BORDER: index of the set of word characters
    int min, max; // REPEAT; max -1: no limit
    bool lazy;
    bool behind; // LOOK: looks at the character before
    bool edge;   // LOOK: holds where there is no character
    bool negate; // BORDER, AROUND
    int around;  // AROUND: index of the lookaround
};

struct tree {
    struct region region;
    struct set_maker maker;
    struct node *nodes;
    int n_nodes;
    struct set sets[PATTERN_SETS_MOST];
    int n_sets;
    int root;
    // The roots of lookarounds of more than one character.
    int around[PATTERN_AROUND_MOST];
    bool around_behind[PATTERN_AROUND_MOST];
    int n_around;
};
int pattern_parse(struct tree *t, const char *text, size_t bytes, bool literal, struct err *e);

// ---------------------------------------------------------------- automaton (pattern.c)

// A symbol is class << n_around | one bit for each lookaround that holds at the place. The class
// n_classes is the end of the text. The row of state s is table[s * stride + symbol]. An entry is
// next state << 1 | 1 if a match ends in front of this character. State 0 means that nothing more
// can be found.
struct automaton {
    uint16_t *table;
    uint32_t stride, n_states;
    uint16_t *start;   // the first state, by the class of the character before (n_classes: none)
    bool looks_behind; // if not, all entries of start are the same
};

struct pattern {
    struct automaton main;
    // Each runs over the text once and tells for every place whether the lookaround holds there.
    // Those that look ahead run backwards.
    struct automaton around[PATTERN_AROUND_MOST];
    bool around_behind[PATTERN_AROUND_MOST];
    unsigned n_around;
    unsigned n_classes;
    bool may_run_ahead; // may read any number of characters before it knows that no match follows
    uint8_t (*pages)[256];
    uint16_t page_of[UNICODE_COUNT / 256];
    uint8_t of_byte[256]; // below 0x80: class of the ASCII character; above: class of a bad byte
    uint8_t mapped[256];  // class of the character that stands for a byte
};

#endif
