// snapshot.c - see snapshot.h.
//
// The files hold logical tensors, in an order that does not depend on how ranks share the work. So
// the same state is the same two files, byte for byte, and every layout reads what any other wrote.
// Ranks first tell each other what they hold. Then rank 0 makes each file, with room for all of it,
// and every rank writes its runs of elements to their places.
#include "train/snapshot.h"

#include "base/file.h"
#include "model/safetensors.h"
#include "train/moments_read.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Upper bounds. ENTRY_BYTES: a tensor's entry in a file's header, without its name. HEADER_BYTES:
// the header without its entries.
enum { ENTRY_BYTES = 224, HEADER_BYTES = 256, NAME_BYTES = 176 };

// A logical tensor of one of the two files, alike on every rank, so that ranks can tell each other.
struct entry {
    int64_t order; // of a model parameter; -1: not one
    int32_t dtype, rank;
    int64_t dims[TENSOR_MAX_RANK];
    char name[NAME_BYTES];
};

// What this rank has of it: indices of tensors of the training program. The two differ for a
// trainable 16-bit weight: the bytes are its float32 master's, the name is the weight's.
struct item {
    struct entry is;
    int tensor; // its bytes are stored; -1: another rank has them
    int named;  // the tensor of this name; -1: other ranks have it
    bool gives; // this rank writes its part of it
};

struct list {
    const struct program *p;
    struct comm *comm; // NULL: one rank
    bool int8;         // the run's optim.state
    struct item *items;
    int n_model, n; // the first n_model belong in the model file
};

// ---------------------------------------------------------------- what this rank has

// Whether a run needs this tensor to resume. A weight with a master is not stored: it is the
// master, rounded. Neither is the base of an adapter: the manifest names it.
static bool belongs(const struct plan *plan, const struct program *p, int index) {
    const struct tensor *t = &p->tensors[index];
    const bool base = plan->adapter.rank > 0 && !t->trainable && !t->adapter;
    return t->life == LIFE_RUN && program_logical(p, index) && t->master < 0 &&
           ((t->cls == CLASS_WEIGHT && !base) || t->cls == CLASS_OPTIMIZER);
}

// Under ZeRO another rank of the data axis may have the master, or this rank has a part of it.
static bool has_master(const struct tensor *w) {
    return w->trainable && op_wide_type(w->dtype) != w->dtype;
}

// Of what several ranks hold alike, the first of them gives it: of a tensor group, of the stages
// that share a weight, and of the replicas unless ZeRO deals it out to them.
static bool gives(const struct plan *plan, const struct tensor *t) {
    const struct apply_ranks *r = &plan->ranks;
    const bool dealt = r->zero == 3 || (r->zero > 0 && t->cls == CLASS_OPTIMIZER);
    return !t->replica && (dealt || r->mesh.at[AXIS_DATA] == 0);
}

static int fill_item(const struct plan *plan, const struct program *p, int64_t order, int named,
                     struct item *out, struct err *e) {
    const struct tensor *t = &p->tensors[named];
    const int tensor = order < 0 || !has_master(t) ? named : t->master;
    *out = (struct item){.tensor = tensor, .named = named};
    out->is.order = order;
    out->is.dtype = (int32_t)(tensor >= 0 ? p->tensors[tensor].dtype : op_wide_type(t->dtype));
    out->is.rank = tensor_whole(t, out->is.dims);
    if (out->is.rank == 3) { // scales of a slice: blocks of a row are one dimension (share_blocks)
        out->is.dims[0] *= out->is.dims[1];
        out->is.dims[1] = out->is.dims[2];
        out->is.dims[2] = 0;
        out->is.rank = 2;
    }
    out->gives = tensor >= 0 && gives(plan, &p->tensors[tensor]);
    const char *prefix = order >= 0 && plan->adapter.rank > 0 ? ADAPTER_PREFIX : "";
    if ((size_t)snprintf(out->is.name, sizeof out->is.name, "%s%s", prefix, t->name) >=
        sizeof out->is.name)
        return err_set(e, ERR_UNSUPPORTED, "the name '%.100s...' has more than %d characters",
                       t->name, NAME_BYTES - 1);
    return 0;
}

