// session.c - see session.h. Planning: programs and layout. Starting: memory, backend, weights. What it
// takes: session_memory.c.
#include "train/session.h"
#include "backend/cpu/cpu.h"
#include "backend/plugin.h"
#include "model/load.h"
#include "program/apply.h"
#include "program/check.h"
#include "train/kept.h"
#include "train/second.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- plan

static const char *const program_names[SESSION_PROGRAMS] = {
    "train", "eval", "generate", "train with noise scale", "interactive.eval", "interactive.train"};

static const char *const second_names[SESSION_PROGRAMS] = {
    [SESSION_TRAIN] = "second.train", [SESSION_EVAL] = "second.eval"};

enum dtype session_real_type(const struct session *s) {
    return s->knobs.precision == PRECISION_BF16   ? DTYPE_BF16
           : s->knobs.precision == PRECISION_FP16 ? DTYPE_F16
                                                  : s->options.real;
}

static const enum recompute_kind recompute_kinds[] = {
    [RECOMPUTE_MODE_NONE] = RECOMPUTE_NONE,
    [RECOMPUTE_MODE_SELECTIVE] = RECOMPUTE_SELECTIVE,
    [RECOMPUTE_MODE_FULL] = RECOMPUTE_FULL,
};

static const enum state_type state_types[] = {
    [OPTIM_STATE_FP32] = STATE_FP32,
    [OPTIM_STATE_BF16] = STATE_BF16,
    [OPTIM_STATE_INT8] = STATE_INT8,
};

static struct apply describe(const struct session *s, enum session_program which) {
    const struct knobs *k = &s->knobs;
    struct apply a = {.micro_batches = 1,
                      .precision = session_real_type(s),
                      .logits_chunk = k->logits_chunk,
                      .recompute = {.kind = recompute_kinds[k->recompute_mode],
                                    .every = (int)k->recompute_every,
                                    .bytes_per_flop = k->recompute_ratio},
                      .state = state_types[k->optim_state],
                      .fuse = {.norm = k->fuse_norm,
                               .act = k->fuse_act,
                               .loss = k->fuse_loss,
                               .optim = k->fuse_optim},
                      .fuse_qkv = k->fuse_qkv,
                      .build = {.shape = &s->shape,
                                .batch = k->batch_micro,
                                .seq = k->seq,
                                .real = s->options.real,
                                .decay_all = k->optim_decay_all,
                                .keep_gradients = s->options.keep_gradients,
                                .keep_logits = s->options.keep_logits && which == SESSION_EVAL}};
    switch (which) {
    case SESSION_TRAIN:
    case SESSION_NOISE:
        a.noise = which == SESSION_NOISE;
        a.build.kind = BUILD_TRAIN;
        a.micro_batches = (int)k->batch_accum;
        a.yields = s->options.has[SESSION_INTERACTIVE_EVAL] || s->options.second;
        break;
    case SESSION_INTERACTIVE_EVAL:
    case SESSION_INTERACTIVE_TRAIN:
        a.build.kind = which == SESSION_INTERACTIVE_EVAL ? BUILD_EVAL : BUILD_TRAIN;
        a.build.guest = which == SESSION_INTERACTIVE_EVAL;
        a.build.batch = k->interactive_micro;
        a.build.seq = knobs_interactive_seq(k);
        break;
    case SESSION_EVAL:
        a.build.kind = BUILD_EVAL;
        break;
    default:
        a.build.kind = BUILD_GENERATE;
        a.build.batch = s->options.generate_batch ? s->options.generate_batch : 1;
        a.build.seq = s->options.generate_seq ? s->options.generate_seq : k->seq;
        break;
    }
    return a;
}

static int check_length(const struct session *s, const char *knob, int64_t length, int64_t least,
                        struct err *e) {
    if (length <= s->shape.max_positions)
        return 0;
    return err_set(e, ERR_USAGE,
                   "%s=%lld is more than the %lld positions of %s; accepted: %lld to %lld", knob,
                   (long long)length, (long long)s->shape.max_positions, s->shape.name,
                   (long long)least, (long long)s->shape.max_positions);
}

