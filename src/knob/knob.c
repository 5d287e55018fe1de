// knob.c - the table made from knob.def, and values to and from text.
//
// Everything here is generic over the eight types: a knob is a row of INFO and an offset into
// struct knobs. Only settle_length and knobs_idle, which says why a knob has no effect, know the
// meaning of single
// knobs.
#include "knob/knob.h"

#include "base/text.h"
#include "base/utf8.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// The code below stores and reads enumerators as int through the field's offset.
_Static_assert(sizeof(enum sched_kind) == sizeof(int), "choices are stored as int");

// ---------------------------------------------------------------- tables from knob.def

// clang-format off
// "No upper bound", for any type. It cannot be confused with a number, because no lower bound is
// negative. Cast to unsigned it is the largest value already.
#define KNOB_NO_MOST (-1)
// A period of time, as the field of a PERIOD stores it.
#define KNOB_NS(ns) (-(int64_t)(ns))

static const struct knobs DEFAULTS = {
#define INT(field, name, initial, least, most, flags, help) .field = (initial),
#define FLOAT(field, name, initial, least, most, flags, help) .field = (initial),
#define BOOL(field, name, initial, flags, help) .field = (initial),
#define CHOICE(field, name, initial, values, flags, help) .field = (initial),
#define STRING(field, name, initial, flags, help) .field = initial,
#define BYTES(field, name, initial, least, most, flags, help) .field = (initial),
#define DURATION(field, name, initial, least, most, flags, help) .field = (initial),
#define PERIOD(field, name, initial, most, flags, help) .field = (initial),
#include "knob/knob_each.h"
};

// sched_kind_choices[] = {"constant", ...}, indexed by the enumerators, which count from 0 in the
// same order.
#define V(constant, text) text,
#define CHOICE(field, name, initial, values, flags, help) \
    static const char *const field##_choices[] = {values};
#define KNOB(type, field)
#include "knob/knob_each.h"

#define MOST(most, ceiling) ((most) == KNOB_NO_MOST ? (ceiling) : (most))
#define ROW(kind, field_, name_, flags_, help_) \
    .name = (name_), .help = (help_), .type = (kind), .flags = (flags_), \
    .offset = offsetof(struct knobs, field_)

