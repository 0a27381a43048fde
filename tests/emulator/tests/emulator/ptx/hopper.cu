// Hopper's barriers, bulk copies and products of a warpgroup: planted bugs, each with a clean
// variant, `NAME_bug` and `NAME_ok`; and a product with a transposed operand. Compiled to
// hopper.ptx by NVRTC 12.4 (--gpu-architecture=compute_90a -I kernels); the tests take the PTX as
// it is here.
#include "hopper/hopper.cuh"

namespace {

constexpr int BYTES = 512;

struct Shared {
    alignas(1024) unsigned char rows[256 * 128];
    alignas(8) u64 barrier;
};

__device__ __forceinline__ Shared &shared_memory() {
    extern __shared__ __align__(1024) unsigned char pool[];
    return *reinterpret_cast<Shared *>(pool);
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::barrier_try_wait(barrier, parity)) {
    }
}

/// A barrier of `count` arrivals, seen by the copy engine if `is_shown`.
__device__ __forceinline__ u32 make_barrier(int count, bool is_shown) {
    const u32 barrier = ptx::shared_address(&shared_memory().barrier);
    if (threadIdx.x == 0) {
        ptx::barrier_init(barrier, count);
        if (is_shown) ptx::barrier_init_fence();
    }
    __syncthreads();
    return barrier;
}

/// A copy of BYTES from `in`; then one float a thread. `parity` 1 is that of the phase before the
/// first, which does not wait for the copy; all threads pass that wait before the copy is issued,
/// as one that tests after the end of the first phase would never pass it.
__device__ __forceinline__ void copy(float *out, const float *in, bool is_shown, u32 parity,
                                     u32 expected) {
    const u32 barrier = make_barrier(1, is_shown);
    Shared &shared = shared_memory();
    if (parity == 1) {
        wait(barrier, 1);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        ptx::barrier_arrive_expect(barrier, expected);
        ptx::copy_bulk(ptx::shared_address(shared.rows), in, BYTES, barrier);
    }
    if (parity == 0) wait(barrier, 0);
    out[threadIdx.x] = reinterpret_cast<float *>(shared.rows)[threadIdx.x];
}

/// A product of ones with rows that the threads write: 16 everywhere. Step 0 is the proxy fence
/// after the write, 1 the fence before the product, 2 the wait, 3 the one before the rows change, 4
/// the same with barriers and a fence around the change.
__device__ __forceinline__ void product(float *out, int missing) {
    Shared &shared = shared_memory();
    constexpr u32 ONES = 0x3f803f80u;
    u32 *words = reinterpret_cast<u32 *>(shared.rows);
    for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) words[i] = ONES;
    if (missing != 0) asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    float sum[128];
#pragma unroll
    for (int i = 0; i < 128; i++) sum[i] = 0.0f;
    if (missing != 1) ptx::wgmma_fence();
    ptx::wgmma_mma_bf16(sum, ONES, ONES, ONES, ONES,
                        ptx::rows_descriptor(ptx::shared_address(shared.rows)));
    ptx::wgmma_commit();
    if (missing >= 3) {
        __syncthreads();
        words[threadIdx.x] = 0;
        if (missing == 4) {
            asm volatile("fence.proxy.async;" ::: "memory");
            __syncthreads();
        }
    }
    if (missing != 2) ptx::wgmma_wait<0>();
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < 128; i++) all += sum[i];
    out[threadIdx.x] = all;
}

/// A product of ones, whose first operand's register changes before the wait or behind it. In one
/// piece of assembly, as nvrtc gives each value a separate register.
__device__ __forceinline__ void operand_in_a_register(float *out, bool early) {
    Shared &shared = shared_memory();
    u32 *words = reinterpret_cast<u32 *>(shared.rows);
    for (int i = threadIdx.x; i < 8 * 32; i += blockDim.x) words[i] = 0x3f803f80u;
    ptx::proxy_fence();
    __syncthreads();
    float sum[4] = {};
    const u64 rows = ptx::rows_descriptor(ptx::shared_address(words));
#define PRODUCT(LAST)                                                                            \
    asm volatile(                                                                                \
        "{ .reg .b32 a; .reg .pred p; mov.b32 a, 0x3f803f80; setp.ne.b32 p, a, 0;"               \
        "wgmma.fence.sync.aligned;"                                                              \
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {a, a, a, a}, %4," \
        "p, 1, 1, 0; wgmma.commit_group.sync.aligned;" LAST "}"                                  \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                 \
        : "l"(rows)                                                                              \
        : "memory")
    if (early)
        PRODUCT("mov.b32 a, 0; wgmma.wait_group.sync.aligned 0;");
    else
        PRODUCT("wgmma.wait_group.sync.aligned 0; mov.b32 a, 0;");
#undef PRODUCT
    out[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}

/// Two products in flight; the first is read while the second is pending.
__device__ __forceinline__ void two_products(float *out, bool waits) {
    Shared &shared = shared_memory();
    constexpr u32 ONES = 0x3f803f80u;
    u32 *words = reinterpret_cast<u32 *>(shared.rows);
    for (int i = threadIdx.x; i < 64 * 32; i += blockDim.x) words[i] = ONES;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    float first[32], second[32];
#pragma unroll
    for (int i = 0; i < 32; i++) first[i] = 0.0f, second[i] = 1.0f;
    const u64 rows = ptx::rows_descriptor(ptx::shared_address(shared.rows));
    ptx::wgmma_fence();
    ptx::wgmma_mma_bf16(first, ONES, ONES, ONES, ONES, rows);
    ptx::wgmma_commit();
    ptx::wgmma_fence();
    ptx::wgmma_mma_bf16(second, ONES, ONES, ONES, ONES, rows);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    bool right = true;
#pragma unroll
    for (int i = 0; i < 32; i++) right = right && first[i] == 16.0f;
    if (!right) __trap();
    if (waits) {
        ptx::wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++) right = right && second[i] == 17.0f;
        if (!right) __trap();
    }
    out[threadIdx.x] = 1.0f;
}