// interactive.seq is the length of this session's samples, or of the second model's.
static int check_lengths(const struct session *s, struct err *e) {
    if (s->lent && s->knobs.interactive_seq > 0)
        return check_length(s, "interactive.seq", s->knobs.interactive_seq, 0, e);
    TRY(check_length(s, "seq", s->knobs.seq, 1, e));
    return s->options.has[SESSION_INTERACTIVE_EVAL]
               ? check_length(s, "interactive.seq", s->knobs.interactive_seq, 0, e)
               : 0;
}

static int plan_programs(struct session *s, struct err *e) {
    struct program *set[SESSION_PROGRAMS];
    int n = 0;
    for (int i = 0; i < SESSION_PROGRAMS; i++) {
        if (!s->options.has[i])
            continue;
        struct apply a = describe(s, (enum session_program)i);
        TRY(apply_program(&s->programs[i], s->lent ? second_names[i] : program_names[i], &a, e));
        s->index[i] = n;
        set[n++] = s->programs[i];
    }
    TRY(layout_set(set, n, &s->layout, e));
    for (int i = 0; i < n; i++)
        TRY(check_layout(set[i], s->layout.arena_bytes, e));
    return check_guests(set, n, e);
}

static int plan(struct session *s, const struct session_options *o, bool lent, struct err *e) {
    memset(s, 0, sizeof *s);
    s->knobs = *o->knobs;
    s->options = *o;
    s->options.knobs = &s->knobs;
    s->lent = lent;
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        s->index[i] = -1;
    TRY(model_shape_open(&s->shape, s->knobs.model, &s->from_folder, e));
    TRY(check_lengths(s, e));
    s->options.has[SESSION_NOISE] =
        o->has[SESSION_TRAIN] && s->knobs.noise_every > 0 && s->knobs.batch_accum > 1;
    return plan_programs(s, e);
}

// An ordinary session that trains and validates, in steps of one micro-batch: a request.
static int plan_second(struct session *s, struct err *e) {
    const struct session_options o = {.knobs = s->options.second,
                                      .has = {[SESSION_TRAIN] = true, [SESSION_EVAL] = true},
                                      .real = s->options.real,
                                      .reference = s->options.reference,
                                      .checking = s->options.checking};
    s->options.second = NULL; // until it is a copy
    s->second = calloc(1, sizeof *s->second);
    if (!s->second)
        return err_set(e, ERR_MEMORY, "out of memory for a second model");
    TRY(plan(&s->second->session, &o, true, e));
    second_begin(s->second);
    s->options.second = &s->second->session.knobs;
    return 0;
}

int session_plan(struct session *s, const struct session_options *o, struct err *e) {
    TRY(plan(s, o, false, e));
    return o->second && plan_second(s, e) != 0
               ? err_context(e, "interactive.recipe=%s", s->knobs.interactive_recipe)
               : 0;
}

bool session_wants_device(const struct knobs *k) {
    return k->device == DEVICE_CUDA || (k->device == DEVICE_AUTO && plugin_device_present("cuda"));
}

// ---------------------------------------------------------------- start

// Rows of work for the pool: fill one weight by its rule, or read it from files.
struct init_job {
    const struct model_param *param;
    uint64_t seed;
    int64_t elements;
    enum dtype type;
    void *out;
};

enum { INIT_BLOCK = 4096, ROUND_BLOCK = 1 << 18 };

static void init_task(void *arg, int thread, int threads) {
    const struct init_job *job = arg;
    float block[INIT_BLOCK];
    int64_t begin, end;
    pool_share(job->elements, INIT_BLOCK, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += INIT_BLOCK) {
        int64_t n = end - i < INIT_BLOCK ? end - i : INIT_BLOCK;
        if (job->type == DTYPE_F32) {
            model_param_init(job->param, job->seed, i, n, (float *)job->out + i);
            continue;
        }
        model_param_init(job->param, job->seed, i, n, block);
        dtype_convert((char *)job->out + (size_t)i * dtype_bytes(job->type), job->type, block,
                      DTYPE_F32, (size_t)n);
    }
}