static const struct knob_info INFO[KNOB_COUNT] = {
#define INT(field, name, initial, least, most, flags, help) \
    {ROW(KNOB_INT, field, name, flags, help), \
     .least_int = (least), .most_int = MOST(most, INT64_MAX)},
#define FLOAT(field, name, initial, least, most, flags, help) \
    {ROW(KNOB_FLOAT, field, name, flags, help), \
     .least_float = (least), .most_float = MOST(most, DBL_MAX)},
#define BOOL(field, name, initial, flags, help) {ROW(KNOB_BOOL, field, name, flags, help)},
#define CHOICE(field, name, initial, values, flags, help) \
    {ROW(KNOB_CHOICE, field, name, flags, help), .choices = field##_choices, \
     .n_choices = sizeof field##_choices / sizeof *field##_choices},
#define STRING(field, name, initial, flags, help) {ROW(KNOB_STRING, field, name, flags, help)},
#define BYTES(field, name, initial, least, most, flags, help) \
    {ROW(KNOB_BYTES, field, name, flags, help), \
     .least_u64 = (least), .most_u64 = (uint64_t)(most)},
#define DURATION(field, name, initial, least, most, flags, help) \
    {ROW(KNOB_DURATION, field, name, flags, help), \
     .least_u64 = (least), .most_u64 = (uint64_t)(most)},
#define PERIOD(field, name, initial, most, flags, help) \
    {ROW(KNOB_PERIOD, field, name, flags, help), .most_int = (most)},
#include "knob/knob_each.h"
};

static const char *const NAMES[KNOB_COUNT] = {
#define INT(field, name, initial, least, most, flags, help) name,
#define FLOAT(field, name, initial, least, most, flags, help) name,
#define BOOL(field, name, initial, flags, help) name,
#define CHOICE(field, name, initial, values, flags, help) name,
#define STRING(field, name, initial, flags, help) name,
#define BYTES(field, name, initial, least, most, flags, help) name,
#define DURATION(field, name, initial, least, most, flags, help) name,
#define PERIOD(field, name, initial, most, flags, help) name,
#include "knob/knob_each.h"
};
// clang-format on

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---------------------------------------------------------------- names and descriptions

const struct knob_info *knob_info(int id) {
    return &INFO[id >= 0 && id < KNOB_COUNT ? id : 0];
}

int knob_find(const char *name) {
    for (int i = 0; i < KNOB_COUNT; i++)
        if (strcmp(NAMES[i], name) == 0)
            return i;
    return -1;
}

// Whether knob `id` is the one named, or one of the group that is named.
static bool is_named(int id, const char *name) {
    const size_t n = strlen(name);
    return strncmp(NAMES[id], name, n) == 0 && (NAMES[id][n] == '\0' || NAMES[id][n] == '.');
}

// When name is a group such as "batch", lists its knobs in out and returns true.
static bool describe_group(const char *name, char *out, size_t out_bytes) {
    size_t used = 0;
    for (int i = 0; i < KNOB_COUNT; i++) {
        if (!is_named(i, name))
            continue;
        int n = snprintf(out + used, out_bytes - used, "%s%s", used ? ", " : "", NAMES[i]);
        if (n < 0 || (size_t)n >= out_bytes - used)
            break;
        used += (size_t)n;
    }
    return used > 0;
}

static int find(const char *name, const char *value, enum set_by by, struct err *e) {
    int id = knob_find(name);
    if (id >= 0)
        return id;
    char group[512], elsewhere[KNOB_ELSEWHERE_BYTES];
    if (knob_elsewhere(name, value, by, elsewhere))
        return err_set(e, ERR_USAGE, "%s", elsewhere);
    if (*name && describe_group(name, group, sizeof group))
        return err_set(e, ERR_USAGE, "'%.100s' is a group of knobs, not a knob; it has %s", name,
                       group);
    const char *near = text_suggest(name, NAMES, KNOB_COUNT);
    if (near)
        return err_set(e, ERR_USAGE, "no knob is called '%.100s'; did you mean '%s'?", name, near);
    return err_set(e, ERR_USAGE, "no knob is called '%.100s'; 'haggle knobs' lists them all", name);
}

int knob_find_or_suggest(const char *name, struct err *e) {
    return find(name, NULL, SET_BY_COMMAND_LINE, e);
}

int knobs_select(const char *const *names, size_t n, bool selected[KNOB_COUNT], struct err *e) {
    for (int id = 0; id < KNOB_COUNT; id++)
        selected[id] = n == 0;
    for (size_t i = 0; i < n; i++) {
        bool any = false;
        for (int id = 0; id < KNOB_COUNT; id++)
            if (is_named(id, names[i]))
                any = selected[id] = true;
        const int elsewhere = any ? -1 : knob_elsewhere_id(names[i]);
        if (elsewhere >= 0)
            selected[elsewhere] = true;
        else if (!any)
            return knob_find_or_suggest(names[i], e);
    }
    return 0;
}

const char *knob_type_name(enum knob_type t) {
    static const char *const names[KNOB_TYPE_COUNT] = {
        [KNOB_INT] = "int",           [KNOB_FLOAT] = "float",  [KNOB_BOOL] = "bool",
        [KNOB_CHOICE] = "choice",     [KNOB_STRING] = "text",  [KNOB_BYTES] = "bytes",
        [KNOB_DURATION] = "duration", [KNOB_PERIOD] = "period"};
    return (int)t >= 0 && t < KNOB_TYPE_COUNT ? names[t] : "unknown";
}

const char *knob_set_by_name(enum set_by by) {
    static const char *const names[SET_BY_COUNT] = {[SET_BY_DEFAULT] = "default",
                                                    [SET_BY_RECIPE] = "recipe",
                                                    [SET_BY_COMMAND_LINE] = "command line",
                                                    [SET_BY_PLANNER] = "planner",
                                                    [SET_BY_TUNER] = "tuner"};
    return (int)by >= 0 && by < SET_BY_COUNT ? names[by] : "unknown";
}

const char *knob_choice(int id, int value) {
    const struct knob_info *i = knob_info(id);
    return i->type == KNOB_CHOICE && value >= 0 && value < i->n_choices ? i->choices[value] : "";
}

// ---------------------------------------------------------------- values as text

// Prints the fewest digits that read back to the same double, as a person would write them: 100 and
// 1e-8, not 1e+02 and 1e-08.
static void print_double(char *out, size_t bytes, double x) {
    int digits = 1;
    while (snprintf(out, bytes, "%.*g", digits, x), digits < 17 && strtod(out, NULL) != x)
        digits++;
    // %g uses an exponent when there are fewer digits than places before the decimal point.
    if (x >= 10 && x < 1e6)
        snprintf(out, bytes, "%.*g", digits > 6 ? digits : 6, x);
    char *exponent = strchr(out, 'e');
    if (exponent) {
        char *to = exponent + 1, *from = to;
        if (*from == '-')
            *to++ = *from++;
        while (*from == '+' || *from == '0')
            from++;
        memmove(to, from, strlen(from) + 1);
    }
}

static const void *field_of(const struct knobs *k, const struct knob_info *info) {
    return (const char *)k + info->offset;
}

static int choice_of(const struct knobs *k, const struct knob_info *info) {
    int v;
    memcpy(&v, field_of(k, info), sizeof v);
    return v;
}

const char *knobs_value(const struct knobs *k, int id, char out[KNOB_VALUE_BYTES]) {
    const struct knob_info *info = knob_info(id);
    const void *field = field_of(k, info);
    switch (info->type) {
    case KNOB_INT:
        snprintf(out, KNOB_VALUE_BYTES, "%" PRId64, *(const int64_t *)field);
        break;
    case KNOB_FLOAT:
        print_double(out, KNOB_VALUE_BYTES, *(const double *)field);
        break;
    case KNOB_BOOL:
        snprintf(out, KNOB_VALUE_BYTES, "%s", *(const bool *)field ? "true" : "false");
        break;
    case KNOB_CHOICE:
        snprintf(out, KNOB_VALUE_BYTES, "%s", knob_choice(id, choice_of(k, info)));
        break;
    case KNOB_STRING:
        snprintf(out, KNOB_VALUE_BYTES, "%s", (const char *)field);
        break;
    case KNOB_BYTES:
        text_exact_bytes(out, *(const uint64_t *)field);
        break;
    case KNOB_DURATION:
        text_exact_ns(out, *(const uint64_t *)field);
        break;
    case KNOB_PERIOD:
        if (*(const int64_t *)field < 0)
            text_exact_ns(out, -(uint64_t) * (const int64_t *)field);
        else
            snprintf(out, KNOB_VALUE_BYTES, "%" PRId64, *(const int64_t *)field);
        break;
    default:
        out[0] = '\0';
    }
    return out;
}

const char *knob_default(int id, char out[KNOB_VALUE_BYTES]) {
    return knobs_value(&DEFAULTS, id, out);
}

const char *knob_form(int id) {
    static const char *const forms[KNOB_TYPE_COUNT] = {
        [KNOB_INT] = "a whole number",
        [KNOB_FLOAT] = "a number",
        [KNOB_BOOL] = "one of these",
        [KNOB_CHOICE] = "one of these",
        [KNOB_STRING] = "one line",
        [KNOB_BYTES] = "a size such as 6GiB or 500MB",
        [KNOB_DURATION] = "a duration such as 80ms, 90s or 3m"};
    return forms[knob_info(id)->type];
}

const char *knob_accepted(int id, char out[KNOB_ACCEPTED_BYTES]) {
    const struct knob_info *info = knob_info(id);
    char least[64] = "", most[64] = "";
    size_t used = 0;
    switch (info->type) {
    case KNOB_INT:
        snprintf(least, sizeof least, "%" PRId64, info->least_int);
        if (info->most_int != INT64_MAX)
            snprintf(most, sizeof most, "%" PRId64, info->most_int);
        break;
    case KNOB_FLOAT:
        print_double(least, sizeof least, info->least_float);
        if (info->most_float != DBL_MAX)
            print_double(most, sizeof most, info->most_float);
        break;
    case KNOB_BYTES:
    case KNOB_DURATION: {
        const char *(*print)(char *, uint64_t) =
            info->type == KNOB_BYTES ? text_exact_bytes : text_exact_ns;
        print(least, info->least_u64);
        if (info->most_u64 != UINT64_MAX)
            print(most, info->most_u64);
        break;
    }
    case KNOB_PERIOD:
        snprintf(out, KNOB_ACCEPTED_BYTES, "0 to %" PRId64 " steps, or a duration", info->most_int);
        return out;
    case KNOB_BOOL:
        snprintf(out, KNOB_ACCEPTED_BYTES, "true, false");
        return out;
    case KNOB_CHOICE:
        out[0] = '\0';
        for (int i = 0; i < info->n_choices && used < KNOB_ACCEPTED_BYTES; i++)
            used += (size_t)snprintf(out + used, KNOB_ACCEPTED_BYTES - used, "%s%s", i ? ", " : "",
                                     info->choices[i]);
        return out;
    default:
        snprintf(out, KNOB_ACCEPTED_BYTES, "text");
        return out;
    }
    if (*most)
        snprintf(out, KNOB_ACCEPTED_BYTES, "%s to %s", least, most);
    else
        snprintf(out, KNOB_ACCEPTED_BYTES, "%s or more", least);
    return out;
}

struct flag_name {
    unsigned flag;
    const char *name;
};
static const struct flag_name EFFECTS[] = {
    {KNOB_SPEED, "speed"}, {KNOB_MEMORY, "memory"}, {KNOB_MATH, "math"}, {KNOB_OUTPUT, "output"}};
static const struct flag_name PLACES[] = {
    {KNOB_IN_PROGRAM, "program"}, {KNOB_IN_BYTES, "bytes"}, {KNOB_IN_LOADER, "loader"},
    {KNOB_IN_NUMBERS, "numbers"}, {KNOB_IN_HOST, "host"},   {KNOB_IN_OUTPUT, "output"}};

static const char *list_flags(const struct flag_name *names, size_t n, unsigned flags,
                              char out[KNOB_EFFECT_BYTES]) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++)
        if (flags & names[i].flag)
            used += (size_t)snprintf(out + used, KNOB_EFFECT_BYTES - used, "%s%s", used ? ", " : "",
                                     names[i].name);
    return out;
}

