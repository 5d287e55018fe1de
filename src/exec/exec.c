// exec.c - see exec.h. Runs one rank. On the host, ops complete in issue order, so waits need no
// action. device.c runs turns on a backend with streams, checking.c runs observed turns.
#include "exec/exec.h"
#include "base/clock.h"
#include "exec/executor.h"

#include <stdlib.h>
#include <string.h>

static struct operand bind_operand(const struct executor *x, const struct program *p, int tensor,
                                   int slot) {
    if (tensor < 0)
        return (struct operand){0};
    const struct tensor *t = &p->tensors[tensor];
    int64_t cols = t->rank > 0 ? t->local[t->rank - 1] : 1;
    return (struct operand){.data = x->arena + t->offset[t->slots > 1 ? slot : 0],
                            .ld = t->ld,
                            .dtype = t->dtype,
                            .rows = cols > 0 ? tensor_elements(t) / cols : 0,
                            .cols = cols,
                            .storage = t->storage};
}

// Bytes [begin, end) that a call may touch.
static uint64_t extent_begin(const struct operand *o) {
    return (uint64_t)(uintptr_t)o->data;
}
static uint64_t extent_end(const struct operand *o) {
    struct storage_parts parts;
    if (storage_layout(o->storage, o->rows, o->cols, &parts))
        return extent_begin(o) + parts.bytes;
    const int64_t elements = o->rows > 0 ? (o->rows - 1) * o->ld + o->cols : 0;
    return extent_begin(o) + (uint64_t)elements * dtype_bytes(o->dtype);
}

static bool touches(const struct operand *a, const struct operand *b) {
    return a->data && b->data && extent_begin(a) < extent_end(b) && extent_begin(b) < extent_end(a);
}

// Whether neither call touches what the other writes.
static bool apart(const struct op_call *a, const struct op_call *b) {
    for (int o = 0; o < a->op->n_out; o++) {
        for (int i = 0; i < b->op->n_in; i++)
            if (touches(&a->out[o], &b->in[i]))
                return false;
        for (int i = 0; i < b->op->n_out; i++)
            if (touches(&a->out[o], &b->out[i]))
                return false;
    }
    for (int i = 0; i < a->op->n_in; i++)
        for (int o = 0; o < b->op->n_out; o++)
            if (touches(&a->in[i], &b->out[o]))
                return false;
    return true;
}

// Whether call k may join the calls from `first` to k - 1.
static bool may_join(const struct bound_segment *s, int first, int k) {
    const struct op *a = s->calls[first].op, *b = s->calls[k].op;
    if (b->kind != a->kind || b->stream != a->stream || b->n_wait > 0 ||
        s->calls[k - 1].op->record >= 0)
        return false;
    for (int i = first; i < k; i++)
        if (!apart(&s->calls[i], &s->calls[k]))
            return false;
    return true;
}

static int join_calls(struct executor *x, struct bound_segment *s, struct err *e) {
    struct backend *b = x->backend;
    for (int first = 0, end; first < s->n_calls; first = end) {
        end = first + 1;
        if (!b->joins[s->calls[first].op->kind])
            continue;
        while (end < s->n_calls && may_join(s, first, end))
            end++;
        if (end > first + 1)
            TRY(b->join(b, &s->calls[first], end - first, e));
    }
    return 0;
}

// A backend has kernels for some storages, or for none.
static int check_stores(const struct executor *x, const struct program *p, const struct op *op,
                        struct err *e) {
    for (int i = 0; i < op->n_in; i++) {
        const struct tensor *t = op->in[i] < 0 ? NULL : &p->tensors[op->in[i]];
        char text[STORAGE_TEXT_BYTES];
        if (t && !storage_plain(t->storage) && !(x->backend->info.storages >> t->storage.kind & 1))
            return err_set(e, ERR_UNSUPPORTED,
                           "the backend '%s' cannot read the weight '%s' of program '%s', which is "
                           "kept in %s; run a model that is not quantized, or on another device",
                           x->backend->name, t->name, p->name, storage_text(t->storage, text));
    }
    return 0;
}

