// test_init.c - initial values: the rule of each role, independence of how a tensor is split, and
// the distribution of the normals.
#include "scratch.h"

#include "base/clock.h"
#include "base/hash.h"
#include "model/shape.h"

#include <math.h>

static struct model_param param(const char *shape, enum model_role role, int layer) {
    struct model_shape s;
    struct model_param p;
    struct err e = {0};
    assert_worked(model_shape_builtin(&s, shape, &e), &e);
    assert_true(model_param_get(&s, role, layer, &p));
    return p;
}

static void test_rules(void **state) {
    (void)state;
    struct model_param p = param("gpt2-124m", ROLE_QKV_W, 0);
    assert_int_equal(p.init, INIT_NORMAL);
    assert_float_equal(p.init_std, 0.02f, 0);
    p = param("gpt2-124m", ROLE_OUT_W, 5);
    assert_float_equal(p.init_std, 0.02 / sqrt(24), 1e-9);
    p = param("gpt2-124m", ROLE_DOWN_W, 5);
    assert_float_equal(p.init_std, 0.02 / sqrt(24), 1e-9);
    assert_float_equal(param("gpt2-124m", ROLE_WPE, 0).init_std, 0.02f, 0);
    assert_float_equal(param("llama-1b", ROLE_DOWN_W, 5).init_std, 0.02f, 0);
    assert_int_equal(param("gpt2-124m", ROLE_QKV_B, 0).init, INIT_ZERO);
    assert_int_equal(param("gpt2-124m", ROLE_NORM1_W, 0).init, INIT_ONE);
    assert_int_equal(param("gpt2-124m", ROLE_NORM1_B, 0).init, INIT_ZERO);
    assert_int_equal(param("qwen3-0.6b", ROLE_KNORM_W, 0).init, INIT_ONE);
    assert_int_equal(param("qwen2-0.5b", ROLE_K_B, 0).init, INIT_ZERO);
    float ones[5] = {0}, zeros[5] = {1, 1, 1, 1, 1};
    p = param("tiny", ROLE_NORMF_W, 0);
    model_param_init(&p, 1, 3, 5, ones);
    p = param("qwen2-0.5b", ROLE_K_B, 0);
    model_param_init(&p, 1, 3, 5, zeros);
    for (int i = 0; i < 5; i++) {
        assert_float_equal(ones[i], 1, 0);
        assert_float_equal(zeros[i], 0, 0);
    }
}

static void test_split(void **state) {
    (void)state;
    enum { N = 2500 };
    static float whole[N], parts[N + 2];
    struct model_param p = param("tiny", ROLE_WTE, 0);
    model_param_init(&p, 7, 0, N, whole);
    static const int steps[] = {1, 3, 4, 63, 64, 255, 256, 257, 1000, N};
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        memset(parts, 0x5a, sizeof parts);
        float guard = parts[0];
        for (int at = 0; at < N; at += steps[s])
            model_param_init(&p, 7, at, at + steps[s] < N ? steps[s] : N - at, parts + 1 + at);
        assert_memory_equal(parts + 1, whole, sizeof whole);
        assert_memory_equal(&parts[N + 1], &guard, sizeof guard); // nothing written past the end
    }
    // Far into a tensor the counter has more than 32 bits.
    model_param_init(&p, 7, (INT64_C(1) << 36) + 5, 10, parts);
    model_param_init(&p, 7, (INT64_C(1) << 36) + 10, 5, parts + 20);
    assert_memory_equal(parts + 5, parts + 20, 5 * sizeof *parts);
    model_param_init(&p, 7, 0, 0, NULL);

    struct model_param other = param("tiny", ROLE_Q_W, 0);
    model_param_init(&other, 7, 0, N, parts);
    assert_memory_not_equal(parts, whole, sizeof whole);
    model_param_init(&p, 8, 0, N, parts);
    assert_memory_not_equal(parts, whole, sizeof whole);
}

