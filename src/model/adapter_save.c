// adapter_save.c - writes an adapter as PEFT's two files.
//
// A weight that was trained as a whole is one of PEFT's modules_to_save. PEFT reads all parameters
// of such a module, so a bias beside a trained weight is written too.
#include "model/adapter_file.h"
#include "model/safetensors.h"

#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TENSOR_NAME_BYTES = sizeof ADAPTER_PREFIX + sizeof((struct model_param *)NULL)->name,
    BLOCK = 1 << 16,   // elements converted at a time
    ENTRY_BYTES = 300, // of a tensor in the file's header, without its name
};

// ---------------------------------------------------------------- what there is to write

static int module_length(const struct model_param *p) {
    const char *dot = strrchr(p->name, '.');
    return dot != NULL ? (int)(dot - p->name) : 0;
}

static bool same_module(const struct model_param *a, const struct model_param *b) {
    const int n = module_length(a);
    return n == module_length(b) && memcmp(a->name, b->name, (size_t)n) == 0;
}

static bool is_whole(const struct adapter_save *o, const struct model_param *p) {
    return o->whole != NULL && o->whole(o->arg, p);
}

// The i-th weight of the base, if its module has one that was trained as a whole. The parameters of
// a module are neighbours.
static bool saved_whole(const struct adapter_save *o, int64_t i, struct model_param *p) {
    struct model_param beside;
    if (!model_param_at(o->shape, i, p) || o->whole == NULL)
        return false;
    return is_whole(o, p) ||
           (model_param_at(o->shape, i - 1, &beside) && same_module(p, &beside) &&
            is_whole(o, &beside)) ||
           (model_param_at(o->shape, i + 1, &beside) && same_module(p, &beside) &&
            is_whole(o, &beside));
}

int adapter_save_check(const struct adapter_save *o, struct err *e) {
    const int64_t n = o->whole != NULL ? model_param_count(o->shape) : 0;
    struct model_param p;
    for (int64_t i = 0; i < n; i++) {
        if (!saved_whole(o, i, &p))
            continue;
        if (p.role == ROLE_WTE && o->shape->tied)
            return err_set(e, ERR_UNSUPPORTED,
                           "'%s' was trained as a whole and is also the model's head. PEFT's files "
                           "cannot say that; write the whole model with --merge",
                           p.name);
        if (adapter_targets(o->adapter, o->shape, &p))
            return err_set(e, ERR_UNSUPPORTED,
                           "'%.*s' has an adapter, and was also trained in part as a whole. PEFT's "
                           "files cannot say that; write the whole model with --merge",
                           module_length(&p), p.name);
    }
    return 0;
}

// Calls fn for every tensor of the file, in its order.
static int each_tensor(const struct adapter_save *o,
                       int (*fn)(void *arg, const struct model_param *p, struct err *e), void *arg,
                       struct err *e) {
    const int64_t n = o->whole != NULL ? model_param_count(o->shape) : 0;
    struct model_param p;
    for (int64_t i = 0; adapter_param_at(o->adapter, o->shape, i, &p); i++)
        TRY(fn(arg, &p, e));
    for (int64_t i = 0; i < n; i++)
        if (saved_whole(o, i, &p))
            TRY(fn(arg, &p, e));
    return 0;
}

static int64_t elements_of(const struct model_param *p) {
    return p->dims[0] * (p->rank > 1 ? p->dims[1] : 1);
}

// ---------------------------------------------------------------- settings

// alpha / rank is then the true scale.
static double written_alpha(const struct adapter *a) {
    return a->rslora ? adapter_scale(a) * (double)a->rank : a->alpha;
}

// Does the name of p's module end in the n bytes at `last`, behind a dot?
static bool ends_in(const struct model_param *p, const char *last, int n) {
    const int m = module_length(p);
    return m > n && p->name[m - n - 1] == '.' && memcmp(p->name + m - n, last, (size_t)n) == 0;
}

// A name that PEFT finds this kind of layer by: the last part of a module's name, or the last two
// if another matrix that has no adapter ends in the same part. Returns its length.
static int target_name(const struct adapter_save *o, const struct model_param *weight,
                       const char **name) {
    const char *end = weight->name + module_length(weight), *last = end;
    struct model_param p;
    bool alone = true;
    while (last > weight->name && last[-1] != '.')
        last--;
    for (int role = 0; alone && role < ROLE_COUNT; role++)
        alone = !model_param_get(o->shape, (enum model_role)role, 0, &p) || !p.matrix ||
                adapter_targets(o->adapter, o->shape, &p) || !ends_in(&p, last, (int)(end - last));
    if (!alone && last > weight->name)
        for (last--; last > weight->name && last[-1] != '.';)
            last--;
    *name = last;
    return (int)(end - last);
}

