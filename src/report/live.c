// live.c - formatting and drawing the live line.
#include "report/live.h"

#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const uint64_t REDRAW_NS = 100000000; // 0.1 s: faster changes are unreadable
enum { COLUMNS_UNKNOWN = 80, COLUMNS_MOST = 110, FIELD_BYTES = 48 };

// The fields, in the order they are shown. If the line is too narrow, the field with the lowest
// `keep` is left out first.
enum field {
    F_STEP,
    F_EPOCH,
    F_LOSS,
    F_LR,
    F_NORM,
    F_SPEED,
    F_TIMES,
    F_ANSWERS,
    F_RANK,
    F_WAIT,
    F_MEMORY,
    F_ETA,
    F_COUNT
};
static const int keep[F_COUNT] = {
    [F_STEP] = 12, [F_LOSS] = 11, [F_SPEED] = 10, [F_ANSWERS] = 9, [F_ETA] = 8, [F_TIMES] = 7,
    [F_RANK] = 6,  [F_EPOCH] = 5, [F_WAIT] = 4,   [F_MEMORY] = 3,  [F_LR] = 2,  [F_NORM] = 1};

typedef char field_text[FIELD_BYTES];

ERR_PRINTF(2, 3) static void put(char out[FIELD_BYTES], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(out, FIELD_BYTES, format, args);
    va_end(args);
}

// "last 256: p50 41.2 p99 60.0 ms": both in the unit that suits the larger one, and the number of
// steps that they are about.
static void put_times(char out[FIELD_BYTES], const struct live_numbers *n) {
    char unit[TEXT_UNIT_BYTES];
    if (isnan(n->step_p50_ms))
        return;
    const bool seconds = n->step_p99_ms >= 1e3;
    const double scale = seconds ? 1e-3 : 1;
    if (isnan(n->step_p99_ms))
        put(out, "p50 %s", text_duration(unit, 1e-3 * n->step_p50_ms));
    else if (n->times_of > 0)
        put(out, "last %lld: p50 %.3g p99 %.3g %s", (long long)n->times_of, scale * n->step_p50_ms,
            scale * n->step_p99_ms, seconds ? "s" : "ms");
    else
        put(out, "p50 %.3g p99 %.3g %s", scale * n->step_p50_ms, scale * n->step_p99_ms,
            seconds ? "s" : "ms");
}

static void make_fields(field_text f[F_COUNT], const struct live_numbers *n, bool wide) {
    char unit[TEXT_UNIT_BYTES];
    memset(f, 0, F_COUNT * sizeof(field_text));
    if (n->total_steps > 0)
        put(f[F_STEP], "%s%lld/%lld", wide ? "step " : "", (long long)n->step,
            (long long)n->total_steps);
    else
        put(f[F_STEP], "step %lld", (long long)n->step);
    if (n->epochs > 0)
        put(f[F_EPOCH], "epoch %.3g/%.3g", n->epoch, n->epochs);
    if (!isnan(n->loss))
        put(f[F_LOSS], "loss %.4g", n->loss);
    if (!isnan(n->lr))
        put(f[F_LR], "lr %.2g", n->lr);
    if (!isnan(n->grad_norm))
        put(f[F_NORM], "norm %.2g", n->grad_norm);
    if (!isnan(n->tokens_per_s))
        put(f[F_SPEED], "%s tok/s", text_count(unit, n->tokens_per_s));
    put_times(f[F_TIMES], n);
    if (n->answered > 0)
        put(f[F_ANSWERS], "answered %llu p95 %s", (unsigned long long)n->answered,
            text_duration(unit, 1e-3 * n->answer_p95_ms));
    if (n->slowest_ms > 0)
        put(f[F_RANK], "slowest rank %d %s", n->slowest_rank,
            text_duration(unit, 1e-3 * n->slowest_ms));
    if (n->slowest_ms > 0 && !isnan(n->ranks_wait))
        put(f[F_WAIT], "ranks wait %.0f%%", 100 * n->ranks_wait);
    else if (!isnan(n->data_wait))
        put(f[F_WAIT], "wait %.0f%%", 100 * n->data_wait);
    if (n->memory_bytes > 0)
        put(f[F_MEMORY], "%s", text_bytes(unit, n->memory_bytes));
    if (!isnan(n->eta_s) && n->eta_s >= 0)
        put(f[F_ETA], "eta %s", text_duration(unit, n->eta_s));
}