// Any program of the set knows every weight.
static int first_program(const struct session *s) {
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        if (s->programs[i])
            return i;
    return -1;
}

int session_find(const struct session *s, enum session_program in, const char *name) {
    return s->programs[in] ? program_find(s->programs[in], name) : -1;
}

// A weight of 16 bits is its master, rounded. In pieces: the arena may be a device's.
static int round_weight(struct session *s, const struct program *p, int x, int weight, void *buffer,
                        struct err *e) {
    const struct tensor *w = &p->tensors[weight], *m = &p->tensors[w->master];
    char *wide = buffer, *narrow = wide + ROUND_BLOCK * dtype_bytes(DTYPE_F64);
    size_t from = dtype_bytes(m->dtype), to = dtype_bytes(w->dtype);
    int64_t all = tensor_elements(w);
    for (int64_t i = 0; i < all; i += ROUND_BLOCK) {
        size_t n = (size_t)(all - i < ROUND_BLOCK ? all - i : ROUND_BLOCK), at = (size_t)i;
        TRY(exec_read_part(s->exec, x, w->master, at * from, wide, n * from, e));
        dtype_convert(narrow, w->dtype, wide, m->dtype, n);
        TRY(exec_write_part(s->exec, x, weight, at * to, narrow, n * to, e));
    }
    return 0;
}

int session_round_weights(struct session *s, struct err *e) {
    const struct program *p = s->programs[SESSION_TRAIN];
    void *buffer = NULL;
    int rc = 0;
    for (int t = 0; rc == 0 && p && t < p->n_tensors; t++) {
        if (p->tensors[t].master < 0)
            continue;
        if (!buffer && !(buffer = malloc(ROUND_BLOCK * 2 * dtype_bytes(DTYPE_F64))))
            rc = err_set(e, ERR_MEMORY, "out of memory while rounding weights");
        else
            rc = round_weight(s, p, s->index[SESSION_TRAIN], t, buffer, e);
    }
    free(buffer);
    return rc;
}

static int load_weights(struct session *s, struct weights *files, struct err *e) {
    int in = first_program(s);
    struct model_param param;
    for (int64_t i = 0; model_param_at(&s->shape, i, &param); i++) {
        int t = session_find(s, (enum session_program)in, param.name);
        if (t < 0)
            return err_set(e, ERR_INTERNAL, "no program knows the weight '%s'", param.name);
        if (s->programs[in]->tensors[t].master >= 0)
            t = s->programs[in]->tensors[t].master;
        const struct tensor *tensor = &s->programs[in]->tensors[t];
        int64_t n = tensor_elements(tensor);
        void *at = exec_host_address(s->exec, s->index[in], t);
        uint64_t bytes = (uint64_t)n * dtype_bytes(tensor->dtype);
        void *staging = at ? NULL : malloc(bytes);
        if (!at && !staging)
            return err_set(e, ERR_MEMORY, "out of memory while loading '%s'", param.name);
        int rc = 0;
        if (files) {
            const struct safetensors_entry *entry = weights_find_param(files, &s->shape, &param, e);
            rc = entry ? weights_read(files, entry, 0, n, at ? at : staging, tensor->dtype, e)
                       : (e ? e->code : ERR_FORMAT);
        } else {
            struct init_job job = {&param, (uint64_t)s->knobs.seed, n, tensor->dtype,
                                   at ? at : staging};
            pool_run(s->pool, init_task, &job);
        }
        if (rc == 0 && staging)
            rc = exec_write(s->exec, s->index[in], t, staging, bytes, e);
        free(staging);
        TRY(rc);
    }
    return session_round_weights(s, e);
}