static int bind_segment(struct executor *x, struct bound_program *b, int segment, int slot,
                        struct err *e) {
    const struct segment *seg = &b->p->segments[segment];
    struct bound_segment *out = &b->segments[segment * b->slots + slot];
    if (out->calls || seg->n_ops == 0)
        return 0;
    out->calls = calloc((size_t)seg->n_ops, sizeof *out->calls);
    if (!out->calls)
        return err_set(e, ERR_MEMORY, "out of memory while binding '%s'", b->p->name);
    out->n_calls = seg->n_ops;
    for (int i = 0; i < seg->n_ops; i++) {
        const struct op *op = &seg->ops[i];
        struct op_call *call = &out->calls[i];
        const bool elsewhere =
            op->kind == OP_LOAD || (x->comm && op_info(op->kind)->category == CAT_COMM);
        if (!elsewhere && !x->backend->run[op->kind])
            return err_set(e, ERR_UNSUPPORTED,
                           "the backend '%s' cannot run the op '%s' of program '%s'",
                           x->backend->name, op_info(op->kind)->name, b->p->name);
        call->op = op;
        for (int a = 0; a < op->n_in; a++)
            call->in[a] = bind_operand(x, b->p, op->in[a], slot);
        for (int a = 0; a < op->n_out; a++)
            call->out[a] = bind_operand(x, b->p, op->out[a], slot);
        call->scratch = bind_operand(x, b->p, op->scratch, slot);
        TRY(check_stores(x, b->p, op, e));
        if (x->backend->make && !elsewhere)
            TRY(x->backend->make(x->backend, call, e));
    }
    return x->backend->join ? join_calls(x, out, e) : 0;
}

// Bytes that bind_program will take: calls once for each (segment, slot) in the order.
static uint64_t table_bytes(const struct program *p) {
    int slots = 1;
    for (int i = 0; i < p->n_order; i++)
        slots = p->order[i].slot >= slots ? p->order[i].slot + 1 : slots;
    uint64_t bytes = (uint64_t)p->n_segments * (uint64_t)slots * sizeof(struct bound_segment);
    for (int s = 0; s < p->n_segments; s++)
        for (int slot = 0; slot < slots; slot++)
            for (int i = 0; i < p->n_order; i++)
                if (p->order[i].segment == s && p->order[i].slot == slot) {
                    bytes += (uint64_t)p->segments[s].n_ops * sizeof(struct op_call);
                    break;
                }
    return bytes;
}

uint64_t exec_plan_bytes(struct program *const *programs, int n) {
    uint64_t bytes = sizeof(struct executor) + (uint64_t)n * sizeof(struct bound_program);
    for (int i = 0; i < n; i++)
        bytes += table_bytes(programs[i]);
    return bytes;
}

static int bind_program(struct executor *x, struct bound_program *b, const struct program *p,
                        struct err *e) {
    b->p = p;
    b->slots = 1;
    for (int i = 0; i < p->n_order; i++)
        if (p->order[i].slot >= b->slots)
            b->slots = p->order[i].slot + 1;
    b->segments = calloc((size_t)p->n_segments * (size_t)b->slots, sizeof *b->segments);
    if (!b->segments)
        return err_set(e, ERR_MEMORY, "out of memory while binding '%s'", p->name);
    for (int i = 0; i < p->n_order; i++)
        TRY(bind_segment(x, b, p->order[i].segment, p->order[i].slot, e));
    return 0;
}

