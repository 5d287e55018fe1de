// config_write.c - writes a shape as a config.json that transformers (4 and 5) and haggle can read.
//
// Rotary parameters are written as in published checkpoints, with rope_theta beside rope_scaling.
// Version 4 reads nothing else, and version 5 converts them. Reading the file back gives the same
// shape, except for the name, which comes from the folder. tests/model/test_config.c checks this
// for every built-in shape.
#include "model/family.h"
#include "model/shape.h"

#include "base/json.h"

#include <stdlib.h>

// The shortest decimal that gives the float, so that 1e-5f is written as 1e-05 and not with the
// digits of its exact value.
static double shortest(float x) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) { // 9 digits distinguish any two floats
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x)
            break;
    }
    return strtod(text, NULL);
}

static void put_token(struct json_writer *w, const char *key, int64_t id) {
    json_put_key(w, key);
    if (id >= 0)
        json_put_i64(w, id);
    else
        json_put_null(w);
}

static const char *activation(enum model_act act) {
    switch (act) {
    case ACT_GELU_TANH:
        return "gelu_new";
    case ACT_GELU_ERF:
        return "gelu";
    case ACT_RELU:
        return "relu";
    case ACT_SWIGLU:
        break;
    }
    return "silu";
}

static void put_gpt2(struct json_writer *w, const struct model_shape *s) {
    json_member_string(w, "activation_function", activation(s->act));
    // haggle trains without dropout. Another program should not turn it on by default later.
    json_member_double(w, "attn_pdrop", 0);
    json_member_double(w, "embd_pdrop", 0);
    json_member_double(w, "resid_pdrop", 0);
    json_member_double(w, "layer_norm_epsilon", shortest(s->norm_eps));
    json_member_i64(w, "n_embd", s->width);
    json_member_i64(w, "n_head", s->heads);
    json_member_i64(w, "n_inner", s->ffn);
    json_member_i64(w, "n_layer", s->layers);
    json_member_i64(w, "n_positions", s->max_positions);
    json_member_bool(w, "scale_attn_by_inverse_layer_idx", s->scale_by_layer);
    json_member_bool(w, "scale_attn_weights", !s->unscaled_attention);
}

static void put_rope(struct json_writer *w, const struct model_rope *r) {
    json_member_double(w, "rope_theta", r->theta);
    json_put_key(w, "rope_scaling");
    if (!r->llama3) {
        json_put_null(w);
        return;
    }
    json_put_object_begin(w);
    json_member_double(w, "factor", r->factor);
    json_member_double(w, "high_freq_factor", r->high_freq_factor);
    json_member_double(w, "low_freq_factor", r->low_freq_factor);
    json_member_i64(w, "original_max_position_embeddings", r->original_max_positions);
    json_member_string(w, "rope_type", "llama3");
    json_put_object_end(w);
}

static void put_llama(struct json_writer *w, const struct model_shape *s) {
    if (s->family == FAMILY_LLAMA || s->family == FAMILY_QWEN3)
        json_member_bool(w, "attention_bias", s->qkv_bias);
    json_member_double(w, "attention_dropout", 0);
    // Qwen2's class has no default head_dim but uses one if given. It is written only when it
    // differs from width / heads.
    if (s->family != FAMILY_QWEN2 || s->head_dim * s->heads != s->width)
        json_member_i64(w, "head_dim", s->head_dim);
    json_member_string(w, "hidden_act", activation(s->act));
    json_member_i64(w, "hidden_size", s->width);
    json_member_i64(w, "intermediate_size", s->ffn);
    json_member_i64(w, "max_position_embeddings", s->max_positions);
    if (s->family == FAMILY_LLAMA)
        json_member_bool(w, "mlp_bias", s->mlp_bias);
    json_member_i64(w, "num_attention_heads", s->heads);
    json_member_i64(w, "num_hidden_layers", s->layers);
    json_member_i64(w, "num_key_value_heads", s->kv_heads);
    json_member_double(w, "rms_norm_eps", shortest(s->norm_eps));
    put_rope(w, &s->rope);
    if (s->family == FAMILY_MISTRAL) {
        json_put_key(w, "sliding_window");
        if (s->window > 0)
            json_put_i64(w, s->window);
        else
            json_put_null(w);
    } else if (s->family != FAMILY_LLAMA) {
        json_member_bool(w, "use_sliding_window", false);
    }
}

int model_shape_write_config(const struct model_shape *s, FILE *f, struct err *e) {
    struct json_writer w;
    TRY(model_shape_check(s, e));
    json_writer_to_file(&w, f, 2);
    json_put_object_begin(&w);
    json_member_array(&w, "architectures");
    json_put_string(&w, family_architecture(s->family));
    json_put_array_end(&w);
    json_member_string(&w, "model_type", family_model_type(s->family));
    json_member_string(&w, "torch_dtype", "float32");
    json_member_i64(&w, "vocab_size", s->vocab);
    put_token(&w, "bos_token_id", s->bos_id);
    put_token(&w, "eos_token_id", s->eos_id);
    json_member_double(&w, "initializer_range", shortest(s->init_std));
    json_member_bool(&w, "tie_word_embeddings", s->tied);
    json_member_bool(&w, "use_cache", true);
    if (s->family == FAMILY_GPT2)
        put_gpt2(&w, s);
    else
        put_llama(&w, s);
    json_put_object_end(&w);
    return json_writer_finish(&w, e);
}
