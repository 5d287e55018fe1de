// doctor.c - haggle_doctor: what this machine is, how fast it is, and what is missing for what.
//
// Nothing that is missing is an error: each gap is a line with what it is for and how to fill it.
#include "api/api.h"

#include "base/text.h"

#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// ---------------------------------------------------------------- libraries for matrix products

struct blas {
    const char *choice;   // value of cpu.blas
    const char *fragment; // of the file name, to find the path among the mapped files
    const char *package;  // that installs it
    bool found;
    double flops;
    char name[MACHINE_NAME_BYTES], path[PATH_MAX], reason[ERR_TEXT_BYTES];
};

static const struct blas candidates[] = {
    {.choice = "openblas", .fragment = "libopenblas", .package = "libopenblas0-pthread"},
    {.choice = "blis", .fragment = "libblis", .package = "libblis4-pthread"},
    {.choice = "onednn", .fragment = "libdnnl", .package = "libdnnl2"},
    {.choice = "builtin"},
};
enum { N_BLAS = sizeof candidates / sizeof *candidates };

// The file a library was loaded from, as the kernel knows it.
static void find_path(struct blas *b) {
    char line[PATH_MAX + 128];
    FILE *f = b->fragment ? fopen("/proc/self/maps", "re") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        char *at = strchr(line, '/');
        if (!at || !strstr(at, b->fragment))
            continue;
        at[strcspn(at, "\n")] = '\0';
        snprintf(b->path, sizeof b->path, "%s", at);
        break;
    }
    if (f)
        fclose(f);
}

static void examine_blas(struct blas *b, const struct knobs *k) {
    struct err e = {0};
    b->found = machine_matmul(k, b->choice, &b->flops, b->name, &e) == 0;
    if (b->found)
        find_path(b);
    else
        snprintf(b->reason, sizeof b->reason, "%s", e.text);
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
    char *argv[] = {(char *)"python3", (char *)"-c", code, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = -1;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return false;
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
    if (posix_spawnp(&pid, "python3", &actions, NULL, argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && status == -1)
            if (kill(pid, 0) != 0)
                break;
    posix_spawn_file_actions_destroy(&actions);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void find_gaps(struct gaps *g, const struct machine *m, const struct blas *blas) {
    bool fast = false;
    for (int i = 0; i < N_BLAS; i++)
        fast = fast || (blas[i].found && blas[i].package);
    if (!fast)
        add_gap(g, "no BLAS library", "matrix products at full speed; the built-in ones stand in",
                "sudo apt install libopenblas0-pthread", "libopenblas0-pthread");
    if (m->hw.level == HW_GENERIC)
        add_gap(g, "no AVX2", "fast kernels; the portable ones stand in", "", NULL);
    if (strcmp(m->hw.huge_pages, "never") == 0)
        add_gap(g, "no transparent huge pages", "fewer TLB misses in large models",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled", NULL);
    if (access("/dev/nvidia0", F_OK) == 0)
        add_gap(g, "no CUDA plug-in", "training on the GPU that is here", "", NULL);
    else
        add_gap(g, "no GPU and no CUDA plug-in", "training on a GPU", "", NULL);
    if (access("/sys/class/powercap/intel-rapl:0/energy_uj", F_OK) != 0)
        add_gap(g, "no RAPL", "energy per token; it is reported as unknown", "", NULL);
    else if (access("/sys/class/powercap/intel-rapl:0/energy_uj", R_OK) != 0)
        add_gap(g, "RAPL may not be read", "energy per token; it is reported as unknown",
                "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj", NULL);
    if (!python_has("torch"))
        add_gap(g, "no python3-torch", "only the comparison with PyTorch (make bench-train)",
                "sudo apt install python3-torch", "python3-torch");
}

// ---------------------------------------------------------------- output

static void print_all(FILE *f, const struct machine *m, const struct blas *blas,
                      const struct gaps *g) {
    char packages[512] = "";
    size_t at = 0;
    hw_print(f, &m->hw, &m->rates);
    fprintf(f, "libraries for matrix products (cpu.blas):\n");
    for (int i = 0; i < N_BLAS; i++) {
        const struct blas *b = &blas[i];
        if (b->found)
            fprintf(f, "  %-9s %7.1f GFLOP/s  %s%s%s\n", b->choice, 1e-9 * b->flops, b->name,
                    b->path[0] ? "  " : "", b->path);
        else
            fprintf(f, "  %-9s not usable: %s\n", b->choice, b->reason);
    }
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

static void put_all(struct call *c, const struct knobs *k, const struct machine *m,
                    const struct blas *blas, const struct gaps *g) {
    struct json_writer *w = &c->json;
    call_json_begin(c, "doctor", k);
    machine_put_json(m, w);
    json_put_key(w, "blas");
    json_put_array_begin(w);
    for (int i = 0; i < N_BLAS; i++) {
        json_put_object_begin(w);
        json_member_string(w, "choice", blas[i].choice);
        json_member_bool(w, "found", blas[i].found);
        if (blas[i].found) {
            json_member_string(w, "name", blas[i].name);
            json_member_string(w, "path", blas[i].path);
            json_member_double(w, "flops_per_s", blas[i].flops);
        } else {
            json_member_string(w, "reason", blas[i].reason);
        }
        json_put_object_end(w);
    }
    json_put_array_end(w);
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
    struct blas *blas = malloc(sizeof candidates);
    if (!blas)
        return err_set(e, ERR_MEMORY, "out of memory for the list of libraries");
    memcpy(blas, candidates, sizeof candidates);
    log_put(&c->log, LOG_INFO, "measuring; this takes a few seconds");
    int rc = machine_open(&m, k, fresh ? MACHINE_FRESH : MACHINE_MEASURE, e);
    if (rc == 0) {
        for (int i = 0; i < N_BLAS; i++)
            examine_blas(&blas[i], k);
        find_gaps(&gaps, &m, blas);
        if (c->out)
            print_all(c->out, &m, blas, &gaps);
        if (c->wants_json)
            put_all(c, k, &m, blas, &gaps);
    }
    free(blas);
    return rc;
}

int haggle_doctor(const struct haggle_config *config, bool fresh, const struct haggle_sink *sink,
                  struct haggle_error *e) {
    struct call c;
    call_begin(&c, sink);
    return call_end(&c, doctor(&c, &config->knobs, fresh, &c.err), e);
}