int exec_open(struct executor **out, const struct exec_options *o, struct err *e) {
    *out = NULL;
    struct executor *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "out of memory while opening the executor");
    x->backend = o->backend;
    x->beside = o->beside;
    x->programs = calloc((size_t)o->n_programs + 1, sizeof *x->programs);
    int rc = x->programs ? 0 : err_set(e, ERR_MEMORY, "out of memory while opening the executor");
    if (rc == 0 && o->checking) {
        rc = checking_open(x, o, e);
    } else if (rc == 0 && o->arena) {
        x->arena = o->arena;
    } else if (rc == 0) {
        rc = o->backend->arena_take(o->backend, o->layout->arena_bytes, &x->own_arena, e);
        x->arena = x->own_arena;
    }
    if (rc == 0 && o->comm)
        rc = comm_stream_open(&x->comm, o->comm, o->programs, o->n_programs, e);
    for (int i = 0; rc == 0 && i < o->n_programs; i++, x->n_programs++)
        rc = bind_program(x, &x->programs[i], o->programs[i], e);
    if (rc == 0 && o->backend->info.streams)
        rc = device_open(x, o->graphs, e);
    if (rc != 0) {
        exec_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

static void free_segment(struct executor *x, struct bound_segment *s) {
    for (int k = 0; x->backend->unmake && k < s->n_calls; k++)
        x->backend->unmake(x->backend, &s->calls[k]);
    free(s->calls);
}

void exec_close(struct executor *x) {
    if (!x)
        return;
    comm_stream_close(x->comm); // before the memory that it moves
    if (x->backend->info.streams)
        device_close(x);
    for (int i = 0; x->programs && i <= x->n_programs; i++) {
        struct bound_program *b = &x->programs[i];
        for (int s = 0; b->segments && s < b->p->n_segments * b->slots; s++)
            free_segment(x, &b->segments[s]);
        free(b->segments);
    }
    free(x->programs);
    if (x->checking)
        checking_close(x);
    else if (x->own_arena)
        x->backend->arena_give(x->backend, x->own_arena);
    free(x);
}

static int copy_in(struct executor *x, void *to, const void *from, uint64_t bytes, struct err *e) {
    if (x->backend->info.device)
        return x->backend->copy_in(x->backend, to, from, bytes, e);
    memcpy(to, from, bytes);
    return 0;
}

static int put_numbers(struct executor *x, const struct op_call *call, int micro, struct err *e) {
    int32_t block[1024];
    const int64_t all = call->op->m, most = sizeof block / sizeof *block;
    for (int64_t at = 0; at < all; at += most) {
        const int64_t n = all - at < most ? all - at : most;
        op_number_rows(call->op, micro, at, n, block);
        TRY(copy_in(x, (int32_t *)call->out[LOAD_NUMBERS].data + at, block,
                    (uint64_t)n * sizeof *block, e));
    }
    return 0;
}

int host_load(struct executor *x, const struct op_call *call, int micro, exec_feed_fn *feed,
              void *arg, struct err *e) {
    struct exec_batch batch;
    if (!feed)
        return err_set(e, ERR_INTERNAL, "the program loads a batch but nothing feeds it");
    TRY(feed(arg, micro, &batch, e));
    const int32_t *from[5] = {batch.tokens, batch.targets, batch.positions, batch.doc_start};
    uint64_t bytes = (uint64_t)call->op->m * sizeof(int32_t);
    for (int i = 0; i < call->op->n_out; i++)
        if (i == LOAD_NUMBERS && call->out[i].data)
            TRY(put_numbers(x, call, micro, e));
        else if (call->out[i].data)
            TRY(copy_in(x, call->out[i].data, from[i], bytes, e));
    return 0;
}

void exec_on_yield(struct executor *x, exec_yield_fn *fn, void *arg) {
    x->yield = fn;
    x->yield_arg = arg;
}

int exec_yield(struct executor *x, const struct program *p, int at, bool *yielded, struct err *e) {
    const bool due = x->yield && !x->interrupted && program_yields_at(p, p->order, at);
    if (yielded)
        *yielded = due;
    if (!due)
        return 0;
    x->interrupted = true;
    const int rc = x->yield(x->yield_arg, e);
    x->interrupted = false;
    return rc;
}

// Waits for the communication that an op needs. That time is not the op's.
static int await_comm(struct executor *x, const struct op *op, struct trace *trace, uint64_t *start,
                      struct err *e) {
    enum comm_wait waited = WAIT_NONE;
    TRY(comm_stream_await(x->comm, op, &waited, e));
    if (!trace || waited == WAIT_NONE)
        return 0;
    const uint64_t now = clock_ns();
    trace_add_span(trace, waited == WAIT_STAGES ? SPAN_STAGE_WAIT : SPAN_COMM_WAIT, *start, now);
    *start = now;
    return 0;
}

static int run_call(struct executor *x, int program, const struct op_call *call,
                    const struct order_entry *entry, exec_feed_fn *feed, void *feed_arg,
                    struct trace *trace, uint64_t *start, struct err *e) {
    if (x->comm && op_info(call->op->kind)->category == CAT_COMM)
        return comm_stream_issue(x->comm, program, call, entry->segment, entry->micro, false, e);
    if (x->comm && call->op->n_wait > 0)
        TRY(await_comm(x, call->op, trace, start, e));
    return call->op->kind == OP_LOAD ? host_load(x, call, entry->micro, feed, feed_arg, e)
                                     : x->backend->run[call->op->kind](x->backend, call, e);
}

static int host_run(struct executor *x, int program, exec_keep_fn *keep, void *keep_arg,
                    exec_feed_fn *feed, void *feed_arg, struct trace *trace, struct err *e) {
    const struct bound_program *b = &x->programs[program];
    uint64_t start = trace ? clock_ns() : 0;
    for (int i = 0; i < b->p->n_order; i++) {
        const struct order_entry *entry = &b->p->order[i];
        const struct bound_segment *seg = &b->segments[entry->segment * b->slots + entry->slot];
        bool yielded;
        TRY(exec_yield(x, b->p, i, &yielded, e));
        if (yielded && trace) // the time of a guest does not count for the next op
            start = clock_ns();
        for (int k = 0; k < seg->n_calls; k++) {
            const struct op_call *call = &seg->calls[k];
            if (keep && !keep(keep_arg, call->op))
                continue;
            int rc = run_call(x, program, call, entry, feed, feed_arg, trace, &start, e);
            if (rc != 0)
                return err_context(e, "%s, %s, op %d '%s'", b->p->name,
                                   b->p->segments[entry->segment].name, k,
                                   op_info(call->op->kind)->name);
            if (trace &&
                op_info(call->op->kind)->category !=
                    CAT_COMM) { // one clock reading per op: the end of one is the start of the next
                uint64_t now = clock_ns();
                trace_add_op(trace, call->op, entry->segment, entry->micro, start, now);
                start = now;
            }
        }
    }
    if (!x->comm)
        return 0;
    enum comm_wait waited = WAIT_NONE;
    TRY(comm_stream_drain(x->comm, trace, &waited, e));
    if (trace) // what the last ops of the stream took beyond the others
        trace_add_span(trace, waited == WAIT_STAGES ? SPAN_STAGE_WAIT : SPAN_COMM_WAIT, start,
                       clock_ns());
    return 0;
}

int exec_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
             struct trace *trace, struct err *e) {
    if (x->interrupted && !x->programs[program].p->guest)
        return err_set(e, ERR_INTERNAL,
                       "the program '%s' is not a guest: it cannot run while a turn is interrupted",
                       x->programs[program].p->name);
    if (x->backend->info.streams)
        return device_run(x, program, feed, feed_arg, trace, e);
    if (x->checking)
        return checking_run(x, program, feed, feed_arg, trace, e);
    return host_run(x, program, NULL, NULL, feed, feed_arg, trace, e);
}

