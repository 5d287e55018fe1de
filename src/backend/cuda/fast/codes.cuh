// codes.cuh - how kernels for tensor cores read weights, plain or quantized (base/storage.h).
//
// A product on tensor cores adds up over k in any order, so a lane may take the elements of k that
// lie together in memory, as long as x is taken in the same order. Codes become numbers of T two at
// a time: their bits are put into the mantissa of a power of two, which is then subtracted. So the
// two of a pair are two elements apart, and x is kept with each four elements in the order
// 0 2 1 3 (in_pairs). Codes are small integers, so nothing is rounded; scales multiply sums in
// float.
#ifndef HAGGLE_BACKEND_CUDA_CODES_CUH
#define HAGGLE_BACKEND_CUDA_CODES_CUH

#include "backend/cuda/fast/fast.cuh"

// Weights as they are: 8 elements in 16 bytes.
struct dense {
    enum { EACH = 8, GROUP = 0, SCALE_BYTES = 0, PARTS = 0 };
};
// EACH: elements in 16 bytes. SCALE_BYTES: of the scales of 128 bytes of codes. PARTS: 1 scales, 2
// scales and minima; of int8 the scale belongs to the row, and is not counted here.
struct int8_rows {
    enum { EACH = 16, GROUP = 0, SCALE_BYTES = 0, PARTS = 0 };
};
template <int N, bool MINIMA> struct int4_groups {
    enum { EACH = 32, GROUP = N, SCALE_BYTES = 512 / N, PARTS = MINIMA ? 2 : 1 };
};

// ---------------------------------------------------------------- products of tiles

// c[16][8] += a[16][16] b[16][8]. Lane 4 g + t has of a: a0 row g, a1 row g + 8, both of the same
// two k; a2 and a3 of another two. Of b: column g, b0 with the first two k, b1 with the others. Of
// c: row g in c[0..1], row g + 8 in c[2..3], columns 2 t and 2 t + 1.
template <typename T>
static inline __device__ void tile_product(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned b0, unsigned b1);
template <>
inline __device__ void tile_product<__nv_bfloat16>(float (&c)[4], unsigned a0, unsigned a1,
                                                   unsigned a2, unsigned a3, unsigned b0,
                                                   unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
inline __device__ void tile_product<__half>(float (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                            unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four tiles of 8 x 8 elements of 16 bits from shared memory, each turned: lane l gives the address
// of row l % 8 of tile l / 8, and gets of every tile column g of the rows 2 t and 2 t + 1.
static inline __device__ void turned_tiles(unsigned (&tile)[4], unsigned row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
                 : "r"(row)
                 : "memory");
}

// ---------------------------------------------------------------- codes as numbers

// (a & b) | c in one instruction, however it is written.
static inline __device__ unsigned masked(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

template <typename T> static inline __device__ unsigned minus_two(unsigned a, unsigned b);
template <> inline __device__ unsigned minus_two<__nv_bfloat16>(unsigned a, unsigned b) {
    __nv_bfloat162 x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = __hsub2(x, y);
    memcpy(&a, &x, sizeof x);
    return a;
}
template <> inline __device__ unsigned minus_two<__half>(unsigned a, unsigned b) {
    __half2 x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = __hsub2(x, y);
    memcpy(&a, &x, sizeof x);
    return a;
}

// The codes in the lowest four bits of each half of `word`: less 8, or with minima as they are.
template <typename T, bool MINIMA> static inline __device__ unsigned int4_pair(unsigned word) {
    if (__is_same(T, __half)) // 1024 + code
        return minus_two<T>(masked(word, 0x000f000fu, 0x64006400u),
                            MINIMA ? 0x64006400u : 0x64086408u);
    return minus_two<T>(masked(word, 0x000f000fu, 0x43004300u), // 128 + code
                        MINIMA ? 0x43004300u : 0x43084308u);
}

// The signed codes in the lowest eight bits of each half. A bfloat16 has room for seven of them:
// the eighth, which counts -128, makes a 256 of the 128 that is subtracted.
template <typename T> static inline __device__ unsigned int8_pair(unsigned word) {
    if (__is_same(T, __half)) // 1024 + 128 + code
        return minus_two<T>((word & 0x00ff00ffu) ^ 0x64806480u, 0x64806480u);
    return minus_two<T>(masked(word, 0x007f007fu, 0x43004300u),
                        masked(word, 0x00800080u, 0x43004300u));
}

// 8 elements with each four in the order 0 2 1 3.
static inline __device__ uint4 in_pairs(uint4 x) {
    return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632),
                      __byte_perm(x.z, x.w, 0x5410), __byte_perm(x.z, x.w, 0x7632));
}

// ---------------------------------------------------------------- copies to shared memory

// `size` of BYTES are read, the others become 0.
template <int BYTES>
static inline __device__ void copy_async(unsigned to, const void *from, int size) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(size));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from),
                     "n"(BYTES), "r"(size));
}
static inline __device__ void copies_close(void) {
    asm volatile("cp.async.commit_group;");
}
// Waits until at most N of the groups that were closed are under way.
template <int N> static inline __device__ void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static inline __device__ unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

#endif
