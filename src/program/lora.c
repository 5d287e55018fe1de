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
    int forward;
    int numbers, hyper; // inputs of dropout; -1: there is none
};

// The parameter of this name, of the layer. False if there is none.
static bool find_param(const struct model_shape *s, int layer, const char *name,
                       struct model_param *out) {
    for (int role = ROLE_NORM1_W; role <= ROLE_DOWN_B; role++)
        if (model_param_get(s, (enum model_role)role, layer, out) && strcmp(out->name, name) == 0)
            return true;
    return false;
}

static int pair(struct lora *l, const struct model_param *weight, bool b, enum dtype type) {
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

static void adapt(struct lora *l, const struct op *product, const struct model_param *weight) {
    const enum dtype type = l->p->tensors[product->in[1]].dtype;
    const int64_t rank = l->a->chosen.adapter->rank;
    const int x = l->numbers >= 0 ? drop(l, product) : product->in[0];
    const int a = pair(l, weight, false, type), b = pair(l, weight, true, type),
              u = make(l, product, "lora", rank);
    struct op down = op_make(OP_MATMUL), up = op_make(OP_MATMUL);
    op_in(&down, x), op_in(&down, a), op_in(&down, -1), op_out(&down, u);
    down.m = product->m, down.n = rank, down.k = product->k, down.layer = product->layer;
    op_in(&up, u), op_in(&up, b), op_in(&up, -1), op_out(&up, product->out[0]);
    up.m = product->m, up.n = product->n, up.k = rank, up.layer = product->layer;
    up.scale = adapter_scale(l->a->chosen.adapter), up.flags = OP_ACCUMULATE;
    program_op(l->p, l->forward, &down);
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

int lora_apply(struct program *p, int forward, const struct apply *a, struct err *e) {
    struct lora l = {.p = p, .a = a, .forward = forward, .numbers = -1, .hyper = -1};
    for (int t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].cls == CLASS_WEIGHT)
            p->tensors[t].trainable = storage_plain(p->tensors[t].storage) &&
                                      chosen_trains(&a->chosen, p->tensors[t].name, false);
    if (!chosen_has_adapter(&a->chosen))
        return 0;
    const bool drops = a->build.kind == BUILD_TRAIN && a->chosen.adapter->dropout > 0;
    const struct segment old = program_take_ops(p, forward);
    for (int i = 0; i < old.n_ops; i++) {
        struct op op = old.ops[i];
        struct model_param weight;
        if (op.kind == OP_LOAD && drops)
            number_rows(&l, &op);
        program_op(p, forward, &op);
        if (op.kind == OP_MATMUL && op.in[1] >= 0 &&
            find_param(a->build.shape, op.layer, p->tensors[op.in[1]].name, &weight) &&
            adapter_targets(a->chosen.adapter, a->build.shape, &weight))
            adapt(&l, &op, &weight);
    }
    return program_finish(p, e);
}
