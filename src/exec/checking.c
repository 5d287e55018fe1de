// checking.c - a turn under observation: what is written, by which op, and when it is dead.
//
// The observer uses as little of the layout as possible. The arena lies between two guards. All of
// it is filled with a pattern, the poison. A second copy holds what each byte was when it was last
// checked. After every op, all bytes are compared with the copy:
//   - A byte that changed must belong to an output of that op.
//   - The highest byte that ever changed says how much of the arena is used.
//   - When a life ends (program/walk.h), its bytes get the pattern again. A later read sees NaN.
//   - An output that still holds the pattern is an error.
//   - A life that begins where the pattern is not intact is an error.
// Persistent tensors begin as zero, as the executor promises.
//
// Invariants: ops see the same operand values as in exec.c, in the same order. So a turn that
// passes has the same bits. Between turns the host writes only persistent tensors.
#include "base/clock.h"
#include "exec/executor.h"
#include "program/walk.h"

#include <stdlib.h>
#include <string.h>

// In every float type this is a NaN that arithmetic does not produce. NaN payloads pass through
// arithmetic, so copies of it are recognised too. As an id it is outside any vocabulary. No
// plausible value has 0x7F as its highest byte.
static const uint16_t PATTERN = 0x7FF1;
// A vector store past the end reaches up to 64 bytes. A row too many reaches further.
enum { GUARD_BYTES = 4096, LOOK_BYTES = 4096 };

struct copy { // one copy of a tensor
    int tensor, slot;
};

struct by_step { // copies whose life begins, or ends, at each step of a turn
    struct copy *list;
    int *first; // [n_steps + 1]: step i has list[first[i]] to list[first[i + 1] - 1]
};

struct turn_lives {
    struct by_step begin, end;
};

struct checking {
    unsigned char *block; // guard, arena, guard
    unsigned char *seen;  // copy of block from the last check
    uint64_t block_bytes, arena_bytes, persistent_bytes;
    struct turn_lives *programs;
    int n_programs;
    struct exec_check report;
};

// ---------------------------------------------------------------- opening

static void fill(unsigned char *at, uint64_t bytes) {
    static const unsigned char pattern[2] = {PATTERN & 0xFF, PATTERN >> 8};
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = pattern[i & 1]; // tensors and guards begin at even addresses
}

// Sorts lives by their first or last step: counts, then places.
static int sort_lives(struct by_step *out, const struct lives *l, int n_steps, bool ends) {
    out->list = calloc((size_t)l->n + 1, sizeof *out->list);
    out->first = calloc((size_t)n_steps + 2, sizeof *out->first);
    if (!out->list || !out->first)
        return ERR_MEMORY;
    for (int i = 0; i < l->n; i++)
        out->first[(ends ? l->life[i].last : l->life[i].first) + 2]++;
    for (int i = 2; i <= n_steps + 1; i++)
        out->first[i] += out->first[i - 1];
    for (int i = 0; i < l->n; i++) { // first[step + 1] ends up where step + 1 begins
        int step = ends ? l->life[i].last : l->life[i].first;
        out->list[out->first[step + 1]++] = (struct copy){l->life[i].tensor, l->life[i].slot};
    }
    return 0;
}

// The walk must be whole, because its steps are matched with the executor's.
static int list_lives(struct turn_lives *out, const struct program *p, struct err *e) {
    struct walk w = {0};
    struct lives l = {0};
    int rc = walk_make(&w, p, true, e);
    if (rc == 0 && w.n_order != p->n_order)
        rc = err_set(e, ERR_UNSUPPORTED,
                     "the program '%s' runs more than %d ops in a turn: too many to check", p->name,
                     WALK_MAX_STEPS);
    if (rc == 0)
        rc = lives_make(&l, p, &w, e);
    if (rc == 0 && (sort_lives(&out->begin, &l, w.n_steps, false) != 0 ||
                    sort_lives(&out->end, &l, w.n_steps, true) != 0))
        rc = err_set(e, ERR_MEMORY, "out of memory for the lives of '%s'", p->name);
    lives_free(&l);
    walk_free(&w);
    return rc;
}

static void clear_persistent(struct executor *x, const struct program *p) {
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->root < 0 && t->life == LIFE_RUN)
            memset(x->arena + t->offset[0], 0, t->bytes);
    }
}

