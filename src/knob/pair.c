// pair.c - see pair.h.
#include "knob/pair.h"

#include <string.h>

// clang-format off
#define TEXT "data.path={dir}/text.txt tokenizer=bytes"
#define CHAT "data.path={dir}/chat.jsonl data.template=chatml tokenizer={dir}/tokenizer.json seq=96"

#define THREADS "comm.engine=thread"

#define REQUESTS .unmeasured = "trials take no requests"
#define HYBRID .with = "goal=hybrid", REQUESTS
#define HYBRID_BYTES .with = "goal=hybrid tokenizer=bytes", REQUESTS

static const struct knob_pair PAIRS[KNOB_COUNT] = {
    [KNOB_model] = {.a = "tiny", .b = "gpt2-124m",
        .unmeasured = "models have no neighbours; haggle bench train model=a,b compares two"},
    [KNOB_steps] = {.unmeasured = "a trial does not run this number of steps"},
    [KNOB_epochs] = {.with = TEXT, .a = "0", .b = "0.01",
        .unmeasured = "a trial does not run this number of steps"},
    [KNOB_tokenizer] =
        {.with = "data.path={dir}/text.txt", .a = "bytes", .b = "{dir}/tokenizer.json"},
    [KNOB_allow_extra] = {.with = "model={dir}/extra tokenizer=bytes", .a = "false", .b = "true",
        .unmeasured = "it decides whether a folder is loaded"},
    [KNOB_time] = {.a = "0", .b = "1ns"},
    [KNOB_lora_rank] = {.a = "0", .b = "4"},
    [KNOB_lora_alpha] = {.with = "lora.rank=4", .a = "16", .b = "64"},
    [KNOB_lora_rslora] = {.with = "lora.rank=4"},
    [KNOB_lora_targets] = {.with = "lora.rank=4", .a = "all", .b = "attention"},
    [KNOB_lora_dropout] = {.with = "lora.rank=4", .a = "0", .b = "0.5"},
    [KNOB_lora_from] = {.a = "", .b = "{dir}/adapter"},
    [KNOB_train_also] = {.with = "lora.rank=4", .a = "", .b = "embed_tokens"},
    [KNOB_train_freeze] = {.a = "", .b = "layers.0"},
    [KNOB_goal] = {.a = "bulk", .b = "hybrid", REQUESTS},
    [KNOB_interactive_micro] = {HYBRID, .a = "1", .b = "64"},
    [KNOB_interactive_seq] = {HYBRID, .a = "0", .b = "128"},
    [KNOB_interactive_stdin] = {HYBRID},
    [KNOB_interactive_socket] = {HYBRID, .a = "", .b = "{dir}/requests"},
    [KNOB_interactive_queue] = {HYBRID},
    [KNOB_interactive_respond] = {HYBRID, .a = "0", .b = "2s"},
    [KNOB_interactive_data] = {HYBRID_BYTES, .a = "", .b = "{dir}/text.txt"},
    [KNOB_interactive_recipe] = {HYBRID_BYTES, .a = "", .b = "{dir}/second.yaml"},
    [KNOB_recompute_every] = {.with = "recompute.mode=full seq=128 batch.micro=8"},
    [KNOB_recompute_ratio] = {.with = "recompute.mode=selective", .a = "0.05", .b = "1000"},
    // In a model with a small vocabulary, chunks show in planned bytes only with the unfused loss,
    // which needs more memory.
    [KNOB_logits_chunk] = {.with = "seq=128 batch.micro=8 fuse.loss=false", .a = "0", .b = "16"},
    [KNOB_logits_pad] = {.a = "1", .b = "512"},
    [KNOB_optim_eps] = {.a = "1e-8", .b = "1e-3"},
    [KNOB_optim_clip] = {.a = "1", .b = "0.01"},
    [KNOB_scale_start] = {.with = "precision=fp16"},
    [KNOB_scale_growth] = {.with = "precision=fp16", .a = "1000", .b = "1"},
    // The first step's gradients are not finite at this scale. Only a lower floor lets the run
    // continue.
    [KNOB_scale_floor] = {.with = "precision=fp16 scale.start=16777216", .a = "1", .b = "16777216"},
    [KNOB_sched_min] = {.with = "sched.kind=cosine"},
    [KNOB_sched_decay] = {.with = "sched.kind=wsd", .a = "0.25", .b = "0.75"},
    [KNOB_data_path] = {.with = "tokenizer=bytes", .a = "{dir}/text.txt", .b = "{dir}/other.txt"},
    [KNOB_data_val_path] = {.with = TEXT, .a = "", .b = "{dir}/other.txt",
        .unmeasured = "trials of steps do not validate"},
    [KNOB_data_val] = {.with = TEXT, .a = "0.05", .b = "0.25"},
    [KNOB_data_shape] = {.with = "data.path={dir}/mixed.jsonl tokenizer=bytes",
        .a = "text", .b = "completion"},
    [KNOB_data_template] = {.with = "data.path={dir}/chat.jsonl tokenizer={dir}/tokenizer.json",
        .a = "chatml", .b = "plain"},
    [KNOB_data_keys] = {.with = "data.path={dir}/named.jsonl data.shape=completion tokenizer=bytes",
        .a = "prompt=question,completion=answer", .b = "prompt=answer,completion=question"},
    [KNOB_data_system] = {.with = CHAT, .a = "", .b = "Be brief."},
    [KNOB_data_loss] = {.with = CHAT, .a = "completion", .b = "all"},
    [KNOB_data_pack] = {.with = CHAT, .a = "best_fit", .b = "none"},
    [KNOB_data_long] = {.with = CHAT " data.pack=best_fit", .a = "truncate", .b = "split"},
    [KNOB_data_bad] = {.with = "data.path={dir}/bad.jsonl data.shape=text tokenizer=bytes", .a = "stop", .b = "skip",
        .unmeasured = "it decides what is read before the first step, which trials do not measure"},
    [KNOB_data_cache] = {.with = TEXT, .a = "none", .b = "{dir}/out/shards",
        .unmeasured = "the cache saves time before the first step, which trials do not measure"},
    [KNOB_data_workers] = {.with = "data.prefetch=2"},
    [KNOB_data_ram] = {.with = TEXT, .a = "0", .b = "64KiB"},
    [KNOB_data_source_rate] = {.with = "data.prefetch=0", .a = "0", .b = "2KiB"},
    [KNOB_eval_every] = {.a = "0", .b = "2", .unmeasured = "trials of steps do not validate"},
    [KNOB_eval_batches] = {.with = "eval.every=2", .a = "1", .b = "2",
        .unmeasured = "trials of steps do not validate"},
    [KNOB_noise_every] = {.with = "batch.accum=2", .a = "0", .b = "1"},
    [KNOB_ranks] = {.with = "zero.stage=1 comm.engine=thread", .a = "1", .b = "2"},
    [KNOB_parallel_data] = {.with = THREADS, .a = "1", .b = "2"},
    [KNOB_parallel_tensor] = {.with = THREADS, .a = "1", .b = "2"},
    [KNOB_parallel_pipe] = {.with = THREADS, .a = "1", .b = "2"},
    [KNOB_parallel_sequence] = {.with = THREADS " parallel.tensor=2"},
    [KNOB_zero_stage] = {.with = THREADS " parallel.data=2"},
    [KNOB_pipe_schedule] = {.with = THREADS " parallel.pipe=2 batch.accum=4"},
    [KNOB_pipe_chunks] = {.with = THREADS " parallel.pipe=2 pipe.schedule=interleaved batch.accum=2", .a = "1", .b = "2"},
    [KNOB_comm_engine] = {.with = "parallel.data=2", .a = "thread", .b = "mpi",
        .unmeasured = "ranks of a trial are threads"},
    [KNOB_comm_bucket] = {.with = THREADS " parallel.data=2", .a = "0", .b = "64KiB"},
    [KNOB_comm_reduce] = {.with = THREADS " parallel.data=2 batch.accum=2"},
    [KNOB_comm_overlap] = {.with = THREADS " parallel.data=2"},
    [KNOB_comm_prefetch] = {.with = THREADS " parallel.data=2 zero.stage=3"},
    [KNOB_comm_every] = {.with = THREADS " parallel.data=2"},
    [KNOB_comm_timeout] = {.with = THREADS " parallel.data=2", .a = "10m", .b = "1ns",
        .unmeasured = "it decides how long a rank waits for one that is missing"},
    [KNOB_run_dir] = {.a = "{dir}/out/one", .b = "{dir}/out/two"},
    [KNOB_save_every] = {.a = "0", .b = "1ns", .unmeasured = "trials of steps do not save"},
    [KNOB_save_keep] = {.with = "save.every=1", .a = "2", .b = "1"},
    [KNOB_save_best] = {.with = "eval.every=1 save.every=0 save.last=false", .a = "false", .b = "true",
        .unmeasured = "trials of steps do not save"},
    // A learning rate of 10 makes every validation worse than the first.
    [KNOB_stop_patience] = {.with = "eval.every=1 optim.lr=10", .a = "0", .b = "1",
        .unmeasured = "trials of steps do not validate"},
    [KNOB_stop_diverged] = {.with = "steps=16 optim.lr=100", .a = "true", .b = "false",
        .unmeasured = "it decides when a run ends"},
    [KNOB_resume] = {.with = "save.last=true"},
    [KNOB_device] = {.a = "cpu", .b = "cuda"},
    [KNOB_cuda_graphs] = {.with = "device=cuda"},
    [KNOB_cuda_kernels] = {.with = "device=cuda"},
    [KNOB_cuda_deterministic] = {.with = "device=cuda precision=bf16"},
    [KNOB_cuda_tf32] = {.with = "device=cuda precision=fp32"},
    [KNOB_cuda_cudnn] = {.with = "device=cuda precision=bf16", .a = "auto", .b = "none"},
    [KNOB_threads] = {.a = "1", .b = "2"},
    [KNOB_memory] = {.a = "0", .b = "1MiB"},
    [KNOB_cpu_blas] = {.with = "device=cpu precision=fp32", .a = "builtin", .b = "openblas"},
    [KNOB_cpu_isa] = {.with = "device=cpu", .a = "generic", .b = "auto"},
    [KNOB_log_every] = {.a = "1", .b = "2"},
    [KNOB_log_trace] = {.a = "", .b = "{dir}/out/trace.json",
        .unmeasured = "a trial writes no trace; docs/speed-log.md says what recording one costs"},
    [KNOB_generate_tokens] = {.a = "4", .b = "8"},
    [KNOB_generate_temperature] = {.with = "generate.tokens=8", .a = "0", .b = "2",
        .unmeasured = "trials of steps make no text"},
    [KNOB_generate_top_k] = {.with = "generate.tokens=8 generate.temperature=2", .a = "0", .b = "1",
        .unmeasured = "trials of steps make no text"},
    [KNOB_generate_top_p] = {.with = "generate.tokens=8 generate.temperature=2", .a = "1", .b = "0.01",
        .unmeasured = "trials of steps make no text"},
    [KNOB_generate_min_p] = {.with = "generate.tokens=8 generate.temperature=2", .a = "0", .b = "1",
        .unmeasured = "trials of steps make no text"},
    [KNOB_generate_repeat] = {.with = "generate.tokens=8", .a = "1", .b = "100",
        .unmeasured = "trials of steps make no text"},
};
// clang-format on

