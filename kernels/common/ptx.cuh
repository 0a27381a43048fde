// The only inline assembly: one function per instruction. What an instruction does is in the PTX
// ISA under its name; the comment says what it is used for. `volatile` keeps the order of the loads
// as written, which is the order of the software pipeline. `memory` is named where other accesses
// must not pass.
#pragma once
#include "common/params.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

namespace ptx {

// ---- addresses

/// A shared-memory pointer as the 32-bit address that instructions take.
__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// This thread's index in its block, read again: what is computed from it need not live in
/// registers since the kernel's start.
__device__ __forceinline__ int thread_now() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/// The same value, but the compiler no longer knows: what follows from it is computed here and not
/// kept in registers from before.
__device__ __forceinline__ int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// ---- bfloat16

/// Two floats rounded to nearest even; `low` in bits 0..15.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// Bits 0..15 as a float: exact.
__device__ __forceinline__ float low_bf16(u32 packed) { return __uint_as_float(packed << 16); }
/// Bits 16..31 as a float: exact.
__device__ __forceinline__ float high_bf16(u32 packed) {
    return __uint_as_float(packed & 0xffff0000u);
}
/// One value as a float: exact.
__device__ __forceinline__ float to_float(bf16 value) {
    return __uint_as_float(static_cast<u32>(value.bits) << 16);
}
/// One float rounded to nearest even.
__device__ __forceinline__ bf16 to_bf16(float value) {
    return bf16{static_cast<u16>(pack_bf16(value, 0.0f))};
}

/// A half-precision value as a float: exact.
__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// ---- approximate functions (2 ulp or so; the results go through bf16, or are compared with a
// tolerance that says so)

/// 2^x.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// log2(x).
__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// 1 / x.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// sin(x), absolute error 2^-20.9 for x in [-pi, pi].
__device__ __forceinline__ float sin_approx(float x) {
    float y;
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// cos(x), absolute error 2^-20.9 for x in [-pi, pi].
__device__ __forceinline__ float cos_approx(float x) {
    float y;
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- global memory

/// An L2 policy for what is read once a step: the first to be evicted.
__device__ __forceinline__ u64 evict_first_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// 16 bytes of read-only data past L1, under an L2 policy: a weight stream.
__device__ __forceinline__ uint4 load_stream(const void *pointer, u64 policy) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(pointer), "l"(policy));
    return value;
}

/// 16 bytes from L2, never from L1: what another block wrote.
__device__ __forceinline__ float4 load_l2(const float *pointer) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(pointer)
                 : "memory");
    return value;
}

/// A word from L2, never from L1, which may hold an earlier step's value of it.
__device__ __forceinline__ int load_l2_word(const int *pointer) {
    int value;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
    return value;
}

/// Prefetches the line at `pointer` into L2.
__device__ __forceinline__ void prefetch_l2(const void *pointer) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

/// Address of chunk `chunk` of 16 bytes from `base`. One instruction where it is used: written in
/// C++, the product of a loop is kept in two registers for each chunk.
__device__ __forceinline__ const void *chunk_at(const void *base, u32 chunk) {
    u64 address;
    asm volatile("mad.wide.u32 %0, %1, 16, %2;"
                 : "=l"(address)
                 : "r"(chunk), "l"(reinterpret_cast<u64>(base)));
    return reinterpret_cast<const void *>(address);
}

/// Adds to a counter with acquire and release semantics at device scope; returns the old value.
__device__ __forceinline__ u32 add_acq_rel(u32 *counter, u32 value) {
    u32 old;
    asm volatile("atom.global.acq_rel.gpu.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(value)
                 : "memory");
    return old;
}

/// Two words that the host wrote, read where they are.
__device__ __forceinline__ uint2 load_host(const u32 *pointer) {
    uint2 value;
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(pointer)
                 : "memory");
    return value;
}

/// Stores a word with release semantics at system scope: after all writes of this thread, and of
/// those it has met at a barrier. For the host.
__device__ __forceinline__ void store_release_system(u32 *pointer, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

/// Adds to a counter with release semantics at device scope; returns the old value.
__device__ __forceinline__ u32 add_release(u32 *counter, u32 value) {
    u32 old;
    asm volatile("atom.global.release.gpu.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(value)
                 : "memory");
    return old;
}

/// A word that other blocks change; what they wrote before is visible after it.
__device__ __forceinline__ u32 load_acquire(const u32 *pointer) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
    return value;
}

