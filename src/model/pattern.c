// pattern.c - turns a tree into an automaton.
//
// Place: the second half of pattern_open, in three steps.
// 1. The characters of Unicode are divided into classes. Characters are in the same class when no
//    set of the pattern distinguishes them.
// 2. The tree becomes instructions: a character, a choice with a preference, a look, a match.
// 3. The instructions become a deterministic automaton over classes. A state is the list of places
//    (instructions) where a backtracking matcher could be, most preferred first. When one of them
//    is a match, the places after it are dropped, because a backtracking matcher would never reach
//    them. A look at the next character is decided when that character is read. For a look at the
//    character before, the state remembers that character's class.
//
// Invariant: the number of states and the work are bounded. A pattern that needs more is refused.
#include "model/pattern_impl.h"

#include "base/hash.h"
#include "model/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

enum { WORK_MOST = 20 * 1000 * 1000, CLASS_WORDS = 4 };

enum opcode { OP_SET, OP_SPLIT, OP_JUMP, OP_LOOK, OP_BORDER, OP_AROUND, OP_MATCH };
struct op {
    uint8_t code;
    bool behind, edge, negate;
    // SET, LOOK, BORDER: x is the set. SPLIT: x is the preferred target, y the other. AROUND: x is
    // the index. JUMP: x is the target; at the end of a loop's body, y is what follows the loop.
    int x, y;
};

struct state_list { // the places of a state
    uint32_t at, n;
    uint16_t before; // class of the character before, where that matters
};

struct builder {
    const struct tree *t;
    struct err *e;
    unsigned n_classes;
    uint64_t has[PATTERN_SETS_MOST][CLASS_WORDS]; // the classes of each set, as bits
    struct op *code;
    int n_code;
    bool reverse, all; // all: there is no preference, and every match counts
    bool looks_behind;
    unsigned n_around;
    // The states made so far.
    struct state_list *states;
    uint16_t *places; // of all states, one after another
    size_t n_places, places_capacity;
    uint32_t n_states, states_capacity;
    uint16_t *slots; // hash table of states; 0: free
    uint64_t work;
    // Used while one step is computed.
    uint32_t *seen, *taken, stamp; // by instruction
    int *stack;
    uint16_t *next;
    uint32_t n_next;
};

// ---------------------------------------------------------------- classes

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// All characters at which a range of a set begins or ends. All characters between two of these
// borders are in the same sets.
static uint32_t *borders(struct tree *t, size_t *count) {
    size_t n = 1;
    for (int i = 0; i < t->n_sets; i++)
        n += 2 * t->sets[i].n;
    uint32_t *at = region_alloc(&t->region, (n + 1) * sizeof *at);
    if (!at)
        return NULL;
    size_t k = 0;
    at[k++] = 0;
    for (int i = 0; i < t->n_sets; i++)
        for (size_t j = 0; j < t->sets[i].n; j++) {
            at[k++] = t->sets[i].ranges[j].lo;
            at[k++] = t->sets[i].ranges[j].hi + 1;
        }
    qsort(at, k, sizeof *at, compare_u32);
    size_t unique = 0;
    for (size_t i = 0; i < k; i++)
        if (at[i] < UNICODE_COUNT && (unique == 0 || at[unique - 1] != at[i]))
            at[unique++] = at[i];
    at[unique] = UNICODE_COUNT;
    *count = unique;
    return at;
}

static int add_page(struct pattern *p, const uint8_t *page, size_t *n, uint16_t *out,
                    struct err *e) {
    for (size_t i = *n; i-- > 0;)
        if (memcmp(p->pages[i], page, 256) == 0) {
            *out = (uint16_t)i;
            return 0;
        }
    if (*n % 64 == 0) {
        void *wider = realloc(p->pages, (*n + 64) * 256);
        if (!wider)
            return err_set(e, ERR_MEMORY, "no memory for a pattern");
        p->pages = wider;
    }
    memcpy(p->pages[*n], page, 256);
    *out = (uint16_t)(*n)++;
    return 0;
}

static unsigned class_of(const struct pattern *p, uint32_t c) {
    return p->pages[p->page_of[c >> 8]][c & 255];
}

