// lookout_net.c - see lookout_net.h.
#include "comm/lookout_net.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024, HOST_BYTES = 256 };

static int look_up(const char *host, const char *port, struct addrinfo **out, struct err *e) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    const int rc = getaddrinfo(host, port, &hints, out);
    if (rc != 0)
        return err_set(e, ERR_USAGE, "the address '%.200s' is not known: %s", host,
                       rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    return 0;
}

static int open_socket(const struct addrinfo *a) {
    return socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

// ---------------------------------------------------------------- listening

static bool is_any(const struct addrinfo *a) {
    if (a->ai_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(
            &((const struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_addr);
    return ((const struct sockaddr_in *)(void *)a->ai_addr)->sin_addr.s_addr == INADDR_ANY;
}

static int show(int fd, char shown[LOOKOUT_ADDRESS_BYTES], struct err *e) {
    struct sockaddr_storage at;
    socklen_t bytes = sizeof at;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getsockname(fd, (struct sockaddr *)&at, &bytes) != 0 ||
        getnameinfo((const struct sockaddr *)&at, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return err_set(e, ERR_IO, "the address of a socket cannot be read");
    const int n = snprintf(shown, LOOKOUT_ADDRESS_BYTES,
                           at.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return n < LOOKOUT_ADDRESS_BYTES
               ? 0
               : err_set(e, ERR_UNSUPPORTED, "the address %.200s:%s is too long", host, port);
}

int lookout_listen(const char *host, int *fd, char shown[LOOKOUT_ADDRESS_BYTES], struct err *e) {
    struct addrinfo *a = NULL;
    TRY(look_up(host, "0", &a, e));
    int rc = 0;
    *fd = -1;
    if (is_any(a))
        rc = err_set(e, ERR_USAGE,
                     "ranks cannot meet at '%.200s', because no other machine knows it by that "
                     "address; give the address of one network",
                     host);
    else if ((*fd = open_socket(a)) < 0 || bind(*fd, a->ai_addr, a->ai_addrlen) != 0 ||
             listen(*fd, BACKLOG) != 0)
        rc = err_set(e, ERR_IO, "cannot listen at '%.200s': %s", host, strerror(errno));
    else
        rc = show(*fd, shown, e);
    freeaddrinfo(a);
    if (rc != 0 && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

// Messages are short and awaited.
static int at_once(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

int lookout_accept(int listener) {
    int fd;
    do
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return fd < 0 ? -1 : at_once(fd);
}

// ---------------------------------------------------------------- connecting

// The C library takes 70000 for 4464.
static bool is_port(const char *text) {
    int64_t port;
    return text_parse_i64(text, &port, NULL) == 0 && port > 0 && port <= UINT16_MAX;
}

static int split(const char *address, char host[HOST_BYTES], const char **port, struct err *e) {
    const char *colon = address ? strrchr(address, ':') : NULL;
    const bool bracketed = colon && address[0] == '[' && colon[-1] == ']';
    const char *begin = bracketed ? address + 1 : address, *end = bracketed ? colon - 1 : colon;
    if (!colon || end <= begin || end - begin >= HOST_BYTES || !is_port(colon + 1))
        return err_set(e, ERR_USAGE, "the address of rank 0 is '%.200s'; accepted: HOST:PORT",
                       address ? address : "");
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = '\0';
    *port = colon + 1;
    return 0;
}

// 0, or the errno of the failure.
static int try_connect(int fd, const struct addrinfo *a, uint64_t until_ns) {
    int why = 0;
    socklen_t bytes = sizeof why;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS && errno != EINTR)
        return errno;
    if (!lookout_ready(fd, POLLOUT, until_ns))
        return ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes) == 0 ? why : errno;
}

int lookout_connect(const char *address, uint64_t until_ns, int *fd, struct err *e) {
    char host[HOST_BYTES];
    const char *port = NULL;
    struct addrinfo *a = NULL;
    TRY(split(address, host, &port, e));
    TRY(look_up(host, port, &a, e));
    *fd = open_socket(a);
    const int why = *fd < 0 ? errno : try_connect(*fd, a, until_ns);
    freeaddrinfo(a);
    if (why == 0) {
        at_once(*fd);
        return 0;
    }
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return err_set(e, ERR_RANK, "rank 0 cannot be reached at %s: %s", address, strerror(why));
}

// ---------------------------------------------------------------- bytes

bool lookout_ready(int fd, short events, uint64_t until_ns) {
    for (;;) {
        const uint64_t now = clock_ns(),
                       left = until_ns > now ? (until_ns - now) / 1000000u + 1 : 0;
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
        if (n > 0)
            return true;
        if (n == 0 && clock_ns() >= until_ns)
            return false;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

long lookout_send(int fd, const void *data, size_t bytes) {
    const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
    if (n >= 0)
        return (long)n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

long lookout_recv(int fd, void *data, size_t bytes) {
    const ssize_t n = recv(fd, data, bytes, 0);
    if (n > 0)
        return (long)n;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}
