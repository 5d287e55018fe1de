// builtin.c - the shapes that haggle knows by name: one table with the values published in each
// model's config.json.
//
// A row holds only what differs inside a family. shape_of adds the family's switches, the same ones
// that config.c derives from a file. tests/model/test_shape.c compares every row with the published
// parameter count.
#include "model/family.h"
#include "model/shape.h"

#include "base/text.h"

#include <string.h>

struct row {
    const char *name;
    enum model_family family;
    int64_t vocab, width, layers, heads, kv_heads, head_dim, ffn, max_positions;
    bool tied;
    double theta, factor; // factor 0 means no llama3 frequency scaling
    float norm_eps;
    int64_t bos_id, eos_id;
};

enum {
    GPT2_VOCAB = 50257,
    GPT2_END = 50256,
    LLAMA3_VOCAB = 128256,
    LLAMA3_BEGIN = 128000,
    LLAMA3_END = 128001,
    QWEN_VOCAB = 151936,
    QWEN_END = 151643,    // <|endoftext|>
    QWEN_IM_END = 151645, // <|im_end|>
};

// Columns: name, family, V, C, L, H, G, D, F, max positions, tied, rope theta, llama3 factor, eps,
// bos, eos.
static const struct row rows[] = {
    // haggle's own model, like Llama, for byte-level text: ids 0 to 255 are bytes, 256 is the end
    // of text. The other ids are unused and make V a multiple of 64.
    {"tiny", FAMILY_LLAMA, 320, 128, 4, 4, 2, 32, 352, 512, true, 1e4, 0, 1e-5f, 256, 256},
    // openai-community/gpt2, gpt2-medium, gpt2-large, gpt2-xl
    {"gpt2-124m", FAMILY_GPT2, GPT2_VOCAB, 768, 12, 12, 12, 64, 3072, 1024, true, 0, 0, 1e-5f,
     GPT2_END, GPT2_END},
    {"gpt2-355m", FAMILY_GPT2, GPT2_VOCAB, 1024, 24, 16, 16, 64, 4096, 1024, true, 0, 0, 1e-5f,
     GPT2_END, GPT2_END},
    {"gpt2-774m", FAMILY_GPT2, GPT2_VOCAB, 1280, 36, 20, 20, 64, 5120, 1024, true, 0, 0, 1e-5f,
     GPT2_END, GPT2_END},
    {"gpt2-1558m", FAMILY_GPT2, GPT2_VOCAB, 1600, 48, 25, 25, 64, 6400, 1024, true, 0, 0, 1e-5f,
     GPT2_END, GPT2_END},
    // meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B, Llama-3.1-70B
    {"llama-1b", FAMILY_LLAMA, LLAMA3_VOCAB, 2048, 16, 32, 8, 64, 8192, 131072, true, 5e5, 32,
     1e-5f, LLAMA3_BEGIN, LLAMA3_END},
    {"llama-3b", FAMILY_LLAMA, LLAMA3_VOCAB, 3072, 28, 24, 8, 128, 8192, 131072, true, 5e5, 32,
     1e-5f, LLAMA3_BEGIN, LLAMA3_END},
    {"llama-8b", FAMILY_LLAMA, LLAMA3_VOCAB, 4096, 32, 32, 8, 128, 14336, 131072, false, 5e5, 8,
     1e-5f, LLAMA3_BEGIN, LLAMA3_END},
    {"llama-70b", FAMILY_LLAMA, LLAMA3_VOCAB, 8192, 80, 64, 8, 128, 28672, 131072, false, 5e5, 8,
     1e-5f, LLAMA3_BEGIN, LLAMA3_END},
    // Qwen/Qwen2.5-0.5B, Qwen2.5-1.5B, Qwen2.5-7B (base models; Qwen2 has the same sizes)
    {"qwen2-0.5b", FAMILY_QWEN2, QWEN_VOCAB, 896, 24, 14, 2, 64, 4864, 32768, true, 1e6, 0, 1e-6f,
     QWEN_END, QWEN_END},
    {"qwen2-1.5b", FAMILY_QWEN2, QWEN_VOCAB, 1536, 28, 12, 2, 128, 8960, 131072, true, 1e6, 0,
     1e-6f, QWEN_END, QWEN_END},
    {"qwen2-7b", FAMILY_QWEN2, 152064, 3584, 28, 28, 4, 128, 18944, 131072, false, 1e6, 0, 1e-6f,
     QWEN_END, QWEN_END},
    // Qwen/Qwen3-0.6B, Qwen3-1.7B, Qwen3-4B, Qwen3-8B
    {"qwen3-0.6b", FAMILY_QWEN3, QWEN_VOCAB, 1024, 28, 16, 8, 128, 3072, 40960, true, 1e6, 0, 1e-6f,
     QWEN_END, QWEN_IM_END},
    {"qwen3-1.7b", FAMILY_QWEN3, QWEN_VOCAB, 2048, 28, 16, 8, 128, 6144, 40960, true, 1e6, 0, 1e-6f,
     QWEN_END, QWEN_IM_END},
    {"qwen3-4b", FAMILY_QWEN3, QWEN_VOCAB, 2560, 36, 32, 8, 128, 9728, 40960, true, 1e6, 0, 1e-6f,
     QWEN_END, QWEN_IM_END},
    {"qwen3-8b", FAMILY_QWEN3, QWEN_VOCAB, 4096, 36, 32, 8, 128, 12288, 40960, false, 1e6, 0, 1e-6f,
     QWEN_END, QWEN_IM_END},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static void shape_of(const struct row *r, struct model_shape *s) {
    *s = (struct model_shape){0};
    strncpy(s->name, r->name, sizeof s->name - 1);
    family_set_switches(s, r->family);
    s->vocab = r->vocab;
    s->width = r->width;
    s->layers = r->layers;
    s->heads = r->heads;
    s->kv_heads = r->kv_heads;
    s->head_dim = r->head_dim;
    s->ffn = r->ffn;
    s->max_positions = r->max_positions;
    s->tied = r->tied;
    s->norm_eps = r->norm_eps;
    s->init_std = 0.02f; // the initializer_range of all published configurations above
    s->bos_id = r->bos_id;
    s->eos_id = r->eos_id;
    s->rope.theta = r->theta;
    if (r->factor != 0) {
        // Llama 3.1 and 3.2 differ only in the factor.
        s->rope.llama3 = true;
        s->rope.factor = r->factor;
        s->rope.low_freq_factor = 1;
        s->rope.high_freq_factor = 4;
        s->rope.original_max_positions = 8192;
    }
}

size_t model_shape_builtin_count(void) {
    return ROWS;
}

const char *model_shape_builtin_name(size_t i) {
    return i < ROWS ? rows[i].name : NULL;
}

int model_shape_builtin(struct model_shape *out, const char *name, struct err *e) {
    const char *names[ROWS];
    char list[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            shape_of(&rows[i], out);
            return model_shape_check(out, e);
        }
        names[i] = rows[i].name;
        int n = snprintf(list + used, sizeof list - used, "%s%s", i == 0 ? "" : ", ", names[i]);
        if (n > 0 && (size_t)n < sizeof list - used)
            used += (size_t)n;
    }
    const char *near = text_suggest(name, names, ROWS);
    return err_set(e, ERR_USAGE, "no built-in model shape is called '%.100s'%s%s%s; there are: %s",
                   name, near != NULL ? " (did you mean '" : "", near != NULL ? near : "",
                   near != NULL ? "'?)" : "", list);
}
