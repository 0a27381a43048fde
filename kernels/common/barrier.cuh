// A barrier of all blocks of a cooperative launch, in one word of global memory that outlives launches.
//
// The upper half of the word counts generations, the lower half those who have arrived: block 0 adds what the others leave to a whole generation, so
// that the last to arrive, whoever it is, carries over into the upper half, and the lower is zero again. Nothing is set back, and the next launch, of
// any grid, goes on from where the last one ended. A generation cannot pass unseen: the next one needs everybody's arrival.
#pragma once
#include "common/ptx.cuh"

class GridBarrier {
    static constexpr u32 GENERATION = 0x10000;
    u32 *const word;
    /// What the word was when this block arrived; thread 0's alone.
    u32 seen;

  public:
    /// Stands open: the first wait needs nobody's arrival.
    __device__ explicit GridBarrier(u32 *at) : word(at), seen(0) {
        if (threadIdx.x == 0) seen = ptx::load_acquire(word) + GENERATION;
    }

    /// This block has done its part. What all its threads wrote is visible to whoever has waited.
    __device__ __forceinline__ void arrive() {
        __syncthreads();
        if (threadIdx.x == 0) {
            // Releases the whole block's writes: the barrier before it is cumulative.
            __threadfence();
            seen = ptx::add_release(word, blockIdx.x == 0 ? GENERATION - (gridDim.x - 1) : 1);
        }
    }

    /// Returns when all blocks have arrived.
    __device__ __forceinline__ void wait() {
        if (threadIdx.x == 0) {
            while ((ptx::load_acquire(word) ^ seen) < GENERATION) {
            }
            __threadfence();
        }
        __syncthreads();
    }
};