static int fill_pages(struct pattern *p, const uint8_t *class_by_char, struct err *e) {
    size_t n = 0;
    for (size_t i = 0; i < UNICODE_COUNT / 256; i++)
        TRY(add_page(p, class_by_char + 256 * i, &n, &p->page_of[i], e));
    for (unsigned b = 0; b < 256; b++) {
        p->of_byte[b] = (uint8_t)class_of(p, b < 0x80 ? b : 0xFFFD);
        p->mapped[b] = (uint8_t)class_of(p, tokenizer_byte_char((uint8_t)b));
    }
    return 0;
}

static int divide(struct builder *b, struct tree *t, struct pattern *p, struct err *e) {
    size_t n_borders, at_range[PATTERN_SETS_MOST] = {0};
    uint64_t kinds[PATTERN_CLASSES_MOST];
    uint32_t *border = borders(t, &n_borders);
    uint8_t *by_char = region_alloc(&t->region, UNICODE_COUNT);
    if (!border || !by_char)
        return err_set(e, ERR_MEMORY, "no memory for a pattern");
    for (size_t i = 0; i < n_borders; i++) {
        uint64_t kind = 0;
        for (int s = 0; s < t->n_sets; s++) {
            while (at_range[s] < t->sets[s].n && t->sets[s].ranges[at_range[s]].hi < border[i])
                at_range[s]++;
            if (at_range[s] < t->sets[s].n && t->sets[s].ranges[at_range[s]].lo <= border[i])
                kind |= UINT64_C(1) << s;
        }
        unsigned c = 0;
        while (c < b->n_classes && kinds[c] != kind)
            c++;
        if (c == PATTERN_CLASSES_MOST)
            return err_set(e, ERR_UNSUPPORTED,
                           "the pattern distinguishes more than %d classes of characters",
                           PATTERN_CLASSES_MOST);
        if (c == b->n_classes)
            kinds[b->n_classes++] = kind;
        memset(by_char + border[i], (int)c, border[i + 1] - border[i]);
    }
    for (unsigned c = 0; c < b->n_classes; c++)
        for (int s = 0; s < t->n_sets; s++)
            if (kinds[c] >> s & 1)
                b->has[s][c / 64] |= UINT64_C(1) << c % 64;
    p->n_classes = b->n_classes;
    return fill_pages(p, by_char, e);
}

// ---------------------------------------------------------------- instructions

static int emit(struct builder *b, struct op o, int *out) {
    if (b->n_code == PATTERN_CODE_MOST)
        return err_set(b->e, ERR_UNSUPPORTED,
                       "the pattern is too long when its repetitions are expanded");
    if (out)
        *out = b->n_code;
    b->code[b->n_code++] = o;
    return 0;
}

static int compile(struct builder *b, int node);

static int compile_repeat(struct builder *b, const struct node *n) {
    int split = 0;
    for (int i = 0; i < n->min; i++)
        TRY(compile(b, n->a));
    if (n->max < 0) {
        TRY(emit(b, (struct op){.code = OP_SPLIT}, &split));
        TRY(compile(b, n->a));
        TRY(emit(b, (struct op){.code = OP_JUMP, .x = split}, NULL));
        b->code[split].x = n->lazy ? b->n_code : split + 1;
        b->code[split].y = n->lazy ? split + 1 : b->n_code;
        b->code[b->n_code - 1].y = b->n_code;
        return 0;
    }
    // Each further repetition is optional. If one is left out, so are all after it.
    int first_split = b->n_code;
    for (int i = n->min; i < n->max; i++) {
        TRY(emit(b, (struct op){.code = OP_SPLIT, .x = -1}, &split));
        TRY(compile(b, n->a));
    }
    for (int i = first_split; i < b->n_code; i++)
        if (b->code[i].code == OP_SPLIT && b->code[i].x == -1) {
            b->code[i].x = n->lazy ? b->n_code : i + 1;
            b->code[i].y = n->lazy ? i + 1 : b->n_code;
        }
    return 0;
}

static int compile_choice(struct builder *b, const struct node *n) {
    int split = 0, jump = 0;
    TRY(emit(b, (struct op){.code = OP_SPLIT}, &split));
    TRY(compile(b, n->a));
    TRY(emit(b, (struct op){.code = OP_JUMP}, &jump));
    b->code[split].x = split + 1;
    b->code[split].y = b->n_code;
    TRY(compile(b, n->b));
    b->code[jump].x = b->n_code;
    return 0;
}

