// doctor.c - haggle_doctor: what this machine is, how fast it is, and what is missing for what.
//
// Nothing that is missing is an error: each gap is a line with what it is for and how to fill it.
#include "api/api.h"

#include "backend/plugin.h"
#include "base/text.h"
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// ---------------------------------------------------------------- libraries for matrix products

struct candidate {
    const char *choice;  // value of cpu.blas
    const char *package; // that installs it; NULL: it is always here
    bool found;
    struct machine_blas blas;
    char reason[ERR_TEXT_BYTES]; // when not found
};

static const struct candidate candidates[] = {
    {.choice = "builtin"},
    {.choice = "openblas", .package = "libopenblas0-pthread"},
    {.choice = "blis", .package = "libblis4-pthread"},
    {.choice = "onednn", .package = "libdnnl2"},
};
enum { N_CANDIDATES = sizeof candidates / sizeof *candidates };

static void examine(struct candidate *c, const struct knobs *k) {
    struct err e = {0};
    c->found = machine_measure_blas(&c->blas, k, c->choice, &e) == 0;
    if (!c->found)
        snprintf(c->reason, sizeof c->reason, "%s", e.text);
}

// Products of 16-bit elements are always the builtin ones: which instructions they use is what
// decides whether precision=bf16 saves time on this machine, or memory alone.
static const enum dtype narrow_types[] = {DTYPE_BF16, DTYPE_F16};
enum { N_NARROW = sizeof narrow_types / sizeof *narrow_types };

static int examine_narrow(struct machine_blas out[N_NARROW], const struct knobs *k, struct err *e) {
    for (int i = 0; i < N_NARROW; i++)
        TRY(machine_measure_products(&out[i], k, narrow_types[i], e));
    return 0;
}

// ---------------------------------------------------------------- what is missing for what

struct gap {
    const char *what;    // missing or limited
    const char *purpose; // needed for
    const char *fix;     // "": nothing can be installed
    const char *package; // collected into one line; NULL: none
};

enum { GAPS_MOST = 16 };
struct gaps {
    struct gap list[GAPS_MOST];
    int n;
};

static void add_gap(struct gaps *g, const char *what, const char *purpose, const char *fix,
                    const char *package) {
    if (g->n < GAPS_MOST)
        g->list[g->n++] = (struct gap){what, purpose, fix, package};
}

