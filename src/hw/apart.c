// apart.c - see apart.h.
//
// The members of a pair write to one cache line in turns: the first writes odd numbers, the second
// even ones. A member whose partner does not answer in time writes GIVEN_UP. All writes are
// compare-and-swap, so both agree on whether an answer or a member's patience came first. So no
// member ever waits for long, even if another program holds the partner's CPU.
#include "hw/apart.h"

#include "base/clock.h"

#include <math.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    MEMBERS_MOST = 256,
    LINE_BYTES = 128, // two lines, because some processors fetch them in pairs
    BATCHES = 24,     // the fastest counts: a moment's interruption makes a batch longer
    TRIPS = 16,       // of a batch
    SPINS_PER_LOOK = 512,
    FIRST_WAIT_NS = 1000000, // for the partner to arrive: it may have to wake up
    WAIT_NS = 100000,        // for its next answer
};
static const uint32_t GIVEN_UP = UINT32_MAX;

// Which members are pairs. ACROSS: half of the pool lies between them.
enum pairing { EVEN, ODD, ACROSS, PAIRINGS };

struct line {
    alignas(LINE_BYTES) _Atomic uint32_t word;
    double fastest_ns; // of a round trip; NaN: no batch was completed
};
struct meeting {
    enum pairing pairing;
    struct line lines[MEMBERS_MOST / 2];
};

// Waits until the word is `wanted`, which follows the number that is there now. Threads that share
// one CPU never answer each other in time unless they yield, and then they would measure the
// scheduler. So they yield only until both have arrived.
static bool await(_Atomic uint32_t *word, uint32_t wanted, bool arriving) {
    const uint64_t limit_ns = arriving ? FIRST_WAIT_NS : WAIT_NS;
    for (uint64_t begin_ns = 0;;) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            const uint32_t now = atomic_load_explicit(word, memory_order_acquire);
            if (now == wanted || now == GIVEN_UP)
                return now == wanted;
            pool_pause(); // a reader that never pauses takes the line from the writer
        }
        // The clock is read only after a while: reading it takes as long as an answer.
        const uint64_t now_ns = clock_ns();
        uint32_t before = wanted - 1;
        if (begin_ns == 0)
            begin_ns = now_ns;
        if (now_ns - begin_ns >= limit_ns &&
            atomic_compare_exchange_strong(word, &before, GIVEN_UP))
            return false;
        if (arriving) // the partner may be waiting for this very CPU
            sched_yield();
    }
}

// Follows up on the number that is there. False: the partner has given up.
static bool answer(_Atomic uint32_t *word, uint32_t number) {
    return atomic_compare_exchange_strong(word, &number, number + 1);
}

static void lead(struct line *l) {
    uint32_t number = 0;
    for (int batch = 0; batch <= BATCHES; batch++) { // the first one is the partner's arrival
        const int trips = batch == 0 ? 1 : TRIPS;
        const uint64_t begin_ns = clock_ns();
        for (int i = 0; i < trips; i++) {
            if (!answer(&l->word, number) || !await(&l->word, number + 2, batch == 0))
                return;
            number += 2;
        }
        if (batch > 0)
            l->fastest_ns = fmin(l->fastest_ns, (double)(clock_ns() - begin_ns) / TRIPS);
    }
}

static void follow(struct line *l) {
    const uint32_t last = 2 * (1 + BATCHES * TRIPS);
    for (uint32_t number = 1; number < last; number += 2) {
        if (!await(&l->word, number, number == 1) || !answer(&l->word, number))
            return;
    }
}

static int members_of(int threads) {
    return threads < MEMBERS_MOST ? threads : MEMBERS_MOST;
}

static int pairs_of(enum pairing p, int members) {
    return p == EVEN ? members / 2 : p == ODD ? (members - 1) / 2 : members < 4 ? 0 : members / 2;
}

static void meet(void *arg, int thread, int threads) {
    struct meeting *m = arg;
    const int pairs = pairs_of(m->pairing, members_of(threads)), at = thread - (m->pairing == ODD),
              pair = m->pairing == ACROSS ? thread % (pairs > 0 ? pairs : 1) : at / 2;
    const bool leads = m->pairing == ACROSS ? thread < pairs : at % 2 == 0;
    if (at < 0 || at >= 2 * pairs)
        return;
    if (leads)
        lead(&m->lines[pair]);
    else
        follow(&m->lines[pair]);
}

double apart_measure(struct pool *p) {
    struct meeting m;
    const int members = members_of(pool_threads(p));
    double sum = 0;
    int answered = 0;
    if (members < 2 || !pool_spins(p))
        return NAN;
    for (int pairing = 0; pairing < PAIRINGS && (pairing == 0 || answered > 0); pairing++) {
        const int pairs = pairs_of((enum pairing)pairing, members);
        m.pairing = (enum pairing)pairing;
        for (int i = 0; i < pairs; i++) {
            atomic_init(&m.lines[i].word, 0);
            m.lines[i].fastest_ns = NAN;
        }
        if (pairs > 0)
            pool_run(p, meet, &m);
        for (int i = 0; i < pairs; i++)
            if (isfinite(m.lines[i].fastest_ns))
                sum += m.lines[i].fastest_ns, answered++;
    }
    return answered > 0 ? sum / answered : NAN;
}

// ---------------------------------------------------------------- several looks

void apart_add(struct apart *a, double ns) {
    if (!(ns > 0))
        return;
    a->least_ns = a->least_ns > 0 ? fmin(a->least_ns, ns) : ns;
    a->most_ns = fmax(a->most_ns, ns);
}

void apart_join(struct apart *a, const struct apart *more) {
    apart_add(a, more->least_ns);
    apart_add(a, more->most_ns);
}

double apart_least_ns(const struct apart *a) {
    return a->least_ns > 0 ? a->least_ns : NAN;
}

double apart_most_ns(const struct apart *a) {
    return a->most_ns > 0 ? a->most_ns : NAN;
}

double apart_typical_ns(const struct apart *a) {
    return a->least_ns > 0 ? sqrt(a->least_ns * a->most_ns) : NAN;
}

bool apart_changed(const struct apart *a, double ratio) {
    return a->most_ns > ratio * a->least_ns;
}

void apart_put_member(const struct apart *a, struct json_writer *w) {
    json_member_object(w, "apart_ns");
    json_member_double(w, "least", apart_least_ns(a));
    json_member_double(w, "most", apart_most_ns(a));
    json_put_object_end(w);
}
