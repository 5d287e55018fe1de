// launch.c - starts the ranks of a run as processes on this machine, with mpirun, and stands in for
// them: signals reach rank 0 once, its streams are this process's, its exit status becomes this
// one's, and nobody outlives this process.
//
// mpirun's own ways with streams and statuses are not used: it would put pipes between rank 0 and
// the terminal, and its status depends on who ended first. Instead every rank connects to a socket
// of this process (launch_join), which hands it the streams. A rank says its status when it ends,
// and before that what has failed; this process prints the first such text, so that it is printed
// once, whichever rank could tell. A connection that closes without a word is a rank that was
// killed.
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 3 };

// A name in the abstract namespace: no file has to be removed.
static socklen_t address_of(struct sockaddr_un *a, const char *name) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t n = strnlen(name, sizeof a->sun_path - 2);
    memcpy(a->sun_path + 1, name, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static bool same_user(int fd, pid_t *pid) {
    struct ucred who;
    socklen_t bytes = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0 || who.uid != geteuid())
        return false;
    *pid = who.pid;
    return true;
}

// ---------------------------------------------------------------- a rank

struct word {       // of a rank to the launcher
    int32_t status; // of its process
    int32_t code;   // why it has failed; 0: it has not, or has told that before. Its end follows
    char text[HAGGLE_TEXT_BYTES];
};
static int home = -1; // the launcher; -1: none

union control { // aligned as the kernel wants it
    struct cmsghdr head;
    char bytes[CMSG_SPACE(STREAMS * sizeof(int))];
};

static bool take_streams(int from, int streams[STREAMS]) {
    char byte;
    union control control;
    struct iovec data = {&byte, 1};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1)
        return false;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(STREAMS * sizeof(int)))
        return false;
    memcpy(streams, CMSG_DATA(c), STREAMS * sizeof(int));
    return true;
}

static bool use_streams(int32_t rank, const int streams[STREAMS]) {
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool ok = nothing >= 0;
    for (int fd = 0; fd < STREAMS; fd++) {
        const int from = rank == 0 || fd == STDERR_FILENO ? streams[fd] : nothing;
        ok = ok && dup2(from, fd) == fd;
        close(streams[fd]);
    }
    close(nothing);
    return ok;
}

bool launch_join(void) {
    const char *where = getenv(LAUNCH_VARIABLE), *variable = where ? strchr(where, ' ') : NULL;
    const char *number = variable ? getenv(variable + 1) : NULL;
    char name[64];
    struct sockaddr_un address;
    int streams[STREAMS];
    pid_t owner;
    if (!number)
        return true;
    snprintf(name, sizeof name, "%.*s", (int)(variable - where), where);
    const int32_t rank = atoi(number);
    const socklen_t bytes = address_of(&address, name);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); // mpirun's end is this one's
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address, bytes) != 0 ||
        !same_user(fd, &owner) || send(fd, &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank ||
        !take_streams(fd, streams) || !use_streams(rank, streams))
        return false;
    unsetenv(LAUNCH_VARIABLE);
    home = fd;
    return true;
}

static bool say(const struct word *w) {
    return home >= 0 && send(home, w, sizeof *w, MSG_NOSIGNAL) == sizeof *w;
}

bool launch_tell(const struct haggle_error *e, int status) {
    struct word w = {.status = status, .code = e->code};
    memcpy(w.text, e->text, sizeof w.text);
    return say(&w);
}

void launch_leave(int status) {
    say(&(struct word){.status = status});
}

// ---------------------------------------------------------------- starting

struct link { // to a rank
    int fd;   // -1: it has ended
    pid_t pid;
    int32_t rank;
    bool ends; // has said its status
};

