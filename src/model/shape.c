// shape.c - what every shape must satisfy, the switches of each family, finding a shape by name or
// folder, rotary frequencies.
//
// All later code (layout, planner, kernels) relies on model_shape_check: sizes are positive and
// bounded, products fit in int64, and the switches are those of one of the four families.
#include "model/shape.h"
#include "model/family.h"
#include "model/hub.h"
#include "model/safetensors.h"

#include "base/checked.h"
#include "base/file.h"

#include <limits.h>
#include <math.h>
#include <string.h>

// These limits are far above any published model, and low enough that a product of any three sizes
// fits easily in int64. Token ids and positions are int32 elsewhere.
enum {
    VOCAB_MAX = 1 << 24,
    WIDTH_MAX = 1 << 20,
    LAYERS_MAX = 10000,
    HEADS_MAX = 1 << 16,
    HEAD_DIM_MAX = 1 << 16,
    FFN_MAX = 1 << 24,
    POSITIONS_MAX = 1 << 30,
};
// Optimizer state, master weight, gradient and weight of an element together never exceed this
// number of bytes (4 fp64 values).
enum { BYTES_PER_ELEMENT_MAX = 32 };

static const char *const model_types[] = {
#define X(name, type, arch) type,
    MODEL_FAMILY_LIST(X)
#undef X
};
static const char *const architectures[] = {
#define X(name, type, arch) arch,
    MODEL_FAMILY_LIST(X)
#undef X
};

const char *family_model_type(enum model_family family) {
    return model_types[family];
}

const char *family_architecture(enum model_family family) {
    return architectures[family];
}

const char *family_key(enum model_family family, const char *gpt2, const char *others) {
    return family == FAMILY_GPT2 ? gpt2 : others;
}

void family_set_switches(struct model_shape *s, enum model_family family) {
    bool gpt2 = family == FAMILY_GPT2;
    s->family = family;
    s->norm = gpt2 ? NORM_LAYER : NORM_RMS;
    s->act = gpt2 ? ACT_GELU_TANH : ACT_SWIGLU;
    s->learned_positions = gpt2;
    s->packed_qkv = gpt2;
    s->in_out_weights = gpt2;
    s->qkv_bias = gpt2 || family == FAMILY_QWEN2;
    s->out_bias = gpt2;
    s->mlp_bias = gpt2;
    s->qk_norm = family == FAMILY_QWEN3;
    s->scale_by_layer = false;
    s->unscaled_attention = false;
}

int64_t model_shape_longest(const struct model_shape *s) {
    return s->window > 0 && s->window < s->max_positions ? s->window : s->max_positions;
}

static int check_size(const struct model_shape *s, const char *gpt2_key, const char *key,
                      int64_t value, int64_t max, struct err *e) {
    if (value >= 1 && value <= max)
        return 0;
    return err_set(e, ERR_FORMAT, "\"%s\" is %lld; accepted are 1 to %lld",
                   family_key(s->family, gpt2_key, key), (long long)value, (long long)max);
}

static int check_positive(const char *what, double value, struct err *e) {
    if (isfinite(value) && value > 0)
        return 0;
    return err_set(e, ERR_FORMAT, "\"%s\" is %g; it must be a finite number above 0", what, value);
}

static int check_rope(const struct model_shape *s, struct err *e) {
    const struct model_rope *r = &s->rope;
    TRY(check_positive("rope_theta", r->theta, e));
    if (s->head_dim % 2 != 0)
        return err_set(
            e, ERR_FORMAT,
            "the head dimension is %lld; rotary embedding turns pairs, so it must be even",
            (long long)s->head_dim);
    if (!r->llama3)
        return 0;
    TRY(check_positive("factor", r->factor, e));
    TRY(check_positive("low_freq_factor", r->low_freq_factor, e));
    TRY(check_positive("high_freq_factor", r->high_freq_factor, e));
    if (r->high_freq_factor <= r->low_freq_factor)
        return err_set(e, ERR_FORMAT,
                       "llama3 rope: high_freq_factor %g must be above low_freq_factor %g",
                       r->high_freq_factor, r->low_freq_factor);
    return check_size(s, "", "original_max_position_embeddings", r->original_max_positions,
                      POSITIONS_MAX, e);
}