int exec_run_kept(struct executor *x, int program, exec_keep_fn *keep, void *keep_arg,
                  exec_feed_fn *feed, void *feed_arg, struct trace *trace, struct err *e) {
    if (x->backend->info.streams || x->checking)
        return err_set(e, ERR_UNSUPPORTED, "a device or a checking executor runs whole turns only");
    return host_run(x, program, keep, keep_arg, feed, feed_arg, trace, e);
}

uint64_t exec_busy_ns(const struct executor *x) {
    return x->backend->busy_ns ? x->backend->busy_ns(x->backend) : 0;
}

int exec_graphs(const struct executor *x) {
    return x->device.n_graphs;
}

int exec_run_category(struct executor *x, int program, enum op_category category, struct err *e) {
    const struct bound_program *b = &x->programs[program];
    if (x->checking) // ops outside a whole turn would read dead tensors
        return err_set(e, ERR_UNSUPPORTED, "a checking executor runs whole turns only");
    for (int i = 0; i < b->p->n_order; i++) {
        const struct order_entry *entry = &b->p->order[i];
        const struct bound_segment *seg = &b->segments[entry->segment * b->slots + entry->slot];
        for (int k = 0; k < seg->n_calls; k++) {
            const struct op_call *call = &seg->calls[k];
            if (op_info(call->op->kind)->category == category && call->op->kind != OP_LOAD)
                TRY(x->backend->run[call->op->kind](x->backend, call, e));
        }
    }
    return x->backend->info.streams ? x->backend->sync(x->backend, e) : 0;
}

static int locate(const struct executor *x, int program, int tensor, uint64_t at, uint64_t bytes,
                  unsigned char **out, struct err *e) {
    const struct tensor *t = &x->programs[program].p->tensors[tensor];
    uint64_t all = (uint64_t)tensor_elements(t) * dtype_bytes(t->dtype);
    if (t->life != LIFE_RUN)
        return err_set(e, ERR_INTERNAL,
                       "'%s' does not outlive a turn: it cannot be read or written", t->name);
    if (at > all || bytes > all - at)
        return err_set(e, ERR_INTERNAL, "'%s' has %llu bytes; bytes %llu to %llu were requested",
                       t->name, (unsigned long long)all, (unsigned long long)at,
                       (unsigned long long)(at + bytes));
    *out = x->arena + t->offset[0] + at;
    return 0;
}

int exec_read_part(struct executor *x, int program, int tensor, uint64_t at, void *out,
                   uint64_t bytes, struct err *e) {
    unsigned char *from;
    TRY(locate(x, program, tensor, at, bytes, &from, e));
    if (x->backend->info.device)
        return x->backend->copy_out(x->backend, out, from, bytes, e);
    memcpy(out, from, bytes);
    return 0;
}

int exec_write_part(struct executor *x, int program, int tensor, uint64_t at, const void *data,
                    uint64_t bytes, struct err *e) {
    unsigned char *to;
    TRY(locate(x, program, tensor, at, bytes, &to, e));
    return copy_in(x, to, data, bytes, e);
}

int exec_read(struct executor *x, int program, int tensor, void *out, uint64_t bytes,
              struct err *e) {
    return exec_read_part(x, program, tensor, 0, out, bytes, e);
}

int exec_write(struct executor *x, int program, int tensor, const void *data, uint64_t bytes,
               struct err *e) {
    return exec_write_part(x, program, tensor, 0, data, bytes, e);
}

void *exec_host_arena(struct executor *x) {
    return x->backend->info.device ? NULL : x->arena;
}

void *exec_host_address(struct executor *x, int program, int tensor) {
    const struct tensor *t = &x->programs[program].p->tensors[tensor];
    return x->backend->info.device ? NULL : x->arena + t->offset[0];
}