enum { SAID_BYTES = 700, LINKS_MORE = 16 };
struct launch {
    const struct haggle_ranks *ranks;
    int listener, signals, output; // what mpirun itself prints
    pid_t mpirun;                  // the process that keeps it
    sigset_t before;
    struct link *links;
    int n_links, room;
    bool ended; // mpirun has
    int mpirun_status;
    int lost;  // the first rank that ended without a word; -1: none
    bool told; // rank 0 has said its status
    int status;
    struct word why; // the first failure that a rank told; code 0: none
    int stopped_by;  // the first signal
    bool killed;
    uint64_t deadline_ns; // then all are killed; 0: none is set
    char said[SAID_BYTES];
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const uint64_t SECOND_NS = 1000000000;

static void set_deadline(struct launch *l, uint64_t in_ns) {
    const uint64_t at = now_ns() + in_ns;
    if (l->deadline_ns == 0 || at < l->deadline_ns)
        l->deadline_ns = at;
}

static bool open_listener(struct launch *l, char name[64]) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof a.sun_family; // the kernel chooses a name
    l->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (l->listener < 0 || bind(l->listener, (const struct sockaddr *)&a, bytes) != 0 ||
        listen(l->listener, 128) != 0)
        return false;
    bytes = sizeof a;
    if (getsockname(l->listener, (struct sockaddr *)&a, &bytes) != 0)
        return false;
    const size_t length = bytes - offsetof(struct sockaddr_un, sun_path) - 1;
    snprintf(name, 64, "%.*s", (int)length, a.sun_path + 1);
    return true;
}

