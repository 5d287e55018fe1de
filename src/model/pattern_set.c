// pattern_set.c - sets of characters: unions, complements, properties by name, closure under case.
//
// Place: pattern_parse.c builds every class of a pattern here. See pattern_impl.h.
#include "model/pattern_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// Makes an empty set with room for n ranges. Without memory the maker is marked as failed.
static bool set_new(struct set_maker *m, size_t n, struct set *s) {
    *s = (struct set){m->failed ? NULL : region_alloc(m->region, n * sizeof *s->ranges), 0};
    m->failed = m->failed || !s->ranges;
    return !m->failed;
}

struct set set_of_range(struct set_maker *m, uint32_t lo, uint32_t hi) {
    struct set s;
    if (set_new(m, 1, &s))
        s.ranges[s.n++] = (struct range){lo, hi};
    return s;
}

static int compare_ranges(const void *a, const void *b) {
    uint32_t x = ((const struct range *)a)->lo, y = ((const struct range *)b)->lo;
    return (x > y) - (x < y);
}

static void tidy(struct set *s) {
    if (s->n == 0)
        return;
    qsort(s->ranges, s->n, sizeof *s->ranges, compare_ranges);
    size_t n = 1;
    for (size_t i = 1; i < s->n; i++) {
        struct range *last = &s->ranges[n - 1];
        if (s->ranges[i].lo <= last->hi + 1)
            last->hi = s->ranges[i].hi > last->hi ? s->ranges[i].hi : last->hi;
        else
            s->ranges[n++] = s->ranges[i];
    }
    s->n = n;
}

struct set set_union(struct set_maker *m, struct set a, struct set b) {
    if (a.n == 0)
        return b;
    if (b.n == 0)
        return a;
    struct set s;
    if (set_new(m, a.n + b.n, &s)) {
        memcpy(s.ranges, a.ranges, a.n * sizeof *s.ranges);
        memcpy(s.ranges + a.n, b.ranges, b.n * sizeof *s.ranges);
        s.n = a.n + b.n;
        tidy(&s);
    }
    return s;
}

struct set set_not(struct set_maker *m, struct set a) {
    struct set s;
    uint32_t from = 0;
    bool room = set_new(m, a.n + 1, &s);
    for (size_t i = 0; room && i < a.n; i++) {
        if (a.ranges[i].lo > from)
            s.ranges[s.n++] = (struct range){from, a.ranges[i].lo - 1};
        from = a.ranges[i].hi + 1;
    }
    if (room && from < UNICODE_COUNT)
        s.ranges[s.n++] = (struct range){from, UNICODE_COUNT - 1};
    return s;
}

struct set set_both(struct set_maker *m, struct set a, struct set b) {
    return set_not(m, set_union(m, set_not(m, a), set_not(m, b)));
}

bool set_has(const struct set *s, uint32_t c) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->ranges[mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n && s->ranges[lo].lo <= c;
}

// Divides all of Unicode into runs of one category. This takes a few milliseconds per pattern.
static void find_runs(struct set_maker *m) {
    size_t capacity = 0;
    for (uint32_t c = 0; c < UNICODE_COUNT; c++) {
        uint8_t category = (uint8_t)utf8proc_category((utf8proc_int32_t)c);
        if (m->n_runs > 0 && m->runs[m->n_runs - 1].category == category) {
            m->runs[m->n_runs - 1].hi = c;
            continue;
        }
        struct category_run *r = region_grow(m->region, m->runs, m->n_runs, &capacity, sizeof *r);
        if (!r) {
            m->failed = true;
            return;
        }
        m->runs = r;
        m->runs[m->n_runs++] = (struct category_run){c, c, category};
    }
}

static struct set set_of_mask(struct set_maker *m, uint32_t mask) {
    if (m->n_runs == 0)
        find_runs(m);
    struct set s;
    bool room = set_new(m, m->n_runs, &s);
    for (size_t i = 0; room && i < m->n_runs; i++)
        if (mask >> m->runs[i].category & 1)
            s.ranges[s.n++] = (struct range){m->runs[i].lo, m->runs[i].hi};
    tidy(&s);
    return s;
}

struct set set_of_digits(struct set_maker *m) {
    return set_of_mask(m, 1u << UTF8PROC_CATEGORY_ND);
}