int checking_open(struct executor *x, const struct exec_options *o, struct err *e) {
    struct backend *b = x->backend;
    void *block;
    if (b->info.device || b->info.streams)
        return err_set(e, ERR_UNSUPPORTED,
                       "the backend '%s' does not use host memory: only CPU backends can be "
                       "checked",
                       b->name);
    struct checking *c = x->checking = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_MEMORY, "out of memory for checking");
    c->arena_bytes = o->layout->arena_bytes;
    c->persistent_bytes = o->layout->persistent_bytes;
    c->block_bytes = c->arena_bytes + 2 * GUARD_BYTES;
    TRY(b->arena_take(b, c->block_bytes, &block, e));
    c->block = block;
    TRY(b->arena_take(b, c->block_bytes, &block, e));
    c->seen = block;
    x->arena = c->block + GUARD_BYTES;
    fill(c->block, c->block_bytes);
    for (int i = 0; i < o->n_programs; i++)
        clear_persistent(x, o->programs[i]);
    memcpy(c->seen, c->block, c->block_bytes);
    c->programs = calloc((size_t)o->n_programs + 1, sizeof *c->programs);
    if (!c->programs)
        return err_set(e, ERR_MEMORY, "out of memory for checking");
    for (; c->n_programs < o->n_programs; c->n_programs++)
        TRY(list_lives(&c->programs[c->n_programs], o->programs[c->n_programs], e));
    return 0;
}

static void free_lives(struct by_step *s) {
    free(s->list);
    free(s->first);
}

void checking_close(struct executor *x) {
    struct checking *c = x->checking;
    for (int i = 0; c->programs && i <= c->n_programs; i++) // the last may be incomplete
        free_lives(&c->programs[i].begin), free_lives(&c->programs[i].end);
    free(c->programs);
    if (c->seen)
        x->backend->arena_give(x->backend, c->seen);
    if (c->block)
        x->backend->arena_give(x->backend, c->block);
    free(c);
}

const struct exec_check *exec_checked(const struct executor *x) {
    return x->checking ? &x->checking->report : NULL;
}

// ---------------------------------------------------------------- looking

// Whether a byte belongs to an operand. The rows of a view have gaps between them.
static bool inside(const struct operand *o, const unsigned char *at) {
    if (!o->data || at < (const unsigned char *)o->data)
        return false;
    uint64_t element = dtype_bytes(o->dtype);
    uint64_t offset = (uint64_t)(at - (const unsigned char *)o->data);
    uint64_t row = (uint64_t)o->cols * element, stride = (uint64_t)o->ld * element;
    if (o->rows <= 1 || stride == row)
        return offset < (uint64_t)o->rows * row;
    return offset / stride < (uint64_t)o->rows && offset % stride < row;
}

static bool allowed(const struct checking *c, const struct op_call *call, const unsigned char *at) {
    uint64_t offset = (uint64_t)(at - c->block); // without a call: only persistent tensors
    if (!call)
        return offset >= GUARD_BYTES && offset < GUARD_BYTES + c->persistent_bytes;
    for (int i = 0; i < call->op->n_out; i++)
        if (inside(&call->out[i], at))
            return true;
    return false;
}

static const char *who_lies_at(const struct program *p, int64_t offset) {
    for (int i = 0; i < p->n_tensors; i++)
        for (int s = 0; p->tensors[i].root < 0 && s < p->tensors[i].slots; s++)
            if (offset >= (int64_t)p->tensors[i].offset[s] &&
                offset < (int64_t)(p->tensors[i].offset[s] + p->tensors[i].bytes))
                return p->tensors[i].name;
    return "no tensor";
}

static int look_at(struct checking *c, const struct program *p, const struct op_call *call,
                   uint64_t begin, uint64_t end, struct err *e) {
    for (uint64_t i = begin; i < end; i++) {
        while (i + 8 <= end && memcmp(c->block + i, c->seen + i, 8) == 0)
            i += 8;
        if (i == end || c->block[i] == c->seen[i])
            continue;
        int64_t offset = (int64_t)i - GUARD_BYTES;
        if (!allowed(c, call, c->block + i))
            return err_set(
                e, ERR_INTERNAL,
                "forbidden write to byte %lld of an arena of %llu bytes ('%s' lies there)",
                (long long)offset, (unsigned long long)c->arena_bytes, who_lies_at(p, offset));
        if ((uint64_t)offset >= c->report.used_bytes)
            c->report.used_bytes = (uint64_t)offset + 1;
    }
    memcpy(c->seen + begin, c->block + begin, end - begin);
    return 0;
}

// Checks every byte, including the guards. call NULL: for writes since the last turn.
static int look(struct checking *c, const struct program *p, const struct op_call *call,
                struct err *e) {
    for (uint64_t at = 0; at < c->block_bytes; at += LOOK_BYTES) {
        uint64_t left = c->block_bytes - at, n = left < LOOK_BYTES ? left : LOOK_BYTES;
        if (memcmp(c->block + at, c->seen + at, n) != 0)
            TRY(look_at(c, p, call, at, at + n, e));
    }
    return 0;
}

static bool is_pattern(const unsigned char *at, size_t element) {
    uint64_t eight;
    uint32_t four;
    uint16_t two;
    switch (element) {
    case 2:
        memcpy(&two, at, sizeof two);
        return two == PATTERN;
    case 4:
        memcpy(&four, at, sizeof four);
        return four == PATTERN * 0x10001u;
    case 8:
        memcpy(&eight, at, sizeof eight);
        return eight == PATTERN * 0x1000100010001u;
    default: // single bytes may equal the pattern by chance
        return false;
    }
}

