// build.c - the mathematics of one model on one device, as ops: embedding, layers, norm, head,
// loss.
//
// The four families share this skeleton. The switches of struct model_shape choose the branches.
// This file knows nothing of ranks, micro-batches, precision or memory: techniques edit the result.
// Tensors are single-assignment: no op overwrites another op's output. Therefore grad.c can
// differentiate and layout.c can share bytes without further rules. The one exception is the loss.
// It turns the logits into their gradient in place, because they are the largest tensor.
//
// Letters: M = B*T rows, C width, H heads, G key/value heads, D head dimension, F MLP width, V
// vocabulary.
#include "program/build.h"
#include "program/extend.h"

#include <math.h>
#include <stdio.h>

struct builder {
    struct program *p;
    const struct build *b;
    const struct model_shape *s;
    int segment, layer;
    int64_t M;
    int tokens, targets, positions, doc_start, hyper, rope_table;
    int sequences, rows; // of a turn that extends sequences
};

static int weight(struct builder *w, enum model_role role) {
    struct model_param param;
    if (!model_param_get(w->s, role, w->layer, &param))
        return -1;
    int t = program_find(w->p, param.name); // tied weights: one tensor, two readers
    if (t >= 0)
        return t;
    const struct storage storage = quantized_as(w->b->quantized, &param);
    if (!storage_plain(storage))
        quantized_turn(w->s, &param);
    t = program_tensor(w->p, param.name, w->b->real, CLASS_WEIGHT, LIFE_RUN, param.rank,
                       param.dims);
    if (t >= 0) {
        w->p->tensors[t].layer = param.layer;
        w->p->tensors[t].trainable = storage_plain(storage);
        w->p->tensors[t].decay = param.matrix || w->b->decay_all;
    }
    if (!storage_plain(storage))
        program_set_storage(w->p, t, storage);
    return t;
}

// A tensor that this layer makes. It starts as workspace. program_settle_lives promotes the tensors
// that the backward reads.
static int act(struct builder *w, const char *what, int64_t rows, int64_t cols) {
    char name[96];
    if (w->layer >= 0 && w->layer < w->s->layers)
        snprintf(name, sizeof name, "h.%d.%s", w->layer, what);
    else
        snprintf(name, sizeof name, "%s", what);
    int t = program_tensor_2d(w->p, name, w->b->real, CLASS_WORKSPACE, LIFE_SEGMENT, rows, cols);
    if (t >= 0)
        w->p->tensors[t].layer = w->layer;
    return t;
}

static void emit(struct builder *w, struct op *op) {
    op->layer = w->layer;
    program_op(w->p, w->segment, op);
}

// The sums of squares of the columns of x, kept from turn to turn: what a method that rounds a
// matrix by what it is multiplied with has to know.
static void add_power(struct builder *w, const char *what, int x, int of, int64_t rows, int64_t k) {
    struct op square = op_make(OP_MUL), sum = op_make(OP_BIAS_DB);
    char name[192];
    if (!w->b->powers || of < 0)
        return;
    snprintf(name, sizeof name, "%s.square", what);
    const int y = act(w, name, rows, k);
    snprintf(name, sizeof name, NAME_POWER "%s", w->p->tensors[of].name);
    op_in(&square, x);
    op_in(&square, x);
    op_out(&square, y);
    op_in(&sum, y);
    op_out(&sum, program_tensor_1d(w->p, name, w->b->real, CLASS_WORKSPACE, LIFE_RUN, k));
    square.m = sum.m = rows, square.n = sum.n = k;
    sum.scale = 1, sum.flags = OP_ACCUMULATE;
    emit(w, &square);
    emit(w, &sum);
}

static int matmul(struct builder *w, const char *what, int x, enum model_role weight_role,
                  enum model_role bias_role, int64_t rows, int64_t n, int64_t k, bool in_out) {
    struct op op = op_make(OP_MATMUL);
    int y = act(w, what, rows, n);
    op_in(&op, x);
    const int from = weight(w, weight_role);
    op_in(&op, from);
    op_in(&op, bias_role == ROLE_COUNT ? -1 : weight(w, bias_role));
    op_out(&op, y);
    op.m = rows, op.n = n, op.k = k;
    // A quantized weight is stored [out, in] in every family.
    const bool quantized = from >= 0 && !storage_plain(w->p->tensors[from].storage);
    op.flags = in_out && !quantized ? OP_IN_OUT : 0;
    emit(w, &op);
    add_power(w, what, x, from, rows, k);
    return y;
}

