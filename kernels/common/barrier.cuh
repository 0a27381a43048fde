// Grid-wide barrier of a cooperative launch, in one word of global memory that outlives launches.
//
// The upper half of the word counts generations, the lower half arrivals: block 0 adds what the
// other blocks leave to a whole generation, so that the last arrival carries into the upper half
// and the lower half is zero again. Nothing is reset, and the next launch, of any grid, continues
// from the same word. A generation cannot pass unseen: the next one needs the arrival of every
// block.
#pragma once
#include "common/ptx.cuh"

class GridBarrier {
    static constexpr u32 GENERATION = 0x10000;
    /// Polls after which a block is taken to be lost: a poll is a read of L2, about 0.7 us, so some
    /// three seconds; a stage takes less than a millisecond.
    static constexpr u32 MAX_POLLS = 1u << 22;
    u32 *const word;
    /// Value of the word when this block arrived; used by thread 0 alone.
    u32 seen;

  public:
    /// Open at first: the first wait needs no arrival.
    __device__ explicit GridBarrier(u32 *at) : word(at), seen(0) {
        if (threadIdx.x == 0) seen = ptx::load_acquire(word) + GENERATION;
    }

    /// Arrival of this block. What its threads wrote is visible to every block that has waited.
    __device__ __forceinline__ void arrive() {
        __syncthreads();
        if (threadIdx.x == 0) {
            // Releases the whole block's writes: the barrier before it is cumulative.
            seen = ptx::add_release(word, blockIdx.x == 0 ? GENERATION - (gridDim.x - 1) : 1);
        }
    }

    /// Returns when all blocks have arrived. A block that never arrives is a fault of the launch,
    /// not a device that hangs.
    __device__ __forceinline__ void wait() {
        if (threadIdx.x == 0) {
            for (u32 polls = 0; (ptx::load_acquire(word) ^ seen) < GENERATION; polls++)
                if (polls == MAX_POLLS) __trap();
        }
        __syncthreads();
    }
};