static int list_own(const struct plan *plan, struct list *l, struct err *e) {
    const struct program *p = l->p;
    bool *taken = calloc((size_t)p->n_tensors + 1, sizeof *taken);
    l->items = calloc((size_t)p->n_tensors + 1, sizeof *l->items);
    const struct chosen chosen = plan_chosen(plan);
    struct model_param param;
    bool pair;
    int rc = taken && l->items
                 ? 0
                 : err_set(e, ERR_MEMORY, "no memory for the list of a checkpoint's tensors");
    for (int64_t i = 0; rc == 0 && chosen_at(&chosen, &plan->shape, i, &param, &pair); i++) {
        const int named = program_find(p, param.name);
        if (named < 0 && p->world > 1)
            continue;
        if (named < 0 || p->tensors[named].cls != CLASS_WEIGHT || taken[named]) {
            rc = err_set(e, ERR_INTERNAL, "the training program has no weight '%s'", param.name);
            break;
        }
        struct item *item = &l->items[l->n++];
        rc = fill_item(plan, p, i, named, item, e);
        taken[named] = true;
        if (item->tensor >= 0)
            taken[item->tensor] = true;
    }
    for (int t = 0; rc == 0 && t < p->n_tensors; t++)
        if (!taken[t] && belongs(plan, p, t))
            rc = fill_item(plan, p, -1, t, &l->items[l->n++], e);
    free(taken);
    return rc;
}

// ---------------------------------------------------------------- what all ranks have together

// The order in the files: parameters as the model lists them, then the others by name. It does not
// depend on how ranks share the work.
static int compare(const struct entry *a, const struct entry *b) {
    if ((a->order < 0) != (b->order < 0))
        return a->order < 0 ? 1 : -1;
    return a->order != b->order ? (a->order > b->order) - (a->order < b->order)
                                : strcmp(a->name, b->name);
}

static int compare_items(const void *a, const void *b) {
    return compare(&((const struct item *)a)->is, &((const struct item *)b)->is);
}

// Every rank's entries in one array, in which those that a rank lacks have order -1 and no name.
static int gather(const struct list *l, struct entry **all, size_t *n, struct err *e) {
    double most = l->n;
    TRY(comm_agree(l->comm, 0, &most, 1, e));
    const size_t each = (size_t)most;
    struct entry *own = calloc(each + 1, sizeof *own);
    *n = each * (size_t)l->comm->world;
    *all = calloc(*n + 1, sizeof **all);
    int rc = own && *all
                 ? 0
                 : err_set(e, ERR_MEMORY, "no memory for the tensors of %d ranks", l->comm->world);
    rc = comm_agree(l->comm, rc, NULL, 0, e);
    for (size_t i = 0; rc == 0 && i < each; i++) {
        own[i].order = -1;
        if (i < (size_t)l->n)
            own[i] = l->items[i].is;
    }
    if (rc == 0)
        rc = comm_gather(l->comm, own, each * sizeof *own, *all, e);
    free(own);
    return rc;
}

static const struct item *find_own(const struct list *l, const struct entry *is) {
    const struct item key = {.is = *is};
    return bsearch(&key, l->items, (size_t)l->n, sizeof *l->items, compare_items);
}

static int join(struct list *l, struct item *sorted, size_t n, struct item *out, int *n_out,
                struct err *e) {
    for (size_t i = 0; i < n; i++) {
        const struct entry *is = &sorted[i].is, *last = *n_out > 0 ? &out[*n_out - 1].is : NULL;
        if (is->name[0] == '\0')
            continue;
        if (last && compare(last, is) == 0) {
            if (last->dtype != is->dtype || last->rank != is->rank ||
                memcmp(last->dims, is->dims, sizeof is->dims) != 0)
                return err_set(e, ERR_INTERNAL, "ranks have different kinds of '%s'", is->name);
            continue;
        }
        const struct item *own = find_own(l, is);
        out[*n_out] = own ? *own : (struct item){.is = *is, .tensor = -1, .named = -1};
        ++*n_out;
    }
    return 0;
}