// The switches must be those of the family, because parameter names and config.json cannot express
// other combinations.
static int check_switches(const struct model_shape *s, struct err *e) {
    struct model_shape want = *s;
    family_set_switches(&want, s->family);
    if (s->family == FAMILY_LLAMA || s->family == FAMILY_QWEN3)
        want.qkv_bias = want.out_bias = s->qkv_bias; // attention_bias
    if (s->family == FAMILY_LLAMA)
        want.mlp_bias = s->mlp_bias;
    if (s->family == FAMILY_GPT2) {
        want.scale_by_layer = s->scale_by_layer;
        want.unscaled_attention = s->unscaled_attention;
        if (s->act != ACT_SWIGLU)
            want.act = s->act;
    }
    const char *type = family_model_type(s->family);
    if (s->norm != want.norm || s->act != want.act || s->qk_norm != want.qk_norm)
        return err_set(e, ERR_FORMAT, "a %s model has no such norm or activation", type);
    if (s->learned_positions != want.learned_positions || s->packed_qkv != want.packed_qkv ||
        s->in_out_weights != want.in_out_weights)
        return err_set(e, ERR_FORMAT, "a %s model stores its positions or matrices differently",
                       type);
    if (s->qkv_bias != want.qkv_bias || s->out_bias != want.out_bias ||
        s->mlp_bias != want.mlp_bias)
        return err_set(e, ERR_FORMAT, "a %s model cannot have this combination of biases", type);
    if (s->scale_by_layer != want.scale_by_layer ||
        s->unscaled_attention != want.unscaled_attention)
        return err_set(e, ERR_FORMAT, "a %s model scales its attention by 1/sqrt(head dimension)",
                       type);
    return 0;
}

