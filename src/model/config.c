// config.c - reads a Hugging Face (HF) config.json into a shape. The file is untrusted input.
//
// The file is read once into a table of the keys that matter. Keys may come in any order, and
// model_type may come last. Then the family's rules turn the table into a shape. Absent keys get
// the same defaults as in transformers' configuration classes, so that a folder means the same
// model here and there. What haggle cannot compute is refused, and the error names the key. Dropout
// and cache settings do not change the model and are ignored. At the end model_shape_check checks
// the shape.
#include "model/family.h"
#include "model/names.h"
#include "model/shape.h"

#include "base/file.h"
#include "base/json.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 16 << 20 };

#define CONFIG_KEYS(X)                                                                             \
    X(model_type)                                                                                  \
    X(vocab_size)                                                                                  \
    X(n_embd)                                                                                      \
    X(n_layer)                                                                                     \
    X(n_head)                                                                                      \
    X(n_inner)                                                                                     \
    X(n_positions)                                                                                 \
    X(activation_function)                                                                         \
    X(layer_norm_epsilon)                                                                          \
    X(scale_attn_weights)                                                                          \
    X(scale_attn_by_inverse_layer_idx)                                                             \
    X(add_cross_attention)                                                                         \
    X(hidden_size)                                                                                 \
    X(intermediate_size)                                                                           \
    X(num_hidden_layers)                                                                           \
    X(num_attention_heads)                                                                         \
    X(num_key_value_heads)                                                                         \
    X(head_dim)                                                                                    \
    X(max_position_embeddings)                                                                     \
    X(hidden_act)                                                                                  \
    X(rms_norm_eps)                                                                                \
    X(rope_theta)                                                                                  \
    X(rope_scaling)                                                                                \
    X(rope_parameters)                                                                             \
    X(partial_rotary_factor)                                                                       \
    X(attention_bias)                                                                              \
    X(mlp_bias)                                                                                    \
    X(use_sliding_window)                                                                          \
    X(sliding_window)                                                                              \
    X(layer_types)                                                                                 \
    X(initializer_range)                                                                           \
    X(tie_word_embeddings)                                                                         \
    X(quantization_config)                                                                         \
    X(bos_token_id)                                                                                \
    X(eos_token_id)

#define ROPE_KEYS(X)                                                                               \
    X(rope_type)                                                                                   \
    X(type)                                                                                        \
    X(rope_theta)                                                                                  \
    X(factor)                                                                                      \
    X(low_freq_factor)                                                                             \
    X(high_freq_factor)                                                                            \
    X(original_max_position_embeddings)                                                            \
    X(partial_rotary_factor)

#define X(key) K_##key,
enum config_key { CONFIG_KEYS(X) CONFIG_KEY_COUNT };
#undef X
#define X(key) R_##key,
enum rope_key { ROPE_KEYS(X) ROPE_KEY_COUNT };
#undef X
#define X(key) #key,
static const char *const config_keys[] = {CONFIG_KEYS(X)};
static const char *const rope_keys[] = {ROPE_KEYS(X)};
#undef X

// One member as the file has it. Its type is checked only when it is used, because keys of another
// family do not matter.
struct value {
    const char *key;
    bool present;
    enum json_type type;
    double number; // in an array: the first element, if it is a number
    bool flag;
    const char *text; // in an array: the first string that is not "full_attention"
};

struct rope_table {
    bool any; // the object has members
    struct value values[ROPE_KEY_COUNT];
};

struct config {
    struct value values[CONFIG_KEY_COUNT];
    struct rope_table scaling, parameters; // the contents of rope_scaling and rope_parameters
};

// ---- the file into the table ----

static int read_array(struct json_reader *r, struct value *v) {
    TRY(json_enter_array(r));
    for (bool first = true; json_next_element(r); first = false) {
        enum json_type type = json_peek(r);
        const char *text = NULL;
        if (type == JSON_NUMBER && first) {
            TRY(json_read_double(r, &v->number));
        } else if (type == JSON_STRING && v->text == NULL) { // later strings are not needed
            TRY(json_read_string(r, &text, NULL));
            if (strcmp(text, "full_attention") != 0)
                v->text = text;
        } else {
            TRY(json_skip(r));
        }
    }
    return r->rc;
}

