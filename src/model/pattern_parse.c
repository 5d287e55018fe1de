// pattern_parse.c - reads the text of a pattern into a tree. It accepts the part of Oniguruma's
// Ruby syntax that describes text, not backtracking.
//
// Place: the first half of pattern_open. Errors name the byte of the pattern. Two things differ
// from other syntaxes: ^ and $ match at every line, and a class may contain classes ([a[bc]],
// [a-z&&[^x]]).
#include "base/text.h"
#include "model/pattern_impl.h"

#include <string.h>

struct parser {
    struct tree *t;
    const uint8_t *text, *at, *end;
    struct err *e;
    int depth;
    bool any_case, dot_all;
    bool inside_around;
};

static int parse_alternatives(struct parser *p, int *out);
static int parse_class(struct parser *p, struct set *out);

static int refuse(const struct parser *p, const char *what) {
    return err_set(p->e, ERR_UNSUPPORTED, "byte %zu of the pattern: %s", (size_t)(p->at - p->text),
                   what);
}

static int new_node(struct parser *p, struct node n, int *out) {
    if (p->t->n_nodes == PATTERN_NODES_MOST)
        return refuse(p, "the pattern is too long");
    *out = p->t->n_nodes++;
    p->t->nodes[*out] = n;
    return 0;
}

static int number_of_set(struct parser *p, struct set s, int *out) {
    struct tree *t = p->t;
    if (t->maker.failed)
        return err_set(p->e, ERR_MEMORY, "no memory for a pattern");
    for (int i = 0; i < t->n_sets; i++)
        if (t->sets[i].n == s.n &&
            (s.n == 0 || memcmp(t->sets[i].ranges, s.ranges, s.n * sizeof *s.ranges) == 0)) {
            *out = i;
            return 0;
        }
    if (t->n_sets == PATTERN_SETS_MOST)
        return refuse(p, "more than 64 different sets of characters are not accepted");
    *out = t->n_sets;
    t->sets[t->n_sets++] = s;
    return 0;
}

static int set_node(struct parser *p, struct set s, int *out) {
    int set;
    if (p->any_case)
        s = set_any_case(&p->t->maker, s);
    TRY(number_of_set(p, s, &set));
    return new_node(p, (struct node){.kind = NODE_SET, .set = set}, out);
}

static int look_node(struct parser *p, struct set s, bool behind, bool edge, int *out) {
    int set;
    TRY(number_of_set(p, s, &set));
    return new_node(p, (struct node){.kind = NODE_LOOK, .set = set, .behind = behind, .edge = edge},
                    out);
}

static uint32_t take_char(struct parser *p) {
    unsigned bytes;
    uint32_t c = utf8_decode(p->at, p->end, &bytes);
    p->at += bytes;
    return c;
}

static bool take(struct parser *p, const char *s) {
    size_t n = strlen(s);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, s, n) != 0)
        return false;
    p->at += n;
    return true;
}

static int take_hex(struct parser *p, unsigned least, unsigned most, uint32_t *out) {
    uint32_t x = 0;
    unsigned n = 0;
    for (; n < most && p->at < p->end && text_hex_digit(*p->at) >= 0; n++)
        x = x << 4 | (uint32_t)text_hex_digit(*p->at++);
    if (n < least || x >= UNICODE_COUNT)
        return refuse(p, "expected the number of a character in hexadecimal");
    *out = x;
    return 0;
}

static int parse_property(struct parser *p, bool negate, struct set *out) {
    if (!take(p, "{"))
        return refuse(p, "a property is written \\p{Name}");
    if (take(p, "^"))
        negate = !negate;
    const uint8_t *name = p->at;
    while (p->at < p->end && *p->at != '}')
        p->at++;
    size_t bytes = (size_t)(p->at - name);
    if (!take(p, "}"))
        return refuse(p, "a property is written \\p{Name}");
    if (!set_of_property(&p->t->maker, (const char *)name, bytes, out))
        return refuse(p, "unknown property; accepted: general categories (L, Lu, N, ...), Any, "
                         "Space, Word, Punct and the large scripts (Han, ...)");
    if (negate)
        *out = set_not(&p->t->maker, *out);
    return 0;
}

