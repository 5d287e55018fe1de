// test_cuda.c - the CUDA backend: every case against the reference in float64, with the plain
// kernel and with the one that is made for it, repeated with the same bits, captured as graphs, and
// refusals that must not crash. Skipped, with the reason, where there is no device.
#include "backend/cases.c"

#include "backend/cpu/cpu.h"
#include "backend/cuda_needs.h"
#include "backend/plugin.h"
#include "base/file.h"
#include "skips.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

struct world {
    char cache[256]; // a folder of this test: algorithms are measured, and noted there
    struct mem *mem;
    struct backend *reference, *cuda; // cuda NULL: no device
    char why[ERR_TEXT_BYTES];         // there is none
};

static int setup(void **state) {
    static struct world w;
    struct err e = {0};
    *state = &w;
    if (mem_open(&w.mem, &e) != 0 || cpu_reference_open(&w.reference, w.mem, &e) != 0 ||
        file_make_temp_dir(w.cache, sizeof w.cache, "cuda", &e) != 0)
        return -1;
    const struct plugin_options o = {.deterministic = true, .cache = w.cache};
    int rc = plugin_open("cuda", &o, &w.cuda, &e);
    if (rc == 0)
        print_message("cuda: %s\n", w.cuda->info.text);
    else
        snprintf(w.why, sizeof w.why, "%s", e.text);
    return rc == 0 || rc == ERR_UNSUPPORTED ? 0 : -1;
}

static int teardown(void **state) {
    struct world *w = *state;
    if (w->cuda && *w->cuda->note)
        print_message("%s\n", w->cuda->note);
    if (w->cuda)
        w->cuda->close(w->cuda);
    w->reference->close(w->reference);
    mem_close(w->mem);
    struct err e = {0};
    return file_remove_tree(w->cache, &e);
}

// ---------------------------------------------------------------- a case on the device

// The operands of a case in device memory: one piece, each owner at its own offset.
struct mirror {
    struct backend *b;
    unsigned char *memory;
    uint64_t offset[OP_MAX_IN + OP_MAX_OUT], bytes;
    struct op_call call;
};

static struct case_operand *operand_at(struct case_run *r, int i) {
    return i < r->n_in ? &r->in[i] : &r->out[i - r->n_in];
}

// Index of the operand whose memory this one uses; -1: absent.
static int owner_of(struct case_run *r, int i) {
    const struct case_operand *o = operand_at(r, i);
    if (o->absent || !o->memory)
        return -1;
    if (o->same_as >= 0)
        return o->same_as;
    if (o->view_of >= 0)
        return i < r->n_in ? o->view_of : r->n_in + o->view_of;
    return i;
}

static void mirror_copy(struct mirror *m, struct case_run *r, bool in) {
    struct err e = {0};
    for (int i = 0; i < r->n_in + r->n_out; i++) {
        struct case_operand *o = operand_at(r, i);
        if (owner_of(r, i) != i || o->bytes == 0)
            continue;
        int rc = in ? m->b->copy_in(m->b, m->memory + m->offset[i], o->memory, o->bytes, &e)
                    : m->b->copy_out(m->b, o->memory, m->memory + m->offset[i], o->bytes, &e);
        if (rc != 0)
            fail_msg("%s", e.text);
    }
}

