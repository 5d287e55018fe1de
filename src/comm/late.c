// late.c - see late.h. Ranks that do the same thing are named together, so that the message of a
// large job still fits.
#include "comm/late.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

void doing_note(struct doing *d, const char *about) {
    if (d->now[0] != '\0')
        memcpy(d->before, d->now, sizeof d->before);
    snprintf(d->now, sizeof d->now, "%s", about ? about : "");
}

const char *doing_text(char out[DOING_TEXT_BYTES], const struct doing *d) {
    const char *now = d->now[0] != '\0' ? d->now : "its own work";
    if (d->before[0] != '\0')
        snprintf(out, DOING_TEXT_BYTES, "in %s, after %s", now, d->before);
    else
        snprintf(out, DOING_TEXT_BYTES, d->now[0] != '\0' ? "in %s" : "at the start", now);
    return out;
}

struct line { // text that ends in "..." where there is no more room
    char *text;
    size_t used, room;
};

static void ERR_PRINTF(2, 3) put(struct line *l, const char *format, ...) {
    va_list args;
    if (l->used + 1 >= l->room)
        return;
    va_start(args, format);
    const int n = vsnprintf(l->text + l->used, l->room - l->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= l->room - l->used) {
        l->used = l->room - 1;
        memcpy(l->text + l->room - 4, "...", 4);
    } else {
        l->used += (size_t)n;
    }
}

enum part { MISSING, WAITING, OTHER, UNTOLD };

static enum part part_of(const struct late_rank *r) {
    if (r->silent_ns > 0 || (r->missing && !r->waits))
        return MISSING;
    return r->waits ? WAITING : r->where == LATE_UNKNOWN ? UNTOLD : OTHER;
}

static uint64_t seconds(uint64_t ns) {
    return ns / 1000000000u;
}

static bool alike(const struct late_rank *a, const struct late_rank *b) {
    return part_of(a) == part_of(b) && a->where == b->where &&
           (a->silent_ns > 0) == (b->silent_ns > 0) &&
           seconds(a->silent_ns) == seconds(b->silent_ns) &&
           strcmp(a->doing.now, b->doing.now) == 0 && strcmp(a->doing.before, b->doing.before) == 0;
}

enum { RUNS_MOST = 8 }; // of numbers of ranks that are written out

// "rank 3", "ranks 0-2, 7": the first rank and all that are like it.
static void put_numbers(struct line *l, const struct late_rank *all, int world, int first,
                        bool *told) {
    int last = first, runs = 0, more = 0;
    for (int r = first; r < world; r++) {
        told[r] = told[r] || alike(&all[r], &all[first]);
        last = alike(&all[r], &all[first]) ? r : last;
    }
    put(l, last > first ? "ranks " : "rank ");
    for (int r = first, end; r <= last; r = end + 1) {
        for (end = r; !alike(&all[r], &all[first]); r = ++end)
            ;
        while (end < last && alike(&all[end + 1], &all[first]))
            end++;
        if (runs == RUNS_MOST) {
            more += end - r + 1;
            continue;
        }
        put(l, runs++ > 0 ? ", %d" : "%d", r);
        if (end > r)
            put(l, "-%d", end);
    }
    if (more > 0)
        put(l, " and %d more", more);
}

static void put_state(struct line *l, const struct late_rank *r) {
    char limit[TEXT_UNIT_BYTES], doing[DOING_TEXT_BYTES];
    const char *last = part_of(r) == MISSING ? "last " : "";
    if (r->where == LATE_ABSENT) {
        put(l, " (has not joined the job)");
    } else if (r->where == LATE_UNKNOWN) {
        put(l, " (nothing is known of it)");
    } else if (r->silent_ns > 0) {
        put(l, " (has not answered for %s: stopped, or its machine is gone; last %s)",
            text_duration(limit, (double)seconds(r->silent_ns)), doing_text(doing, &r->doing));
    } else if (r->where == LATE_LEFT) {
        put(l, " (has left the job; last %s)", doing_text(doing, &r->doing));
    } else {
        put(l, " (%s%s)", last, doing_text(doing, &r->doing));
    }
}

// False when there are no such ranks.
static bool put_part(struct line *l, const char *opening, enum part part,
                     const struct late_rank *all, int world) {
    bool told[COMM_RANKS_MOST] = {false}, any = false;
    for (int r = 0; r < world && l->used + 1 < l->room; r++) {
        if (told[r] || part_of(&all[r]) != part)
            continue;
        put(l, "%s", any ? ", " : opening);
        put_numbers(l, all, world, r, told);
        put_state(l, &all[r]);
        any = true;
    }
    return any;
}

void late_text(char out[ERR_TEXT_BYTES], const struct late_rank *all, int world,
               uint64_t waited_ns) {
    struct line l = {.text = out, .room = ERR_TEXT_BYTES};
    char limit[TEXT_UNIT_BYTES];
    put(&l, "after waiting for %s ", text_duration(limit, 1e-9 * (double)waited_ns));
    if (put_part(&l, "these ranks are missing: ", MISSING, all, world))
        put_part(&l, "; these wait: ", WAITING, all, world);
    else
        put_part(&l, "these ranks wait for each other: ", WAITING, all, world);
    put_part(&l, "; the others: ", OTHER, all, world);
}
