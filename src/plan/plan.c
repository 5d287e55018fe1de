// plan.c - see plan.h. Chooses a run's programs, describes each to program/apply.c, and lays them
// out over one arena.
#include "plan/plan.h"
#include "plan/adapter.h"

#include "backend/cuda_needs.h"
#include "backend/plugin.h"
#include "model/hub.h"
#include "model/load.h"
#include "plan/second.h"
#include "program/apply.h"
#include "program/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- programs

// Every program a plan can have, with what it asks of apply.c beyond what all of them share.
// Programs have the same order in a plan as in this table.
static const struct kind {
    const char *name;
    enum build_kind build;
    bool noise;   // measures the gradient noise scale
    bool step;    // a whole training step: accumulates, and yields when a guest may run in between
    bool guest;   // its batch is one request (interactive.micro, interactive.seq)
    bool average; // makes replicas the same
    bool teacher; // gradients of the divergence from a teacher, and no update
    bool powers;  // also adds up squares
} kinds[] = {
    {.name = PLAN_TRAIN, .build = BUILD_TRAIN, .step = true},
    {.name = PLAN_EVAL, .build = BUILD_EVAL},
    {.name = PLAN_EXTEND, .build = BUILD_EXTEND},
    {.name = PLAN_NOISE, .build = BUILD_TRAIN, .step = true, .noise = true},
    {.name = PLAN_AVERAGE, .build = BUILD_TRAIN, .average = true},
    {.name = PLAN_GRADIENTS, .build = BUILD_TRAIN, .teacher = true},
    {.name = PLAN_POWERS, .build = BUILD_EVAL, .powers = true},
    {.name = PLAN_GUEST_EVAL, .build = BUILD_EVAL, .guest = true},
    {.name = PLAN_GUEST_TRAIN, .build = BUILD_TRAIN, .guest = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

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

enum dtype plan_real_type(const struct plan *p) {
    return p->knobs.precision == PRECISION_BF16   ? DTYPE_BF16
           : p->knobs.precision == PRECISION_FP16 ? DTYPE_F16
                                                  : p->real;
}

static bool wants(const struct plan *p, const char *program) {
    const int replicas = mesh_size(&p->ranks.mesh, AXIS_DATA);
    for (int i = 0; i < PLAN_WANTED_MOST; i++)
        if (p->wanted[i] && strcmp(p->wanted[i], program) == 0)
            return true;
    if (strcmp(program, PLAN_AVERAGE) == 0)
        return p->ranks.apart && wants(p, PLAN_TRAIN);
    return strcmp(program, PLAN_NOISE) == 0 && wants(p, PLAN_TRAIN) && p->knobs.noise_every > 0 &&
           (p->knobs.batch_accum > 1 || (replicas > 1 && !p->ranks.apart));
}

// Columns of logits that a device likes: rows then begin at multiples of 128 bytes.
enum { DEVICE_PAD = 64 };

// rows: of a program that extends sequences
static struct apply describe(const struct plan *p, const struct kind *kind, bool yields,
                             int64_t rows) {
    const struct knobs *k = &p->knobs;
    struct apply a = {
        .micro_batches = kind->step ? (int)k->batch_accum : 1,
        .precision = plan_real_type(p),
        .logits_chunk = kind->teacher ? 0 : k->logits_chunk, // the teacher's are whole
        .logits_pad = k->logits_pad > 0 ? k->logits_pad
                      : p->device       ? DEVICE_PAD
                                        : 1,
        .logits_pad_sums = p->device,
        .recompute = {.kind = recompute_kinds[k->recompute_mode],
                      .every = (int)k->recompute_every,
                      .bytes_per_flop = k->recompute_ratio},
        .state = state_types[k->optim_state],
        .fuse = {.norm = k->fuse_norm,
                 .act = k->fuse_act,
                 .loss = k->fuse_loss,
                 .optim = k->fuse_optim},
        .fuse_qkv = k->fuse_qkv,
        .chosen = plan_chosen(p),
        .ranks = p->ranks,
        .whole = &p->shape,
        .noise = kind->noise,
        .average = kind->average,
        .only_gradients = kind->teacher,
        .yields = kind->step && yields,
        .scratch = p->device ? cuda_scratch : NULL,
        .scratch_arg = &p->cuda,
        .build = {.kind = kind->build,
                  .shape = &p->slice,
                  .batch = k->batch_micro,
                  .seq = k->seq,
                  .real = p->real,
                  .decay_all = k->optim_decay_all,
                  .one_document = !knobs_packs(k) || kind->guest || p->prefix[0],
                  .guest = kind->guest && kind->build == BUILD_EVAL,
                  .quantized = &p->quantized,
                  .teacher = kind->teacher,
                  .powers = kind->powers,
                  .keep_gradients = p->keep_gradients || kind->teacher,
                  .keep_logits = p->keep_logits && kind->build == BUILD_EVAL && !kind->guest,
                  .keep_row_loss = p->keep_row_loss && kind->build == BUILD_EVAL && !kind->guest}};
    if (kind->guest) {
        a.build.batch = k->interactive_micro;
        a.build.seq = knobs_interactive_seq(k);
    }
    if (kind->build == BUILD_EXTEND) {
        a.build.batch = p->extend.sequences;
        a.build.seq = p->extend.context;
        a.build.rows = rows;
    }
    return a;
}

struct chosen plan_chosen(const struct plan *p) {
    return (struct chosen){&p->adapter, p->knobs.train_also, p->knobs.train_freeze};
}

bool plan_param_at(const struct plan *p, int64_t i, struct model_param *out, bool *of_adapter) {
    const int64_t n = model_param_count(&p->shape);
    *of_adapter = i >= n;
    return i < n ? model_param_at(&p->shape, i, out)
                 : adapter_param_at(&p->adapter, &p->shape, i - n, out);
}

int64_t plan_trained_elements(const struct plan *p) {
    const struct chosen c = plan_chosen(p);
    struct model_param param;
    int64_t sum = 0;
    bool pair;
    for (int64_t i = 0; plan_param_at(p, i, &param, &pair); i++)
        if (chosen_trains(&c, param.name, pair))
            sum += param.dims[0] * (param.rank > 1 ? param.dims[1] : 1);
    return sum;
}

int plan_find(const struct plan *p, const char *program) {
    for (int i = 0; i < p->n_programs; i++)
        if (strcmp(p->programs[i]->name + strlen(p->prefix), program) == 0)
            return i;
    return -1;
}

struct program *plan_program(const struct plan *p, const char *program) {
    const int i = plan_find(p, program);
    return i < 0 ? NULL : p->programs[i];
}

int plan_tensor(const struct plan *p, const char *program, const char *tensor) {
    const struct program *in = plan_program(p, program);
    return in ? program_find(in, tensor) : -1;
}

// ---------------------------------------------------------------- figures

// A stage with several chunks of the model has the name of each chunk before that of its tensors.
static bool touches_logits(const struct program *p, const struct op *op) {
    struct op_access touched[OP_MAX_TENSORS];
    const int n = op_accesses(p, op, touched);
    for (int i = 0; i < n; i++) {
        const char *name = p->tensors[touched[i].tensor].name, *dot = strrchr(name, '.');
        if (strcmp(dot ? dot + 1 : name, NAME_LOGITS) == 0)
            return true;
    }
    return false;
}

// The vocabulary's padding is no work of the model.
static double without_padding(const struct program *p, const struct op *op, double flops,
                              int64_t vocab) {
    const bool padded = op->n > vocab && touches_logits(p, op);
    return padded ? flops / (double)op->n * (double)vocab : flops;
}

static struct step_flops count_flops(const struct program *p, int64_t vocab) {
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
            model += op->flags & OP_AGAIN ? 0 : without_padding(p, op, flops, vocab);
        }
        for (int k = 0; k < p->n_order; k++)
            runs += p->order[k].segment == i;
        sum.model += model * runs;
        sum.hardware += all * runs;
    }
    return sum;
}