const char *knob_effect(int id, char out[KNOB_EFFECT_BYTES]) {
    return list_flags(EFFECTS, COUNT(EFFECTS), knob_info(id)->flags, out);
}

const char *knob_places(int id, char out[KNOB_EFFECT_BYTES]) {
    return list_flags(PLACES, COUNT(PLACES), knob_info(id)->flags, out);
}

const char *knob_place_name(unsigned place) {
    for (size_t i = 0; i < COUNT(PLACES); i++)
        if (PLACES[i].flag == place)
            return PLACES[i].name;
    return "";
}

// ---------------------------------------------------------------- setting

void knobs_init(struct knobs *k) {
    *k = DEFAULTS;
}

// Returns what is wrong with a string, or NULL. Strings end up in YAML, JSON, terminals and file
// names, so they must be one line of valid UTF-8: no control characters, no line or paragraph
// separators (YAML folds them), no surrogates or non-characters.
static const char *string_fault(const char *s) {
    if (strlen(s) >= KNOB_STRING_BYTES)
        return "it is longer than 1023 bytes";
    const uint8_t *p = (const uint8_t *)s, *end = p + strlen(s);
    for (unsigned bytes; p < end; p += bytes) {
        uint32_t c = utf8_decode(p, end, &bytes);
        if (c == UTF8_BAD)
            return "it is not valid UTF-8";
        if (c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0xFEFF ||
            (c & 0xFFFE) == 0xFFFE)
            return "it has a character that cannot be printed";
    }
    return NULL;
}

