// Warp specialisation: a producer and its consumers, with a ring of stages in shared memory between
// them, by mbarriers.
#pragma once
#include "hopper/hopper.cuh"

namespace pipeline {

/// Threads that multiply, two warpgroups; and all, with the producer's warpgroup.
constexpr int CONSUMERS = 256, THREADS = 384;

/// A stage of the ring, and the parity of the pass over the ring (CUTLASS: PipelineState).
template <int STAGES>
struct PipelineState {
    int stage = 0;
    u32 parity = 0;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/// Waits until the phase of `parity` has ended, by a thread that multiplies and has no register to
/// spare. The producer's bounded waits end the launch if it never does.
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::barrier_try_wait(barrier, parity)) {
    }
}

/// Polls after which a phase is taken to be lost: how long the hardware suspends one is not
/// documented; at a microsecond some four seconds. A phase takes microseconds.
constexpr u32 MAX_POLLS = 1u << 22;

/// The same by a producer. A phase that never ends is a fault of the launch, not a device that
/// hangs.
__device__ __forceinline__ void wait_bounded(u32 barrier, u32 parity) {
#pragma unroll 1
    for (u32 polls = 0; !ptx::barrier_try_wait(barrier, parity); polls++)
        ptx::trap_if(polls == MAX_POLLS);
}

/// Barrier of the threads that multiply.
struct ConsumerBarrier {
    static __device__ __forceinline__ void wait() { ptx::barrier_named<1, CONSUMERS>(); }
};

/// Waits until the stages that were filled last are free, at the end of a producer (CUTLASS:
/// producer tail): until then it watches over the threads that multiply, and the cluster's other
/// blocks arrive here, so that this block must not end.
template <int STAGES>
__device__ __forceinline__ void wait_until_free(u32 empty, PipelineState<STAGES> state) {
    for (int i = 0; i < STAGES; i++) {
        wait_bounded(empty + state.stage * 8, state.parity ^ 1);
        state.advance();
    }
}

/// Prepares the barriers of a ring, by one thread: a stage is full at one arrival, and free at each
/// consuming warp's, in all `CLUSTER` blocks of a cluster.
template <int STAGES, int CLUSTER = 1>
__device__ __forceinline__ void prepare(u32 full, u32 empty) {
    for (int stage = 0; stage < STAGES; stage++) {
        ptx::barrier_init(full + stage * 8, 1);
        ptx::barrier_init(empty + stage * 8, CONSUMERS / 32 * CLUSTER);
    }
    ptx::barrier_init_fence();
}

/// Prepares a ring. Then one thread of the last warpgroup calls `produce`, and the others call
/// `consume`, with the registers that the last one gives back.
template <int STAGES, int CLUSTER = 1, class Produce, class Consume>
__device__ __forceinline__ void run(u32 full, u32 empty, const Produce &produce,
                                    const Consume &consume) {
    if (threadIdx.x == 0) prepare<STAGES, CLUSTER>(full, empty);
    if constexpr (CLUSTER > 1)
        ptx::cluster_meet();
    else
        __syncthreads();
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    if (threadIdx.x >= CONSUMERS) {
        ptx::registers_give<24>();
        if (threadIdx.x == CONSUMERS) produce();
    } else {
        ptx::registers_take<240>();
        consume();
    }
}

}  // namespace pipeline