static int write_constants(struct session *s, struct err *e) {
    if (s->shape.rope.theta <= 0)
        return 0;
    uint64_t bytes = (uint64_t)(s->shape.head_dim / 2) * sizeof(float);
    float *frequencies = malloc(bytes);
    if (!frequencies)
        return err_set(e, ERR_MEMORY, "out of memory for rotary frequencies");
    model_rope_frequencies(&s->shape, frequencies);
    int in = first_program(s);
    int rc =
        exec_write(s->exec, s->index[in], session_find(s, (enum session_program)in, NAME_INV_FREQ),
                   frequencies, bytes, e);
    free(frequencies);
    return rc;
}

static int open_backend(struct session *s, struct err *e) {
    if (s->options.reference)
        return cpu_reference_open(&s->backend, s->mem, e);
    if (session_wants_device(&s->knobs)) {
        const struct plugin_options cuda = {0};
        int rc = plugin_open("cuda", &cuda, &s->backend, e);
        if (rc == 0)
            return 0;
        if (s->knobs.device == DEVICE_CUDA || rc != ERR_UNSUPPORTED)
            return err_context(e, "device=%s", knob_choice(KNOB_device, (int)s->knobs.device));
        err_clear(e); // auto, and no use of the device: the CPU
    }
    struct cpu_options o = {.blas = knob_choice(KNOB_cpu_blas, (int)s->knobs.cpu_blas),
                            .isa = knob_choice(KNOB_cpu_isa, (int)s->knobs.cpu_isa)};
    return cpu_backend_open(&s->backend, s->mem, s->pool, &o, e);
}

bool session_has_precision(const struct session *s, enum precision p) {
    static const enum dtype types[] = {
        [PRECISION_FP32] = DTYPE_F32, [PRECISION_BF16] = DTYPE_BF16, [PRECISION_FP16] = DTYPE_F16};
    return s->backend->types >> types[p] & 1;
}

static int check_precision(const struct session *s, struct err *e) {
    if (session_has_precision(s, s->knobs.precision))
        return 0;
    char accepted[64] = "";
    for (int i = 0; i <= PRECISION_FP16; i++)
        if (session_has_precision(s, (enum precision)i))
            snprintf(accepted + strlen(accepted), sizeof accepted - strlen(accepted), "%s%s",
                     *accepted ? ", " : "", knob_choice(KNOB_precision, i));
    return err_set(e, ERR_UNSUPPORTED, "precision=%s: the %s backend computes in %s",
                   knob_choice(KNOB_precision, (int)s->knobs.precision), s->backend->name,
                   accepted);
}

static int list_programs(const struct session *s, struct program *set[SESSION_PROGRAMS]) {
    int n = 0;
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        if (s->programs[i])
            set[n++] = s->programs[i];
    return n;
}

// A library of matrix products takes its buffers when it is first used, one per thread: now, so that
// they are counted. The product is as wide as the projection to the vocabulary, because buffers grow with
// the width, up to a limit of each library (OpenBLAS: some 16,000 columns of a few hundred rows).
enum { WARM_ROWS = 64, WARM_DEPTH = 512, WARM_COLUMNS = 16384 };