// "batch.micro='0' is not accepted: it takes a whole number, 1 to 65536". `why`, if not NULL,
// replaces "it takes a whole number". A long value is cut, so that there is room for what is
// accepted.
static int refuse(int id, const char *value, const char *why, struct err *e) {
    char accepted[KNOB_ACCEPTED_BYTES];
    const char *shown = value;
    char cut[72];
    if (string_fault(value) != NULL && strlen(value) < KNOB_STRING_BYTES) {
        shown = "(unprintable)";
    } else if (strlen(value) >= sizeof cut) {
        size_t n = sizeof cut - 4;
        while (n > 0 && ((unsigned char)value[n] & 0xC0) == 0x80)
            n--;
        snprintf(cut, sizeof cut, "%.*s...", (int)n, value);
        shown = cut;
    }
    return err_set(e, ERR_USAGE, "%s='%s' is not accepted: %s%s, %s", NAMES[id], shown,
                   why ? "" : "it takes ", why ? why : knob_form(id), knob_accepted(id, accepted));
}

// steps and epochs both say how long a run is. The one that comes later in enum set_by decides: a
// command line may replace a recipe's epochs by steps. Both from one place are refused.
static int settle_length(struct knobs *k, int id, const char *value, enum set_by by,
                         struct err *e) {
    double passes = 0;
    if (id == KNOB_epochs && (text_parse_double(value, &passes, NULL) != 0 || !(passes > 0)))
        return 0;
    const int other = id == KNOB_steps ? KNOB_epochs : KNOB_steps;
    if ((id != KNOB_steps && id != KNOB_epochs) || (id == KNOB_steps && !(k->epochs > 0)))
        return 0;
    if (by != SET_BY_DEFAULT && k->by[other] == by)
        return err_set(e, ERR_USAGE,
                       "%s=%s: %s is set too (%s), and both say how long the run is; set steps or "
                       "epochs, not both",
                       NAMES[id], value, NAMES[other], knob_set_by_name(by));
    if (id == KNOB_steps && k->by[other] < by) {
        k->epochs = 0;
        k->by[other] = SET_BY_DEFAULT;
    }
    return 0;
}

