// matmul.cu - matrix products by cuBLASLt. A product is described once, when a program is bound.
// The library names some algorithms for it, and the fastest of them is found by running each one.
// What was found is noted for the next time (notes.h), because measuring takes some milliseconds a
// product and because the bits of a result depend on the algorithm.
//
// cuBLASLt is column-major: to it, a row-major [rows, columns] matrix is the transpose, with the
// same leading dimension. Each product below is therefore written for the transposed result.
#include "backend/cuda/cuda.cuh"
#include "model/shape.h"

#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALGORITHMS = 12, // that are asked for, for each form
    CLOSE = 4,       // the best ones are measured again
    NAME_BYTES = 256,
    ALIGNMENT = 256, // beyond that, alignment of an operand does not matter
    ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
};

// How bias and activation get into the result.
enum form {
    FORM_PASS,     // a pass over the result after the product
    FORM_EPILOGUE, // the product does it
    FORM_COUNT
};

struct cuda_products {
    cublasLtHandle_t lt;
    struct notes *notes;
    cudaEvent_t begin, end;
};

struct matrix {
    const void *data;
    int64_t ld;
    cublasOperation_t as; // CUBLAS_OP_T: to be transposed
};

// What a call computes: out = scale A B (+ out), then bias and activation. `rows` and `columns` are
// those of the column-major result.
struct product {
    const struct op_call *call;
    struct matrix a, b;
    int64_t rows, columns, inner;
    void *out;
    int64_t ld;
    cudaDataType_t in_type, out_type;
    const void *bias;
    bool act; // a second output: the activation of the first
};

// A product in one of its forms, ready to run.
struct ready {
    enum form form;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    float alpha, beta;
    const void *a_data, *b_data;
    void *d_data;
    void (*pass)(const struct op_call *c, cudaStream_t stream); // NULL: none
};

struct candidate {
    struct ready ready;
    float ms;
};

template <typename T> static cudaDataType_t type_of(void);
template <> cudaDataType_t type_of<float>(void) {
    return CUDA_R_32F;
}
template <> cudaDataType_t type_of<__nv_bfloat16>(void) {
    return CUDA_R_16BF;
}
template <> cudaDataType_t type_of<__half>(void) {
    return CUDA_R_16F;
}

// ---------------------------------------------------------------- the library

size_t cuda_products_version(void) {
    return cublasLtGetVersion();
}

void cuda_products_close(struct cuda *s) {
    struct cuda_products *l = s->products;
    if (!l)
        return;
    s->host.notes_close(l->notes);
    cudaEvent_t events[] = {l->begin, l->end};
    for (cudaEvent_t event : events)
        if (event)
            cudaEventDestroy(event);
    if (l->lt)
        cublasLtDestroy(l->lt);
    free(l);
}

// Opened for the first product, so that it takes no memory where only plain kernels run.
static int open_library(struct cuda *s, struct err *e) {
    struct cudaDeviceProp p;
    char name[NAME_BYTES];
    int driver = 0;
    if (s->products)
        return 0;
    struct cuda_products *l = (struct cuda_products *)calloc(1, sizeof *l);
    if (!l)
        return s->host.err_set(e, ERR_MEMORY, "no memory for matrix products");
    s->products = l;
    TRY(cuda_check(s, cudaEventCreate(&l->begin), "making an event", e));
    TRY(cuda_check(s, cudaEventCreate(&l->end), "making an event", e));
    if (cublasLtCreate(&l->lt) != CUBLAS_STATUS_SUCCESS)
        return s->host.err_set(e, ERR_INTERNAL, "cuBLASLt cannot be opened");
    TRY(cuda_check(s, cudaGetDeviceProperties(&p, s->device), "properties of the device", e));
    cudaDriverGetVersion(&driver);
    snprintf(name, sizeof name, "products-%.64s-sm%d%d-%d-driver%d-cublaslt%zu", p.name, p.major,
             p.minor, p.multiProcessorCount, driver, cublasLtGetVersion());
    return s->host.notes_open(&l->notes, *s->cache ? s->cache : NULL, name, e);
}

// ---------------------------------------------------------------- describing a product

