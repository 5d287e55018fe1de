// device.c - a turn on a backend with streams: events between streams, batches through pinned
// memory, graphs, and times taken on the device.
//
// Everything is enqueued. The host waits only at the end of the turn, and before it fills a staging
// buffer whose copy may still be running. An op's waits and its record go before and after it on
// its stream, as sync.c derived them.
//
// Pieces: what lies between two LOADs, often a whole micro-batch, and with the last one the update.
//
// Graphs: a piece is captured after it has run once, so kernels are loaded and libraries are warm
// by then. If times are taken, it runs twice first, and the second run shows how its time divides.
// A graph runs as one unit on the compute stream. Events from outside that its ops wait for are
// waited for before it. The events of its ops count as recorded after it. That orders more than
// needed, never less. Inside a capture other event objects are used, because an event that was
// recorded in a capture can only be waited for there.
#include "base/array.h"
#include "base/clock.h"
#include "exec/executor.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- pieces

static struct bound_segment *bound_of(const struct bound_program *b, int entry) {
    const struct order_entry *at = &b->p->order[entry];
    return &b->segments[at->segment * b->slots + at->slot];
}

static bool same_piece(const struct piece *a, const struct piece *b) {
    bool same = a->n_spans == b->n_spans;
    for (int i = 0; same && i < a->n_spans; i++) {
        const struct span *x = &a->spans[i], *y = &b->spans[i];
        same = x->bound == y->bound && x->begin == y->begin && x->end == y->end &&
               x->after == y->after;
    }
    return same;
}

static int add_item(struct bound_program *b, struct item item, struct err *e) {
    if (!array_room(&b->items, (size_t)b->n_items, 1, &b->item_capacity, sizeof *b->items, 16))
        return err_set(e, ERR_MEMORY, "out of memory while binding '%s'", b->p->name);
    b->items[b->n_items++] = item;
    return 0;
}

// Ends the piece that is being collected, if it has any calls. Afterwards it is empty.
static int end_piece(struct bound_program *b, struct piece *piece, struct item *item,
                     struct err *e) {
    int i = 0;
    if (piece->n_spans == 0)
        return 0;
    while (i < b->n_pieces && !same_piece(&b->pieces[i], piece))
        i++;
    if (i == b->n_pieces) {
        if (!array_room(&b->pieces, (size_t)b->n_pieces, 1, &b->piece_capacity, sizeof *b->pieces,
                        8))
            return err_set(e, ERR_MEMORY, "out of memory while binding '%s'", b->p->name);
        b->pieces[b->n_pieces++] = *piece;
        *piece = (struct piece){0};
    }
    piece->n_spans = 0;
    item->piece = i;
    return add_item(b, *item, e);
}

static int add_span(struct bound_program *b, struct piece *piece, struct item *item, int entry,
                    int begin, int end, struct err *e) {
    if (!array_room(&piece->spans, (size_t)piece->n_spans, 1, &piece->span_capacity,
                    sizeof *piece->spans, 4))
        return err_set(e, ERR_MEMORY, "out of memory while binding '%s'", b->p->name);
    if (piece->n_spans == 0)
        *item = (struct item){.entry = entry, .first = begin == 0, .load = -1};
    piece->spans[piece->n_spans++] = (struct span){.bound = (int)(bound_of(b, entry) - b->segments),
                                                   .begin = begin,
                                                   .end = end,
                                                   .after = entry - item->entry};
    return 0;
}

static int cut_entry(struct bound_program *b, struct piece *piece, struct item *item, int entry,
                     struct err *e) {
    const struct bound_segment *s = bound_of(b, entry);
    if (program_yields_at(b->p, b->p->order, entry)) // a guest may run between two pieces
        TRY(end_piece(b, piece, item, e));
    for (int k = 0; k < s->n_calls;) {
        const int begin = k;
        while (k < s->n_calls && s->calls[k].op->kind != OP_LOAD)
            k++;
        if (k > begin)
            TRY(add_span(b, piece, item, entry, begin, k, e));
        if (k == s->n_calls)
            break;
        TRY(end_piece(b, piece, item, e));
        TRY(add_item(b, (struct item){entry, .first = k == 0, .load = k, .piece = -1}, e));
        k++;
    }
    return 0;
}