// ---- barriers

/// Waits at named barrier `ID` for `THREADS` threads.
template <int ID, int THREADS>
__device__ __forceinline__ void barrier_named() {
    asm volatile("barrier.sync.aligned %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// ---- asynchronous copies to shared memory

/// Starts a copy of 16 bytes, past L1.
__device__ __forceinline__ void copy_async(u32 shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// Starts a copy of 16 bytes of which the first `bytes` (0..16) are read and the rest are zero;
/// with 0, `global` is not read.
__device__ __forceinline__ void copy_async_or_zero(u32 shared, const void *global, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}
/// Starts a copy of 16 bytes under an L2 policy.
__device__ __forceinline__ void copy_async_stream(u32 shared, const void *global, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(global), "l"(policy)
                 : "memory");
}
/// Closes this thread's group of copies.
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `PENDING` of this thread's groups are pending.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// 16 bytes of shared memory.
__device__ __forceinline__ uint4 load_shared(u32 shared) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(shared)
                 : "memory");
    return value;
}

// ---- tensor cores, warp wide

/// Four 8x8 matrices of 16-bit elements; lane i names row i%8 of matrix i/8.
__device__ __forceinline__ void load_matrix_x4(u32 (&to)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
}
/// Two 8x8 matrices; lanes 0..15 name their rows.
__device__ __forceinline__ void load_matrix_x2(u32 (&to)[2], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared)
                 : "memory");
}
/// Four 8x8 matrices, each transposed.
__device__ __forceinline__ void load_matrix_x4_trans(u32 (&to)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
}
/// Two 8x8 matrices, each transposed.
__device__ __forceinline__ void load_matrix_x2_trans(u32 (&to)[2], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared)
                 : "memory");
}

/// sum[16, 8] += a[16, 16] * b[16, 8], bf16 in, f32 out. Lane: g = lane/4, q = lane%4. a: {rows g,
/// g+8} x {k 2q, 2q+8} as pairs; b: k {2q, 2q+8} as pairs, column g; sum: rows g (0, 1) and g+8 (2,
/// 3), columns 2q, 2q+1.
__device__ __forceinline__ void mma_bf16(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                         u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- programmatic dependent launch: Hopper's; nothing elsewhere

/// Waits until the kernels this one depends on have finished and their writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel's blocks start as multiprocessors come free.
__device__ __forceinline__ void launch_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- Hopper: barriers in shared memory, bulk copies, warpgroup products (sm_90a)
#if __CUDA_ARCH__ >= 900

/// Makes a barrier of `count` arrivals a phase.
__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Shows new barriers to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives.
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and makes the phase wait for `bytes` more of bulk copies.
__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/// Returns true if the phase of `parity` has ended; may wait for a while before it returns false.
__device__ __forceinline__ bool barrier_try_wait(u32 barrier, u32 parity) {
    u32 ended;
    asm volatile(
        "{\n\t.reg .pred ended;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, ended;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
    return ended != 0;
}
/// Starts a copy of `bytes` contiguous bytes to shared memory; they count towards `barrier`.
__device__ __forceinline__ void copy_bulk(u32 shared, const void *global, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared),
        "l"(global), "r"(bytes), "r"(barrier)
        : "memory");
}
/// Starts a copy of a box of a 2-dimensional tensor from element (`inner`, `outer`) on; what lies
/// outside is zero, and counts all the same.
__device__ __forceinline__ void copy_box(u32 shared, const void *map, int inner, int outer,
                                         u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(shared),
        "l"(map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}
/// Fetches a tensor map ahead of its first use.
__device__ __forceinline__ void prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// Gives registers of this warpgroup back, down to `COUNT` a thread.
template <int COUNT>
__device__ __forceinline__ void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
/// Takes registers, up to `COUNT` a thread.
template <int COUNT>
__device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
/// Orders register writes before the products that read them.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes a group of products.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `PENDING` groups are pending.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/// Names rows of 128 bytes in shared memory, swizzled in groups of eight rows (1024 bytes,
/// aligned), as the second operand of a product.
__device__ __forceinline__ u64 rows_descriptor(u32 shared) {
    constexpr u64 SWIZZLE_128 = 1ull << 62, EIGHT_ROWS = static_cast<u64>(1024 >> 4) << 32,
                  UNUSED = 1ull << 16;
    return SWIZZLE_128 | EIGHT_ROWS | UNUSED | ((shared & 0x3ffffu) >> 4);
}
/// Names rows of 128 bytes, swizzled and grouped likewise, as a transposed second operand: a row
/// has one k and 64 columns; the next 64 columns lie `block_bytes` on.
__device__ __forceinline__ u64 columns_descriptor(u32 shared, u32 block_bytes) {
    constexpr u64 SWIZZLE_128 = 1ull << 62, EIGHT_ROWS = static_cast<u64>(1024 >> 4) << 32;
    return SWIZZLE_128 | EIGHT_ROWS | static_cast<u64>(block_bytes >> 4) << 16 |
           ((shared & 0x3ffffu) >> 4);
}
/// Holds back what is computed from the values of a product until here, behind its wait: to nvrtc
/// the wait has nothing to do with them. No instruction, so ptxas is not held back.
template <int COUNT>
__device__ __forceinline__ void wgmma_results(float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(values[i])::"memory");
}
/// Shows this thread's ordinary writes of shared memory to the copy engine and to products.
__device__ __forceinline__ void proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// 16 bytes of zeros in shared memory.
__device__ __forceinline__ void clear_shared(u32 shared) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory");
}
/// 16 registers of sums as operands of the assembly.
#define WGMMA_SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define WGMMA_SUMS_16(i) \
    WGMMA_SUMS_4(i), WGMMA_SUMS_4(i + 4), WGMMA_SUMS_4(i + 8), WGMMA_SUMS_4(i + 12)