// With `make`, the kernels are made for the call as for one of a program.
static void mirror_open(struct mirror *m, struct backend *b, struct case_run *r, enum dtype type,
                        bool make) {
    const struct cuda_choice choice = {.deterministic = true, .attention = true};
    const uint64_t scratch = cuda_scratch_bytes(&r->op, type, &choice);
    struct err e = {0};
    void *memory;
    *m = (struct mirror){.b = b, .call = r->call};
    for (int i = 0; i < r->n_in + r->n_out; i++)
        if (owner_of(r, i) == i) {
            m->offset[i] = m->bytes;
            m->bytes +=
                (operand_at(r, i)->bytes + 2 * TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
        }
    if (b->arena_take(b, m->bytes + scratch, &memory, &e) != 0)
        fail_msg("%s", e.text);
    m->memory = memory;
    m->call.scratch = (struct operand){
        m->memory + m->bytes, (int64_t)scratch, DTYPE_U8, 1, (int64_t)scratch, {0}};
    for (int i = 0; i < r->n_in + r->n_out; i++) {
        int owner = owner_of(r, i);
        struct operand *o = i < r->n_in ? &m->call.in[i] : &m->call.out[i - r->n_in];
        if (owner >= 0)
            o->data = m->memory + m->offset[owner] +
                      ((unsigned char *)o->data - (unsigned char *)operand_at(r, i)->memory);
    }
    if (make && b->make(b, &m->call, &e) != 0)
        fail_msg("%s", e.text);
    mirror_copy(m, r, true); // to make a call may change its operands
}

static void mirror_close(struct mirror *m) {
    m->b->unmake(m->b, &m->call);
    m->b->arena_give(m->b, m->memory);
}

static void run_on(struct mirror *m, struct case_run *r, const char *name) {
    struct err e = {0};
    int rc = m->b->run[r->op.kind](m->b, &m->call, &e);
    if (rc == 0)
        rc = m->b->sync(m->b, &e);
    if (rc != 0)
        fail_msg("%s: %s", name, e.text);
}

// The case in `type`, and its truth: in float64, from the inputs as rounded to `type`.
static void open_pair(struct world *w, size_t i, enum dtype type, struct case_run *truth,
                      struct case_run *run) {
    struct err e = {0};
    const struct backend_case *c = case_at(i);
    struct case_run drawn;
    if (case_open(&drawn, c, DTYPE_F64, i, w->reference, &e) != 0 ||
        case_open_like(run, c, type, &drawn, &e) != 0 ||
        case_open_like(truth, c, DTYPE_F64, run, &e) != 0 ||
        w->reference->run[c->kind](w->reference, &truth->call, &e) != 0)
        fail_msg("%s", e.text);
    case_close(&drawn);
}

static bool same_bytes(const struct case_run *a, const struct case_run *b) {
    for (int o = 0; o < a->n_out; o++)
        for (int64_t row = 0; row < a->out[o].rows && !a->out[o].absent; row++)
            if (memcmp(element(&a->out[o], a->out[o].memory, row, 0),
                       element(&b->out[o], b->out[o].memory, row, 0),
                       (size_t)a->out[o].columns * dtype_bytes(a->out[o].dtype)) != 0)
                return false;
    return true;
}

// ---------------------------------------------------------------- tests

static void check_cases(struct world *w, enum dtype type, bool make) {
    size_t wrong = 0;
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    for (size_t i = 0; i < case_count(); i++) {
        struct case_run truth, run;
        struct mirror m;
        char name[256], why[160] = "";
        case_name(case_at(i), name, sizeof name);
        open_pair(w, i, type, &truth, &run);
        mirror_open(&m, w->cuda, &run, type, make);
        run_on(&m, &run, name);
        mirror_copy(&m, &run, false);
        bool ok = case_check_bounds(&run, why, sizeof why), joined = case_is_joined(run.op.kind);
        struct case_run second = {0};
        struct err e = {0};
        if (joined && case_run_second(&second, case_at(i), &run, w->reference, &e) != 0)
            fail_msg("%s: %s", name, e.text);
        for (int o = 0; ok && o < run.n_out; o++)
            ok = run.out[o].absent ||
                 case_agree(&run.out[o], joined && o > 0 ? &second.out[o - 1] : &truth.out[o], why,
                            sizeof why);
        case_close(&second);
        if (!ok) { // reports all failures: another run on a machine with a device may be far away
            print_error("%s, %s: %s\n", name, make ? "made" : "plain", why);
            wrong++;
        }
        mirror_close(&m);
        case_close(&run);
        case_close(&truth);
    }
    print_message("%s, %s: %zu cases, %zu wrong\n", dtype_text(type), make ? "made" : "plain",
                  case_count(), wrong);
    assert_int_equal(wrong, 0);
}

static void test_plain_f32(void **state) {
    check_cases(*state, DTYPE_F32, false);
}

static void test_plain_bf16(void **state) {
    check_cases(*state, DTYPE_BF16, false);
}

static void test_plain_f16(void **state) {
    check_cases(*state, DTYPE_F16, false);
}

static void test_made_f32(void **state) {
    check_cases(*state, DTYPE_F32, true);
}

static void test_made_bf16(void **state) {
    check_cases(*state, DTYPE_BF16, true);
}

static void test_made_f16(void **state) {
    check_cases(*state, DTYPE_F16, true);
}

// The same op on the same bytes gives the same bytes: uncaptured twice, then from a graph.
static void check_repeats(struct world *w, enum dtype type) {
    struct err e = {0};
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    for (size_t i = 0; i < case_count(); i++) {
        struct case_run truth, run[3];
        struct mirror m;
        char name[256];
        void *graph = NULL;
        case_name(case_at(i), name, sizeof name);
        open_pair(w, i, type, &truth, &run[0]);
        for (int k = 1; k < 3; k++)
            assert_int_equal(case_open_like(&run[k], case_at(i), type, &truth, &e), 0);
        mirror_open(&m, w->cuda, &run[0], type, true);
        for (int k = 0; k < 3; k++) {
            mirror_copy(&m, &run[k], true); // operands as they were
            if (k < 2) {
                run_on(&m, &run[k], name);
            } else {
                int rc = w->cuda->capture_begin(w->cuda, 1u << STREAM_COMPUTE, &e);
                if (rc == 0)
                    rc = w->cuda->run[run[k].op.kind](w->cuda, &m.call, &e);
                int end = w->cuda->capture_end(w->cuda, &graph, &e);
                if (rc != 0 || end != 0 || w->cuda->graph_run(w->cuda, graph, &e) != 0 ||
                    w->cuda->sync(w->cuda, &e) != 0)
                    fail_msg("%s, captured: %s", name, e.text);
                w->cuda->graph_free(w->cuda, graph);
            }
            mirror_copy(&m, &run[k], false);
        }
        if (!same_bytes(&run[0], &run[1]))
            fail_msg("%s: two runs differ", name);
        if (!same_bytes(&run[0], &run[2]))
            fail_msg("%s: a graph gives something else", name);
        mirror_close(&m);
        for (int k = 0; k < 3; k++)
            case_close(&run[k]);
        case_close(&truth);
    }
}

static void test_repeats_and_graphs(void **state) {
    check_repeats(*state, DTYPE_F32);
    check_repeats(*state, DTYPE_BF16);
}

// Ops whose kernels have no sum to add up in another order: fast and plain ones share formulas.
static bool has_one_order(enum op_kind kind) {
    static const enum op_kind kinds[] = {
        OP_ADD,  OP_MUL,  OP_ADD_BIAS, OP_ACT,   OP_COPY, OP_ACT_BWD,    OP_SWIGLU, OP_SWIGLU_BWD,
        OP_CAST, OP_ROPE, OP_EMBED,    OP_ADAMW, OP_SUM,  OP_ADAMW_BF16, OP_CLIP,   OP_ADAMW_INT8};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] == kind)
            return true;
    return false;
}