// heads: how many rows of `cols` columns a row holds, each with separate statistics.
static int norm(struct builder *w, const char *what, int x, enum model_role weight_role,
                enum model_role bias_role, int64_t rows, int64_t cols, int64_t heads, bool rms) {
    char name[64];
    struct op op = op_make(OP_NORM);
    int y = act(w, what, rows, cols * heads);
    snprintf(name, sizeof name, "%s.stats", what);
    op_in(&op, x);
    op_in(&op, weight(w, weight_role));
    op_in(&op, bias_role == ROLE_COUNT ? -1 : weight(w, bias_role));
    op_out(&op, y);
    op_out(&op, act(w, name, rows * heads, 2));
    op.m = rows, op.n = cols, op.heads = heads;
    op.scale = (double)w->s->norm_eps;
    op.flags = rms ? OP_RMS : 0;
    emit(w, &op);
    return y;
}

static int residual_norm(struct builder *w, const char *what, int x, enum model_role weight_role,
                         enum model_role bias_role, int64_t rows) {
    bool rms = w->s->norm == NORM_RMS;
    return norm(w, what, x, weight_role, rms ? ROLE_COUNT : bias_role, rows, w->s->width, 1, rms);
}

static int add(struct builder *w, const char *what, int a, int b, int64_t rows) {
    struct op op = op_make(OP_ADD);
    int y = act(w, what, rows, w->s->width);
    op_in(&op, a);
    op_in(&op, b);
    op_out(&op, y);
    op.m = rows, op.n = w->s->width;
    emit(w, &op);
    return y;
}

// Per-head RMS norm (Qwen3).
static int head_norm(struct builder *w, const char *what, int x, enum model_role role,
                     int64_t heads) {
    return norm(w, what, x, role, ROLE_COUNT, w->M, w->s->head_dim, heads, true);
}

static int rope(struct builder *w, const char *what, int x, int64_t heads) {
    struct op op = op_make(OP_ROPE);
    int y = act(w, what, w->M, heads * w->s->head_dim);
    op_in(&op, x);
    op_in(&op, w->rope_table);
    op_out(&op, y);
    op.m = w->M, op.heads = heads, op.head_dim = w->s->head_dim;
    emit(w, &op);
    return y;
}

static double attention_scale(const struct model_shape *s, int layer) {
    double scale = s->unscaled_attention ? 1.0 : 1.0 / sqrt((double)s->head_dim);
    return s->scale_by_layer ? scale / (layer + 1) : scale;
}

static int attention_over_cache(struct builder *w, int q, int k, int v) {
    const struct model_shape *s = w->s;
    int64_t shape[3] = {w->b->batch, w->b->seq, s->kv_heads * s->head_dim};
    char name[64];
    snprintf(name, sizeof name, "kv.%d.k", w->layer);
    int kc = program_tensor(w->p, name, w->b->real, CLASS_KV, LIFE_RUN, 3, shape);
    snprintf(name, sizeof name, "kv.%d.v", w->layer);
    int vc = program_tensor(w->p, name, w->b->real, CLASS_KV, LIFE_RUN, 3, shape);
    struct op put = op_make(OP_KV_APPEND), op = op_make(OP_ATTENTION_CACHED);
    op_in(&put, k);
    op_in(&put, v);
    op_in(&put, w->sequences);
    op_in(&put, w->positions);
    op_in(&put, kc);
    op_in(&put, vc);
    op_out(&put, kc);
    op_out(&put, vc);
    put.n = s->kv_heads * s->head_dim;
    int o = act(w, "attn", w->M, s->heads * s->head_dim);
    op_in(&op, q);
    op_in(&op, kc);
    op_in(&op, vc);
    op_in(&op, w->sequences);
    op_in(&op, w->positions);
    op_out(&op, o);
    op.heads = s->heads, op.scale = attention_scale(s, w->layer);
    put.m = op.m = w->M;
    put.batch = op.batch = w->b->batch;
    put.seq = op.seq = w->b->seq;
    put.kv_heads = op.kv_heads = s->kv_heads;
    put.head_dim = op.head_dim = s->head_dim;
    emit(w, &put);
    emit(w, &op);
    return o;
}