// The list of the whole model's tensors. Ranks end with the same list.
static int list_all(struct list *l, struct err *e) {
    struct entry *all = NULL;
    size_t n = 0;
    int rc = gather(l, &all, &n, e), n_joined = 0;
    struct item *sorted = rc == 0 ? calloc(n + 1, sizeof *sorted) : NULL,
                *joined = rc == 0 ? calloc(n + 1, sizeof *joined) : NULL;
    if (rc == 0 && (!sorted || !joined))
        rc = err_set(e, ERR_MEMORY, "no memory for the tensors of %d ranks", l->comm->world);
    if (rc == 0) {
        for (size_t i = 0; i < n; i++)
            sorted[i].is = all[i];
        qsort(sorted, n, sizeof *sorted, compare_items);
        rc = join(l, sorted, n, joined, &n_joined, e);
    }
    free(all);
    free(sorted);
    if (rc != 0) {
        free(joined);
        return rc;
    }
    free(l->items);
    l->items = joined;
    l->n = n_joined;
    return 0;
}

static int list_tensors(const struct session *s, struct list *l, struct err *e) {
    const struct plan *plan = s->plan;
    const struct chosen chosen = plan_chosen(plan);
    struct model_param param;
    bool pair;
    *l = (struct list){.p = plan_program(plan, PLAN_TRAIN),
                       .comm = s->engine->options.comm,
                       .int8 = plan->knobs.optim_state == OPTIM_STATE_INT8};
    if (l->comm && l->comm->world < 2)
        l->comm = NULL;
    int rc = l->p ? list_own(plan, l, e)
                  : err_set(e, ERR_INTERNAL, "a checkpoint needs a plan that trains");
    rc = comm_agree(l->comm, rc, NULL, 0, e);
    if (rc == 0)
        qsort(l->items, (size_t)l->n, sizeof *l->items, compare_items);
    if (rc == 0 && l->comm)
        rc = comm_agree(l->comm, list_all(l, e), NULL, 0, e);
    while (rc == 0 && l->n_model < l->n && l->items[l->n_model].is.order >= 0)
        l->n_model++;
    if (rc == 0 && chosen_at(&chosen, &plan->shape, l->n_model, &param, &pair))
        rc = err_set(e, ERR_INTERNAL, "no rank has the weight '%s', or one before it", param.name);
    if (rc != 0) {
        free(l->items);
        l->items = NULL;
    }
    return rc;
}

static uint64_t bytes_of(const struct tensor *t) {
    return (uint64_t)tensor_elements(t) * dtype_bytes(t->dtype);
}

// ---------------------------------------------------------------- how large they are

static uint64_t moment_bytes(const struct plan *plan, const char *kind,
                             const struct model_param *param, uint64_t elements) {
    const struct program *p = plan_program(plan, PLAN_TRAIN);
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", kind, param->name);
    const int t = program_find(p, name);
    if (t >= 0)
        return elements * dtype_bytes(p->tensors[t].dtype);
    const enum optim_state type = plan->knobs.optim_state; // of a rank that is not this one
    return elements * (type == OPTIM_STATE_INT8 ? 1 : type == OPTIM_STATE_BF16 ? 2 : 4);
}

// Of all ranks together. Other ranks' tensors are like this one's.
static uint64_t bytes_of_ranks(const struct plan *plan) {
    const struct chosen chosen = plan_chosen(plan);
    struct model_param param;
    bool pair;
    uint64_t bytes = (uint64_t)2 * HEADER_BYTES;
    for (int64_t i = 0; chosen_at(&chosen, &plan->shape, i, &param, &pair); i++) {
        uint64_t n = 1;
        for (int d = 0; d < param.rank; d++)
            n *= (uint64_t)param.dims[d];
        bytes += n * sizeof(float) + moment_bytes(plan, "adam.m", &param, n) +
                 moment_bytes(plan, "adam.v", &param, n);
        if (plan->knobs.optim_state == OPTIM_STATE_INT8)
            bytes += (n / ADAMW_BLOCK + 1) * 2 * sizeof(float);
        bytes += 4 * (strlen(ADAPTER_PREFIX) + strlen(param.name) + ENTRY_BYTES);
    }
    return bytes;
}