int knobs_set_at(struct knobs *k, int id, const char *value, enum set_by by, struct err *e) {
    if (id < 0 || id >= KNOB_COUNT)
        return err_set(e, ERR_INTERNAL, "there is no knob number %d; there are %d", id, KNOB_COUNT);
    const struct knob_info *info = &INFO[id];
    void *field = (char *)k + info->offset;
    TRY(settle_length(k, id, value, by, e));
    switch (info->type) {
    case KNOB_INT: {
        int64_t v;
        if (text_parse_i64(value, &v, NULL) != 0 || v < info->least_int || v > info->most_int)
            return refuse(id, value, NULL, e);
        *(int64_t *)field = v;
        break;
    }
    case KNOB_FLOAT: {
        double v;
        if (text_parse_double(value, &v, NULL) != 0 ||
            !(v >= info->least_float && v <= info->most_float))
            return refuse(id, value, NULL, e);
        *(double *)field = v == 0 ? 0 : v; // -0 would print as "-0" and have another hash than 0
        break;
    }
    case KNOB_BOOL: {
        bool v;
        if (text_parse_bool(value, &v, NULL) != 0)
            return refuse(id, value, NULL, e);
        *(bool *)field = v;
        break;
    }
    case KNOB_CHOICE: {
        int v = 0;
        while (v < info->n_choices && strcmp(info->choices[v], value) != 0)
            v++;
        if (v == info->n_choices) {
            char hint[KNOB_ELSEWHERE_BYTES + 32] = "", elsewhere[KNOB_ELSEWHERE_BYTES];
            const char *near = text_suggest(value, info->choices, (size_t)info->n_choices);
            if (knob_value_elsewhere(id, value, elsewhere))
                snprintf(hint, sizeof hint, "%s. It takes one of these", elsewhere);
            else if (near)
                snprintf(hint, sizeof hint, "did you mean '%s'? It takes one of these", near);
            return refuse(id, value, *hint ? hint : NULL, e);
        }
        memcpy(field, &v, sizeof v);
        break;
    }
    case KNOB_STRING: {
        const char *fault = string_fault(value);
        if (fault)
            return refuse(id, value, fault, e);
        memcpy(field, value, strlen(value) + 1);
        break;
    }
    case KNOB_BYTES:
    case KNOB_DURATION: {
        const bool bytes = info->type == KNOB_BYTES;
        uint64_t v;
        if ((bytes ? text_parse_bytes : text_parse_duration_ns)(value, &v, NULL) != 0 ||
            v < info->least_u64 || v > info->most_u64)
            return refuse(id, value, NULL, e);
        *(uint64_t *)field = v;
        break;
    }
    case KNOB_PERIOD: {
        int64_t steps;
        uint64_t ns = 0;
        const bool counted = text_parse_i64(value, &steps, NULL) == 0;
        if (counted ? steps < 0 || steps > info->most_int
                    : text_parse_duration_ns(value, &ns, NULL) != 0 || ns > INT64_MAX)
            return refuse(id, value, "it takes a number of steps or a time such as 90s or 10m", e);
        *(int64_t *)field = counted ? steps : -(int64_t)ns;
        break;
    }
    default:
        return err_set(e, ERR_INTERNAL, "knob %s has no type", info->name);
    }
    k->by[id] = by;
    return 0;
}

int knobs_set(struct knobs *k, const char *name, const char *value, enum set_by by, struct err *e) {
    int id = find(name, value, by, e);
    return id < 0 ? id : knobs_set_at(k, id, value, by, e);
}

int knobs_set_assignment(struct knobs *k, const char *text, enum set_by by, struct err *e) {
    const char *equals = strchr(text, '=');
    char name[128];
    if (!equals || equals == text)
        return err_set(e, ERR_USAGE,
                       "'%.100s' is not a setting; write knob=value, such as batch.micro=4", text);
    if ((size_t)(equals - text) >= sizeof name)
        return err_set(e, ERR_USAGE, "'%.100s...' is too long for the name of a knob", text);
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = '\0';
    return knobs_set(k, name, equals + 1, by, e);
}