static int read_value(struct json_reader *r, struct value *v) {
    v->present = true;
    v->type = json_peek(r);
    v->number = NAN;
    switch (v->type) {
    case JSON_NUMBER:
        return json_read_double(r, &v->number);
    case JSON_BOOL:
        return json_read_bool(r, &v->flag);
    case JSON_STRING:
        return json_read_string(r, &v->text, NULL);
    case JSON_ARRAY:
        return read_array(r, v);
    default:
        return json_skip(r);
    }
}

static int find_key(const char *const *keys, int count, const char *key) {
    for (int i = 0; i < count; i++)
        if (strcmp(keys[i], key) == 0)
            return i;
    return -1;
}

static int take_once(struct json_reader *r, struct value *v, const char *key) {
    if (v->present)
        return json_fail(r, ERR_FORMAT, "\"%s\" is given twice", key);
    v->key = key;
    return 0;
}

static int read_rope(struct json_reader *r, struct rope_table *t) {
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        int k = find_key(rope_keys, ROPE_KEY_COUNT, key);
        t->any = true;
        if (json_peek(r) == JSON_OBJECT)
            return json_fail(r, ERR_UNSUPPORTED,
                             "rotary parameters that differ between layers are not supported");
        if (k < 0) {
            TRY(json_skip(r));
            continue;
        }
        TRY(take_once(r, &t->values[k], rope_keys[k]));
        TRY(read_value(r, &t->values[k]));
    }
    return r->rc;
}

// Of a quantized model only the method matters here: quantized.c reads what haggle wrote.
static int read_quantization(struct json_reader *r, struct value *v) {
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key))
        if (strcmp(key, "quant_method") == 0 && json_peek(r) == JSON_STRING)
            TRY(json_read_string(r, &v->text, NULL));
        else
            TRY(json_skip(r));
    return r->rc;
}

static int read_table(struct json_reader *r, struct config *c) {
    const char *key;
    TRY(json_enter_object(r));
    while (json_next_key(r, &key)) {
        int k = find_key(config_keys, CONFIG_KEY_COUNT, key);
        if (k < 0) {
            TRY(json_skip(r));
            continue;
        }
        struct value *v = &c->values[k];
        TRY(take_once(r, v, config_keys[k]));
        if (k == K_quantization_config && json_peek(r) == JSON_OBJECT) {
            v->present = true;
            v->type = JSON_OBJECT;
            TRY(read_quantization(r, v));
        } else if ((k == K_rope_scaling || k == K_rope_parameters) && json_peek(r) == JSON_OBJECT) {
            v->present = true;
            v->type = JSON_OBJECT;
            TRY(read_rope(r, k == K_rope_scaling ? &c->scaling : &c->parameters));
        } else {
            TRY(read_value(r, v));
        }
    }
    return json_finish(r);
}

// ---- values out of the table ----

static const char *type_text(const struct value *v) {
    static const char *const texts[] = {
        [JSON_NULL] = "null",        [JSON_BOOL] = "true or false", [JSON_NUMBER] = "a number",
        [JSON_STRING] = "a string",  [JSON_ARRAY] = "a list",       [JSON_OBJECT] = "an object",
        [JSON_INVALID] = "not JSON",
    };
    return texts[v->type];
}

static bool absent(const struct value *v) {
    return !v->present || v->type == JSON_NULL;
}

static bool is_integer(const struct value *v) {
    // Above 2^53 a double cannot hold every integer. Every accepted size is far below.
    return v->type == JSON_NUMBER && v->number == floor(v->number) && fabs(v->number) <= 0x1p53;
}

static int get_size(const struct value *v, int64_t otherwise, int64_t *out, struct err *e) {
    *out = otherwise;
    if (!v->present)
        return 0;
    if (v->type != JSON_NUMBER)
        return err_set(e, ERR_FORMAT, "\"%s\" is %s; it must be a whole number", v->key,
                       type_text(v));
    if (!is_integer(v))
        return err_set(e, ERR_FORMAT, "\"%s\" is %.17g; it must be a whole number below 2^53",
                       v->key, v->number);
    *out = (int64_t)v->number;
    return 0;
}