static void add_cost(struct op_cost *sum, const struct op_cost *c) {
    sum->flops += c->flops;
    sum->bytes += c->bytes;
    sum->comm_bytes += c->comm_bytes;
}

static void add_attention(struct step_cost *sum, const struct op *op, const struct op_cost *c) {
    const bool backward = op->kind == OP_ATTENTION_BWD;
    const int docs = backward ? 6 : 3;
    sum->attention_forward_flops += backward ? 0 : c->flops;
    sum->head_dim = op->head_dim;
    sum->bounded += docs < op->n_in && op->in[docs] >= 0;
}

void plan_step_cost(const struct plan *plan, struct step_cost *out) {
    const struct program *p = plan_program(plan, PLAN_TRAIN);
    *out = (struct step_cost){0};
    for (int i = 0; p && i < p->n_order; i++) {
        const struct segment *seg = &p->segments[p->order[i].segment];
        for (int k = 0; k < seg->n_ops; k++) {
            const struct op *op = &seg->ops[k];
            const struct op_cost c = op_cost_of(p, op);
            const enum op_category kind = op_info(op->kind)->category;
            add_cost(&out->all[kind], &c);
            if (kind == CAT_ATTENTION)
                add_attention(out, op, &c);
            out->launches += kind == CAT_MATMUL || kind == CAT_ATTENTION || kind == CAT_OTHER;
            if (touches_logits(p, op))
                add_cost(&out->logits[kind], &c);
        }
    }
}

