// bench_memory.c - planned against measured memory of a whole process. Forks one process per
// setting and compares its peak of resident memory (VmHWM) with the plan.
//
// A setting holds when the two differ by at most 1 % of the plan and 8 MiB. A busy machine does not
// change the result. A setting that this machine refuses (a precision, a library) is shown with its
// reason and is not a failure. The exit status is 1 when a setting does not hold.
//
// usage: bench_memory [MODEL [KNOB=VALUE ...]]     the settings below, or only the one given
#include "base/file.h"
#include "base/text.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const double SHARE = 0.01;
static const double MORE_BYTES = 8 << 20;

// Changes to the base, which is two steps of 2 x 64 tokens, no validation, nothing saved.
static const char *const settings[] = {
    "batch.micro=1 seq=64",
    "batch.micro=2 seq=64",
    "batch.micro=2 seq=128 batch.accum=3",
    "batch.micro=4 seq=128 recompute.mode=selective",
    "batch.micro=4 seq=128 recompute.mode=full",
    "batch.micro=4 seq=128 recompute.mode=full recompute.every=3 logits.chunk=64",
    "batch.micro=2 seq=128 logits.chunk=32",
    "batch.micro=2 seq=64 data.prefetch=64 data.workers=16 batch.accum=2",
    "batch.micro=2 seq=64 eval.every=1 eval.batches=2",
    "batch.micro=1 seq=64 save.last=true",
    "batch.micro=2 seq=64 threads=1",
    "batch.micro=2 seq=64 threads=4 cpu.blas=openblas",
    "batch.micro=2 seq=64 precision=bf16",
};

struct line { // from the child
    int rc;
    char reason[ERR_TEXT_BYTES];
    uint64_t arena, loader, saving, process, predicted, measured;
};

static int set_all(struct knobs *k, const char *text, struct err *e) {
    char copy[1024], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *one; (one = strsep(&rest, " ")) != NULL;)
        if (*one)
            TRY(knobs_set_assignment(k, one, SET_BY_COMMAND_LINE, e));
    return 0;
}

static int run(const char *model, const char *text, const char *dir, struct line *out,
               struct err *e) {
    struct knobs k;
    struct plan p = {0};
    struct engine *g = NULL;
    struct trainer *t = NULL;
    const struct trainer_options to = {0};
    knobs_init(&k);
    k.device = DEVICE_CPU;
    snprintf(k.model, sizeof k.model, "%s", model);
    snprintf(k.run_dir, sizeof k.run_dir, "%s", dir);
    TRY(set_all(&k, "steps=2 eval.every=0 save.last=false resume=false", e));
    TRY(set_all(&k, text, e));
    const struct plan_options po = {.knobs = &k,
                                    .programs = {PLAN_TRAIN, k.eval_every > 0 ? PLAN_EVAL : NULL},
                                    .real = DTYPE_F32};
    int rc = plan_make(&p, &po, e);
    if (rc == 0)
        rc = engine_open(&g, NULL, e);
    if (rc == 0)
        rc = trainer_open(&t, &p, g, &to, e);
    if (rc == 0)
        rc = trainer_run(t, NULL, e);
    out->arena = p.layout.arena_bytes, out->loader = p.host.loader;
    out->saving = p.host.saving, out->process = p.process_bytes;
    out->predicted = plan_total_bytes(&p);
    out->measured = mem_process_peak_rss_bytes();
    trainer_close(t);
    engine_close(g);
    plan_free(&p);
    return rc;
}

// Runs one setting in a forked process.
static int measure(const char *model, const char *text, const char *dir, struct line *out) {
    int ends[2], status;
    memset(out, 0, sizeof *out);
    fflush(stdout);
    if (pipe(ends) != 0)
        return -1;
    pid_t child = fork();
    if (child < 0)
        return -1;
    if (child == 0) {
        struct err e = {0};
        close(ends[0]);
        out->rc = run(model, text, dir, out, &e);
        snprintf(out->reason, sizeof out->reason, "%s", e.text);
        _exit(write(ends[1], out, sizeof *out) == sizeof *out ? 0 : 1);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], out, sizeof *out);
    close(ends[0]);
    waitpid(child, &status, 0);
    return n == sizeof *out ? 0 : -1;
}

// Returns 1: within the limit, 0: not, -1: refused.
static int print_line(const char *text, const struct line *l) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES], c[TEXT_UNIT_BYTES], d[TEXT_UNIT_BYTES],
        f[TEXT_UNIT_BYTES];
    if (l->rc != 0) {
        printf("%-72s refused: %.60s\n", text, l->reason);
        return l->rc == ERR_UNSUPPORTED || l->rc == ERR_MEMORY ? -1 : 0;
    }
    double off = (double)l->measured - (double)l->predicted;
    bool ok = (off < 0 ? -off : off) <= SHARE * (double)l->predicted + MORE_BYTES;
    printf("%-72s %10s %10s %10s %10s %10s %+8.2f MiB  %+5.2f %%  %s\n", text,
           text_bytes(a, l->arena), text_bytes(b, l->loader + l->saving), text_bytes(c, l->process),
           text_bytes(d, l->predicted), text_bytes(f, l->measured), off / (1 << 20),
           100 * off / (double)l->predicted, ok ? "ok" : "OFF");
    return ok;
}

int main(int argc, char **argv) {
    const char *model = argc > 1 ? argv[1] : "gpt2-124m";
    char dir[256], given[1024] = "";
    struct err e = {0};
    int wrong = 0, held = 0, refused = 0;
    if (file_make_temp_dir(dir, sizeof dir, "memory", &e) != 0) {
        fprintf(stderr, "bench_memory: %s\n", e.text);
        return 1;
    }
    for (int i = 2; i < argc; i++)
        snprintf(given + strlen(given), sizeof given - strlen(given), "%s%s", i > 2 ? " " : "",
                 argv[i]);
    printf("%s: peak of resident memory against the plan; held within %.0f %% + %.0f MiB\n", model,
           100 * SHARE, MORE_BYTES / (1 << 20));
    printf("%-72s %10s %10s %10s %10s %10s %12s\n", "", "arena", "buffers", "process", "planned",
           "measured", "off");
    const size_t n = *given ? 1 : sizeof settings / sizeof *settings;
    for (size_t i = 0; i < n; i++) {
        const char *text = *given ? given : settings[i];
        struct line line;
        int ok = measure(model, text, dir, &line) == 0 ? print_line(text, &line) : 0;
        if (line.rc == 0 && line.predicted == 0)
            printf("%-72s its process died\n", text);
        wrong += ok == 0;
        held += ok > 0;
        refused += ok < 0;
    }
    printf("%d held, %d did not, %d refused\n", held, wrong, refused);
    file_remove_tree(dir, &e);
    return wrong > 0;
}
