// shape.h - what a model is, as numbers. It comes from a built-in name or from a Hugging Face (HF)
// config.json, and never depends on processes or knobs.
//
// The families share one skeleton (embed, layers of attention and MLP around a residual
// stream, norm, head) and differ in the switches below. src/program/build.c turns a shape into ops.
// This folder knows only names and files.
//
// Letters used everywhere: B sequences, T tokens per sequence, C width, H query heads, G key/value
// heads, D head dimension, F MLP width, V vocabulary, L layers.
#ifndef HAGGLE_MODEL_SHAPE_H
#define HAGGLE_MODEL_SHAPE_H

#include "base/err.h"
#include "base/region.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// Enumerator, HF model_type, HF architecture.
#define MODEL_FAMILY_LIST(X)                                                                       \
    X(FAMILY_GPT2, "gpt2", "GPT2LMHeadModel")                                                      \
    X(FAMILY_LLAMA, "llama", "LlamaForCausalLM")                                                   \
    X(FAMILY_QWEN2, "qwen2", "Qwen2ForCausalLM")                                                   \
    X(FAMILY_QWEN3, "qwen3", "Qwen3ForCausalLM")                                                   \
    X(FAMILY_MISTRAL, "mistral", "MistralForCausalLM")

enum model_family {
#define X(name, type, arch) name,
    MODEL_FAMILY_LIST(X)
#undef X
        FAMILY_COUNT
};

enum model_norm { NORM_LAYER, NORM_RMS };
// Plain activations act on one matrix. ACT_SWIGLU multiplies silu(gate) with up. As the activation
// of an op on one matrix, ACT_SWIGLU means silu.
enum model_act { ACT_GELU_TANH, ACT_GELU_ERF, ACT_RELU, ACT_SWIGLU };

struct model_rope {
    double theta; // 0: no rotary embedding (learned positions instead)
    bool llama3;  // frequency scaling of Llama 3.1 and later, with the four numbers below
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_positions;
};

struct model_shape {
    char name[128];
    enum model_family family;
    int64_t vocab, width, layers, heads, kv_heads, head_dim, ffn, max_positions;
    int64_t window; // attention reaches this many tokens back; 0: all (Mistral)
    bool tied;      // the head uses the embedding matrix
    enum model_norm norm;
    enum model_act act;
    float norm_eps;
    bool learned_positions; // GPT-2
    struct model_rope rope;
    // Biases on q/k/v, on the attention output, on the MLP matrices.
    bool qkv_bias, out_bias, mlp_bias;
    bool qk_norm;            // RMS norm over each head of q and k (Qwen3)
    bool packed_qkv;         // one [C, 3C] matrix (GPT-2) instead of three
    bool in_out_weights;     // matrices are stored [in, out] (GPT-2's Conv1D), not [out, in]
    bool scale_by_layer;     // attention scores are also divided by layer index + 1
    bool unscaled_attention; // attention scores are not divided by sqrt(D)
    float init_std;
    int64_t bos_id, eos_id; // begin and end of text; -1: none
};

// Built-in shapes: tiny, gpt2-124m, gpt2-1558m, llama-1b, llama-3b, llama-8b, llama-70b,
// qwen2-0.5b, qwen3-0.6b, ... An unknown name fails with the list and a suggestion.
int model_shape_builtin(struct model_shape *out, const char *name, struct err *e);
size_t model_shape_builtin_count(void);
const char *model_shape_builtin_name(size_t i);
bool model_shape_is_builtin(const char *name);
// Reads an HF config.json. Every field is checked before use (ranges, divisibility, unsupported
// switches).
int model_shape_read_config(struct model_shape *out, const char *path, struct err *e);
// Takes a built-in name, a folder with a config.json, or a name that hub_resolve finds in the cache
// of the hub, which counts as a folder.
int model_shape_open(struct model_shape *out, const char *name_or_dir, bool *is_dir, struct err *e);
// The longest text that haggle can compute: the positions, and not more than the window, because
// attention is always full.
int64_t model_shape_longest(const struct model_shape *s);
// Checks what every shape must satisfy. Both ways above end with this check.
int model_shape_check(const struct model_shape *s, struct err *e);
// Writes a config.json that transformers can read.
int model_shape_write_config(const struct model_shape *s, FILE *f, struct err *e);

// Parameters: each matrix or vector of the model, with its HF name, in a fixed order (embedding
// first, head last).
// clang-format off
enum model_role {
    ROLE_WTE, ROLE_WPE,             // embedding [V,C], positions [max_positions,C]
    ROLE_NORM1_W, ROLE_NORM1_B,     // before attention
    ROLE_QKV_W, ROLE_QKV_B,         // packed
    ROLE_Q_W, ROLE_Q_B, ROLE_K_W, ROLE_K_B, ROLE_V_W, ROLE_V_B,
    ROLE_QNORM_W, ROLE_KNORM_W,     // per head, [D]
    ROLE_OUT_W, ROLE_OUT_B,         // attention output projection
    ROLE_NORM2_W, ROLE_NORM2_B,     // before the MLP
    ROLE_GATE_W, ROLE_GATE_B,       // SwiGLU only; plain MLPs have only up and down
    ROLE_UP_W, ROLE_UP_B, ROLE_DOWN_W, ROLE_DOWN_B,
    ROLE_NORMF_W, ROLE_NORMF_B,     // after the last layer
    ROLE_HEAD_W,                    // [V,C]; absent when tied
    ROLE_COUNT
};
// clang-format on

enum model_init { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM };

struct model_param {
    char name[128]; // HF name, e.g. transformer.h.0.attn.c_attn.weight
    enum model_role role;
    int layer;       // -1: not part of a layer
    int rank;        // 1 or 2
    int64_t dims[2]; // as stored in HF files
    bool matrix;     // a matrix or embedding, which weight decay applies to; not a norm or bias
    enum model_init init;
    // INIT_NORMAL: deviation; GPT-2 scales the residual projections by 1/sqrt(2L).
    // INIT_UNIFORM: the largest value.
    float init_std;
};

bool model_has_role(const struct model_shape *s, enum model_role role);
// Fills the description of one parameter. layer is ignored for roles outside layers. False when the
// model has no such role.
bool model_param_get(const struct model_shape *s, enum model_role role, int layer,
                     struct model_param *out);
int64_t model_param_count(const struct model_shape *s); // number of parameters as tensors
// The i-th parameter in the fixed order. False past the end.
bool model_param_at(const struct model_shape *s, int64_t i, struct model_param *out);
// The number of elements of all parameters, such as 124439808 for gpt2-124m. -1 when it does not
// fit in int64, which cannot happen for a checked shape.
int64_t model_total_elements(const struct model_shape *s);

// Fills n elements of a parameter, starting at `begin`, by its init rule. The values depend only on
// (seed, name, element).
void model_param_init(const struct model_param *p, uint64_t seed, int64_t begin, int64_t n,
                      float *out);
// The D/2 inverse frequencies of the rotary embedding, with llama3 scaling, as HF computes them in
// float32.
void model_rope_frequencies(const struct model_shape *s, float *out);

#endif
