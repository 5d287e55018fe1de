// row.c - see rows.h. What one line of a table says, and what is assumed where it says nothing.
#include "planner/rows.h"

#include "base/text.h"
#include "model/family.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char rows_rule[] =
    "A row is usable if it is of a dense model (its notes do not say MoE), states layers, hidden, "
    "heads, ffn, seq,\n"
    "gpus, tp, pp, dp, microbatch and globalbatch with gpus = tp x pp x dp x cp, computes in fp32, "
    "fp16, bf16 or fp8,\n"
    "and states a time: step_s, tokens_per_s_per_gpu, or derived_step_s in its notes.\n"
    "What it does not state is assumed: kv_heads = heads; a gated MLP where that is nearer to "
    "params_b (without\n"
    "params_b: where ffn is not 4 x hidden); vocab 50257, gated 32000; fp16 on devices without "
    "bf16, else bf16;\n"
    "framework megatron where tp or pp is above 1, fsdp where zero is 3, else hf; "
    "zero 3 for fsdp and\n"
    "1 for others with dp above 1; sequence parallel for megatron where tp is above 1; 'A100' "
    "means the larger one;\n"
    "nodes as full as the catalog's.\n";

struct taking {
    const struct row *row;
    struct row_setup *out;
    struct err *e;
};

static void assume(struct taking *t, const char *what) {
    const size_t n = strlen(t->out->assumed);
    snprintf(t->out->assumed + n, sizeof t->out->assumed - n, "%s%s", n ? ", " : "", what);
}

static void assume_number(struct taking *t, const char *what, int64_t n) {
    char text[64];
    snprintf(text, sizeof text, "%s=%lld", what, (long long)n);
    assume(t, text);
}

static const char *const names[ROWS_COLUMNS] = {
#define X(name) #name,
    ROWS_COLUMN_LIST(X)
#undef X
};

// 0 where the field is empty and may be.
static int take(struct taking *t, enum rows_column c, bool needed, int64_t most, int64_t *out) {
    const char *text = t->row->field[c];
    double n = 0;
    *out = 0;
    if (!*text)
        return needed ? err_set(t->e, ERR_UNSUPPORTED, "%s is not stated", names[c]) : 0;
    if (text_parse_double(text, &n, NULL) != 0 || !(n >= 0 && n <= (double)most) || n != floor(n))
        return err_set(t->e, ERR_USAGE, "%s '%.40s' is not accepted; accepted: 1 to %lld", names[c],
                       text, (long long)most);
    if (needed && n < 1)
        return err_set(t->e, ERR_USAGE, "%s is 0; accepted: 1 to %lld", names[c], (long long)most);
    *out = (int64_t)n;
    return 0;
}

static double number_or_0(const char *text) {
    double n = 0;
    return *text && text_parse_double(text, &n, NULL) == 0 && isfinite(n) && n > 0 ? n : 0;
}

static bool says(const char *text, const char *word) { // in any case of letters
    const size_t n = strlen(word);
    for (; *text; text++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)text[i]) == word[i])
            i++;
        if (i == n)
            return true;
    }
    return false;
}

static void shape_switches(struct model_shape *m, bool gated) {
    family_set_switches(m, gated ? FAMILY_LLAMA : FAMILY_GPT2);
    m->tied = !gated;
    if (gated) {
        m->rope.theta = 1e4;
    } else if (m->kv_heads != m->heads) { // its projections are not one matrix
        family_set_switches(m, FAMILY_LLAMA);
        m->act = ACT_RELU;
        m->rope.theta = 1e4;
        m->tied = false;
    }
}