/// out[64, 128] = 2 a b, of a [64, 16] and a transposed b [16, 128] bf16 behind one another in
/// `in`: a row of b is two halves, far from each other in shared memory. The first product begins
/// the sums from zero.
__device__ __forceinline__ void transposed_product(float *out, const u32 *in) {
    constexpr int HALF_BYTES = 4096;
    Shared &shared = shared_memory();
    u32 *words = reinterpret_cast<u32 *>(shared.rows);
    const u32 *b = in + 64 * 8;
    for (int i = threadIdx.x; i < 16 * 64; i += blockDim.x) {
        const int k = i / 64, word = i % 64;
        const int place = (k * 128 + word % 32 * 4) ^ (k % 8 << 4);
        words[(word / 32 * HALF_BYTES + place) / 4] = b[i];
    }
    ptx::proxy_fence();
    __syncthreads();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    const u32 *a = in + row * 8 + pair;
    float sum[64];
#pragma unroll
    for (int i = 0; i < 64; i++) sum[i] = 7.0f;
    const u64 columns = ptx::columns_descriptor(ptx::shared_address(words), HALF_BYTES);
    ptx::wgmma_fence();
    ptx::wgmma_mma_bf16<0, 1>(sum, a[0], a[8 * 8], a[4], a[8 * 8 + 4], columns);
    ptx::wgmma_mma_bf16<1, 1>(sum, a[0], a[8 * 8], a[4], a[8 * 8 + 4], columns);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::wgmma_results(sum);
#pragma unroll
    for (int i = 0; i < 64; i++)
        out[(row + i % 4 / 2 * 8) * 128 + i / 4 * 8 + pair * 2 + i % 2] = sum[i];
}

}  // namespace

extern "C" {

__global__ void transposed(float *out, const u32 *in, int) { transposed_product(out, in); }

__global__ void phase_bug(float *out, const float *in, int) { copy(out, in, true, 1, BYTES); }
__global__ void phase_ok(float *out, const float *in, int) { copy(out, in, true, 0, BYTES); }

__global__ void expect_bug(float *out, const float *in, int) { copy(out, in, true, 0, BYTES + 16); }
__global__ void expect_ok(float *out, const float *in, int) { copy(out, in, true, 0, BYTES); }

__global__ void shown_bug(float *out, const float *in, int) { copy(out, in, false, 0, BYTES); }
__global__ void shown_ok(float *out, const float *in, int) { copy(out, in, true, 0, BYTES); }

__global__ void arrivals_bug(float *out, const float *, int) {
    const u32 barrier = make_barrier(127, true);
    ptx::barrier_arrive_expect(barrier, 16);
    out[threadIdx.x] = 1.0f;
}
__global__ void arrivals_ok(float *out, const float *, int) {
    const u32 barrier = make_barrier(128, true);
    ptx::barrier_arrive(barrier);
    wait(barrier, 0);
    out[threadIdx.x] = 1.0f;
}

__global__ void proxy_bug(float *out, const float *, int) { product(out, 0); }
__global__ void proxy_ok(float *out, const float *, int) { product(out, -1); }

__global__ void fence_bug(float *out, const float *, int) { product(out, 1); }
__global__ void fence_ok(float *out, const float *, int) { product(out, -1); }

__global__ void waited_bug(float *out, const float *, int) { product(out, 2); }
__global__ void waited_ok(float *out, const float *, int) { product(out, -1); }

__global__ void overwritten_bug(float *out, const float *, int) { product(out, 3); }
__global__ void overwritten_ok(float *out, const float *, int) { product(out, -1); }

__global__ void ordered_bug(float *out, const float *, int) { product(out, 4); }
__global__ void ordered_ok(float *out, const float *, int) { product(out, -1); }

__global__ void operand_bug(float *out, const float *, int) { operand_in_a_register(out, true); }
__global__ void operand_ok(float *out, const float *, int) { operand_in_a_register(out, false); }

__global__ void two_bug(float *out, const float *, int) { two_products(out, false); }
__global__ void two_ok(float *out, const float *, int) { two_products(out, true); }

}  // extern "C"
