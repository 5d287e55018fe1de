// snapshot.c - see snapshot.h.
#include "train/snapshot.h"

#include "base/file.h"
#include "model/safetensors.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

// Upper bounds. ENTRY_BYTES: a tensor's entry in a file's header, without its name. HEADER_BYTES:
// the header without its entries.
enum { ENTRY_BYTES = 224, HEADER_BYTES = 256 };

// Indices of tensors of the training program. The two differ for a trainable 16-bit weight: the
// bytes are its float32 master's, the name is the weight's.
struct item {
    int tensor; // its bytes are stored
    int named;  // under this tensor's name
};

struct list {
    const struct program *p;
    struct item *items;
    int n_model, n; // the first n_model belong in the model file
};

// Whether a run needs this tensor to resume. A weight with a master is not stored: it is the
// master, rounded.
static bool belongs(const struct program *p, int index) {
    const struct tensor *t = &p->tensors[index];
    return t->life == LIFE_RUN && program_logical(p, index) && t->master < 0 &&
           (t->cls == CLASS_WEIGHT || t->cls == CLASS_OPTIMIZER);
}

static int list_tensors(const struct plan *plan, struct list *l, struct err *e) {
    *l = (struct list){.p = plan_program(plan, PLAN_TRAIN)};
    if (l->p == NULL)
        return err_set(e, ERR_INTERNAL, "a checkpoint needs a plan that trains");
    bool *taken = calloc((size_t)l->p->n_tensors + 1, sizeof *taken);
    l->items = calloc((size_t)l->p->n_tensors + 1, sizeof *l->items);
    int rc = 0;
    if (taken == NULL || l->items == NULL)
        rc = err_set(e, ERR_MEMORY, "no memory for the list of a checkpoint's tensors");
    struct model_param param;
    for (int64_t i = 0; rc == 0 && model_param_at(&plan->shape, i, &param); i++) {
        int named = program_find(l->p, param.name);
        int t =
            named >= 0 && l->p->tensors[named].master >= 0 ? l->p->tensors[named].master : named;
        if (t < 0 || !belongs(l->p, t) || taken[t]) {
            rc = err_set(e, ERR_INTERNAL, "the training program has no weight '%s'", param.name);
            break;
        }
        taken[t] = true;
        l->items[l->n++] = (struct item){t, named};
    }
    l->n_model = l->n;
    for (int t = 0; rc == 0 && t < l->p->n_tensors; t++) {
        if (!belongs(l->p, t) || taken[t])
            continue;
        l->items[l->n++] = (struct item){t, t};
    }
    for (int i = 0; rc == 0 && i < l->n; i++) {
        const struct tensor *tensor = &l->p->tensors[l->items[i].tensor];
        if (l->p->world > 1)
            rc = err_set(e, ERR_UNSUPPORTED,
                         "'%s' is sharded over ranks; such a run cannot save checkpoints yet",
                         tensor->name);
    }
    free(taken);
    if (rc != 0) {
        free(l->items);
        l->items = NULL;
    }
    return rc;
}

static uint64_t bytes_of(const struct tensor *t) {
    return (uint64_t)tensor_elements(t) * dtype_bytes(t->dtype);
}

uint64_t snapshot_bytes(const struct plan *plan) {
    const struct program *p = plan_program(plan, PLAN_TRAIN);
    uint64_t bytes = (uint64_t)2 * HEADER_BYTES;
    for (int i = 0; p != NULL && i < p->n_tensors; i++)
        if (belongs(p, i))
            bytes += bytes_of(&p->tensors[i]) + strlen(p->tensors[i].name) + ENTRY_BYTES;
    return bytes;
}

// ---------------------------------------------------------------- writing

static int put_tensor(struct session *s, struct safetensors_writer *w, int index, void *buffer,
                      const struct pause *between, struct err *e) {
    const struct tensor *t = &plan_program(s->plan, PLAN_TRAIN)->tensors[index];
    const int x = plan_find(s->plan, PLAN_TRAIN);
    const uint64_t all = bytes_of(t);
    const char *address = exec_host_address(s->exec, x, index);
    const uint64_t most = address != NULL ? SNAPSHOT_PIECE_BYTES : SNAPSHOT_BUFFER_BYTES;
    for (uint64_t at = 0; at < all; at += most) {
        const uint64_t n = all - at < most ? all - at : most;
        if (address == NULL)
            TRY(exec_read_part(s->exec, x, index, at, buffer, n, e));
        TRY(safetensors_writer_put(w, address != NULL ? address + at : buffer, (size_t)n, e));
        pause_let(between);
    }
    return 0;
}

// Closing makes the file durable. That waits for the disk and can take seconds, so it runs beside
// the pause.
struct closing {
    struct safetensors_writer *w;
    struct manifest_file *out;
};

static int close_file(void *arg, struct err *e) {
    const struct closing *c = arg;
    return safetensors_writer_close(c->w, c->out->hash, &c->out->bytes, e);
}