static int warm_library(struct session *s, struct err *e) {
    const int64_t m = WARM_ROWS, k = WARM_DEPTH,
                  most = (int64_t)WARM_COLUMNS * pool_threads(s->pool);
    const int64_t other = s->second ? s->second->session.shape.vocab : 0;
    const int64_t widest = s->shape.vocab > other ? s->shape.vocab : other;
    const int64_t n = widest < most ? widest : most;
    if (s->options.reference || s->backend->memory ||
        strncmp(cpu_backend_blas(s->backend), "builtin", strlen("builtin")) == 0)
        return 0;
    float *x = calloc((size_t)(m * k + k * n + m * n), sizeof *x);
    if (!x)
        return err_set(e, ERR_MEMORY, "out of memory while the backend warms up");
    const struct operand in = {x, k, DTYPE_F32, m, k}, w = {x + m * k, k, DTYPE_F32, n, k},
                         out = {x + m * k + k * n, n, DTYPE_F32, m, n};
    const struct {
        enum op_kind kind;
        struct operand in[2], out;
    } products[] = {
        {OP_MATMUL, {in, w}, out}, {OP_MATMUL_DX, {out, w}, in}, {OP_MATMUL_DW, {in, out}, w}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof products / sizeof *products; i++) {
        struct op op = op_make(products[i].kind);
        op.m = m, op.n = n, op.k = k;
        op.scale = 1;
        const struct op_call call = {
            .op = &op, .in = {products[i].in[0], products[i].in[1]}, .out = {products[i].out}};
        rc = s->backend->run[op.kind](s->backend, &call, e);
    }
    free(x);
    return rc;
}

// Threads and backend: what is kept, or new.
static int open_machine(struct session *s, struct err *e) {
    if (s->options.kept)
        kept_lend(s->options.kept, s);
    // After that: threads that were pinned and are not kept leave this thread its CPUs again.
    int threads = s->knobs.threads ? (int)s->knobs.threads : pool_machine_cpus();
    if (!s->mem)
        TRY(mem_open(&s->mem, e));
    if (!s->pool)
        TRY(pool_open(&s->pool, threads, s->knobs.cpu_pin, e));
    if (!s->backend) {
        TRY(open_backend(s, e));
        TRY(warm_library(s, e));
        mem_process_page_in_code();
    }
    if (s->options.kept)
        kept_adopt(s->options.kept, s);
    return 0;
}

// A second model computes on this session's threads and kernels.
static struct session *lend_second(struct session *s) {
    if (!s->second)
        return NULL;
    struct session *beside = &s->second->session;
    beside->mem = s->mem;
    beside->pool = s->pool;
    beside->backend = s->backend;
    return beside;
}

static uint64_t table_bytes(const struct session *s) {
    struct program *set[SESSION_PROGRAMS];
    const int n = list_programs(s, set);
    return exec_plan_bytes(set, n);
}

int session_ready(struct session *s, struct err *e) {
    if (!s->backend) {
        TRY(open_machine(s, e));
        const struct session *beside = lend_second(s);
        s->process_bytes = session_resident_bytes(s) + mem_bytes(s->mem) + table_bytes(s) +
                           (beside ? table_bytes(beside) : 0);
    }
    TRY(check_precision(s, e));
    if (s->second)
        TRY(check_precision(&s->second->session, e) == 0
                ? 0
                : err_context(e, "interactive.recipe=%s", s->knobs.interactive_recipe));
    return session_check_memory(s, e);
}

static int open_exec(struct session *s, struct executor *beside, struct err *e) {
    struct program *set[SESSION_PROGRAMS];
    const int n = list_programs(s, set);
    void *arena = NULL;
    if (s->options.kept) {
        TRY(kept_arena(s->options.kept, s, &arena, e));
        s->tail_bytes = kept_tail_bytes(s->options.kept, s->layout.arena_bytes);
    }
    struct exec_options o = {.programs = set,
                             .n_programs = n,
                             .layout = &s->layout,
                             .backend = s->backend,
                             .arena = arena,
                             .graphs = s->knobs.cuda_graphs,
                             .checking = s->options.checking,
                             .beside = beside};
    return exec_open(&s->exec, &o, e);
}

static int fill(struct session *s, struct err *e) {
    struct weights *files = NULL;
    if (s->kept_weights)
        return write_constants(s, e);
    if (s->from_folder)
        TRY(weights_open(&files, s->knobs.model, e));
    int rc = load_weights(s, files, e);
    if (files)
        weights_close(files);
    TRY(rc);
    return write_constants(s, e);
}

struct touched {
    unsigned char *arena;
    int64_t bytes;
};

