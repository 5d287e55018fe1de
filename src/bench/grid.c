// grid.c - see grid.h.
#include "bench/grid.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static int add_value(struct grid *g, struct grid_axis *a, const char *text, size_t length,
                     struct err *e) {
    char *copy = region_alloc(&g->region, length + 1);
    const char **values = region_grow(&g->region, a->values, a->n, &a->capacity, sizeof *values);
    if (!copy || !values)
        return err_set(e, ERR_MEMORY, "out of memory for the grid");
    if (a->n >= GRID_MOST)
        return err_set(e, ERR_USAGE, "%s has more than %d values", knob_info(a->knob)->name,
                       GRID_MOST);
    memcpy(copy, text, length);
    copy[length] = '\0';
    a->values = values;
    a->values[a->n++] = copy;
    return 0;
}

struct range {
    long long first, last, step;
    char how; // '+' or '*'
};

// Reads "first-last", "first-last+step" or "first-last*factor" in whole numbers.
static bool read_range(const char *text, size_t length, struct range *r) {
    char buffer[64], extra;
    if (length >= sizeof buffer)
        return false;
    memcpy(buffer, text, length);
    buffer[length] = '\0';
    *r = (struct range){.step = 1, .how = '+'};
    if (buffer[0] < '0' || buffer[0] > '9')
        return false;
    int n = sscanf(buffer, "%lld-%lld%c%lld%c", &r->first, &r->last, &r->how, &r->step, &extra);
    return n == 2 || (n == 4 && (r->how == '+' || r->how == '*'));
}

static int add_range(struct grid *g, struct grid_axis *a, const char *text, size_t length,
                     const struct range *r, struct err *e) {
    bool endless = r->how == '*' ? r->step < 2 || r->first < 1 : r->step < 1;
    if (endless || r->last < r->first)
        return err_set(e, ERR_USAGE,
                       "%s=%.*s is not a range; accepted: first-last, first-last+step (1 or more), "
                       "first-last*factor (2 or more), with first up to last",
                       knob_info(a->knob)->name, (int)length, text);
    for (long long x = r->first; x <= r->last;) {
        char value[32];
        int n = snprintf(value, sizeof value, "%lld", x);
        TRY(add_value(g, a, value, (size_t)n, e));
        if (r->how == '*' ? __builtin_mul_overflow(x, r->step, &x)
                          : __builtin_add_overflow(x, r->step, &x))
            break;
    }
    return 0;
}

static int read_axis(struct grid *g, struct grid_axis *a, const char *list, struct err *e) {
    a->n = 0;
    for (const char *at = list;;) {
        size_t length = strcspn(at, ",");
        struct range r;
        // Only knobs of whole numbers have ranges: "gpt2-124m" and "1e-3" are values.
        if (knob_info(a->knob)->type == KNOB_INT && read_range(at, length, &r))
            TRY(add_range(g, a, at, length, &r, e));
        else
            TRY(add_value(g, a, at, length, e));
        if (at[length] == '\0')
            return 0;
        at += length + 1;
    }
}

static struct grid_axis *axis_of(struct grid *g, int knob) {
    for (int i = 0; i < g->n_axes; i++)
        if (g->axes[i].knob == knob)
            return &g->axes[i];
    if (g->n_axes == GRID_AXES_MOST)
        return NULL;
    struct grid_axis *a = &g->axes[g->n_axes++];
    a->knob = knob;
    return a;
}

int grid_read(struct grid *g, const char *const *assignments, size_t n, struct err *e) {
    *g = (struct grid){.n = 1};
    for (size_t i = 0; i < n; i++) {
        const char *equals = strchr(assignments[i], '=');
        char name[64];
        if (!equals || (size_t)(equals - assignments[i]) >= sizeof name)
            return err_set(e, ERR_USAGE, "'%s' is not accepted; accepted: knob=value,value,...",
                           assignments[i]);
        snprintf(name, sizeof name, "%.*s", (int)(equals - assignments[i]), assignments[i]);
        int knob = knob_find_or_suggest(name, e);
        if (knob < 0)
            return knob;
        struct grid_axis *a = axis_of(g, knob);
        if (!a)
            return err_set(e, ERR_USAGE, "more than %d knobs in one grid", GRID_AXES_MOST);
        TRY(read_axis(g, a, equals + 1, e));
    }
    for (int i = 0; i < g->n_axes; i++) {
        if (g->axes[i].n > GRID_MOST / g->n)
            return err_set(e, ERR_USAGE, "the grid has more than %d configurations", GRID_MOST);
        g->n *= g->axes[i].n;
    }
    return 0;
}