static int cut_pieces(struct bound_program *b, struct err *e) {
    struct piece piece = {0};
    struct item item = {0};
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->p->n_order; i++)
        rc = cut_entry(b, &piece, &item, i, e);
    if (rc == 0)
        rc = end_piece(b, &piece, &item, e);
    free(piece.spans);
    return rc;
}

// ---------------------------------------------------------------- open and close

static uint64_t load_bytes(const struct op *op) {
    return (uint64_t)op->n_out * (uint64_t)op->m * sizeof(int32_t);
}

static int find_loads(struct device *d, const struct bound_segment *s, struct err *e) {
    for (int k = 0; k < s->n_calls; k++) {
        const struct op *op = s->calls[k].op;
        if (op->kind != OP_LOAD)
            continue;
        if (op->stream != STREAM_COPY)
            return err_set(e, ERR_INTERNAL, "a load op is not on the copy stream");
        if (load_bytes(op) > d->staging_bytes)
            d->staging_bytes = load_bytes(op);
    }
    return 0;
}

static int last_event(const struct device *d) {
    return d->first_event + 2 * d->n_events + STAGING_BUFFERS + YIELD_EVENTS;
}

int device_open(struct executor *x, bool graphs, struct err *e) {
    struct device *d = &x->device;
    struct backend *b = x->backend;
    d->graphs = graphs && b->info.graphs;
    for (int i = 0; i < x->n_programs; i++) {
        struct bound_program *p = &x->programs[i];
        if (p->p->n_events > d->n_events)
            d->n_events = p->p->n_events;
        for (int s = 0; s < p->p->n_segments * p->slots; s++)
            TRY(find_loads(d, &p->segments[s], e));
        TRY(cut_pieces(p, e));
    }
    // Separate events, because an event that was recorded in a capture can only be waited for
    // there.
    d->first_event = x->beside ? last_event(&x->beside->device) : 0;
    TRY(b->prepare(b, last_event(d), e));
    for (int i = 0; i < STAGING_BUFFERS && d->staging_bytes; i++) {
        void *staging;
        TRY(b->staging_take(b, d->staging_bytes, &staging, e));
        d->staging[i] = staging;
    }
    d->timed = calloc((size_t)b->marks + 1, sizeof *d->timed);
    return d->timed ? 0 : err_set(e, ERR_MEMORY, "out of memory for the times of a turn");
}

void device_close(struct executor *x) {
    struct device *d = &x->device;
    struct backend *b = x->backend;
    if (x->arena)
        b->sync(b, NULL); // nothing may be running when its memory is freed
    for (int i = 0; i < x->n_programs; i++) {
        struct bound_program *p = &x->programs[i];
        for (int k = 0; k < p->n_pieces; k++) {
            if (p->pieces[k].graph)
                b->graph_free(b, p->pieces[k].graph);
            free(p->pieces[k].spans);
        }
        free(p->pieces);
        free(p->items);
    }
    for (int i = 0; i < STAGING_BUFFERS; i++)
        if (d->staging[i])
            b->staging_give(b, d->staging[i]);
    free(d->timed);
    *d = (struct device){0};
}

// ---------------------------------------------------------------- batches

static int load(struct executor *x, const struct op_call *call, int micro, exec_feed_fn *feed,
                void *arg, struct err *e) {
    struct device *d = &x->device;
    struct backend *b = x->backend;
    const struct op *op = call->op;
    struct exec_batch batch;
    if (!feed)
        return err_set(e, ERR_INTERNAL, "the program loads a batch but nothing feeds it");
    TRY(feed(arg, micro, &batch, e));
    const int32_t *from[5] = {batch.tokens, batch.targets, batch.positions, batch.doc_start};
    uint64_t bytes = (uint64_t)op->m * sizeof(int32_t);
    int buffer = d->next_staging, copied = d->first_event + 2 * d->n_events + buffer;
    d->next_staging = (buffer + 1) % STAGING_BUFFERS;
    TRY(b->arrive(b, copied, e)); // wait for the previous copy from this buffer
    for (int i = 0; i < op->n_wait; i++)
        TRY(b->wait(b, STREAM_COPY, d->first_event + op->wait[i], e));
    for (int i = 0; i < op->n_out; i++) {
        unsigned char *staging = d->staging[buffer] + (uint64_t)i * bytes;
        if (!call->out[i].data || bytes == 0)
            continue;
        if (i == LOAD_NUMBERS)
            op_number_rows(op, micro, 0, op->m, (int32_t *)staging);
        else
            memcpy(staging, from[i], bytes);
        TRY(b->load(b, call->out[i].data, staging, bytes, e));
    }
    TRY(b->record(b, STREAM_COPY, copied, e));
    return op->record >= 0 ? b->record(b, STREAM_COPY, d->first_event + op->record, e) : 0;
}