static void touch_task(void *arg, int thread, int threads) {
    enum { PAGE = 4096 };
    const struct touched *t = arg;
    int64_t begin, end;
    pool_share(t->bytes, PAGE, thread, threads, &begin, &end);
    for (int64_t i = begin; i < end; i += PAGE)
        ((volatile unsigned char *)t->arena)[i] = 0;
}

// The bulk's first step uses all of its arena, a second model's first request may come an hour later: its
// pages are taken now, while they can be refused, and are in what is measured.
static void touch(struct session *s) {
    struct touched t = {exec_host_arena(s->exec), (int64_t)s->layout.arena_bytes};
    if (t.arena && !s->options.checking)
        pool_run(s->pool, touch_task, &t);
}

int session_start(struct session *s, struct err *e) {
    TRY(session_ready(s, e));
    struct session *beside = lend_second(s);
    uint64_t total;
    if (s->backend->memory)
        TRY(s->backend->memory(s->backend, &s->device_free_bytes, &total, e));
    if (s->options.kept)
        s->device_free_bytes += kept_device_bytes(s->options.kept);
    const uint64_t reserved = mem_bytes(s->mem); // by kernels; counted in full, they will touch it
    TRY(open_exec(s, NULL, e));
    if (beside)
        TRY(open_exec(beside, s->exec, e));
    if (!s->options.checking) // the executors' tables are there, the arenas are not touched yet
        s->process_bytes = session_resident_bytes(s) + reserved;
    TRY(fill(s, e));
    if (!beside)
        return 0;
    touch(beside);
    return fill(beside, e);
}

static void close_session(struct session *s) {
    exec_close(s->exec);
    if (s->options.kept)
        kept_return(s->options.kept, s);
    if (s->backend && !s->lent)
        s->backend->close(s->backend);
    if (s->pool && !s->lent)
        pool_close(s->pool);
    for (int i = 0; i < SESSION_PROGRAMS; i++)
        program_free(s->programs[i]);
    if (s->mem && !s->lent)
        mem_close(s->mem);
    memset(s, 0, sizeof *s);
}

void session_close(struct session *s) {
    if (s->second)
        close_session(&s->second->session);
    free(s->second);
    close_session(s);
}

int session_run(struct session *s, enum session_program program, exec_feed_fn *feed, void *arg,
                struct trace *trace, struct err *e) {
    return exec_run(s->exec, s->index[program], feed, arg, trace, e);
}

int session_set_hyper(struct session *s, const double hyper[HYPER_COUNT], struct err *e) {
    int in = s->programs[SESSION_TRAIN] ? SESSION_TRAIN : SESSION_EVAL;
    return exec_write(s->exec, s->index[in], session_find(s, (enum session_program)in, NAME_HYPER),
                      hyper, HYPER_COUNT * sizeof *hyper, e);
}

int session_get_results_of(struct session *s, enum session_program program,
                           double results[RESULT_COUNT], struct err *e) {
    return exec_read(s->exec, s->index[program], session_find(s, program, NAME_GUEST NAME_RESULTS),
                     results, RESULT_COUNT * sizeof *results, e);
}

int session_get_results(struct session *s, double results[RESULT_COUNT], double clip[CLIP_COUNT],
                        struct err *e) {
    int in = s->programs[SESSION_TRAIN] ? SESSION_TRAIN : SESSION_EVAL;
    TRY(exec_read(s->exec, s->index[in], session_find(s, (enum session_program)in, NAME_RESULTS),
                  results, RESULT_COUNT * sizeof *results, e));
    if (!clip)
        return 0;
    return exec_read(s->exec, s->index[in], session_find(s, (enum session_program)in, NAME_CLIP),
                     clip, CLIP_COUNT * sizeof *clip, e);
}

int session_get_noise(struct session *s, double *norm, struct err *e) {
    double clip[CLIP_COUNT];
    TRY(exec_read(s->exec, s->index[SESSION_NOISE], session_find(s, SESSION_NOISE, NAME_NOISE),
                  clip, sizeof clip, e));
    *norm = clip[CLIP_NORM];
    return 0;
}