static int attention(struct builder *w, int q, int k, int v) {
    const struct model_shape *s = w->s;
    if (w->b->kind == BUILD_EXTEND)
        return attention_over_cache(w, q, k, v);
    struct op op = op_make(OP_ATTENTION);
    int o = act(w, "attn", w->M, s->heads * s->head_dim);
    op_in(&op, q);
    op_in(&op, k);
    op_in(&op, v);
    op_in(&op, w->doc_start);
    op_out(&op, o);
    op_out(&op, act(w, "attn.lse", w->b->batch * s->heads, w->b->seq));
    op.batch = w->b->batch, op.seq = w->b->seq, op.heads = s->heads, op.kv_heads = s->kv_heads;
    op.head_dim = s->head_dim, op.scale = attention_scale(s, w->layer);
    emit(w, &op);
    return o;
}

static int attention_block(struct builder *w, int x) {
    const struct model_shape *s = w->s;
    int64_t C = s->width, QD = s->heads * s->head_dim, KD = s->kv_heads * s->head_dim;
    enum model_role none = ROLE_COUNT;
    int h = residual_norm(w, "norm1", x, ROLE_NORM1_W, ROLE_NORM1_B, w->M);
    int q, k, v;
    if (s->packed_qkv) {
        int qkv = matmul(w, "qkv", h, ROLE_QKV_W, s->qkv_bias ? ROLE_QKV_B : none, w->M,
                         QD + 2 * KD, C, s->in_out_weights);
        char name[3][48];
        for (int i = 0; i < 3; i++)
            snprintf(name[i], sizeof name[i], "h.%d.%c", w->layer, "qkv"[i]);
        q = program_view_columns(w->p, name[0], qkv, 0, QD);
        k = program_view_columns(w->p, name[1], qkv, QD, KD);
        v = program_view_columns(w->p, name[2], qkv, QD + KD, KD);
    } else {
        bool io = s->in_out_weights, bias = s->qkv_bias;
        q = matmul(w, "q", h, ROLE_Q_W, bias ? ROLE_Q_B : none, w->M, QD, C, io);
        k = matmul(w, "k", h, ROLE_K_W, bias ? ROLE_K_B : none, w->M, KD, C, io);
        v = matmul(w, "v", h, ROLE_V_W, bias ? ROLE_V_B : none, w->M, KD, C, io);
    }
    if (s->qk_norm) {
        q = head_norm(w, "q.norm", q, ROLE_QNORM_W, s->heads);
        k = head_norm(w, "k.norm", k, ROLE_KNORM_W, s->kv_heads);
    }
    if (s->rope.theta > 0) {
        q = rope(w, "q.rope", q, s->heads);
        k = rope(w, "k.rope", k, s->kv_heads);
    }
    int o = attention(w, q, k, v);
    int y = matmul(w, "attn.out", o, ROLE_OUT_W, s->out_bias ? ROLE_OUT_B : none, w->M, C, QD,
                   s->in_out_weights);
    return add(w, "x.mid", x, y, w->M);
}

static int mlp_block(struct builder *w, int x) {
    const struct model_shape *s = w->s;
    int64_t C = s->width, F = s->ffn;
    enum model_role none = ROLE_COUNT;
    bool io = s->in_out_weights, gated = s->act == ACT_SWIGLU;
    int h = residual_norm(w, "norm2", x, ROLE_NORM2_W, ROLE_NORM2_B, w->M);
    struct op op = op_make(gated ? OP_SWIGLU : OP_ACT);
    if (gated)
        op_in(&op, matmul(w, "mlp.gate", h, ROLE_GATE_W, s->mlp_bias ? ROLE_GATE_B : none, w->M, F,
                          C, io));
    op_in(&op, matmul(w, "mlp.up", h, ROLE_UP_W, s->mlp_bias ? ROLE_UP_B : none, w->M, F, C, io));
    int a = act(w, "mlp.act", w->M, F);
    op_out(&op, a);
    op.m = w->M, op.n = F, op.act = (int)s->act;
    emit(w, &op);
    int y = matmul(w, "mlp.down", a, ROLE_DOWN_W, s->mlp_bias ? ROLE_DOWN_B : none, w->M, C, F, io);
    return add(w, "x.out", x, y, w->M);
}