static int compile(struct builder *b, int node) {
    const struct node *n = &b->t->nodes[node];
    if (++b->work > WORK_MOST)
        return err_set(b->e, ERR_UNSUPPORTED, "the pattern is too complex");
    switch (n->kind) {
    case NODE_EMPTY:
        return 0;
    case NODE_SET:
        return emit(b, (struct op){.code = OP_SET, .x = n->set}, NULL);
    case NODE_CAT:
        TRY(compile(b, b->reverse ? n->b : n->a));
        return compile(b, b->reverse ? n->a : n->b);
    case NODE_ALT:
        return compile_choice(b, n);
    case NODE_REPEAT:
        return compile_repeat(b, n);
    case NODE_LOOK:
        b->looks_behind |= n->behind != b->reverse;
        return emit(
            b,
            (struct op){
                .code = OP_LOOK, .behind = n->behind != b->reverse, .edge = n->edge, .x = n->set},
            NULL);
    case NODE_BORDER:
        b->looks_behind = true;
        return emit(b, (struct op){.code = OP_BORDER, .negate = n->negate, .x = n->set}, NULL);
    case NODE_AROUND:
        return emit(b, (struct op){.code = OP_AROUND, .negate = n->negate, .x = n->around}, NULL);
    }
    return 0;
}

// ---------------------------------------------------------------- states

static bool has_class(const struct builder *b, int set, unsigned class) {
    return class < b->n_classes && (b->has[set][class / 64] >> class % 64 & 1);
}

static bool holds(const struct builder *b, const struct op *o, unsigned before, unsigned class,
                  unsigned around) {
    switch (o->code) {
    case OP_LOOK: {
        unsigned c = o->behind ? before : class;
        return c == b->n_classes ? o->edge : has_class(b, o->x, c);
    }
    case OP_BORDER:
        return (has_class(b, o->x, before) != has_class(b, o->x, class)) != o->negate;
    default:
        return (around >> o->x & 1) != o->negate;
    }
}

// Follows one place to all places that can be reached without reading, most preferred first. When
// such a place reads a character of the class, the place after it goes into b->next. Returns true
// when a match was reached and later places do not count.
static bool follow(struct builder *b, int place, unsigned before, unsigned class, unsigned around,
                   bool *match) {
    int top = 0;
    b->stack[top++] = place;
    while (top > 0) {
        int at = b->stack[--top];
        if (b->seen[at] == b->stamp)
            continue;
        b->seen[at] = b->stamp;
        b->work++;
        const struct op *o = &b->code[at];
        switch (o->code) {
        case OP_SET:
            if (has_class(b, o->x, class) && b->taken[at + 1] != b->stamp) {
                b->taken[at + 1] = b->stamp;
                b->next[b->n_next++] = (uint16_t)(at + 1);
            }
            break;
        case OP_SPLIT:
            b->stack[top++] = o->y;
            b->stack[top++] = o->x;
            break;
        case OP_JUMP: // a round of a loop that reads nothing ends the loop
            b->stack[top++] = o->y && b->seen[o->x] == b->stamp ? o->y : o->x;
            break;
        case OP_MATCH:
            *match = true;
            if (!b->all)
                return true;
            break;
        default:
            if (holds(b, o, before, class, around))
                b->stack[top++] = at + 1;
        }
    }
    return false;
}

static int grow_states(struct builder *b) {
    if (b->n_states == b->states_capacity) {
        uint32_t capacity = b->states_capacity ? 2 * b->states_capacity : 64;
        struct state_list *wider = realloc(b->states, capacity * sizeof *wider);
        if (!wider)
            return err_set(b->e, ERR_MEMORY, "no memory for a pattern");
        b->states = wider;
        b->states_capacity = capacity;
    }
    if (b->places_capacity - b->n_places < b->n_next) {
        size_t capacity = 2 * b->places_capacity + b->n_next + 256;
        uint16_t *wider = realloc(b->places, capacity * sizeof *wider);
        if (!wider)
            return err_set(b->e, ERR_MEMORY, "no memory for a pattern");
        b->places = wider;
        b->places_capacity = capacity;
    }
    return 0;
}

enum { SLOTS = 4 * PATTERN_STATES_MOST };

