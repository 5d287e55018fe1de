// param.c - the parameters of a shape: Hugging Face (HF) names, dimensions as stored in HF files,
// decay, initial values.
//
// The order is fixed: embedding, positions, then each layer's roles in the order of enum
// model_role, final norm, head. Checkpoints, export and sharding all use this order. Sizes normally
// come from a checked shape. Products saturate and do not wrap, because model_shape_check asks for
// the total of a shape before it has accepted it.
#include "model/shape.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_LAYER_ROLE = ROLE_NORM1_W, LAST_LAYER_ROLE = ROLE_DOWN_B };

// The name of a role in GPT-2 and in the other families. "%d" stands for the layer. NULL when there
// is no such role.
struct role_names {
    const char *gpt2, *llama;
};
static const struct role_names role_names[ROLE_COUNT] = {
    [ROLE_WTE] = {"transformer.wte.weight", "model.embed_tokens.weight"},
    [ROLE_WPE] = {"transformer.wpe.weight", NULL},
    [ROLE_NORM1_W] = {"transformer.h.%d.ln_1.weight", "model.layers.%d.input_layernorm.weight"},
    [ROLE_NORM1_B] = {"transformer.h.%d.ln_1.bias", NULL},
    [ROLE_QKV_W] = {"transformer.h.%d.attn.c_attn.weight", NULL},
    [ROLE_QKV_B] = {"transformer.h.%d.attn.c_attn.bias", NULL},
    [ROLE_Q_W] = {NULL, "model.layers.%d.self_attn.q_proj.weight"},
    [ROLE_Q_B] = {NULL, "model.layers.%d.self_attn.q_proj.bias"},
    [ROLE_K_W] = {NULL, "model.layers.%d.self_attn.k_proj.weight"},
    [ROLE_K_B] = {NULL, "model.layers.%d.self_attn.k_proj.bias"},
    [ROLE_V_W] = {NULL, "model.layers.%d.self_attn.v_proj.weight"},
    [ROLE_V_B] = {NULL, "model.layers.%d.self_attn.v_proj.bias"},
    [ROLE_QNORM_W] = {NULL, "model.layers.%d.self_attn.q_norm.weight"},
    [ROLE_KNORM_W] = {NULL, "model.layers.%d.self_attn.k_norm.weight"},
    [ROLE_OUT_W] = {"transformer.h.%d.attn.c_proj.weight",
                    "model.layers.%d.self_attn.o_proj.weight"},
    [ROLE_OUT_B] = {"transformer.h.%d.attn.c_proj.bias", "model.layers.%d.self_attn.o_proj.bias"},
    [ROLE_NORM2_W] = {"transformer.h.%d.ln_2.weight",
                      "model.layers.%d.post_attention_layernorm.weight"},
    [ROLE_NORM2_B] = {"transformer.h.%d.ln_2.bias", NULL},
    [ROLE_GATE_W] = {NULL, "model.layers.%d.mlp.gate_proj.weight"},
    [ROLE_GATE_B] = {NULL, "model.layers.%d.mlp.gate_proj.bias"},
    [ROLE_UP_W] = {"transformer.h.%d.mlp.c_fc.weight", "model.layers.%d.mlp.up_proj.weight"},
    [ROLE_UP_B] = {"transformer.h.%d.mlp.c_fc.bias", "model.layers.%d.mlp.up_proj.bias"},
    [ROLE_DOWN_W] = {"transformer.h.%d.mlp.c_proj.weight", "model.layers.%d.mlp.down_proj.weight"},
    [ROLE_DOWN_B] = {"transformer.h.%d.mlp.c_proj.bias", "model.layers.%d.mlp.down_proj.bias"},
    [ROLE_NORMF_W] = {"transformer.ln_f.weight", "model.norm.weight"},
    [ROLE_NORMF_B] = {"transformer.ln_f.bias", NULL},
    [ROLE_HEAD_W] = {"lm_head.weight", "lm_head.weight"},
};

static const char *name_of(const struct model_shape *s, enum model_role role) {
    return s->family == FAMILY_GPT2 ? role_names[role].gpt2 : role_names[role].llama;
}

