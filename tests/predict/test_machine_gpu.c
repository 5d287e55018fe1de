// test_machine_gpu.c - what a GPU reaches: measured on a device that computes nothing and whose
// clock says what each op takes; kept between processes; and what verdicts make of it.
#include "backend/operands.h"
#include "base/file.h"
#include "predict/machine.h"
#include "predict/verdict_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---------------------------------------------------------------- the device

struct made_up { // state of the backend
    uint64_t free_bytes;
    char *arena;
    uint64_t arena_bytes, most_bytes;
    double turn_ns;
    int takes, fails_at; // calls of run until one fails; -1: none
    int64_t product_size, batch;
    bool any_order; // attention's backward is faster
};

static bool inside(const struct made_up *d, const void *at, uint64_t bytes) {
    const char *p = at;
    return p >= d->arena && p + bytes <= d->arena + d->arena_bytes;
}

static void check_inside(const struct made_up *d, const struct operand *o) {
    if (o->data && o->rows > 0)
        assert_true(inside(d, o->data,
                           ((uint64_t)((o->rows - 1) * o->ld + o->cols)) * dtype_bytes(o->dtype)));
}

static int make(struct backend *b, struct op_call *call, struct err *e) {
    enum dtype type;
    (void)b;
    TRY(backend_check_call(call, &type, e));
    call->made = b;
    return 0;
}

static void unmake(struct backend *b, struct op_call *call) {
    (void)b;
    call->made = NULL;
}

static double nanoseconds(const struct made_up *d, const struct op_call *c) {
    const struct op *op = c->op;
    const double pairs = (double)(op->batch * op->heads) * (double)op->seq * ((double)op->seq + 1) /
                         2 * (double)op->head_dim;
    const bool wide = op->head_dim == 128;
    switch (op->kind) {
    case OP_MATMUL:
        return 2e9 * (double)op->m * (double)op->n * (double)op->k /
               (c->in[0].dtype == DTYPE_F32    ? 50e12
                : c->in[0].dtype == DTYPE_BF16 ? 700e12
                                               : 650e12);
    case OP_ATTENTION:
        return 4e9 * pairs / (wide ? 480e12 : 330e12);
    case OP_ATTENTION_BWD:
        return 10e9 * pairs / (wide ? 370e12 : d->any_order ? 300e12 : 230e12);
    default:
        assert_int_equal(op->kind, OP_COPY);
        return fmax(2000, 1e9 * 8 * (double)op->n / 3.8e12);
    }
}

static int run(struct backend *b, const struct op_call *call, struct err *e) {
    struct made_up *d = b->state;
    assert_ptr_equal(call->made, b); // the kernels that a run would use
    for (int i = 0; i < OP_MAX_IN; i++)
        check_inside(d, &call->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        check_inside(d, &call->out[i]);
    check_inside(d, &call->scratch);
    if (d->fails_at >= 0 && d->fails_at-- == 0)
        return err_set(e, ERR_INTERNAL, "a made-up failure");
    d->turn_ns += nanoseconds(d, call);
    if (call->op->kind == OP_MATMUL)
        d->product_size = call->op->m;
    if (call->op->kind == OP_ATTENTION)
        d->batch = call->op->batch;
    return 0;
}

static int memory(struct backend *b, uint64_t *left, uint64_t *total, struct err *e) {
    (void)e;
    *left = ((struct made_up *)b->state)->free_bytes;
    *total = 2 * *left;
    return 0;
}

// The addresses are never used, so an arena needs no memory.
static int arena_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    struct made_up *d = b->state;
    (void)e;
    assert_int_equal(d->takes++, 0); // one at a time
    d->arena_bytes = bytes;
    d->most_bytes = bytes > d->most_bytes ? bytes : d->most_bytes;
    *out = d->arena;
    return 0;
}

static void arena_give(struct backend *b, void *arena) {
    struct made_up *d = b->state;
    assert_ptr_equal(arena, d->arena);
    d->takes--;
}

static int copy_in(struct backend *b, void *to, const void *from, uint64_t bytes, struct err *e) {
    (void)from, (void)e;
    assert_true(inside(b->state, to, bytes));
    return 0;
}