// After a backslash: takes a shorthand for a set and returns true, or takes nothing.
static bool take_shorthand(struct parser *p, bool in_class, struct set *out) {
    struct set_maker *m = &p->t->maker;
    struct set hex = {0};
    uint8_t c = *p->at;
    switch (c | 0x20) {
    case 'd':
        *out = set_of_digits(m);
        break;
    case 's':
        *out = set_of_test(m, SET_SPACE);
        break;
    case 'w':
        *out = set_of_test(m, in_class ? SET_ALPHANUMERIC : SET_WORD);
        break;
    case 'h':
        hex = set_union(m, set_of_range(m, '0', '9'), set_of_range(m, 'a', 'f'));
        *out = set_union(m, hex, set_of_range(m, 'A', 'F'));
        break;
    default:
        return false;
    }
    p->at++;
    if (!(c & 0x20)) // a capital letter means the complement
        *out = set_not(m, *out);
    return true;
}

// After a backslash: reads one character.
static int parse_escaped_char(struct parser *p, uint32_t *out) {
    static const char names[] = "ntrfvae", values[] = "\n\t\r\f\v\a\x1B";
    const char *found = *p->at ? strchr(names, *p->at) : NULL;
    if (found) {
        p->at++;
        *out = (uint8_t)values[found - names];
        return 0;
    }
    if (take(p, "x{")) {
        TRY(take_hex(p, 1, 8, out));
        return take(p, "}") ? 0 : refuse(p, "expected '}'");
    }
    if (take(p, "x"))
        return take_hex(p, 1, 2, out);
    if (take(p, "u"))
        return take_hex(p, 4, 4, out);
    if (take(p, "0")) {
        *out = 0;
        for (int n = 0; n < 2 && p->at < p->end && *p->at >= '0' && *p->at <= '7'; n++)
            *out = *out * 8 + (*p->at++ - '0');
        return 0;
    }
    uint8_t c = *p->at;
    if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return refuse(p, "this escape is not supported");
    *out = take_char(p);
    return 0;
}

static int escape_at_end(struct parser *p) {
    return p->at == p->end ? refuse(p, "the pattern ends with a backslash") : 0;
}

// ---------------------------------------------------------------- classes

static int parse_posix(struct parser *p, struct set *out) {
    static const char *const names[] = {"digit", "space", "word", "punct"};
    bool negate = take(p, "^");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (take(p, names[i])) {
            set_of_property(&p->t->maker, names[i], strlen(names[i]), out);
            if (negate)
                *out = set_not(&p->t->maker, *out);
            return take(p, ":]") ? 0 : refuse(p, "expected ':]'");
        }
    return refuse(p, "unknown [:name:]; accepted: digit, space, word, punct");
}

// Reads one item of a class. *single is true when it is one character, which may begin a range.
static int parse_class_item(struct parser *p, struct set *out, bool *single, uint32_t *c) {
    *single = false;
    if (take(p, "[:"))
        return parse_posix(p, out);
    if (take(p, "["))
        return parse_class(p, out);
    if (take(p, "\\")) {
        TRY(escape_at_end(p));
        if (*p->at == 'p' || *p->at == 'P') {
            bool negate = *p->at++ == 'P';
            return parse_property(p, negate, out);
        }
        if (take_shorthand(p, true, out))
            return 0;
        *single = true;
        if (take(p, "b")) {
            *c = '\b';
            return 0;
        }
        return parse_escaped_char(p, c);
    }
    *single = true;
    *c = take_char(p);
    return 0;
}

static bool range_follows(const struct parser *p) {
    return p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']' && p->at[1] != '[' &&
           !(p->at[1] == '&' && p->end - p->at >= 3 && p->at[2] == '&');
}

static int parse_class_part(struct parser *p, struct set *sum) {
    struct set_maker *m = &p->t->maker;
    struct set item = {0};
    bool single;
    uint32_t lo = 0, hi;
    TRY(parse_class_item(p, &item, &single, &lo));
    if (single) {
        hi = lo;
        if (range_follows(p)) {
            const uint8_t *dash = p->at++;
            struct set other;
            TRY(parse_class_item(p, &other, &single, &hi));
            if (!single) { // in [a-\d] the - is an ordinary character
                p->at = dash;
                hi = lo;
            } else if (hi < lo) {
                return refuse(p, "a range of characters ends before it begins");
            }
        }
        item = set_of_range(m, lo, hi);
    }
    *sum = set_union(m, *sum, item);
    return 0;
}