static void put_targets(struct json_writer *w, const struct adapter_save *o) {
    struct model_param p, before;
    json_member_array(w, "target_modules");
    for (int role = 0; role < ROLE_COUNT; role++) {
        const char *name;
        bool again = false;
        if (!model_param_get(o->shape, (enum model_role)role, 0, &p) ||
            !adapter_targets(o->adapter, o->shape, &p))
            continue;
        const int n = target_name(o, &p, &name);
        for (int r = 0; !again && r < role; r++)
            again = model_param_get(o->shape, (enum model_role)r, 0, &before) &&
                    adapter_targets(o->adapter, o->shape, &before) && ends_in(&before, name, n);
        if (!again)
            json_put_string_n(w, name, (size_t)n);
    }
    json_put_array_end(w);
}

static void put_whole(struct json_writer *w, const struct adapter_save *o) {
    const int64_t n = o->whole != NULL ? model_param_count(o->shape) : 0;
    struct model_param p, last = {0};
    bool any = false;
    json_put_key(w, "modules_to_save");
    for (int64_t i = 0; i < n; i++) {
        if (!saved_whole(o, i, &p) || (any && same_module(&p, &last)))
            continue;
        if (!any)
            json_put_array_begin(w);
        any = true;
        last = p;
        json_put_string_n(w, p.name, (size_t)module_length(&p));
    }
    if (any)
        json_put_array_end(w);
    else
        json_put_null(w);
}

static void put_config(struct json_writer *w, const struct adapter_save *o) {
    json_put_object_begin(w);
    json_put_key(w, "base_model_name_or_path");
    if (o->base != NULL)
        json_put_string(w, o->base);
    else
        json_put_null(w);
    json_member_string(w, "bias", "none");
    json_member_bool(w, "fan_in_fan_out", o->shape->in_out_weights);
    json_member_bool(w, "inference_mode", true);
    json_member_bool(w, "init_lora_weights", true);
    json_member_double(w, "lora_alpha", written_alpha(o->adapter));
    json_member_double(w, "lora_dropout", o->adapter->dropout);
    put_whole(w, o);
    json_member_string(w, "peft_type", "LORA");
    json_member_i64(w, "r", o->adapter->rank);
    put_targets(w, o);
    json_member_string(w, "task_type", "CAUSAL_LM");
    json_put_object_end(w);
}

int adapter_save_config(const struct adapter_save *o, char **text, size_t *bytes, struct err *e) {
    struct json_writer w;
    json_writer_to_buffer(&w, 2);
    put_config(&w, o);
    int rc = json_writer_finish(&w, e);
    if (rc != 0) {
        free(w.buffer);
        return rc;
    }
    *text = w.buffer;
    *bytes = w.bytes;
    return 0;
}

// ---------------------------------------------------------------- tensors

struct saving {
    const struct adapter_save *o;
    struct safetensors_writer *w;
    float *wide;
    void *narrow;
    uint64_t bytes;
};

static int count_tensor(void *arg, const struct model_param *p, struct err *e) {
    struct saving *x = arg;
    (void)e;
    x->bytes += (uint64_t)elements_of(p) * dtype_bytes(x->o->dtype) + strlen(p->name) + ENTRY_BYTES;
    return 0;
}

uint64_t adapter_save_bytes(const struct adapter_save *o) {
    struct saving x = {.o = o, .bytes = ENTRY_BYTES};
    (void)each_tensor(o, count_tensor, &x, NULL);
    return x.bytes;
}

static int declare_tensor(void *arg, const struct model_param *p, struct err *e) {
    struct saving *x = arg;
    char name[TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, ADAPTER_PREFIX "%s", p->name);
    return safetensors_writer_declare(x->w, name, x->o->dtype, p->rank, p->dims, e);
}

