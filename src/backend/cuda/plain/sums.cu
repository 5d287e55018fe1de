// sums.cu - ops that sum over rows or over all elements (gradients of norms, biases and embeddings,
// the loss of a micro-batch, the norm of the gradients), and the update.
//
// The order of a sum never depends on timing: a thread adds its terms in order, then the parts of
// the threads are added by a tree or a loop. Partial sums go through the op's scratch.
#include "backend/cuda/update.cuh"

// ---------------------------------------------------------------- columns

// Block (x, y) sums columns [32 x, 32 x + 32) over the rows of split y, eight rows at a time.
enum { COLUMNS = 32, LANES = 8 };

// part[split][2][n] = sums of dy xhat (0 without x) and of dy.
template <typename T>
__global__ void column_sums(float *part, const T *dy, int64_t ldy, const T *x, int64_t ldx,
                            const float *stats, int64_t heads, int64_t m, int64_t n,
                            int64_t rows_per_split) {
    __shared__ float sums[2][LANES][COLUMNS];
    int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    int64_t j = (int64_t)blockIdx.x * COLUMNS + column;
    int64_t begin = blockIdx.y * rows_per_split, end = begin + rows_per_split;
    float sum_w = 0, sum_b = 0;
    for (int64_t i = begin + lane; j < n && i < end && i < m; i += LANES) {
        float d = value(dy[head_at(i, heads, ldy, n) + j]);
        if (x)
            sum_w +=
                d * (value(x[head_at(i, heads, ldx, n) + j]) - stats[2 * i]) * stats[2 * i + 1];
        sum_b += d;
    }
    sums[0][lane][column] = sum_w;
    sums[1][lane][column] = sum_b;
    __syncthreads();
    if (lane < 2 && j < n) {
        float sum = 0;
        for (int l = 0; l < LANES; l++)
            sum += sums[lane][l][column];
        part[((int64_t)blockIdx.y * 2 + lane) * n + j] = sum;
    }
}

static __global__ void add_parts(float *dw, float *db, const float *part, int splits,
                                 bool accumulate, int64_t n) {
    int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n)
        return;
    float sum_w = 0, sum_b = 0;
    for (int i = 0; i < splits; i++) {
        sum_w += part[(int64_t)i * 2 * n + j];
        sum_b += part[((int64_t)i * 2 + 1) * n + j];
    }
    if (dw)
        put(&dw[j], sum_w, accumulate);
    if (db)
        put(&db[j], sum_b, accumulate);
}

template <typename T>
static int sum_columns(struct cuda *s, const struct op_call *c, const T *x, int64_t ldx,
                       const float *stats, float *dw, float *db, cudaStream_t stream,
                       struct err *e) {
    const struct op *op = c->op;
    if (op->n == 0)
        return 0;
    const int64_t heads = x ? op_norm_heads(op) : 1, rows = op->m * heads; // of n columns
    int64_t splits = ceil_div(rows, LANES);
    splits = splits < CUDA_SPLITS ? splits : (int64_t)CUDA_SPLITS;
    splits = splits > 1 ? splits : 1;
    float *part = (float *)c->scratch.data;
    dim3 grid((unsigned)ceil_div(op->n, COLUMNS), (unsigned)splits);
    column_sums<<<grid, COLUMNS * LANES, 0, stream>>>(part, (const T *)c->in[0].data, c->in[0].ld,
                                                      x, ldx, stats, heads, rows, op->n,
                                                      ceil_div(rows, splits));
    TRY(cuda_launched(s, c, e));
    add_parts<<<(unsigned)ceil_div(op->n, BLOCK), BLOCK, 0, stream>>>(
        dw, db, part, (int)splits, (op->flags & OP_ACCUMULATE) != 0, op->n);
    return cuda_launched(s, c, e);
}

template <typename T>
static int norm_dw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    return sum_columns(s, c, (const T *)c->in[1].data, c->in[1].ld, (const float *)c->in[2].data,
                       (float *)c->out[0].data, (float *)c->out[1].data, stream, e);
}

template <typename T>
static int bias_db(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    return sum_columns(s, c, (const T *)NULL, 0, NULL, NULL, (float *)c->out[0].data, stream, e);
}

// ---------------------------------------------------------------- embedding

// A block owns a row of the table and goes through all ids in order. So the sum of a row has the
// order of the batch, and no two blocks write the same place. The ids are read from the cache, once
// per row of the table; most blocks do not find their row among them.
template <typename T>
__global__ void embed_dw_kernel(float *table, int64_t ldt, const int32_t *ids, const T *dx,
                                int64_t ldx, bool accumulate, int64_t first, int64_t rows,
                                int64_t m, int64_t n) {
    __shared__ bool mine[BLOCK];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float *to = table + row * ldt;
        if (!accumulate)
            for (int64_t j = threadIdx.x; j < n; j += BLOCK)
                to[j] = 0;
        for (int64_t base = 0; base < m; base += BLOCK) {
            int64_t i = base + threadIdx.x;
            bool match = i < m && ids[i] == first + row;
            if (!__syncthreads_or(match))
                continue;
            mine[threadIdx.x] = match;
            __syncthreads();
            for (int k = 0; k < BLOCK; k++)
                if (mine[k])
                    for (int64_t j = threadIdx.x; j < n; j += BLOCK)
                        to[j] += value(dx[(base + k) * ldx + j]);
            __syncthreads();
        }
    }
}

