// Clusters: special registers, and planted bugs, each with a clean variant, `NAME_bug` and
// `NAME_ok`. Blocks have 64 threads, clusters two blocks. Compiled to clusters.ptx by NVRTC 12.4
// (--gpu-architecture=compute_90a -I kernels); the tests take the PTX as it is here.
#include "hopper/hopper.cuh"

#define PAIR extern "C" __global__ void __cluster_dims__(2, 1, 1)

namespace {

constexpr int THREADS = 64, WARPS = THREADS / 32, BYTES = THREADS * 4, ROUNDS = 4;
constexpr u16 BOTH = 3;

struct Shared {
    alignas(128) float values[2][THREADS];
    alignas(8) u64 full, empty;
};

__device__ __forceinline__ Shared &shared_memory() {
    extern __shared__ __align__(128) unsigned char pool[];
    return *reinterpret_cast<Shared *>(pool);
}

__device__ __forceinline__ u32 rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::barrier_try_wait(barrier, parity)) {
    }
}

__device__ __forceinline__ void copy_to_blocks(u32 shared, const void *global, u32 bytes,
                                               u32 barrier, u16 blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
        "l"(global), "r"(bytes), "r"(barrier), "h"(blocks)
        : "memory");
}

/// Barriers of this block: full at one arrival, free at `consumers`. `meets`: the cluster's blocks
/// wait for each other's.
__device__ __forceinline__ void make_barriers(int consumers, bool meets) {
    Shared &shared = shared_memory();
    if (threadIdx.x == 0) {
        ptx::barrier_init(ptx::shared_address(&shared.full), 1);
        ptx::barrier_init(ptx::shared_address(&shared.empty), consumers);
        ptx::barrier_init_fence();
    }
    if (meets)
        ptx::cluster_meet();
    else
        __syncthreads();
}