uint64_t snapshot_bytes(const struct plan *plan) {
    const struct program *p = plan_program(plan, PLAN_TRAIN);
    uint64_t bytes = (uint64_t)2 * HEADER_BYTES;
    if (p != NULL && p->world > 1)
        return bytes_of_ranks(plan);
    for (int i = 0; p != NULL && i < p->n_tensors; i++)
        if (belongs(plan, p, i))
            bytes += bytes_of(&p->tensors[i]) + strlen(ADAPTER_PREFIX) +
                     strlen(p->tensors[i].name) + ENTRY_BYTES;
    return bytes;
}

// ---------------------------------------------------------------- writing

// Gives the bytes [at, at + n) of a tensor, in the arena or through a buffer.
static int part_of(struct session *s, int index, uint64_t at, uint64_t n, void *buffer,
                   const void **out, struct err *e) {
    const int x = plan_find(s->plan, PLAN_TRAIN);
    const char *address = exec_host_address(s->exec, x, index);
    *out = address ? address + at : buffer;
    return address ? 0 : exec_read_part(s->exec, x, index, at, buffer, n, e);
}

static uint64_t piece_bytes(struct session *s, int index) {
    const int x = plan_find(s->plan, PLAN_TRAIN);
    return exec_host_address(s->exec, x, index) ? SNAPSHOT_PIECE_BYTES : SNAPSHOT_BUFFER_BYTES;
}

static int put_tensor(struct session *s, struct safetensors_writer *w, const struct item *item,
                      void *buffer, const struct pause *between, struct err *e) {
    const uint64_t all = bytes_of(&plan_program(s->plan, PLAN_TRAIN)->tensors[item->tensor]),
                   most = piece_bytes(s, item->tensor);
    const void *data;
    for (uint64_t at = 0; at < all; at += most) {
        const uint64_t n = all - at < most ? all - at : most;
        TRY(part_of(s, item->tensor, at, n, buffer, &data, e));
        TRY(safetensors_writer_put(w, data, (size_t)n, e));
        pause_let(between);
    }
    return 0;
}

