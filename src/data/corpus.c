// corpus.c - the grammar of the built-in corpus.
//
// A document is a heading with its level (1 to 3), then lines until the document reaches a length
// drawn at random. All choices of document i come from one SplitMix64 sequence that starts at
// rng_u64(seed, stream, i).
#include "data/corpus.h"

#include "base/rng.h"

#include <stdbool.h>
#include <string.h>

static const uint64_t CORPUS_STREAM = 0x636f72707573; // "corpus": separates these draws from others

// A document grows to at least a length drawn from [CORPUS_MIN_BYTES, GROW_MAX_BYTES]. The longest
// last line and closing question fit in the rest, up to CORPUS_MAX_BYTES.
enum { GROW_MAX_BYTES = 480, LEVELS = 3 };

struct word {
    const char *text;
    unsigned char bytes;
};
#define W(s)                                                                                       \
    { s, sizeof(s) - 1 }
#define COUNT(list) (sizeof(list) / sizeof *(list))

enum { GIRLS = 12, NAMES = 24 }; // the first GIRLS names take "she", the others "he"
static const struct word names[NAMES] = {
    W("Anna"), W("Bella"), W("Clara"), W("Dora"), W("Emma"),  W("Fiona"), W("Grace"), W("Hanna"),
    W("Iris"), W("Julia"), W("Kira"),  W("Lucy"), W("Adam"),  W("Ben"),   W("Carl"),  W("David"),
    W("Erik"), W("Felix"), W("Georg"), W("Hugo"), W("Jakob"), W("Leo"),   W("Max"),   W("Paul"),
};
static const struct word things[] = {
    W("kite"), W("ball"), W("hat"),  W("book"), W("lamp"), W("drum"),
    W("coin"), W("cup"),  W("boat"), W("bell"), W("map"),  W("ring"),
};
static const struct word kinds_of_thing[] = {
    // "a red", "an old"
    W("a red"), W("a blue"),  W("a green"), W("an old"),
    W("a new"), W("a small"), W("an odd"),  W("a big"),
};
static const struct word places[] = {
    W("river"), W("park"), W("hill"), W("school"), W("market"), W("barn"), W("lake"), W("garden"),
};
static const struct word went[] = {
    W(" walked to the "),      W(" ran to the "),         W(" sat down near the "),
    W(" sang a song at the "), W(" came back from the "), W(" looked for a bird at the "),
};
static const struct word felt[] = {
    // after "She" or "He"
    W(" was happy."),         W(" was tired."),         W(" felt at home there."),
    W(" did not stay long."), W(" saw the rain come."), W(" waited for a while."),
};
static const struct word words[] = {
    W("stone"), W("apple"), W("water"), W("green"), W("house"), W("bread"), W("night"), W("cloud"),
    W("table"), W("horse"), W("train"), W("paper"), W("light"), W("field"), W("glass"), W("plant"),
    W("wind"),  W("snow"),  W("door"),  W("fish"),  W("moon"),  W("salt"),  W("gold"),  W("wood"),
    W("sun"),   W("sea"),   W("cat"),   W("fox"),   W("owl"),   W("bee"),   W("elm"),   W("ice"),
};

const char *corpus_heading(enum corpus_kind kind) {
    static const char *const headings[] = {
#define X(name, heading) heading,
        CORPUS_LIST(X)
#undef X
    };
    return (unsigned)kind < CORPUS_KINDS ? headings[kind] : "unknown";
}

// ---------------------------------------------------------------- writing

struct page {
    char *begin, *at;
    size_t target; // the document stops growing at this length
    uint64_t random;
    unsigned level; // 1 .. LEVELS
};

// SplitMix64 (Steele, Lea, Flood, OOPSLA'14).
static uint64_t draw(struct page *p) {
    uint64_t z = p->random += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}
static unsigned below(struct page *p, unsigned n) {
    return (unsigned)(((draw(p) >> 32) * n) >> 32);
}

static bool grows(const struct page *p) {
    return (size_t)(p->at - p->begin) < p->target;
}

static void put_bytes(struct page *p, const char *s, size_t n) {
    memcpy(p->at, s, n);
    p->at += n;
}
#define put_literal(p, s) put_bytes(p, s, sizeof(s) - 1)
static void put_text(struct page *p, const char *s) {
    put_bytes(p, s, strlen(s));
}
static void put_word(struct page *p, struct word w) {
    put_bytes(p, w.text, w.bytes);
}
static void put_char(struct page *p, char c) {
    *p->at++ = c;
}