static void check_same_as_plain(struct world *w, enum dtype type) {
    struct err e = {0};
    for (size_t i = 0; i < case_count(); i++) {
        struct case_run run[2];
        struct mirror m[2];
        char name[256];
        if (!has_one_order(case_at(i)->kind))
            continue;
        case_name(case_at(i), name, sizeof name);
        for (int made = 0; made < 2; made++) {
            if (case_open(&run[made], case_at(i), type, i, w->reference, &e) != 0)
                fail_msg("%s", e.text);
            mirror_open(&m[made], w->cuda, &run[made], type, made);
            run_on(&m[made], &run[made], name);
            mirror_copy(&m[made], &run[made], false);
        }
        if (!same_bytes(&run[0], &run[1]))
            fail_msg("%s, %s: not the bits of the plain kernel", name, dtype_text(type));
        for (int made = 0; made < 2; made++) {
            mirror_close(&m[made]);
            case_close(&run[made]);
        }
    }
}

static void test_same_as_plain(void **state) {
    struct world *w = *state;
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    check_same_as_plain(w, DTYPE_F32);
    check_same_as_plain(w, DTYPE_BF16);
    check_same_as_plain(w, DTYPE_F16);
}

// The first of joined calls does what all of them do one by one.
static void check_joined(struct world *w, enum op_kind kind, unsigned options) {
    static const int64_t sizes[] = {300, 1, 8192, 20000, 40007};
    enum { CALLS = sizeof sizes / sizeof *sizes };
    struct backend *b = w->cuda;
    struct case_run run[2][CALLS];
    struct mirror m[2][CALLS];
    struct op_call joined[CALLS];
    struct err e = {0};
    char name[256], why[160] = "";
    for (int i = 0; i < CALLS; i++)
        for (int set = 0; set < 2; set++) {
            struct backend_case c = {.kind = kind, .options = options, .n = sizes[i]};
            c.flags = kind != OP_GRAD_SQNORM && i % 2 == 0 ? OP_DECAY : 0;
            case_name(&c, name, sizeof name);
            assert_int_equal(case_open(&run[set][i], &c, DTYPE_BF16, (uint64_t)i, w->reference, &e),
                             0);
            mirror_open(&m[set][i], b, &run[set][i], DTYPE_BF16, true);
        }
    for (int i = 0; i < CALLS; i++) {
        run_on(&m[0][i], &run[0][i], name);
        joined[i] = m[1][i].call;
        joined[i].in[1] = joined[0].in[1], joined[i].in[2] = joined[0].in[2]; // hyper and clip
    }
    assert_true(b->joins[kind]);
    if (b->join(b, joined, CALLS, &e) != 0 || b->run[kind](b, &joined[0], &e) != 0 ||
        b->sync(b, &e) != 0)
        fail_msg("%s, joined: %s", name, e.text);
    for (int i = 0; i < CALLS; i++) {
        for (int set = 0; set < 2; set++)
            mirror_copy(&m[set][i], &run[set][i], false);
        // The parts of a sum differ.
        if (kind == OP_GRAD_SQNORM
                ? !case_agree(&run[1][i].out[0], &run[0][i].out[0], why, sizeof why)
                : !same_bytes(&run[0][i], &run[1][i]))
            fail_msg("%s, joined: %" PRId64 " elements: %s", name, sizes[i], why);
    }
    for (int i = 0; i < CALLS; i++)
        for (int set = 0; set < 2; set++) {
            mirror_close(&m[set][i]);
            case_close(&run[set][i]);
        }
}