void plan_own_bytes(const struct plan *plan, uint64_t by_class[CLASS_COUNT]) {
    const struct program *p = plan->programs[plan->layout.neediest];
    memcpy(by_class, plan->layout.by_class, CLASS_COUNT * sizeof *by_class);
    // Persistent tensors never share bytes, so only the transient ones are counted again.
    for (int c = 0; p && c < CLASS_COUNT; c++)
        by_class[c] -= p->peak_by_class[c] + (p->yields ? p->held_by_class[c] : 0);
    for (int i = 0; p && i < p->n_tensors; i++) {
        const struct tensor *t = &p->tensors[i];
        if (t->root < 0 && t->life != LIFE_RUN) // a view has no bytes of its own
            by_class[t->cls] += t->bytes * (uint64_t)t->slots;
    }
}

// ---------------------------------------------------------------- making a plan

bool plan_wants_device(const struct knobs *k) {
    if (k->device == DEVICE_AUTO && knobs_world(k) > 1) // ranks use the CPU
        return false;
    return k->device == DEVICE_CUDA || (k->device == DEVICE_AUTO && plugin_device_present("cuda"));
}

static int check_length(const struct plan *p, const char *knob, int64_t length, int64_t least,
                        struct err *e) {
    const int64_t longest = model_shape_longest(&p->shape);
    if (length <= longest)
        return 0;
    if (longest < p->shape.max_positions)
        return err_set(e, ERR_USAGE,
                       "%s=%lld is more than the sliding window of %s, %lld tokens, and haggle "
                       "computes full attention only; accepted: %lld to %lld",
                       knob, (long long)length, p->shape.name, (long long)longest, (long long)least,
                       (long long)longest);
    return err_set(e, ERR_USAGE,
                   "%s=%lld is more than the %lld positions of %s; accepted: %lld to %lld", knob,
                   (long long)length, (long long)p->shape.max_positions, p->shape.name,
                   (long long)least, (long long)p->shape.max_positions);
}

// interactive.seq is the length of a request, whether this plan or its second model answers it.
static int check_lengths(const struct plan *p, bool is_second, struct err *e) {
    if (is_second && p->knobs.interactive_seq > 0)
        return check_length(p, "interactive.seq", p->knobs.interactive_seq, 0, e);
    TRY(check_length(p, "seq", p->knobs.seq, 1, e));
    return wants(p, PLAN_GUEST_EVAL)
               ? check_length(p, "interactive.seq", p->knobs.interactive_seq, 0, e)
               : 0;
}

// Turns of few rows double from one to the next, because a turn costs by its rows when there are
// few. Those of many rows grow by four: each is a program to lay out, and on a device to prepare.
int plan_extend_rows(const struct plan *p, int64_t rows[PLAN_PROGRAMS_MOST]) {
    enum { FEW = 8 };
    int n = 0;
    if (!wants(p, PLAN_EXTEND))
        return 0;
    for (int64_t r = 1; r < p->extend.rows && n < PLAN_PROGRAMS_MOST / 2; r *= r < FEW ? 2 : 4)
        rows[n++] = r;
    rows[n++] = p->extend.rows;
    return n;
}