// A signal that is already ignored (nohup) stays ignored.
static bool open_signals(struct launch *l) {
    static const int wanted[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP};
    struct sigaction action;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    signal(SIGCHLD, SIG_DFL); // the program that started this one may have ignored it
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (sigaction(wanted[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&set, wanted[i]);
    sigprocmask(SIG_BLOCK, &set, &l->before);
    l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals >= 0;
}

static int start(struct launch *l, const struct cli *c, struct haggle_error *e) {
    char program[4096], name[64];
    int ends[2] = {-1, -1};
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    if (n <= 0 || !open_listener(l, name) || !open_signals(l) || pipe2(ends, O_CLOEXEC) != 0 ||
        (l->mpirun = mpirun_start(c, program, name, ends[1], &l->before)) < 0)
        return cli_error(e, HAGGLE_ERR_IO, "ranks cannot be started: %s", strerror(errno));
    close(ends[1]);
    l->output = ends[0];
    fcntl(l->output, F_SETFL, O_NONBLOCK);
    return 0;
}

// ---------------------------------------------------------------- while ranks run

static bool give_streams(int fd) {
    static const int streams[STREAMS] = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO};
    char byte = 0;
    union control control = {0};
    struct iovec data = {&byte, 1};
    struct msghdr m = {.msg_iov = &data,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof streams);
    memcpy(CMSG_DATA(c), streams, sizeof streams);
    return sendmsg(fd, &m, MSG_NOSIGNAL) == 1;
}

// A stranger on this machine may connect as well.
static void welcome(struct launch *l) {
    struct link link = {.fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC)};
    const struct timeval limit = {.tv_sec = 2};
    if (link.fd < 0)
        return;
    setsockopt(link.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (l->n_links == l->room || !same_user(link.fd, &link.pid) ||
        recv(link.fd, &link.rank, sizeof link.rank, 0) != sizeof link.rank || link.rank < 0 ||
        link.rank >= l->ranks->ranks || !give_streams(link.fd)) {
        close(link.fd);
        return;
    }
    l->links[l->n_links++] = link;
}

static void signal_ranks(const struct launch *l, int signal) {
    for (int i = 0; i < l->n_links; i++)
        if (l->links[i].fd >= 0)
            kill(l->links[i].pid, signal);
}

static void quit(struct launch *l) {
    signal_ranks(l, SIGKILL);
    if (!l->ended)
        kill(l->mpirun, SIGTERM);
    l->killed = true;
    l->deadline_ns = now_ns() + 3 * SECOND_NS;
}

static bool is_stopped(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    const size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    const char *state = strrchr(text, ')');
    return state && strncmp(state, ") T", 3) == 0;
}

// What only this process can see of a rank that cannot speak; NULL: nothing, or it is told already.
static const char *state_of(const struct launch *l, int rank, const char *told, pid_t *pid) {
    char known[32];
    const struct link *k = NULL;
    snprintf(known, sizeof known, "rank %d has ended", rank);
    for (int i = 0; i < l->n_links && !k; i++)
        k = l->links[i].rank == rank ? &l->links[i] : NULL;
    *pid = k ? k->pid : 0;
    if (!k)
        return "has not started";
    if (k->fd < 0)
        return strstr(told, known) ? NULL : "has ended";
    return is_stopped(k->pid) ? "is stopped" : NULL;
}

static void add_states(const struct launch *l, char text[HAGGLE_TEXT_BYTES]) {
    size_t used = strlen(text);
    for (int r = 0; r < l->ranks->ranks && used < HAGGLE_TEXT_BYTES; r++) {
        pid_t pid;
        const char *state = state_of(l, r, text, &pid);
        if (state)
            used +=
                (size_t)snprintf(text + used, HAGGLE_TEXT_BYTES - used, "; rank %d %s", r, state);
        if (state && pid > 0 && used < HAGGLE_TEXT_BYTES)
            used +=
                (size_t)snprintf(text + used, HAGGLE_TEXT_BYTES - used, " (process %d)", (int)pid);
    }
}

// How long the others may take to end when one has. Others tell of a rank that was killed. A rank
// other than the first tells when those before it cannot (lookout.h).
static const uint64_t GRACE_NS = 3 * SECOND_NS, TELL_NS = 4 * SECOND_NS, AFTER_FIRST_NS = SECOND_NS;

// The time is over.
static void give_up(struct launch *l) {
    if (l->why.code == 0 && l->lost < 0 && !l->told && l->stopped_by == 0) {
        l->why = (struct word){.code = HAGGLE_ERR_RANK, .text = "the ranks did not end together"};
        add_states(l, l->why.text);
    }
    quit(l);
}

static void note_failure(struct launch *l, const struct link *k, const struct word *w) {
    if (l->why.code == 0) {
        l->why = *w;
        l->why.text[sizeof l->why.text - 1] = '\0';
        if (w->code == HAGGLE_ERR_RANK)
            add_states(l, l->why.text);
    }
    if (k->rank == 0 && w->code != HAGGLE_ERR_STOPPED)
        set_deadline(l, AFTER_FIRST_NS);
    else if (k->rank != 0 && !l->killed)
        quit(l);
}

static void note_status(struct launch *l, const struct link *k, int status) {
    const uint64_t timeout_ns = l->ranks->timeout_ns;
    if (k->rank != 0) { // ranks leave together, so rank 0 has nothing left to do
        if (timeout_ns > 0 && l->why.code == 0)
            set_deadline(l, timeout_ns > AFTER_FIRST_NS ? timeout_ns : AFTER_FIRST_NS);
        return;
    }
    l->told = true;
    l->status = status;
    if (l->why.code == 0 || l->why.code == HAGGLE_ERR_STOPPED)
        set_deadline(l, GRACE_NS);
    else if (!l->killed)
        quit(l);
}

static void note_end(struct launch *l, struct link *k) {
    close(k->fd);
    k->fd = -1;
    if (k->ends)
        return;
    l->lost = l->lost < 0 && !l->killed ? k->rank : l->lost;
    set_deadline(l, TELL_NS);
}

// False: it has said nothing more.
static bool hear(struct launch *l, struct link *k) {
    struct word w;
    const ssize_t n = recv(k->fd, &w, sizeof w, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n != sizeof w) {
        note_end(l, k);
    } else if (w.code != 0) {
        note_failure(l, k, &w);
    } else {
        k->ends = true;
        note_status(l, k, w.status);
    }
    return true;
}

static void on_stop(struct launch *l, int signal) {
    const bool first = l->stopped_by == 0;
    bool heard = false;
    l->stopped_by = first ? signal : l->stopped_by;
    for (int i = 0; first && i < l->n_links; i++)
        if (l->links[i].rank == 0 && l->links[i].fd >= 0)
            heard = kill(l->links[i].pid, signal) == 0;
    if (!heard && !l->killed) // nothing has begun, or this is the second signal
        quit(l);
}

static void read_signals(struct launch *l) {
    struct signalfd_siginfo s;
    while (read(l->signals, &s, sizeof s) == sizeof s) {
        const int signal = (int)s.ssi_signo;
        if (signal == SIGTSTP) { // all of them sleep, until the shell wakes this process
            signal_ranks(l, SIGSTOP);
            raise(SIGSTOP);
            signal_ranks(l, SIGCONT);
        } else if (signal != SIGCHLD) {
            on_stop(l, signal);
        }
    }
    if (!l->ended && waitpid(l->mpirun, &l->mpirun_status, WNOHANG) == l->mpirun)
        l->ended = true;
}

// Keeps the beginning: what went wrong comes first.
static void read_output(struct launch *l) {
    char more[1024];
    ssize_t n;
    while ((n = read(l->output, more, sizeof more)) > 0) {
        const size_t used = strlen(l->said), room = sizeof l->said - 1 - used;
        const size_t some = (size_t)n < room ? (size_t)n : room;
        memcpy(l->said + used, more, some);
        l->said[used + some] = '\0';
    }
    if (n == 0) {
        close(l->output);
        l->output = -1;
    }
}

static void turn(struct launch *l, struct pollfd *p) {
    p[0] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    p[1] = (struct pollfd){.fd = l->listener, .events = POLLIN};
    p[2] = (struct pollfd){.fd = l->output, .events = POLLIN};
    const int n = l->n_links;
    for (int i = 0; i < n; i++)
        p[STREAMS + i] = (struct pollfd){.fd = l->links[i].fd, .events = POLLIN};
    int wait_ms = -1;
    if (l->deadline_ns > 0) {
        const uint64_t now = now_ns();
        wait_ms = l->deadline_ns > now ? (int)((l->deadline_ns - now) / 1000000u) + 1 : 0;
    }
    if (poll(p, (nfds_t)(STREAMS + n), wait_ms) == 0 && wait_ms >= 0)
        give_up(l);
    for (int i = 0; i < n; i++)
        if (p[STREAMS + i].revents)
            hear(l, &l->links[i]);
    if (p[1].revents)
        welcome(l);
    if (p[2].revents)
        read_output(l);
    read_signals(l);
}

// ---------------------------------------------------------------- the end

static void one_line(char *text) {
    for (char *at = text; *at; at++)
        if (*at == '\n' || *at == '-')
            *at = at > text && at[-1] == ' ' ? ' ' : *at == '\n' ? ' ' : '-';
}

// The statuses of ranks: whether rank 0 has written its results.
static int conclude(struct launch *l, struct cli *c, struct haggle_error *e) {
    if (l->told || l->stopped_by != 0) {
        c->status = l->told ? l->status : 128 + l->stopped_by;
        cli_sink_drop(c); // rank 0 has written its own
        if (l->why.code != 0) {
            cli_error(e, l->why.code, "%s", l->why.text);
            cli_print(c);
        }
        return 0;
    }
    one_line(l->said);
    if (l->why.code != 0)
        return cli_error(e, l->why.code, "%s", l->why.text);
    if (l->n_links == 0)
        return cli_error(e, HAGGLE_ERR_IO, "%.300s has started no rank: %s", l->ranks->command[0],
                         l->said[0] ? l->said : "it does not say why");
    return cli_error(e, HAGGLE_ERR_RANK, "rank %d was killed or has crashed, and the others ended",
                     l->lost < 0 ? 0 : l->lost);
}

int launch_ranks(struct cli *c, struct haggle_error *e) {
    struct launch l = {.ranks = &c->ranks, .listener = -1, .signals = -1, .output = -1, .lost = -1};
    l.room = c->ranks.ranks + LINKS_MORE;
    l.links = calloc((size_t)l.room, sizeof *l.links);
    struct pollfd *polled = calloc((size_t)(STREAMS + l.room), sizeof *polled);
    int rc = l.links && polled
                 ? start(&l, c, e)
                 : cli_error(e, HAGGLE_ERR_MEMORY, "out of memory for %d ranks", c->ranks.ranks);
    while (rc == 0 && !l.ended)
        turn(&l, polled);
    if (rc == 0) {
        for (int i = 0; i < l.n_links; i++)
            while (l.links[i].fd >= 0 && hear(&l, &l.links[i]))
                ; // its last words
        signal_ranks(&l, SIGKILL);
        if (l.output >= 0)
            read_output(&l);
        rc = conclude(&l, c, e);
    }
    for (int i = 0; i < l.n_links; i++)
        if (l.links[i].fd >= 0)
            close(l.links[i].fd);
    const int open_ones[] = {l.listener, l.signals, l.output};
    for (int i = 0; i < STREAMS; i++)
        if (open_ones[i] >= 0)
            close(open_ones[i]);
    free(l.links);
    free(polled);
    return rc;
}
