// address.c - see address.h.
#include "comm/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static size_t width(const struct address *a) {
    return a->family == 6 ? 16 : 4;
}

static void from_socket(struct address *a, const struct sockaddr *s) {
    *a = (struct address){.family = s->sa_family == AF_INET6 ? 6 : 4};
    if (a->family == 6)
        memcpy(a->bytes, &((const struct sockaddr_in6 *)(const void *)s)->sin6_addr, 16);
    else
        memcpy(a->bytes, &((const struct sockaddr_in *)(const void *)s)->sin_addr, 4);
}

static socklen_t to_socket(struct sockaddr_storage *s, const struct address *a) {
    const in_port_t some = htons(9);
    *s = (struct sockaddr_storage){.ss_family = a->family == 6 ? AF_INET6 : AF_INET};
    if (a->family == 6) {
        struct sockaddr_in6 *to = (void *)s;
        to->sin6_port = some;
        memcpy(&to->sin6_addr, a->bytes, 16);
        return sizeof *to;
    }
    struct sockaddr_in *to = (void *)s;
    to->sin_port = some;
    memcpy(&to->sin_addr, a->bytes, 4);
    return sizeof *to;
}

static const char *text_of(char out[ADDRESS_TEXT_BYTES], const struct address *a) {
    const int family = a->family == 6 ? AF_INET6 : AF_INET;
    return inet_ntop(family, a->bytes, out, ADDRESS_TEXT_BYTES) ? out : "?";
}

// ---------------------------------------------------------------- the own ones

static uint8_t prefix_of(const struct sockaddr *mask) {
    struct address bits;
    uint8_t n = 0;
    if (!mask)
        return 0;
    from_socket(&bits, mask);
    for (size_t i = 0; i < width(&bits); i++)
        n = (uint8_t)(n + __builtin_popcount(bits.bytes[i]));
    return n;
}

static bool of_one_wire(const struct address *a) {
    return a->family == 6 ? a->bytes[0] == 0xfe && (a->bytes[1] & 0xc0) == 0x80
                          : a->bytes[0] == 169 && a->bytes[1] == 254;
}

int address_list(struct addresses *out, struct err *e) {
    struct ifaddrs *all = NULL;
    *out = (struct addresses){0};
    if (getifaddrs(&all) != 0)
        return err_set(e, ERR_IO, "the addresses of this machine cannot be listed: %s",
                       strerror(errno));
    for (int family = AF_INET; family != 0; family = family == AF_INET ? AF_INET6 : 0)
        for (const struct ifaddrs *i = all; i && out->n < ADDRESS_MOST; i = i->ifa_next) {
            struct address *a = &out->at[out->n];
            if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
                (i->ifa_flags & IFF_LOOPBACK))
                continue;
            from_socket(a, i->ifa_addr);
            // A mask's own family may be left out.
            struct sockaddr_storage mask = {0};
            if (i->ifa_netmask)
                memcpy(&mask, i->ifa_netmask,
                       family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in));
            mask.ss_family = (sa_family_t)family;
            a->prefix = prefix_of((const struct sockaddr *)&mask);
            out->n += !of_one_wire(a);
        }
    freeifaddrs(all);
    return 0;
}

// ---------------------------------------------------------------- the choice

static bool same_network(const struct address *a, const struct address *b) {
    const unsigned whole = a->prefix / 8u, bits = a->prefix % 8u;
    if (a->family != b->family || a->prefix != b->prefix || a->prefix > 8 * width(a) ||
        memcmp(a->bytes, b->bytes, whole) != 0)
        return false;
    return bits == 0 || ((a->bytes[whole] ^ b->bytes[whole]) >> (8 - bits)) == 0;
}

static bool same(const struct address *a, const struct address *b) {
    return a->family == b->family && memcmp(a->bytes, b->bytes, width(a)) == 0;
}

static int bounded(const struct addresses *a) {
    return a->n < 0 ? 0 : a->n < ADDRESS_MOST ? a->n : ADDRESS_MOST;
}

static bool suits(const struct address *own, const struct addresses *all, int world, int here) {
    int alike = 0;
    for (int r = 0; r < world; r++) {
        bool near = false, equal = false;
        for (int i = 0; i < bounded(&all[r]); i++) {
            near = near || same_network(own, &all[r].at[i]);
            equal = equal || same(own, &all[r].at[i]);
        }
        if (!near)
            return false;
        alike += equal;
    }
    return alike == here;
}

static bool has(const struct addresses *all, const struct address *a) {
    for (int i = 0; i < bounded(all); i++)
        if (same(&all->at[i], a))
            return true;
    return false;
}

// Sends nothing: connecting a socket of datagrams only looks up the way.
static bool way_to(const struct address *to, struct address *from) {
    struct sockaddr_storage s, own;
    socklen_t bytes = to_socket(&s, to), own_bytes = sizeof own;
    const int fd = socket(s.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool found = fd >= 0 && connect(fd, (const struct sockaddr *)&s, bytes) == 0 &&
                       getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0;
    if (found)
        from_socket(from, (const struct sockaddr *)&own);
    if (fd >= 0)
        close(fd);
    return found;
}

int address_choose(char out[ADDRESS_TEXT_BYTES], const struct addresses *all, int world, int here,
                   struct err *e) {
    for (int i = 0; i < bounded(&all[0]); i++)
        if (suits(&all[0].at[i], all, world, here)) {
            text_of(out, &all[0].at[i]);
            return 0;
        }
    for (int r = 1; r < world; r++)
        for (int i = 0; i < bounded(&all[r]); i++) {
            struct address from;
            if (!has(&all[0], &all[r].at[i]) && way_to(&all[r].at[i], &from) &&
                has(&all[0], &from)) {
                text_of(out, &from);
                return 0;
            }
        }
    return err_set(e, ERR_UNSUPPORTED,
                   "ranks are on several machines, and none of the %d addresses of rank 0's leads "
                   "to another one; accepted: machines with a network in common ('ip address' "
                   "shows them)",
                   bounded(&all[0]));
}
