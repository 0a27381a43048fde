// The weights of a product of few rows (skinny.cuh) on their way through shared memory: the ring of
// each lane that they pass through.
#pragma once
#include "common/ptx.cuh"
#include "common/split_k.cuh"

namespace skinny {

constexpr int THREADS = 128, WARPS = THREADS / 32;
/// Depth of a unit of activations, elements of k, and its steps of 16.
constexpr int DEPTH = 64, STEPS = DEPTH / 16;
static_assert(split_k::UNIT % DEPTH == 0, "pieces are whole units");
/// Feature tiles of 16 that a warp streams.
constexpr int STRIPES = 2;
static_assert(WARPS * STRIPES * 16 == split_k::FEATURES, "the warps have a tile");
/// Bytes of a warp's weights in a step of 16 along k.
constexpr int STEP_BYTES = STRIPES * 512;

/// Weights in a ring of each lane, by cp.async: the layout is in fragment order, so a lane copies
/// the very 16 bytes that it multiplies, and waits for its own copies alone. Copies are counted: a
/// step waits for its own weights while the STAGES - 1 steps behind it stay in flight.
template <int STAGES>
struct LaneRing {
    static constexpr int BYTES = WARPS * STAGES * STEP_BYTES;
    /// Bytes from a warp's first stripe of a step to its second.
    static constexpr int APART = 512;

    /// This lane's 16 bytes of the first stripe in the first stage.
    const u32 base;
    const u64 policy;
    /// The next copy's source, bytes to the next feature tile of 16, and steps left to copy.
    const char *from;
    const int stripe;
    int left;
    int stage;

    /// For elements [begin, end) of k of tile `tile`, in `BYTES` of shared memory.
    __device__ LaneRing(const GemmOperands &g, int tile, int begin, int end, u32 shared)
        : base(shared + threadIdx.x / 32 * (STAGES * STEP_BYTES) + threadIdx.x % 32 * 16),
          policy(ptx::evict_first_policy()),
          from(reinterpret_cast<const char *>(g.w) +
               static_cast<i64>(tile * (split_k::FEATURES / 16) + threadIdx.x / 32 * STRIPES) *
                   g.k_padded * 32 +
               begin / 16 * 512 + threadIdx.x % 32 * 16),
          stripe(g.k_padded * 32),
          left((end - begin) / 16),
          stage(0) {}

    /// Starts the copy of the next step into stage `to`; there may be none left.
    __device__ __forceinline__ void copy(int to) {
        if (left == 0) return;
#pragma unroll
        for (int s = 0; s < STRIPES; s++)
            ptx::copy_async_stream(base + to * STEP_BYTES + s * APART, from + s * stripe, policy);
        from += 512;
        left--;
    }

    /// Starts the first copies.
    __device__ __forceinline__ void start() {
#pragma unroll 1
        for (int to = 0; to < STAGES; to++) copy(to);
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

    /// Ends a step: its stage is free, and copied into.
    __device__ __forceinline__ void pass() {
        copy(stage);
        // An empty group keeps the count of groups that the waits rely on.
        ptx::copy_async_commit();
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
};

}  // namespace skinny