static int take_shape(struct taking *t) {
    struct model_shape *m = &t->out->setup.shape;
    const double billions = number_or_0(t->row->field[ROWS_params_b]);
    snprintf(m->name, sizeof m->name, "%.100s", t->row->field[ROWS_model]);
    TRY(take(t, ROWS_layers, true, 4096, &m->layers));
    TRY(take(t, ROWS_hidden, true, 1 << 18, &m->width));
    TRY(take(t, ROWS_heads, true, 4096, &m->heads));
    TRY(take(t, ROWS_ffn, true, 1 << 20, &m->ffn));
    TRY(take(t, ROWS_seq, true, 1 << 22, &t->out->setup.seq));
    TRY(take(t, ROWS_kv_heads, false, 4096, &m->kv_heads));
    TRY(take(t, ROWS_vocab, false, 1 << 22, &m->vocab));
    m->max_positions = t->out->setup.seq;
    m->norm_eps = 1e-5f;
    if (m->width % m->heads != 0)
        return err_set(t->e, ERR_UNSUPPORTED, "%lld heads do not divide hidden %lld",
                       (long long)m->heads, (long long)m->width);
    m->head_dim = m->width / m->heads;
    if (m->kv_heads == 0)
        m->kv_heads = m->heads;
    if (m->heads % m->kv_heads != 0)
        return err_set(t->e, ERR_UNSUPPORTED, "%lld key/value heads do not divide %lld heads",
                       (long long)m->kv_heads, (long long)m->heads);
    const bool vocab = m->vocab > 0;
    bool gated = m->ffn != 4 * m->width;
    if (billions > 0) {
        double off[2];
        for (int g = 0; g < 2; g++) {
            struct model_shape as = *m;
            as.vocab = vocab ? m->vocab : g ? 32000 : 50257;
            shape_switches(&as, g);
            off[g] = fabs((double)model_total_elements(&as) / 1e9 - billions);
        }
        gated = off[1] < off[0];
    }
    if (!vocab)
        assume_number(t, "vocab", m->vocab = gated ? 32000 : 50257);
    shape_switches(m, gated);
    assume(t, gated ? "gated MLP" : "plain MLP");
    if (m->head_dim % 2 != 0 && m->rope.theta > 0)
        return err_set(t->e, ERR_UNSUPPORTED, "the size of a head, %lld, is odd",
                       (long long)m->head_dim);
    return 0;
}

static int take_ranks(struct taking *t) {
    struct planner_setup *s = &t->out->setup;
    int64_t gpus, tp, pp, dp, cp, vp, global;
    TRY(take(t, ROWS_gpus, true, 65536, &gpus));
    TRY(take(t, ROWS_tp, true, 1024, &tp));
    TRY(take(t, ROWS_pp, true, 1024, &pp));
    TRY(take(t, ROWS_dp, true, 65536, &dp));
    TRY(take(t, ROWS_cp, false, 1024, &cp));
    TRY(take(t, ROWS_vp, false, 1024, &vp));
    TRY(take(t, ROWS_microbatch, true, 1 << 20, &s->micro));
    TRY(take(t, ROWS_globalbatch, true, 1 << 30, &global));
    cp = cp > 0 ? cp : 1;
    if (tp * pp * dp * cp != gpus)
        return err_set(t->e, ERR_UNSUPPORTED,
                       "tp %lld x pp %lld x dp %lld x cp %lld are not %lld gpus", (long long)tp,
                       (long long)pp, (long long)dp, (long long)cp, (long long)gpus);
    s->tensor = (int)tp;
    s->pipe = (int)pp;
    s->data = (int)dp;
    s->context = (int)cp;
    s->chunks = vp > 1 && pp > 1 ? (int)vp : 1;
    s->accum = (global + s->micro * dp - 1) / (s->micro * dp);
    if (s->accum * s->micro * dp != global)
        assume_number(t, "globalbatch", s->accum * s->micro * dp);
    if (s->chunks > 1 && s->accum % pp != 0) {
        s->chunks = 1; // the schedule needs whole rounds of micro-batches
        assume(t, "not interleaved: pp does not divide the micro-batches");
    }
    return 0;
}

static void take_profile(struct taking *t) {
    struct planner_setup *s = &t->out->setup;
    const char *name = t->row->field[ROWS_framework], *zero = t->row->field[ROWS_zero];
    s->profile = planner_profile_find(name);
    if (s->profile)
        return;
    name = s->tensor > 1 || s->pipe > 1 ? "megatron" : strcmp(zero, "3") == 0 ? "fsdp" : "hf";
    s->profile = planner_profile_find(name);
    char text[64];
    snprintf(text, sizeof text, "profile %s", name);
    assume(t, text);
}