static int get_double(const struct value *v, double otherwise, double *out, struct err *e) {
    *out = absent(v) ? otherwise : v->number;
    if (!absent(v) && v->type != JSON_NUMBER)
        return err_set(e, ERR_FORMAT, "\"%s\" is %s; it must be a number", v->key, type_text(v));
    return 0;
}

static int get_bool(const struct value *v, bool otherwise, bool *out, struct err *e) {
    *out = absent(v) ? otherwise : v->flag;
    if (!absent(v) && v->type != JSON_BOOL)
        return err_set(e, ERR_FORMAT, "\"%s\" is %s; it must be true or false", v->key,
                       type_text(v));
    return 0;
}

// GPT-2's classes also accept the general name of a size. If both names are present they must
// agree.
static int get_aliased(const struct config *c, enum config_key key, enum config_key alias,
                       int64_t otherwise, int64_t *out, struct err *e) {
    const struct value *own = &c->values[key], *other = &c->values[alias];
    if (own->present && other->present && own->number != other->number)
        return err_set(e, ERR_FORMAT, "\"%s\" and \"%s\" name the same size but differ",
                       config_keys[key], config_keys[alias]);
    return get_size(own->present ? own : other, otherwise, out, e);
}

// An id outside the vocabulary becomes -1, "none": tiny test models inherit GPT-2's 50256 with a
// vocabulary of 512, and some files write -1. Instruction-tuned Llamas list several end tokens. The
// first one is the end token of the model itself.
static int get_token(const struct value *v, int64_t vocab, int64_t otherwise, int64_t *out,
                     struct err *e) {
    double id = v->present ? v->number : (double)otherwise;
    if (v->present && v->type != JSON_NUMBER && v->type != JSON_ARRAY && v->type != JSON_NULL)
        return err_set(e, ERR_FORMAT, "\"%s\" is %s; it must be a token id, a list of ids or null",
                       v->key, type_text(v));
    *out = id >= 0 && id < (double)vocab && id == floor(id) ? (int64_t)id : -1;
    return 0;
}

// ---- rules ----

static int set_activation(const struct config *c, struct model_shape *s, struct err *e) {
    static const struct {
        const char *name;
        enum model_act act;
    } known[] = {
        {"gelu_new", ACT_GELU_TANH},  {"gelu_pytorch_tanh", ACT_GELU_TANH},
        {"gelu_fast", ACT_GELU_TANH}, {"gelu", ACT_GELU_ERF},
        {"relu", ACT_RELU},           {"silu", ACT_SWIGLU},
        {"swish", ACT_SWIGLU},
    };
    bool gpt2 = s->family == FAMILY_GPT2;
    const struct value *v = &c->values[gpt2 ? K_activation_function : K_hidden_act];
    if (!v->present)
        return 0; // keeps the family's default
    const char *accepted =
        gpt2 ? "gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu" : "silu, swish";
    char quoted[NAMES_QUOTE_BYTES];
    if (v->type != JSON_STRING)
        return err_set(e, ERR_FORMAT, "\"%s\" is %s; accepted are: %s", v->key, type_text(v),
                       accepted);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, v->text) == 0 && (known[i].act == ACT_SWIGLU) == !gpt2) {
            s->act = known[i].act;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "\"%s\" is %s; accepted for a %s model are: %s", v->key,
                   names_quote(quoted, v->text), family_model_type(s->family), accepted);
}

static int set_llama3(const struct value *rope, struct model_rope *r, struct err *e) {
    static const enum rope_key needed[] = {R_factor, R_low_freq_factor, R_high_freq_factor,
                                           R_original_max_position_embeddings};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (absent(&rope[needed[i]]))
            return err_set(e, ERR_FORMAT, "rope type \"llama3\" needs \"%s\", which is missing",
                           rope_keys[needed[i]]);
    r->llama3 = true;
    TRY(get_double(&rope[R_factor], 0, &r->factor, e));
    TRY(get_double(&rope[R_low_freq_factor], 0, &r->low_freq_factor, e));
    TRY(get_double(&rope[R_high_freq_factor], 0, &r->high_freq_factor, e));
    return get_size(&rope[R_original_max_position_embeddings], 0, &r->original_max_positions, e);
}