bool model_has_role(const struct model_shape *s, enum model_role role) {
    if ((int)role < 0 || role >= ROLE_COUNT || name_of(s, role) == NULL)
        return false;
    switch (role) {
    case ROLE_WPE:
        return s->learned_positions;
    case ROLE_NORM1_B:
    case ROLE_NORM2_B:
    case ROLE_NORMF_B:
        return s->norm == NORM_LAYER;
    case ROLE_QKV_W:
        return s->packed_qkv;
    case ROLE_QKV_B:
        return s->packed_qkv && s->qkv_bias;
    case ROLE_Q_W:
    case ROLE_K_W:
    case ROLE_V_W:
        return !s->packed_qkv;
    case ROLE_Q_B:
    case ROLE_K_B:
    case ROLE_V_B:
        return !s->packed_qkv && s->qkv_bias;
    case ROLE_QNORM_W:
    case ROLE_KNORM_W:
        return s->qk_norm;
    case ROLE_OUT_B:
        return s->out_bias;
    case ROLE_GATE_W:
        return s->act == ACT_SWIGLU;
    case ROLE_GATE_B:
        return s->act == ACT_SWIGLU && s->mlp_bias;
    case ROLE_UP_B:
    case ROLE_DOWN_B:
        return s->mlp_bias;
    case ROLE_HEAD_W:
        return !s->tied;
    default:
        return true;
    }
}

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return checked_mul_i64(a, b, &product) ? product : INT64_MAX;
}

static void set_vector(struct model_param *p, int64_t n, enum model_init init) {
    p->rank = 1;
    p->dims[0] = n;
    p->init = init;
}

// A matrix from `in` features to `out` features, in the order in which the family stores it.
static void set_matrix(const struct model_shape *s, struct model_param *p, int64_t in,
                       int64_t out) {
    p->rank = 2;
    p->dims[0] = s->in_out_weights ? in : out;
    p->dims[1] = s->in_out_weights ? out : in;
    p->matrix = true;
    p->init = INIT_NORMAL;
    p->init_std = s->init_std;
}

// Embeddings and the head are [rows, C] in every family. They are lookup tables, not Conv1D
// matrices.
static void set_table(const struct model_shape *s, struct model_param *p, int64_t rows) {
    set_matrix(s, p, s->width, rows);
    p->dims[0] = rows;
    p->dims[1] = s->width;
}

// GPT-2 divides the initial values of matrices that add to the residual stream by the square root
// of the number of additions, 2 per layer. Llama and Qwen do not.
static void scale_residual(const struct model_shape *s, struct model_param *p) {
    if (s->family == FAMILY_GPT2)
        p->init_std = (float)((double)s->init_std / sqrt(2.0 * (double)s->layers));
}

static void set_rule(const struct model_shape *s, enum model_role role, struct model_param *p) {
    int64_t q = times(s->heads, s->head_dim), kv = times(s->kv_heads, s->head_dim);
    int64_t qkv = times(q, 3); // in packed models heads and kv_heads are equal
    switch (role) {
    case ROLE_WTE:
    case ROLE_HEAD_W:
        set_table(s, p, s->vocab);
        break;
    case ROLE_WPE:
        set_table(s, p, s->max_positions);
        break;
    case ROLE_NORM1_W:
    case ROLE_NORM2_W:
    case ROLE_NORMF_W:
        set_vector(p, s->width, INIT_ONE);
        break;
    case ROLE_NORM1_B:
    case ROLE_NORM2_B:
    case ROLE_NORMF_B:
    case ROLE_OUT_B:
    case ROLE_DOWN_B:
        set_vector(p, s->width, INIT_ZERO);
        break;
    case ROLE_QNORM_W:
    case ROLE_KNORM_W:
        set_vector(p, s->head_dim, INIT_ONE);
        break;
    case ROLE_QKV_W:
        set_matrix(s, p, s->width, qkv);
        break;
    case ROLE_QKV_B:
        set_vector(p, qkv, INIT_ZERO);
        break;
    case ROLE_Q_W:
        set_matrix(s, p, s->width, q);
        break;
    case ROLE_Q_B:
        set_vector(p, q, INIT_ZERO);
        break;
    case ROLE_K_W:
    case ROLE_V_W:
        set_matrix(s, p, s->width, kv);
        break;
    case ROLE_K_B:
    case ROLE_V_B:
        set_vector(p, kv, INIT_ZERO);
        break;
    case ROLE_OUT_W:
        set_matrix(s, p, q, s->width);
        scale_residual(s, p);
        break;
    case ROLE_GATE_W:
    case ROLE_UP_W:
        set_matrix(s, p, s->width, s->ffn);
        break;
    case ROLE_GATE_B:
    case ROLE_UP_B:
        set_vector(p, s->ffn, INIT_ZERO);
        break;
    case ROLE_DOWN_W:
        set_matrix(s, p, s->ffn, s->width);
        scale_residual(s, p);
        break;
    case ROLE_COUNT:
        break;
    }
}