/// A ring of one stage: in each round a block loads a half of it for both (multicast), and all
/// threads of both read all. `frees_both`: a stage waits for the readers of both blocks.
__device__ __forceinline__ void multicast(float *out, const float *in, u16 blocks,
                                          bool frees_both) {
    Shared &shared = shared_memory();
    make_barriers(frees_both ? 2 * WARPS : WARPS, true);
    const u32 full = ptx::shared_address(&shared.full), empty = ptx::shared_address(&shared.empty);
    const u32 half = rank();
    float sum = 0.0f;
    for (int round = 0; round < ROUNDS; round++) {
        if (threadIdx.x == 0) {
            wait(empty, round % 2 ^ 1);
            ptx::barrier_arrive_expect(full, 2 * BYTES);
            copy_to_blocks(ptx::shared_address(shared.values[half]), in + half * THREADS, BYTES,
                           full, blocks);
        }
        wait(full, round % 2);
        sum += shared.values[0][threadIdx.x] + shared.values[1][threadIdx.x];
        __syncwarp();
        const int lane = threadIdx.x % 32;
        if (lane < (frees_both ? 2 : 1))
            ptx::barrier_arrive_at_block(
                ptx::block_address(empty, frees_both ? static_cast<u32>(lane) : half));
    }
    // The producer's tail: the other block arrives here until its last read.
    if (threadIdx.x == 0 && frees_both) wait(empty, (ROUNDS - 1) % 2);
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

/// Block 0 arrives at a barrier of block 1, which waits for it, or ends before.
__device__ __forceinline__ void arrive_at_other(float *out, bool meets, bool waits) {
    Shared &shared = shared_memory();
    make_barriers(1, meets);
    const u32 full = ptx::shared_address(&shared.full);
    if (rank() == 0) {
        // Time enough for the other block to end.
        for (int i = 0; i < 100; i++) __nanosleep(20);
        if (threadIdx.x == 0) ptx::barrier_arrive_at_block(ptx::block_address(full, 1));
    } else if (waits) {
        wait(full, 0);
    }
    out[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
}

/// Block 0 copies to block 1, which ends without waiting for it.
__device__ __forceinline__ void copy_to_other(float *out, const float *in, bool waits) {
    Shared &shared = shared_memory();
    make_barriers(1, true);
    const u32 full = ptx::shared_address(&shared.full);
    if (rank() == 0) {
        if (threadIdx.x == 0)
            copy_to_blocks(ptx::shared_address(shared.values[0]), in, BYTES, full, 1 << 1);
    } else if (waits) {
        if (threadIdx.x == 0) ptx::barrier_arrive_expect(full, BYTES);
        wait(full, 0);
    }
    out[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
}

/// A block writes to global memory; the other reads it behind the cluster's barrier.
__device__ __forceinline__ void exchange(float *out, bool releases) {
    out[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
    if (releases)
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    else
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    const float other = out[(blockIdx.x ^ 1) * THREADS + threadIdx.x];
    out[(2 + blockIdx.x) * THREADS + threadIdx.x] = other;
}

/// `arrives` times, then a wait.
__device__ __forceinline__ void meet(float *out, int arrives) {
    for (int i = 0; i < arrives; i++) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    out[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
}

__device__ __forceinline__ void arrive_at_rank(float *out, u32 rank) {
    Shared &shared = shared_memory();
    make_barriers(2 * WARPS, true);
    const u32 full = ptx::shared_address(&shared.full), empty = ptx::shared_address(&shared.empty);
    (void)full;
    if (threadIdx.x % 32 < 2)
        ptx::barrier_arrive_at_block(ptx::block_address(empty, threadIdx.x % 32 == 0 ? 0 : rank));
    wait(empty, 0);
    out[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
}

}  // namespace

/// The special registers of each block's first thread, and the sum of ranks that thread 0 of each
/// block of the cluster has arrived with.
extern "C" __global__ void __cluster_dims__(2, 2, 1) registers(float *out, const float *, int) {
    u32 id[2], count[2], place[2], extent[2], rank, ranks;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(id[0]));
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(id[1]));
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count[0]));
    asm("mov.u32 %0, %%nclusterid.y;" : "=r"(count[1]));
    asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(place[0]));
    asm("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(place[1]));
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(extent[0]));
    asm("mov.u32 %0, %%cluster_nctaid.y;" : "=r"(extent[1]));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
    if (threadIdx.x != 0) return;
    float *to = out + (blockIdx.x + gridDim.x * blockIdx.y) * 10;
    for (int i = 0; i < 2; i++)
        to[i] = id[i], to[2 + i] = count[i], to[4 + i] = place[i], to[6 + i] = extent[i];
    to[8] = rank, to[9] = ranks;
}

PAIR mask_bug(float *out, const float *in, int) { multicast(out, in, 1 << rank(), true); }
PAIR mask_ok(float *out, const float *in, int) { multicast(out, in, BOTH, true); }

PAIR freed_bug(float *out, const float *in, int) { multicast(out, in, BOTH, false); }
PAIR freed_ok(float *out, const float *in, int) { multicast(out, in, BOTH, true); }

PAIR ended_bug(float *out, const float *, int) { arrive_at_other(out, true, false); }
PAIR ended_ok(float *out, const float *, int) { arrive_at_other(out, true, true); }

PAIR started_bug(float *out, const float *, int) { arrive_at_other(out, false, true); }
PAIR started_ok(float *out, const float *, int) { arrive_at_other(out, true, true); }

PAIR landed_bug(float *out, const float *in, int) { copy_to_other(out, in, false); }
PAIR landed_ok(float *out, const float *in, int) { copy_to_other(out, in, true); }

PAIR exchange_bug(float *out, const float *, int) { exchange(out, false); }
PAIR exchange_ok(float *out, const float *, int) { exchange(out, true); }

PAIR twice_bug(float *out, const float *, int) { meet(out, 2); }
PAIR twice_ok(float *out, const float *, int) { meet(out, 1); }

PAIR unarrived_bug(float *out, const float *, int) { meet(out, 0); }
PAIR unarrived_ok(float *out, const float *, int) { meet(out, 1); }

PAIR outside_bug(float *out, const float *, int) { arrive_at_rank(out, 2); }
PAIR outside_ok(float *out, const float *, int) { arrive_at_rank(out, 1); }