static void test_joined(void **state) {
    struct world *w = *state;
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    check_joined(w, OP_GRAD_SQNORM, 0);
    for (int i = 0; i < 3; i++) {
        const unsigned options = i == 0 ? 0 : i == 1 ? CASE_MASTER : CASE_NOT_FINITE;
        check_joined(w, OP_ADAMW, options);
        check_joined(w, OP_ADAMW_BF16, options);
        check_joined(w, OP_ADAMW_INT8, options);
    }
}

static void test_memory(void **state) {
    struct world *w = *state;
    struct err e = {0};
    uint64_t free_bytes, total_bytes;
    void *arena = NULL;
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    assert_int_equal(w->cuda->memory(w->cuda, &free_bytes, &total_bytes, &e), 0);
    assert_true(free_bytes > 0 && free_bytes <= total_bytes);
    assert_true(w->cuda->info.memory_bytes >= free_bytes);
    assert_true(w->cuda->info.device && w->cuda->info.streams && w->cuda->info.graphs);
    assert_non_null(strstr(w->cuda->products[DTYPE_BF16], "cuBLASLt"));
    assert_int_equal(w->cuda->arena_take(w->cuda, total_bytes + (1 << 20), &arena, &e), ERR_MEMORY);
    assert_null(arena);
    assert_non_null(strstr(e.text, "asked for"));
    assert_non_null(strstr(e.text, "free of"));
    // The device is as usable as before.
    assert_int_equal(w->cuda->arena_take(w->cuda, 1 << 20, &arena, &e), 0);
    unsigned char back[64];
    memset(back, 1, sizeof back);
    assert_int_equal(w->cuda->copy_out(w->cuda, back, arena, sizeof back, &e), 0);
    for (size_t i = 0; i < sizeof back; i++)
        assert_int_equal(back[i], 0); // an arena is cleared
    w->cuda->arena_give(w->cuda, arena);
}