static int take_memory(struct taking *t) {
    struct planner_setup *s = &t->out->setup;
    const bool fsdp = strcmp(s->profile->name, "fsdp") == 0,
               megatron = strcmp(s->profile->name, "megatron") == 0;
    const char *recompute = t->row->field[ROWS_recompute];
    int64_t n;
    TRY(take(t, ROWS_zero, false, 3, &n));
    s->zero = (int)n;
    if (!*t->row->field[ROWS_zero] && s->data > 1)
        assume_number(t, "zero", s->zero = fsdp ? 3 : 1);
    if (s->zero > 1 && s->pipe > 1) // no framework moves weights once per micro-batch
        s->zero = 1;
    s->every_micro = s->zero > 1 && s->profile->each;
    TRY(take(t, ROWS_seqpar, false, 1, &n));
    s->sequence = n > 0;
    if (!*t->row->field[ROWS_seqpar] && s->tensor > 1) {
        s->sequence = megatron;
        assume(t, s->sequence ? "sequence parallel" : "no sequence parallel");
    }
    if (s->sequence && s->micro * (s->seq / s->context) % s->tensor != 0)
        s->sequence = false;
    s->recompute = says(recompute, "selective") ? RECOMPUTE_SELECTIVE
                   : says(recompute, "full")    ? RECOMPUTE_FULL
                                                : RECOMPUTE_NONE;
    t->out->recompute_open = !*recompute;
    return 0;
}

static int take_math(struct taking *t) {
    struct planner_setup *s = &t->out->setup;
    const char *text = t->row->field[ROWS_precision];
    const bool bf16 = t->out->cluster.device.bf16 > 0;
    if (says(text, "fp4"))
        return err_set(t->e, ERR_UNSUPPORTED,
                       "precision '%.40s' is not planned; accepted: fp32, fp16, bf16, fp8", text);
    if (says(text, "fp8"))
        s->math = PLANNER_FP8;
    else if (says(text, "bf16") || says(text, "bfloat16"))
        s->math = PLANNER_BF16;
    else if (says(text, "fp16") || says(text, "float16"))
        s->math = PLANNER_FP16;
    else if (says(text, "fp32") || says(text, "float32") || says(text, "tf32"))
        s->math = PLANNER_FP32;
    else if (*text)
        return err_set(t->e, ERR_UNSUPPORTED,
                       "precision '%.40s' is not planned; accepted: fp32, fp16, bf16, fp8", text);
    else {
        s->math = bf16 ? PLANNER_BF16 : PLANNER_FP16;
        assume(t, bf16 ? "bf16" : "fp16");
    }
    return 0;
}

// Adapters: the model's column says so, or the weights beneath lie in 4 bits.
static void take_method(struct taking *t) {
    enum { RANK = 16 };
    struct planner_setup *s = &t->out->setup;
    s->quantized = says(t->row->field[ROWS_precision], "4-bit");
    if (!s->quantized && !says(t->row->field[ROWS_model], "lora"))
        return;
    s->adapter = (struct adapter){.rank = RANK, .alpha = RANK};
    assume(t,
           s->quantized ? "QLoRA of rank 16 on all matrices" : "LoRA of rank 16 on all matrices");
}

static int take_cluster(struct taking *t) {
    struct row_setup *o = t->out;
    struct hardware_device d = o->cluster.device;
    const int n = planner_devices(&o->setup);
    int per = d.node_gpus < n ? (int)d.node_gpus : n;
    while (n % per != 0)
        per--;
    o->cluster = (struct cluster){.device = d,
                                  .nodes = n / per,
                                  .per_node = per,
                                  .node_bytes_per_s = d.nic_gbits * 1e9 / 8 * per,
                                  .latency_s = 5e-6};
    snprintf(o->cluster.text, sizeof o->cluster.text, "%dx%dx%s", n / per, per, d.name);
    return n / per > 1 && d.nic_gbits <= 0
               ? err_set(t->e, ERR_UNSUPPORTED, "the catalog knows no network for nodes of %s",
                         d.name)
               : 0;
}