// Finds or makes the state with the places of b->next. Without places it is state 0.
static int find_state(struct builder *b, unsigned before, uint16_t *out) {
    *out = 0;
    if (b->n_next == 0)
        return 0;
    uint16_t key = b->looks_behind ? (uint16_t)before : 0;
    size_t bytes = b->n_next * sizeof *b->next;
    uint32_t i = ((uint32_t)hash_u64(b->next, bytes) + key * 0x9E3779B1u) % SLOTS;
    for (; b->slots[i]; i = (i + 1) % SLOTS) {
        const struct state_list *s = &b->states[b->slots[i]];
        if (s->n == b->n_next && s->before == key &&
            memcmp(b->places + s->at, b->next, bytes) == 0) {
            *out = b->slots[i];
            return 0;
        }
    }
    if (b->n_states == PATTERN_STATES_MOST)
        return err_set(b->e, ERR_UNSUPPORTED,
                       "the pattern needs more than %d states to be matched in linear time",
                       PATTERN_STATES_MOST);
    TRY(grow_states(b));
    b->states[b->n_states] = (struct state_list){(uint32_t)b->n_places, b->n_next, key};
    memcpy(b->places + b->n_places, b->next, bytes);
    b->n_places += b->n_next;
    b->slots[i] = *out = (uint16_t)b->n_states++;
    return 0;
}

static int step(struct builder *b, uint32_t state, unsigned symbol, uint16_t *out) {
    unsigned class = symbol >> b->n_around, around = symbol & ((1u << b->n_around) - 1);
    const struct state_list s = b->states[state];
    bool match = false;
    b->stamp++;
    b->n_next = 0;
    for (uint32_t i = 0; i < s.n; i++)
        if (follow(b, b->places[s.at + i], s.before, class, around, &match))
            break;
    if (b->work > WORK_MOST)
        return err_set(b->e, ERR_UNSUPPORTED,
                       "the pattern is too complex to be matched in linear time");
    uint16_t next;
    TRY(find_state(b, class, &next));
    *out = (uint16_t)(next << 1 | match);
    return 0;
}

static int begin_states(struct builder *b, struct automaton *a) {
    a->start = calloc(b->n_classes + 1, sizeof *a->start);
    if (!a->start)
        return err_set(b->e, ERR_MEMORY, "no memory for a pattern");
    b->n_states = 1; // state 0 has no places
    for (unsigned c = 0; c <= b->n_classes; c++) {
        b->next[0] = 0;
        b->n_next = 1;
        TRY(find_state(b, c, &a->start[c]));
    }
    return 0;
}

static int fill_table(struct builder *b, struct automaton *a) {
    TRY(grow_states(b));
    b->states[0] = (struct state_list){0};
    TRY(begin_states(b, a));
    a->stride = (b->n_classes + 1) << b->n_around;
    size_t rows = 0;
    for (uint32_t s = 1; s < b->n_states; s++) {
        if (b->n_states > rows) {
            rows = 2 * (size_t)b->n_states;
            uint16_t *wider = realloc(a->table, rows * a->stride * sizeof *wider);
            if (!wider)
                return err_set(b->e, ERR_MEMORY, "no memory for a pattern");
            a->table = wider;
        }
        for (unsigned c = 0; c < a->stride; c++)
            TRY(step(b, s, c, &a->table[s * a->stride + c]));
    }
    memset(a->table, 0, a->stride * sizeof *a->table);
    a->n_states = b->n_states;
    a->looks_behind = b->looks_behind;
    return 0;
}

static int build(struct builder *b, struct automaton *a, int root) {
    if (b->all) { // may match anywhere, so any characters may come before
        TRY(emit(b, (struct op){.code = OP_SPLIT, .x = 1, .y = 3}, NULL));
        TRY(emit(b, (struct op){.code = OP_SET, .x = b->t->n_sets - 1}, NULL)); // any character
        TRY(emit(b, (struct op){.code = OP_JUMP, .x = 0}, NULL));
    }
    TRY(compile(b, root));
    TRY(emit(b, (struct op){.code = OP_MATCH}, NULL));
    size_t n = (size_t)b->n_code + 1;
    b->seen = calloc(n, sizeof *b->seen);
    b->taken = calloc(n, sizeof *b->taken);
    b->stack = calloc(2 * n + 2, sizeof *b->stack);
    b->next = calloc(n + 1, sizeof *b->next);
    b->slots = calloc(SLOTS, sizeof *b->slots);
    if (!b->seen || !b->taken || !b->stack || !b->next || !b->slots)
        return err_set(b->e, ERR_MEMORY, "no memory for a pattern");
    return fill_table(b, a);
}