void plan_extend_name(int64_t rows, char out[PLAN_NAME_BYTES]) {
    snprintf(out, PLAN_NAME_BYTES, PLAN_EXTEND ".%lld", (long long)rows);
}

static int make_program(struct plan *p, const struct kind *kind, const char *name, bool yields,
                        int64_t rows, struct err *e) {
    const struct apply a = describe(p, kind, yields, rows);
    char full[64];
    snprintf(full, sizeof full, "%s%s", p->prefix, name);
    TRY(apply_program(&p->programs[p->n_programs], full, &a, e));
    p->n_programs++;
    return 0;
}

static int make_extend(struct plan *p, const struct kind *kind, struct err *e) {
    int64_t rows[PLAN_PROGRAMS_MOST];
    const int n = plan_extend_rows(p, rows);
    for (int i = 0; i < n; i++) {
        char name[PLAN_NAME_BYTES];
        plan_extend_name(rows[i], name);
        TRY(make_program(p, kind, name, false, rows[i], e));
    }
    return 0;
}

// The programs of p->wanted, in the order of `kinds`, and their layout.
static int make_programs(struct plan *p, bool yields, struct err *e) {
    for (int i = 0; i < KINDS; i++) {
        if (!wants(p, kinds[i].name))
            continue;
        TRY(kinds[i].build == BUILD_EXTEND
                ? make_extend(p, &kinds[i], e)
                : make_program(p, &kinds[i], kinds[i].name, yields, 0, e));
    }
    TRY(layout_set(p->programs, p->n_programs, &p->layout, e));
    for (int i = 0; i < p->n_programs; i++)
        TRY(check_layout(p->programs[i], p->layout.arena_bytes, e));
    TRY(check_guests(p->programs, p->n_programs, e));
    p->flops = count_flops(plan_program(p, PLAN_TRAIN), p->slice.vocab);
    return 0;
}

// Training needs weights that an optimizer can step on.
static int take_quantized(struct plan *p, struct err *e) {
    char text[STORAGE_TEXT_BYTES];
    TRY(quantized_read(&p->quantized, p->knobs.model, &p->shape, e));
    for (int i = 0; quantized_any(&p->quantized) && i < KINDS; i++)
        if (wants(p, kinds[i].name) && kinds[i].build == BUILD_TRAIN)
            return err_set(e, ERR_UNSUPPORTED,
                           "model=%.300s is quantized (%s), and quantized weights cannot be "
                           "trained: train the model that it was made from, then quantize again",
                           p->knobs.model, storage_text(p->quantized.storage, text));
    return 0;
}

static int make_one(struct plan *p, const struct plan_options *o, const char *prefix,
                    struct err *e) {
    const bool is_second = prefix[0] != '\0';
    *p = (struct plan){.knobs = *o->knobs,
                       .prefix = prefix,
                       .extend = o->extend,
                       .real = o->real,
                       .keep_gradients = o->keep_gradients,
                       .keep_logits = o->keep_logits,
                       .keep_row_loss = o->keep_row_loss};
    p->extend.sequences = o->extend.sequences > 0 ? o->extend.sequences : 1;
    p->extend.context = o->extend.context > 0 ? o->extend.context : o->knobs->seq;
    p->extend.rows = o->extend.rows > p->extend.sequences ? o->extend.rows : p->extend.sequences;
    memcpy(p->wanted, o->programs, sizeof p->wanted);
    p->device = plan_wants_device(&p->knobs);
    p->cuda = (struct cuda_choice){.plain = p->knobs.cuda_kernels == CUDA_KERNELS_PLAIN,
                                   .deterministic = p->knobs.cuda_deterministic,
                                   .attention = cuda_wants_cudnn(p->knobs.cuda_cudnn)};
    TRY(model_shape_open(&p->shape, p->knobs.model, &p->from_folder, e));
    TRY(hub_resolve(p->knobs.model, sizeof p->knobs.model, NULL, e)); // readers want the folder
    if (p->from_folder)
        TRY(take_quantized(p, e));
    TRY(check_lengths(p, is_second, e));
    TRY(plan_take_adapter(p, e));
    if (o->split)
        p->split = *o->split;
    TRY(plan_ranks(&p->split, &p->knobs, &p->shape, o->rank, &p->ranks, e));
    tensor_slice(&p->shape, &p->ranks.mesh, &p->slice);
    return make_programs(p, wants(p, PLAN_GUEST_EVAL) || o->second, e);
}

