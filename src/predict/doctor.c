// doctor.c - see doctor.h.
#include "predict/doctor.h"

#include "base/clock.h"
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// ---------------------------------------------------------------- matrix products

static void examine_libraries(struct doctor *d) {
    static const char *const known[DOCTOR_LIBRARIES][2] = {
        {"builtin", NULL},
        {"openblas", "libopenblas0-pthread"},
        {"blis", "libblis4-pthread"},
        {"onednn", "libdnnl2"},
    };
    for (int i = 0; i < DOCTOR_LIBRARIES; i++) {
        struct doctor_library *l = &d->libraries[i];
        struct err e = {0};
        l->choice = known[i][0];
        l->package = known[i][1];
        l->found = machine_measure_blas(&l->blas, &d->cpu, l->choice, DTYPE_F32, &e) == 0;
        if (!l->found)
            snprintf(l->reason, sizeof l->reason, "%s", e.text);
    }
}

static int examine_products(struct doctor *d, struct err *e) {
    static const enum dtype types[DOCTOR_PRODUCTS] = {DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < DOCTOR_PRODUCTS; i++) {
        d->products[i].type = types[i];
        TRY(machine_measure_blas(&d->products[i].blas, &d->cpu, "builtin", types[i], e));
    }
    return 0;
}

// ---------------------------------------------------------------- the GPU

static int measure_gpu(struct doctor_gpu *g, struct err *e) {
    struct backend *b;
    TRY(engine_open_device(&b, &g->knobs, e));
    const int rc = machine_measure_device(&g->machine, b, &g->knobs, e);
    snprintf(g->note, sizeof g->note, "%s", b->note ? b->note : "");
    b->close(b);
    return rc;
}

// That it cannot be measured is a reason, and the rest of the machine is examined all the same.
static void examine_gpu(struct doctor_gpu *g, const struct knobs *k, bool usable, bool fresh) {
    struct err e = {0};
    *g = (struct doctor_gpu){.knobs = *k};
    g->knobs.device = DEVICE_CUDA;
    if (!usable)
        return;
    (void)machine_open(&g->machine, &g->knobs, fresh ? MACHINE_FRESH : MACHINE_KNOWN, NULL);
    if (measure_gpu(g, &e) != 0)
        snprintf(g->reason, sizeof g->reason, "%s", e.text);
}

// ---------------------------------------------------------------- times of ops, meters of energy

// With `fresh`, times the ops of the knobs' model for micro-batches up to batch.micro.
static int examine_ops(struct doctor_ops *out, const struct knobs *k, bool fresh, struct err *e) {
    struct predictor *p;
    struct err why = {0};
    memset(out, 0, sizeof *out);
    int rc = predictor_open(&p, NULL, e);
    if (rc == 0 && fresh) {
        out->now = predictor_calibrate_span(p, k, 1, k->batch_micro, NULL, &why) == 0 &&
                   predictor_store(p, &why) == 0;
        snprintf(out->reason, sizeof out->reason, "%s", why.text);
    }
    if (rc == 0)
        rc = predictor_known(p, k, &out->known, e);
    predictor_close(p);
    return rc;
}

static void examine_meters(struct doctor_meters *out, const struct plugin_report *cuda) {
    struct energy_meter m;
    *out = (struct doctor_meters){.has_gpu = cuda->usable};
    energy_open(&m, &(struct energy_options){0});
    energy_use_of(&out->cpu, &m, NAN);
    out->fix = m.fix;
    energy_close(&m);
    if (!cuda->usable)
        return;
    energy_open(&m, &(struct energy_options){.device = true});
    energy_use_of(&out->gpu, &m, NAN);
    energy_close(&m);
}

// ---------------------------------------------------------------- what is missing

static void add_gap(struct doctor *d, const char *what, const char *purpose, const char *fix,
                    const char *package) {
    if (d->n_gaps < DOCTOR_GAPS_MOST)
        d->gaps[d->n_gaps++] = (struct doctor_gap){what, purpose, fix, package};
}