static int input(struct builder *w, const char *name, int64_t n, enum tensor_life life) {
    return program_tensor_1d(w->p, name, DTYPE_I32, CLASS_INPUT, life, n);
}

// What LOAD writes for training and validation: one micro-batch at a time, into its slot.
static void loaded_inputs(struct builder *w) {
    w->tokens = input(w, NAME_TOKENS, w->M, LIFE_SEGMENT);
    w->targets = input(w, NAME_TARGETS, w->M, LIFE_SEGMENT);
    w->positions = input(w, NAME_POSITIONS, w->M, LIFE_SEGMENT);
    // Padding behind a document then attends to it, which changes no gradient: it is not trained.
    w->doc_start = w->b->one_document ? -1 : input(w, NAME_DOC_START, w->M, LIFE_SEGMENT);
    struct op op = op_make(OP_LOAD);
    op.stream = STREAM_COPY;
    op_out(&op, w->tokens);
    op_out(&op, w->targets);
    op_out(&op, w->positions);
    if (w->doc_start >= 0)
        op_out(&op, w->doc_start);
    op.m = w->M;
    emit(w, &op);
}

// What the host writes before a turn that extends sequences, in one piece (extend.h). Programs of
// a set differ in their rows, so their inputs have names of their own.
static void written_inputs(struct builder *w) {
    const int64_t asked = extend_asked(w->M, w->b->batch), M[1] = {w->M}, R[1] = {asked};
    char name[64];
    snprintf(name, sizeof name, NAME_EXTEND "%lld", (long long)w->M);
    const int all = input(w, name, 3 * w->M + asked, LIFE_RUN);
    static const char *const parts[] = {NAME_TOKENS, NAME_POSITIONS, NAME_SEQUENCES, NAME_ROWS};
    int view[4];
    for (int i = 0; i < 4; i++)
        view[i] = program_view_flat(w->p, parts[i], all, i * w->M, 1, i == 3 ? R : M);
    w->tokens = view[0], w->positions = view[1], w->sequences = view[2], w->rows = view[3];
    w->targets = w->doc_start = -1;
}

static void inputs(struct builder *w) {
    w->hyper = program_tensor_1d(w->p, NAME_HYPER, DTYPE_F64, CLASS_INPUT, LIFE_RUN, HYPER_COUNT);
    if (w->b->kind == BUILD_EXTEND)
        written_inputs(w);
    else
        loaded_inputs(w);
    w->rope_table = -1;
    if (w->s->rope.theta > 0) {
        int64_t D = w->s->head_dim;
        struct op op = op_make(OP_ROPE_TABLE);
        w->rope_table = act(w, "rope.table", w->M, D);
        op_in(&op, w->positions);
        op_in(&op, program_tensor_1d(w->p, NAME_INV_FREQ, DTYPE_F32, CLASS_INPUT, LIFE_RUN, D / 2));
        op_out(&op, w->rope_table);
        op.m = w->M, op.head_dim = D;
        emit(w, &op);
    }
}

static int embed(struct builder *w) {
    struct op op = op_make(OP_EMBED);
    int x = act(w, "x.embed", w->M, w->s->width);
    bool learned = w->s->learned_positions;
    op_in(&op, w->tokens);
    op_in(&op, weight(w, ROLE_WTE));
    op_in(&op, learned ? w->positions : -1);
    op_in(&op, learned ? weight(w, ROLE_WPE) : -1);
    op_out(&op, x);
    op.m = w->M, op.n = w->s->width, op.k = w->s->vocab;
    op.positions = learned ? w->s->max_positions : 0;
    emit(w, &op);
    return x;
}

int build_results(struct program *p) {
    const char *name = p->guest ? NAME_GUEST NAME_RESULTS : NAME_RESULTS;
    int found = program_find(p, name);
    return found >= 0 ? found
                      : program_tensor_1d(p, name, DTYPE_F64, CLASS_INPUT, LIFE_RUN, RESULT_COUNT);
}