static int staging_take(struct backend *b, uint64_t bytes, void **out, struct err *e) {
    (void)b;
    *out = malloc(bytes);
    return *out ? 0 : err_set(e, ERR_MEMORY, "staging");
}

static void staging_give(struct backend *b, void *staging) {
    (void)b;
    free(staging);
}

static int load(struct backend *b, void *to, const void *from, uint64_t bytes, struct err *e) {
    return copy_in(b, to, from, bytes, e);
}

static int turn_begin(struct backend *b, struct err *e) {
    (void)e;
    ((struct made_up *)b->state)->turn_ns = 0;
    return 0;
}

static int nothing(struct backend *b, struct err *e) {
    (void)b, (void)e;
    return 0;
}

static uint64_t busy_ns(struct backend *b) {
    return (uint64_t)((struct made_up *)b->state)->turn_ns;
}

static void open_made_up(struct backend *b, struct made_up *d, uint64_t free_bytes) {
    *d =
        (struct made_up){.free_bytes = free_bytes, .arena = (char *)0x700000000000, .fails_at = -1};
    *b = (struct backend){.name = "made up",
                          .info = {.device = true,
                                   .streams = true,
                                   .types = 1u << DTYPE_F32 | 1u << DTYPE_BF16 | 1u << DTYPE_F16,
                                   .text = "a made-up device; attention: none"},
                          .state = d,
                          .make = make,
                          .unmake = unmake,
                          .memory = memory,
                          .arena_take = arena_take,
                          .arena_give = arena_give,
                          .copy_in = copy_in,
                          .sync = nothing,
                          .staging_take = staging_take,
                          .staging_give = staging_give,
                          .load = load,
                          .turn_begin = turn_begin,
                          .turn_end = nothing,
                          .busy_ns = busy_ns};
    b->run[OP_MATMUL] = b->run[OP_COPY] = b->run[OP_ATTENTION] = b->run[OP_ATTENTION_BWD] = run;
}

// ---------------------------------------------------------------- measuring

enum { DIR_BYTES = 128 };
static const uint64_t PLENTY = 64ull << 30;

static void begin(char dir[DIR_BYTES], struct knobs *k) {
    assert_int_equal(file_make_temp_dir(dir, DIR_BYTES, "gpu", NULL), 0);
    setenv("XDG_CACHE_HOME", dir, 1);
    knobs_init(k);
    k->device = DEVICE_CUDA;
    k->precision = PRECISION_BF16;
}

static void end(const char *dir) {
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(file_remove_tree(dir, NULL), 0);
}

static void assert_near(double is, double wanted) {
    if (!(fabs(is / wanted - 1) < 1e-3))
        fail_msg("%g where %g is expected", is, wanted);
}

static void open_known(struct machine *m, const struct knobs *k) {
    struct err e = {0};
    assert_int_equal(machine_open(m, k, MACHINE_KNOWN, &e), 0);
}

static void measure(struct machine *m, struct backend *b, const struct knobs *k) {
    struct err e = {0};
    open_known(m, k);
    if (machine_measure_device(m, b, k, &e) != 0)
        fail_msg("%s", e.text);
}