int model_shape_check(const struct model_shape *s, struct err *e) {
    if ((int)s->family < 0 || s->family >= FAMILY_COUNT)
        return err_set(e, ERR_FORMAT, "model family %d is unknown", (int)s->family);
    TRY(check_size(s, "vocab_size", "vocab_size", s->vocab, VOCAB_MAX, e));
    TRY(check_size(s, "n_embd", "hidden_size", s->width, WIDTH_MAX, e));
    TRY(check_size(s, "n_layer", "num_hidden_layers", s->layers, LAYERS_MAX, e));
    TRY(check_size(s, "n_head", "num_attention_heads", s->heads, HEADS_MAX, e));
    TRY(check_size(s, "n_head", "num_key_value_heads", s->kv_heads, HEADS_MAX, e));
    TRY(check_size(s, "head_dim", "head_dim", s->head_dim, HEAD_DIM_MAX, e));
    TRY(check_size(s, "n_inner", "intermediate_size", s->ffn, FFN_MAX, e));
    TRY(check_size(s, "n_positions", "max_position_embeddings", s->max_positions, POSITIONS_MAX,
                   e));
    if (s->window != 0 && s->family != FAMILY_MISTRAL)
        return err_set(e, ERR_FORMAT, "a %s model has no sliding window",
                       family_model_type(s->family));
    if (s->window != 0)
        TRY(check_size(s, "", "sliding_window", s->window, POSITIONS_MAX, e));
    if (s->heads % s->kv_heads != 0)
        return err_set(
            e, ERR_FORMAT,
            "\"num_attention_heads\" %lld is not a multiple of \"num_key_value_heads\" %lld",
            (long long)s->heads, (long long)s->kv_heads);
    TRY(check_positive(family_key(s->family, "layer_norm_epsilon", "rms_norm_eps"), s->norm_eps,
                       e));
    if (!isfinite(s->init_std) || s->init_std < 0)
        return err_set(e, ERR_FORMAT,
                       "\"initializer_range\" is %g; it must be finite and not negative",
                       (double)s->init_std);
    TRY(check_switches(s, e));
    if (s->packed_qkv && (s->kv_heads != s->heads || s->heads * s->head_dim != s->width))
        return err_set(
            e, ERR_FORMAT,
            "with one packed q/k/v matrix the %lld heads (%lld for keys and values) of %lld must "
            "make up the width %lld",
            (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim,
            (long long)s->width);
    if (s->learned_positions) {
        if (s->rope.theta != 0 || s->rope.llama3)
            return err_set(e, ERR_FORMAT,
                           "learned positions and rotary embedding exclude each other");
    } else {
        TRY(check_rope(s, e));
    }
    if (s->bos_id < -1 || s->bos_id >= s->vocab || s->eos_id < -1 || s->eos_id >= s->vocab)
        return err_set(e, ERR_FORMAT,
                       "begin/end token ids are %lld and %lld; accepted are 0 to vocab_size-1 = "
                       "%lld, or -1 for none",
                       (long long)s->bos_id, (long long)s->eos_id, (long long)s->vocab - 1);
    int64_t elements = model_total_elements(s), bytes = 0;
    if (elements < 0 || !checked_mul_i64(elements, BYTES_PER_ELEMENT_MAX, &bytes))
        return err_set(e, ERR_FORMAT,
                       "the model's sizes multiply to more bytes than can be addressed");
    return 0;
}

bool model_shape_is_builtin(const char *name) {
    for (size_t i = 0; i < model_shape_builtin_count(); i++)
        if (strcmp(model_shape_builtin_name(i), name) == 0)
            return true;
    return false;
}

int model_shape_open(struct model_shape *out, const char *given, bool *is_dir, struct err *e) {
    char name_or_dir[PATH_MAX];
    if (strlen(given) >= sizeof name_or_dir)
        return err_set(e, ERR_USAGE, "the name of the model is longer than %d bytes: %.80s...",
                       PATH_MAX - 1, given);
    strcpy(name_or_dir, given);
    if (!file_is_dir(given))
        TRY(safetensors_refuse_pickle(given, e));
    TRY(hub_resolve(name_or_dir, sizeof name_or_dir, NULL, e));
    // A built-in name wins over a folder with the same name. "./tiny" means the folder.
    const bool dir = file_is_dir(name_or_dir) && !model_shape_is_builtin(name_or_dir);
    if (is_dir != NULL)
        *is_dir = dir;
    if (!dir) {
        if (strchr(name_or_dir, '/') != NULL)
            return err_set(e, ERR_IO, "model folder '%.300s' does not exist or is not a folder",
                           name_or_dir);
        int rc = model_shape_builtin(out, name_or_dir, e);
        if (rc != 0)
            err_context(e, "'%.100s' is neither a model folder nor a built-in name", name_or_dir);
        return rc;
    }
    char path[PATH_MAX];
    TRY(file_join(path, sizeof path, name_or_dir, "config.json", e));
    if (!file_exists(path))
        return err_set(
            e, ERR_IO,
            "model folder '%.300s' has no config.json; a Hugging Face model folder needs one",
            name_or_dir);
    return model_shape_read_config(out, path, e);
}

// HF computes in float32: the exponent, the power, its inverse, and each step of the llama3 scaling
// are rounded to float. Here the power is computed in double and rounded once, which is what a good
// float pow returns.
void model_rope_frequencies(const struct model_shape *s, float *out) {
    const struct model_rope *r = &s->rope;
    const float two_pi = (float)(2 * M_PI);
    for (int64_t i = 0; i < s->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)s->head_dim;
        float freq = 1.0f / (float)pow((double)(float)r->theta, (double)exponent);
        if (r->llama3) {
            // Wavelengths above `low` are stretched by factor, and those below `high` are kept. In
            // between, the two are mixed linearly by the number of turns in the original context.
            float context = (float)r->original_max_positions, factor = (float)r->factor;
            float low = (float)((double)r->original_max_positions / r->low_freq_factor);
            float high = (float)((double)r->original_max_positions / r->high_freq_factor);
            float wave = two_pi / freq;
            if (wave > low) {
                freq = freq / factor;
            } else if (wave >= high) {
                float smooth = (context / wave - (float)r->low_freq_factor) /
                               (float)(r->high_freq_factor - r->low_freq_factor);
                freq = (1.0f - smooth) * freq / factor + smooth * freq;
            }
        }
        out[i] = freq;
    }
}