// Asks Python whether a module is installed, without importing it (that takes seconds for torch).
static bool python_has(const char *module) {
    char code[160];
    snprintf(code, sizeof code,
             "import importlib.util as u, sys; sys.exit(u.find_spec('%s') is None)", module);
    // Debian's Python, because the fix is a Debian package. Another one may come first in PATH.
    char *argv[] = {(char *)"/usr/bin/python3", (char *)"-c", code, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return false;
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    posix_spawn_file_actions_destroy(&actions);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void find_gaps(struct doctor *d) {
    const struct doctor_meters *meters = &d->meters;
    bool library = false;
    for (int i = 0; i < DOCTOR_LIBRARIES; i++)
        library = library || (d->libraries[i].found && d->libraries[i].package);
    if (!library)
        add_gap(d, "no BLAS library", "only for comparing matrix products (cpu.blas)",
                "sudo apt install libopenblas0-pthread", "libopenblas0-pthread");
    if (d->machine.hw.level == HW_GENERIC)
        add_gap(d, "no AVX2", "fast kernels; portable ones are used instead", "", NULL);
    if (strcmp(d->machine.hw.huge_pages, "never") == 0)
        add_gap(d, "no transparent huge pages", "fewer TLB misses in large models",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled", NULL);
    bool gpu = access("/dev/nvidia0", F_OK) == 0;
    if (!d->cuda.usable && gpu)
        add_gap(d, "the CUDA plug-in cannot be used", "training on this machine's GPU",
                "make cuda (with nvcc installed)", NULL);
    else if (!d->cuda.usable)
        add_gap(d, "no GPU", "training on a GPU (device=cuda)", "", NULL);
    if (!d->ranks.library[0])
        add_gap(d, "the MPI plug-in cannot be used",
                "ranks that are processes, on one machine or several; threads are used instead",
                "sudo apt install libopenmpi-dev openmpi-bin, then make", "openmpi-bin");
    else if (!d->ranks.usable)
        add_gap(d, "no mpirun of the plug-in's MPI",
                "starting ranks as processes; threads are used instead",
                d->ranks.library_is == COMM_MPICH ? "sudo apt install mpich"
                                                  : "sudo apt install openmpi-bin",
                d->ranks.library_is == COMM_MPICH ? "mpich" : "openmpi-bin");
    if (!meters->cpu.meter[0])
        add_gap(d, meters->fix ? "no permission to read RAPL" : "no readable RAPL",
                "energy per token; it is reported as unknown", meters->fix ? meters->fix : "",
                NULL);
    if (isnan(others_share(&d->others)))
        add_gap(d, "other programs cannot be seen (no /proc)",
                "telling when a measurement was disturbed; only settings that run in turns are "
                "compared",
                "", NULL);
    if (!python_has("torch"))
        add_gap(d, "no python3-torch", "only for the comparison with PyTorch (make bench-train)",
                "sudo apt install python3-torch", "python3-torch");
}

// Looks for a twentieth of a second, or ten times, with the threads that a run would have.
static int examine_apart(struct doctor *d, struct err *e) {
    struct pool *pool;
    TRY(pool_open(&pool, machine_threads(&d->cpu), d->cpu.cpu_pin, e));
    const uint64_t begin_ns = clock_ns();
    for (int i = 0; i < 10 || clock_ns() - begin_ns < 50000000; i++)
        apart_add(&d->cpus, apart_measure(pool));
    pool_close(pool);
    return 0;
}

// ---------------------------------------------------------------- the examination

int doctor_examine(struct doctor *d, const struct knobs *k, bool fresh, struct err *e) {
    struct others_mark begin, end;
    memset(d, 0, sizeof *d);
    others_mark(&begin, NULL);
    d->cpu = *k;
    d->cpu.device = DEVICE_CPU;
    TRY(machine_open(&d->machine, &d->cpu, fresh ? MACHINE_FRESH : MACHINE_MEASURE, e));
    TRY(examine_apart(d, e));
    TRY(examine_products(d, e));
    TRY(examine_ops(&d->ops, k, fresh, e));
    examine_libraries(d);
    plugin_examine("cuda", &d->cuda);
    examine_gpu(&d->gpu, k, d->cuda.usable, fresh);
    comm_examine(&d->ranks);
    if (d->ranks.library[0])
        d->n_advice = comm_advise(&d->ranks, d->machine.hw.usable_cpus, d->advice);
    examine_meters(&d->meters, &d->cuda);
    others_mark(&end, NULL);
    others_between(&d->others, &begin, &end);
    find_gaps(d);
    return 0;
}
