// lora.c - which weights train, and low-rank adapters on those that do not (Hu et al., 2021):
// y = x W' + scale (x A') B'.
//
// It edits the forward before it is differentiated, in every program of a set, so that all have the
// same persistent tensors. grad.c then emits no gradient for frozen weights and none towards what
// lies below the lowest weight that trains. So gradients, masters and optimizer state exist only
// for what trains.
//
// Neither x A' B' nor W + B A exists as a tensor of its own: the second product adds to y.
//
// x A' has few columns, so its time is that of reading x. Therefore the A's of products that read
// the same x (q, k and v; gate and up) are one product, with their rows in one root (tensor.parts)
// and its columns as inputs of the B's. So x is read once, in the forward and for the gradient of
// the A's, and its own gradient gets one sum of all of them. With dropout each A has an input of
// its own, and stays a product of its own.
//
// In training, part of each adapter's input may be set to zero (dropout). Each layer draws its own.
// A draw depends on seed, step, layer, the number of the row in the whole step, and column. LOAD
// numbers the rows, so a step draws the same whichever way it is divided into micro-batches and
// replicas.
#include "program/apply.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

struct lora {
    struct program *p;
    const struct apply *a;
    struct segment old; // the forward before this pass
    int forward;
    int numbers, hyper; // inputs of dropout; -1: there is none
    // Per op of the old forward: B and the columns of x A' that it reads; -1: not made yet.
    int *b, *u;
};

enum { JOINED_MOST = 8 }; // A's in one product

// The parameter of this name, of the layer. False if there is none.
static bool find_param(const struct model_shape *s, int layer, const char *name,
                       struct model_param *out) {
    for (int role = ROLE_NORM1_W; role <= ROLE_DOWN_B; role++)
        if (model_param_get(s, (enum model_role)role, layer, out) && strcmp(out->name, name) == 0)
            return true;
    return false;
}

// Whether the op is a product with a matrix that gets a pair.
static bool adapts(const struct lora *l, const struct op *op, struct model_param *weight) {
    const struct model_shape *s = l->a->build.shape;
    return op->kind == OP_MATMUL && op->in[1] >= 0 &&
           find_param(s, op->layer, l->p->tensors[op->in[1]].name, weight) &&
           adapter_targets(l->a->chosen.adapter, s, weight);
}

// A or B of a weight.
static int one(struct lora *l, const struct model_param *weight, bool b, enum dtype type) {
    struct model_param param;
    adapter_param(l->a->chosen.adapter, l->a->build.shape, weight, b, &param);
    int t = program_tensor_2d(l->p, param.name, type, CLASS_WEIGHT, LIFE_RUN, param.dims[0],
                              param.dims[1]);
    if (t >= 0) {
        l->p->tensors[t].layer = param.layer;
        l->p->tensors[t].trainable = chosen_trains(&l->a->chosen, param.name, true);
        l->p->tensors[t].decay = l->p->tensors[t].adapter = true;
    }
    return t;
}

// A transient tensor of the adapter, named after the product's output.
static int make(struct lora *l, const struct op *product, const char *what, int64_t columns) {
    const struct tensor y = l->p->tensors[product->out[0]];
    char name[160];
    snprintf(name, sizeof name, "%.120s.%s", y.name, what);
    int t =
        program_tensor_2d(l->p, name, y.dtype, CLASS_WORKSPACE, LIFE_SEGMENT, product->m, columns);
    if (t >= 0)
        l->p->tensors[t].layer = y.layer;
    return t;
}

static int drop(struct lora *l, const struct op *product) {
    const char *weight = l->p->tensors[product->in[1]].name;
    struct op op = op_make(OP_DROPOUT);
    int y = make(l, product, "dropped", product->k);
    op_in(&op, product->in[0]), op_in(&op, l->numbers), op_in(&op, l->hyper), op_out(&op, y);
    op.m = product->m, op.n = product->k, op.layer = product->layer;
    op.scale = l->a->chosen.adapter->dropout;
    op.salt = (uint32_t)hash_u64(weight, strlen(weight));
    program_op(l->p, l->forward, &op);
    return y;
}

// ---------------------------------------------------------------- products

static bool writes(const struct program *p, const struct op *op, int x) {
    for (int i = 0; i < op->n_out; i++)
        if (program_root(p, op->out[i]) == program_root(p, x))
            return true;
    return false;
}

// Whether the A's of products with one input may be one product. This is decided for every program
// of a set alike, so a validation without dropout has the tensors of a training step with it.
static bool may_join(const struct lora *l, const struct op *product) {
    const struct apply *a = l->a;
    const int64_t elements = a->chosen.adapter->rank * product->k;
    // Where ZeRO divides a root among ranks, the blocks of its parts' 8-bit moments stay whole.
    const bool blocks = a->ranks.zero > 0 && a->state == STATE_INT8;
    return a->fuse_qkv && a->chosen.adapter->dropout == 0 &&
           (!blocks || elements % ADAMW_BLOCK == 0);
}

// Makes the pair of a product and the columns of u. Returns A.
static int make_pair(struct lora *l, int index, const struct model_param *weight) {
    const struct op *product = &l->old.ops[index];
    const enum dtype type = l->p->tensors[product->in[1]].dtype;
    const int a = one(l, weight, false, type);
    l->b[index] = one(l, weight, true, type);
    l->u[index] = make(l, product, "lora", l->a->chosen.adapter->rank);
    return a;
}

