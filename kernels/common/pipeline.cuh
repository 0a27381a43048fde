// A ring of stages in shared memory between a producer and its consumers, by mbarriers.
#pragma once
#include "common/ptx.cuh"

namespace pipeline {

/// A stage of the ring, and the parity of the pass over the ring (CUTLASS: PipelineState).
template <int STAGES>
struct PipelineState {
    int stage = 0;
    u32 parity = 0;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

/// Waits until the phase of `parity` has ended.
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::barrier_try_wait(barrier, parity)) {
    }
}

}  // namespace pipeline