// The last part of a path, without its extension when `cut_extension`.
static void path_stem(const char *path, bool cut_extension, char *out, size_t bytes) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (cut_extension)
        for (size_t dot = end; dot > begin + 1; dot--)
            if (path[dot - 1] == '.') {
                end = dot - 1;
                break;
            }
    size_t n = end - begin < bytes - 1 ? end - begin : bytes - 1;
    memcpy(out, path + begin, n);
    out[n] = '\0';
}

int knobs_name_run(struct knobs *k, const char *recipe_path, struct err *e) {
    if (k->run_dir[0])
        return 0;
    char stem[256], dir[sizeof stem + 8];
    // The extension .yaml is cut off a recipe. A dot in a model's name (qwen2-0.5b) begins no
    // extension.
    path_stem(recipe_path ? recipe_path : k->model, recipe_path != NULL, stem, sizeof stem);
    if (stem[0] == '\0' || strcmp(stem, ".") == 0 || strcmp(stem, "..") == 0 ||
        strcmp(stem, "/") == 0)
        snprintf(stem, sizeof stem, "default");
    snprintf(dir, sizeof dir, "runs/%s", stem);
    return knobs_set_at(k, KNOB_run_dir, dir, k->by[KNOB_run_dir], e);
}

// ---------------------------------------------------------------- comparing

// Compares values, not texts: texts would take a hundred times as long, and a search compares every
// setting with every other.
bool knobs_same(const struct knobs *a, const struct knobs *b, int id) {
    const struct knob_info *info = knob_info(id);
    const void *fa = field_of(a, info), *fb = field_of(b, info);
    switch (info->type) {
    case KNOB_FLOAT: // compares bits, so a NaN equals itself and -0 differs from 0
        return memcmp(fa, fb, sizeof(double)) == 0;
    case KNOB_BOOL:
        return *(const bool *)fa == *(const bool *)fb;
    case KNOB_CHOICE:
        return choice_of(a, info) == choice_of(b, info);
    case KNOB_STRING:
        return strcmp(fa, fb) == 0;
    default: // INT, BYTES, DURATION and PERIOD
        return *(const uint64_t *)fa == *(const uint64_t *)fb;
    }
}

bool knobs_equal(const struct knobs *a, const struct knobs *b) {
    for (int i = 0; i < KNOB_COUNT; i++)
        if (!knobs_same(a, b, i))
            return false;
    return true;
}

int64_t knobs_world(const struct knobs *k) {
    const int64_t data = k->parallel_data > 0 ? k->parallel_data : 1;
    return k->ranks > 0 ? k->ranks : data * k->parallel_tensor * k->parallel_pipe;
}

int64_t knobs_replicas(const struct knobs *k) {
    const int64_t left = knobs_world(k) / (k->parallel_tensor * k->parallel_pipe);
    return k->parallel_data > 0 ? k->parallel_data : left > 0 ? left : 1;
}

int64_t knobs_samples(const struct knobs *k) {
    return knobs_replicas(k) * k->batch_micro * k->batch_accum;
}

bool knobs_saves(const struct knobs *k) {
    return k->save_every != 0 || k->save_last || k->save_best;
}

int64_t knobs_interactive_seq(const struct knobs *k) {
    return k->interactive_seq > 0 ? k->interactive_seq : k->seq;
}

static bool reads_corpus(const struct knobs *k) {
    return !k->data_path[0] || strcmp(k->data_path, "synthetic") == 0;
}

bool knobs_packs(const struct knobs *k) {
    return k->data_pack != DATA_PACK_NONE || reads_corpus(k);
}

static bool has_validation(const struct knobs *k) {
    return k->data_val > 0 || k->data_val_path[0];
}

// Whether the run certainly reads the built-in corpus as bytes. It also does so when the model's
// folder has no tokenizer, but that is not known here.
static bool reads_endless_corpus(const struct knobs *k) {
    return reads_corpus(k) && strcmp(k->tokenizer, "bytes") == 0;
}

// Whether the knob decides how requests are read. Requests are records like those of data.path.
// With a second model, its recipe decides how they are read.
static bool reads_requests(const struct knobs *k, int id) {
    return k->goal == GOAL_HYBRID && !k->interactive_recipe[0] &&
           (id == KNOB_data_shape || id == KNOB_data_template || id == KNOB_data_keys ||
            id == KNOB_data_system || id == KNOB_data_loss);
}