// Returns the first element that consists only of the pattern; -1: none.
static int64_t find_pattern(const struct operand *o) {
    size_t element = dtype_bytes(o->dtype);
    for (int64_t r = 0; o->data && r < o->rows; r++) {
        const unsigned char *row = (const unsigned char *)o->data + (size_t)(r * o->ld) * element;
        for (int64_t i = 0; i < o->cols; i++)
            if (is_pattern(row + (size_t)i * element, element))
                return r * o->cols + i;
    }
    return -1;
}

static int look_for_pattern(const struct program *p, const struct op_call *call, struct err *e) {
    for (int i = 0; i < call->op->n_out; i++) {
        int64_t at = find_pattern(&call->out[i]);
        if (at >= 0)
            return err_set(e, ERR_INTERNAL,
                           "element %lld of '%s' is poison: the op read a dead tensor or did not "
                           "write this element",
                           (long long)at, p->tensors[call->op->out[i]].name);
    }
    return 0;
}

// The bytes of a beginning life must hold only the pattern: all tensors that lay there are dead or
// were never written.
static int begin_lives(const struct executor *x, int program, int step, struct err *e) {
    const struct program *p = x->programs[program].p;
    const struct by_step *lives = &x->checking->programs[program].begin;
    for (int i = lives->first[step]; i < lives->first[step + 1]; i++) {
        const struct tensor *t = &p->tensors[lives->list[i].tensor];
        const unsigned char *at = x->arena + t->offset[lives->list[i].slot];
        for (uint64_t k = 0; k < t->bytes; k++)
            if (at[k] != (k & 1 ? PATTERN >> 8 : PATTERN & 0xFF))
                return err_set(e, ERR_INTERNAL,
                               "'%s' begins on bytes that are still in use, from its byte %llu on",
                               t->name, (unsigned long long)k);
    }
    return 0;
}

static void end_lives(struct executor *x, int program, int step) {
    struct checking *c = x->checking;
    const struct by_step *lives = &c->programs[program].end;
    for (int i = lives->first[step]; i < lives->first[step + 1]; i++) {
        const struct tensor *t = &x->programs[program].p->tensors[lives->list[i].tensor];
        uint64_t at = t->offset[lives->list[i].slot];
        fill(x->arena + at, t->bytes);
        fill(c->seen + GUARD_BYTES + at, t->bytes);
        c->report.lives++;
    }
}

// ---------------------------------------------------------------- a turn

static int run_op(struct executor *x, int program, int step, const struct op_call *call,
                  const struct order_entry *entry, exec_feed_fn *feed, void *feed_arg,
                  struct err *e) {
    const struct program *p = x->programs[program].p;
    TRY(begin_lives(x, program, step, e));
    if (call->op->kind == OP_LOAD)
        TRY(host_load(x, call, entry->micro, feed, feed_arg, e));
    else if (x->comm && op_info(call->op->kind)->category == CAT_COMM)
        TRY(comm_stream_issue(x->comm, program, call, entry->segment, entry->micro, true, e));
    else
        TRY(x->backend->run[call->op->kind](x->backend, call, e));
    x->checking->report.ops++;
    TRY(look(x->checking, p, call, e));
    TRY(look_for_pattern(p, call, e));
    end_lives(x, program, step);
    return 0;
}

int checking_run(struct executor *x, int program, exec_feed_fn *feed, void *feed_arg,
                 struct trace *trace, struct err *e) {
    const struct bound_program *b = &x->programs[program];
    int step = 0;
    int rc = look(x->checking, b->p, NULL, e);
    if (rc != 0)
        return err_context(e, "%s, before the turn", b->p->name);
    for (int i = 0; i < b->p->n_order; i++) {
        const struct order_entry *entry = &b->p->order[i];
        const struct bound_segment *seg = &b->segments[entry->segment * b->slots + entry->slot];
        TRY(exec_yield(x, b->p, i, NULL, e));
        for (int k = 0; k < seg->n_calls; k++, step++) {
            const struct op_call *call = &seg->calls[k];
            uint64_t start = trace ? clock_ns() : 0;
            rc = run_op(x, program, step, call, entry, feed, feed_arg, e);
            if (rc != 0)
                return err_context(e, "%s, %s, micro-batch %d, op %d '%s'", b->p->name,
                                   b->p->segments[entry->segment].name, entry->micro, k,
                                   op_info(call->op->kind)->name);
            if (trace)
                trace_add_op(trace, call->op, entry->segment, entry->micro, start, clock_ns());
        }
    }
    enum comm_wait waited;
    return x->comm ? comm_stream_drain(x->comm, NULL, &waited, e) : 0;
}