static int build_automaton(const struct builder *from, struct automaton *a, int root, bool reverse,
                           bool all) {
    struct builder *b = malloc(sizeof *b);
    struct op *code = calloc(PATTERN_CODE_MOST, sizeof *code);
    if (!b || !code) {
        free(b);
        free(code);
        return err_set(from->e, ERR_MEMORY, "no memory for a pattern");
    }
    *b = *from;
    b->code = code;
    b->reverse = reverse;
    b->all = all;
    b->n_around = all ? 0 : (unsigned)from->t->n_around;
    int rc = build(b, a, root);
    free(b->code);
    free(b->states);
    free(b->places);
    free(b->slots);
    free(b->seen);
    free(b->taken);
    free(b->stack);
    free(b->next);
    free(b);
    return rc;
}

// Finds out whether the automaton has a loop that reads characters without ending a match. Then a
// search may read to the end of the text without success, again and again, unless pattern_match.c
// remembers where nothing was found.
static int find_run_ahead(struct pattern *p, unsigned n_around, struct err *e) {
    const struct automaton *a = &p->main;
    uint32_t symbols = p->n_classes << n_around, depth = 0;
    uint8_t *color = calloc(a->n_states, 1); // depth-first search: 1 on the current path, 2 done
    uint32_t(*way)[2] = calloc(a->n_states + 1, sizeof *way);
    if (!color || !way) {
        free(color);
        free(way);
        return err_set(e, ERR_MEMORY, "no memory for a pattern");
    }
    for (uint32_t s = 1; s < a->n_states && !p->may_run_ahead; s++) {
        if (color[s])
            continue;
        depth = 0;
        way[depth][0] = s, way[depth++][1] = 0;
        color[s] = 1;
        while (depth > 0 && !p->may_run_ahead) {
            uint32_t *top = way[depth - 1];
            if (top[1] == symbols) {
                color[top[0]] = 2;
                depth--;
                continue;
            }
            uint16_t entry = a->table[top[0] * a->stride + top[1]++];
            uint32_t next = entry >> 1;
            if (entry & 1 || next == 0 || color[next] == 2)
                continue;
            if (color[next] == 1) {
                p->may_run_ahead = true;
            } else {
                color[next] = 1;
                way[depth][0] = next, way[depth++][1] = 0;
            }
        }
    }
    free(color);
    free(way);
    return 0;
}

static int make(struct pattern *p, struct tree *t, const char *text, size_t bytes, bool literal,
                struct err *e) {
    TRY(pattern_parse(t, text, bytes, literal, e));
    if (t->n_around > 0) {
        struct set any = set_of_range(&t->maker, 0, UNICODE_COUNT - 1);
        if (t->maker.failed)
            return err_set(e, ERR_MEMORY, "no memory for a pattern");
        if (t->n_sets == PATTERN_SETS_MOST)
            return err_set(e, ERR_UNSUPPORTED, "the pattern has too many sets of characters");
        t->sets[t->n_sets++] = any;
    }
    struct builder *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(e, ERR_MEMORY, "no memory for a pattern");
    b->t = t;
    b->e = e;
    int rc = divide(b, t, p, e);
    for (int i = 0; rc == 0 && i < t->n_around; i++) {
        p->around_behind[i] = t->around_behind[i];
        p->n_around++;
        rc = build_automaton(b, &p->around[i], t->around[i], !t->around_behind[i], true);
    }
    if (rc == 0)
        rc = build_automaton(b, &p->main, t->root, false, false);
    if (rc == 0)
        rc = find_run_ahead(p, p->n_around, e);
    free(b);
    return rc;
}

int pattern_open(struct pattern **out, const char *text, size_t bytes, bool literal,
                 struct err *e) {
    *out = NULL;
    struct pattern *p = calloc(1, sizeof *p);
    struct tree *t = calloc(1, sizeof *t);
    int rc = p && t ? make(p, t, text, bytes, literal, e)
                    : err_set(e, ERR_MEMORY, "no memory for a pattern");
    if (t)
        region_free(&t->region);
    free(t);
    if (rc != 0) {
        pattern_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void pattern_close(struct pattern *p) {
    if (!p)
        return;
    free(p->main.table);
    free(p->main.start);
    for (unsigned i = 0; i < p->n_around; i++) {
        free(p->around[i].table);
        free(p->around[i].start);
    }
    free(p->pages);
    free(p);
}
