// child.c - see child.h.
#include "base/child.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void child_begin(pid_t owner) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != owner) // the owner died before prctl took effect
        _exit(1);
}

pid_t child_fork(const int ends[2]) {
    const pid_t owner = getpid(), child = fork();
    const int why = errno;
    if (child == 0)
        child_begin(owner);
    if (child <= 0)
        close(ends[0]);
    if (child != 0)
        close(ends[1]);
    errno = why;
    return child;
}

size_t child_receive(int fd, void *out, size_t bytes, const volatile sig_atomic_t *stop,
                     uint64_t until_ns) {
    enum { LOOK_MS = 100 };
    size_t got = 0;
    while (got < bytes) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int ready = poll(&p, 1, LOOK_MS);
        if ((stop && *stop) || (ready <= 0 && clock_ns() > until_ns))
            break;
        const ssize_t n = ready > 0 ? read(fd, (char *)out + got, bytes - got) : -1;
        if (ready <= 0 || (n < 0 && errno == EINTR))
            continue;
        if (n <= 0)
            break;
        got += (size_t)n;
    }
    return got;
}

bool child_send(int fd, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

int child_wait(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return 0;
    return status;
}
