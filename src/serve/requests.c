// requests.c - see requests.h.
//
// A slot of the queue is FREE, being read into, READY, TAKEN by the training thread, or DONE. Every
// change happens under the lock. The thread here sleeps in poll. The training thread wakes it
// through an eventfd when a slot is DONE.
#include "serve/requests.h"

#include "base/c_locale.h"
#include "base/clock.h"
#include "serve/client.h"
#include "serve/listen.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

// Room for an answer with the longest error and id, with every byte escaped.
enum { ERROR_BYTES = 512, ANSWER_BYTES = 4096 };
// Most samples of one client in the queue, so that there is room for its answers.
enum { CLIENT_WAITING = 16, TEXT_BYTES = (CLIENT_WAITING + 2) * ANSWER_BYTES };
// Standard input is a client, too: the first one.
enum { ALL_CLIENTS = REQUESTS_CLIENTS + 1, STDIO = 0, FULL_ROUNDS = 4 };
// How long the end of a run waits for clients that are slow to read their last answers.
static const uint64_t FAREWELL_NS = 1000000000;
// How long no client is accepted after the process ran out of descriptors.
enum { DEAF_NS = 100000000 };
static const char RUN_ENDED[] = "the run ended before this request was answered";

enum slot_state { SLOT_FREE, SLOT_READY, SLOT_TAKEN, SLOT_DONE };

struct slot {
    enum slot_state state;
    uint64_t number; // order of arrival
    uint64_t done;   // order of answers
    int client;      // -1: the client is gone
    struct request request;
    uint64_t arrived_ns;
    int32_t *rows[REQUEST_ROWS];
    struct guest_answer answer;
    char error[ERROR_BYTES];
};

struct requests {
    struct requests_options o;
    struct request_reader *reader;
    struct client clients[ALL_CLIENTS];
    struct listener listener;
    struct json_writer answer;
    char *texts;            // buffers of all clients: lines and answers
    int first;              // client that is asked for a line first; changes every round
    int full_rounds;        // rounds during which a new client has waited for a place
    uint64_t deaf_until_ns; // no descriptors are left: no client is accepted until then
    struct requests_counts counts;

    pthread_t thread;
    bool running;
    int wake; // eventfd
    atomic_bool stop;
    pthread_mutex_t lock;
    // Under the lock:
    struct slot *slots; // [interactive.queue]
    int n_slots;
    uint64_t arrived, answered;
    int32_t *columns;              // of all slots
    atomic_int ready[GUEST_KINDS]; // read without the lock to see quickly whether there is work
};

// ---------------------------------------------------------------- memory

static size_t slot_columns(const struct requests *r) {
    return (size_t)request_columns(r->o.request.knobs) * REQUEST_ROWS;
}

static size_t client_bytes(const struct requests *r) {
    return request_line_most(r->o.request.knobs) + 1 + TEXT_BYTES;
}

uint64_t requests_plan_bytes(const struct requests *r) {
    const uint64_t slots = (uint64_t)r->o.request.knobs->interactive_queue;
    return request_reader_bytes(r->reader) +
           slots * (sizeof(struct slot) + slot_columns(r) * sizeof(int32_t)) +
           ALL_CLIENTS * (uint64_t)client_bytes(r);
}

static int take_buffers(struct requests *r, struct err *e) {
    const size_t n = (size_t)r->o.request.knobs->interactive_queue, columns = slot_columns(r);
    const size_t line_most = request_line_most(r->o.request.knobs);
    r->slots = calloc(n, sizeof *r->slots);
    r->columns = calloc(n * columns, sizeof *r->columns);
    r->texts = malloc(ALL_CLIENTS * client_bytes(r));
    if (r->slots == NULL || r->columns == NULL || r->texts == NULL)
        return err_set(e, ERR_MEMORY, "no memory for %zu requests of %zu tokens", n,
                       columns / REQUEST_ROWS);
    r->n_slots = (int)n;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < REQUEST_ROWS; k++)
            r->slots[i].rows[k] = r->columns + (i * REQUEST_ROWS + k) * (columns / REQUEST_ROWS);
    for (size_t i = 0; i < ALL_CLIENTS; i++) {
        struct client *c = &r->clients[i];
        c->line = r->texts + i * client_bytes(r);
        c->most = line_most;
        c->text = c->line + line_most + 1; // one readable byte behind each line
        c->text_most = TEXT_BYTES;
    }
    return 0;
}