static void drop_ready(struct ready *r) {
    if (r->what)
        cublasLtMatmulDescDestroy(r->what);
    cublasLtMatrixLayout_t layouts[] = {r->a, r->b, r->d};
    for (cublasLtMatrixLayout_t layout : layouts)
        if (layout)
            cublasLtMatrixLayoutDestroy(layout);
    *r = {};
}

static void drop(void *own) {
    drop_ready((struct ready *)own);
    free(own);
}

template <typename V>
static bool set(cublasLtMatmulDesc_t what, cublasLtMatmulDescAttributes_t name, V value) {
    return cublasLtMatmulDescSetAttribute(what, name, &value, sizeof value) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool layout(cublasLtMatrixLayout_t *out, cudaDataType_t type, int64_t rows, int64_t columns,
                   int64_t ld) {
    return cublasLtMatrixLayoutCreate(out, type, (uint64_t)rows, (uint64_t)columns, ld) ==
           CUBLAS_STATUS_SUCCESS;
}

// The activation goes to D, and what it was computed from to the auxiliary output.
static bool describe_act(const struct product *p, struct ready *r) {
    const struct operand *h = &p->call->out[0], *a = &p->call->out[1];
    const int64_t multiple = 8;
    if (p->call->op->act != ACT_GELU_TANH || p->in_type == CUDA_R_32F || h->ld % multiple != 0 ||
        (uintptr_t)h->data % 16 != 0 || p->call->op->flags & OP_ACCUMULATE)
        return false;
    r->d_data = a->data;
    return set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE,
               p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX) &&
           set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, h->data) &&
           set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, h->ld);
}

static bool describe_epilogue(const struct product *p, struct ready *r) {
    if (p->bias && !set(r->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias))
        return false;
    return p->act ? describe_act(p, r)
                  : p->bias && set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
}

