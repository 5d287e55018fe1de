// check.c - see check.h. Each check walks the program itself; none shares a shortcut with what it
// checks.
#include "program/check.h"
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
                    return err_set(e, ERR_INTERNAL, "op %d '%s' of '%s' names tensor %d of %d", i,
                                   op_info(op->kind)->name, p->segments[s].name, t, p->n_tensors);
            }
            for (int a = 0; a < op->n_wait; a++)
                if (op->wait[a] < 0 || op->wait[a] >= p->n_events)
                    return err_set(e, ERR_INTERNAL, "op %d of '%s' waits for event %d of %d", i,
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

// Every read was written: per copy of a transient tensor, remember which life wrote it.
static int check_reads(const struct program *p, const struct walk *w, struct err *e) {
    int max_slots = 1, rc = 0;
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].slots > max_slots)
            max_slots = p->tensors[t].slots;
    long *written = malloc(sizeof *written * ((size_t)p->n_tensors * (size_t)max_slots + 1));
    if (!written)
        return err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    for (int i = 0; i < p->n_tensors * max_slots; i++)
        written[i] = -1;
    struct op_access access[OP_MAX_IN + OP_MAX_OUT];
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
                    rc = err_set(e, ERR_INTERNAL, "'%s' has %d slots but '%s' runs on slot %d",
                                 t->name, t->slots, seg->name, slot);
                    break;
                }
                long *at = &written[access[a].tensor * max_slots + slot];
                if ((access[a].how & OP_READ) && *at != owner)
                    rc = err_set(
                        e, ERR_INTERNAL,
                        "op %d '%s' of '%s' (micro-batch %d) reads '%s', which nothing wrote", k,
                        op_info(seg->ops[k].kind)->name, seg->name, entry->micro, t->name);
                if (access[a].how & OP_WRITE)
                    *at = owner;
            }
        }
    }
    free(written);
    return rc;
}

// Every access is ordered after the accesses it depends on, over the whole order: a read after the
// latest write, a write after the latest write and the reads since.
struct recent {
    int write_stream, write_index; // index 0: none
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
                       "op %d '%s' of '%s' touches '%s' without waiting for the %s stream",
                       step->op, op_info(op->kind)->name, p->segments[step->segment].name,
                       p->tensors[a->tensor].name, op_stream_name((enum op_stream)late));
    if (a->how & OP_WRITE)
        *r = (struct recent){.write_stream = (int)op->stream, .write_index = step->index};
    else
        r->read_index[op->stream] = step->index;
    return 0;
}

static int check_order(const struct program *p, const struct walk *w, struct err *e) {
    int max_slots = 1, rc = 0;
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].slots > max_slots)
            max_slots = p->tensors[t].slots;
    struct recent *all = calloc((size_t)p->n_tensors * (size_t)max_slots + 1, sizeof *all);
    if (!all)
        rc = err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    struct op_access access[OP_MAX_IN + OP_MAX_OUT];
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

// A weight of 16 bits that trains without a master loses every update below its last bit.
static int check_masters(const struct program *p, struct err *e) {
    for (int s = 0; s < p->n_segments; s++)
        for (int k = 0; k < p->segments[s].n_ops; k++) {
            const struct op *op = &p->segments[s].ops[k];
            if (op->kind != OP_ADAMW && op->kind != OP_ADAMW_BF16 && op->kind != OP_ADAMW_INT8)
                continue;
            const struct tensor *w = &p->tensors[op->out[0]];
            bool narrow = op_wide_type(w->dtype) != w->dtype,
                 has = op->n_out > 3 && op->out[3] >= 0;
            if (narrow != has || (has && w->master != op->out[3]))
                return err_set(e, ERR_INTERNAL, "the weight '%s' (%s) is updated %s a master",
                               w->name, dtype_text(w->dtype), has ? "with" : "without");
        }
    return 0;
}