static void loss(struct builder *w, int logits) {
    struct op op = op_make(w->b->teacher ? OP_LOSS_KL : OP_LOSS);
    int rows = act(w, NAME_ROW_LOSS, w->M, 1);
    if (rows >= 0 && w->b->keep_row_loss)
        w->p->tensors[rows].life = LIFE_RUN;
    op_in(&op, logits);
    if (w->b->teacher) {
        const int64_t shape[2] = {w->M, w->s->vocab};
        op_in(&op, program_tensor(w->p, NAME_TEACHER, w->b->real, CLASS_INPUT, LIFE_RUN, 2, shape));
    }
    op_in(&op, w->targets);
    op_in(&op, w->hyper);
    op_out(&op, logits);
    op_out(&op, rows);
    op.m = w->M, op.n = w->s->vocab;
    op.flags = w->b->kind == BUILD_TRAIN ? OP_WITH_GRAD : 0;
    emit(w, &op);
    struct op sum = op_make(OP_LOSS_SUM);
    op_in(&sum, rows);
    op_in(&sum, w->targets);
    op_out(&sum, build_results(w->p));
    sum.m = w->M;
    sum.flags = OP_ACCUMULATE;
    emit(w, &sum);
}

// Only rows whose next token is asked for need logits.
static int choose_rows(struct builder *w, int x, int64_t asked) {
    struct op op = op_make(OP_GATHER_ROWS);
    int y = act(w, "x.last", asked, w->s->width);
    op_in(&op, x);
    op_in(&op, w->rows);
    op_out(&op, y);
    op.m = asked, op.n = w->s->width, op.k = w->M;
    emit(w, &op);
    return y;
}

// What the host chooses the next tokens from: the likeliest ids, and all logits in float32.
static void choose_ids(struct builder *w, int logits, int64_t asked) {
    struct op best = op_make(OP_ARGMAX), all = op_make(OP_CAST);
    char name[64];
    snprintf(name, sizeof name, NAME_IDS "%lld", (long long)asked);
    op_in(&best, logits);
    op_out(&best, input(w, name, asked, LIFE_RUN));
    snprintf(name, sizeof name, NAME_ASKED "%lld", (long long)asked);
    const int64_t shape[2] = {asked, w->s->vocab};
    op_in(&all, logits);
    op_out(&all, program_tensor(w->p, name, DTYPE_F32, CLASS_ACTIVATION, LIFE_RUN, 2, shape));
    best.m = all.m = asked;
    best.n = all.n = w->s->vocab;
    emit(w, &best);
    emit(w, &all);
}

int build_forward(struct program *p, const struct build *b, struct err *e) {
    const struct model_shape *s = b->shape;
    const bool extend = b->kind == BUILD_EXTEND;
    if (s->learned_positions && b->seq > s->max_positions)
        return err_set(e, ERR_USAGE, "seq=%lld is longer than the %lld positions %s has",
                       (long long)b->seq, (long long)s->max_positions, s->name);
    struct builder w = {.p = p, .b = b, .s = s, .layer = -1};
    w.M = extend ? b->rows : b->batch * b->seq;
    w.segment = program_segment(p, extend ? "extend" : "forward", SEGMENT_FORWARD);
    p->batch = b->batch, p->seq = b->seq;
    p->guest = b->guest;
    inputs(&w);
    int x = embed(&w);
    for (w.layer = 0; w.layer < s->layers; w.layer++) {
        x = attention_block(&w, x);
        x = mlp_block(&w, x);
    }
    // After the loop w.layer equals the number of layers: pipeline.c counts the head as after all
    // layers.
    int64_t rows = w.M;
    if (extend) {
        rows = extend_asked(w.M, b->batch);
        x = choose_rows(&w, x, rows);
    }
    x = residual_norm(&w, "norm.final", x, ROLE_NORMF_W, ROLE_NORMF_B, rows);
    enum model_role head = s->tied ? ROLE_WTE : ROLE_HEAD_W;
    int logits = matmul(&w, NAME_LOGITS, x, head, ROLE_COUNT, rows, s->vocab, s->width, false);
    if (logits >= 0 && b->keep_logits) {
        p->tensors[logits].life = LIFE_RUN;
        p->tensors[logits].cls = CLASS_ACTIVATION;
    }
    if (extend)
        choose_ids(&w, logits, rows);
    else
        loss(&w, logits);
    TRY(program_finish(p, e));
    return w.segment;
}

int build_begin(struct program *p) {
    int segment = program_segment(p, "begin", SEGMENT_BEGIN);
    struct op op = op_make(OP_ZERO);
    op_out(&op, build_results(p));
    op.n = RESULT_COUNT;
    program_op(p, segment, &op);
    return segment;
}