static int declare(struct safetensors_writer *w, const struct list *l, int begin, int end,
                   struct err *e) {
    for (int i = begin; i < end; i++) {
        const struct entry *is = &l->items[i].is;
        TRY(safetensors_writer_declare(w, is->name, (enum dtype)is->dtype, is->rank, is->dims, e));
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
    int rc = declare(w, l, begin, end, e);
    for (int i = begin; rc == 0 && i < end; i++)
        rc = put_tensor(s, w, &l->items[i], buffer, between, e);
    if (rc == 0)
        rc = pause_beside(between, close_file, &(struct closing){w, out}, e);
    if (rc != 0)
        safetensors_writer_abort(w);
    return rc;
}

// ---------------------------------------------------------------- writing with other ranks

// This rank's part of a tensor, run by run.
static int fill_runs(struct session *s, struct safetensors_filler *f, const struct item *item,
                     void *buffer, struct err *e) {
    const struct tensor *t = &plan_program(s->plan, PLAN_TRAIN)->tensors[item->tensor];
    const int64_t all = tensor_elements(t), width = (int64_t)dtype_bytes(t->dtype),
                  most = (int64_t)piece_bytes(s, item->tensor) / width;
    const void *data;
    int64_t logical, n;
    for (int64_t at = 0; at < all; at += n) {
        tensor_run(t, at, &logical, &n);
        n = n < most ? n : most;
        TRY(part_of(s, item->tensor, (uint64_t)(at * width), (uint64_t)(n * width), buffer, &data,
                    e));
        TRY(safetensors_filler_put(f, item->is.name, logical, n, data, e));
    }
    return 0;
}

static int fill_parts(struct session *s, const char *unfinished, const struct list *l, int begin,
                      int end, void *buffer, struct err *e) {
    struct safetensors_filler *f;
    TRY(safetensors_filler_open(&f, unfinished, e));
    int rc = 0;
    for (int i = begin; rc == 0 && i < end; i++)
        if (l->items[i].gives)
            rc = fill_runs(s, f, &l->items[i], buffer, e);
    const int closed = safetensors_filler_close(f, rc == 0 ? e : NULL);
    return rc != 0 ? rc : closed;
}

static int reserve(struct safetensors_writer **w, const char *path, const struct list *l, int begin,
                   int end, char unfinished[PATH_MAX], struct err *e) {
    TRY(safetensors_writer_open(w, path, e));
    TRY(declare(*w, l, begin, end, e));
    TRY(safetensors_writer_reserve(*w, e));
    snprintf(unfinished, PATH_MAX, "%s", safetensors_writer_unfinished(*w));
    return 0;
}

// Rank 0 makes the file, all fill it, rank 0 finishes it. Each time all agree before they go on.
static int write_together(struct session *s, const char *path, const struct list *l, int begin,
                          int end, void *buffer, struct manifest_file *out, struct err *e) {
    struct safetensors_writer *w = NULL;
    char unfinished[PATH_MAX] = "";
    const bool leads = l->comm->rank == 0;
    int rc = leads ? reserve(&w, path, l, begin, end, unfinished, e) : 0;
    rc = comm_agree(l->comm, rc, NULL, 0, e);
    if (rc == 0)
        rc = comm_share(l->comm, unfinished, sizeof unfinished, e);
    if (rc == 0)
        rc = comm_agree(l->comm, fill_parts(s, unfinished, l, begin, end, buffer, e), NULL, 0, e);
    if (rc == 0 && leads && (rc = close_file(&(struct closing){w, out}, e)) == 0)
        w = NULL;
    safetensors_writer_abort(w);
    rc = comm_agree(l->comm, rc, NULL, 0, e);
    return rc == 0 ? comm_share(l->comm, out, sizeof *out, e) : rc;
}

// ---------------------------------------------------------------- reading

static int get_tensor(struct session *s, struct safetensors *st,
                      const struct safetensors_entry *entry, int index, void *buffer,
                      struct err *e) {
    const struct tensor *t = &plan_program(s->plan, PLAN_TRAIN)->tensors[index];
    const int x = plan_find(s->plan, PLAN_TRAIN);
    const int64_t all = tensor_elements(t), width = (int64_t)dtype_bytes(t->dtype),
                  most = SNAPSHOT_BUFFER_BYTES / width;
    char *address = exec_host_address(s->exec, x, index);
    int64_t logical, n;
    for (int64_t at = 0; at < all; at += n) {
        tensor_run(t, at, &logical, &n);
        n = address || n < most ? n : most;
        TRY(safetensors_read(st, entry, logical, n, address ? address + at * width : buffer,
                             t->dtype, e));
        if (!address)
            TRY(exec_write_part(s->exec, x, index, (uint64_t)(at * width), buffer,
                                (uint64_t)(n * width), e));
    }
    return 0;
}

static int check_entry(const char *path, const struct entry *is,
                       const struct safetensors_entry *entry, struct err *e) {
    if (entry == NULL)
        return err_set(e, ERR_MISMATCH, "%s lacks the tensor '%s'", path, is->name);
    if (entry->dtype != (enum dtype)is->dtype)
        return err_set(e, ERR_MISMATCH, "%s holds '%s' as %s; this run has it as %s", path,
                       is->name, entry->dtype_name, dtype_safetensors((enum dtype)is->dtype));
    if (entry->rank != is->rank ||
        memcmp(entry->dims, is->dims, (size_t)is->rank * sizeof *is->dims) != 0)
        return err_set(e, ERR_MISMATCH, "%s holds '%s' with other dimensions than this run", path,
                       is->name);
    return 0;
}

static int read_item(struct session *s, struct safetensors *st, const char *path,
                     const struct item *item, void *buffer, struct err *e) {
    const struct safetensors_entry *entry = safetensors_find(st, item->is.name);
    TRY(check_entry(path, &item->is, entry, e));
    if (item->tensor >= 0)
        TRY(get_tensor(s, st, entry, item->tensor, buffer, e));
    return item->named >= 0 && item->named != item->tensor // the master, rounded
               ? get_tensor(s, st, entry, item->named, buffer, e)
               : 0;
}

// The weight of an optimizer's tensor: "adam.m.W", "adam.v.W" and "adam.scales.W" belong to W.
static const char *weight_of(const char *name) {
    static const char *const kinds[] = {"adam.m.", "adam.v.", "adam.scales."};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strncmp(name, kinds[i], strlen(kinds[i])) == 0)
            return name + strlen(kinds[i]);
    return NULL;
}