const struct knob_pair *knob_pair_of(int id) {
    return &PAIRS[id >= 0 && id < KNOB_COUNT ? id : 0];
}

// ---------------------------------------------------------------- settings as text

static int put_part(char *out, size_t bytes, size_t *used, const char *text, size_t n,
                    struct err *e) {
    if (*used + n >= bytes)
        return err_set(e, ERR_USAGE, "'%.60s...' is too long for the value of a knob", out);
    memcpy(out + *used, text, n);
    *used += n;
    out[*used] = '\0';
    return 0;
}

// Copies `text` (n bytes) to out and replaces each {dir} with dir.
static int fill_dir(char *out, size_t bytes, const char *text, size_t n, const char *dir,
                    struct err *e) {
    static const char mark[] = "{dir}";
    size_t used = 0;
    out[0] = '\0';
    for (const char *end = text + n; text < end;) {
        if ((size_t)(end - text) >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0) {
            TRY(put_part(out, bytes, &used, dir, strlen(dir), e));
            text += sizeof mark - 1;
        } else {
            TRY(put_part(out, bytes, &used, text++, 1, e));
        }
    }
    return 0;
}

int knobs_set_list(struct knobs *k, const char *settings, const char *dir, bool unless_set,
                   enum set_by by, struct err *e) {
    for (const char *at = settings; at && *at;) {
        char text[KNOB_VALUE_BYTES + 64], name[64];
        size_t n = strcspn(at, " ");
        TRY(fill_dir(text, sizeof text, at, n, dir, e));
        at += n + (at[n] == ' ');
        if (n == 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "="), text);
        int id = knob_find(name);
        if (!(unless_set && id >= 0 && k->by[id] != SET_BY_DEFAULT))
            TRY(knobs_set_assignment(k, text, by, e));
    }
    return 0;
}

