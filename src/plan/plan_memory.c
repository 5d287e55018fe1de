// plan_memory.c - the bytes a plan takes, in all and by name, and the refusal when they are not
// available.
//
// Every sum includes the arena of a second model, because both models share one budget.
#include "base/mem.h"
#include "base/text.h"
#include "plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void plan_set_host(struct plan *p, const struct plan_host *h) {
    p->host = *h;
}

void plan_set_process(struct plan *p, uint64_t bytes, enum plan_how how) {
    p->process_bytes = bytes;
    p->process_how = how;
}

uint64_t plan_second_bytes(const struct plan *p) {
    return p->second ? p->second->layout.arena_bytes : 0;
}

uint64_t plan_arena_bytes(const struct plan *p) {
    return p->layout.arena_bytes + plan_second_bytes(p);
}

uint64_t plan_total_bytes(const struct plan *p) {
    const struct plan_host *h = &p->host;
    return plan_arena_bytes(p) + h->loader + h->trace + h->saving + h->requests + h->texts +
           h->tuning + p->process_bytes;
}

// On a device, the buffers and the process are in the host's memory and small compared with it:
// they are not checked.
uint64_t plan_need_bytes(const struct plan *p, bool on_device) {
    return on_device ? plan_arena_bytes(p) : plan_total_bytes(p);
}

int plan_parts(const struct plan *p, bool on_device, struct plan_part out[PLAN_PARTS]) {
    const struct plan_part rest[] = {{"loader", p->host.loader},   {"trace", p->host.trace},
                                     {"saving", p->host.saving},   {"requests", p->host.requests},
                                     {"texts", p->host.texts},     {"tuning", p->host.tuning},
                                     {"process", p->process_bytes}};
    int n = 0;
    for (int c = 0; c < CLASS_COUNT; c++)
        if (p->layout.by_class[c] > 0)
            out[n++] =
                (struct plan_part){tensor_class_name((enum tensor_class)c), p->layout.by_class[c]};
    out[n++] = (struct plan_part){"slack", p->layout.slack_bytes};
    if (p->second)
        out[n++] = (struct plan_part){"second model", plan_second_bytes(p)};
    for (size_t i = 0; !on_device && i < sizeof rest / sizeof *rest; i++)
        if (rest[i].bytes > 0)
            out[n++] = rest[i];
    return n;
}

static uint64_t without_spare(uint64_t bytes) {
    return bytes / 20 * 19;
}

struct plan_room plan_room(const struct plan *p, uint64_t left, const char *is, bool spare) {
    const uint64_t budget = p->knobs.memory;
    if (budget > 0 && (budget <= left || left == 0)) // 0: not known
        return (struct plan_room){.bytes = budget, .is = "the budget (memory=)"};
    spare = spare && budget == 0;
    return (struct plan_room){
        .bytes = spare ? without_spare(left) : left, .is = is, .spared = spare};
}

uint64_t plan_machine_room(void) {
    return without_spare(mem_left(0).bytes);
}

int plan_check_room(const struct plan *p, bool on_device, uint64_t need,
                    const struct plan_room *room, struct err *e) {
    if (need <= room->bytes)
        return 0;
    char text[640], more[48] = "", a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    struct plan_part parts[PLAN_PARTS];
    const int n = plan_parts(p, on_device, parts);
    int at = 0;
    for (int i = 0; i < n && at < (int)sizeof text; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s %s", at ? ", " : "",
                       parts[i].name, text_bytes(a, parts[i].bytes));
    if (strcmp(text_bytes(a, need), text_bytes(b, room->bytes)) == 0)
        snprintf(more, sizeof more, " (%" PRIu64 " bytes too much)", need - room->bytes);
    return err_set(e, ERR_MEMORY, "the run needs %s%s but %s%s is %s: %s", a, more, room->is,
                   room->spared ? " (5 % kept free)" : "", b, text);
}
