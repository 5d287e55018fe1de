// lookout_watch.c - the thread of a lookout: it sleeps in poll, and speaks, hears and lets in.
//
// What is to be said follows from the state of the lookout, and each connection remembers what it
// was told. So nothing queues up for a rank that does not read, and what comes last is never lost.
#include "comm/lookout_state.h"

#include "base/c_locale.h"
#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const uint64_t BEAT_NS = 1000000000,
                      STRANGER_NS = 5000000000, // to show the key
    DOOR_RESTS_NS = 100000000,                  // when the process has no more descriptors
    LEAVE_NS = 2000000000,                      // for what is still to be sent
    OWN_NS = 2000000000,                        // the own work has so long to tell by itself
    RETRY_NS = 50000000;

// What a descriptor in `polled` is, if not a link. Strangers are numbered downwards.
enum { WAKE = -1, DOOR = -2, STRANGER = -3 };

static void hang_up(int *fd) {
    close(*fd);
    *fd = -1;
}

// ---------------------------------------------------------------- speaking

static bool queue(struct link *k, const struct lookout_frame *f) {
    uint8_t bytes[LOOKOUT_FRAME_MOST];
    const size_t n = lookout_frame_write(f, bytes);
    if (n > sizeof k->out - k->n_out)
        return false;
    memcpy(k->out + k->n_out, bytes, n);
    k->n_out += n;
    return true;
}

// The end of a connection is noticed where it is read.
static void flush(struct link *k) {
    const long n = k->n_out > 0 ? lookout_send(k->fd, k->out, k->n_out) : 0;
    const size_t gone = n < 0 ? k->n_out : (size_t)n;
    memmove(k->out, k->out + gone, k->n_out - gone);
    k->n_out -= gone;
    if (k->told_bye && k->n_out == 0 && !k->shut) {
        shutdown(k->fd, SHUT_WR);
        k->shut = true;
    }
}

struct speech { // what every connection is to be told
    bool state, late, fail, bye;
    struct lookout_frame state_frame, late_frame, fail_frame;
};

static void prepare(struct lookout *l, struct speech *s, uint64_t now) {
    memset(s, 0, sizeof *s);
    s->state_frame.type = LOOKOUT_STATE;
    s->late_frame.type = LOOKOUT_LATE;
    s->fail_frame.type = LOOKOUT_FAIL;
    pthread_mutex_lock(&l->lock);
    if (l->rank == 0 && l->decide_ns != 0 && now >= l->decide_ns && l->why.code == 0)
        lookout_conclude(l);
    lookout_check_leaving(l, now);
    s->bye = l->closing;
    s->fail = l->rank == 0 ? l->why.code != 0 : l->tell_why;
    s->late = l->rank != 0 && l->late_asked;
    s->state = now - l->spoke_ns >= (l->noted ? l->pace_ns : BEAT_NS);
    if (s->state) {
        l->noted = false;
        l->spoke_ns = now;
    }
    l->next_ns = now + l->pace_ns;
    if (l->rank == 0 && l->why.code == 0 && l->decide_ns != 0 && l->decide_ns < l->next_ns)
        l->next_ns = l->decide_ns;
    s->state_frame.doing = l->table[l->rank].doing;
    snprintf(s->fail_frame.why, sizeof s->fail_frame.why, "%s", l->why.text);
    s->late_frame.waited_ns = l->waited_ns;
    for (int r = 0; s->late && r < l->world; r++)
        if (l->table[r].missing)
            s->late_frame.missing[s->late_frame.n_missing++] = (uint16_t)r;
    pthread_mutex_unlock(&l->lock);
}

static void tell(struct link *k, const struct speech *s) {
    static const struct lookout_frame bye = {.type = LOOKOUT_BYE};
    const bool late = s->late && !k->told_late, leaves = s->bye && !k->told_bye;
    if (late || leaves || (s->state && k->n_out == 0 && !k->told_bye))
        queue(k, &s->state_frame);
    if (late)
        k->told_late = queue(k, &s->late_frame);
    if (s->fail && !k->told_fail)
        k->told_fail = queue(k, &s->fail_frame);
    if (leaves)
        k->told_bye = queue(k, &bye);
    flush(k);
}

// Returns how many connections there are.
static int speak(struct lookout *l, struct speech *s, uint64_t now) {
    int open = 0;
    prepare(l, s, now);
    for (int i = 0; i < l->n_links; i++)
        if (l->links[i].fd >= 0) {
            tell(&l->links[i], s);
            open++;
        }
    return open;
}

// ---------------------------------------------------------------- hearing

