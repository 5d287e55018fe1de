// print_again.c - what the backward computes again (recompute.c), for people and programs. One line
// per kind of tensor, with the bytes saved by not keeping it and the cost of computing it again.
#include "program/print.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct again {
    char name[96];  // without the layer
    int n;          // number of ops
    uint64_t bytes; // of the recomputed tensors, over all layers
    double flops;
};
enum { MAX_AGAIN = 64 };

// Makes "norm1" from "h.3.norm1.again", which is norm1 of layer 3.
static void base_name(const char *twin, char out[96]) {
    const char *from = twin;
    if (strncmp(from, "h.", 2) == 0 && strchr(from + 2, '.'))
        from = strchr(from + 2, '.') + 1;
    snprintf(out, 96, "%.95s", from);
    size_t n = strlen(out), tail = strlen(".again");
    if (n > tail && strcmp(out + n - tail, ".again") == 0)
        out[n - tail] = '\0';
}

static void add_op(const struct program *p, const struct op *op, struct again *list, int *n) {
    char name[96];
    int at = 0;
    base_name(p->tensors[op->out[0]].name, name);
    while (at < *n && strcmp(list[at].name, name) != 0)
        at++;
    if (at == MAX_AGAIN)
        return;
    if (at == *n)
        snprintf(list[(*n)++].name, sizeof list->name, "%s", name);
    list[at].n++;
    list[at].flops += op_cost_of(p, op).flops;
    for (int i = 0; i < op->n_out; i++)
        list[at].bytes += p->tensors[program_root(p, op->out[i])].bytes;
}

// Lists the ops of the first variant of each chunk's backward. The other variants run the same ops.
static int list_again(const struct program *p, struct again list[MAX_AGAIN]) {
    int n = 0;
    bool seen[64] = {false};
    for (int s = 0; s < p->n_segments; s++) {
        const struct segment *seg = &p->segments[s];
        if (seg->role != SEGMENT_BACKWARD || seg->n_ops == 0 || seg->chunk >= 64 ||
            seen[seg->chunk])
            continue;
        seen[seg->chunk] = true;
        for (int k = 0; k < seg->n_ops; k++)
            if (seg->ops[k].flags & OP_AGAIN)
                add_op(p, &seg->ops[k], list, &n);
    }
    return n;
}

void program_print_again(const struct program *p, FILE *f) {
    struct again list[MAX_AGAIN] = {0};
    int n = list_again(p, list);
    char a[TEXT_UNIT_BYTES], b[TEXT_UNIT_BYTES];
    if (n == 0)
        return;
    fprintf(f, "\nrecomputed in the backward, per micro-batch\n");
    for (int i = 0; i < n; i++)
        fprintf(f, "  %-12s %4d x %10s  %10sFLOP  %8.3g bytes/FLOP\n", list[i].name, list[i].n,
                text_bytes(a, list[i].bytes / (uint64_t)list[i].n), text_count(b, list[i].flops),
                list[i].flops > 0 ? (double)list[i].bytes / list[i].flops : 0);
}

void program_put_again_json(const struct program *p, struct json_writer *w) {
    struct again list[MAX_AGAIN] = {0};
    int n = list_again(p, list);
    json_member_array(w, "recomputed");
    for (int i = 0; i < n; i++) {
        json_put_object_begin(w);
        json_member_string(w, "tensor", list[i].name);
        json_member_i64(w, "count", list[i].n);
        json_member_i64(w, "bytes", (int64_t)list[i].bytes);
        json_member_double(w, "flops", list[i].flops);
        json_put_object_end(w);
    }
    json_put_array_end(w);
}
