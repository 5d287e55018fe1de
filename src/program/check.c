// check.c - see check.h. Each check walks the program itself. No check uses results of the code
// that it checks.
#include "program/check.h"
#include "base/array.h"
#include "base/mem.h"
#include "program/walk.h"

#include <stdlib.h>
#include <string.h>

static int check_indices(const struct program *p, struct err *e) {
    for (int s = 0; s < p->n_segments; s++)
        for (int i = 0; i < p->segments[s].n_ops; i++) {
            const struct op *op = &p->segments[s].ops[i];
            for (int a = 0; a < op->n_in + op->n_out; a++) {
                int t = a < op->n_in ? op->in[a] : op->out[a - op->n_in];
                if (t >= p->n_tensors || t < -1)
                    return err_set(e, ERR_INTERNAL,
                                   "op %d '%s' of segment '%s' names tensor %d; there are %d", i,
                                   op_info(op->kind)->name, p->segments[s].name, t, p->n_tensors);
            }
            for (int a = 0; a < op->n_wait; a++)
                if (op->wait[a] < 0 || op->wait[a] >= p->n_events)
                    return err_set(e, ERR_INTERNAL,
                                   "op %d of segment '%s' waits for event %d; there are %d", i,
                                   p->segments[s].name, op->wait[a], p->n_events);
        }
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->root < 0)
            continue;
        const struct tensor *r = &p->tensors[t->root];
        int64_t rows = t->rank > 1 ? tensor_elements(t) / t->local[t->rank - 1] : 1;
        int64_t last = t->root_offset + (rows - 1) * t->ld + t->local[t->rank - 1];
        if (r->root >= 0 || t->root_offset < 0 || last > tensor_elements(r))
            return err_set(e, ERR_INTERNAL, "view '%s' reaches outside '%s'", t->name, r->name);
    }
    for (int i = 0; i < p->n_order; i++)
        if (p->order[i].segment < 0 || p->order[i].segment >= p->n_segments || p->order[i].slot < 0)
            return err_set(e, ERR_INTERNAL, "order entry %d names segment %d, slot %d", i,
                           p->order[i].segment, p->order[i].slot);
    return 0;
}

// Proves that every read was written. For each copy of a transient tensor it remembers which life
// wrote it last.
static int check_reads(const struct program *p, const struct walk *w, struct err *e) {
    int max_slots = program_max_slots(p), rc = 0;
    long *written = malloc(sizeof *written * ((size_t)p->n_tensors * (size_t)max_slots + 1));
    if (!written)
        return err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    for (int i = 0; i < p->n_tensors * max_slots; i++)
        written[i] = -1;
    struct op_access access[OP_MAX_TENSORS];
    for (int i = 0; i < w->n_order && rc == 0; i++) {
        const struct order_entry *entry = &w->order[i];
        const struct segment *seg = &p->segments[entry->segment];
        for (int k = 0; k < seg->n_ops && rc == 0; k++) {
            int n = op_accesses(p, &seg->ops[k], access);
            for (int a = 0; a < n && rc == 0; a++) {
                const struct tensor *t = &p->tensors[access[a].tensor];
                if (t->life == LIFE_RUN)
                    continue;
                int slot = t->life == LIFE_SLOT ? entry->slot : 0;
                long owner = t->life == LIFE_TURN ? 0 : t->life == LIFE_SLOT ? entry->micro : i;
                if (slot >= t->slots) {
                    rc = err_set(e, ERR_INTERNAL,
                                 "'%s' has %d slots but segment '%s' runs on slot %d", t->name,
                                 t->slots, seg->name, slot);
                    break;
                }
                long *at = &written[access[a].tensor * max_slots + slot];
                if ((access[a].how & OP_READ) && *at != owner)
                    rc = err_set(e, ERR_INTERNAL,
                                 "op %d '%s' of segment '%s' (micro-batch %d) reads '%s', which "
                                 "nothing wrote",
                                 k, op_info(seg->ops[k].kind)->name, seg->name, entry->micro,
                                 t->name);
                if (access[a].how & OP_WRITE)
                    *at = owner;
            }
        }
    }
    free(written);
    return rc;
}