// ---------------------------------------------------------------- answers

static struct json_writer *begin_answer(struct requests *r, const struct request_id *id) {
    struct json_writer *w = &r->answer;
    char *buffer = w->buffer;
    const size_t capacity = w->capacity;
    json_writer_to_buffer(w, 0); // the buffer is reused from answer to answer
    w->buffer = buffer;
    w->capacity = capacity;
    json_put_object_begin(w);
    if (id->type == REQUEST_ID_NUMBER)
        json_member_i64(w, "id", id->number);
    else if (id->type == REQUEST_ID_STRING)
        json_member_string(w, "id", id->text);
    return w;
}

static void end_answer(struct requests *r, struct client *c) {
    struct json_writer *w = &r->answer;
    json_put_object_end(w);
    if (json_writer_finish(w, NULL) != 0)
        return;
    w->buffer[w->bytes] = '\n'; // replaces the NUL
    client_put(c, w->buffer, w->bytes + 1);
}

static void put_error(struct requests *r, struct client *c, const struct request_id *id,
                      const char *text) {
    struct json_writer *w = begin_answer(r, id);
    char error[ERROR_BYTES]; // a character cut in the middle is escaped by the writer
    snprintf(error, sizeof error, "%s", text);
    json_member_string(w, "error", error);
    end_answer(r, c);
}

static void put_answer(struct requests *r, struct client *c, const struct slot *s) {
    const struct guest_answer *a = &s->answer;
    if (a->rc != 0) {
        put_error(r, c, &s->request.id, s->error);
        return;
    }
    struct json_writer *w = begin_answer(r, &s->request.id);
    json_member_bool(w, guest_kind_name(s->request.kind), true);
    json_member_double(w, "loss", a->loss);
    json_member_i64(w, "tokens", s->request.tokens);
    json_member_i64(w, "trained_tokens", s->request.trained_tokens);
    json_member_double(w, "waited_ms", (double)a->waited_ns / 1e6);
    json_member_double(w, "run_ms", (double)a->run_ns / 1e6);
    json_member_i64(w, "step", a->step);
    if (a->own_step >= 0)
        json_member_i64(w, "own_step", a->own_step);
    if (s->request.kind == GUEST_TRAIN) {
        json_member_double(w, "lr", a->lr);
        json_member_double(w, "grad_norm", a->grad_norm);
    }
    if (a->skipped)
        json_member_string(w, "error", "gradients were not finite: nothing was updated");
    end_answer(r, c);
}

static struct slot *first_done(struct requests *r) {
    struct slot *first = NULL;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n_slots; i++) {
        struct slot *s = &r->slots[i];
        if (s->state == SLOT_DONE && (first == NULL || s->done < first->done))
            first = s;
    }
    pthread_mutex_unlock(&r->lock);
    return first;
}

// Sends finished answers to their clients in the order of completion; slots are in no order.
static void deliver(struct requests *r) {
    for (struct slot *s; (s = first_done(r)) != NULL;) {
        if (s->client >= 0) {
            put_answer(r, &r->clients[s->client], s);
            r->clients[s->client].waiting--;
        }
        pthread_mutex_lock(&r->lock);
        s->state = SLOT_FREE;
        pthread_mutex_unlock(&r->lock);
    }
}

// ---------------------------------------------------------------- the queue

// Only the thread here takes a slot out of FREE, so a free slot stays free until it is used.
static struct slot *free_slot(struct requests *r) {
    struct slot *found = NULL;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n_slots && found == NULL; i++)
        if (r->slots[i].state == SLOT_FREE)
            found = &r->slots[i];
    pthread_mutex_unlock(&r->lock);
    return found;
}