static int check_partial_rotary(const struct value *v, struct err *e) {
    double part;
    TRY(get_double(v, 1, &part, e));
    if (part != 1)
        return err_set(e, ERR_UNSUPPORTED,
                       "\"partial_rotary_factor\" is %g; haggle rotates whole heads only (1.0)",
                       part);
    return 0;
}

static int set_rope(const struct config *c, struct model_rope *r, struct err *e) {
    static const enum config_key holders[] = {K_rope_scaling, K_rope_parameters};
    for (size_t i = 0; i < sizeof holders / sizeof holders[0]; i++) {
        const struct value *v = &c->values[holders[i]];
        if (!absent(v) && v->type != JSON_OBJECT)
            return err_set(e, ERR_FORMAT, "\"%s\" is %s; it must be an object or null", v->key,
                           type_text(v));
    }
    TRY(check_partial_rotary(&c->values[K_partial_rotary_factor], e));
    // As in transformers, a rope_scaling with content wins over rope_parameters, and a rope_theta
    // inside either of them wins over the one at the top level.
    const struct value *rope = c->scaling.any ? c->scaling.values : c->parameters.values;
    double beside;
    TRY(get_double(&c->values[K_rope_theta], 10000, &beside, e));
    TRY(get_double(&rope[R_rope_theta], beside, &r->theta, e));
    TRY(check_partial_rotary(&rope[R_partial_rotary_factor], e));
    const struct value *type = &rope[absent(&rope[R_rope_type]) ? R_type : R_rope_type];
    char quoted[NAMES_QUOTE_BYTES];
    if (absent(type))
        return 0; // transformers uses "default" then
    if (type->type != JSON_STRING)
        return err_set(e, ERR_FORMAT, "\"%s\" is %s; accepted are: default, llama3", type->key,
                       type_text(type));
    if (strcmp(type->text, "default") == 0)
        return 0;
    if (strcmp(type->text, "llama3") == 0)
        return set_llama3(rope, r, e);
    return err_set(e, ERR_UNSUPPORTED, "rope type is %s; accepted are: default, llama3",
                   names_quote(quoted, type->text));
}

static int set_gpt2(const struct config *c, struct model_shape *s, struct err *e) {
    const struct value *v = c->values;
    bool scaled, cross;
    double eps;
    TRY(get_size(&v[K_vocab_size], 50257, &s->vocab, e));
    TRY(get_aliased(c, K_n_embd, K_hidden_size, 768, &s->width, e));
    TRY(get_aliased(c, K_n_layer, K_num_hidden_layers, 12, &s->layers, e));
    TRY(get_aliased(c, K_n_head, K_num_attention_heads, 12, &s->heads, e));
    TRY(get_aliased(c, K_n_positions, K_max_position_embeddings, 1024, &s->max_positions, e));
    TRY(get_double(&v[K_layer_norm_epsilon], 1e-5, &eps, e));
    TRY(get_bool(&v[K_scale_attn_weights], true, &scaled, e));
    TRY(get_bool(&v[K_scale_attn_by_inverse_layer_idx], false, &s->scale_by_layer, e));
    TRY(get_bool(&v[K_add_cross_attention], false, &cross, e));
    TRY(get_bool(&v[K_tie_word_embeddings], true, &s->tied, e));
    s->norm_eps = (float)eps;
    s->unscaled_attention = !scaled;
    s->kv_heads = s->heads;
    if (cross)
        return err_set(e, ERR_UNSUPPORTED,
                       "\"add_cross_attention\" is true; only false is supported");
    if (s->width <= 0 || s->heads <= 0 || s->width % s->heads != 0)
        return err_set(e, ERR_FORMAT, "\"n_embd\" %lld is not a multiple of \"n_head\" %lld",
                       (long long)s->width, (long long)s->heads);
    s->head_dim = s->width / s->heads;
    const struct value none = {0};
    return get_size(absent(&v[K_n_inner]) ? &none : &v[K_n_inner], 4 * s->width, &s->ffn, e);
}