// Under the lock. False for a message that this rank does not expect.
static bool heard(struct lookout *l, int from, struct link *k, const struct lookout_frame *f) {
    l->heard_ns[from] = clock_ns();
    switch (f->type) {
    case LOOKOUT_STATE:
        l->table[from].doing = f->doing;
        return true;
    case LOOKOUT_BYE:
        k->bye = true;
        l->table[from].where = LATE_LEFT;
        return true;
    case LOOKOUT_FAIL:
        l->first_knew = l->first_knew || from == 0;
        lookout_lose(l, true, "%s", f->why);
        return true;
    case LOOKOUT_LATE:
        if (l->rank == 0)
            lookout_mark_late(l, from, f->missing, f->n_missing, f->waited_ns);
        return l->rank == 0;
    case LOOKOUT_HELLO:
    case LOOKOUT_WELCOME:
        break;
    }
    return false;
}

static void part(struct lookout *l, int from, struct link *k, const char *how) {
    char doing[DOING_TEXT_BYTES];
    hang_up(&k->fd);
    pthread_mutex_lock(&l->lock);
    if (from == 0 && l->first_gone_ns == 0)
        l->first_gone_ns = clock_ns();
    if (!k->bye && !l->closing)
        lookout_lose(l, true, "rank %d %s; it was last %s", from, how,
                     doing_text(doing, &l->table[from].doing));
    l->table[from].where = LATE_LEFT;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

// Reads the messages that are complete.
static void understand(struct lookout *l, int from, struct link *k) {
    struct lookout_frame f;
    size_t used = 0, n;
    bool fine = true;
    while (fine && used < k->n_in) {
        fine = lookout_frame_read(k->in + used, k->n_in - used, &f, &n, NULL) == 0;
        if (fine && n == 0)
            break;
        if (fine) {
            pthread_mutex_lock(&l->lock);
            fine = heard(l, from, k, &f);
            pthread_mutex_unlock(&l->lock);
            used += n;
        }
    }
    memmove(k->in, k->in + used, k->n_in - used);
    k->n_in -= used;
    if (!fine)
        part(l, from, k, "has sent what no rank sends");
}

static void hear(struct lookout *l, int i) {
    struct link *k = &l->links[i];
    const int from = l->rank == 0 ? i : 0;
    const long n = lookout_recv(k->fd, k->in + k->n_in, sizeof k->in - k->n_in);
    if (n < 0) {
        part(l, from, k, "has ended without a word (killed?)");
    } else if (n > 0) {
        k->n_in += (size_t)n;
        understand(l, from, k);
    }
}

// ---------------------------------------------------------------- strangers

// A reason is for a rank of a job that was started wrongly. Who sends no HELLO gets none.
static void refuse(struct lookout *l, struct stranger *s, const char *reason) {
    struct lookout_frame f = {.type = LOOKOUT_FAIL};
    uint8_t bytes[LOOKOUT_FRAME_MOST];
    atomic_fetch_add(&l->refused, 1);
    if (reason) {
        snprintf(f.why, sizeof f.why, "%s", reason);
        lookout_send(s->fd, bytes, lookout_frame_write(&f, bytes));
    }
    hang_up(&s->fd);
}

static void close_door(struct lookout *l) {
    if (l->door < 0)
        return;
    hang_up(&l->door);
    for (int i = 0; i < LOOKOUT_STRANGERS; i++)
        if (l->strangers[i].fd >= 0)
            refuse(l, &l->strangers[i], NULL);
}

static bool same_key(const unsigned char *a, const unsigned char *b) {
    volatile unsigned char differs = 0;
    for (int i = 0; i < LOOKOUT_KEY_BYTES; i++)
        differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

// Why a HELLO is refused; NULL: it is not.
static const char *judge(const struct lookout *l, const struct lookout_frame *f) {
    if (!same_key(f->key, l->key))
        return "the key is not that of this job";
    if (f->world != (uint32_t)l->world)
        return "the job has another number of ranks";
    if (f->rank == 0 || f->rank >= f->world)
        return "there is no other rank of this number";
    return l->table[f->rank].where != LATE_ABSENT ? "a rank of this number has joined before"
                                                  : NULL;
}

static void welcome(struct lookout *l, struct stranger *s, int rank) {
    const struct lookout_frame yes = {.type = LOOKOUT_WELCOME};
    struct lookout_frame state = {.type = LOOKOUT_STATE};
    struct link *k = &l->links[rank];
    k->fd = s->fd;
    s->fd = -1;
    pthread_mutex_lock(&l->lock);
    l->table[rank].where = LATE_HERE;
    l->heard_ns[rank] = clock_ns();
    state.doing = l->table[0].doing;
    pthread_mutex_unlock(&l->lock);
    if (++l->joined == l->world - 1)
        close_door(l); // before the last rank knows that it is in
    queue(k, &yes);
    queue(k, &state);
    flush(k);
}

static void question(struct lookout *l, struct stranger *s) {
    struct lookout_frame f;
    size_t used;
    const long n = lookout_recv(s->fd, s->in + s->n, sizeof s->in - s->n);
    s->n += n > 0 ? (size_t)n : 0;
    if (n < 0 || lookout_frame_read(s->in, s->n, &f, &used, NULL) != 0 ||
        (used == 0 && s->n == sizeof s->in) || (used > 0 && f.type != LOOKOUT_HELLO)) {
        refuse(l, s, NULL);
    } else if (used > 0) {
        const char *reason = judge(l, &f);
        if (reason)
            refuse(l, s, reason);
        else
            welcome(l, s, (int)f.rank);
    }
}

// Ranks show their key at once. So the oldest makes room: it is the least likely to be one.
static struct stranger *room_for_one(struct lookout *l) {
    struct stranger *oldest = &l->strangers[0];
    for (int i = 0; i < LOOKOUT_STRANGERS; i++) {
        if (l->strangers[i].fd < 0)
            return &l->strangers[i];
        if (l->strangers[i].since_ns < oldest->since_ns)
            oldest = &l->strangers[i];
    }
    refuse(l, oldest, NULL);
    return oldest;
}

// No more than half the places in one turn, so that each can say something before it makes room.
static void let_in(struct lookout *l) {
    for (int i = 0; i < LOOKOUT_STRANGERS / 2; i++) {
        const int fd = lookout_accept(l->door);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                l->door_rests_ns = clock_ns() + DOOR_RESTS_NS;
            return;
        }
        struct stranger *s = room_for_one(l);
        *s = (struct stranger){.fd = fd, .since_ns = clock_ns()};
    }
}

static void send_away_the_slow(struct lookout *l, uint64_t now) {
    for (int i = 0; i < LOOKOUT_STRANGERS; i++)
        if (l->strangers[i].fd >= 0 && now > l->strangers[i].since_ns &&
            now - l->strangers[i].since_ns > STRANGER_NS)
            refuse(l, &l->strangers[i], NULL);
}

// ---------------------------------------------------------------- the thread

static void add(struct lookout *l, int *n, int fd, bool writes, int who) {
    if (fd < 0)
        return;
    l->polled[*n] =
        (struct pollfd){.fd = fd, .events = (short)(writes ? POLLIN | POLLOUT : POLLIN)};
    l->who[(*n)++] = who;
}

// Links come first, then strangers, then the door: what was said is heard before newcomers may take
// the place of who said it.
static int list(struct lookout *l, uint64_t now) {
    int n = 0;
    add(l, &n, l->wake, false, WAKE);
    for (int i = 0; i < l->n_links; i++)
        add(l, &n, l->links[i].fd, l->links[i].n_out > 0, i);
    for (int i = 0; i < LOOKOUT_STRANGERS; i++)
        add(l, &n, l->strangers[i].fd, false, STRANGER - i);
    if (now >= l->door_rests_ns)
        add(l, &n, l->door, false, DOOR);
    return n;
}

static void answer(struct lookout *l, int n) {
    for (int i = 0; i < n; i++) {
        const int who = l->who[i];
        uint64_t woken;
        if (l->polled[i].revents == 0)
            continue;
        if (who == WAKE) {
            if (read(l->wake, &woken, sizeof woken) < 0)
                continue; // already read
        } else if (who == DOOR) {
            if (l->door >= 0)
                let_in(l);
        } else if (who <= STRANGER) {
            if (l->strangers[STRANGER - who].fd >= 0)
                question(l, &l->strangers[STRANGER - who]);
        } else if (l->polled[i].revents & ~POLLOUT) {
            hear(l, who);
        }
    }
}

static void sleep_ns(uint64_t ns) {
    const struct timespec t = {.tv_nsec = (long)ns};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

// Until something comes, or there is something to say.
static void rest(struct lookout *l, int n) {
    const uint64_t now = clock_ns();
    const int ms = l->next_ns > now ? (int)((l->next_ns - now) / 1000000u) + 1 : 0;
    const int rc = poll(l->polled, (nfds_t)n, ms);
    if (rc > 0)
        answer(l, n);
    else if (rc < 0 && errno != EINTR) // never in a busy loop
        sleep_ns(l->pace_ns / 2);
}

// The work of this rank has not noticed that the job is lost, or cannot end.
static void tell_the_user(struct lookout *l, uint64_t now) {
    char why[ERR_TEXT_BYTES] = "";
    pthread_mutex_lock(&l->lock);
    if (l->lost && l->why.code != 0 && !l->closing &&
        now >= (l->turn_ns != 0 ? l->turn_ns : l->lost_ns) + OWN_NS &&
        now >= lookout_turn_at(l) + OWN_NS)
        snprintf(why, sizeof why, "%s", l->why.text);
    pthread_mutex_unlock(&l->lock);
    if (why[0]) {
        l->lost(l->arg, why);
        l->lost = NULL; // once
    }
}

void *lookout_watch(void *arg) {
    struct lookout *l = arg;
    struct speech s;
    uint64_t leave_ns = 0;
    c_locale_enter();
    if (l->rank != 0)
        understand(l, 0, &l->links[0]); // what came with the welcome
    for (;;) {
        const uint64_t now = clock_ns();
        const int open = speak(l, &s, now);
        if (s.bye) {
            close_door(l);
            leave_ns = leave_ns != 0 ? leave_ns : now + LEAVE_NS;
            if (open == 0 || now >= leave_ns)
                return NULL;
        }
        tell_the_user(l, now);
        send_away_the_slow(l, now);
        rest(l, list(l, now));
    }
}

// ---------------------------------------------------------------- the opening

// Rank 0 has a descriptor for each rank.
static void raise_limit(int world) {
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)world + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static bool say(int fd, const struct lookout_frame *f, uint64_t until_ns) {
    uint8_t bytes[LOOKOUT_FRAME_MOST];
    const size_t n = lookout_frame_write(f, bytes);
    size_t sent = 0;
    while (sent < n && lookout_ready(fd, POLLOUT, until_ns)) {
        const long more = lookout_send(fd, bytes + sent, n - sent);
        if (more < 0)
            break;
        sent += (size_t)more;
    }
    return sent == n;
}

void lookout_say_failed(const struct lookout *l, const char *why) {
    struct lookout_frame f = {.type = LOOKOUT_FAIL};
    snprintf(f.why, sizeof f.why, "rank %d failed: %.900s", l->rank, why);
    if (l->rank != 0)
        say(l->links[0].fd, &f, clock_ns() + BEAT_NS);
}

static bool say_hello(const struct lookout *l, int fd, uint64_t until_ns) {
    struct lookout_frame hello = {
        .type = LOOKOUT_HELLO, .world = (uint32_t)l->world, .rank = (uint32_t)l->rank};
    memcpy(hello.key, l->key, sizeof hello.key);
    return say(fd, &hello, until_ns);
}

// *in: rank 0 has said yes. Without an error and without that the connection has ended.
static int greet(struct lookout *l, struct link *k, uint64_t until_ns, bool *in, struct err *e) {
    struct lookout_frame f;
    size_t used = 0;
    *in = false;
    if (!say_hello(l, k->fd, until_ns))
        return 0;
    while (used == 0 && lookout_ready(k->fd, POLLIN, until_ns)) {
        const long n = lookout_recv(k->fd, k->in + k->n_in, sizeof k->in - k->n_in);
        if (n < 0)
            return 0;
        k->n_in += (size_t)n;
        if (lookout_frame_read(k->in, k->n_in, &f, &used, e) != 0)
            return err_context(e, "what listens at %s is not rank 0", l->address);
    }
    if (used == 0)
        return 0;
    if (f.type == LOOKOUT_FAIL)
        return err_set(e, ERR_RANK, "rank 0 at %s refuses rank %d: %.900s", l->address, l->rank,
                       f.why);
    if (f.type != LOOKOUT_WELCOME)
        return err_set(e, ERR_FORMAT, "what listens at %s is not rank 0", l->address);
    k->n_in -= used;
    memmove(k->in, k->in + used, k->n_in);
    *in = true;
    return 0;
}

// A connection may be sent away for newer ones while many strangers come. Then another is tried.
static int ask(struct lookout *l, const struct lookout_options *o, struct err *e) {
    const uint64_t until = o->timeout_ns == 0 ? UINT64_MAX : clock_ns() + o->timeout_ns;
    struct link *k = &l->links[0];
    char limit[TEXT_UNIT_BYTES];
    bool in = false;
    for (;;) {
        TRY(lookout_connect(o->address, until, &k->fd, e));
        k->n_in = 0;
        TRY(greet(l, k, until, &in, e));
        if (in)
            return 0;
        hang_up(&k->fd);
        if (clock_ns() >= until)
            return err_set(e, ERR_RANK, "rank 0 at %s has not answered for %s", o->address,
                           text_duration(limit, 1e-9 * (double)o->timeout_ns));
        sleep_ns(RETRY_NS);
    }
}

int lookout_join(struct lookout *l, const struct lookout_options *o, struct err *e) {
    l->heard_ns[0] = clock_ns();
    if (l->rank != 0) {
        snprintf(l->address, sizeof l->address, "%s", o->address ? o->address : "");
        return ask(l, o, e);
    }
    raise_limit(l->world);
    TRY(lookout_listen(o->address ? o->address : "127.0.0.1", &l->door, l->address, e));
    if (l->world == 1)
        close_door(l);
    return 0;
}