// Ids out of range cannot be refused without waiting for the device, so their rows become NaN.
static void test_bad_ids(void **state) {
    struct world *w = *state;
    struct err e = {0};
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    struct backend *b = w->cuda;
    void *arena;
    float table[20], x[12];
    int32_t ids[3] = {1, 9, -1};
    for (int i = 0; i < 20; i++)
        table[i] = (float)i;
    assert_int_equal(b->arena_take(b, 4096, &arena, &e), 0);
    char *at = arena;
    assert_int_equal(b->copy_in(b, at, ids, sizeof ids, &e), 0);
    assert_int_equal(b->copy_in(b, at + 256, table, sizeof table, &e), 0);
    struct op embed = {.kind = OP_EMBED, .m = 3, .n = 4, .k = 5, .record = -1};
    struct op_call c = {.op = &embed,
                        .in = {{at, 1, DTYPE_I32}, {at + 256, 4, DTYPE_F32}},
                        .out = {{at + 512, 4, DTYPE_F32}}};
    for (int made = 0; made < 2; made++) {
        memset(x, 0, sizeof x);
        assert_int_equal(b->copy_in(b, at + 512, x, sizeof x, &e), 0);
        assert_int_equal(made ? b->make(b, &c, &e) : 0, 0);
        assert_int_equal(b->run[OP_EMBED](b, &c, &e), 0);
        assert_int_equal(b->sync(b, &e), 0);
        assert_int_equal(b->copy_out(b, x, at + 512, sizeof x, &e), 0);
        assert_true(x[0] == 4 && x[3] == 7 && isnan(x[4]) && isnan(x[11]));
    }
    b->unmake(b, &c);
    b->arena_give(b, arena);
}

// Staging, events and both streams: batches copied beside work arrive in order and whole.
static void test_staging(void **state) {
    struct world *w = *state;
    struct err e = {0};
    if (!w->cuda)
        skip_because("no CUDA backend: %s", w->why);
    struct backend *b = w->cuda;
    enum { N = 1 << 20, ROUNDS = 8 };
    void *arena, *staging;
    int32_t *back = malloc(N * sizeof *back);
    assert_non_null(back);
    assert_int_equal(b->prepare(b, 2, &e), 0);
    assert_int_equal(b->arena_take(b, 2 * N * sizeof *back, &arena, &e), 0);
    assert_int_equal(b->staging_take(b, N * sizeof *back, &staging, &e), 0);
    struct op copy = {.kind = OP_COPY, .m = 1, .n = N, .record = -1};
    struct op_call c = {
        .op = &copy, .in = {{arena, N, DTYPE_I32}}, .out = {{(int32_t *)arena + N, N, DTYPE_I32}}};
    for (int round = 0; round < ROUNDS; round++) {
        assert_int_equal(b->arrive(b, 0, &e), 0); // staging is free again
        for (int i = 0; i < N; i++)
            ((int32_t *)staging)[i] = round * 1000 + i % 1000;
        assert_int_equal(b->wait(b, STREAM_COPY, 1, &e), 0); // the copy before was read
        assert_int_equal(b->load(b, arena, staging, N * sizeof *back, &e), 0);
        assert_int_equal(b->record(b, STREAM_COPY, 0, &e), 0);
        assert_int_equal(b->wait(b, STREAM_COMPUTE, 0, &e), 0);
        assert_int_equal(b->run[OP_COPY](b, &c, &e), 0);
        assert_int_equal(b->record(b, STREAM_COMPUTE, 1, &e), 0);
    }
    assert_int_equal(b->sync(b, &e), 0);
    assert_int_equal(b->copy_out(b, back, (int32_t *)arena + N, N * sizeof *back, &e), 0);
    for (int i = 0; i < N; i++)
        assert_int_equal(back[i], (ROUNDS - 1) * 1000 + i % 1000);
    b->staging_give(b, staging);
    b->arena_give(b, arena);
    free(back);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_f32),
        cmocka_unit_test(test_plain_bf16),
        cmocka_unit_test(test_plain_f16),
        cmocka_unit_test(test_made_f32),
        cmocka_unit_test(test_made_bf16),
        cmocka_unit_test(test_made_f16),
        cmocka_unit_test(test_repeats_and_graphs),
        cmocka_unit_test(test_same_as_plain),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_staging),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