// Reads a class, from behind its '[' to behind its ']'.
static int parse_class(struct parser *p, struct set *out) {
    struct set_maker *m = &p->t->maker;
    struct set sum = {0}, both = {0};
    bool negate = take(p, "^"), first = true, intersect = false;
    if (++p->depth > PATTERN_DEPTH_MOST)
        return refuse(p, "classes are nested too deep");
    for (;; first = false) {
        if (p->at == p->end)
            return refuse(p, "a class has no ']'");
        if (!first && take(p, "]"))
            break;
        if (take(p, "&&")) {
            both = intersect ? set_both(m, both, sum) : sum;
            intersect = true;
            sum = (struct set){0};
            continue;
        }
        TRY(parse_class_part(p, &sum));
    }
    if (intersect)
        sum = set_both(m, both, sum);
    if (p->any_case)
        sum = set_any_case(m, sum);
    *out = negate ? set_not(m, sum) : sum;
    p->depth--;
    return 0;
}

// ---------------------------------------------------------------- groups

// Whether a tree is something that NODE_LOOK can express: one character of a set, the end (or
// beginning) of the text, or alternatives of these.
static bool is_one_char(struct parser *p, int node, bool behind, struct set *s, bool *edge) {
    const struct node *n = &p->t->nodes[node];
    switch (n->kind) {
    case NODE_SET:
        *s = set_union(&p->t->maker, *s, p->t->sets[n->set]);
        return true;
    case NODE_ALT:
        return is_one_char(p, n->a, behind, s, edge) && is_one_char(p, n->b, behind, s, edge);
    case NODE_LOOK:
        if (n->behind != behind)
            return false;
        *s = set_union(&p->t->maker, *s, p->t->sets[n->set]);
        *edge = *edge || n->edge;
        return true;
    default:
        return false;
    }
}

static int parse_look(struct parser *p, bool behind, bool negate, int *out) {
    int inner;
    bool outer = p->inside_around;
    p->inside_around = true;
    TRY(parse_alternatives(p, &inner));
    p->inside_around = outer;
    struct set s = {0};
    bool edge = false;
    if (is_one_char(p, inner, behind, &s, &edge)) {
        if (negate)
            s = set_not(&p->t->maker, s);
        return look_node(p, s, behind, edge != negate, out);
    }
    if (outer)
        return refuse(p, "lookaround of more than one character inside another is not supported");
    struct tree *t = p->t;
    if (t->n_around == PATTERN_AROUND_MOST)
        return refuse(p, "more than 4 lookarounds of more than one character are not supported");
    t->around[t->n_around] = inner;
    t->around_behind[t->n_around] = behind;
    return new_node(
        p, (struct node){.kind = NODE_AROUND, .negate = negate, .around = t->n_around++}, out);
}

// Reads the letters that switch options, from behind "(?" to behind ':' or ')'.
static int parse_options(struct parser *p, bool *to_the_end) {
    bool on = true;
    for (;;) {
        if (take(p, "-"))
            on = false;
        else if (take(p, "i"))
            p->any_case = on;
        else if (take(p, "m"))
            p->dot_all = on;
        else
            break;
    }
    *to_the_end = false;
    if (take(p, ":"))
        return 0;
    *to_the_end = true;
    return take(p, ")") ? 0 : refuse(p, "this kind of group is not supported");
}

static int skip_name(struct parser *p) {
    while (p->at < p->end && *p->at != '>')
        p->at++;
    return take(p, ">") ? 0 : refuse(p, "the name of a group has no '>'");
}

// Reads a group, from behind its '(' to behind its ')'.
static int parse_group(struct parser *p, int *out) {
    bool any_case = p->any_case, dot_all = p->dot_all, to_the_end = false;
    int rc;
    if (++p->depth > PATTERN_DEPTH_MOST)
        return refuse(p, "groups are nested too deep");
    if (!take(p, "?") || take(p, ":"))
        rc = parse_alternatives(p, out);
    else if (take(p, "="))
        rc = parse_look(p, false, false, out);
    else if (take(p, "!"))
        rc = parse_look(p, false, true, out);
    else if (take(p, "<="))
        rc = parse_look(p, true, false, out);
    else if (take(p, "<!"))
        rc = parse_look(p, true, true, out);
    else if (take(p, "<"))
        rc = skip_name(p) ? ERR_UNSUPPORTED : parse_alternatives(p, out);
    else if (p->at < p->end && strchr("im-", *p->at) && *p->at)
        rc = parse_options(p, &to_the_end) ? ERR_UNSUPPORTED : parse_alternatives(p, out);
    else
        rc = refuse(p, "this kind of group is not supported");
    TRY(rc);
    p->depth--;
    if (to_the_end) // (?i) holds to the end of the enclosing group, whose ')' comes later
        return 0;
    p->any_case = any_case;
    p->dot_all = dot_all;
    return take(p, ")") ? 0 : refuse(p, "a group has no ')'");
}