static size_t joined_length(field_text f[F_COUNT], size_t gap) {
    size_t n = 0;
    for (int i = 0; i < F_COUNT; i++)
        if (f[i][0] != '\0')
            n += strlen(f[i]) + gap;
    return n > gap ? n - gap : 0;
}

static const char *join(char out[LIVE_TEXT_BYTES], field_text f[F_COUNT], const char *gap) {
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < F_COUNT; i++) {
        if (f[i][0] == '\0')
            continue;
        int n = snprintf(out + at, LIVE_TEXT_BYTES - at, "%s%s", at ? gap : "", f[i]);
        if (n < 0 || (size_t)n >= LIVE_TEXT_BYTES - at)
            break;
        at += (size_t)n;
    }
    return out;
}

const char *live_format(char out[LIVE_TEXT_BYTES], const struct live_numbers *n, int columns) {
    field_text f[F_COUNT];
    size_t most = columns > 0 ? (size_t)columns : COLUMNS_UNKNOWN;
    if (most > LIVE_TEXT_BYTES - 1)
        most = LIVE_TEXT_BYTES - 1;
    make_fields(f, n, true);
    if (joined_length(f, 2) <= most)
        return join(out, f, "  ");
    // First move the fields closer together, then leave out those that matter least.
    make_fields(f, n, false);
    while (joined_length(f, 1) > most) {
        int least = -1;
        for (int i = 0; i < F_COUNT; i++)
            if (f[i][0] != '\0' && (least < 0 || keep[i] < keep[least]))
                least = i;
        if (least == F_STEP) // the only field left is still too wide: cut it
            f[F_STEP][most < FIELD_BYTES ? most : FIELD_BYTES - 1] = '\0';
        else
            f[least][0] = '\0';
    }
    return join(out, f, joined_length(f, 2) <= most ? "  " : " ");
}

const char *live_format_plain(char out[LIVE_TEXT_BYTES], const struct live_numbers *n) {
    field_text f[F_COUNT];
    make_fields(f, n, true);
    return join(out, f, "  ");
}

void live_init(struct live *l, struct log *log, int64_t every) {
    *l = (struct live){.log = log,
                       .every = every > 0 ? every : 1,
                       .columns = COLUMNS_UNKNOWN,
                       .last_plain_step = -1};
    struct winsize size;
    if (log->stream != NULL && ioctl(fileno(log->stream), TIOCGWINSZ, &size) == 0 &&
        size.ws_col > 1) {
        l->columns = size.ws_col - 1; // some terminals wrap after the last column
        if (l->columns > COLUMNS_MOST)
            l->columns = COLUMNS_MOST;
    }
}

void live_show(struct live *l, const struct live_numbers *n, uint64_t now_ns) {
    char text[LIVE_TEXT_BYTES];
    const bool due = now_ns - l->last_ns >= REDRAW_NS || l->last_ns == 0;
    if (due && log_live(l->log, live_format(text, n, l->columns)) != 0) {
        l->last_ns = now_ns;
        l->on_terminal = true;
        return;
    }
    if (l->on_terminal)
        return;
    if (n->step % l->every == 0 || (n->total_steps > 0 && n->step == n->total_steps)) {
        log_put(l->log, LOG_INFO, "%s", live_format_plain(text, n));
        l->last_plain_step = n->step;
    }
}

void live_end(struct live *l, const struct live_numbers *n) {
    char text[LIVE_TEXT_BYTES];
    if (log_live(l->log, live_format(text, n, l->columns)) != 0)
        log_live_end(l->log);
    else if (l->last_plain_step != n->step)
        log_put(l->log, LOG_INFO, "%s", live_format_plain(text, n));
}