// False: this form does not exist for the product.
static bool describe(const struct cuda *s, const struct product *p, enum form form,
                     void (*pass)(const struct op_call *, cudaStream_t), struct ready *r) {
    const cublasComputeType_t compute =
        p->in_type == CUDA_R_32F && s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const bool at = p->a.as == CUBLAS_OP_T, bt = p->b.as == CUBLAS_OP_T;
    *r = {};
    r->form = form;
    r->alpha = (float)p->call->op->scale;
    r->beta = p->call->op->flags & OP_ACCUMULATE ? 1.0f : 0.0f;
    r->a_data = p->a.data;
    r->b_data = p->b.data;
    r->d_data = p->out;
    r->pass = form == FORM_PASS && (p->bias || p->act) ? pass : NULL;
    const int64_t ld = form == FORM_EPILOGUE && p->act ? p->call->out[1].ld : p->ld;
    if (cublasLtMatmulDescCreate(&r->what, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        set(r->what, CUBLASLT_MATMUL_DESC_TRANSA, p->a.as) &&
        set(r->what, CUBLASLT_MATMUL_DESC_TRANSB, p->b.as) &&
        layout(&r->a, p->in_type, at ? p->inner : p->rows, at ? p->rows : p->inner, p->a.ld) &&
        layout(&r->b, p->in_type, bt ? p->columns : p->inner, bt ? p->inner : p->columns,
               p->b.ld) &&
        layout(&r->d, p->out_type, p->rows, p->columns, ld) &&
        (form == FORM_PASS || describe_epilogue(p, r)))
        return true;
    drop_ready(r);
    return false;
}

// ---------------------------------------------------------------- algorithms

static uint32_t alignment(const void *p) {
    const uintptr_t low = (uintptr_t)p & (~(uintptr_t)p + 1);
    return low == 0 || low > ALIGNMENT ? (uint32_t)ALIGNMENT : (uint32_t)low;
}

// The algorithms that the library names for a form, the one first that it expects to be the best.
static int ask(const struct cuda *s, const struct ready *r, uint64_t workspace,
               cublasLtMatmulHeuristicResult_t *found, int room) {
    cublasLtMatmulPreference_t wish = NULL;
    int n = 0;
    // The other schemes add partial sums in the order in which blocks of threads happen to end.
    const uint32_t ordered =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const uint32_t a = alignment(r->a_data), b = alignment(r->b_data), d = alignment(r->d_data);
    const size_t bytes = (size_t)workspace;
    if (cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS)
        return 0;
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof bytes);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a,
                                         sizeof a);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b,
                                         sizeof b);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d,
                                         sizeof d);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d,
                                         sizeof d);
    if (s->choice.deterministic)
        cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &ordered, sizeof ordered);
    if (cublasLtMatmulAlgoGetHeuristic(s->products->lt, r->what, r->a, r->b, r->d, r->d, wish, room,
                                       found, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    cublasLtMatmulPreferenceDestroy(wish);
    return n;
}

static bool enqueue(const struct cuda *s, const struct op_call *c, const struct ready *r,
                    cudaStream_t stream) {
    if (cublasLtMatmul(s->products->lt, r->what, &r->alpha, r->a_data, r->a, r->b_data, r->b,
                       &r->beta, r->d_data, r->d, r->d_data, r->d, &r->algorithm, c->scratch.data,
                       r->workspace, stream) != CUBLAS_STATUS_SUCCESS)
        return false;
    if (r->pass)
        r->pass(c, stream);
    return true;
}

// Milliseconds of one run, as a mean of `times`; negative when the algorithm fails.
static float timed(struct cuda *s, const struct op_call *c, const struct ready *r, int times) {
    cudaStream_t stream = s->stream[c->op->stream];
    float ms = -1;
    bool ok = cudaEventRecord(s->products->begin, stream) == cudaSuccess;
    for (int i = 0; ok && i < times; i++)
        ok = enqueue(s, c, r, stream);
    ok = ok && cudaEventRecord(s->products->end, stream) == cudaSuccess;
    // Waits in any case: nothing of a failed algorithm may still run.
    if (cudaStreamSynchronize(stream) == cudaSuccess && ok &&
        cudaEventElapsedTime(&ms, s->products->begin, s->products->end) == cudaSuccess)
        return ms / (float)times;
    cudaGetLastError();
    return -1;
}

// Measures every algorithm of every form and takes the fastest. The first run of each one is not
// counted: it loads the kernel.
static bool measure(struct cuda *s, const struct product *p, struct ready *forms,
                    struct ready *best) {
    enum { FIRST = 3, AGAIN = 12 };
    struct candidate all[FORM_COUNT * ALGORITHMS];
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int n = 0;
    for (int f = 0; f < FORM_COUNT; f++) {
        const int named =
            forms[f].what ? ask(s, &forms[f], (uint64_t)p->call->scratch.cols, found, ALGORITHMS)
                          : 0;
        for (int i = 0; i < named; i++) {
            struct candidate c = {forms[f], 0};
            c.ready.algorithm = found[i].algo;
            c.ready.workspace = found[i].workspaceSize;
            if (timed(s, p->call, &c.ready, 1) < 0)
                continue;
            c.ms = timed(s, p->call, &c.ready, FIRST);
            int at = c.ms < 0 ? -1 : n++;
            for (; at > 0 && all[at - 1].ms > c.ms; at--)
                all[at] = all[at - 1];
            if (at >= 0)
                all[at] = c;
        }
    }
    float least = 0;
    for (int i = 0; i < n && i < CLOSE; i++) {
        const float ms = timed(s, p->call, &all[i].ready, AGAIN);
        if (ms >= 0 && (least == 0 || ms < least)) {
            least = ms;
            *best = all[i].ready;
        }
    }
    return least > 0;
}

// ---------------------------------------------------------------- notes

static void key_of(const struct cuda *s, const struct product *p, char out[NAME_BYTES]) {
    const struct op_call *c = p->call;
    snprintf(out, NAME_BYTES,
             "%c%c %lldx%lldx%lld ld %lld %lld %lld %lld types %d %d align %u %u %u %u "
             "add %d bias %d act %d tf32 %d ordered %d scratch %lld",
             p->a.as == CUBLAS_OP_T ? 't' : 'n', p->b.as == CUBLAS_OP_T ? 't' : 'n',
             (long long)p->rows, (long long)p->columns, (long long)p->inner, (long long)p->a.ld,
             (long long)p->b.ld, (long long)p->ld, p->act ? (long long)c->out[1].ld : 0LL,
             (int)p->in_type, (int)p->out_type, alignment(p->a.data), alignment(p->b.data),
             alignment(p->out), p->act ? alignment(c->out[1].data) : 0,
             (c->op->flags & OP_ACCUMULATE) != 0, p->bias ? (int)alignment(p->bias) : 0,
             p->act ? c->op->act : -1, s->tf32, s->choice.deterministic,
             (long long)c->scratch.cols);
}

static void write_note(const struct ready *r, char out[NAME_BYTES]) {
    uint64_t words[ALGORITHM_WORDS];
    memcpy(words, &r->algorithm, sizeof words);
    int at = snprintf(out, NAME_BYTES, "%d", (int)r->form);
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        at += snprintf(out + at, NAME_BYTES - (size_t)at, " %llx", (unsigned long long)words[i]);
}

// Takes what a note says if the library agrees that this algorithm can compute the product.
static bool read_note(const struct cuda *s, const struct product *p, const struct ready *forms,
                      const char *note, struct ready *out) {
    uint64_t words[ALGORITHM_WORDS];
    cublasLtMatmulHeuristicResult_t checked = {};
    char *end;
    const unsigned long form = strtoul(note, &end, 10);
    if (end == note || form >= FORM_COUNT || !forms[form].what)
        return false;
    for (uint64_t &word : words) {
        const char *at = end;
        word = strtoull(at, &end, 16);
        if (end == at || *at != ' ')
            return false;
    }
    *out = forms[form];
    memcpy(&out->algorithm, words, sizeof words);
    if (*end != '\0' ||
        cublasLtMatmulAlgoCheck(s->products->lt, out->what, out->a, out->b, out->d, out->d,
                                &out->algorithm, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.state != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > (uint64_t)p->call->scratch.cols)
        return false;
    out->workspace = checked.workspaceSize;
    return true;
}

// Where nothing can be noted, a run that must repeat to the bit takes what the library names first.
static bool first_named(const struct cuda *s, const struct product *p, const struct ready *forms,
                        struct ready *out) {
    cublasLtMatmulHeuristicResult_t found;
    for (int f = FORM_COUNT - 1; f >= 0; f--)
        if (forms[f].what && ask(s, &forms[f], (uint64_t)p->call->scratch.cols, &found, 1) == 1) {
            *out = forms[f];
            out->algorithm = found.algo;
            out->workspace = found.workspaceSize;
            return true;
        }
    return false;
}

static bool choose(struct cuda *s, const struct product *p, struct ready *forms,
                   struct ready *out) {
    struct notes *notes = s->products->notes;
    char key[NAME_BYTES], note[NAME_BYTES];
    key_of(s, p, key);
    const char *noted = s->host.notes_find(notes, key);
    if (noted && read_note(s, p, forms, noted, out))
        return true;
    if (s->choice.deterministic && (noted || !s->host.notes_kept(notes)))
        return first_named(s, p, forms, out);
    if (!measure(s, p, forms, out))
        return false;
    write_note(out, note);
    noted = s->host.notes_add(notes, key, note);
    // Another process may have been earlier.
    struct ready theirs;
    if (noted && strcmp(noted, note) != 0 && read_note(s, p, forms, noted, &theirs))
        *out = theirs;
    return true;
}

// ---------------------------------------------------------------- ops

static int run(struct cuda *s, const struct op_call *c, cudaStream_t stream, struct err *e) {
    if (!enqueue(s, c, (const struct ready *)cuda_own(c), stream))
        return s->host.err_set(e, ERR_INTERNAL, "%s: cuBLASLt refuses a product that it accepted",
                               s->host.op_name(c->op->kind));
    return cuda_launched(s, c, e);
}

static bool fits(const struct product *p) {
    const int64_t most = INT32_MAX,
                  sizes[] = {p->rows, p->columns, p->inner, p->a.ld, p->b.ld, p->ld};
    for (int64_t size : sizes)
        if (size <= 0 || size > most)
            return false;
    return p->call->op->stream == STREAM_COMPUTE;
}

static int prepare(struct cuda *s, const struct product *p,
                   void (*pass)(const struct op_call *, cudaStream_t), struct cuda_made *made,
                   struct err *e) {
    struct ready forms[FORM_COUNT] = {}, chosen = {};
    if (!fits(p))
        return 0;
    TRY(open_library(s, e));
    struct ready *own = (struct ready *)malloc(sizeof *own);
    if (!own)
        return s->host.err_set(e, ERR_MEMORY, "no memory for a matrix product");
    for (int f = 0; f < FORM_COUNT; f++)
        if (f == FORM_PASS || p->bias || p->act)
            describe(s, p, (enum form)f, pass, &forms[f]);
    const bool found = choose(s, p, forms, &chosen);
    for (int f = 0; f < FORM_COUNT; f++)
        if (!found || f != (int)chosen.form)
            drop_ready(&forms[f]);
    if (!found) {
        free(own);
        return 0;
    }
    *own = chosen;
    *made = {run, own, drop};
    return 0;
}

template <typename T> static void add_bias(const struct op_call *c, cudaStream_t stream) {
    cuda_add_bias((T *)c->out[0].data, c->out[0].ld, (const T *)c->in[2].data, c->op->m, c->op->n,
                  stream);
}

template <typename T> static void add_bias_act(const struct op_call *c, cudaStream_t stream) {
    cuda_add_bias_act((T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
                      (const T *)c->in[2].data, c->op->act, c->op->m, c->op->n, stream);
}

template <typename T> static struct product product_of(const struct op_call *c, bool wide) {
    struct product p = {};
    p.call = c;
    p.out = c->out[0].data;
    p.ld = c->out[0].ld;
    p.in_type = type_of<T>();
    p.out_type = wide ? CUDA_R_32F : p.in_type;
    return p;
}

// y[m,n] = scale x[m,k] W + bias, and with a second output its activation
template <typename T>
static int make_matmul(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    const struct op *op = c->op;
    struct product p = product_of<T>(c, false);
    p.a = {c->in[1].data, c->in[1].ld, op->flags & OP_IN_OUT ? CUBLAS_OP_N : CUBLAS_OP_T};
    p.b = {c->in[0].data, c->in[0].ld, CUBLAS_OP_N};
    p.rows = op->n;
    p.columns = op->m;
    p.inner = op->k;
    p.bias = c->in[2].data;
    p.act = op->kind == OP_MATMUL_ACT;
    return prepare(s, &p, p.act ? add_bias_act<T> : add_bias<T>, made, e);
}

// dx[m,k] = scale dy[m,n] W'
template <typename T>
static int make_dx(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    struct product p = product_of<T>(c, false);
    p.a = {c->in[1].data, c->in[1].ld, op->flags & OP_IN_OUT ? CUBLAS_OP_T : CUBLAS_OP_N};
    p.b = {c->in[0].data, c->in[0].ld, CUBLAS_OP_N};
    p.rows = op->k;
    p.columns = op->m;
    p.inner = op->n;
    return prepare(s, &p, NULL, made, e);
}

// dW = scale x' dy, a float for every T. Its shape is [n,k], or [k,n] with IN_OUT.
template <typename T>
static int make_dw(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    const bool in_out = op->flags & OP_IN_OUT;
    struct product p = product_of<T>(c, true);
    const struct operand *x = &c->in[0], *dy = &c->in[1];
    const struct operand *a = in_out ? dy : x, *b = in_out ? x : dy;
    p.a = {a->data, a->ld, CUBLAS_OP_N};
    p.b = {b->data, b->ld, CUBLAS_OP_T};
    p.rows = in_out ? op->n : op->k;
    p.columns = in_out ? op->k : op->n;
    p.inner = op->m;
    return prepare(s, &p, NULL, made, e);
}

template <typename T> void cuda_add_fast_matmul(struct cuda_table *t) {
    t->fast[OP_MATMUL] = t->fast[OP_MATMUL_ACT] = make_matmul<T>;
    t->fast[OP_MATMUL_DX] = make_dx<T>;
    t->fast[OP_MATMUL_DW] = make_dw<T>;
}
template void cuda_add_fast_matmul<float>(struct cuda_table *);
template void cuda_add_fast_matmul<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_matmul<__half>(struct cuda_table *);