// Proves, over the whole order, that every access comes after the accesses it depends on. A read
// must come after the latest write. A write must come after the latest write and after the reads
// since then.
struct recent {
    int write_stream, write_index; // index 0: not written yet
    int read_index[STREAM_COUNT];
};

static int check_access(const struct program *p, const struct walk_step *step,
                        const struct op_access *a, struct recent *r, struct err *e) {
    const struct op *op = walk_op(p, step);
    int late = r->write_index > step->before[r->write_stream] ? r->write_stream : -1;
    for (int s = 0; s < STREAM_COUNT && late < 0 && (a->how & OP_WRITE); s++)
        if (r->read_index[s] > step->before[s])
            late = s;
    if (late >= 0)
        return err_set(e, ERR_INTERNAL,
                       "op %d '%s' of segment '%s' touches '%s' without waiting for the %s stream",
                       step->op, op_info(op->kind)->name, p->segments[step->segment].name,
                       p->tensors[a->tensor].name, op_stream_name((enum op_stream)late));
    if (a->how & OP_WRITE)
        *r = (struct recent){.write_stream = (int)op->stream, .write_index = step->index};
    else
        r->read_index[op->stream] = step->index;
    return 0;
}

static int check_order(const struct program *p, const struct walk *w, struct err *e) {
    int max_slots = program_max_slots(p), rc = 0;
    struct recent *all = calloc((size_t)p->n_tensors * (size_t)max_slots + 1, sizeof *all);
    if (!all)
        rc = err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    struct op_access access[OP_MAX_TENSORS];
    for (int i = 0; i < w->n_steps && rc == 0; i++) {
        int n = op_accesses(p, walk_op(p, &w->steps[i]), access);
        for (int a = 0; a < n && rc == 0; a++) {
            int slot = p->tensors[access[a].tensor].life == LIFE_SLOT ? w->steps[i].slot : 0;
            rc = check_access(p, &w->steps[i], &access[a],
                              &all[access[a].tensor * max_slots + slot], e);
        }
    }
    free(all);
    return rc;
}

// A trainable 16-bit weight needs a master. Without one, every update smaller than the weight's
// last bit is lost.
static int check_masters(const struct program *p, struct err *e) {
    for (int s = 0; s < p->n_segments; s++)
        for (int k = 0; k < p->segments[s].n_ops; k++) {
            const struct op *op = &p->segments[s].ops[k];
            bool step = op->kind == OP_ADAM_STEP; // the last pass when AdamW is split
            if (!step && op->kind != OP_ADAMW && op->kind != OP_ADAMW_BF16 &&
                op->kind != OP_ADAMW_INT8)
                continue;
            const struct tensor *w = &p->tensors[op->out[0]];
            int at = step ? 1 : 3, master = op->n_out > at ? op->out[at] : -1;
            bool narrow = op_wide_type(w->dtype) != w->dtype, has = master >= 0;
            if (narrow != has || (has && w->master != master))
                return err_set(e, ERR_INTERNAL,
                               "the weight '%s' (%s) is updated %s a full-precision master",
                               w->name, dtype_text(w->dtype), has ? "with" : "without");
        }
    return 0;
}