/// sum[64, N] += a[64, 16] * b[16, N], a warpgroup wide, for N of 64, 128 and 256: warp w has rows
/// 16w.., its a and each 8 columns of sum as in mma_bf16; b[k][column] lies in the column's row of
/// shared memory, or in k's row if TRANSPOSED (columns_descriptor). Without ADD the sum begins
/// from zero: sum[64, N] = a * b.
template <int ADD = 1, int TRANSPOSED = 0>
__device__ __forceinline__ void wgmma_mma_bf16(float (&sum)[32], u32 a0, u32 a1, u32 a2, u32 a3,
                                               u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, %37, 1, 1, %38;"
        : WGMMA_SUMS_16(0), WGMMA_SUMS_16(16)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
template <int ADD = 1, int TRANSPOSED = 0>
__device__ __forceinline__ void wgmma_mma_bf16(float (&sum)[64], u32 a0, u32 a1, u32 a2, u32 a3,
                                               u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, %69, 1, 1, %70;"
        : WGMMA_SUMS_16(0), WGMMA_SUMS_16(16), WGMMA_SUMS_16(32), WGMMA_SUMS_16(48)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
template <int ADD = 1, int TRANSPOSED = 0>
__device__ __forceinline__ void wgmma_mma_bf16(float (&sum)[128], u32 a0, u32 a1, u32 a2, u32 a3,
                                               u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, "
        "%104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, %133, 1, 1, %134;"
        : WGMMA_SUMS_16(0), WGMMA_SUMS_16(16), WGMMA_SUMS_16(32), WGMMA_SUMS_16(48),
          WGMMA_SUMS_16(64), WGMMA_SUMS_16(80), WGMMA_SUMS_16(96), WGMMA_SUMS_16(112)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
#undef WGMMA_SUMS_16
#undef WGMMA_SUMS_4
#endif

// ---- attention

/// An 8x8 matrix of 16-bit elements, spread over the warp as mma has it, transposed.
__device__ __forceinline__ u32 transpose_matrix(u32 packed) {
    u32 transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(packed));
    return transposed;
}

/// 8 bytes from L2, never from L1: what another block wrote.
__device__ __forceinline__ float2 load_l2_pair(const float *pointer) {
    float2 value;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value.x), "=f"(value.y)
                 : "l"(pointer)
                 : "memory");
    return value;
}

}  // namespace ptx