// ---------------------------------------------------------------- neighbours

static bool accepts(const struct knobs *k, int id, const char *value) {
    struct knobs copy = *k;
    return knobs_set_at(&copy, id, value, SET_BY_DEFAULT, NULL) == 0 && !knobs_same(k, &copy, id);
}

int knob_neighbour(const struct knobs *k, int id, char out[KNOB_VALUE_BYTES], struct err *e) {
    const struct knob_info *info = knob_info(id);
    const void *field = (const char *)k + info->offset;
    static const double factors[] = {2, 0.5};
    int choice;
    switch (info->type) {
    case KNOB_BOOL:
        snprintf(out, KNOB_VALUE_BYTES, "%s", *(const bool *)field ? "false" : "true");
        return 0;
    case KNOB_CHOICE:
        memcpy(&choice, field, sizeof choice);
        snprintf(out, KNOB_VALUE_BYTES, "%s", info->choices[(choice + 1) % info->n_choices]);
        return 0;
    case KNOB_INT:
    case KNOB_FLOAT:
    case KNOB_BYTES:
    case KNOB_DURATION:
        for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
            double x = info->type == KNOB_INT     ? (double)*(const int64_t *)field
                       : info->type == KNOB_FLOAT ? *(const double *)field
                                                  : (double)*(const uint64_t *)field;
            x = x == 0 ? 1 : x * factors[i]; // twice 0 is 0, so 1 is taken
            if (info->type == KNOB_FLOAT)
                snprintf(out, KNOB_VALUE_BYTES, "%.9g", x);
            else
                snprintf(out, KNOB_VALUE_BYTES, "%.0f%s", x,
                         info->type == KNOB_DURATION ? "ns" : "");
            if (accepts(k, id, out))
                return 0;
        }
        break;
    default:
        break;
    }
    return err_set(e, ERR_UNSUPPORTED, "%s: no neighbouring value; add a line to src/knob/pair.c",
                   info->name);
}

int knob_pair_values(const struct knobs *k, int id, const char *dir, char a[KNOB_VALUE_BYTES],
                     char b[KNOB_VALUE_BYTES], struct err *e) {
    const struct knob_pair *p = knob_pair_of(id);
    if (p->a && p->b) {
        TRY(fill_dir(a, KNOB_VALUE_BYTES, p->a, strlen(p->a), dir, e));
        return fill_dir(b, KNOB_VALUE_BYTES, p->b, strlen(p->b), dir, e);
    }
    knobs_value(k, id, a);
    return knob_neighbour(k, id, b, e);
}