// Moments, tails, cells and correlation of neighbours, for four million draws. The bounds are five
// standard errors.
static void test_distribution(void **state) {
    (void)state;
    enum { N = 1 << 22, CELLS = 32 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    struct model_param p = param("llama-1b", ROLE_WTE, 0);
    p.init_std = 1;
    model_param_init(&p, 42, 0, N, x);
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag[5] = {0};
    int64_t cells[CELLS] = {0}, beyond4 = 0;
    for (int i = 0; i < N; i++) {
        double v = (double)x[i];
        assert_true(isfinite(v));
        m1 += v;
        m2 += v * v;
        m3 += v * v * v;
        m4 += v * v * v * v;
        for (int k = 1; k < 5 && i >= k; k++)
            lag[k] += v * (double)x[i - k];
        cells[(int)fmin(CELLS - 1, floor(0.5 * erfc(-v / M_SQRT2) * CELLS))]++;
        beyond4 += fabs(v) > 4;
    }
    double n = N, error = 5 / sqrt(n);
    assert_true(fabs(m1 / n) < error);
    assert_true(fabs(m2 / n - 1) < error * sqrt(2));
    assert_true(fabs(m3 / n) < error * sqrt(15));
    assert_true(fabs(m4 / n - 3) < error * sqrt(96));
    for (int k = 1; k < 5; k++)
        assert_true(fabs(lag[k] / n) < error);
    double chi2 = 0, expected = n / CELLS;
    for (int c = 0; c < CELLS; c++)
        chi2 += ((double)cells[c] - expected) * ((double)cells[c] - expected) / expected;
    assert_true(chi2 < 75); // with 31 degrees of freedom, one in 10^5 is above 75
    double tail = n * erfc(4 / M_SQRT2);
    assert_true(fabs((double)beyond4 - tail) < 5 * sqrt(tail));
    free(x);
}

// Philox 4x32-10 written from the paper, one block at a time.
static void philox_reference(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1], c[4];
    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof c);
    }
    memcpy(out, c, sizeof c);
}

// Compares the fast float path with Box-Muller in double and the C library's functions.
static void test_reference(void **state) {
    (void)state;
    uint32_t words[4], zero[4] = {0};
    philox_reference(zero, zero, words);
    // The known answer of Random123 for a counter and key of zeros.
    static const uint32_t known[4] = {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
    assert_memory_equal(words, known, sizeof known);

    enum { N = 4000 };
    static float got[N];
    const uint64_t seed = 0x123456789abcdef0u;
    const int64_t begin = INT64_C(4) * 0xfffffe00; // the counter will carry into its second word
    struct model_param p = param("tiny", ROLE_UP_W, 2);
    p.init_std = 1;
    uint64_t stream = hash_u64(p.name, strlen(p.name));
    model_param_init(&p, seed, begin, N, got);
    for (int64_t i = 0; i < N; i += 2) {
        uint64_t block = (uint64_t)(begin + i) / 4;
        uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                               (uint32_t)(stream >> 32)};
        philox_reference((const uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32)}, counter,
                         words);
        uint32_t first = words[i % 4], second = words[i % 4 + 1];
        double radius = sqrt(-2 * log(((double)(first >> 1) + 0.5) / 0x1p31));
        double angle =
            2 * M_PI * ((double)(second >> 30) / 4 + (double)(int32_t)(second << 2) / 0x1p34);
        assert_true(fabs((double)got[i] - radius * cos(angle)) < 3e-6);
        assert_true(fabs((double)got[i + 1] - radius * sin(angle)) < 3e-6);
    }
}

// A seed must give the same values to the last bit on every machine. A change of these values
// changes every run that starts from scratch.
static void test_fixed_values(void **state) {
    (void)state;
    static const float known[6] = {0x1.a57a98p-6f, -0x1.f20112p-9f, 0x1.bf4a2ap-9f,
                                   0x1.181a4p-6f,  0x1.d62d6ap-9f,  -0x1.c0b948p-5f};
    struct model_param p = param("tiny", ROLE_WTE, 0);
    float x[6];
    model_param_init(&p, 1234, 1000000, 6, x);
    assert_memory_equal(x, known, sizeof x);
}

static void test_speed(void **state) {
    (void)state;
    enum { N = 1 << 22 };
    float *x = malloc(N * sizeof *x);
    assert_non_null(x);
    memset(x, 0, N * sizeof *x);
    struct model_param p = param("gpt2-124m", ROLE_WTE, 0);
    uint64_t start = clock_ns();
    model_param_init(&p, 3, 0, N, x);
    double seconds = (double)(clock_ns() - start) * 1e-9;
    print_message("normals: %.0f million per second on one thread\n", N / seconds * 1e-6);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),        cmocka_unit_test(test_split),
        cmocka_unit_test(test_reference),    cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_fixed_values), cmocka_unit_test(test_speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