void grid_from_list(struct grid *g, const struct grid_setting *list, size_t n) {
    *g = (struct grid){.list = list, .n = n};
}

static int scale_knob(struct knobs *k, int id, bool divide, long long factor, struct err *e) {
    const struct knob_info *info = knob_info(id);
    char value[32];
    if (info->type != KNOB_INT || factor < 1)
        return err_set(e, ERR_USAGE, "%s cannot be scaled; whole numbers can, by 1 or more",
                       info->name);
    long long x = *(const int64_t *)(const void *)((const char *)k + info->offset);
    if (divide && x % factor != 0)
        return err_set(e, ERR_USAGE, "%s=%lld cannot be divided by %lld", info->name, x, factor);
    if (!divide && __builtin_mul_overflow(x, factor, &x))
        return err_set(e, ERR_USAGE, "%s x %lld is too large", info->name, factor);
    snprintf(value, sizeof value, "%lld", divide ? x / factor : x);
    return knobs_set_at(k, id, value, SET_BY_PLANNER, e);
}

int grid_change(struct knobs *k, const char *settings, struct err *e) {
    for (const char *at = settings; *at;) {
        char text[KNOB_VALUE_BYTES + 64], name[64];
        size_t n = strcspn(at, " "), sign;
        if (n >= sizeof text)
            return err_set(e, ERR_USAGE, "'%.40s...' is too long for a setting", at);
        snprintf(text, sizeof text, "%.*s", (int)n, at);
        at += n + (at[n] == ' ');
        sign = strcspn(text, "=*/");
        if (text[sign] == '=') {
            TRY(knobs_set_assignment(k, text, SET_BY_PLANNER, e));
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)sign, text);
        int id = knob_find_or_suggest(name, e);
        if (id < 0)
            return id;
        TRY(scale_knob(k, id, text[sign] == '/', text[sign] ? atoll(text + sign + 1) : 0, e));
    }
    return 0;
}

void grid_free(struct grid *g) {
    region_free(&g->region);
    *g = (struct grid){0};
}

const char *grid_value(const struct grid *g, size_t i, int axis) {
    for (int a = g->n_axes - 1; a > axis; a--)
        i /= g->axes[a].n;
    return g->axes[axis].values[i % g->axes[axis].n];
}

int grid_knobs(const struct grid *g, size_t i, const struct knobs *base, struct knobs *out,
               struct err *e) {
    *out = *base;
    if (g->list)
        return grid_change(out, g->list[i].settings, e);
    for (int a = 0; a < g->n_axes; a++)
        TRY(knobs_set_at(out, g->axes[a].knob, grid_value(g, i, a), SET_BY_COMMAND_LINE, e));
    return 0;
}

const char *grid_name(const struct grid *g, size_t i, char out[GRID_NAME_BYTES]) {
    size_t at = 0;
    bool varies = false;
    out[0] = '\0';
    if (g->list) {
        snprintf(out, GRID_NAME_BYTES, "%s", g->list[i].name);
        return out;
    }
    for (int a = 0; a < g->n_axes; a++)
        varies = varies || g->axes[a].n > 1;
    for (int a = 0; a < g->n_axes && at < GRID_NAME_BYTES; a++)
        if (!varies || g->axes[a].n > 1)
            at += (size_t)snprintf(out + at, GRID_NAME_BYTES - at, "%s%s=%s", at ? " " : "",
                                   knob_info(g->axes[a].knob)->name, grid_value(g, i, a));
    if (at == 0)
        snprintf(out, GRID_NAME_BYTES, "as given");
    return out;
}