template <typename T>
static int embed_dw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->k == 0 || op->n == 0)
        return 0;
    embed_dw_kernel<<<(unsigned)(op->k < (1 << 30) ? op->k : 1 << 30), BLOCK, 0, stream>>>(
        (float *)c->out[0].data, c->out[0].ld, (const int32_t *)c->in[0].data,
        (const T *)c->in[1].data, c->in[1].ld, (op->flags & OP_ACCUMULATE) != 0, op->first, op->k,
        op->m, op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- loss, norm, clip

// Always adds: a turn begins by setting the results to 0, and has one LOSS_SUM per micro-batch.
static __global__ void __launch_bounds__(1024)
    loss_sum_kernel(double *results, const float *row_loss, const int32_t *targets, int64_t m) {
    double sum = 0, count = 0;
    for (int64_t i = threadIdx.x; i < m; i += blockDim.x) {
        sum += (double)row_loss[i];
        count += targets[i] >= 0;
    }
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
        results[RESULT_LOSS_SUM] += sum;
        results[RESULT_TOKENS] += count;
    }
}

static int loss_sum(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    loss_sum_kernel<<<1, 1024, 0, stream>>>((double *)c->out[0].data, (const float *)c->in[0].data,
                                            (const int32_t *)c->in[1].data, c->op->m);
    return cuda_launched(s, c, e);
}

static __global__ void square_parts(double *part, const float *g, int64_t n) {
    double sum = 0;
    EACH(i, n)
        sum += (double)g[i] * (double)g[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

// pair: sq also has room for what rounding lost, which is not known here.
static __global__ void add_squares(double *sq, const double *part, int parts, bool accumulate,
                                   bool pair) {
    double sum = 0;
    for (int i = threadIdx.x; i < parts; i += BLOCK)
        sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *sq = accumulate ? *sq + sum : sum;
    if (threadIdx.x == 0 && pair)
        sq[1] = 0;
}

static int grad_sqnorm(struct cuda *s, const struct op_call *c, cudaStream_t stream,
                       struct err *e) {
    const struct op *op = c->op;
    int64_t blocks = ceil_div(op->n, BLOCK);
    blocks = blocks < CUDA_SQNORM_PARTS ? blocks : (int64_t)CUDA_SQNORM_PARTS;
    if (blocks > 0)
        square_parts<<<(unsigned)blocks, BLOCK, 0, stream>>>((double *)c->scratch.data,
                                                             (const float *)c->in[0].data, op->n);
    add_squares<<<1, BLOCK, 0, stream>>>((double *)c->out[0].data, (const double *)c->scratch.data,
                                         (int)blocks, (op->flags & OP_ACCUMULATE) != 0,
                                         c->out[0].cols == 2);
    return cuda_launched(s, c, e);
}

// Adds a few hundred doubles in order, so the result has the bits of the CPU's.
static __global__ void sum_kernel(double *y, const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    *y = sum;
}

static int sum(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    sum_kernel<<<1, 1, 0, stream>>>((double *)c->out[0].data, (const double *)c->in[0].data,
                                    c->op->n);
    return cuda_launched(s, c, e);
}

static __global__ void clip_kernel(double *out, const double *sq, const double *hyper, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += sq[i];
    clip_of(out, sum, hyper);
}

static int clip(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    clip_kernel<<<1, 1, 0, stream>>>((double *)c->out[0].data, (const double *)c->in[0].data,
                                     (const double *)c->in[1].data, c->op->n);
    return cuda_launched(s, c, e);
}

// ---------------------------------------------------------------- AdamW

// With a float master, the step is made on the master, and w is the master rounded.
template <typename T>
__global__ void adamw_kernel(T *w, float *m, float *v, float *master, const float *grad,
                             const double *hyper, const double *clip, bool decay, int64_t n) {
    if (clip && clip[CLIP_SKIP] != 0)
        return;
    const struct adamw_step s = adamw_step_of(hyper, clip, decay);
    EACH(i, n) {
        float wi = master ? master[i] : value(w[i]);
        adamw_element(s, grad[i], &m[i], &v[i], &wi);
        if (master)
            master[i] = wi;
        w[i] = rounded<T>(wi);
    }
}

template <typename T>
static int adamw(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    const struct op *op = c->op;
    if (op->n == 0)
        return 0;
    int64_t blocks = ceil_div(op->n, BLOCK), most = 16 * (int64_t)s->processors;
    adamw_kernel<<<(unsigned)(blocks < most ? blocks : most), BLOCK, 0, stream>>>(
        (T *)c->out[0].data, (float *)c->out[1].data, (float *)c->out[2].data,
        (float *)c->out[3].data, (const float *)c->in[0].data, (const double *)c->in[1].data,
        (const double *)c->in[2].data, (op->flags & OP_DECAY) != 0, op->n);
    return cuda_launched(s, c, e);
}

template <typename T> void cuda_add_sums(struct cuda_table *t) {
    t->fn[OP_NORM_DW] = norm_dw<T>;
    t->fn[OP_BIAS_DB] = bias_db<T>;
    t->fn[OP_EMBED_DW] = embed_dw<T>;
    t->fn[OP_LOSS_SUM] = loss_sum;
    t->fn[OP_GRAD_SQNORM] = grad_sqnorm;
    t->fn[OP_SUM] = sum;
    t->fn[OP_CLIP] = clip;
    t->fn[OP_ADAMW] = adamw<T>;
}
template void cuda_add_sums<float>(struct cuda_table *);
template void cuda_add_sums<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_sums<__half>(struct cuda_table *);