static bool take_sample(void *arg, bool train, struct guest_sample *out) {
    struct requests *r = arg;
    struct slot *oldest = NULL;
    if (atomic_load(&r->ready[GUEST_EVALUATE]) == 0 &&
        (!train || atomic_load(&r->ready[GUEST_TRAIN]) == 0))
        return false;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n_slots; i++) {
        struct slot *s = &r->slots[i];
        if (s->state == SLOT_READY && (train || s->request.kind == GUEST_EVALUATE) &&
            (oldest == NULL || s->number < oldest->number))
            oldest = s;
    }
    if (oldest != NULL) {
        oldest->state = SLOT_TAKEN;
        atomic_fetch_sub(&r->ready[oldest->request.kind], 1);
    }
    pthread_mutex_unlock(&r->lock);
    if (oldest == NULL)
        return false;
    *out = (struct guest_sample){
        .kind = oldest->request.kind,
        .arrived_ns = oldest->arrived_ns,
        .rows = {oldest->rows[0], oldest->rows[1], oldest->rows[2], oldest->rows[3]},
        .tokens = oldest->request.tokens,
        .trained_tokens = oldest->request.trained_tokens,
        .ticket = oldest};
    return true;
}

static void wake(struct requests *r) {
    const uint64_t one = 1;
    if (write(r->wake, &one, sizeof one) < 0) {
        // The counter is full, so a wake-up is already pending.
    }
}

static void give_answer(void *arg, const struct guest_sample *x, const struct guest_answer *a) {
    struct requests *r = arg;
    struct slot *s = x->ticket;
    s->answer = *a;
    if (a->rc != 0)
        snprintf(s->error, sizeof s->error, "%s", a->error);
    pthread_mutex_lock(&r->lock);
    s->done = r->answered++;
    s->state = SLOT_DONE;
    pthread_mutex_unlock(&r->lock);
    wake(r);
}

// ---------------------------------------------------------------- lines

static bool is_blank(const struct client_line *l) {
    for (size_t i = 0; i < l->bytes; i++)
        if (l->text[i] != ' ' && l->text[i] != '\t')
            return false;
    return true;
}

static bool has_room(const struct client *c) {
    return c->waiting < CLIENT_WAITING &&
           c->text_n + ((size_t)c->waiting + 1) * ANSWER_BYTES <= c->text_most;
}

static void refuse_long(struct requests *r, struct client *c) {
    char text[ERROR_BYTES];
    const struct request_id none = {0};
    snprintf(text, sizeof text,
             "the line is longer than %zu bytes, more than %lld records of %lld tokens need; it "
             "was ignored",
             c->most, (long long)r->o.request.knobs->interactive_micro,
             (long long)knobs_interactive_seq(r->o.request.knobs));
    r->counts.lines++;
    r->counts.refused++;
    put_error(r, c, &none, text);
}

// Takes one line from a client. False: it has none, or there is no room for the answer.
static bool take_line(struct requests *r, int number, struct slot *s) {
    struct client *c = &r->clients[number];
    struct err e = {0};
    if (!c->used || !has_room(c))
        return false;
    const struct client_line l = client_line(c);
    if (l.too_long)
        refuse_long(r, c);
    if (l.text != NULL && !is_blank(&l)) {
        r->counts.lines++;
        if (request_read(r->reader, l.text, l.bytes, s->rows, &s->request, &e) != 0) {
            r->counts.refused++;
            put_error(r, c, &s->request.id, e.text);
        } else {
            s->client = number;
            s->arrived_ns = l.ns;
            c->waiting++;
            pthread_mutex_lock(&r->lock);
            s->number = r->arrived++;
            s->state = SLOT_READY;
            pthread_mutex_unlock(&r->lock);
            atomic_fetch_add(&r->ready[s->request.kind], 1);
        }
    }
    client_took(c, &l);
    return l.taken > 0;
}

// Takes a line from each client in turn, as long as there are free slots.
static void take_lines(struct requests *r) {
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < ALL_CLIENTS; i++) {
            struct slot *s = free_slot(r);
            if (s == NULL)
                return;
            any = take_line(r, (r->first + i) % ALL_CLIENTS, s) || any;
        }
        r->first = (r->first + 1) % ALL_CLIENTS;
    }
}