// A quantized weight is read by ops that name it with the letter w, as a whole, and by no other.
static int check_stores(const struct program *p, struct err *e) {
    char text[STORAGE_TEXT_BYTES];
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        const bool root = t->root >= 0 && !storage_plain(p->tensors[t->root].storage);
        if (root || (!storage_plain(t->storage) &&
                     (t->cls != CLASS_WEIGHT || t->trainable || t->bytes != tensor_bytes(t))))
            return err_set(e, ERR_INTERNAL, "'%s' cannot be or be part of a weight kept in %s",
                           t->name, storage_text(p->tensors[program_root(p, i)].storage, text));
    }
    for (int s = 0; s < p->n_segments; s++)
        for (int k = 0; k < p->segments[s].n_ops; k++) {
            const struct op *op = &p->segments[s].ops[k];
            const struct op_info *info = op_info(op->kind);
            for (int i = 0; i < op->n_in + op->n_out; i++) {
                const int t = i < op->n_in ? op->in[i] : op->out[i - op->n_in];
                const bool reads = i < op->n_in && info->types_in[i] == 'w';
                if (t >= 0 && !storage_plain(p->tensors[t].storage) &&
                    (!reads || op->flags & OP_IN_OUT))
                    return err_set(e, ERR_UNSUPPORTED,
                                   "op '%s' of segment '%s' cannot use '%s', which is kept in %s",
                                   info->name, p->segments[s].name, p->tensors[t].name,
                                   storage_text(p->tensors[t].storage, text));
            }
        }
    return 0;
}

int check_program(const struct program *p, struct err *e) {
    TRY(check_indices(p, e));
    TRY(check_stores(p, e));
    TRY(check_masters(p, e));
    struct walk w;
    TRY(walk_make(&w, p, true, e));
    int rc = check_reads(p, &w, e);
    if (rc == 0)
        rc = check_order(p, &w, e);
    walk_free(&w);
    return rc;
}

// ---------------------------------------------------------------- bytes

struct range { // the bytes of a persistent tensor
    uint64_t begin, end;
    int tensor;
};

static int by_begin(const void *pa, const void *pb) {
    const struct range *a = pa, *b = pb;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

// The lives of one copy do not overlap. lives_meet relies on this.
static int check_succession(const struct program *p, const struct lives *l, struct err *e) {
    for (int i = 1; i < l->n; i++) {
        const struct life *a = &l->life[i - 1], *b = &l->life[i];
        if (a->tensor == b->tensor && a->slot == b->slot && !life_before(a, b))
            return err_set(e, ERR_INTERNAL, "'%s' (slot %d) is used again before it was free",
                           p->tensors[b->tensor].name, b->slot);
    }
    return 0;
}

static int check_ranges(const struct program *p, uint64_t arena_bytes, struct range *ranges,
                        struct err *e) {
    int n = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->root >= 0)
            continue;
        for (int s = 0; s < t->slots; s++)
            if (t->offset[s] + t->bytes > arena_bytes)
                return err_set(e, ERR_INTERNAL, "'%s' reaches outside the arena", t->name);
        if (t->life == LIFE_RUN && t->bytes)
            ranges[n++] = (struct range){t->offset[0], t->offset[0] + t->bytes, i};
    }
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
    for (int i = 1; i < n; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            return err_set(e, ERR_INTERNAL, "persistent tensors '%s' and '%s' share bytes",
                           p->tensors[ranges[i - 1].tensor].name,
                           p->tensors[ranges[i].tensor].name);
    uint64_t persistent_end = n ? ranges[n - 1].end : 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        for (int s = 0; t->life != LIFE_RUN && t->root < 0 && s < t->slots; s++)
            if (t->bytes && t->offset[s] < persistent_end)
                return err_set(e, ERR_INTERNAL, "'%s' lies among the persistent tensors", t->name);
    }
    return 0;
}

static int check_persistent(const struct program *p, uint64_t arena_bytes, struct err *e) {
    struct range *ranges = calloc((size_t)p->n_tensors + 1, sizeof *ranges);
    int rc = ranges ? check_ranges(p, arena_bytes, ranges, e)
                    : err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    free(ranges);
    return rc;
}