// Why a knob of ranks has no effect; NULL: it has one.
static const char *idle_of_ranks(const struct knobs *k, int id) {
    static const char one[] = "the model has one replica (parallel.data)";
    static const char steps_alone[] = "comm.every is above 1, so no gradients are summed";
    const bool alone = knobs_replicas(k) == 1, apart = k->comm_every > 1;
    switch (id) {
    case KNOB_parallel_sequence:
        return k->parallel_tensor == 1 ? "parallel.tensor is 1" : NULL;
    case KNOB_zero_stage:
    case KNOB_comm_every:
        return alone ? one : NULL;
    case KNOB_comm_overlap:
        return alone ? one : apart ? steps_alone : NULL;
    case KNOB_comm_bucket:
        return alone ? one : k->zero_stage == ZERO_STAGE_3 ? "zero.stage=3 sums by layers" : NULL;
    case KNOB_comm_reduce:
        return alone ? one : apart ? steps_alone : k->batch_accum == 1 ? "batch.accum is 1" : NULL;
    case KNOB_comm_prefetch:
        return alone ? one : k->zero_stage != ZERO_STAGE_3 ? "zero.stage is not 3" : NULL;
    case KNOB_pipe_schedule:
        return k->parallel_pipe == 1 ? "parallel.pipe is 1" : NULL;
    case KNOB_pipe_chunks:
        return k->parallel_pipe == 1                           ? "parallel.pipe is 1"
               : k->pipe_schedule != PIPE_SCHEDULE_INTERLEAVED ? "pipe.schedule is not interleaved"
                                                               : NULL;
    case KNOB_comm_engine:
    case KNOB_comm_timeout:
        return knobs_world(k) == 1 ? "there is one rank (ranks)" : NULL;
    default:
        return NULL;
    }
}

// Whether a rank holds a part of the weights only.
static bool shares_weights(const struct knobs *k) {
    return k->parallel_tensor > 1 || k->parallel_pipe > 1 ||
           (k->zero_stage == ZERO_STAGE_3 && knobs_replicas(k) > 1);
}

static const char *no_text(const struct knobs *k) {
    return k->generate_tokens == 0 ? "generate.tokens is 0" : NULL;
}