// haggle computes full attention. Within the window that is the same.
static int set_window(const struct config *c, struct model_shape *s, struct err *e) {
    const struct value *v = &c->values[K_sliding_window];
    if (v->present && v->type == JSON_NULL)
        return 0;
    TRY(get_size(v, 4096, &s->window, e));
    return s->window > 0 ? 0
                         : err_set(e, ERR_FORMAT,
                                   "\"sliding_window\" is %lld; accepted are null, or 1 or more",
                                   (long long)s->window);
}

// For Llama, Mistral and Qwen, which differ in defaults and in the meaning of attention_bias.
static int set_llama(const struct config *c, struct model_shape *s, struct err *e) {
    const struct value *v = c->values;
    bool llama = s->family == FAMILY_LLAMA, mistral = s->family == FAMILY_MISTRAL;
    double eps;
    TRY(get_size(&v[K_vocab_size], llama || mistral ? 32000 : 151936, &s->vocab, e));
    TRY(get_size(&v[K_hidden_size], 4096, &s->width, e));
    TRY(get_size(&v[K_intermediate_size], llama ? 11008 : mistral ? 14336 : 22016, &s->ffn, e));
    TRY(get_size(&v[K_num_hidden_layers], 32, &s->layers, e));
    TRY(get_size(&v[K_num_attention_heads], 32, &s->heads, e));
    TRY(get_size(&v[K_max_position_embeddings],
                 llama     ? 2048
                 : mistral ? 131072
                           : 32768,
                 &s->max_positions, e));
    // null means "as many as heads" in all of them. A missing key means the same for Llama, but 32
    // for Qwen and 8 for Mistral.
    if (v[K_num_key_value_heads].present && v[K_num_key_value_heads].type == JSON_NULL)
        s->kv_heads = s->heads;
    else
        TRY(get_size(&v[K_num_key_value_heads],
                     llama     ? s->heads
                     : mistral ? 8
                               : 32,
                     &s->kv_heads, e));
    if (!absent(&v[K_head_dim])) {
        TRY(get_size(&v[K_head_dim], 0, &s->head_dim, e));
    } else if (s->family == FAMILY_QWEN3) {
        s->head_dim = 128;
    } else {
        if (s->width <= 0 || s->heads <= 0 || s->width % s->heads != 0)
            return err_set(
                e, ERR_FORMAT,
                "\"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld, and no "
                "\"head_dim\" is given",
                (long long)s->width, (long long)s->heads);
        s->head_dim = s->width / s->heads;
    }
    TRY(get_double(&v[K_rms_norm_eps], 1e-6, &eps, e));
    s->norm_eps = (float)eps;
    TRY(get_bool(&v[K_tie_word_embeddings], false, &s->tied, e));
    if (s->family == FAMILY_LLAMA || s->family == FAMILY_QWEN3) {
        bool bias;
        TRY(get_bool(&v[K_attention_bias], false, &bias, e));
        s->qkv_bias = s->out_bias = bias;
    }
    if (llama)
        TRY(get_bool(&v[K_mlp_bias], false, &s->mlp_bias, e));
    if (mistral)
        TRY(set_window(c, s, e));
    if (!llama) {
        bool sliding;
        TRY(get_bool(&v[K_use_sliding_window], false, &sliding, e));
        if (sliding)
            return err_set(
                e, ERR_UNSUPPORTED,
                "\"use_sliding_window\" is true; haggle computes full attention only (false)");
        char quoted[NAMES_QUOTE_BYTES];
        if (v[K_layer_types].text != NULL)
            return err_set(e, ERR_UNSUPPORTED,
                           "\"layer_types\" has %s; accepted is: full_attention",
                           names_quote(quoted, v[K_layer_types].text));
    }
    return set_rope(c, &s->rope, e);
}