// Whether the moments that this tensor belongs to are read from another type.
static bool is_converted(const struct list *l, struct safetensors *st, const char *name) {
    const char *weight = l->int8 ? weight_of(name) : NULL;
    char first[NAME_BYTES];
    if (!weight)
        return false;
    snprintf(first, sizeof first, "adam.m.%s", weight);
    struct item wanted = {.is = {.order = -1}};
    snprintf(wanted.is.name, sizeof wanted.is.name, "%s", first);
    const struct item *m =
        bsearch(&wanted, l->items, (size_t)l->n, sizeof *l->items, compare_items);
    return m && moments_differ(first, (enum dtype)m->is.dtype, safetensors_find(st, first));
}

// Every tensor of the file must be one of this run's.
static int refuse_unknown(const struct list *l, struct safetensors *st, const char *path, int begin,
                          int end, struct err *e) {
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const char *name = safetensors_at(st, i)->name;
        bool known = is_converted(l, st, name);
        for (int k = begin; !known && k < end; k++)
            known = strcmp(l->items[k].is.name, name) == 0;
        if (!known)
            return err_set(e, ERR_MISMATCH,
                           "%s holds the tensor '%.150s', which this run does not have", path,
                           name);
    }
    return 0;
}

static int read_file(struct session *s, const char *path, const struct list *l, int begin, int end,
                     void *buffer, struct err *e) {
    struct safetensors *st;
    TRY(safetensors_open(&st, path, e));
    int rc = 0;
    for (int i = begin; rc == 0 && i < end; i++) {
        const char *name = l->items[i].is.name;
        if (!is_converted(l, st, name))
            rc = read_item(s, st, path, &l->items[i], buffer, e);
        else if (strncmp(name, "adam.m.", strlen("adam.m.")) == 0)
            rc = moments_read(s, st, path, weight_of(name), e);
    }
    if (rc == 0 && safetensors_count(st) != (size_t)(end - begin))
        rc = refuse_unknown(l, st, path, begin, end, e);
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
    TRY(list_tensors(s, &l, e));
    const int from[3] = {0, l.n_model, l.n};
    void *buffer = malloc(SNAPSHOT_BUFFER_BYTES);
    int rc = buffer != NULL ? 0 : err_set(e, ERR_MEMORY, "no memory for a checkpoint's buffer");
    rc = comm_agree(l.comm, rc, NULL, 0, e);
    for (int i = 0; rc == 0 && i < 2; i++) {
        rc = file_join(path, sizeof path, dir, manifest_name_of(ids[i], s->plan->adapter.rank > 0),
                       e);
        if (rc == 0 && out && l.comm)
            rc = write_together(s, path, &l, from[i], from[i + 1], buffer, &out[ids[i]], e);
        else if (rc == 0 && out)
            rc = write_file(s, path, &l, from[i], from[i + 1], buffer, between, &out[ids[i]], e);
        else if (rc == 0)
            rc = comm_agree(l.comm, read_file(s, path, &l, from[i], from[i + 1], buffer, e), NULL,
                            0, e);
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