// Which life owns which bytes. The lives begin one after another in issue order. Each life takes
// over its bytes, and every previous owner of those bytes must have ended. This covers every pair
// of lives. If a byte has three owners in turn, the first ended before the second began and the
// second before the third began, and happens-before is transitive. The other direction cannot
// occur: a life never ends before the begin of one that is issued earlier.
//
// Bytes are numbered by the sorted ends of all ranges (`edge`). Between two edges nothing changes.
// A stretch is a run of edges with one owner. The owner is stored at the first edge of the stretch,
// and `begins` marks the first edges.
struct ownership {
    uint64_t *edge;
    const struct life **owner; // per edge; NULL: no owner
    uint64_t *begins[8];       // level 0: a bit per edge; level i: a bit per word of level i - 1
    size_t n;                  // number of edges
    int levels;
};

static int by_value(const void *pa, const void *pb) {
    const uint64_t *a = pa, *b = pb;
    return *a < *b ? -1 : *a > *b;
}

static int by_first(const void *pa, const void *pb) {
    const struct life *a = *(const struct life *const *)pa, *b = *(const struct life *const *)pb;
    return a->first < b->first ? -1 : a->first > b->first;
}

static size_t edge_of(const struct ownership *o, uint64_t byte) {
    size_t low = 0, high = o->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (o->edge[mid] < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void set_begin(struct ownership *o, size_t i) {
    for (int level = 0; level < o->levels; level++, i /= 64)
        o->begins[level][i / 64] |= (uint64_t)1 << i % 64;
}

static void clear_begin(struct ownership *o, size_t i) {
    for (int level = 0; level < o->levels; level++, i /= 64) {
        o->begins[level][i / 64] &= ~((uint64_t)1 << i % 64);
        if (o->begins[level][i / 64])
            return;
    }
}

// Returns the first edge of the stretch that contains edge i. Edge 0 always begins a stretch.
static size_t stretch_of(const struct ownership *o, size_t i) {
    int level = 0;
    for (; level < o->levels; level++, i = i / 64 - 1) {
        uint64_t at_or_below = o->begins[level][i / 64] & (~(uint64_t)0 >> (63 - i % 64));
        if (at_or_below) {
            i = i / 64 * 64 + 63 - (size_t)__builtin_clzll(at_or_below);
            break;
        }
    }
    for (; level > 0; level--)
        i = i * 64 + 63 - (size_t)__builtin_clzll(o->begins[level - 1][i]);
    return i;
}

static void ownership_free(struct ownership *o) {
    free(o->edge);
    free(o->owner);
    for (int i = 0; i < o->levels; i++)
        free(o->begins[i]);
}

static int ownership_make(struct ownership *o, const struct program *p, struct err *e) {
    size_t n = 1, bits;
    for (int i = 0; i < p->n_tensors; i++)
        n += 2 * (size_t)p->tensors[i].slots;
    o->edge = calloc(n, sizeof *o->edge);
    o->owner = calloc(n, sizeof *o->owner);
    bool made = o->edge && o->owner;
    for (bits = n; made && (o->levels == 0 || bits > 1); bits = bits / 64 + 1, o->levels++)
        made = (o->begins[o->levels] = calloc(bits / 64 + 1, sizeof(uint64_t))) != NULL;
    if (!made)
        return err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    n = 1; // byte 0
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        for (int s = 0; t->root < 0 && t->life != LIFE_RUN && s < t->slots; s++) {
            o->edge[n++] = t->offset[s];
            o->edge[n++] = t->offset[s] + t->bytes;
        }
    }
    qsort(o->edge, n, sizeof *o->edge, by_value);
    o->n = 1;
    for (size_t i = 1; i < n; i++)
        if (o->edge[i] != o->edge[o->n - 1])
            o->edge[o->n++] = o->edge[i];
    set_begin(o, 0);
    return 0;
}

// Splits the stretch around edge i into two stretches of the same owner, the second beginning at i.
static void cut(struct ownership *o, size_t i) {
    size_t around = stretch_of(o, i);
    o->owner[i] = o->owner[around];
    set_begin(o, i);
}

static int take_over(struct ownership *o, const struct program *p, const struct life *b,
                     struct err *e) {
    const struct tensor *t = &p->tensors[b->tensor];
    if (!t->bytes)
        return 0;
    size_t first = edge_of(o, t->offset[b->slot]), past = edge_of(o, t->offset[b->slot] + t->bytes);
    cut(o, first);
    cut(o, past);
    for (size_t i = stretch_of(o, past - 1);; i = stretch_of(o, i - 1)) {
        const struct life *a = o->owner[i];
        if (a && !life_before(a, b))
            return err_set(e, ERR_INTERNAL,
                           "'%s' (slot %d) and '%s' (slot %d) share bytes while both are alive",
                           p->tensors[a->tensor].name, a->slot, t->name, b->slot);
        if (i == first)
            break;
        clear_begin(o, i);
    }
    o->owner[first] = b;
    return 0;
}

static int check_sharing(const struct program *p, const struct lives *l, struct err *e) {
    struct ownership o = {0};
    int rc = ownership_make(&o, p, e);
    const struct life **order = malloc(sizeof *order * ((size_t)l->n + 1));
    if (rc == 0 && !order)
        rc = err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    for (int i = 0; rc == 0 && i < l->n; i++)
        order[i] = &l->life[i];
    if (rc == 0)
        qsort(order, (size_t)l->n, sizeof *order, by_first);
    for (int i = 0; rc == 0 && i < l->n; i++)
        rc = take_over(&o, p, order[i], e);
    free(order);
    ownership_free(&o);
    return rc;
}

int check_layout(const struct program *p, uint64_t arena_bytes, struct err *e) {
    struct walk w = {0};
    struct lives l = {0};
    TRY(check_persistent(p, arena_bytes, e));
    int rc = walk_make(&w, p, true, e);
    if (rc == 0)
        rc = lives_make(&l, p, &w, e);
    if (rc == 0)
        rc = check_succession(p, &l, e);
    if (rc == 0)
        rc = check_sharing(p, &l, e);
    lives_free(&l);
    walk_free(&w);
    return rc;
}

// ---------------------------------------------------------------- ranks

struct message {
    int from, to, channel, seq;
    uint64_t bytes;
    bool send;
};

static int by_channel(const void *pa, const void *pb) {
    const struct message *a = pa, *b = pb;
    if (a->from != b->from)
        return a->from - b->from;
    if (a->to != b->to)
        return a->to - b->to;
    if (a->channel != b->channel)
        return a->channel - b->channel;
    if (a->seq != b->seq)
        return a->seq - b->seq;
    return (int)b->send - (int)a->send; // the send first
}

// Calls fn for each communication op of one rank, in issue order.
typedef int visit_fn(void *arg, const struct program *p, const struct op *op, struct err *e);
static int visit_comm(const struct program *p, visit_fn *fn, void *arg, struct err *e) {
    for (int i = 0; i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++)
            if (op_info(seg->ops[k].kind)->category == CAT_COMM)
                TRY(fn(arg, p, &seg->ops[k], e));
    }
    return 0;
}