// ^ matches at the beginning, and after every line break that is not the last character.
static int parse_line_begin(struct parser *p, int *out) {
    struct set_maker *m = &p->t->maker;
    int begin, behind, ahead, both;
    TRY(look_node(p, (struct set){0}, true, true, &begin));
    TRY(look_node(p, set_of_range(m, '\n', '\n'), true, false, &behind));
    TRY(look_node(p, set_of_range(m, 0, UNICODE_COUNT - 1), false, false, &ahead));
    TRY(new_node(p, (struct node){.kind = NODE_CAT, .a = behind, .b = ahead}, &both));
    return new_node(p, (struct node){.kind = NODE_ALT, .a = begin, .b = both}, out);
}

static int parse_anchor(struct parser *p, bool *found, int *out) {
    struct set_maker *m = &p->t->maker;
    struct set line = set_of_range(m, '\n', '\n'), none = {0};
    int word;
    *found = true;
    if (take(p, "^"))
        return parse_line_begin(p, out);
    if (take(p, "$"))
        return look_node(p, line, false, true, out);
    if (take(p, "\\A"))
        return look_node(p, none, true, true, out);
    if (take(p, "\\z"))
        return look_node(p, none, false, true, out);
    bool border = take(p, "\\b"), inside = !border && take(p, "\\B");
    if (border || inside) {
        TRY(number_of_set(p, set_of_test(m, SET_WORD), &word));
        return new_node(p, (struct node){.kind = NODE_BORDER, .set = word, .negate = inside}, out);
    }
    *found = false;
    return 0;
}

static int parse_atom(struct parser *p, int *out) {
    struct set s = {0};
    bool found;
    uint32_t c;
    TRY(parse_anchor(p, &found, out));
    if (found)
        return 0;
    if (take(p, "("))
        return parse_group(p, out);
    if (take(p, "[")) {
        TRY(parse_class(p, &s));
        int set;
        TRY(number_of_set(p, s, &set)); // parse_class has already handled case, before its ^
        return new_node(p, (struct node){.kind = NODE_SET, .set = set}, out);
    }
    if (take(p, ".")) {
        struct set_maker *m = &p->t->maker;
        s = set_of_range(m, '\n', '\n');
        return set_node(p, p->dot_all ? set_of_range(m, 0, UNICODE_COUNT - 1) : set_not(m, s), out);
    }
    if (take(p, "\\")) {
        TRY(escape_at_end(p));
        if (*p->at == 'p' || *p->at == 'P') {
            bool negate = *p->at++ == 'P';
            TRY(parse_property(p, negate, &s));
            return set_node(p, s, out);
        }
        if (take_shorthand(p, false, &s))
            return set_node(p, s, out);
        TRY(parse_escaped_char(p, &c));
    } else if (strchr("*+?", *p->at) && *p->at) {
        return refuse(p, "there is nothing to repeat before this quantifier");
    } else {
        c = take_char(p);
    }
    return set_node(p, set_of_range(&p->t->maker, c, c), out);
}

// ---------------------------------------------------------------- quantifiers

static bool take_number(struct parser *p, int *out) {
    const uint8_t *start = p->at;
    int x = 0;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        x = x > PATTERN_REPEAT_MOST ? x : x * 10 + (*p->at - '0');
    *out = x;
    return p->at > start;
}

// Takes {n} {n,} {,m} or {n,m}. Anything else is ordinary text that begins with '{'.
static bool take_braces(struct parser *p, int *min, int *max) {
    const uint8_t *start = p->at;
    if (take(p, "{")) {
        bool low = take_number(p, min);
        bool comma = take(p, ","), high = comma && take_number(p, max);
        if (!comma)
            *max = *min;
        else if (!high)
            *max = -1;
        if (!low)
            *min = 0;
        if ((low || high) && take(p, "}"))
            return true;
    }
    p->at = start;
    return false;
}

static bool take_quantifier(struct parser *p, int *min, int *max) {
    *min = 0;
    *max = -1;
    if (take(p, "*"))
        return true;
    if (take(p, "+")) {
        *min = 1;
        return true;
    }
    if (take(p, "?")) {
        *max = 1;
        return true;
    }
    return take_braces(p, min, max);
}