// ---------------------------------------------------------------- time

// Notes that `op` (or a whole piece, if op is NULL) ends here. If the marks are used up, the rest
// of the turn is not divided further.
static int note(struct executor *x, const struct op *op, struct piece *piece, struct span *span,
                int entry, struct err *e) {
    struct device *d = &x->device;
    if (d->n_timed >= x->backend->marks)
        return 0;
    d->timed[d->n_timed] = (struct timed){op, piece, span, piece->runs > 0, entry};
    return x->backend->mark(x->backend, d->n_timed++, e);
}

// Notes that the time since the last mark does not belong to this turn.
static int note_gap(struct executor *x, struct err *e) {
    struct device *d = &x->device;
    if (d->n_timed >= x->backend->marks)
        return 0;
    d->timed[d->n_timed] = (struct timed){0};
    return x->backend->mark(x->backend, d->n_timed++, e);
}

static void add_event(struct trace *trace, const struct order_entry *entry, enum time_part part,
                      uint64_t start, uint64_t ns) {
    trace_add(trace, (struct trace_event){.start_ns = start,
                                          .duration_ns = ns,
                                          .micro = entry->micro,
                                          .what = OP_COUNT + SPAN_STEP,
                                          .segment = (int16_t)entry->segment,
                                          .layer = -1,
                                          .part = (uint8_t)part,
                                          .stream = STREAM_COMPUTE});
}

// Divides a graph's time in the proportions that the ops of its segments had when they ran one by
// one.
static void divide(struct trace *trace, const struct program *p, const struct timed *t,
                   uint64_t start, uint64_t ns) {
    uint64_t all = 0;
    for (int s = 0; s < t->piece->n_spans; s++)
        for (int i = 0; i < TIME_COUNT; i++)
            all += t->piece->spans[s].part_ns[i];
    if (all == 0) {
        add_event(trace, &p->order[t->entry], TIME_OTHER, start, ns);
        return;
    }
    for (int s = 0; s < t->piece->n_spans; s++) {
        const struct span *span = &t->piece->spans[s];
        for (int i = 0; i < TIME_COUNT; i++) {
            const uint64_t share = (uint64_t)((double)ns * (double)span->part_ns[i] / (double)all);
            if (share)
                add_event(trace, &p->order[t->entry + span->after], (enum time_part)i, start,
                          share);
            start += share;
        }
    }
}

// Device times count from the begin of the turn, which was at `start` on the host's clock.
static void trace_turn(struct executor *x, const struct program *p, struct trace *trace,
                       uint64_t start) {
    struct device *d = &x->device;
    uint64_t last = 0;
    for (int i = 0; i < d->n_timed; i++) {
        const struct timed *t = &d->timed[i];
        const struct order_entry *entry = &p->order[t->entry];
        uint64_t now = x->backend->mark_ns(x->backend, i);
        uint64_t ns = now > last ? now - last : 0;
        if (t->op) {
            if (t->typical)
                t->span->part_ns[time_part_of(op_info(t->op->kind)->category)] += ns;
            trace_add_op(trace, t->op, entry->segment, entry->micro, start + last,
                         start + last + ns);
        } else if (t->piece) {
            divide(trace, p, t, start + last, ns);
        }
        last += ns;
    }
}

// ---------------------------------------------------------------- ops

// Where a turn is: for the message of a failure.
struct place {
    int entry, call;
};