// Asks Python whether a module is there, without importing it (which takes seconds for torch).
static bool python_has(const char *module) {
    char code[160];
    snprintf(code, sizeof code,
             "import importlib.util as u, sys; sys.exit(u.find_spec('%s') is None)", module);
    // Debian's own Python, which Debian's packages are for; not one that shadows it in PATH.
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

// ---------------------------------------------------------------- meters of energy

// What a run on the CPU and one on the GPU would be measured with.
struct meters {
    struct energy_use cpu, gpu;
    const char *fix; // of the CPU's
    bool has_gpu;
};

static void examine_meters(struct meters *out, const struct plugin_report *cuda) {
    struct energy_meter m;
    *out = (struct meters){.has_gpu = cuda->usable};
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

static void print_meter(FILE *f, const char *what, const struct energy_use *u) {
    fprintf(f, "  %-9s %s%s%s\n", what, u->meter[0] ? u->meter : "no meter",
            u->why[0] ? (u->meter[0] ? "; " : ": ") : "", u->why);
}

static void print_meters(FILE *f, const struct meters *m) {
    fprintf(f, "energy per token, measured with:\n");
    print_meter(f, "cpu", &m->cpu);
    if (m->has_gpu)
        print_meter(f, "cuda", &m->gpu);
}

static void put_meter(struct json_writer *w, const char *device, const struct energy_use *u) {
    json_put_object_begin(w);
    json_member_string(w, "device", device);
    json_member_string(w, "meter", u->meter[0] ? u->meter : NULL);
    json_member_string(w, "why", u->why[0] ? u->why : NULL);
    json_put_object_end(w);
}

static void put_meters(struct json_writer *w, const struct meters *m) {
    json_put_key(w, "energy_meters");
    json_put_array_begin(w);
    put_meter(w, "cpu", &m->cpu);
    if (m->has_gpu)
        put_meter(w, "cuda", &m->gpu);
    json_put_array_end(w);
}

// ---------------------------------------------------------------- the list of gaps

static void find_gaps(struct gaps *g, const struct machine *m, const struct candidate *c,
                      const struct plugin_report *cuda, const struct meters *meters) {
    bool library = false;
    for (int i = 0; i < N_CANDIDATES; i++)
        library = library || (c[i].found && c[i].package);
    if (!library)
        add_gap(g, "no BLAS library", "only a second opinion on matrix products (cpu.blas)",
                "sudo apt install libopenblas0-pthread", "libopenblas0-pthread");
    if (m->hw.level == HW_GENERIC)
        add_gap(g, "no AVX2", "fast kernels; the portable ones stand in", "", NULL);
    if (strcmp(m->hw.huge_pages, "never") == 0)
        add_gap(g, "no transparent huge pages", "fewer TLB misses in large models",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled", NULL);
    bool gpu = access("/dev/nvidia0", F_OK) == 0;
    if (!cuda->usable && gpu)
        add_gap(g, "the CUDA plug-in cannot be used", "training on the GPU that is here",
                "make cuda (with nvcc installed)", NULL);
    else if (!cuda->usable)
        add_gap(g, "no GPU", "training on one (device=cuda)", "", NULL);
    if (!meters->cpu.meter[0])
        add_gap(g, meters->fix ? "RAPL may not be read" : "no RAPL that can be read",
                "energy per token; it is reported as unknown", meters->fix ? meters->fix : "",
                NULL);
    if (!python_has("torch"))
        add_gap(g, "no python3-torch", "only the comparison with PyTorch (make bench-train)",
                "sudo apt install python3-torch", "python3-torch");
}

// ---------------------------------------------------------------- times of ops

// What predictions rest on; for the device, threads and kernels that these knobs would train with.
struct timed_ops {
    struct predictor_known known;
    bool now;                    // timed by this call
    char reason[ERR_TEXT_BYTES]; // why they could not be; ""
};

// fresh: times the ops of the knobs' own model, for micro-batches up to batch.micro.
static int examine_ops(struct timed_ops *out, const struct knobs *k, bool fresh, struct err *e) {
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

static void print_ops(FILE *f, const struct timed_ops *o) {
    fprintf(f, "times of ops, for predictions (show, tune):\n  ");
    if (o->known.signatures == 0 && !o->reason[0])
        fprintf(f, "none yet, a roofline stands in: --fresh times those of this model\n");
    else if (o->reason[0])
        fprintf(f, "could not be taken: %s\n", o->reason);
    else
        fprintf(f, "%d ops timed%s, corrected by %lld trial%s  %s\n", o->known.signatures,
                o->now ? " (this model's now)" : "", (long long)o->known.steps,
                o->known.steps == 1 ? "" : "s", o->known.path);
}

static void put_ops(struct json_writer *w, const struct timed_ops *o) {
    json_put_key(w, "ops");
    json_put_object_begin(w);
    json_member_i64(w, "timed", o->known.signatures);
    json_member_i64(w, "trials", o->known.steps);
    json_member_string(w, "path", o->known.path);
    json_member_string(w, "reason", o->reason);
    json_put_object_end(w);
}

// ---------------------------------------------------------------- output

static void print_plugin(FILE *f, const struct plugin_report *r) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f, "plug-ins (device):\n  %-9s ", "cuda");
    if (r->usable)
        fprintf(f, "%s, %s free of %s%s%s\n", r->device, text_bytes(a, r->free_bytes),
                text_bytes(b, r->total_bytes), r->path[0] ? "  " : "", r->path);
    else
        fprintf(f, "not usable: %s%s%s\n", r->reason, r->path[0] ? "  " : "", r->path);
}

// Two figures of matrix products are printed: what each is, when and with what it was measured.
static void print_origin(FILE *f, const struct machine *m, const struct knobs *k) {
    char when[32] = "before";
    time_t at = (time_t)m->rates.measured_at;
    struct tm t;
    if (m->cached && localtime_r(&at, &t))
        strftime(when, sizeof when, "on %Y-%m-%d %H:%M", &t);
    fprintf(f, "  all of this was measured %s; matrix products: cpu.blas=%s, %d x %d\n",
            m->cached ? when : "now", knob_choice(KNOB_cpu_blas, (int)k->cpu_blas),
            MACHINE_MATMUL_SIZE, MACHINE_MATMUL_SIZE);
    if (m->cached)
        fprintf(f, "  (kept from then: --fresh measures again)\n");
    fprintf(f,
            "libraries for matrix products (cpu.blas), measured now with %d thread%s, %d x %d:\n",
            machine_threads(k), machine_threads(k) == 1 ? "" : "s", MACHINE_MATMUL_SIZE,
            MACHINE_MATMUL_SIZE);
}

static void print_store(FILE *f) {
    char path[STORE_PATH_BYTES];
    struct err e = {0};
    bool has = store_default_path(path, &e) == 0;
    fprintf(f, "store of trials (haggle trials): %s, SQLite %s\n", has ? path : e.text,
            store_sqlite_version());
}

static void print_all(FILE *f, const struct machine *m, const struct knobs *k,
                      const struct candidate *c, const struct machine_blas *narrow,
                      const struct timed_ops *ops, const struct plugin_report *cuda,
                      const struct meters *meters, const struct gaps *g) {
    char packages[512] = "";
    size_t at = 0;
    hw_print(f, &m->hw, &m->rates);
    print_origin(f, m, k);
    for (int i = 0; i < N_CANDIDATES; i++)
        if (c[i].found)
            fprintf(f, "  %-9s %7.1f GFLOP/s  %s%s%s\n", c[i].choice, 1e-9 * c[i].blas.flops_per_s,
                    c[i].blas.name, c[i].blas.path[0] ? "  " : "", c[i].blas.path);
        else
            fprintf(f, "  %-9s not here: %s\n", c[i].choice, c[i].reason);
    fprintf(f, "products of 16-bit types (precision), the same size and threads:\n");
    for (int i = 0; i < N_NARROW; i++)
        fprintf(f, "  %-9s %7.1f GFLOP/s  %s products: %s\n", dtype_text(narrow_types[i]),
                1e-9 * narrow[i].flops_per_s, dtype_text(narrow_types[i]), narrow[i].name);
    print_plugin(f, cuda);
    print_meters(f, meters);
    print_ops(f, ops);
    print_store(f);
    fprintf(f, "missing:%s\n", g->n ? "" : " nothing");
    for (int i = 0; i < g->n; i++) {
        const struct gap *gap = &g->list[i];
        fprintf(f, "  %s: %s%s%s\n", gap->what, gap->purpose, gap->fix[0] ? "; " : "", gap->fix);
        if (gap->package && at < sizeof packages)
            at += (size_t)snprintf(packages + at, sizeof packages - at, " %s", gap->package);
    }
    if (at > 0)
        fprintf(f, "all of them at once:\n  sudo apt install%s\n", packages);
}

static void put_narrow(struct json_writer *w, const struct machine_blas *narrow) {
    json_put_key(w, "products");
    json_put_array_begin(w);
    for (int i = 0; i < N_NARROW; i++) {
        json_put_object_begin(w);
        json_member_string(w, "type", dtype_text(narrow_types[i]));
        json_member_string(w, "name", narrow[i].name);
        json_member_double(w, "flops_per_s", narrow[i].flops_per_s);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}

static void put_all(struct call *call, const struct knobs *k, const struct machine *m,
                    const struct candidate *c, const struct machine_blas *narrow,
                    const struct timed_ops *ops, const struct plugin_report *cuda,
                    const struct meters *meters, const struct gaps *g) {
    struct json_writer *w = &call->json;
    call_json_begin(call, "doctor", k);
    machine_put_json(m, w);
    json_member_bool(w, "rates_cached", m->cached);
    json_member_i64(w, "blas_threads", machine_threads(k)); // of the figures below
    json_member_i64(w, "blas_size", MACHINE_MATMUL_SIZE);
    json_put_key(w, "blas");
    json_put_array_begin(w);
    for (int i = 0; i < N_CANDIDATES; i++) {
        json_put_object_begin(w);
        json_member_string(w, "choice", c[i].choice);
        json_member_bool(w, "found", c[i].found);
        if (c[i].found) {
            json_member_string(w, "name", c[i].blas.name);
            json_member_string(w, "path", c[i].blas.path);
            json_member_double(w, "flops_per_s", c[i].blas.flops_per_s);
        } else {
            json_member_string(w, "reason", c[i].reason);
        }
        json_put_object_end(w);
    }
    json_put_array_end(w);
    put_narrow(w, narrow);
    put_ops(w, ops);
    json_put_key(w, "plugins");
    json_put_array_begin(w);
    json_put_object_begin(w);
    json_member_string(w, "name", "cuda");
    json_member_string(w, "path", cuda->path);
    json_member_bool(w, "usable", cuda->usable);
    if (cuda->usable) {
        json_member_string(w, "device", cuda->device);
        json_member_i64(w, "memory_bytes", (int64_t)cuda->total_bytes);
        json_member_i64(w, "memory_available_bytes", (int64_t)cuda->free_bytes);
    } else {
        json_member_string(w, "reason", cuda->reason);
    }
    json_put_object_end(w);
    json_put_array_end(w);
    put_meters(w, meters);
    char path[STORE_PATH_BYTES];
    json_put_key(w, "store");
    json_put_object_begin(w);
    json_member_string(w, "path", store_default_path(path, NULL) == 0 ? path : NULL);
    json_member_string(w, "sqlite", store_sqlite_version());
    json_put_object_end(w);
    json_put_key(w, "missing");
    json_put_array_begin(w);
    for (int i = 0; i < g->n; i++) {
        json_put_object_begin(w);
        json_member_string(w, "what", g->list[i].what);
        json_member_string(w, "needed_for", g->list[i].purpose);
        json_member_string(w, "fix", g->list[i].fix);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}

static int doctor(struct call *c, const struct knobs *k, bool fresh, struct err *e) {
    struct machine m;
    struct gaps gaps = {0};
    struct plugin_report cuda;
    struct meters meters;
    struct machine_blas narrow[N_NARROW];
    struct timed_ops ops;
    struct knobs cpu = *k; // what is measured here is the CPU, whatever computes
    cpu.device = DEVICE_CPU;
    struct candidate *list = malloc(sizeof candidates);
    if (!list)
        return err_set(e, ERR_MEMORY, "out of memory for the list of libraries");
    memcpy(list, candidates, sizeof candidates);
    log_put(&c->log, LOG_INFO, "measuring; this takes a few seconds");
    int rc = machine_open(&m, &cpu, fresh ? MACHINE_FRESH : MACHINE_MEASURE, e);
    if (rc == 0)
        rc = examine_narrow(narrow, &cpu, e);
    if (rc == 0)
        rc = examine_ops(&ops, k, fresh, e);
    if (rc == 0) {
        for (int i = 0; i < N_CANDIDATES; i++)
            examine(&list[i], &cpu);
        plugin_examine("cuda", &cuda);
        examine_meters(&meters, &cuda);
        find_gaps(&gaps, &m, list, &cuda, &meters);
        if (c->out)
            print_all(c->out, &m, &cpu, list, narrow, &ops, &cuda, &meters, &gaps);
        if (c->wants_json)
            put_all(c, k, &m, list, narrow, &ops, &cuda, &meters, &gaps);
    }
    free(list);
    return rc;
}

int haggle_doctor(const struct haggle_config *config, bool fresh, const struct haggle_sink *sink,
                  struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, doctor(&c, &config->knobs, fresh, &c.err), e);
}
