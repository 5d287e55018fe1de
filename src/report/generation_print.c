// generation_print.c - see generation_print.h.
#include "report/generation_print.h"

#include "base/text.h"
#include "program/print.h"

#include <inttypes.h>
#include <string.h>

// Weights that are stored alike. Plain ones by their element type.
struct kept {
    int n;
    int64_t elements;
    uint64_t bytes;
    char name[STORAGE_TEXT_BYTES];
};
enum { WAYS = STORAGE_CODES + 1 + DTYPE_COUNT };

// Every program of a set has every weight. Returns how many ways there are.
static int sum_weights(const struct plan *p, struct kept out[WAYS]) {
    const struct program *all = p->programs[0];
    int n = 0;
    for (int i = 0; i < all->n_tensors; i++) {
        const struct tensor *t = &all->tensors[i];
        char name[STORAGE_TEXT_BYTES];
        int at = 0;
        if (t->cls != CLASS_WEIGHT || t->root >= 0)
            continue;
        if (storage_plain(t->storage))
            snprintf(name, sizeof name, "%s", dtype_text(t->dtype));
        else
            storage_text(t->storage, name);
        while (at < n && strcmp(out[at].name, name) != 0)
            at++;
        if (at == n) {
            if (n == WAYS)
                continue;
            out[n] = (struct kept){0};
            snprintf(out[n++].name, sizeof name, "%s", name);
        }
        out[at].n++;
        out[at].elements += tensor_elements(t);
        out[at].bytes += t->bytes;
    }
    return n;
}

int generation_print(const struct plan *p, const struct plan_check *c, enum plan_detail detail,
                     FILE *f, struct err *e) {
    const struct print_options o = {.full = detail == PLAN_FULL, .tensors = detail == PLAN_FULL};
    struct kept kept[WAYS];
    char bytes[TEXT_UNIT_BYTES], count[TEXT_UNIT_BYTES];
    const int n = sum_weights(p, kept);
    plan_print_model(f, p);
    for (int i = 0; i < n; i++)
        fprintf(f, "%-8s %-16s %5d tensors %9s elements %12s\n", i == 0 ? "weights" : "",
                kept[i].name, kept[i].n, text_count(count, (double)kept[i].elements),
                text_bytes(bytes, kept[i].bytes));
    fprintf(f,
            "runs     a quantized model makes texts and is scored; it cannot be trained\n"
            "texts    %" PRId64 " sequence%s with a cache of %" PRId64
            " tokens, %s; turns of up to "
            "%" PRId64 " tokens\n",
            p->extend.sequences, p->extend.sequences == 1 ? "" : "s", p->extend.context,
            text_bytes(bytes, p->layout.by_class[CLASS_KV]), p->extend.rows);
    plan_print_memory(f, p, c, false);
    for (int i = 0; detail != PLAN_BRIEF && i < p->n_programs; i++) {
        fprintf(f, "\n");
        TRY(program_print(p->programs[i], f, &o, e));
    }
    return 0;
}

void generation_put_json(const struct plan *p, const struct plan_check *c, struct json_writer *w) {
    struct kept kept[WAYS];
    const int n = sum_weights(p, kept);
    json_member_object(w, "generation");
    json_member_i64(w, "sequences", p->extend.sequences);
    json_member_i64(w, "context", p->extend.context);
    json_member_i64(w, "cache_bytes", (int64_t)p->layout.by_class[CLASS_KV]);
    json_member_array(w, "weights");
    for (int i = 0; i < n; i++) {
        json_put_object_begin(w);
        json_member_string(w, "stored", kept[i].name);
        json_member_i64(w, "tensors", kept[i].n);
        json_member_i64(w, "elements", kept[i].elements);
        json_member_i64(w, "bytes", (int64_t)kept[i].bytes);
        json_put_object_end(w);
    }
    json_put_array_end(w);
    json_member_i64(w, "arena_bytes", (int64_t)plan_arena_bytes(p));
    json_member_i64(w, "need_bytes", (int64_t)plan_need_bytes(p, c->on_device));
    json_put_object_end(w);
}
