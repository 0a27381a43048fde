// Instructions of Hopper (sm_90a): barriers in shared memory, copies by the copy engine (TMA),
// warpgroup products (wgmma). One function per instruction, as in ptx.cuh.
#pragma once
#include "common/ptx.cuh"

#if __CUDA_ARCH__ >= 900
namespace ptx {

// ---- barriers in shared memory

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
/// Arrives at a barrier of any block of the cluster (`block_address`). What this thread read of
/// shared memory before is read by then; written values are ordered for its own block alone: an
/// arrival with the cluster's scope waits until all stores of the thread have reached L2.
__device__ __forceinline__ void barrier_arrive_at_block(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
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

/// Ends the launch with a fault if `lost`, without a branch: beside one, ptxas schedules products
/// of other threads further apart.
__device__ __forceinline__ void trap_if(bool lost) {
    asm volatile("{\n\t.reg .pred lost;\n\tsetp.ne.u32 lost, %0, 0;\n\t@lost trap;\n\t}" ::"r"(
        static_cast<u32>(lost)));
}

// ---- clusters: blocks that run at one time and reach each other's shared memory

/// The address of `shared` in block `rank` of the cluster.
__device__ __forceinline__ u32 block_address(u32 shared, u32 rank) {
    u32 address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
    return address;
}
/// Waits until all threads of the cluster are here. Orders what lies before a fence of barriers
/// (`barrier_init_fence`) alone.
__device__ __forceinline__ void cluster_meet() {
    asm volatile(
        "barrier.cluster.arrive.relaxed.aligned;\n\t"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// ---- copies by the copy engine

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
/// The same copy to each block of the cluster whose bit is set in `blocks`, at the same place,
/// where it counts towards the same barrier (multicast): read once.
__device__ __forceinline__ void copy_box_to_blocks(u32 shared, const void *map, int inner,
                                                   int outer, u32 barrier, u16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
        "l"(map), "r"(inner), "r"(outer), "r"(barrier), "h"(blocks)
        : "memory");
}
/// Fetches a tensor map ahead of its first use.
__device__ __forceinline__ void prefetch_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- registers

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

// ---- warpgroup products

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
/// 16w.., its a and each 8 columns of sum as in mma_bf16; b[k][column] is in the column's row of
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

}  // namespace ptx
#endif
