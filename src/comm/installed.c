// installed.c - see installed.h. Runs no program: whose mpirun it is shows in where its name leads,
// or in what lies beside it.
#include "comm/installed.h"

#include "base/text.h"
#include "comm/comm.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

const char *comm_flavour_text(enum comm_flavour f) {
    return f == COMM_OPEN_MPI ? "Open MPI" : f == COMM_MPICH ? "MPICH" : "an unknown MPI";
}

// ---------------------------------------------------------------- mpirun

static bool beside(const char *path, const char *name) {
    char other[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int n =
        snprintf(other, sizeof other, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, name);
    return n > 0 && (size_t)n < sizeof other && access(other, X_OK) == 0;
}

static enum comm_flavour flavour_of(const char *path) {
    char real[PATH_MAX];
    if (!realpath(path, real))
        return COMM_UNKNOWN;
    const char *name = strrchr(real, '/');
    name = name ? name + 1 : real;
    if (strstr(name, "orterun") || strstr(name, "prterun") || strstr(name, "openmpi"))
        return COMM_OPEN_MPI;
    if (strstr(name, "hydra") || strstr(name, "mpich"))
        return COMM_MPICH;
    return beside(real, "ompi_info")      ? COMM_OPEN_MPI
           : beside(real, "mpichversion") ? COMM_MPICH
                                          : COMM_UNKNOWN;
}

static bool in_path(const char *name, char out[PLUGIN_PATH_BYTES]) {
    const char *at = getenv("PATH");
    while (at && *at) {
        const size_t length = strcspn(at, ":");
        const int n = snprintf(out, PLUGIN_PATH_BYTES, "%.*s/%s", (int)length, at, name);
        if (*at == '/' && n < PLUGIN_PATH_BYTES && access(out, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    out[0] = '\0';
    return false;
}

// The one that belongs to the library, where several are installed.
static void find_mpirun(struct comm_installed *i) {
    static const char *const names[] = {"mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra",
                                        "mpiexec"};
    char path[PLUGIN_PATH_BYTES];
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        if (!in_path(names[k], path))
            continue;
        const enum comm_flavour is = flavour_of(path);
        if (i->mpirun[0] == '\0' || (is == i->library_is && i->mpirun_is != is)) {
            memcpy(i->mpirun, path, sizeof path);
            i->mpirun_is = is;
        }
    }
}

// ---------------------------------------------------------------- the machine

static int read_ptrace_scope(void) {
    FILE *f = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    int scope = -1;
    if (f && fscanf(f, "%d", &scope) != 1)
        scope = -1;
    if (f)
        fclose(f);
    return scope;
}

// Where a container forbids the call, it forbids it for a process's own memory, too.
static bool may_read_memory(void) {
    char from = 1, to = 0;
    const struct iovec local = {&to, 1}, remote = {&from, 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

static void explain(struct comm_installed *i) {
    const char *package = i->library_is == COMM_MPICH ? "mpich" : "openmpi-bin";
    if (i->reason[0])
        return;
    if (!i->mpirun[0])
        snprintf(i->reason, sizeof i->reason, "mpirun is not in PATH (Debian: %s)", package);
    else if (i->mpirun_is != i->library_is)
        snprintf(i->reason, sizeof i->reason,
                 "%.600s belongs to %s, and the plug-in was built with %s (Debian: %s)", i->mpirun,
                 comm_flavour_text(i->mpirun_is), comm_flavour_text(i->library_is), package);
}

void comm_examine(struct comm_installed *out) {
    struct err e = {0};
    struct statvfs shared;
    *out = (struct comm_installed){0};
    plugin_find(COMM_PLUGIN_NAME, out->plugin);
    if (comm_library(out->library, &e) != 0)
        snprintf(out->reason, sizeof out->reason, "%s", e.text);
    out->library_is = strstr(out->library, "Open MPI") ? COMM_OPEN_MPI
                      : strstr(out->library, "MPICH")  ? COMM_MPICH
                                                       : COMM_UNKNOWN;
    find_mpirun(out);
    out->root = geteuid() == 0;
    out->ptrace_scope = read_ptrace_scope();
    out->reads_others = may_read_memory() && out->ptrace_scope < 2;
    if (statvfs("/dev/shm", &shared) == 0)
        out->shared_bytes = (uint64_t)shared.f_frsize * shared.f_blocks;
    explain(out);
    out->usable = out->reason[0] == '\0';
}

// ---------------------------------------------------------------- advice

static void ERR_PRINTF(4, 5)
    advise(struct comm_advice *out, int *n, const char *topic, const char *format, ...) {
    va_list args;
    out[*n].topic = topic;
    va_start(args, format);
    vsnprintf(out[*n].text, sizeof out[*n].text, format, args);
    va_end(args);
    ++*n;
}

static void advise_open_mpi(const struct comm_installed *i, int cpus, struct comm_advice *out,
                            int *n) {
    advise(out, n, "binding",
           "mpirun binds each of one or two ranks to a single core, whatever `threads` says; "
           "--bind-to none leaves them all cores");
    advise(out, n, "cores",
           "mpirun refuses more ranks than cores (%d CPUs here) unless it gets --oversubscribe",
           cpus);
    if (i->root)
        advise(out, n, "root",
               "mpirun refuses root unless OMPI_ALLOW_RUN_AS_ROOT=1 and "
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 are set");
    if (i->reads_others)
        advise(out, n, "memory", "a process may read another one's memory (CMA)%s",
               i->ptrace_scope == 1 ? "; Yama allows it to those that ask (ptrace_scope 1)" : "");
    else
        advise(out, n, "memory",
               "no process may read another one's memory (CMA)%s; set "
               "OMPI_MCA_btl_vader_single_copy_mechanism=none",
               i->ptrace_scope > 1 ? ", because Yama's ptrace_scope is 2 or 3"
                                   : ", as in many containers");
}

int comm_advise(const struct comm_installed *i, int cpus,
                struct comm_advice out[COMM_ADVICE_MOST]) {
    enum { SHARED_ENOUGH = 64 << 20 }; // Docker gives this much
    char shared[TEXT_UNIT_BYTES];
    int n = 0;
    if (i->library_is == COMM_OPEN_MPI)
        advise_open_mpi(i, cpus, out, &n);
    text_bytes(shared, i->shared_bytes);
    if (i->shared_bytes == 0)
        advise(out, &n, "/dev/shm", "there is none, and ranks on one machine need it to be fast");
    else
        advise(out, &n, "/dev/shm", "%s of shared memory%s", shared,
               i->shared_bytes <= SHARED_ENOUGH
                   ? ": little for more than a few ranks; docker run --shm-size=1g gives more"
                   : "");
    return n;
}

// ---------------------------------------------------------------- starting

// Open MPI binds each of two ranks to one core, refuses more ranks than cores, and refuses root.
// Ranks on one machine need no network: it neither listens on one nor asks ssh. Chunks that fit
// into a cache go faster through shared memory than when one process reads another's memory (20 and
// 28 ms to sum 64 MiB), and containers often forbid the latter. A setting of Open MPI that the user
// has made in the environment stays.
static void start_open_mpi(struct comm_start *s, const struct comm_installed *i) {
    static const char *const arguments[] = {"--quiet", "--oversubscribe",   "--bind-to",
                                            "none",    "--enable-recovery", "-n"};
    static const char *const environment[] = {
        "OMPI_MCA_plm=isolated",
        "OMPI_MCA_pml=ob1",
        "OMPI_MCA_btl=^tcp,openib,usnic",
        "OMPI_MCA_oob_tcp_if_include=lo",
        "OMPI_MCA_btl_tcp_if_include=lo",
        "PRTE_MCA_prte_if_include=lo",
        "OMPI_MCA_btl_vader_single_copy_mechanism=none",
        "OMPI_MCA_smsc=^cma",
        // Ranks that are killed leave files behind.
        "OMPI_MCA_orte_tmpdir_base=",
        "PRTE_MCA_prte_tmpdir_base=",
        "OMPI_MCA_btl_vader_backing_directory=",
        "OMPI_MCA_btl_sm_backing_directory=",
    };
    size_t n = sizeof environment / sizeof *environment;
    memcpy(s->arguments, arguments, sizeof arguments);
    s->arguments[sizeof arguments / sizeof *arguments] = s->ranks;
    memcpy(s->environment, environment, sizeof environment);
    if (i->root) {
        s->environment[n++] = "OMPI_ALLOW_RUN_AS_ROOT=1";
        s->environment[n++] = "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
        s->environment[n++] = "PRTE_ALLOW_RUN_AS_ROOT=1";
        s->environment[n++] = "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1";
    }
    s->rank_variable = "OMPI_COMM_WORLD_RANK";
}

static void start_mpich(struct comm_start *s) {
    static const char *const arguments[] = {"-launcher", "fork", "-bind-to", "none",
                                            "-iface",    "lo",   "-n"};
    memcpy(s->arguments, arguments, sizeof arguments);
    s->arguments[sizeof arguments / sizeof *arguments] = s->ranks;
    s->rank_variable = "PMI_RANK";
}

void comm_start_of(struct comm_start *out, const struct comm_installed *i, int ranks) {
    *out = (struct comm_start){0};
    snprintf(out->ranks, sizeof out->ranks, "%d", ranks);
    if (i->mpirun_is == COMM_MPICH)
        start_mpich(out);
    else
        start_open_mpi(out, i);
}