static int find_family(const struct config *c, enum model_family *out, struct err *e) {
    const struct value *v = &c->values[K_model_type];
    char quoted[NAMES_QUOTE_BYTES];
    if (!v->present || v->type != JSON_STRING)
        return err_set(e, ERR_FORMAT,
                       "\"model_type\" is missing or not a string; accepted are: "
                       "gpt2, llama, mistral, qwen2, qwen3");
    for (int f = 0; f < FAMILY_COUNT; f++)
        if (strcmp(family_model_type((enum model_family)f), v->text) == 0) {
            *out = (enum model_family)f;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED,
                   "\"model_type\" is %s; accepted are: gpt2, llama, mistral, qwen2, qwen3",
                   names_quote(quoted, v->text));
}

static int to_shape(const struct config *c, struct model_shape *s, struct err *e) {
    enum model_family family = FAMILY_COUNT;
    TRY(find_family(c, &family, e));
    const struct value *quantized = &c->values[K_quantization_config];
    if (!absent(quantized) && (!quantized->text || strcmp(quantized->text, "haggle") != 0))
        return err_set(
            e, ERR_UNSUPPORTED,
            "\"quantization_config\" is of another tool; haggle reads float32, bfloat16 or float16 "
            "weights, and models that it has quantized itself: use the unquantized model");
    family_set_switches(s, family);
    TRY(set_activation(c, s, e));
    TRY(family == FAMILY_GPT2 ? set_gpt2(c, s, e) : set_llama(c, s, e));
    double std;
    TRY(get_double(&c->values[K_initializer_range], 0.02, &std, e));
    s->init_std = (float)std;
    bool llama = family == FAMILY_LLAMA || family == FAMILY_MISTRAL;
    int64_t bos = family == FAMILY_GPT2 ? 50256 : llama ? 1 : -1;
    int64_t eos = family == FAMILY_GPT2 ? 50256 : llama ? 2 : -1;
    TRY(get_token(&c->values[K_bos_token_id], s->vocab, bos, &s->bos_id, e));
    TRY(get_token(&c->values[K_eos_token_id], s->vocab, eos, &s->eos_id, e));
    return model_shape_check(s, e);
}

// ---- the model's name ----

// Uses the folder's name. In the Hugging Face cache (models--org--name/snapshots/<commit>/) it uses
// the model's name, org/name.
static void set_name(struct model_shape *s, const char *config_path) {
    // In the cache config.json is a link into ../../blobs, so only links of the folder are
    // followed.
    const char *slash = strrchr(config_path, '/');
    char dir[PATH_MAX], path[PATH_MAX];
    snprintf(s->name, sizeof s->name, "%s", family_model_type(s->family));
    snprintf(dir, sizeof dir, "%.*s", slash != NULL ? (int)(slash - config_path) + 1 : 1,
             slash != NULL ? config_path : ".");
    if (realpath(dir, path) == NULL)
        return;
    char *last = strrchr(path, '/');
    if (last == NULL || last[1] == '\0')
        return;
    const char *name = last + 1;
    char *cache = strstr(path, "/models--");
    char *snapshots = cache != NULL ? strstr(cache, "/snapshots/") : NULL;
    char joined[PATH_MAX];
    if (snapshots != NULL && snapshots + strlen("/snapshots") == last) {
        *snapshots = '\0';
        const char *org = cache + strlen("/models--"), *split = strstr(org, "--");
        if (split != NULL)
            snprintf(joined, sizeof joined, "%.*s/%s", (int)(split - org), org, split + 2);
        else
            snprintf(joined, sizeof joined, "%s", org);
        name = joined;
    }
    snprintf(s->name, sizeof s->name, "%.*s", (int)sizeof s->name - 1, name);
}

int model_shape_read_config(struct model_shape *out, const char *path, struct err *e) {
    char *text;
    size_t bytes;
    TRY(file_read_all(path, CONFIG_MAX_BYTES, &text, &bytes, e));
    struct region strings = {0};
    struct json_reader r;
    struct config c = {0};
    struct model_shape s = {0};
    json_reader_init(&r, path, text, bytes, &strings, e);
    int rc = read_table(&r, &c);
    if (rc == 0) {
        rc = to_shape(&c, &s, e);
        if (rc != 0)
            err_context(e, "%s", path);
    }
    if (rc == 0) {
        set_name(&s, path);
        *out = s;
    }
    region_free(&strings);
    free(text);
    return rc;
}