const char *knobs_idle(const struct knobs *k, int id) {
    switch (id) {
    case KNOB_steps:
        return k->epochs > 0 ? "epochs decides the number of steps" : NULL;
    case KNOB_lora_alpha:
    case KNOB_lora_rslora:
    case KNOB_lora_targets:
    case KNOB_lora_dropout:
        return k->lora_rank == 0 && !*k->lora_from ? "lora.rank is 0, so there is no adapter"
                                                   : NULL;
    case KNOB_optim_decay_all:
        return k->optim_decay == 0 ? "optim.decay is 0" : NULL;
    case KNOB_scale_start:
    case KNOB_scale_growth:
    case KNOB_scale_floor:
        return k->precision != PRECISION_FP16 ? "only precision=fp16 scales the loss" : NULL;
    case KNOB_interactive_micro:
    case KNOB_interactive_seq:
    case KNOB_interactive_stdin:
    case KNOB_interactive_socket:
    case KNOB_interactive_queue:
    case KNOB_interactive_respond:
    case KNOB_interactive_data:
    case KNOB_interactive_recipe:
        return k->goal != GOAL_HYBRID ? "only goal=hybrid takes requests" : NULL;
    case KNOB_recompute_every:
        return k->recompute_mode != RECOMPUTE_MODE_FULL ? "recompute.mode is not full" : NULL;
    case KNOB_recompute_ratio:
        return k->recompute_mode != RECOMPUTE_MODE_SELECTIVE ? "recompute.mode is not selective"
                                                             : NULL;
    case KNOB_fuse_optim:
        return k->optim_state != OPTIM_STATE_FP32 ? "only optim.state=fp32 has separate passes"
                                                  : NULL;
    case KNOB_noise_every:
        return k->batch_accum * (k->comm_every > 1 ? 1 : knobs_replicas(k)) < 2
                   ? "it needs batch.accum of 2 or more, or replicas that take steps together"
                   : NULL;
    case KNOB_generate_tokens:
        return k->generate_tokens > 0 && shares_weights(k)
                   ? "no rank has all weights, and a sample needs them: generate "
                     "from a checkpoint"
                   : NULL;
    case KNOB_generate_temperature:
    case KNOB_generate_repeat:
        return no_text(k);
    case KNOB_generate_top_k:
    case KNOB_generate_top_p:
    case KNOB_generate_min_p:
        return no_text(k)                     ? no_text(k)
               : k->generate_temperature == 0 ? "generate.temperature=0 takes the likeliest token"
                                              : NULL;
    case KNOB_sched_min:
        return k->sched_kind == SCHED_CONSTANT ? "sched.kind=constant never decays" : NULL;
    case KNOB_sched_decay:
        return k->sched_kind != SCHED_WSD ? "only sched.kind=wsd decays at the end" : NULL;
    case KNOB_data_workers:
        return k->data_prefetch == 0 ? "data.prefetch is 0, so no batch is prepared ahead" : NULL;
    case KNOB_data_ram:
        return reads_endless_corpus(k) ? "the built-in corpus in bytes never repeats" : NULL;
    case KNOB_data_val:
        return k->data_val_path[0] ? "data.val_path gives the validation data" : NULL;
    case KNOB_data_long:
        return k->data_pack == DATA_PACK_STREAM ? "data.pack=stream cuts nothing off" : NULL;
    case KNOB_data_val_path:
    case KNOB_data_shape:
    case KNOB_data_template:
    case KNOB_data_keys:
    case KNOB_data_system:
    case KNOB_data_loss:
    case KNOB_data_pack:
    case KNOB_data_bad:
        return !k->data_path[0] && !reads_requests(k, id)
                   ? "data.path is empty, and the built-in corpus is plain text"
                   : NULL;
    case KNOB_eval_every:
        return !has_validation(k) && k->eval_every > 0
                   ? "data.val is 0, so there is no validation data"
                   : NULL;
    case KNOB_eval_batches:
        return k->eval_every == 0   ? "eval.every is 0, so nothing is validated"
               : !has_validation(k) ? "data.val is 0, so there is no validation data"
                                    : NULL;
    case KNOB_cuda_tf32:
        if (k->precision != PRECISION_FP32)
            return "it is for precision=fp32";
        return k->device == DEVICE_CPU ? "device is cpu" : NULL;
    case KNOB_cuda_deterministic:
    case KNOB_cuda_cudnn:
        if (k->cuda_kernels == CUDA_KERNELS_PLAIN)
            return "plain kernels use no library and always give the same bits";
        return k->device == DEVICE_CPU ? "device is cpu" : NULL;
    case KNOB_cuda_graphs:
    case KNOB_cuda_kernels:
        return k->device == DEVICE_CPU ? "device is cpu" : NULL;
    case KNOB_cpu_blas:
        if (k->precision != PRECISION_FP32 && k->device == DEVICE_CPU)
            return "16-bit products always use builtin";
        return k->device == DEVICE_CUDA ? "device is cuda" : NULL;
    case KNOB_cpu_isa:
        return k->device == DEVICE_CUDA ? "device is cuda" : NULL;
    default:
        return idle_of_ranks(k, id);
    }
}

int knobs_hash(const struct knobs *k, unsigned effects, char out[HASH_TEXT_BYTES], struct err *e) {
    struct hash *h = hash_new();
    if (!h)
        return err_set(e, ERR_MEMORY, "no memory for the hash of the knobs");
    char value[KNOB_VALUE_BYTES];
    uint64_t product = 1;
    bool factors = false;
    for (int i = 0; i < KNOB_COUNT; i++) {
        unsigned hit = INFO[i].flags & effects & KNOB_EFFECTS;
        if (hit == KNOB_MATH && (INFO[i].flags & KNOB_FACTOR)) {
            const int64_t *factor = field_of(k, &INFO[i]);
            product *= *factor > 0 ? (uint64_t)*factor : 1;
            factors = true;
            continue;
        }
        if (!hit)
            continue;
        // The terminating NULs separate names from values, so that different lists of knobs never
        // give the same bytes.
        knobs_value(k, i, value);
        hash_add(h, NAMES[i], strlen(NAMES[i]) + 1);
        hash_add(h, value, strlen(value) + 1);
    }
    if (factors) {
        snprintf(value, sizeof value, "%" PRIu64, product);
        hash_add(h, "product of factors", sizeof "product of factors");
        hash_add(h, value, strlen(value) + 1);
    }
    hash_text(h, out);
    hash_free(h);
    return 0;
}