static int put_tensor(void *arg, const struct model_param *p, struct err *e) {
    struct saving *x = arg;
    const enum dtype type = x->o->dtype;
    const int64_t all = elements_of(p);
    for (int64_t at = 0; at < all; at += BLOCK) {
        const int64_t n = all - at < BLOCK ? all - at : BLOCK;
        TRY(x->o->read(x->o->arg, p, at, n, x->wide, e));
        dtype_convert(x->narrow, type, x->wide, DTYPE_F32, (size_t)n);
        const int64_t bad = dtype_first_not_finite(x->narrow, type, (size_t)n);
        if (bad >= 0)
            return err_set(e, ERR_NUMERIC,
                           "%g in '%s' (element %" PRId64
                           ") is not finite as %s: training diverged, or the type is too narrow",
                           (double)x->wide[bad], p->name, at + bad, dtype_text(type));
        TRY(safetensors_writer_put(x->w, x->narrow, (size_t)n * dtype_bytes(type), e));
    }
    return 0;
}

int adapter_save_weights(const struct adapter_save *o, const char *path, char hash[HASH_TEXT_BYTES],
                         uint64_t *bytes, struct err *e) {
    struct saving x = {.o = o,
                       .wide = malloc(BLOCK * sizeof(float)),
                       .narrow = malloc(BLOCK * dtype_bytes(DTYPE_F64))};
    int rc = adapter_save_check(o, e);
    if (rc == 0 && (x.wide == NULL || x.narrow == NULL))
        rc = err_set(e, ERR_MEMORY, "no memory to write '%.400s'", path);
    if (rc == 0)
        rc = safetensors_writer_open(&x.w, path, e);
    if (rc == 0)
        rc = each_tensor(o, declare_tensor, &x, e);
    if (rc == 0)
        rc = each_tensor(o, put_tensor, &x, e);
    if (rc == 0)
        rc = safetensors_writer_close(x.w, hash, bytes, e);
    if (rc != 0)
        safetensors_writer_abort(x.w);
    free(x.wide);
    free(x.narrow);
    return rc;
}

// ---------------------------------------------------------------- other programs

// The ranks that vLLM can be started with, and the one that it takes unless told otherwise.
static const int64_t vllm_ranks[] = {8, 16, 32, 64, 128, 256, 320, 512};
enum { VLLM_RANKS = sizeof vllm_ranks / sizeof *vllm_ranks, VLLM_DEFAULT = 16 };

static void remark_rank(int64_t rank, struct sentences *out) {
    int i = 0;
    while (i < VLLM_RANKS && vllm_ranks[i] < rank)
        i++;
    if (i == VLLM_RANKS)
        sentences_add(out,
                      "vLLM refuses rank %" PRId64 ": its most is %" PRId64
                      ". Write the whole model with --merge for it",
                      rank, vllm_ranks[VLLM_RANKS - 1]);
    else if (rank > VLLM_DEFAULT)
        sentences_add(out,
                      "vLLM refuses rank %" PRId64 " unless it is started with --max-lora-rank "
                      "%" PRId64 " or more",
                      rank, vllm_ranks[i]);
}

static void remark_whole(const struct adapter_save *o, struct sentences *out) {
    const int64_t n = o->whole != NULL ? model_param_count(o->shape) : 0;
    int64_t whole = 0, matrices = 0;
    struct model_param p;
    for (int64_t i = 0; i < n; i++) {
        if (!saved_whole(o, i, &p))
            continue;
        whole++;
        matrices += p.rank > 1;
    }
    if (whole > 0)
        sentences_add(out,
                      "vLLM refuses adapters with modules_to_save, and this one has %" PRId64
                      " whole weights%s. Write the whole model with --merge for it",
                      whole,
                      matrices > 0 ? "; llama.cpp's converter accepts only norms among them" : "");
}

void adapter_save_remarks(const struct adapter_save *o, struct sentences *out) {
    const struct adapter *a = o->adapter;
    if (a->rslora)
        sentences_add(out,
                      "llama.cpp always divides alpha by the rank, so the scale %g, which is alpha "
                      "/ sqrt(rank), is written as alpha %g without rslora. All programs then "
                      "compute the same",
                      adapter_scale(a), written_alpha(a));
    remark_rank(a->rank, out);
    remark_whole(o, out);
    if (o->shape->in_out_weights)
        sentences_add(out,
                      "llama.cpp's converter turns the pairs of matrices that are stored [in, out] "
                      "around, and vLLM has no adapters for such models. Write the whole model "
                      "with --merge for them");
}