static int write_file(struct session *s, const char *path, const struct list *l, int begin, int end,
                      void *buffer, const struct pause *between, struct manifest_file *out,
                      struct err *e) {
    struct safetensors_writer *w;
    TRY(safetensors_writer_open(&w, path, e));
    int rc = 0;
    for (int i = begin; rc == 0 && i < end; i++) {
        const struct tensor *t = &l->p->tensors[l->items[i].tensor];
        const char *name = l->p->tensors[l->items[i].named].name;
        rc = safetensors_writer_declare(w, name, t->dtype, t->rank, t->local, e);
    }
    for (int i = begin; rc == 0 && i < end; i++)
        rc = put_tensor(s, w, l->items[i].tensor, buffer, between, e);
    if (rc == 0)
        rc = pause_beside(between, close_file, &(struct closing){w, out}, e);
    if (rc != 0)
        safetensors_writer_abort(w);
    return rc;
}

// ---------------------------------------------------------------- reading

static int get_tensor(struct session *s, struct safetensors *st,
                      const struct safetensors_entry *entry, int index, void *buffer,
                      struct err *e) {
    const struct tensor *t = &plan_program(s->plan, PLAN_TRAIN)->tensors[index];
    const int x = plan_find(s->plan, PLAN_TRAIN);
    const int64_t step = (int64_t)(SNAPSHOT_BUFFER_BYTES / dtype_bytes(t->dtype));
    void *address = exec_host_address(s->exec, x, index);
    if (address != NULL)
        return safetensors_read(st, entry, 0, entry->elements, address, t->dtype, e);
    for (int64_t at = 0; at < entry->elements; at += step) {
        int64_t n = entry->elements - at < step ? entry->elements - at : step;
        TRY(safetensors_read(st, entry, at, n, buffer, t->dtype, e));
        TRY(exec_write_part(s->exec, x, index, (uint64_t)at * dtype_bytes(t->dtype), buffer,
                            (uint64_t)n * dtype_bytes(t->dtype), e));
    }
    return 0;
}

static int check_entry(const char *path, const char *name, const struct tensor *t,
                       const struct safetensors_entry *entry, struct err *e) {
    if (entry == NULL)
        return err_set(e, ERR_MISMATCH, "%s lacks the tensor '%s'", path, name);
    if (entry->dtype != t->dtype)
        return err_set(e, ERR_MISMATCH, "%s holds '%s' as %s; this run has it as %s", path, name,
                       entry->dtype_name, dtype_safetensors(t->dtype));
    if (entry->rank != t->rank ||
        memcmp(entry->dims, t->local, (size_t)t->rank * sizeof *t->local) != 0)
        return err_set(e, ERR_MISMATCH, "%s holds '%s' with other dimensions than this run", path,
                       name);
    return 0;
}

static int read_file(struct session *s, const char *path, const struct list *l, int begin, int end,
                     void *buffer, struct err *e) {
    struct safetensors *st;
    TRY(safetensors_open(&st, path, e));
    int rc = 0;
    if (safetensors_count(st) != (size_t)(end - begin))
        rc = err_set(e, ERR_MISMATCH, "%s holds %zu tensors; this run has %d", path,
                     safetensors_count(st), end - begin);
    for (int i = begin; rc == 0 && i < end; i++) {
        const char *name = l->p->tensors[l->items[i].named].name;
        const struct safetensors_entry *entry = safetensors_find(st, name);
        rc = check_entry(path, name, &l->p->tensors[l->items[i].tensor], entry, e);
        if (rc == 0)
            rc = get_tensor(s, st, entry, l->items[i].tensor, buffer, e);
        if (rc == 0 && l->items[i].named != l->items[i].tensor) // the weight is its master, rounded
            rc = get_tensor(s, st, entry, l->items[i].named, buffer, e);
    }
    safetensors_close(st);
    return rc;
}

// ---------------------------------------------------------------- both files

// The model file, then the optimizer file. They are written if `out` is given, else read.
static int each_file(struct session *s, const char *dir, const struct pause *between,
                     struct manifest_file *out, struct err *e) {
    static const int ids[2] = {MANIFEST_MODEL, MANIFEST_OPTIMIZER};
    struct list l;
    char path[PATH_MAX];
    TRY(list_tensors(s->plan, &l, e));
    const int from[3] = {0, l.n_model, l.n};
    void *buffer = malloc(SNAPSHOT_BUFFER_BYTES);
    int rc = buffer != NULL ? 0 : err_set(e, ERR_MEMORY, "no memory for a checkpoint's buffer");
    for (int i = 0; rc == 0 && i < 2; i++) {
        rc = file_join(path, sizeof path, dir, manifest_file_name(ids[i]), e);
        if (rc == 0 && out)
            rc = write_file(s, path, &l, from[i], from[i + 1], buffer, between, &out[ids[i]], e);
        else if (rc == 0)
            rc = read_file(s, path, &l, from[i], from[i + 1], buffer, e);
    }
    free(buffer);
    free(l.items);
    return rc;
}

int snapshot_write(struct session *s, const char *dir, const struct pause *between,
                   struct manifest_file files[MANIFEST_FILES], struct err *e) {
    return each_file(s, dir, between, files, e);
}

int snapshot_read(struct session *s, const char *dir, struct err *e) {
    return each_file(s, dir, NULL, NULL, e);
}