// The second model's plan is an ordinary one that trains and validates. A step of it is one
// micro-batch: a request.
static int make_second(struct plan *p, const struct plan_options *o, struct err *e) {
    const struct plan_options second = {
        .knobs = o->second, .programs = {PLAN_TRAIN, PLAN_EVAL}, .real = o->real};
    p->second = calloc(1, sizeof *p->second);
    if (!p->second)
        return err_set(e, ERR_MEMORY, "out of memory for a second model");
    return make_one(p->second, &second, "second.", e);
}

int plan_make(struct plan *p, const struct plan_options *o, struct err *e) {
    TRY(make_one(p, o, "", e));
    return o->second && make_second(p, o, e) != 0
               ? err_context(e, "interactive.recipe=%s", p->knobs.interactive_recipe)
               : 0;
}

// Generation has no program for a rank that holds a part of the weights only.
static bool can_generate(const struct plan_split *s) {
    return s->tensor == 1 && s->pipe == 1 && (s->zero < 3 || s->data == 1);
}

static int check_validation(const struct knobs *k, struct err *e) {
    return k->eval_every > 0 || !(k->save_best || k->stop_patience > 0)
               ? 0
               : err_set(e, ERR_USAGE,
                         "%s looks at validations, and eval.every=0 asks for none; accepted: "
                         "eval.every of 1 or more",
                         k->save_best ? "save.best" : "stop.patience");
}

int plan_run(struct plan *p, const struct knobs *k, struct err *e) {
    return plan_run_rank(p, k, 0, e);
}

int plan_run_rank(struct plan *p, const struct knobs *k, int rank, struct err *e) {
    struct plan_split split;
    struct plan_options o = {
        .knobs = k, .programs = {PLAN_TRAIN}, .real = DTYPE_F32, .split = &split, .rank = rank};
    struct model_shape shape;
    struct knobs second;
    bool from_folder = false;
    int n = 1;
    *p = (struct plan){.prefix = ""}; // so that plan_free is safe after every failure below
    TRY(check_validation(k, e));
    TRY(plan_split_of(k, &split, e));
    TRY(model_shape_open(&shape, k->model, &from_folder, e));
    if (k->eval_every > 0)
        o.programs[n++] = PLAN_EVAL;
    if (second_wanted(k)) {
        TRY(second_knobs(k, &second, e));
        o.second = &second;
    } else if (k->goal == GOAL_HYBRID) {
        o.programs[n++] = PLAN_GUEST_EVAL;
        o.programs[n++] = PLAN_GUEST_TRAIN;
    }
    if (k->generate_tokens > 0 && can_generate(&split)) {
        // The sample begins with one token, as documents do, and must leave room for it.
        const int64_t length = k->generate_tokens + 1;
        o.programs[n++] = PLAN_EXTEND;
        const int64_t longest = model_shape_longest(&shape);
        o.extend.context = length < longest ? length : longest;
    }
    return plan_make(p, &o, e);
}

int plan_like(struct plan *p, const struct plan *like, const struct knobs *k, struct err *e) {
    struct plan_split split = {0};
    *p = (struct plan){.prefix = ""};
    if (mesh_world(&like->ranks.mesh) > 1)
        TRY(plan_split_of(k, &split, e));
    struct plan_options o = {.knobs = k,
                             .extend = like->extend,
                             .real = like->real,
                             .keep_gradients = like->keep_gradients,
                             .keep_logits = like->keep_logits,
                             .keep_row_loss = like->keep_row_loss,
                             .second = like->second ? &like->second->knobs : NULL,
                             .split = &split,
                             .rank = mesh_rank(&like->ranks.mesh)};
    memcpy(o.programs, like->wanted, sizeof o.programs);
    return plan_make(p, &o, e);
}

void plan_free(struct plan *p) {
    for (int i = 0; i < p->n_programs; i++)
        program_free(p->programs[i]);
    if (p->second)
        plan_free(p->second);
    free(p->second);
    quantized_free(&p->quantized);
    *p = (struct plan){.prefix = ""};
}