// ---------------------------------------------------------------- clients

// The client is gone and will not read answers. Accepted training requests are still done.
// Evaluations that have not begun are dropped.
static void vanish(struct requests *r, int number) {
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n_slots; i++) {
        struct slot *s = &r->slots[i];
        if (s->state == SLOT_FREE || s->client != number)
            continue;
        s->client = -1;
        if (s->state == SLOT_READY && s->request.kind == GUEST_EVALUATE) {
            s->state = SLOT_FREE;
            atomic_fetch_sub(&r->ready[GUEST_EVALUATE], 1);
        }
    }
    pthread_mutex_unlock(&r->lock);
    client_close(&r->clients[number]);
}

static int free_client(const struct requests *r) {
    int i = STDIO + 1;
    while (i < ALL_CLIENTS && r->clients[i].used)
        i++;
    return i;
}

// When no place is free, a new client waits a few rounds: it may not be known yet that
// another client is gone.
static void accept_clients(struct requests *r, bool now) {
    errno = 0;
    static const char busy[] = "{\"error\": \"too many clients are connected; try again later\"}\n";
    const bool full = free_client(r) == ALL_CLIENTS;
    r->full_rounds = full ? r->full_rounds + 1 : 0;
    if (full && !now && r->full_rounds < FULL_ROUNDS)
        return;
    for (int fd; (full || now || free_client(r) < ALL_CLIENTS) &&
                 (fd = listen_accept(&r->listener)) >= 0;) {
        const int i = free_client(r);
        if (i < ALL_CLIENTS) {
            client_open(&r->clients[i], fd, fd, true);
            r->counts.clients++;
            continue;
        }
        r->counts.turned_away++;
        send(fd, busy, sizeof busy - 1, MSG_DONTWAIT | MSG_NOSIGNAL); // it may be gone
        close(fd);
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        r->deaf_until_ns = clock_ns() + DEAF_NS;
}

// A client that has sent everything and got all answers. Standard output stays open.
static bool is_finished(const struct client *c) {
    return c->used && c->ended && c->n == 0 && c->waiting == 0 && c->text_n == 0;
}

static void serve_client(struct requests *r, int number, short in, short out) {
    struct client *c = &r->clients[number];
    bool there = true;
    int why = EPIPE;
    if (in & POLLIN)
        there = client_read(c);
    else if (in & (POLLERR | POLLNVAL | POLLHUP) && c->socket)
        there = false;
    else if (in & (POLLERR | POLLNVAL | POLLHUP)) // a pipe whose writer is gone: the end of a file
        client_end(c);
    if (there && out & POLLOUT && c->text_n > 0) {
        there = client_write(c);
        why = errno;
    } else if (out & (POLLERR | POLLHUP | POLLNVAL) && !c->socket) {
        there = false;
    }
    if (!there && number == STDIO) // standard input may still bring training requests
        client_break(c, why);
    else if (!there)
        vanish(r, number);
}

// ---------------------------------------------------------------- the thread

struct watch {
    struct pollfd polls[2 + 2 * ALL_CLIENTS];
    int in[ALL_CLIENTS], out[ALL_CLIENTS]; // index of each client in polls; -1: none
    int n;
};

static int add_poll(struct watch *w, int fd, int events) {
    w->polls[w->n] = (struct pollfd){.fd = fd, .events = (short)events};
    return w->n++;
}

static void watch_all(struct requests *r, struct watch *w) {
    w->n = 0;
    add_poll(w, r->wake, POLLIN);
    add_poll(w, clock_ns() < r->deaf_until_ns ? -1 : r->listener.fd, POLLIN); // poll skips -1
    for (int i = 0; i < ALL_CLIENTS; i++) {
        const struct client *c = &r->clients[i];
        w->in[i] = w->out[i] = -1;
        if (!c->used)
            continue;
        const int in = client_wants_input(c) ? POLLIN : 0, out = c->text_n > 0 ? POLLOUT : 0;
        if (c->socket) // also without events: poll then still reports a hang-up
            w->in[i] = w->out[i] = add_poll(w, c->in, in | out);
        else {
            if (in)
                w->in[i] = add_poll(w, c->in, in);
            if (out && c->out >= 0)
                w->out[i] = add_poll(w, c->out, out);
        }
    }
}

static short told(const struct watch *w, int at) {
    return at >= 0 ? w->polls[at].revents : 0;
}

static void look(struct requests *r, struct watch *w, int timeout_ms) {
    uint64_t count;
    watch_all(r, w);
    if (w->polls[1].fd < 0 && r->listener.fd >= 0 && timeout_ms < 0)
        timeout_ms = DEAF_NS / 1000000;
    if (poll(w->polls, (nfds_t)w->n, timeout_ms) <= 0)
        return;
    if (w->polls[0].revents && read(r->wake, &count, sizeof count) < 0) {
        // The wake-up was read already; there is nothing to count.
    }
    for (int i = 0; i < ALL_CLIENTS; i++)
        if (w->in[i] >= 0 || w->out[i] >= 0)
            serve_client(r, i, told(w, w->in[i]), told(w, w->out[i]));
    if (w->polls[1].revents)
        accept_clients(r, false);
}

static void sweep(struct requests *r) {
    for (int i = 0; i < ALL_CLIENTS; i++)
        if (is_finished(&r->clients[i]) && i != STDIO)
            client_close(&r->clients[i]);
}

// ---------------------------------------------------------------- the end

// Answers everything that waits or has been sent with the error that the run ended.
static void refuse_rest(struct requests *r) {
    struct request x;
    for (int i = 0; i < r->n_slots; i++) {
        struct slot *s = &r->slots[i];
        pthread_mutex_lock(&r->lock);
        const bool waits = s->state == SLOT_READY;
        if (waits)
            s->state = SLOT_FREE;
        pthread_mutex_unlock(&r->lock);
        if (!waits || s->client < 0)
            continue;
        put_error(r, &r->clients[s->client], &s->request.id, RUN_ENDED);
        r->clients[s->client].waiting--;
        r->counts.ended++;
    }
    for (int i = 0; i < ALL_CLIENTS; i++) {
        struct client *c = &r->clients[i];
        while (c->used && has_room(c)) {
            const struct client_line l = client_line(c);
            if (l.text != NULL && !is_blank(&l)) {
                r->counts.lines++;
                r->counts.ended++;
                request_read(r->reader, l.text, l.bytes, NULL, &x, NULL);
                put_error(r, c, &x.id, RUN_ENDED);
            }
            client_took(c, &l);
            if (l.taken == 0)
                break;
        }
    }
}

static bool has_text(const struct requests *r) {
    for (int i = 0; i < ALL_CLIENTS; i++)
        if (r->clients[i].used && r->clients[i].out >= 0 && r->clients[i].text_n > 0)
            return true;
    return false;
}

// Reads once more what has been sent, then writes all answers. A client that does not read gets one
// second.
static void say_farewell(struct requests *r, struct watch *w) {
    const uint64_t until_ns = clock_ns() + FAREWELL_NS;
    deliver(r);
    look(r, w, 0);
    accept_clients(r, true);
    look(r, w, 0);
    refuse_rest(r);
    while (has_text(r) && clock_ns() < until_ns) {
        look(r, w, 20);
        refuse_rest(r);
    }
}

// Answers on standard output that were not read in time are lost, too. A client of the socket that
// does not read its answers has been told by the end of its connection.
static void note_lost(struct requests *r) {
    struct client *c = &r->clients[STDIO];
    if (!c->used)
        return;
    if (c->text_n > 0) {
        for (size_t i = 0; i < c->n; i++) // requests that were read, and have no answer yet
            c->lost += c->line[i] == '\n';
        client_break(c, ETIMEDOUT);
    }
    r->counts.lost = c->lost;
    r->counts.lost_why = c->broken;
}

static void *run(void *arg) {
    struct requests *r = arg;
    struct watch w;
    c_locale_enter();
    while (!atomic_load(&r->stop)) {
        look(r, &w, -1);
        deliver(r);
        take_lines(r);
        sweep(r);
    }
    say_farewell(r, &w);
    note_lost(r);
    for (int i = 0; i < ALL_CLIENTS; i++)
        client_close(&r->clients[i]);
    return NULL;
}

// ---------------------------------------------------------------- opening and closing

int requests_check(const struct requests *r, struct err *e) {
    const struct knobs *k = r->o.request.knobs;
    return k->interactive_socket[0] != '\0' ? listen_check(k->interactive_socket, k->run_dir, e)
                                            : 0;
}

static int begin(void *arg, struct err *e) {
    struct requests *r = arg;
    const struct knobs *k = r->o.request.knobs;
    TRY(take_buffers(r, e));
    if (k->interactive_socket[0] != '\0')
        TRY(listen_open(&r->listener, k->interactive_socket, e));
    if (k->interactive_stdin && r->o.in >= 0)
        client_open(&r->clients[STDIO], r->o.in, r->o.out, false);
    r->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->wake < 0)
        return err_set(e, ERR_IO, "requests: no eventfd: %s", strerror(errno));
    // The main thread handles signals. A client that is gone causes a failed write, not a signal.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return err_set(e, ERR_MEMORY, "no thread for requests: %s", strerror(rc));
    r->running = true;
    return 0;
}

