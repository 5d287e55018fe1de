// matmul.cu - matrix products by cuBLASLt. A product is described once, when a program is bound.
// The library names some algorithms for it, and the fastest of them is found by running each one.
// What was found is noted for the next time (notes.h), because measuring takes some milliseconds a
// product and because the bits of a result depend on the algorithm.
//
// cuBLASLt is column-major: to it, a row-major [rows, columns] matrix is the transpose, with the
// same leading dimension. Each product below is therefore written for the transposed result.
#include "backend/cuda/cuda.cuh"
#include "backend/cuda/fast/fast.cuh"
#include "backend/cuda/fast/few.cuh"
#include "backend/joined.h"
#include "model/shape.h"

#include <cublasLt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALGORITHMS = 12, // that are asked for, for each form
    CLOSE = 4,       // the best ones are measured again
    NAME_BYTES = 256,
    // Kernels load 16 bytes at a time at most. Where an arena begins must not decide the algorithm.
    ALIGNMENT = 16,
    WORKSPACE_UNIT = 256,
    ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
};

// What is done besides the product (a bias, an activation, their gradients) is done ...
enum form {
    FORM_PASS,     // in a pass of its own after the product
    FORM_EPILOGUE, // by the product
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

struct ready;
typedef int pass_fn(struct cuda *s, const struct op_call *c, const struct ready *r,
                    cudaStream_t stream, struct err *e);

// What a call computes: out = scale A B (+ out), and what else. `rows` and `columns` are those of
// the column-major result.
struct product {
    const struct op_call *call;
    struct matrix a, b;
    int64_t rows, columns, inner;
    void *out;
    int64_t ld;
    enum dtype type;
    cudaDataType_t in_type, out_type;
    pass_fn *pass;                  // what else, in a pass; NULL: nothing
    cublasLtEpilogue_t epilogue;    // the same by the product, if the call is fit for it
    const void *bias;               // a vector that the epilogue adds
    void *sums;                     // a vector that the epilogue writes
    const struct operand *aux, *to; // a matrix that it reads or writes; where the result goes then
    uint64_t workspace;             // bytes of the scratch that are left for the library
    int part; // of the joined op: the one that the pass runs; -1: the call is no joined op
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
    pass_fn *pass; // NULL: none
    void *sums;    // the epilogue's, if they are still to be added to what is there
    const struct op_call *part;
};

// What is made for a call.
struct own {
    struct ready ready;
    struct joined joined; // made: the op that a pass runs
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

// ---------------------------------------------------------------- sums

static __global__ void __launch_bounds__(BLOCK) add_kernel(float *y, const float *x, int64_t n) {
    EACH(i, n) {
        y[i] += x[i];
    }
}

static int add_sums(struct cuda *s, const struct op_call *c, const struct ready *r,
                    cudaStream_t stream, struct err *e) {
    const int64_t n = c->op->n;
    add_kernel<<<(unsigned)ceil_div(n, BLOCK), BLOCK, 0, stream>>>((float *)c->out[1].data,
                                                                   (const float *)r->sums, n);
    return cuda_launched(s, c, e);
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

static void drop(void *made) {
    struct own *own = (struct own *)made;
    drop_ready(&own->ready);
    for (struct op_call &part : own->joined.call)
        cuda_unmake_part(&part);
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

static bool describe_epilogue(const struct product *p, struct ready *r) {
    const int64_t multiple = 8; // elements between the columns of the other matrix
    if (p->aux && (p->aux->ld % multiple != 0 || (uintptr_t)p->aux->data % 16 != 0))
        return false;
    if (p->to)
        r->d_data = p->to->data;
    return set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE, p->epilogue) &&
           (!p->bias || set(r->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias)) &&
           (!p->sums || (set(r->what, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->sums) &&
                         set(r->what, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F))) &&
           (!p->aux || (set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->aux->data) &&
                        set(r->what, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->aux->ld)));
}

// False: this form does not exist for the product.
static bool describe(const struct cuda *s, const struct product *p, enum form form,
                     struct ready *r) {
    const cublasComputeType_t compute =
        p->in_type == CUDA_R_32F && s->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const bool at = p->a.as == CUBLAS_OP_T, bt = p->b.as == CUBLAS_OP_T,
               by_product = form == FORM_EPILOGUE;
    *r = {};
    r->form = form;
    r->alpha = (float)p->call->op->scale;
    r->beta = p->call->op->flags & OP_ACCUMULATE ? 1.0f : 0.0f;
    r->a_data = p->a.data;
    r->b_data = p->b.data;
    r->d_data = p->out;
    r->pass = by_product ? NULL : p->pass;
    if (by_product && p->sums && p->sums != p->call->out[1].data) {
        r->sums = p->sums;
        r->pass = add_sums;
    }
    if ((!by_product || p->epilogue != CUBLASLT_EPILOGUE_DEFAULT) &&
        cublasLtMatmulDescCreate(&r->what, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        set(r->what, CUBLASLT_MATMUL_DESC_TRANSA, p->a.as) &&
        set(r->what, CUBLASLT_MATMUL_DESC_TRANSB, p->b.as) &&
        layout(&r->a, p->in_type, at ? p->inner : p->rows, at ? p->rows : p->inner, p->a.ld) &&
        layout(&r->b, p->in_type, bt ? p->columns : p->inner, bt ? p->inner : p->columns,
               p->b.ld) &&
        layout(&r->d, p->out_type, p->rows, p->columns, by_product && p->to ? p->to->ld : p->ld) &&
        (!by_product || describe_epilogue(p, r)))
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

static bool enqueue(struct cuda *s, const struct op_call *c, const struct ready *r,
                    cudaStream_t stream) {
    if (cublasLtMatmul(s->products->lt, r->what, &r->alpha, r->a_data, r->a, r->b_data, r->b,
                       &r->beta, r->d_data, r->d, r->d_data, r->d, &r->algorithm, c->scratch.data,
                       r->workspace, stream) != CUBLAS_STATUS_SUCCESS)
        return false;
    struct err e;
    return !r->pass || r->pass(s, c, r, stream, &e) == 0;
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
        const int named = forms[f].what ? ask(s, &forms[f], p->workspace, found, ALGORITHMS) : 0;
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
    const unsigned op = p->call->op->flags & OP_ACCUMULATE;
    snprintf(out, NAME_BYTES,
             "%c%c %lldx%lldx%lld ld %lld %lld %lld types %d %d align %u %u %u add %u epilogue %d "
             "%lld %u %lld %u %u tf32 %d ordered %d scratch %llu",
             p->a.as == CUBLAS_OP_T ? 't' : 'n', p->b.as == CUBLAS_OP_T ? 't' : 'n',
             (long long)p->rows, (long long)p->columns, (long long)p->inner, (long long)p->a.ld,
             (long long)p->b.ld, (long long)p->ld, (int)p->in_type, (int)p->out_type,
             alignment(p->a.data), alignment(p->b.data), alignment(p->out), op, (int)p->epilogue,
             p->aux ? (long long)p->aux->ld : 0LL, p->aux ? alignment(p->aux->data) : 0,
             p->to ? (long long)p->to->ld : 0LL, p->to ? alignment(p->to->data) : 0,
             alignment(p->bias ? p->bias : p->sums), s->tf32, s->choice.deterministic,
             (unsigned long long)p->workspace);
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
        checked.state != CUBLAS_STATUS_SUCCESS || checked.workspaceSize > p->workspace)
        return false;
    out->workspace = checked.workspaceSize;
    return true;
}

// Where nothing can be noted, a run that must repeat to the bit takes what the library names first.
static bool first_named(const struct cuda *s, const struct product *p, const struct ready *forms,
                        struct ready *out) {
    cublasLtMatmulHeuristicResult_t found;
    for (int f = FORM_COUNT - 1; f >= 0; f--)
        if (forms[f].what && ask(s, &forms[f], p->workspace, &found, 1) == 1) {
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
    if (!enqueue(s, c, &((const struct own *)cuda_own(c))->ready, stream))
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

static int choose_forms(struct cuda *s, const struct product *p, struct own *own, struct err *e) {
    struct ready forms[FORM_COUNT] = {}, chosen = {};
    if (p->part >= 0 && joined_split(p->call, &own->joined))
        TRY(cuda_make_part(s, &own->joined.call[p->part], p->type, e));
    for (int f = 0; f < FORM_COUNT; f++)
        if (describe(s, p, (enum form)f, &forms[f]) && p->part >= 0)
            forms[f].part = &own->joined.call[p->part];
    const bool found = choose(s, p, forms, &chosen);
    for (int f = 0; f < FORM_COUNT; f++)
        if (!found || f != (int)chosen.form)
            drop_ready(&forms[f]);
    own->ready = chosen;
    return 0;
}

static int prepare(struct cuda *s, const struct product *p, struct cuda_made *made, struct err *e) {
    if (!fits(p))
        return 0;
    TRY(open_library(s, e));
    struct own *own = (struct own *)calloc(1, sizeof *own);
    if (!own)
        return s->host.err_set(e, ERR_MEMORY, "no memory for a matrix product");
    const int rc = choose_forms(s, p, own, e);
    if (rc != 0 || !own->ready.what)
        drop(own);
    else
        *made = {run, own, drop};
    return rc;
}

template <typename T>
static int add_bias(struct cuda *s, const struct op_call *c, const struct ready *r,
                    cudaStream_t stream, struct err *e) {
    (void)r;
    cuda_fast_add_bias((T *)c->out[0].data, c->out[0].ld, (const T *)c->in[2].data, c->op->m,
                       c->op->n, stream);
    return cuda_launched(s, c, e);
}

template <typename T>
static int add_bias_act(struct cuda *s, const struct op_call *c, const struct ready *r,
                        cudaStream_t stream, struct err *e) {
    (void)r;
    cuda_fast_add_bias_act((T *)c->out[0].data, c->out[0].ld, (T *)c->out[1].data, c->out[1].ld,
                           (const T *)c->in[2].data, c->op->act, c->op->m, c->op->n, stream);
    return cuda_launched(s, c, e);
}

static int run_other(struct cuda *s, const struct op_call *c, const struct ready *r,
                     cudaStream_t stream, struct err *e) {
    (void)c;
    return cuda_run_part(s, r->part, stream, e);
}

template <typename T>
static struct product product_of(const struct cuda *s, const struct op_call *c) {
    struct product p = {};
    p.call = c;
    p.out = c->out[0].data;
    p.ld = c->out[0].ld;
    p.type = c->in[0].dtype;
    p.in_type = p.out_type = type_of<T>();
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p.workspace = cuda_scratch_bytes(c->op, p.type, &s->choice); // there may be more
    p.part = -1;
    return p;
}

// y[m,n] = scale x[m,k] W + bias, and with a second output its activation. The library knows plain
// weights only.
template <typename T>
static int make_matmul(struct cuda *s, const struct op_call *c, struct cuda_made *made,
                       struct err *e) {
    const struct op *op = c->op;
    const bool quantized = c->in[1].storage.kind != STORAGE_PLAIN;
    if constexpr (sizeof(T) == 2) {
        TRY(cuda_make_few<T>(s, c, made, e));
        if (quantized && !made->run)
            TRY(cuda_make_many<T>(s, c, made, e));
    }
    if (made->run || quantized)
        return 0;
    struct product p = product_of<T>(s, c);
    p.a = {c->in[1].data, c->in[1].ld, op->flags & OP_IN_OUT ? CUBLAS_OP_N : CUBLAS_OP_T};
    p.b = {c->in[0].data, c->in[0].ld, CUBLAS_OP_N};
    p.rows = op->n;
    p.columns = op->m;
    p.inner = op->k;
    p.bias = c->in[2].data;
    if (op->kind == OP_MATMUL_ACT) {
        p.pass = add_bias_act<T>;
        if (op->act == ACT_GELU_TANH && p.in_type != CUDA_R_32F) {
            p.epilogue = p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
            p.aux = &c->out[0]; // what the activation is computed from
            p.to = &c->out[1];
        }
    } else if (p.bias) {
        p.pass = add_bias<T>;
        p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    }
    return prepare(s, &p, made, e);
}

// dx[m,k] = scale dy[m,n] W', and with the gradient of an activation
template <typename T>
static int make_dx(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    struct product p = product_of<T>(s, c);
    p.a = {c->in[1].data, c->in[1].ld, op->flags & OP_IN_OUT ? CUBLAS_OP_T : CUBLAS_OP_N};
    p.b = {c->in[0].data, c->in[0].ld, CUBLAS_OP_N};
    p.rows = op->k;
    p.columns = op->m;
    p.inner = op->n;
    if (op->kind == OP_MATMUL_DX_ACT) {
        p.pass = run_other;
        p.part = 1;
        if (op->act == ACT_GELU_TANH && p.in_type != CUDA_R_32F) {
            p.epilogue = CUBLASLT_EPILOGUE_DGELU;
            p.aux = &c->in[2];
        }
    }
    return prepare(s, &p, made, e);
}

// dW = scale x' dy, a float for every T. Its shape is [n,k], or [k,n] with IN_OUT. With a second
// output also the column sums of dy. The epilogue cannot add to them: then it writes them to the
// end of the scratch.
template <typename T>
static int make_dw(struct cuda *s, const struct op_call *c, struct cuda_made *made, struct err *e) {
    const struct op *op = c->op;
    const bool in_out = op->flags & OP_IN_OUT;
    struct product p = product_of<T>(s, c);
    const struct operand *x = &c->in[0], *dy = &c->in[1];
    const struct operand *a = in_out ? dy : x, *b = in_out ? x : dy;
    p.out_type = CUDA_R_32F;
    p.a = {a->data, a->ld, CUBLAS_OP_N};
    p.b = {b->data, b->ld, CUBLAS_OP_T};
    p.rows = in_out ? op->n : op->k;
    p.columns = in_out ? op->k : op->n;
    p.inner = op->m;
    if (c->out[1].data) {
        const uint64_t bytes =
            (uint64_t)ceil_div(op->n * (int64_t)sizeof(float), WORKSPACE_UNIT) * WORKSPACE_UNIT;
        p.pass = run_other;
        p.part = 0;
        p.sums = c->out[1].data;
        if (op->flags & OP_ACCUMULATE && p.workspace >= bytes) {
            p.workspace -= bytes;
            p.workspace -= p.workspace % WORKSPACE_UNIT;
            p.sums = (char *)c->scratch.data + p.workspace;
        }
        if (p.in_type != CUDA_R_32F && (p.sums != c->out[1].data || !(op->flags & OP_ACCUMULATE)))
            p.epilogue = in_out ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
    }
    return prepare(s, &p, made, e);
}

template <typename T> void cuda_add_fast_matmul(struct cuda_table *t) {
    t->fast[OP_MATMUL] = t->fast[OP_MATMUL_ACT] = make_matmul<T>;
    t->fast[OP_MATMUL_DX] = t->fast[OP_MATMUL_DX_ACT] = make_dx<T>;
    t->fast[OP_MATMUL_DW] = make_dw<T>;
}
template void cuda_add_fast_matmul<float>(struct cuda_table *);
template void cuda_add_fast_matmul<__nv_bfloat16>(struct cuda_table *);
template void cuda_add_fast_matmul<__half>(struct cuda_table *);