static int issue_piece(struct executor *x, const struct bound_program *p, struct piece *piece,
                       bool timed, struct place *at, struct err *e) {
    struct backend *b = x->backend;
    const int first = x->device.first_event, start = at->entry;
    for (int i = 0; i < piece->n_spans; i++) {
        struct span *span = &piece->spans[i];
        at->entry = start + span->after;
        for (at->call = span->begin; at->call < span->end; at->call++) {
            const struct op_call *call = &p->segments[span->bound].calls[at->call];
            const struct op *op = call->op;
            for (int w = 0; w < op->n_wait; w++)
                TRY(b->wait(b, op->stream, first + op->wait[w], e));
            TRY(b->run[op->kind](b, call, e));
            if (op->record >= 0)
                TRY(b->record(b, op->stream, first + op->record, e));
            if (timed && op->stream == STREAM_COMPUTE)
                TRY(note(x, op, piece, span, at->entry, e));
        }
    }
    return 0;
}

// Whether an op of the piece before a call of a span records the event.
static bool recorded_before(const struct bound_program *p, const struct piece *piece, int span,
                            int call, int event) {
    for (int i = 0; i <= span; i++) {
        const struct span *s = &piece->spans[i];
        const int end = i == span ? call : s->end;
        for (int k = s->begin; k < end; k++)
            if (p->segments[s->bound].calls[k].op->record == event)
                return true;
    }
    return false;
}

static int capture_ops(struct executor *x, const struct bound_program *p, const struct piece *piece,
                       struct place *at, struct err *e) {
    struct backend *b = x->backend;
    const int inside = x->device.first_event + x->device.n_events, start = at->entry;
    for (int i = 0; i < piece->n_spans; i++) {
        const struct span *span = &piece->spans[i];
        at->entry = start + span->after;
        for (at->call = span->begin; at->call < span->end; at->call++) {
            const struct op_call *call = &p->segments[span->bound].calls[at->call];
            const struct op *op = call->op;
            for (int w = 0; w < op->n_wait; w++)
                if (recorded_before(p, piece, i, at->call, op->wait[w]))
                    TRY(b->wait(b, op->stream, inside + op->wait[w], e));
            TRY(b->run[op->kind](b, call, e));
            if (op->record >= 0)
                TRY(b->record(b, op->stream, inside + op->record, e));
        }
    }
    return 0;
}

static int capture_piece(struct executor *x, const struct bound_program *p, struct piece *piece,
                         struct place *at, struct err *e) {
    struct backend *b = x->backend;
    unsigned streams = 0;
    for (int i = 0; i < piece->n_spans; i++)
        for (int k = piece->spans[i].begin; k < piece->spans[i].end; k++)
            streams |= 1u << p->segments[piece->spans[i].bound].calls[k].op->stream;
    TRY(b->capture_begin(b, streams, e));
    int rc = capture_ops(x, p, piece, at, e);
    void *graph = NULL;
    int end = b->capture_end(b, &graph, rc == 0 ? e : NULL);
    if (rc != 0 && graph)
        b->graph_free(b, graph);
    TRY(rc);
    TRY(end);
    piece->graph = graph;
    x->device.n_graphs++;
    return 0;
}

static int replay_piece(struct executor *x, const struct bound_program *p,
                        const struct piece *piece, struct err *e) {
    struct backend *b = x->backend;
    const int first = x->device.first_event;
    for (int i = 0; i < piece->n_spans; i++)
        for (int k = piece->spans[i].begin; k < piece->spans[i].end; k++) {
            const struct op *op = p->segments[piece->spans[i].bound].calls[k].op;
            for (int w = 0; w < op->n_wait; w++)
                if (!recorded_before(p, piece, i, k, op->wait[w]))
                    TRY(b->wait(b, STREAM_COMPUTE, first + op->wait[w], e));
        }
    TRY(b->graph_run(b, piece->graph, e));
    for (int i = 0; i < piece->n_spans; i++)
        for (int k = piece->spans[i].begin; k < piece->spans[i].end; k++) {
            const struct op *op = p->segments[piece->spans[i].bound].calls[k].op;
            if (op->record >= 0)
                TRY(b->record(b, STREAM_COMPUTE, first + op->record, e));
        }
    return 0;
}

