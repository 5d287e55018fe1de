// gguf_model.c - a model's shape and parameters as llama.cpp names and stores them.
//
// Differences to a Hugging Face folder:
//   - llama.cpp's architecture "llama" rotates neighbouring elements of a head, where Hugging Face
//     rotates an element of the first half with one of the second. The rows of q and k (and their
//     biases) are reordered to make up for it. Its qwen2 and qwen3 rotate halves.
//   - GPT-2's matrices are stored [in, out] and are transposed here.
//   - The scaling of Llama 3.1's rotary frequencies is a tensor of factors, not numbers.
// Norms and biases are vectors and stay float32, and so do GPT-2's positions, which are added to
// the embedding and never multiplied. llama.cpp's own tools do the same.
#include "export/gguf_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS_MOST = 512, BAND_ELEMENTS = EXPORT_BLOCK }; // the first is llama.cpp's own limit

static const struct {
    const char *text;
    bool layered;
} names[ROLE_COUNT] = {
    [ROLE_WTE] = {"token_embd.weight", false},      [ROLE_WPE] = {"position_embd.weight", false},
    [ROLE_NORM1_W] = {"attn_norm.weight", true},    [ROLE_NORM1_B] = {"attn_norm.bias", true},
    [ROLE_QKV_W] = {"attn_qkv.weight", true},       [ROLE_QKV_B] = {"attn_qkv.bias", true},
    [ROLE_Q_W] = {"attn_q.weight", true},           [ROLE_Q_B] = {"attn_q.bias", true},
    [ROLE_K_W] = {"attn_k.weight", true},           [ROLE_K_B] = {"attn_k.bias", true},
    [ROLE_V_W] = {"attn_v.weight", true},           [ROLE_V_B] = {"attn_v.bias", true},
    [ROLE_QNORM_W] = {"attn_q_norm.weight", true},  [ROLE_KNORM_W] = {"attn_k_norm.weight", true},
    [ROLE_OUT_W] = {"attn_output.weight", true},    [ROLE_OUT_B] = {"attn_output.bias", true},
    [ROLE_NORM2_W] = {"ffn_norm.weight", true},     [ROLE_NORM2_B] = {"ffn_norm.bias", true},
    [ROLE_GATE_W] = {"ffn_gate.weight", true},      [ROLE_GATE_B] = {"ffn_gate.bias", true},
    [ROLE_UP_W] = {"ffn_up.weight", true},          [ROLE_UP_B] = {"ffn_up.bias", true},
    [ROLE_DOWN_W] = {"ffn_down.weight", true},      [ROLE_DOWN_B] = {"ffn_down.bias", true},
    [ROLE_NORMF_W] = {"output_norm.weight", false}, [ROLE_NORMF_B] = {"output_norm.bias", false},
    [ROLE_HEAD_W] = {"output.weight", false},
};

// ---------------------------------------------------------------- what can be written

static bool is_llama(const struct model_shape *s) {
    return s->family == FAMILY_LLAMA || s->family == FAMILY_MISTRAL;
}

const char *gguf_model_architecture(const struct model_shape *s) {
    return is_llama(s) ? "llama" : family_model_type(s->family);
}

static int refuse(const struct model_shape *s, const char *what, struct err *e) {
    return err_set(e, ERR_UNSUPPORTED,
                   "llama.cpp's %s cannot compute this model: it has %s. Export it as a Hugging "
                   "Face folder instead (haggle export RUN OUT_DIR)",
                   gguf_model_architecture(s), what);
}

int gguf_model_check(const struct model_shape *s, struct err *e) {
    if (s->layers > LAYERS_MOST)
        return refuse(s, "more than 512 layers", e);
    if (s->family == FAMILY_GPT2 && s->act != ACT_GELU_TANH)
        return refuse(s, "another activation_function than gelu_new (GELU by tanh)", e);
    if (s->scale_by_layer)
        return refuse(s, "scale_attn_by_inverse_layer_idx", e);
    if (s->unscaled_attention)
        return refuse(s, "scale_attn_weights=false", e);
    if (!is_llama(s) && s->rope.llama3)
        return refuse(s, "llama3 scaling of its rotary frequencies", e);
    if (s->family == FAMILY_QWEN3 && s->out_bias)
        return refuse(s, "attention_bias, a bias on the output of attention", e);
    if (s->family == FAMILY_QWEN2 && s->heads * s->head_dim != s->width)
        return refuse(s, "a head_dim that is not hidden_size / num_attention_heads", e);
    return 0;
}

// ---------------------------------------------------------------- numbers