static void test_rates(void **state) {
    char dir[DIR_BYTES];
    struct knobs k;
    struct backend b;
    struct made_up d;
    struct machine m, later;
    (void)state;
    begin(dir, &k);
    open_made_up(&b, &d, PLENTY);
    open_known(&m, &k);
    assert_false(m.has_gpu || m.has_rates || m.device.matmul_flops > 0);
    measure(&m, &b, &k);
    assert_true(m.has_gpu && !m.cached);
    assert_string_equal(m.gpu_lacks, "");
    assert_near(m.gpu.matmul_flops, 50e12);
    assert_near(m.gpu.matmul_bf16_flops, 700e12);
    assert_near(m.gpu.matmul_fp16_flops, 650e12);
    assert_near(m.gpu.attention_64_flops, 330e12);
    assert_near(m.gpu.attention_64_bwd_flops, 230e12);
    assert_near(m.gpu.attention_128_flops, 480e12);
    assert_near(m.gpu.attention_128_bwd_flops, 370e12);
    assert_near(m.gpu.copy_bytes_per_s, 3.8e12);
    assert_near(m.gpu.launch_s, 2e-6);
    assert_true(m.gpu.host_bytes_per_s > 0);
    assert_true(m.gpu.matmul_size == 8192 && d.product_size == 8192 && d.batch == 4);
    assert_near(m.peak_flops, 700e12);
    assert_int_equal(d.takes, 0);
    // A later process knows them, and measures nothing on the same device.
    open_known(&later, &k);
    assert_true(later.has_gpu && later.cached);
    assert_memory_equal(&later.gpu, &m.gpu, sizeof m.gpu);
    assert_near(later.device.attention_bwd_flops, 230e12);
    d.fails_at = 0;
    measure(&later, &b, &k);
    assert_true(later.cached && !(later.any_order.measured_at > 0));
    // Other kernels have other rates. Both are known together.
    open_made_up(&b, &d, PLENTY);
    k.cuda_deterministic = false;
    d.any_order = true;
    measure(&later, &b, &k);
    assert_near(later.gpu.attention_64_bwd_flops, 300e12);
    k.cuda_deterministic = true;
    open_known(&later, &k);
    assert_near(later.gpu.attention_64_bwd_flops, 230e12);
    assert_near(later.any_order.attention_64_bwd_flops, 300e12);
    k.cuda_tf32 = true;
    open_known(&later, &k);
    assert_false(later.has_gpu);
    // Rates of another device are measured again.
    k.cuda_tf32 = false;
    snprintf(b.info.text, sizeof b.info.text, "another device");
    measure(&later, &b, &k);
    assert_string_equal(later.gpu.device, "another device");
    assert_false(later.cached);
    end(dir);
}

static void test_short_memory(void **state) {
    char dir[DIR_BYTES];
    struct knobs k;
    struct backend b;
    struct made_up d;
    struct machine m;
    (void)state;
    begin(dir, &k);
    // Half of a GiB is taken at most: smaller products, fewer sequences.
    open_made_up(&b, &d, 1ull << 30);
    measure(&m, &b, &k);
    assert_true(m.has_gpu && m.gpu.matmul_size == 4096 && d.batch < 4);
    assert_near(m.gpu.matmul_bf16_flops, 700e12);
    assert_near(m.gpu.attention_64_flops, 330e12);
    assert_true(d.most_bytes <= 1ull << 29);
    assert_int_equal(file_remove_tree(dir, NULL), 0);
    // Too little for anything: a reason, nothing known, nothing kept.
    open_made_up(&b, &d, 64 << 20);
    measure(&m, &b, &k);
    assert_false(m.has_gpu);
    assert_true(strstr(m.gpu_lacks, "matrix products") && strstr(m.gpu_lacks, "64 MiB are free"));
    open_known(&m, &k);
    assert_false(m.has_gpu);
    unsetenv("XDG_CACHE_HOME");
}

static void test_failures(void **state) {
    char dir[DIR_BYTES];
    struct knobs k;
    struct backend b;
    struct made_up d;
    struct machine m;
    struct err e = {0};
    (void)state;
    begin(dir, &k);
    // A figure without a kernel is left out, and asked for again next time.
    open_made_up(&b, &d, PLENTY);
    b.run[OP_ATTENTION_BWD] = NULL;
    measure(&m, &b, &k);
    assert_true(m.has_gpu && m.gpu.attention_64_flops > 0 && m.gpu.attention_64_bwd_flops == 0);
    assert_non_null(strstr(m.gpu_lacks, "attention_bwd"));
    open_known(&m, &k);
    assert_false(m.has_gpu);
    // A device that fails says so, wherever it does, and its memory is given back.
    static const int at[] = {0, 9, 23, 25, 40, 60, 70, 2000};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        open_made_up(&b, &d, PLENTY);
        d.fails_at = at[i];
        e = (struct err){0};
        assert_int_equal(machine_measure_device(&m, &b, &k, &e), ERR_INTERNAL);
        assert_int_equal(d.takes, 0);
        assert_non_null(strstr(e.text, "a made-up failure"));
        assert_false(m.has_gpu);
    }
    end(dir);
}