static void end(void *arg) {
    struct requests *r = arg;
    if (r->running) {
        atomic_store(&r->stop, true);
        wake(r);
        pthread_join(r->thread, NULL);
        r->running = false;
    }
    listen_close(&r->listener);
}

int requests_open(struct requests **out, const struct requests_options *o, struct err *e) {
    *out = NULL;
    struct requests *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_set(e, ERR_MEMORY, "no memory for requests");
    r->o = *o;
    r->wake = r->listener.fd = -1;
    pthread_mutex_init(&r->lock, NULL);
    int rc = request_reader_open(&r->reader, &o->request, e);
    if (rc != 0) {
        requests_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void requests_close(struct requests *r) {
    if (r == NULL)
        return;
    end(r);
    if (r->wake >= 0)
        close(r->wake);
    request_reader_close(r->reader);
    free(r->answer.buffer);
    free(r->slots);
    free(r->columns);
    free(r->texts);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

struct guest_source requests_source(struct requests *r) {
    return (struct guest_source){
        .arg = r, .begin = begin, .next = take_sample, .answer = give_answer, .end = end};
}

int requests_lost(const struct requests *r, struct err *e) {
    const struct requests_counts *n = &r->counts;
    char why[128];
    if (n->lost == 0)
        return 0;
    snprintf(why, sizeof why, "cannot be written: %s", strerror(n->lost_why));
    return err_set(e, ERR_IO, "%" PRIu64 " answer%s lost: the standard output %s", n->lost,
                   n->lost == 1 ? " was" : "s were",
                   n->lost_why == ETIMEDOUT ? "was not read within a second after the run"
                   : n->lost_why == EPIPE   ? "is no longer read"
                                            : why);
}

struct requests_counts requests_counts(const struct requests *r) {
    return r->counts;
}

int requests_of_plan(struct requests **out, const struct plan *p, FILE *in, FILE *answers,
                     const struct shard_listener *listener, struct err *e) {
    const bool streams = in != NULL && answers != NULL;
    const struct plan *who = p->second ? p->second : p; // answers
    const struct requests_options o = {
        .request = {.knobs = &who->knobs,
                    .model_dir = who->from_folder ? who->knobs.model : NULL,
                    .vocab = who->shape.vocab,
                    .listener = *listener},
        .in = streams ? fileno(in) : -1,
        .out = streams ? fileno(answers) : -1};
    *out = NULL;
    if (p->knobs.goal != GOAL_HYBRID)
        return 0;
    if (streams)
        fflush(answers); // what is written by descriptor comes after it
    return requests_open(out, &o, e);
}