struct step_flops session_step_flops(const struct session *s) {
    const struct program *p = s->programs[SESSION_TRAIN];
    struct step_flops sum = {0};
    for (int i = 0; p && i < p->n_segments; i++) {
        double model = 0, all = 0, runs = 0;
        for (int k = 0; k < p->segments[i].n_ops; k++) {
            const struct op *op = &p->segments[i].ops[k];
            enum op_category c = op_info(op->kind)->category;
            if (c != CAT_MATMUL && c != CAT_ATTENTION)
                continue;
            double flops = op_cost_of(p, op).flops;
            all += flops;
            model += op->flags & OP_AGAIN ? 0 : flops;
        }
        for (int k = 0; k < p->n_order; k++)
            runs += p->order[k].segment == i;
        sum.model += model * runs;
        sum.hardware += all * runs;
    }
    return sum;
}

// ---------------------------------------------------------------- greedy generation

// The generate program recomputes the whole prefix for each token: simple, exact, and enough to
// look at a model in training. Serving has its own programs with a key/value cache.
int session_generate(struct session *s, int32_t *tokens, int64_t capacity, int64_t *lengths,
                     int64_t batch, int64_t n, struct err *e) {
    const struct program *p = s->programs[SESSION_GENERATE];
    int x = s->index[SESSION_GENERATE];
    int64_t B = p->batch, T = p->seq;
    if (batch > B || capacity > T)
        return err_set(e, ERR_INTERNAL, "generation is laid out for %lld x %lld tokens",
                       (long long)B, (long long)T);
    int in_tokens = program_find(p, "gen." NAME_TOKENS),
        in_positions = program_find(p, "gen." NAME_POSITIONS);
    int in_docs = program_find(p, "gen." NAME_DOC_START), in_rows = program_find(p, NAME_ROWS);
    int out_ids = program_find(p, NAME_IDS);
    int32_t *buffer = calloc((size_t)(B * T + 2 * B), sizeof *buffer);
    if (!buffer)
        return err_set(e, ERR_MEMORY, "out of memory for generation");
    int32_t *rows = buffer + B * T, *ids = rows + B;
    uint64_t all = (uint64_t)(B * T) * sizeof *buffer, some = (uint64_t)B * sizeof *buffer;
    int rc = exec_write(s->exec, x, in_docs, buffer, all, e); // one document per row, from column 0
    for (int64_t i = 0; i < B * T; i++)
        buffer[i] = (int32_t)(i % T);
    if (rc == 0 && in_positions >= 0)
        rc = exec_write(s->exec, x, in_positions, buffer, all, e);
    memset(buffer, 0, all);
    for (int64_t step = 0; rc == 0 && step < n; step++) {
        for (int64_t b = 0; b < batch && rc == 0; b++) {
            if (lengths[b] < 1 || lengths[b] >= capacity)
                rc = err_set(e, ERR_USAGE,
                             "sequence %lld has %lld tokens; generation needs 1 to %lld",
                             (long long)b, (long long)lengths[b], (long long)capacity - 1);
            else
                memcpy(buffer + b * T, tokens + b * capacity, (size_t)lengths[b] * sizeof *tokens);
            rows[b] = (int32_t)(b * T + lengths[b] - 1);
        }
        if (rc == 0)
            rc = exec_write(s->exec, x, in_tokens, buffer, all, e);
        if (rc == 0)
            rc = exec_write(s->exec, x, in_rows, rows, some, e);
        if (rc == 0)
            rc = exec_run(s->exec, x, NULL, NULL, NULL, e);
        if (rc == 0)
            rc = exec_read(s->exec, x, out_ids, ids, some, e);
        for (int64_t b = 0; b < batch && rc == 0; b++)
            tokens[b * capacity + lengths[b]++] = ids[b];
    }
    free(buffer);
    return rc;
}