int check_program(const struct program *p, struct err *e) {
    TRY(check_indices(p, e));
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

struct range { // bytes of one copy, with its lives
    uint64_t begin, end;
    const struct life *life;
    int n_lives;
};

static int by_begin(const void *pa, const void *pb) {
    const struct range *a = pa, *b = pb;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static int check_pair(const struct program *p, const struct range *a, const struct range *b,
                      struct err *e) {
    int i, j;
    if (!lives_meet(a->life, a->n_lives, b->life, b->n_lives, &i, &j))
        return 0;
    return err_set(e, ERR_INTERNAL,
                   "'%s' (slot %d) and '%s' (slot %d) share bytes while both are alive",
                   p->tensors[a->life[i].tensor].name, a->life[i].slot,
                   p->tensors[b->life[j].tensor].name, b->life[j].slot);
}

// Lives of one copy follow one another: what lives_meet rests on.
static int check_succession(const struct program *p, const struct range *r, struct err *e) {
    for (int i = 1; i < r->n_lives; i++)
        if (!life_before(&r->life[i - 1], &r->life[i]))
            return err_set(e, ERR_INTERNAL, "'%s' (slot %d) is used again before it was free",
                           p->tensors[r->life[i].tensor].name, r->life[i].slot);
    return 0;
}

static int check_persistent(const struct program *p, uint64_t arena_bytes, struct range *ranges,
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
            ranges[n++] = (struct range){t->offset[0], t->offset[0] + t->bytes, NULL, i};
    }
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
    for (int i = 1; i < n; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            return err_set(e, ERR_INTERNAL, "persistent tensors '%s' and '%s' share bytes",
                           p->tensors[ranges[i - 1].n_lives].name,
                           p->tensors[ranges[i].n_lives].name);
    uint64_t persistent_end = n ? ranges[n - 1].end : 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        for (int s = 0; t->life != LIFE_RUN && t->root < 0 && s < t->slots; s++)
            if (t->bytes && t->offset[s] < persistent_end)
                return err_set(e, ERR_INTERNAL, "'%s' lies among the persistent tensors", t->name);
    }
    return 0;
}

int check_layout(const struct program *p, uint64_t arena_bytes, struct err *e) {
    struct walk w = {0};
    struct lives l = {0};
    int rc = walk_make(&w, p, true, e), n = 0;
    if (rc == 0)
        rc = lives_make(&l, p, &w, e);
    struct range *ranges = calloc((size_t)l.n + (size_t)p->n_tensors + 1, sizeof *ranges);
    if (rc == 0 && !ranges)
        rc = err_set(e, ERR_MEMORY, "out of memory while checking '%s'", p->name);
    if (rc == 0)
        rc = check_persistent(p, arena_bytes, ranges, e);
    for (int i = 0; rc == 0 && i < l.n;) {
        const struct tensor *t = &p->tensors[l.life[i].tensor];
        int first = i, slot = l.life[i].slot;
        while (i < l.n && l.life[i].tensor == l.life[first].tensor && l.life[i].slot == slot)
            i++;
        ranges[n++] =
            (struct range){t->offset[slot], t->offset[slot] + t->bytes, &l.life[first], i - first};
    }
    if (rc == 0)
        qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = check_succession(p, &ranges[i], e);
    for (int i = 0; rc == 0 && i < n; i++)
        for (int j = i + 1; rc == 0 && j < n && ranges[j].begin < ranges[i].end; j++)
            if (ranges[j].end > ranges[j].begin)
                rc = check_pair(p, &ranges[i], &ranges[j], e);
    free(ranges);
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

// Visits the communication ops of one rank in issue order.
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
    if (post->n == post->capacity) {
        post->capacity = post->capacity ? 2 * post->capacity : 256;
        struct message *grown = realloc(post->list, sizeof *grown * post->capacity);
        if (!grown)
            return err_set(e, ERR_MEMORY, "out of memory while checking messages");
        post->list = grown;
    }
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

// Turns the running numbers into numbers within each (from, to, channel, side).
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

// Collectives: the k-th of a group must be the same on all its ranks. Group names identify groups
// across ranks.
struct roll {
    const char *group;
    uint64_t digest;
    int count;
};

static int digest_collective(void *arg, const struct program *p, const struct op *op,
                             struct err *e) {
    struct roll *roll = arg;
    (void)e;
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->group < 0 ||
        strcmp(p->groups[op->group].name, roll->group) != 0)
        return 0;
    const struct tensor *t = &p->tensors[op->kind == OP_ALL_GATHER ? op->out[0] : op->in[0]];
    uint64_t word =
        ((uint64_t)op->kind << 56) ^ ((uint64_t)t->dtype << 48) ^ (uint64_t)tensor_elements(t);
    roll->digest =
        (roll->digest ^ word) * 0x9E3779B97F4A7C15u + 1; // Fibonacci hashing: order matters
    roll->count++;
    return 0;
}

static int check_collectives(struct program *const *programs, int n, struct err *e) {
    for (int i = 0; i < n; i++)
        for (int g = 0; g < programs[i]->n_groups; g++) {
            const struct comm_group *group = &programs[i]->groups[g];
            struct roll mine = {.group = group->name};
            TRY(visit_comm(programs[i], digest_collective, &mine, e));
            for (int k = 0; k < group->n_ranks; k++) {
                int other = group->ranks[k];
                if (other < 0 || other >= n)
                    return err_set(e, ERR_INTERNAL, "group '%s' names rank %d of %d", group->name,
                                   other, n);
                struct roll theirs = {.group = group->name};
                TRY(visit_comm(programs[other], digest_collective, &theirs, e));
                if (theirs.digest != mine.digest || theirs.count != mine.count)
                    return err_set(
                        e, ERR_INTERNAL,
                        "ranks %d and %d issue different collectives in group '%s' (%d and %d)",
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
