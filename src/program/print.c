// print.c - see print.h. If a layer repeats the layer before it (same kinds, same sizes), its ops
// are not printed again.
#include "program/print.h"
#include "base/text.h"

#include <inttypes.h>
#include <string.h>

static void print_operands(const struct program *p, FILE *f, const int *list, int n) {
    for (int i = 0, first = 1; i < n; i++)
        if (list[i] >= 0) {
            fprintf(f, "%s%s", first ? "" : ", ", p->tensors[list[i]].name);
            first = 0;
        }
}

static void print_sizes(FILE *f, const struct op *op) {
    if (op->seq)
        fprintf(f, " [%" PRId64 "x%" PRId64 ", %" PRId64 "/%" PRId64 " heads of %" PRId64 "]",
                op->batch, op->seq, op->heads, op->kv_heads, op->head_dim);
    else if (op->k && op->m)
        fprintf(f, " [%" PRId64 "x%" PRId64 "x%" PRId64 "]", op->m, op->n, op->k);
    else if (op->m && op->n)
        fprintf(f, " [%" PRId64 "x%" PRId64 "]", op->m, op->n);
    else if (op->n)
        fprintf(f, " [%" PRId64 "]", op->n);
}

static void print_flags(FILE *f, const struct op *op) {
    static const struct {
        unsigned flag;
        const char *text;
    } names[] = {{OP_ACCUMULATE, "accumulate"},
                 {OP_IN_OUT, "in_out"},
                 {OP_RMS, "rms"},
                 {OP_INVERSE, "inverse"},
                 {OP_WITH_GRAD, "with_grad"},
                 {OP_DECAY, "decay"},
                 {OP_AGAIN, "again"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (op->flags & names[i].flag)
            fprintf(f, " %s", names[i].text);
}

static void print_op(const struct program *p, FILE *f, int index, const struct op *op) {
    struct op_cost c = op_cost_of(p, op);
    char flops[TEXT_UNIT_BYTES], bytes[TEXT_UNIT_BYTES];
    fprintf(f, "    %4d  ", index);
    if (op->stream != STREAM_COMPUTE)
        fprintf(f, "(%s) ", op_stream_name(op->stream));
    if (op->n_out) {
        print_operands(p, f, op->out, op->n_out);
        fprintf(f, " = ");
    }
    fprintf(f, "%s(", op_info(op->kind)->name);
    print_operands(p, f, op->in, op->n_in);
    fprintf(f, ")");
    print_sizes(f, op);
    print_flags(f, op);
    if (op->peer >= 0)
        fprintf(f, " %s rank %d, channel %d", op->kind == OP_SEND ? "to" : "from", op->peer,
                op->channel);
    if (op->group >= 0)
        fprintf(f, " over '%s'", p->groups[op->group].name);
    if (c.flops >= 1e6)
        fprintf(f, "  %sFLOP", text_count(flops, c.flops));
    fprintf(f, "  %s", text_bytes(bytes, (uint64_t)c.bytes));
    for (int i = 0; i < op->n_wait; i++)
        fprintf(f, "%s%d", i ? "," : "  waits ", op->wait[i]);
    if (op->record >= 0)
        fprintf(f, "  records %d", op->record);
    fprintf(f, "\n");
}

static bool same_op(const struct op *a, const struct op *b) {
    return a->kind == b->kind && a->flags == b->flags && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->stream == b->stream && a->n_in == b->n_in && a->n_out == b->n_out;
}

// Returns the end of the run of ops from `at` that have the same layer index.
static int layer_end(const struct segment *s, int at) {
    int end = at;
    while (end < s->n_ops && s->ops[end].layer == s->ops[at].layer)
        end++;
    return end;
}

static bool repeats(const struct segment *s, int at, int end, int next) {
    int next_end = next < s->n_ops ? layer_end(s, next) : next;
    if (next_end - next != end - at || next == next_end)
        return false;
    for (int i = 0; i < end - at; i++)
        if (!same_op(&s->ops[at + i], &s->ops[next + i]))
            return false;
    return true;
}

static void print_segment(const struct program *p, FILE *f, int index, bool full) {
    const struct segment *s = &p->segments[index];
    double flops = 0, bytes = 0;
    int runs = 0;
    for (int i = 0; i < p->n_order; i++)
        runs += p->order[i].segment == index;
    for (int i = 0; i < s->n_ops; i++) {
        struct op_cost c = op_cost_of(p, &s->ops[i]);
        flops += c.flops, bytes += c.bytes;
    }
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f, "  segment %-16s %4d ops, %sFLOP, %s moved, runs %d x\n", s->name, s->n_ops,
            text_count(a, flops), text_bytes(b, (uint64_t)bytes), runs);
    for (int at = 0; at < s->n_ops;) {
        int end = full ? at + 1 : layer_end(s, at), next = end, skipped = 0;
        for (int i = at; i < end; i++)
            print_op(p, f, i, &s->ops[i]);
        while (!full && repeats(s, at, end, next)) {
            next = layer_end(s, next);
            skipped++;
        }
        if (skipped)
            fprintf(f, "          ... and the same for %d more layer%s\n", skipped,
                    skipped > 1 ? "s" : "");
        at = next;
    }
}

static void print_order(const struct program *p, FILE *f) {
    fprintf(f, "  order (%d entries):", p->n_order);
    int shown = p->n_order > 24 ? 12 : p->n_order;
    for (int i = 0; i < shown; i++)
        fprintf(f, " %s(%d,%d)", p->segments[p->order[i].segment].name, p->order[i].micro,
                p->order[i].slot);
    if (shown < p->n_order)
        fprintf(f, " ... %s(%d,%d)", p->segments[p->order[p->n_order - 1].segment].name,
                p->order[p->n_order - 1].micro, p->order[p->n_order - 1].slot);
    fprintf(f, "\n");
}

static void print_tensors(const struct program *p, FILE *f) {
    static const char *const lives[] = {"run", "turn", "slot", "segment"};
    fprintf(f, "  tensors:\n");
    for (int i = 0; i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        char b[TEXT_UNIT_BYTES];
        char kept[STORAGE_TEXT_BYTES];
        fprintf(f, "    %-48s %-5s %-12s %-8s", t->name,
                storage_plain(t->storage) ? dtype_text(t->dtype) : storage_text(t->storage, kept),
                tensor_class_name(t->cls), lives[t->life]);
        for (int k = 0; k < t->rank; k++)
            fprintf(f, "%s%" PRId64, k ? "x" : " ", t->local[k]);
        if (t->root >= 0)
            fprintf(f, "  in %s", p->tensors[t->root].name);
        else
            fprintf(f, "  %s", text_bytes(b, t->bytes));
        if (t->slots > 1)
            fprintf(f, " x %d slots", t->slots);
        if (t->offset)
            fprintf(f, "  at %" PRIu64, t->offset[0]);
        fprintf(f, "\n");
    }
}

int program_print(const struct program *p, FILE *f, const struct print_options *o, struct err *e) {
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    fprintf(f, "program %s: %" PRId64 " x %" PRId64 " tokens x %d micro-batch%s", p->name, p->batch,
            p->seq, p->micro_batches, p->micro_batches > 1 ? "es" : "");
    if (p->world > 1)
        fprintf(f, ", rank %d of %d", p->rank, p->world);
    fprintf(f, "\n");
    for (int i = 0; i < p->n_segments; i++)
        if (p->segments[i].n_ops > 0)
            print_segment(p, f, i, o && o->full);
    print_order(p, f);
    if (p->transient_bytes)
        fprintf(f, "  transient tensors: %s after layout, at most %s alive at once\n",
                text_bytes(a, p->transient_bytes), text_bytes(b, p->live_bytes));
    if (o && o->tensors)
        print_tensors(p, f);
    return ferror(f) ? err_set(e, ERR_IO, "the program could not be printed") : 0;
}

void program_print_layout(const struct layout *l, FILE *f) {
    char b[TEXT_UNIT_BYTES];
    for (int c = 0; c < CLASS_COUNT; c++)
        if (l->by_class[c])
            fprintf(f, "  %-14s %12s\n", tensor_class_name((enum tensor_class)c),
                    text_bytes(b, l->by_class[c]));
    fprintf(f, "  %-14s %12s   alignment and holes\n", "slack", text_bytes(b, l->slack_bytes));
    fprintf(f, "  %-14s %12s   (%" PRIu64 " bytes)\n", "arena", text_bytes(b, l->arena_bytes),
            l->arena_bytes);
    program_print_held(l, f, "");
}

void program_print_held(const struct layout *l, FILE *f, const char *gap) {
    char b[TEXT_UNIT_BYTES];
    if (l->held_bytes)
        fprintf(f, "  %-14s %12s%s   of the arena, kept during a request (%" PRIu64 " bytes)\n",
                "held", text_bytes(b, l->held_bytes), gap, l->held_bytes);
}

void program_put_json(const struct program *p, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_string(w, "name", p->name);
    json_member_i64(w, "batch", p->batch);
    json_member_i64(w, "seq", p->seq);
    json_member_i64(w, "micro_batches", p->micro_batches);
    json_member_i64(w, "transient_bytes", (int64_t)p->transient_bytes);
    json_member_i64(w, "live_bytes", (int64_t)p->live_bytes);
    json_member_array(w, "segments");
    for (int i = 0; i < p->n_segments; i++) {
        const struct segment *s = &p->segments[i];
        if (s->n_ops == 0)
            continue;
        json_put_object_begin(w);
        json_member_string(w, "name", s->name);
        json_member_array(w, "ops");
        for (int k = 0; k < s->n_ops; k++) {
            struct op_cost c = op_cost_of(p, &s->ops[k]);
            json_put_object_begin(w);
            json_member_string(w, "op", op_info(s->ops[k].kind)->name);
            json_member_string(w, "stream", op_stream_name(s->ops[k].stream));
            json_member_i64(w, "layer", s->ops[k].layer);
            json_member_double(w, "flops", c.flops);
            json_member_double(w, "bytes", c.bytes);
            json_put_object_end(w);
        }
        json_put_array_end(w);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_put_object_end(w);
}

void program_put_layout_json(const struct layout *l, struct json_writer *w) {
    json_put_object_begin(w);
    json_member_i64(w, "arena_bytes", (int64_t)l->arena_bytes);
    json_member_i64(w, "persistent_bytes", (int64_t)l->persistent_bytes);
    json_member_i64(w, "held_bytes", (int64_t)l->held_bytes);
    json_member_i64(w, "transient_bytes", (int64_t)l->transient_bytes);
    json_member_object(w, "by_class");
    for (int c = 0; c < CLASS_COUNT; c++)
        json_member_i64(w, tensor_class_name((enum tensor_class)c), (int64_t)l->by_class[c]);
    json_member_i64(w, "slack", (int64_t)l->slack_bytes);
    json_put_object_end(w);
    json_put_object_end(w);
}

int program_write_ops_markdown(FILE *f, struct err *e) {
    fprintf(f, "# Operations\n\nEvery operation a program can hold. This page is generated from "
               "src/program/ops.def by "
               "`make docs`.\n\n| op | category | inputs | outputs | what it computes "
               "|\n|---|---|---|---|---|\n");
    for (int i = 0; i < OP_COUNT; i++) {
        const struct op_info *o = op_info((enum op_kind)i);
        fprintf(f, "| `%s` | %s | %s | %s | %s |\n", o->name, op_category_name(o->category),
                o->in[0] ? o->in : "-", o->out[0] ? o->out : "-", o->what);
    }
    fprintf(f, "\nA name in brackets is optional; `x!` is read and also overwritten.\n");
    return ferror(f) ? err_set(e, ERR_IO, "the table of operations could not be written") : 0;
}