static void put_number(struct page *p, unsigned x) {
    char digits[10];
    int n = 0;
    do
        digits[n++] = (char)('0' + x % 10);
    while ((x /= 10) != 0);
    while (n > 0)
        put_char(p, digits[--n]);
}

// Draws n different numbers below `of`. n is much smaller than `of`.
static void draw_distinct(struct page *p, unsigned n, unsigned of, unsigned *out) {
    for (unsigned i = 0; i < n; i++) {
        bool taken;
        do {
            out[i] = below(p, of);
            taken = false;
            for (unsigned j = 0; j < i; j++)
                taken |= out[j] == out[i];
        } while (taken);
    }
}

// ---------------------------------------------------------------- the kinds

// Writes a story of one to three people. One person has one thing; of several people, each but the
// last has one. Things change hands, and the closing question asks which person has one of them. A
// pronoun always refers to the subject of the previous sentence.
static void put_story(struct page *p) {
    unsigned who[LEVELS], what[LEVELS], owner[LEVELS];
    const unsigned people = p->level, n_things = people > 1 ? people - 1 : 1;
    draw_distinct(p, people, NAMES, who);
    draw_distinct(p, n_things, COUNT(things), what);
    for (unsigned i = 0; i < n_things; i++) {
        owner[i] = i;
        put_word(p, names[who[i]]);
        put_literal(p, " has ");
        put_word(p, kinds_of_thing[below(p, COUNT(kinds_of_thing))]);
        put_char(p, ' ');
        put_word(p, things[what[i]]);
        put_literal(p, ". ");
    }
    do {
        unsigned thing = below(p, n_things), subject = owner[thing];
        if (people > 1 && below(p, 3) == 0) {
            unsigned to = (subject + 1 + below(p, people - 1)) % people;
            put_word(p, names[who[subject]]);
            put_literal(p, " gave the ");
            put_word(p, things[what[thing]]);
            put_literal(p, " to ");
            put_word(p, names[who[to]]);
            owner[thing] = to;
        } else {
            subject = below(p, people);
            put_word(p, names[who[subject]]);
            put_word(p, went[below(p, COUNT(went))]);
            put_word(p, places[below(p, COUNT(places))]);
            if (below(p, 4) == 0)
                put_text(p, who[subject] < GIRLS ? " with her dog" : " with his dog");
        }
        put_literal(p, ". ");
        if (below(p, 2) == 0) {
            put_text(p, who[subject] < GIRLS ? "She" : "He");
            put_word(p, felt[below(p, COUNT(felt))]);
            put_char(p, ' ');
        }
    } while (grows(p));
    unsigned asked = below(p, n_things);
    put_literal(p, "Who has the ");
    put_word(p, things[what[asked]]);
    put_literal(p, "? ");
    put_word(p, names[who[owner[asked]]]);
    put_literal(p, ".\n");
}

// Arithmetic sequences: by one, by a small step, by a larger step up or down.
static void put_count(struct page *p) {
    static const unsigned steps[LEVELS] = {1, 5, 12}, starts[LEVELS] = {20, 50, 500};
    do {
        const unsigned terms = 6 + below(p, 6);
        const unsigned step = 1 + below(p, steps[p->level - 1]);
        unsigned x = below(p, starts[p->level - 1]);
        const bool down = p->level == LEVELS && below(p, 2) == 0;
        if (down)
            x += step * terms;
        for (unsigned i = 0; i < terms; i++) {
            put_number(p, x);
            if (i + 1 < terms)
                put_literal(p, ", ");
            x = down ? x - step : x + step;
        }
        put_char(p, '\n');
    } while (grows(p));
}

static void put_sums(struct page *p) {
    static const unsigned limits[LEVELS] = {10, 100, 1000};
    do {
        unsigned a = below(p, limits[p->level - 1]), b = below(p, limits[p->level - 1]);
        bool minus = p->level > 1 && below(p, 3) == 0;
        if (minus && a < b) {
            unsigned larger = b;
            b = a;
            a = larger;
        }
        put_number(p, a);
        put_text(p, minus ? " - " : " + ");
        put_number(p, b);
        put_literal(p, " = ");
        put_number(p, minus ? a - b : a + b);
        put_char(p, '\n');
    } while (grows(p));
}