// A possessive X*+ never gives back what it matched. For a single character X this means X* that is
// not followed by X. X?+ means X, or nothing where no X follows.
static int parse_possessive(struct parser *p, struct node r, int *out) {
    struct node *body = &p->t->nodes[r.a];
    if (body->kind != NODE_SET)
        return refuse(p, "a possessive quantifier is supported only after one character or class");
    int repeat, look, set = body->set;
    struct set_maker *m = &p->t->maker;
    TRY(look_node(p, set_not(m, p->t->sets[set]), false, true, &look));
    if (r.max == 1)
        return new_node(p, (struct node){.kind = NODE_ALT, .a = r.a, .b = look}, out);
    TRY(new_node(p, r, &repeat));
    return new_node(p, (struct node){.kind = NODE_CAT, .a = repeat, .b = look}, out);
}

static int parse_quantified(struct parser *p, int *out) {
    TRY(parse_atom(p, out));
    for (int chained = 0;; chained++) {
        const uint8_t *start = p->at;
        struct node r = {.kind = NODE_REPEAT, .a = *out};
        if (p->at == p->end || !take_quantifier(p, &r.min, &r.max))
            return 0;
        if (chained == 4)
            return refuse(p, "more than 4 quantifiers in a row are not accepted");
        if (r.min > PATTERN_REPEAT_MOST || r.max > PATTERN_REPEAT_MOST)
            return refuse(p, "more than 1000 repetitions are not accepted");
        if (r.max >= 0 && r.max < r.min)
            return refuse(p, "the maximum of a quantifier is less than its minimum");
        bool braces = *start == '{';
        if (!braces && take(p, "+")) {
            TRY(parse_possessive(p, r, out));
            continue;
        }
        // In this syntax {n}? means an optional {n}. The next round of the loop takes the '?'.
        if (!(braces && r.min == r.max) && take(p, "?"))
            r.lazy = true;
        TRY(new_node(p, r, out));
    }
}

static int parse_sequence(struct parser *p, int *out) {
    TRY(new_node(p, (struct node){.kind = NODE_EMPTY}, out));
    bool empty = true;
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        int next;
        TRY(parse_quantified(p, &next));
        if (!empty)
            TRY(new_node(p, (struct node){.kind = NODE_CAT, .a = *out, .b = next}, &next));
        *out = next;
        empty = false;
    }
    return 0;
}

static int parse_alternatives(struct parser *p, int *out) {
    TRY(parse_sequence(p, out));
    while (take(p, "|")) {
        int next;
        TRY(parse_sequence(p, &next));
        TRY(new_node(p, (struct node){.kind = NODE_ALT, .a = *out, .b = next}, out));
    }
    return 0;
}

static int parse_literal(struct parser *p, int *out) {
    TRY(new_node(p, (struct node){.kind = NODE_EMPTY}, out));
    while (p->at < p->end) {
        int next;
        uint32_t c = take_char(p);
        TRY(set_node(p, set_of_range(&p->t->maker, c, c), &next));
        TRY(new_node(p, (struct node){.kind = NODE_CAT, .a = *out, .b = next}, out));
    }
    return 0;
}

int pattern_parse(struct tree *t, const char *text, size_t bytes, bool literal, struct err *e) {
    const uint8_t *u = (const uint8_t *)text;
    struct parser p = {.t = t, .text = u, .at = u, .end = u + bytes, .e = e};
    t->maker.region = &t->region;
    t->nodes = region_alloc(&t->region, PATTERN_NODES_MOST * sizeof *t->nodes);
    if (!t->nodes)
        return err_set(e, ERR_MEMORY, "no memory for a pattern");
    if (bytes > PATTERN_BYTES_MOST)
        return err_set(e, ERR_UNSUPPORTED, "the pattern has %zu bytes; accepted: at most %d", bytes,
                       PATTERN_BYTES_MOST);
    for (unsigned length; p.at < p.end; p.at += length)
        if (utf8_decode(p.at, p.end, &length) == UTF8_BAD)
            return refuse(&p, "it is not valid UTF-8");
    p.at = u;
    if (literal)
        return parse_literal(&p, &t->root);
    TRY(parse_alternatives(&p, &t->root));
    return p.at == p.end ? 0 : refuse(&p, "')' has no '('");
}
