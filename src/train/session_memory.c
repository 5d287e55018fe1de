// session_memory.c - what a session takes, in all and by name, and whether that is there (session.h).
//
// Place: after session_plan everything but the process itself is known; session_ready adds that. A second
// model's arena is part of every sum: there is one budget.
#include "train/session.h"
#include "base/text.h"
#include "train/kept.h"
#include "train/second.h"

#include <stdio.h>

uint64_t session_second_bytes(const struct session *s) {
    return s->second ? s->second->session.layout.arena_bytes : 0;
}

uint64_t session_arena_bytes(const struct session *s) {
    return s->layout.arena_bytes + session_second_bytes(s);
}

uint64_t session_predicted_bytes(const struct session *s) {
    const uint64_t arenas = s->options.checking ? 2 : 1; // the observer's copy
    return arenas * session_arena_bytes(s) + s->loader_bytes + s->saving_bytes + s->guest_bytes +
           s->process_bytes;
}

int session_parts(const struct session *s, struct session_part out[SESSION_PARTS]) {
    const bool device = s->backend && s->backend->memory;
    const struct session_part rest[] = {{"loader", s->loader_bytes - s->trace_bytes},
                                        {"trace", s->trace_bytes},
                                        {"saving", s->saving_bytes},
                                        {"requests", s->guest_bytes},
                                        {"process", s->process_bytes}};
    int n = 0;
    for (int c = 0; c < CLASS_COUNT; c++)
        if (s->layout.by_class[c] > 0)
            out[n++] = (struct session_part){tensor_class_name((enum tensor_class)c),
                                             s->layout.by_class[c]};
    out[n++] = (struct session_part){"slack", s->layout.slack_bytes};
    if (s->second)
        out[n++] = (struct session_part){"second model", session_second_bytes(s)};
    for (size_t i = 0; !device && i < sizeof rest / sizeof *rest; i++)
        if (rest[i].bytes > 0)
            out[n++] = rest[i];
    return n;
}

uint64_t session_device_bytes(const struct session *s) {
    uint64_t left, total;
    if (!s->device_free_bytes || s->backend->memory(s->backend, &left, &total, NULL) != 0)
        return 0;
    const uint64_t kept = s->options.kept ? kept_device_bytes(s->options.kept) : 0;
    if (kept > s->layout.arena_bytes)
        left += kept - s->layout.arena_bytes;
    return s->device_free_bytes > left ? s->device_free_bytes - left : 0;
}

uint64_t session_process_peak_bytes(const struct session *s) {
    const uint64_t peak = mem_process_peak_rss_bytes();
    return peak > s->tail_bytes ? peak - s->tail_bytes : 0;
}

// Pages that this session's arena will use again, or that are given back before it takes others.
static uint64_t kept_bytes(const struct session *s) {
    return s->options.kept ? kept_resident_bytes(s->options.kept) : 0;
}

uint64_t session_resident_bytes(const struct session *s) {
    const uint64_t all = mem_process_rss_bytes(), kept = kept_bytes(s);
    return all > kept ? all - kept : 0;
}

// On a device the arenas are there, and what is left of its memory counts: known once the backend is
// open. The data buffers and the process stay with the host and are small beside it.
int session_memory(const struct session *s, struct session_memory *out, struct err *e) {
    const bool device = s->backend && s->backend->memory;
    uint64_t total;
    out->need = device ? session_arena_bytes(s) : session_predicted_bytes(s);
    if (!s->backend && session_wants_device(&s->knobs))
        out->need -= session_arena_bytes(s);
    if (s->knobs.memory) {
        out->have = s->knobs.memory;
        out->have_is = "the budget (memory=)";
    } else if (device) {
        TRY(s->backend->memory(s->backend, &out->have, &total, e));
        out->have += s->options.kept ? kept_device_bytes(s->options.kept) : 0;
        out->have_is = "what the device has left";
    } else {
        out->have = mem_machine_available_bytes() / 20 * 19 + kept_bytes(s);
        out->have_is = "what the machine has left (less a twentieth, which is others')";
    }
    return 0;
}

int session_check_memory(const struct session *s, struct err *e) {
    struct session_memory m;
    TRY(session_memory(s, &m, e));
    if (m.need <= m.have)
        return 0;
    char text[640], a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    struct session_part parts[SESSION_PARTS];
    const int n = session_parts(s, parts);
    int at = 0;
    for (int i = 0; i < n && at < (int)sizeof text; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s %s", at ? ", " : "",
                       parts[i].name, text_bytes(a, parts[i].bytes));
    return err_set(e, ERR_MEMORY, "the run needs %s but %s is %s: %s", text_bytes(a, m.need),
                   m.have_is, text_bytes(b, m.have), text);
}