// Writes a word from the list. At the last level it writes random syllables instead, which a model
// cannot memorize.
static void put_some_word(struct page *p) {
    static const char consonants[] = "bdfgklmnprst", vowels[] = "aeiou";
    if (p->level < LEVELS) {
        put_word(p, words[below(p, COUNT(words))]);
        return;
    }
    unsigned syllables = 2 + below(p, 2);
    for (unsigned i = 0; i < syllables; i++) {
        put_char(p, consonants[below(p, sizeof consonants - 1)]);
        put_char(p, vowels[below(p, sizeof vowels - 1)]);
    }
}

static void put_copies(struct page *p) {
    do {
        const char *begin = p->at;
        unsigned n = p->level == 1 ? 1 : 2 + below(p, 3);
        for (unsigned i = 0; i < n; i++) {
            if (i > 0)
                put_char(p, ' ');
            put_some_word(p);
        }
        size_t bytes = (size_t)(p->at - begin);
        put_literal(p, " = ");
        put_bytes(p, begin, bytes);
        put_char(p, '\n');
    } while (grows(p));
}

static void put_reversals(struct page *p) {
    do {
        const char *begin = p->at;
        put_some_word(p);
        const char *end = p->at;
        put_literal(p, " / ");
        while (end > begin)
            put_char(p, *--end);
        put_char(p, '\n');
    } while (grows(p));
}

// Two, four or six people have a number each. Then questions ask for the numbers, in any order,
// some of them again.
static void put_recall(struct page *p) {
    enum { MOST = 2 * LEVELS };
    unsigned who[MOST], number[MOST];
    const unsigned n = 2 * p->level, what = below(p, COUNT(things));
    draw_distinct(p, n, NAMES, who);
    for (unsigned i = 0; i < n; i++) {
        number[i] = 2 + below(p, 98);
        put_word(p, names[who[i]]);
        put_literal(p, " has ");
        put_number(p, number[i]);
        put_char(p, ' ');
        put_word(p, things[what]);
        put_literal(p, "s.\n");
    }
    do {
        unsigned i = below(p, n);
        put_literal(p, "How many has ");
        put_word(p, names[who[i]]);
        put_literal(p, "? ");
        put_number(p, number[i]);
        put_char(p, '\n');
    } while (grows(p));
}

// The table is in sixteenths. Stories are the most frequent kind, so that a sample from the model
// reads like language early on.
static enum corpus_kind draw_kind(struct page *p) {
    static const unsigned char kind_of[16] = {
        CORPUS_STORY,    CORPUS_STORY,    CORPUS_STORY,  CORPUS_STORY,
        CORPUS_STORY,    CORPUS_STORY,    CORPUS_SUM,    CORPUS_SUM,
        CORPUS_SUM,      CORPUS_COPY,     CORPUS_COPY,   CORPUS_REVERSE,
        CORPUS_COUNT_UP, CORPUS_COUNT_UP, CORPUS_RECALL, CORPUS_RECALL,
    };
    return (enum corpus_kind)kind_of[below(p, COUNT(kind_of))];
}

static void (*const writers[CORPUS_KINDS])(struct page *) = {
    [CORPUS_STORY] = put_story, [CORPUS_COUNT_UP] = put_count,    [CORPUS_SUM] = put_sums,
    [CORPUS_COPY] = put_copies, [CORPUS_REVERSE] = put_reversals, [CORPUS_RECALL] = put_recall,
};

size_t corpus_write(uint64_t seed, uint64_t index, char out[CORPUS_MAX_BYTES]) {
    struct page p = {.begin = out, .at = out, .random = rng_u64(seed, CORPUS_STREAM, index)};
    enum corpus_kind kind = draw_kind(&p);
    p.level = 1 + below(&p, LEVELS);
    p.target = CORPUS_MIN_BYTES + below(&p, GROW_MAX_BYTES - CORPUS_MIN_BYTES + 1);
    put_text(&p, corpus_heading(kind));
    put_char(&p, ' ');
    put_number(&p, p.level);
    put_char(&p, '\n');
    writers[kind](&p);
    return (size_t)(p.at - out);
}