// ---------------------------------------------------------------- verdicts

// A step of 10 ms on the device above: products 5.6 ms at 90 % of the best rate, attention 3 ms at
// half of it, other ops 0.8 ms and the optimizer 0.4 ms at 95 % of a copy's bandwidth.
static void made_up_run(struct run_metrics *m, struct step_cost *cost) {
    *m = (struct run_metrics){.split = {.wall_ns = 20000000, .steps = 2}};
    *cost = (struct step_cost){.head_dim = 64, .launches = 300};
    m->split.ns[TIME_MATMUL] = 11200000;
    m->split.ns[TIME_ATTENTION] = 6000000;
    m->split.ns[TIME_OTHER] = 1600000;
    m->split.ns[TIME_OPTIMIZER] = 800000;
    m->split.ns[TIME_HOST] = 400000;
    cost->all[CAT_MATMUL].flops = .9 * 700e12 * 5.6e-3;
    cost->all[CAT_MATMUL].bytes = 1;
    // Half of the time at the best rates goes to the forward.
    cost->attention_forward_flops = .5 * 330e12 * 1.5e-3;
    cost->all[CAT_ATTENTION].flops = cost->attention_forward_flops + .5 * 230e12 * 1.5e-3;
    cost->all[CAT_OTHER].bytes = .95 * 3.8e12 * .8e-3;
    cost->all[CAT_OPTIMIZER].bytes = .95 * 3.8e12 * .4e-3;
}

static void check_verdict(const struct run_metrics *r, const struct knobs *k,
                          const struct step_cost *cost, const struct machine *m, const char *knob,
                          const char *contains) {
    struct verdict v;
    verdict_run(&v, r, k, cost, m);
    if (!strstr(v.text, contains) || (knob == NULL) != (v.knob == NULL) ||
        (knob && strcmp(knob, v.knob) != 0))
        fail_msg("%s", v.text);
}

static void test_verdict(void **state) {
    char dir[DIR_BYTES];
    struct knobs k;
    struct backend b;
    struct made_up d;
    struct machine m;
    struct run_metrics r;
    struct step_cost cost;
    (void)state;
    begin(dir, &k);
    made_up_run(&r, &cost);
    open_known(&m, &k);
    check_verdict(&r, &k, &cost, &m, NULL, "run haggle doctor");
    open_made_up(&b, &d, PLENTY);
    measure(&m, &b, &k);
    check_verdict(&r, &k, &cost, &m, NULL,
                  "matrix products 56 % of the step at 90 % of the best rate here, attention 30 % "
                  "at 50 %, other ops 8 % at 95 % of a copy's bandwidth");
    check_verdict(&r, &k, &cost, &m, NULL, "at the best rates here the step would take 77 %");
    // Document boundaries are named where there are any that the data's packing has made.
    cost.bounded = 24;
    check_verdict(&r, &k, &cost, &m, NULL, "no setting is known");
    snprintf(k.data_path, sizeof k.data_path, "chat.jsonl");
    check_verdict(&r, &k, &cost, &m, "data.pack", "attention 30 % at 50 %");
    cost.bounded = 0;
    // 300 launches of 2 us in 10 ms are no reason; 3000 are.
    k.cuda_graphs = false;
    check_verdict(&r, &k, &cost, &m, NULL, "no setting is known");
    cost.launches = 3000;
    check_verdict(&r, &k, &cost, &m, "cuda.graphs", "launching kernels one by one");
    k.cuda_graphs = true;
    // The backward takes half of attention's time, and is 30 % faster with sums in any order.
    struct knobs any = k;
    any.cuda_deterministic = false;
    d.any_order = true;
    measure(&m, &b, &any);
    check_verdict(&r, &any, &cost, &m, NULL, "no setting is known");
    open_known(&m, &k);
    check_verdict(&r, &k, &cost, &m, NULL, "cuda.deterministic=true costs about 4 % of the step");
    // In fp32 attention was not measured, and bf16 would be much faster.
    k.precision = PRECISION_FP32;
    cost.all[CAT_MATMUL].flops /= 14;
    check_verdict(&r, &k, &cost, &m, "precision", "attention 30 %, other ops");
    end(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_short_memory),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