static bool in_layer(enum model_role role) {
    return (int)role >= FIRST_LAYER_ROLE && (int)role <= LAST_LAYER_ROLE;
}

bool model_param_get(const struct model_shape *s, enum model_role role, int layer,
                     struct model_param *out) {
    if (!model_has_role(s, role) || (in_layer(role) && (layer < 0 || layer >= s->layers)))
        return false;
    *out = (struct model_param){.role = role, .layer = in_layer(role) ? layer : -1};
    const char *pattern = name_of(s, role), *number = strstr(pattern, "%d");
    if (number == NULL)
        snprintf(out->name, sizeof out->name, "%s", pattern);
    else
        snprintf(out->name, sizeof out->name, "%.*s%d%s", (int)(number - pattern), pattern, layer,
                 number + 2);
    set_rule(s, role, out);
    return true;
}

static int64_t roles_between(const struct model_shape *s, int first, int last) {
    int64_t n = 0;
    for (int role = first; role <= last; role++)
        n += model_has_role(s, (enum model_role)role);
    return n;
}

int64_t model_param_count(const struct model_shape *s) {
    return roles_between(s, 0, FIRST_LAYER_ROLE - 1) +
           s->layers * roles_between(s, FIRST_LAYER_ROLE, LAST_LAYER_ROLE) +
           roles_between(s, LAST_LAYER_ROLE + 1, ROLE_COUNT - 1);
}

// The i-th role that the model has, counting from `first`.
static enum model_role nth_role(const struct model_shape *s, int first, int64_t i) {
    int role = first;
    for (; role < ROLE_COUNT; role++)
        if (model_has_role(s, (enum model_role)role) && i-- == 0)
            break;
    return (enum model_role)role;
}

bool model_param_at(const struct model_shape *s, int64_t i, struct model_param *out) {
    int64_t before = roles_between(s, 0, FIRST_LAYER_ROLE - 1);
    int64_t per_layer = roles_between(s, FIRST_LAYER_ROLE, LAST_LAYER_ROLE);
    if (i < 0 || i >= model_param_count(s))
        return false;
    if (i < before)
        return model_param_get(s, nth_role(s, 0, i), -1, out);
    i -= before;
    if (i < s->layers * per_layer)
        return model_param_get(s, nth_role(s, FIRST_LAYER_ROLE, i % per_layer),
                               (int)(i / per_layer), out);
    return model_param_get(s, nth_role(s, LAST_LAYER_ROLE + 1, i - s->layers * per_layer), -1, out);
}

int64_t model_total_elements(const struct model_shape *s) {
    int64_t total = 0;
    for (int role = 0; role < ROLE_COUNT; role++) {
        struct model_param p;
        if (!model_param_get(s, (enum model_role)role, 0, &p))
            continue;
        int64_t n = p.dims[0];
        if ((p.rank == 2 && !checked_mul_i64(n, p.dims[1], &n)) ||
            (in_layer((enum model_role)role) && !checked_mul_i64(n, s->layers, &n)) ||
            !checked_add_i64(total, n, &total))
            return -1;
    }
    return total;
}
