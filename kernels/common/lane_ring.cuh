// The weights of a product of few rows (skinny.cuh) on their way through shared memory: where they
// lie on the line of units, and the ring of each lane that they pass through.
#pragma once
#include "common/ptx.cuh"
#include "common/stream.cuh"

namespace skinny {

constexpr int THREADS = 256, WARPS = THREADS / 32;
/// Depth of a unit, elements of k; of a warp's half, in steps of 16.
constexpr int DEPTH = 128, STEPS = DEPTH / 2 / 16;
/// Feature tiles of 16 that a warp streams.
constexpr int STRIPES = 2;
/// Bytes of a warp's weights in a step of 16 along k.
constexpr int STEP_BYTES = STRIPES * 512;

/// The line of a product, whose rows are one tile of tokens, as block `me` of `blocks` sees it.
__device__ __forceinline__ stream::Line line_of(const GemmOperands &g, int me, int blocks) {
    const int depth = g.k_padded / DEPTH;
    return {depth, g.n / stream::FEATURES * depth, blocks, me};
}

/// A place in the block's piece of the line, moved along unit by unit.
struct Cursor {
    int tile, unit, left;
    __device__ Cursor(const stream::Line &line, int first, int last)
        : tile(first / line.depth), unit(first % line.depth), left(last - first) {}
    /// To the next unit; true at the beginning of a tile.
    __device__ bool advance(const stream::Line &line) {
        left--;
        if (++unit < line.depth) return false;
        unit = 0;
        tile++;
        return true;
    }
};

/// The place where a copy of weights begins, moved along unit by unit.
struct WeightCursor : Cursor {
    const char *from;
    /// Bytes from one feature tile of 16 to the next.
    const int stripe;
    /// At feature tile `stripes` of the first unit's tile.
    __device__ WeightCursor(const GemmOperands &g, const stream::Line &line, int first, int last,
                            int stripes)
        : Cursor(line, first, last),
          from(reinterpret_cast<const char *>(g.w) +
               static_cast<i64>(tile * (stream::FEATURES / 16) + stripes) * g.k_padded * 32 +
               unit * (DEPTH / 16) * 512),
          stripe(g.k_padded * 32) {}
    __device__ void advance(const stream::Line &line) {
        // The end of a feature tile's weights is the beginning of the next one's.
        from += DEPTH / 16 * 512;
        if (Cursor::advance(line)) from += static_cast<i64>(stripe) * (stream::FEATURES / 16 - 1);
    }
};

/// Weights in a ring of each lane, by cp.async: the layout is in fragment order, so a lane copies
/// the very 16 bytes that it multiplies, and waits for its own copies alone. Copies are counted: a
/// step waits for its own weights while the STAGES - 1 steps behind it stay in flight.
template <int STAGES>
struct LaneRing {
    using Barrier = stream::BlockBarrier;
    static constexpr int BYTES = WARPS * STAGES * STEP_BYTES;
    /// Bytes from a warp's first stripe of a step to its second.
    static constexpr int APART = 512;

    const stream::Line &line;
    /// This lane's 16 bytes of the first stripe in the first stage.
    const u32 base;
    const u64 policy;
    WeightCursor ahead;
    int stage;

    /// For units [first, last) of the line, in `BYTES` of shared memory.
    __device__ LaneRing(const GemmOperands &g, const stream::Line &all, u32 shared, int first,
                        int last)
        : line(all),
          base(shared + threadIdx.x / 32 * (STAGES * STEP_BYTES) + threadIdx.x % 32 * 16),
          policy(ptx::evict_first_policy()),
          ahead(g, all, first, last, threadIdx.x / 32 % 4 * STRIPES),
          stage(0) {
        ahead.from += threadIdx.x / 128 * STEPS * 512 + threadIdx.x % 32 * 16;
    }

    /// Starts the copy of step `step` of the unit ahead into stage `to`, and moves on behind the
    /// unit's last step. Nothing is left to copy at the end of the line.
    __device__ __forceinline__ void copy(int step, int to) {
        if (ahead.left == 0) return;
#pragma unroll
        for (int s = 0; s < STRIPES; s++)
            ptx::copy_async_stream(base + to * STEP_BYTES + s * APART,
                                   ahead.from + s * ahead.stripe + step * 512, policy);
        if (step == STEPS - 1) ahead.advance(line);
    }

    /// Starts the first copies.
    __device__ __forceinline__ void start() {
#pragma unroll 1
        for (int to = 0; to < STAGES; to++) copy(to % STEPS, to);
    }

    /// Waits for the weights of the next step and, at a unit's first one, for this thread's copies
    /// of activations: a ring of `ROW_STAGES` units.
    template <int ROW_STAGES>
    __device__ __forceinline__ void wait() const {
        // A stage of activations is copied with the first step of a unit, ROW_STAGES - 1 units
        // ahead: then the wait for that unit's weights is one for its activations, too.
        static_assert(STAGES <= (ROW_STAGES - 1) * STEPS, "activations would arrive late");
        ptx::copy_async_wait<STAGES - 1>();
    }

    /// This lane's weights of that step, of the first stripe.
    __device__ __forceinline__ u32 at() const { return base + stage * STEP_BYTES; }

    /// Ends step `step`: its stage is free, and copied into.
    __device__ __forceinline__ void pass(int step) {
        copy((step + STAGES) % STEPS, stage);
        // An empty group keeps the count of groups that the waits rely on.
        ptx::copy_async_commit();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
};

}  // namespace skinny
