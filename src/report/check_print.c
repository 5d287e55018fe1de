// check_print.c - see check_print.h.
#include "report/check_print.h"

#include "base/text.h"
#include "report/bench_print.h"

#include <math.h>
#include <string.h>

// The peak of a process varies by some pages. A smaller change counts as no difference.
static const double MEMORY_NOISE_BYTES = 512 * 1024;

static void print_bytes(FILE *f, double bytes, const char *how) {
    char text[TEXT_UNIT_BYTES];
    fprintf(f, ", memory %c%s%s", bytes < 0 ? '-' : '+', text_bytes(text, (uint64_t)fabs(bytes)),
            how);
}

static const char *shown(const char *value) {
    return *value ? value : "\"\"";
}

// Sample files are in a temporary folder that is removed, so only their names are shown.
static const char *file_name(const char *value) {
    const char *slash = strrchr(value, '/');
    return slash && slash[1] ? slash + 1 : shown(value);
}

static void print_pair(const struct check_knob *k, int i, FILE *f) {
    const struct check_pair *p = &k->pairs[i];
    const struct bench_row *a = &k->bench.rows[i], *b = &k->bench.rows[i + 1];
    const int direction = ratio_direction(&p->speed);
    bool differs = direction != 0 || p->loss != 0;
    fprintf(f, "    %s -> %s: ", file_name(k->values[i]), file_name(k->values[i + 1]));
    if (a->n_rounds == 0 || b->n_rounds == 0) {
        fprintf(f, "not measured: %s\n", a->n_rounds == 0 ? a->reason : b->reason);
        return;
    }
    if (isnan(p->speed.low))
        fprintf(f, "tokens/s %+.0f %%, by too few rounds to judge", 100 * (p->speed.median - 1));
    else
        fprintf(f, "tokens/s%s %+.0f %% (95 %%: %+.0f to %+.0f)",
                direction ? "" : ": no measurable difference", 100 * (p->speed.median - 1),
                100 * (p->speed.low - 1), 100 * (p->speed.high - 1));
    fprintf(f, ", p99 %.1f -> %.1f ms%s", 1e-6 * a->metrics.step_p99.value,
            1e-6 * b->metrics.step_p99.value, quantile_has_bound(&b->metrics.step_p99) ? "" : "?");
    if (fabs(p->memory_bytes) >= MEMORY_NOISE_BYTES) {
        print_bytes(f, p->memory_bytes, "");
        differs = true;
    } else if (fabs(p->planned_bytes) > 0 &&
               knob_info(k->id)->flags & (KNOB_IN_BYTES | KNOB_IN_PROGRAM)) {
        print_bytes(f, p->planned_bytes, " (planned)");
        differs = true;
    } else {
        fprintf(f, ", memory the same");
    }
    if (p->loss == 0)
        fprintf(f, ", loss the same%s\n", differs ? "" : ": no measurable difference");
    else
        fprintf(f, ", loss %+.2g\n", p->loss);
    if (p->busy[0])
        fprintf(f, "        busy meanwhile: %s\n", p->busy);
}

static void print_places(const struct check_knob *k, FILE *f) {
    fprintf(f, "    shows in:");
    for (int p = 0; p < k->n_places; p++) {
        const struct check_place *x = &k->places[p];
        fprintf(f, "%s %s%s%s", p ? "," : "", knob_place_name(x->place),
                !x->looked    ? " (not looked at: "
                : !x->differs ? " (NO DIFFERENCE SEEN"
                              : "",
                !x->looked ? x->reason : "");
        fputs(x->looked && x->differs ? "" : ")", f);
    }
    fputc('\n', f);
}

void check_print(const struct check *c, FILE *f) {
    bool unbounded = false;
    for (int i = 0; i < c->n; i++) {
        const struct check_knob *k = &c->knobs[i];
        const char *with = knob_pair_of(k->id)->with;
        char effect[KNOB_EFFECT_BYTES];
        fprintf(f, "%s [%s]%s%s\n", knob_info(k->id)->name, knob_effect(k->id, effect),
                with && *with ? "  with " : "", with ? with : "");
        if (k->why_not[0])
            fprintf(f, "    not measured: %s\n", k->why_not);
        for (int v = 0; v + 1 < k->n_values; v++) {
            print_pair(k, v, f);
            unbounded = true;
        }
        print_places(k, f);
    }
    if (unbounded)
        fprintf(f,
                "\nOf twenty values that are equally fast, about one is called faster or slower by "
                "chance.\n");
    if (unbounded)
        fprintf(f, "? %lld steps are too few for a 95 %% bound: p99 needs %zu\n",
                (long long)c->steps * c->rounds, sample_bound_needs(0.99));
}

// ---------------------------------------------------------------- JSON

static void put_pair(const struct check_knob *k, int i, struct json_writer *w) {
    const struct check_pair *p = &k->pairs[i];
    const struct bench_row *rows = &k->bench.rows[i];
    bool both = rows[0].n_rounds > 0 && rows[1].n_rounds > 0;
    json_put_object_begin(w);
    json_member_string(w, "a", k->values[i]);
    json_member_string(w, "b", k->values[i + 1]);
    json_member_bool(w, "measured", both);
    if (!both)
        json_member_string(w, "reason", rows[0].n_rounds == 0 ? rows[0].reason : rows[1].reason);
    bench_put_ratio(&p->speed, "tokens_per_s_ratio", w);
    json_member_i64(w, "speed_direction",
                    ratio_direction(&p->speed)); // 0: no measurable difference
    json_member_string(w, "busy", p->busy[0] ? p->busy : NULL);
    json_member_double(w, "step_ms_p99_a", both ? rows[0].metrics.step_p99.value / 1e6 : NAN);
    json_member_double(w, "step_ms_p99_b", both ? rows[1].metrics.step_p99.value / 1e6 : NAN);
    json_member_double(w, "memory_bytes_difference", p->memory_bytes);
    json_member_double(w, "memory_planned_bytes_difference", p->planned_bytes);
    json_member_double(w, "loss_difference", p->loss);
    json_put_object_end(w);
}

static void put_places(const struct check_knob *k, struct json_writer *w) {
    json_member_array(w, "places");
    for (int p = 0; p < k->n_places; p++) {
        const struct check_place *x = &k->places[p];
        json_put_object_begin(w);
        json_member_string(w, "place", knob_place_name(x->place));
        if (x->looked) {
            json_member_bool(w, "differs", x->differs);
        } else {
            json_member_null(w, "differs");
            json_member_string(w, "reason", x->reason);
        }
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

void check_put_json(const struct check *c, struct json_writer *w) {
    json_put_array_begin(w);
    for (int i = 0; i < c->n; i++) {
        const struct check_knob *k = &c->knobs[i];
        const char *with = knob_pair_of(k->id)->with;
        char text[KNOB_EFFECT_BYTES];
        json_put_object_begin(w);
        json_member_string(w, "name", knob_info(k->id)->name);
        json_member_string(w, "effect", knob_effect(k->id, text));
        json_member_string(w, "with", with ? with : "");
        json_member_bool(w, "measured", k->why_not[0] == '\0');
        if (k->why_not[0])
            json_member_string(w, "reason", k->why_not);
        json_member_array(w, "pairs");
        for (int v = 0; v + 1 < k->n_values; v++)
            put_pair(k, v, w);
        json_put_array_end(w);
        put_places(k, w);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}