static void put_u32(struct gguf_head *h, const char *architecture, const char *name, int64_t x) {
    char key[GGUF_NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    gguf_put_u32(h, key, (uint32_t)x);
}

static void put_float(struct gguf_head *h, const char *architecture, const char *name, double x) {
    char key[GGUF_NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    gguf_put_float(h, key, (float)x);
}

void gguf_model_put(struct gguf_head *h, const struct model_shape *s) {
    const char *a = gguf_model_architecture(s);
    put_u32(h, a, "vocab_size", s->vocab);
    // llama.cpp gives GPT-2's table of positions this many rows. A Mistral's window is the longest
    // text, because llama.cpp computes full attention for "llama".
    put_u32(h, a, "context_length",
            s->learned_positions ? s->max_positions : model_shape_longest(s));
    put_u32(h, a, "embedding_length", s->width);
    put_u32(h, a, "block_count", s->layers);
    put_u32(h, a, "feed_forward_length", s->ffn);
    put_u32(h, a, "attention.head_count", s->heads);
    put_u32(h, a, "attention.head_count_kv", s->kv_heads);
    put_float(h, a,
              s->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                  : "attention.layer_norm_epsilon",
              (double)s->norm_eps);
    if (s->learned_positions)
        return;
    put_u32(h, a, "attention.key_length", s->head_dim);
    put_u32(h, a, "attention.value_length", s->head_dim);
    put_u32(h, a, "rope.dimension_count", s->head_dim);
    put_float(h, a, "rope.freq_base", s->rope.theta);
}

// ---------------------------------------------------------------- tensors

static void describe(const struct model_shape *s, enum gguf_type wanted, struct gguf_item *t) {
    const struct model_param *p = &t->param;
    const bool table = p->role == ROLE_WTE || p->role == ROLE_WPE || p->role == ROLE_HEAD_W;
    if (names[p->role].layered)
        snprintf(t->name, sizeof t->name, "blk.%d.%s", p->layer, names[p->role].text);
    else
        snprintf(t->name, sizeof t->name, "%s", names[p->role].text);
    t->order = GGUF_ROWS;
    t->rows = p->rank > 1 ? p->dims[0] : 1;
    t->columns = p->rank > 1 ? p->dims[1] : p->dims[0];
    if (p->rank > 1 && s->in_out_weights && !table) {
        t->order = GGUF_COLUMNS;
        t->rows = p->dims[1];
        t->columns = p->dims[0];
    }
    const bool rotated =
        p->role == ROLE_Q_W || p->role == ROLE_K_W || p->role == ROLE_Q_B || p->role == ROLE_K_B;
    if (is_llama(s) && rotated) {
        t->order = GGUF_ROTARY;
        t->head = s->head_dim;
    }
    t->type = p->rank == 1 || p->role == ROLE_WPE ? GGUF_F32 : wanted;
    if (t->columns % gguf_block_elements(t->type) != 0)
        t->type = GGUF_F16;
}

static void add_frequencies(const struct model_shape *s, struct gguf_item *t) {
    *t = (struct gguf_item){.name = "rope_freqs.weight",
                            .type = GGUF_F32,
                            .order = GGUF_FREQUENCY,
                            .rows = 1,
                            .columns = s->head_dim / 2,
                            .param = {.name = "rope_freqs.weight", .rank = 1}};
}

int gguf_model_items(const struct model_shape *s, enum gguf_type wanted, struct gguf_item **out,
                     int64_t *n, struct err *e) {
    const int64_t params = model_param_count(s);
    *n = 0;
    *out = calloc((size_t)params + 1, sizeof **out);
    if (*out == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a list of %" PRId64 " tensors", params);
    while (model_param_at(s, *n, &(*out)[*n].param)) {
        describe(s, wanted, &(*out)[*n]);
        ++*n;
    }
    if (s->rope.llama3)
        add_frequencies(s, &(*out)[(*n)++]);
    return 0;
}

// ---------------------------------------------------------------- values

int64_t gguf_model_band(const struct gguf_item *t) {
    const int64_t rows = BAND_ELEMENTS / t->columns > 1 ? BAND_ELEMENTS / t->columns : 1;
    if (t->order != GGUF_ROTARY || t->param.rank == 1)
        return rows < t->rows ? rows : t->rows;
    const int64_t heads = rows / t->head > 1 ? rows / t->head : 1;
    return heads * t->head < t->rows ? heads * t->head : t->rows;
}

// A band of columns of the source: a piece of each of its rows.
static int read_columns(struct exporter *x, const struct gguf_item *t, int64_t first, int64_t n,
                        float *out, float *scratch) {
    for (int64_t c = 0; c < t->columns; c++) {
        TRY(export_read(x, &t->param, c * t->rows + first, n, scratch));
        for (int64_t r = 0; r < n; r++)
            out[r * t->columns + c] = scratch[r];
    }
    return 0;
}

// Row 2i of a head is row i of the source, row 2i + 1 is row i of the head's second half.
static int read_rotary(struct exporter *x, const struct gguf_item *t, int64_t first, int64_t n,
                       float *out, float *scratch) {
    const bool vector = t->param.rank == 1;
    const int64_t rows = vector ? t->columns : n, width = vector ? 1 : t->columns;
    TRY(export_read(x, &t->param, first * width, rows * width, scratch));
    for (int64_t r = 0; r < rows; r++) {
        const int64_t head = r / t->head * t->head, i = r % t->head;
        const int64_t from = head + i / 2 + i % 2 * (t->head / 2);
        memcpy(out + r * width, scratch + from * width, (size_t)width * sizeof *out);
    }
    return 0;
}

// What divides each frequency: the frequencies without scaling over those with it.
static int read_frequencies(const struct model_shape *s, int64_t n, float *out, float *scratch) {
    struct model_shape plain = *s;
    plain.rope.llama3 = false;
    model_rope_frequencies(&plain, out);
    model_rope_frequencies(s, scratch);
    for (int64_t i = 0; i < n; i++)
        out[i] /= scratch[i];
    return 0;
}

int gguf_model_read(struct exporter *x, const struct gguf_item *t, int64_t first, int64_t n,
                    float *out, float *scratch) {
    switch (t->order) {
    case GGUF_COLUMNS:
        return read_columns(x, t, first, n, out, scratch);
    case GGUF_ROTARY:
        return read_rotary(x, t, first, n, out, scratch);
    case GGUF_FREQUENCY:
        return read_frequencies(&x->shape, t->columns, out, scratch);
    case GGUF_ROWS:
        break;
    }
    return export_read(x, &t->param, first * t->columns, n * t->columns, out);
}
