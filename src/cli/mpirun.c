// mpirun.c - starts mpirun, and keeps it.
//
// Between this process and mpirun stands a third one, the keeper. Ranks that are killed leave their
// shared memory behind, and so does an mpirun that is interrupted twice. All of that lies in one
// folder, and the keeper removes it when mpirun has ended, also when this process was killed.
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FOLDER_BYTES = 64, PATIENCE_S = 1 };

static void set_environment(const struct haggle_ranks *r, const char *name, const char *folder) {
    // Within a batch job mpirun would ask its scheduler where to start ranks.
    static const char *const schedulers[] = {"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID",
                                             "LSB_JOBID", "JOB_ID"};
    char text[128];
    for (size_t i = 0; i < sizeof schedulers / sizeof *schedulers; i++)
        unsetenv(schedulers[i]);
    for (int i = 0; i < HAGGLE_LAUNCH_WORDS && r->environment[i]; i++) {
        const char *equals = strchr(r->environment[i], '=');
        snprintf(text, sizeof text, "%.*s", (int)(equals - r->environment[i]), r->environment[i]);
        if (equals[1] || folder[0])
            setenv(text, equals[1] ? equals + 1 : folder, 0);
    }
    snprintf(text, sizeof text, "%.60s %.60s", name, r->rank_variable);
    setenv(LAUNCH_VARIABLE, text, 1);
}

static char **command_line(const struct cli *c, char *program) {
    enum { MORE = HAGGLE_LAUNCH_WORDS + 3 };
    char **words = calloc((size_t)(MORE + c->n_given), sizeof *words);
    int n = 0;
    if (!words)
        return NULL;
    while (n < HAGGLE_LAUNCH_WORDS && c->ranks.command[n]) {
        words[n] = (char *)(uintptr_t)c->ranks.command[n];
        n++;
    }
    words[n++] = program;
    words[n++] = (char *)(uintptr_t)c->verb->name;
    for (int i = 0; i < c->n_given; i++)
        words[n++] = c->given[i];
    return words;
}

// ---------------------------------------------------------------- the two processes

// mpirun then ends the ranks.
static void ends_with(pid_t owner) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != owner)
        _exit(127);
}

static void become_mpirun(char **words, int output, pid_t keeper, const sigset_t *mask) {
    const int nothing = open("/dev/null", O_RDONLY);
    ends_with(keeper);
    if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
        dup2(output, STDERR_FILENO) < 0)
        _exit(127);
    sigprocmask(SIG_SETMASK, mask, NULL);
    execv(words[0], words);
    fprintf(stderr, "%s: %s", words[0], strerror(errno));
    _exit(127);
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *at) {
    (void)s, (void)type, (void)at;
    remove(path);
    return 0;
}

// In memory where there is such a place: ranks on one machine talk through these files.
static void make_folder(char folder[FOLDER_BYTES]) {
    static const char *const places[] = {"/dev/shm", "/tmp"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(folder, FOLDER_BYTES, "%s/haggle-XXXXXX", places[i]);
        if (mkdtemp(folder))
            return;
    }
    folder[0] = '\0'; // MPI chooses its places
}

// Keeps nothing open that another process may wait for.
static void let_go(void) {
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        dup2(nothing, fd);
    close_range(STDERR_FILENO + 1, UINT_MAX, 0);
}

static void keep(pid_t mpirun, const sigset_t *heard) {
    const struct timespec patience = {.tv_sec = PATIENCE_S};
    bool asked = false;
    int status;
    while (waitpid(mpirun, &status, WNOHANG) == 0) {
        const int signal = sigtimedwait(heard, NULL, asked ? &patience : NULL);
        if (signal == SIGTERM && !asked)
            kill(mpirun, SIGTERM); // the second time it would leave its files
        else if (signal < 0 && errno == EAGAIN)
            kill(mpirun, SIGKILL);
        asked = asked || signal == SIGTERM;
    }
}

static void become_keeper(const struct cli *c, char **words, const char *name, int output,
                          pid_t owner, const sigset_t *mask) {
    char folder[FOLDER_BYTES];
    sigset_t heard;
    sigemptyset(&heard);
    sigaddset(&heard, SIGTERM);
    sigaddset(&heard, SIGCHLD);
    sigprocmask(SIG_BLOCK, &heard, NULL);
    ends_with(owner);
    setsid(); // Ctrl-C reaches the owner alone
    make_folder(folder);
    set_environment(&c->ranks, name, folder);
    const pid_t keeper = getpid(), mpirun = fork();
    if (mpirun == 0)
        become_mpirun(words, output, keeper, mask);
    let_go();
    if (mpirun > 0)
        keep(mpirun, &heard);
    if (folder[0])
        nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    _exit(mpirun > 0 ? 0 : 127);
}

pid_t mpirun_start(const struct cli *c, char *program, const char *name, int output,
                   const sigset_t *mask) {
    char **words = command_line(c, program);
    const pid_t owner = getpid(), keeper = words ? fork() : -1;
    if (keeper == 0)
        become_keeper(c, words, name, output, owner, mask);
    free(words);
    return keeper;
}
