// process.c - see process.h. The store is a text file in the user's cache folder. It has one line
// per key, "<key> <bytes>", the newest first. Its content is not trusted: a line of any other form
// is skipped.
#include "plan/process.h"

#include "base/build.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "exec/exec.h"
#include "hw/hw.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MOST = 64, LINE_BYTES = HASH_TEXT_BYTES + 24, FILE_MOST = LINES_MOST * LINE_BYTES };

uint64_t process_table_bytes(const struct plan *p) {
    return exec_plan_bytes(p->programs, p->n_programs) +
           (p->second ? process_table_bytes(p->second) : 0);
}

// The figure depends on build, machine, thread count, device, libraries and precision: the key is
// a hash of them.
static void make_key(const struct plan *p, char out[HASH_TEXT_BYTES]) {
    char build[BUILD_ID_BYTES], machine[HW_FINGERPRINT_BYTES], text[256];
    struct hw_machine m;
    const struct knobs *k = &p->knobs;
    build_id(build);
    hw_machine_read(&m, "");
    hw_fingerprint(&m, k->threads > 0 ? (int)k->threads : m.usable_cpus, machine);
    // A library of matrix products has buffers as wide as the vocabulary (engine.c).
    const bool library = k->cpu_blas != CPU_BLAS_AUTO && k->cpu_blas != CPU_BLAS_BUILTIN;
    snprintf(text, sizeof text, "%s|%s|%s|%s|%s|%d|%lld", build, machine,
             p->device ? "device" : "host", knob_choice(KNOB_cpu_isa, (int)k->cpu_isa),
             knob_choice(KNOB_cpu_blas, (int)k->cpu_blas), (int)k->precision,
             library ? (long long)p->shape.vocab : 0);
    hash_of(text, strlen(text), out);
}

static bool store_path(char out[HW_PATH_BYTES]) {
    return file_user_path(out, HW_PATH_BYTES, FILE_CACHE, "process", NULL) == 0;
}

// Puts the key's figure into *bytes (0: none). Returns the lines of all other keys as text that the
// caller frees, or NULL when there is no store.
static char *read_store(const char *path, const char *key, uint64_t *bytes) {
    char *text = NULL, *others = NULL, *rest;
    size_t n;
    *bytes = 0;
    if (file_read_all(path, FILE_MOST, &text, &n, NULL) != 0)
        return NULL;
    others = calloc(1, n + 2);
    rest = text;
    for (char *line; others && (line = strsep(&rest, "\n"));) {
        char found[HASH_TEXT_BYTES], tail;
        uint64_t x;
        if (strlen(line) >= LINE_BYTES || strchr(line, ' ') != line + HASH_TEXT_BYTES - 1 ||
            sscanf(line + HASH_TEXT_BYTES, "%" SCNu64 "%c", &x, &tail) != 1)
            continue;
        snprintf(found, sizeof found, "%.*s", HASH_TEXT_BYTES - 1, line);
        if (strcmp(found, key) == 0)
            *bytes = x < mem_machine_total_bytes() ? x : 0;
        else
            strcat(strcat(others, line), "\n");
    }
    free(text);
    return others;
}

void process_estimate(struct plan *p) {
    char path[HW_PATH_BYTES];
    uint64_t bytes = 0;
    make_key(p, p->process_key);
    if (store_path(path))
        free(read_store(path, p->process_key, &bytes));
    if (bytes > 0)
        plan_set_process(p, bytes + process_table_bytes(p), PLAN_STORED);
    else
        plan_set_process(p, mem_process_rss_bytes(), PLAN_UNKNOWN);
}

static bool is_near(uint64_t stored, uint64_t bytes) {
    const uint64_t apart = stored > bytes ? stored - bytes : bytes - stored;
    return apart <= bytes / 50;
}

void process_measured(struct plan *p, uint64_t bytes) {
    const bool stays = p->process_how != PLAN_UNKNOWN && is_near(p->process_bytes, bytes);
    plan_set_process(p, stays ? p->process_bytes : bytes, PLAN_MEASURED);
}

void process_keep(const struct plan *p, bool on_device) {
    char path[HW_PATH_BYTES], first[LINE_BYTES + 2];
    uint64_t known;
    const uint64_t tables = process_table_bytes(p);
    if (p->process_how != PLAN_MEASURED || p->process_key[0] == '\0' || p->device != on_device ||
        p->process_bytes <= tables || !store_path(path))
        return;
    const uint64_t bytes = p->process_bytes - tables;
    char *others = read_store(path, p->process_key, &known);
    if (!is_near(known, bytes)) {
        const int n = snprintf(first, sizeof first, "%s %" PRIu64 "\n", p->process_key, bytes);
        const size_t room = (size_t)n + (others ? strlen(others) : 0) + 1;
        char *all = malloc(room);
        int lines = 0;
        if (all) {
            snprintf(all, room, "%s%s", first, others ? others : "");
            for (char *at = all; *at; at++) // only the newest lines stay
                if (*at == '\n' && ++lines == LINES_MOST)
                    at[1] = '\0';
            if (file_make_parent(path, NULL) == 0)
                (void)file_write_atomic(path, all, strlen(all), NULL);
        }
        free(all);
    }
    free(others);
}