static int run_piece(struct executor *x, const struct bound_program *p, struct piece *piece,
                     bool timed, struct place *at, struct err *e) {
    const struct place start = *at;
    if (piece->graph) {
        TRY(replay_piece(x, p, piece, e));
        return timed ? note(x, NULL, piece, NULL, at->entry, e) : 0;
    }
    TRY(issue_piece(x, p, piece, timed, at, e));
    bool due = piece->runs++ >= (timed ? 1 : 0);
    *at = start;
    return x->device.graphs && due ? capture_piece(x, p, piece, at, e) : 0;
}

static int run_item(struct executor *x, const struct bound_program *p, const struct item *item,
                    exec_feed_fn *feed, void *arg, bool timed, struct place *at, struct err *e) {
    *at = (struct place){item->entry, item->load};
    if (item->load >= 0)
        return load(x, &bound_of(p, item->entry)->calls[item->load], p->p->order[item->entry].micro,
                    feed, arg, e);
    return run_piece(x, p, &p->pieces[item->piece], timed, at, e);
}

// The host enqueues much faster than the device works. Without a limit it would pass all yield
// points of a turn before the first micro-batch ends, and a request would wait for the whole turn.
// So the host stays only one micro-batch ahead, which still keeps the device busy.
static int yield_point(struct executor *x, const struct program *p, int at, bool timed,
                       struct err *e) {
    struct device *d = &x->device;
    struct backend *b = x->backend;
    const int first = d->first_event + 2 * d->n_events + STAGING_BUFFERS;
    if (!x->yield || x->interrupted || !program_yields_at(p, p->order, at))
        return 0;
    TRY(b->record(b, STREAM_COMPUTE, first + d->n_yields % YIELD_EVENTS, e));
    if (d->n_yields > 0)
        TRY(b->arrive(b, first + (d->n_yields - 1) % YIELD_EVENTS, e));
    d->n_yields++;
    d->guests = 0;
    TRY(exec_yield(x, p, at, NULL, e));
    return timed && d->guests > 0 ? note_gap(x, e) : 0;
}

// Returns the executor whose turn a turn of x would interrupt: x itself for a guest, or the
// executor that x is beside. NULL: none.
static struct executor *interrupted(struct executor *x) {
    return x->interrupted ? x : x->beside && x->beside->interrupted ? x->beside : NULL;
}

// A turn inside another turn leaves the clock and the marks to the outer turn. Its batch would be
// copied to bytes that the running micro-batch may still use, so it waits for the device first.
static int begin_turn(struct executor *x, struct err *e) {
    struct backend *b = x->backend;
    struct executor *outer = interrupted(x);
    if (outer) {
        outer->device.guests++;
        return b->sync(b, e);
    }
    x->device.n_timed = x->device.n_yields = 0;
    return b->turn_begin ? b->turn_begin(b, e) : 0;
}

int device_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
               struct trace *trace, struct err *e) {
    const struct bound_program *p = &x->programs[program];
    struct backend *b = x->backend;
    const bool inside = interrupted(x) != NULL, timed = trace && b->marks > 0 && !inside;
    uint64_t start = clock_ns();
    TRY(begin_turn(x, e));
    for (int i = 0; i < p->n_items; i++) {
        const struct item *item = &p->items[i];
        struct place at = {0};
        if (item->first)
            TRY(yield_point(x, p->p, item->entry, timed, e));
        if (run_item(x, p, item, feed, feed_arg, timed, &at, e) != 0) {
            const struct bound_segment *s = bound_of(p, at.entry);
            return err_context(e, "%s, %s, op %d '%s'", p->p->name,
                               p->p->segments[p->p->order[at.entry].segment].name, at.call,
                               at.call >= 0 && at.call < s->n_calls
                                   ? op_info(s->calls[at.call].op->kind)->name
                                   : "?");
        }
    }
    if (b->turn_end && !inside)
        TRY(b->turn_end(b, e));
    if (b->sync(b, e) != 0)
        return err_context(e, "%s", p->p->name);
    if (timed)
        trace_turn(x, p->p, trace, start);
    return 0;
}