struct post {
    struct message *list;
    size_t n, capacity;
};

static int collect_message(void *arg, const struct program *p, const struct op *op, struct err *e) {
    struct post *post = arg;
    if (op->kind != OP_SEND && op->kind != OP_RECV)
        return 0;
    if (!array_room(&post->list, post->n, 1, &post->capacity, sizeof *post->list, 16))
        return err_set(e, ERR_MEMORY, "out of memory while checking messages");
    bool send = op->kind == OP_SEND;
    const struct tensor *t = &p->tensors[send ? op->in[0] : op->out[0]];
    post->list[post->n] =
        (struct message){.from = send ? p->rank : op->peer,
                         .to = send ? op->peer : p->rank,
                         .channel = op->channel,
                         .seq = (int)post->n,
                         .bytes = (uint64_t)tensor_elements(t) * dtype_bytes(t->dtype),
                         .send = send};
    post->n++;
    return 0;
}

// Replaces the running numbers by numbers within each (from, to, channel, direction).
static void number_messages(struct message *m, size_t n) {
    qsort(m, n, sizeof *m, by_channel);
    for (size_t i = 0; i < n;) {
        int next[2] = {0, 0};
        size_t first = i;
        for (; i < n && m[i].from == m[first].from && m[i].to == m[first].to &&
               m[i].channel == m[first].channel;
             i++)
            m[i].seq = next[m[i].send]++;
    }
    qsort(m, n, sizeof *m, by_channel);
}