#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)
static const struct {
    const char *brief, *full;
    uint32_t mask;
} categories[] = {
    {"l", "letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"lc", "casedletter", BIT(LU) | BIT(LL) | BIT(LT)},
    {"lu", "uppercaseletter", BIT(LU)},
    {"ll", "lowercaseletter", BIT(LL)},
    {"lt", "titlecaseletter", BIT(LT)},
    {"lm", "modifierletter", BIT(LM)},
    {"lo", "otherletter", BIT(LO)},
    {"m", "mark", BIT(MN) | BIT(MC) | BIT(ME)},
    {"mn", "nonspacingmark", BIT(MN)},
    {"mc", "spacingmark", BIT(MC)},
    {"me", "enclosingmark", BIT(ME)},
    {"n", "number", BIT(ND) | BIT(NL) | BIT(NO)},
    {"nd", "decimalnumber", BIT(ND)},
    {"nl", "letternumber", BIT(NL)},
    {"no", "othernumber", BIT(NO)},
    {"p", "punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"pc", "connectorpunctuation", BIT(PC)},
    {"pd", "dashpunctuation", BIT(PD)},
    {"ps", "openpunctuation", BIT(PS)},
    {"pe", "closepunctuation", BIT(PE)},
    {"pi", "initialpunctuation", BIT(PI)},
    {"pf", "finalpunctuation", BIT(PF)},
    {"po", "otherpunctuation", BIT(PO)},
    {"s", "symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
    {"sm", "mathsymbol", BIT(SM)},
    {"sc", "currencysymbol", BIT(SC)},
    {"sk", "modifiersymbol", BIT(SK)},
    {"so", "othersymbol", BIT(SO)},
    {"z", "separator", BIT(ZS) | BIT(ZL) | BIT(ZP)},
    {"zs", "spaceseparator", BIT(ZS)},
    {"zl", "lineseparator", BIT(ZL)},
    {"zp", "paragraphseparator", BIT(ZP)},
    {"c", "other", BIT(CC) | BIT(CF) | BIT(CS) | BIT(CO) | BIT(CN)},
    {"cc", "control", BIT(CC)},
    {"cf", "format", BIT(CF)},
    {"cs", "surrogate", BIT(CS)},
    {"co", "privateuse", BIT(CO)},
    {"cn", "unassigned", BIT(CN)},
};

static struct set set_of_pairs(struct set_maker *m, const uint32_t *pairs, size_t n) {
    struct set s;
    bool room = set_new(m, n / 2, &s);
    for (size_t i = 0; room && i < n / 2; i++)
        s.ranges[s.n++] = (struct range){pairs[2 * i], pairs[2 * i + 1]};
    tidy(&s);
    return s;
}

// White space and \w, made of categories. SET_WORD is Oniguruma's \w and \b outside a class, which
// also contains six superscripts and fractions of Latin-1 (found by comparing all of Unicode).
struct set set_of_test(struct set_maker *m, enum set_test test) {
    static const uint32_t space[] = {9,      13,     0x20,   0x20,   0x85,   0x85,   0xA0,
                                     0xA0,   0x1680, 0x1680, 0x2000, 0x200A, 0x2028, 0x2029,
                                     0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000};
    static const uint32_t circled[] = {0x24B6,  0x24E9,  0x1F130, 0x1F149,
                                       0x1F150, 0x1F169, 0x1F170, 0x1F189};
    static const uint32_t latin[] = {0xB2, 0xB3, 0xB9, 0xB9, 0xBC, 0xBE};
    if (test == SET_SPACE)
        return set_of_pairs(m, space, sizeof space / sizeof *space);
    struct set s = set_of_mask(m, BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO) | BIT(MN) |
                                      BIT(MC) | BIT(ME) | BIT(ND) | BIT(NL) | BIT(PC));
    s = set_union(m, s, set_of_pairs(m, circled, sizeof circled / sizeof *circled));
    if (test == SET_WORD)
        s = set_union(m, s, set_of_pairs(m, latin, sizeof latin / sizeof *latin));
    return s;
}

static bool set_of_script(struct set_maker *m, const char *name, struct set *out) {
#define SCRIPT(script, ...)                                                                        \
    if (strcmp(name, #script) == 0) {                                                              \
        static const uint32_t pairs[] = {__VA_ARGS__};                                             \
        *out = set_of_pairs(m, pairs, sizeof pairs / sizeof *pairs);                               \
        return true;                                                                               \
    }
#include "model/pattern_scripts.def"
#undef SCRIPT
    return false;
}

bool set_of_property(struct set_maker *m, const char *name, size_t bytes, struct set *out) {
    char plain[32]; // in lower case, without spaces, - and _, as Oniguruma compares names
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = name[i];
        if (c == ' ' || c == '-' || c == '_')
            continue;
        if (n + 1 == sizeof plain || c == '\0')
            return false;
        plain[n++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    plain[n] = '\0';
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (strcmp(plain, categories[i].brief) == 0 || strcmp(plain, categories[i].full) == 0) {
            *out = set_of_mask(m, categories[i].mask);
            return true;
        }
    if (strcmp(plain, "any") == 0)
        *out = set_of_range(m, 0, UNICODE_COUNT - 1);
    else if (strcmp(plain, "ascii") == 0)
        *out = set_of_range(m, 0, 0x7F);
    else if (strcmp(plain, "digit") == 0)
        *out = set_of_digits(m);
    else if (strcmp(plain, "space") == 0 || strcmp(plain, "whitespace") == 0)
        *out = set_of_test(m, SET_SPACE);
    else if (strcmp(plain, "word") == 0)
        *out = set_of_test(m, SET_ALPHANUMERIC);
    else if (strcmp(plain, "punct") == 0)
        return set_of_property(m, "P", 1, out);
    else
        return set_of_script(m, plain, out);
    return true;
}

static void find_folds(struct set_maker *m) {
    size_t capacity = 0;
    for (uint32_t c = 0; c < 0x1F000 && !m->failed; c++) { // no later letter has case
        uint32_t to = unicode_fold(c);
        if (to == c)
            continue;
        struct range *r = region_grow(m->region, m->folds, m->n_folds, &capacity, sizeof *r);
        if (!r) {
            m->failed = true;
            return;
        }
        m->folds = r;
        m->folds[m->n_folds++] = (struct range){c, to};
    }
}

struct set set_any_case(struct set_maker *m, struct set a) {
    if (m->n_folds == 0)
        find_folds(m);
    // Adds first what the members fold to, then everything that folds to one of those.
    for (int pass = 0; pass < 2 && !m->failed; pass++) {
        struct set more;
        bool room = set_new(m, m->n_folds, &more);
        for (size_t i = 0; room && i < m->n_folds; i++) {
            uint32_t from = pass ? m->folds[i].hi : m->folds[i].lo;
            uint32_t to = pass ? m->folds[i].lo : m->folds[i].hi;
            if (set_has(&a, from) && !set_has(&a, to))
                more.ranges[more.n++] = (struct range){to, to};
        }
        tidy(&more);
        a = set_union(m, a, more);
    }
    return a;
}