static void take_results(struct taking *t) {
    struct row_setup *o = t->out;
    const char *notes = t->row->field[ROWS_notes], *derived = strstr(notes, "derived_step_s=");
    const double rate = number_or_0(t->row->field[ROWS_tokens_per_s_per_gpu]);
    o->measured_s = number_or_0(t->row->field[ROWS_step_s]);
    if (o->measured_s <= 0 && rate > 0)
        o->measured_s = number_or_0(t->row->field[ROWS_globalbatch]) * (double)o->setup.seq /
                        (rate * planner_devices(&o->setup));
    if (o->measured_s <= 0 && derived)
        o->measured_s = strtod(derived + strlen("derived_step_s="), NULL);
    if (!(o->measured_s > 0 && isfinite(o->measured_s)))
        o->measured_s = 0;
    o->measured_gb = number_or_0(t->row->field[ROWS_mem_gb]);
    o->failed = strstr(notes, "RESULT=OOM") != NULL;
    o->usable = o->measured_s > 0 && !strstr(notes, "RESULT=");
}

int row_setup(const struct row *r, const struct hardware *h, struct row_setup *out, struct err *e) {
    struct taking t = {r, out, e};
    char changed[96];
    const char *source = r->field[ROWS_source];
    *out = (struct row_setup){0};
    snprintf(out->repository, sizeof out->repository, "%.*s", (int)strcspn(source, " "), source);
    if (says(r->field[ROWS_notes], "moe"))
        return err_set(e, ERR_UNSUPPORTED, "a mixture of experts is not planned");
    TRY(hardware_find_written(h, r->field[ROWS_gpu], &out->cluster.device, changed, e));
    out->size_open = strncmp(changed, "gpu: ", 5) == 0;
    if (*changed && !out->size_open)
        assume(&t, changed);
    TRY(take_shape(&t));
    TRY(take_ranks(&t));
    take_profile(&t);
    TRY(take_memory(&t));
    TRY(take_math(&t));
    take_method(&t);
    if (out->setup.profile->pure)
        out->setup.state = STATE_BF16;
    TRY(take_cluster(&t));
    take_results(&t);
    return 0;
}

// ---------------------------------------------------------------- what is open

static int try_as(struct row_setup *s, enum recompute_kind recompute,
                  const struct hardware_device *d, const struct planner_constants *k,
                  struct planner_sample **sample, struct estimate *x, struct err *e) {
    planner_sample_free(*sample);
    *sample = NULL;
    s->setup.recompute = recompute;
    s->cluster.device = *d;
    TRY(planner_sample_make(sample, &s->setup, e));
    return planner_sample_estimate(*sample, &s->cluster, k, x, e);
}

int row_settle(struct row_setup *s, const struct hardware *h, const struct planner_constants *k,
               struct planner_sample **sample, struct estimate *x, struct err *e) {
    const struct hardware_device given = s->cluster.device;
    const struct hardware_device *devices[2] = {&given, NULL};
    int n = 1, rc = 0;
    const size_t family = strcspn(given.name, "-");
    for (int i = 0; s->size_open && i < h->n_devices; i++)
        if (strncmp(h->devices[i].name, given.name, family + 1) == 0 &&
            h->devices[i].arch == given.arch && h->devices[i].link_gbps == given.link_gbps &&
            h->devices[i].memory_gib < given.memory_gib) {
            devices[n++] = devices[0];
            devices[0] = &h->devices[i];
            break;
        }
    const enum recompute_kind stated = s->setup.recompute;
    bool fits = false;
    *sample = NULL;
    for (int d = 0; rc == 0 && !fits && d < n; d++) {
        rc = try_as(s, stated, devices[d], k, sample, x, e);
        fits = rc == 0 && x->fits;
        for (int more = RECOMPUTE_SELECTIVE;
             rc == 0 && !fits && s->recompute_open && more <= RECOMPUTE_FULL; more++) {
            rc = try_as(s, (enum recompute_kind)more, devices[d], k, sample, x, e);
            fits = rc == 0 && x->fits;
        }
    }
    if (rc == 0 && !fits) // as it was stated: it is said not to fit
        rc = try_as(s, stated, &given, k, sample, x, e);
    if (rc != 0) {
        planner_sample_free(*sample);
        *sample = NULL;
        return rc;
    }
    struct taking t = {.out = s};
    if (s->recompute_open)
        assume(&t, s->setup.recompute == RECOMPUTE_FULL        ? "recompute full"
                   : s->setup.recompute == RECOMPUTE_SELECTIVE ? "recompute selective"
                                                               : "recompute none");
    if (s->size_open)
        assume(&t, s->cluster.device.name);
    return 0;
}