static int check_messages(const struct message *m, size_t n, struct err *e) {
    for (size_t i = 0; i < n; i += 2) {
        bool paired = i + 1 < n && m[i].send && !m[i + 1].send && m[i].from == m[i + 1].from &&
                      m[i].to == m[i + 1].to && m[i].channel == m[i + 1].channel &&
                      m[i].seq == m[i + 1].seq;
        if (!paired)
            return err_set(e, ERR_INTERNAL,
                           "message %d of channel %d from rank %d to rank %d has no %s", m[i].seq,
                           m[i].channel, m[i].from, m[i].to, m[i].send ? "receive" : "send");
        if (m[i].bytes != m[i + 1].bytes)
            return err_set(
                e, ERR_INTERNAL,
                "message %d of channel %d from rank %d to rank %d: %llu bytes sent, %llu received",
                m[i].seq, m[i].channel, m[i].from, m[i].to, (unsigned long long)m[i].bytes,
                (unsigned long long)m[i + 1].bytes);
    }
    return 0;
}

// Collectives: the k-th collective of a group must be the same on all ranks of the group. Groups
// are matched across ranks by their members.
struct roll {
    const struct comm_group *group;
    uint64_t digest;
    int count;
};

static int digest_collective(void *arg, const struct program *p, const struct op *op,
                             struct err *e) {
    struct roll *roll = arg;
    (void)e;
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->group < 0 ||
        !group_same(&p->groups[op->group], roll->group))
        return 0;
    const struct tensor *t = &p->tensors[op->kind == OP_ALL_GATHER ? op->out[0] : op->in[0]];
    uint64_t word =
        ((uint64_t)op->kind << 56) ^ ((uint64_t)t->dtype << 48) ^ (uint64_t)tensor_elements(t);
    // Fibonacci hashing: the digest depends on the order.
    roll->digest = (roll->digest ^ word) * 0x9E3779B97F4A7C15u + 1;
    roll->count++;
    return 0;
}

static int check_collectives(struct program *const *programs, int n, struct err *e) {
    for (int i = 0; i < n; i++)
        for (int g = 0; g < programs[i]->n_groups; g++) {
            const struct comm_group *group = &programs[i]->groups[g];
            struct roll mine = {.group = group};
            TRY(visit_comm(programs[i], digest_collective, &mine, e));
            for (int k = 0; k < group->n_ranks; k++) {
                int other = group->ranks[k];
                if (other < 0 || other >= n)
                    return err_set(e, ERR_INTERNAL, "group '%s' names rank %d; there are %d ranks",
                                   group->name, other, n);
                struct roll theirs = {.group = group};
                TRY(visit_comm(programs[other], digest_collective, &theirs, e));
                if (theirs.digest != mine.digest || theirs.count != mine.count)
                    return err_set(e, ERR_INTERNAL,
                                   "ranks %d and %d issue different collectives in group '%s' (%d "
                                   "and %d of them)",
                                   programs[i]->rank, other, group->name, mine.count, theirs.count);
            }
        }
    return 0;
}

int check_world(struct program *const *programs, int n, struct err *e) {
    struct post post = {0};
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = visit_comm(programs[i], collect_message, &post, e);
    if (rc == 0 && post.n) {
        number_messages(post.list, post.n);
        rc = check_messages(post.list, post.n, e);
    }
    free(post.list);
    if (rc != 0)
        return rc;
    return check_collectives(programs, n, e);
}