// Whether the pairs of two weights have the same type, and the same of each trains. If one B trains
// and another does not, the columns of u are not needed equally long.
static bool pairs_alike(const struct lora *l, int weight, int other) {
    const struct tensor *w[2] = {&l->p->tensors[weight], &l->p->tensors[other]};
    bool trains[2][2];
    for (int i = 0; i < 2; i++) {
        struct model_param of, param;
        if (!find_param(l->a->build.shape, w[i]->layer, w[i]->name, &of))
            return false;
        for (int b = 0; b < 2; b++) {
            adapter_param(l->a->chosen.adapter, l->a->build.shape, &of, b, &param);
            trains[i][b] = chosen_trains(&l->a->chosen, param.name, true);
        }
    }
    return w[0]->dtype == w[1]->dtype && memcmp(trains[0], trains[1], sizeof *trains) == 0;
}

// Makes the pair of the product `first`, and with it those of the products behind it that read the
// same input and whose pairs are alike. Returns how many; at[] gets the products, a[] the A's.
static int make_pairs(struct lora *l, int first, int at[], int a[]) {
    const struct op *like = &l->old.ops[first];
    const bool joins = may_join(l, like);
    int n = 0;
    for (int i = first; i < l->old.n_ops && n < JOINED_MOST; i++) {
        const struct op *op = &l->old.ops[i];
        struct model_param weight;
        if (op->layer != like->layer)
            break;
        if (op->in[0] == like->in[0] && l->u[i] < 0 && adapts(l, op, &weight) &&
            pairs_alike(l, like->in[1], op->in[1])) {
            a[n] = make_pair(l, i, &weight);
            at[n++] = i;
        }
        if (!joins || writes(l->p, op, like->in[0]))
            break;
    }
    return n;
}

// u = x A' of one product, or of several with the same x.
static void go_down(struct lora *l, int first) {
    const struct op *product = &l->old.ops[first];
    int at[JOINED_MOST], a[JOINED_MOST], u[JOINED_MOST];
    char name[160];
    const int n = make_pairs(l, first, at, a);
    for (int i = 0; i < n; i++)
        u[i] = l->u[at[i]];
    if (l->p->failed) // program_finish reports it
        return;
    if (n > 1) {
        snprintf(name, sizeof name, "%.150s.joined", l->p->tensors[a[0]].name);
        a[0] = program_join(l->p, name, a, n, false);
        snprintf(name, sizeof name, "%.150s.joined", l->p->tensors[u[0]].name);
        u[0] = program_join(l->p, name, u, n, true);
    }
    struct op down = op_make(OP_MATMUL);
    op_in(&down, l->numbers >= 0 ? drop(l, product) : product->in[0]);
    op_in(&down, a[0]), op_in(&down, -1), op_out(&down, u[0]);
    down.m = product->m, down.n = n * l->a->chosen.adapter->rank, down.k = product->k;
    down.layer = product->layer;
    program_op(l->p, l->forward, &down);
}

// y += scale u B'.
static void go_up(struct lora *l, int index) {
    const struct op *product = &l->old.ops[index];
    struct op up = op_make(OP_MATMUL);
    op_in(&up, l->u[index]), op_in(&up, l->b[index]), op_in(&up, -1);
    op_out(&up, product->out[0]);
    up.m = product->m, up.n = product->n, up.k = l->a->chosen.adapter->rank;
    up.layer = product->layer;
    up.scale = adapter_scale(l->a->chosen.adapter), up.flags = OP_ACCUMULATE;
    program_op(l->p, l->forward, &up);
}

static void number_rows(struct lora *l, struct op *load) {
    const struct mesh *mesh = &l->a->ranks.mesh;
    l->numbers =
        program_tensor_1d(l->p, NAME_NUMBERS, DTYPE_I32, CLASS_INPUT, LIFE_SEGMENT, load->m);
    l->hyper = program_find(l->p, NAME_HYPER);
    if (load->n_out == 3)
        op_out(load, -1);
    op_out(load, l->numbers);
    load->n = mesh_size(mesh, AXIS_DATA), load->first = mesh->at[AXIS_DATA];
}

static int take(struct lora *l, struct err *e) {
    l->old = program_take_ops(l->p, l->forward);
    const size_t n = (size_t)l->old.n_ops + 1;
    l->b = region_alloc(&l->p->region, n * sizeof(int));
    l->u = region_alloc(&l->p->region, n * sizeof(int));
    if (!l->b || !l->u)
        l->p->failed = ERR_MEMORY;
    TRY(program_finish(l->p, e));
    memset(l->b, -1, n * sizeof(int));
    memset(l->u, -1, n * sizeof(int));
    return 0;
}

int lora_apply(struct program *p, int forward, const struct apply *a, struct err *e) {
    struct lora l = {.p = p, .a = a, .forward = forward, .numbers = -1, .hyper = -1};
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].cls == CLASS_WEIGHT)
            p->tensors[t].trainable = chosen_trains(&a->chosen, p->tensors[t].name, false);
    if (!chosen_has_adapter(&a->chosen))
        return 0;
    const bool drops = a->build.kind == BUILD_TRAIN && a->chosen.adapter->dropout > 0;
    TRY(take(&l, e));
    for (int i = 0; i < l.old.n_ops; i++) {
        struct op op = l.old.ops[i];
        struct model_param weight;
        if (op.kind == OP_LOAD && drops)
            number_rows(&l, &op);
        program_op(p, forward, &op);
        if (!adapts(&l, &op, &weight))
            continue;
        if (l.u[i] < 0)
            go_down(&l, i);
        go_up(&l, i);
    }
    return program_finish(p, e);
}
