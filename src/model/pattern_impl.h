// pattern_impl.h - what the files of pattern.h share: sets of characters, the tree, the automaton.
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
    uint32_t lo, hi; // both inside
};
// Sorted, disjoint, not touching: equal sets have equal ranges.
struct set {
    struct range *ranges;
    size_t n;
};
struct category_run {
    uint32_t lo, hi;
    uint8_t category;
};
// What building sets needs: memory, and what of Unicode has been looked up so far.
struct set_maker {
    struct region *region;
    struct category_run *runs;
    size_t n_runs;
    struct range *folds; // lo folds to hi
    size_t n_folds;
    bool failed; // out of memory; sets are empty from then on
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
// \p{name}; false when the name is not known.
bool set_of_property(struct set_maker *m, const char *name, size_t bytes, struct set *out);

// ---------------------------------------------------------------- tree (pattern_parse.c)

enum node_kind {
    NODE_EMPTY,
    NODE_SET,
    NODE_CAT,
    NODE_ALT,
    NODE_REPEAT,
    NODE_LOOK,   // at one character
    NODE_BORDER, // \b
    NODE_AROUND, // at more than one
};

struct node {
    enum node_kind kind;
    int a, b;     // children (CAT, ALT; REPEAT has a)
    int set;      // SET, LOOK: number of the set; BORDER: of the word characters
    int min, max; // REPEAT; max -1: any number
    bool lazy;
    bool behind; // LOOK: at the character before
    bool edge;   // LOOK: holds where there is no character
    bool negate; // BORDER, AROUND
    int around;  // AROUND: its number
};

struct tree {
    struct region region;
    struct set_maker maker;
    struct node *nodes;
    int n_nodes;
    struct set sets[PATTERN_SETS_MOST];
    int n_sets;
    int root;
    // Lookaround of more than one character, each with its own tree.
    int around[PATTERN_AROUND_MOST];
    bool around_behind[PATTERN_AROUND_MOST];
    int n_around;
};
int pattern_parse(struct tree *t, const char *text, size_t bytes, bool literal, struct err *e);

// ---------------------------------------------------------------- automaton (pattern.c)

// A symbol is class << n_around | what each lookaround says of the place; the class n_classes is the
// end of the text. Row of state s: table[s * stride + symbol]. An entry is next state << 1 | a match
// ends in front of this character. State 0: nothing more to find.
struct automaton {
    uint16_t *table;
    uint32_t stride, n_states;
    uint16_t *start;   // state to begin with, by the class before (n_classes: none)
    bool looks_behind; // else start[] is the same everywhere
};

struct pattern {
    struct automaton main;
    // Tells for every place whether the lookaround holds there: run over the text once, backwards for
    // those that look ahead.
    struct automaton around[PATTERN_AROUND_MOST];
    bool around_behind[PATTERN_AROUND_MOST];
    unsigned n_around;
    unsigned n_classes;
    bool may_run_ahead; // can read on without bound before it knows that nothing follows
    uint8_t (*pages)[256];
    uint16_t page_of[UNICODE_COUNT / 256];
    uint8_t of_byte[256]; // class of ASCII; of a bad byte above
    uint8_t mapped[256];  // class of the character that stands for a byte
};

#endif
