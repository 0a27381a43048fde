// The product of few rows on Hopper: that of skinny.cuh, unit by unit and sum by sum, with weights
// through the copy engine (TMA's bulk copies, cp.async.bulk).
//
// A ninth warp has one thread that copies: contiguous runs of the layout, eight feature tiles of
// each half of a unit's depth a stage, as long as a stage is free, tile after tile (warp
// specialisation). The eight warps that multiply issue no copy of weights and hold no address of
// one; while they end a tile, the ring fills on. Activations stay with these warps, by cp.async: 64
// rows would be 64 bulk copies of 256 bytes a unit, beside 32 of weights, and only a tensor map,
// which has no listed rows, would swizzle a row.
#pragma once
#include "hopper/pipeline.cuh"
#include "common/skinny.cuh"

namespace bulk {

using pipeline::CONSUMERS;
/// The warps that multiply, and the one that copies.
constexpr int THREADS = CONSUMERS + 32;
static_assert(CONSUMERS == skinny::THREADS, "one barrier for both");

/// Steps of a stage, in each half of the depth, and stages of a unit: half a unit a stage, so that
/// what is multiplied, and not in flight, is a small part of the ring.
constexpr int STAGE_STEPS = 2, UNIT_STAGES = skinny::STEPS / STAGE_STEPS;
/// Bytes of a feature tile of 16 in a stage's half: contiguous in global memory too.
constexpr int RUN_BYTES = STAGE_STEPS * 512;
/// Feature tiles, and bytes of a stage.
constexpr int RUNS = stream::FEATURES / 16, STAGE_BYTES = 2 * RUNS * RUN_BYTES;

/// A ring of weights of the whole block, `STAGES` [half of the depth][feature tile][step], and its
/// barriers: a stage is full when its bytes are there, and free when all warps have read it.
template <int STAGES>
struct Ring {
    using Barrier = pipeline::ConsumerBarrier;
    /// Stages and barriers; a multiple of what activations are aligned to.
    static constexpr int BYTES = STAGES * STAGE_BYTES + 128;
    static_assert(2 * STAGES * 8 <= 128, "room for the barriers");
    static constexpr int APART = RUN_BYTES;

    const u32 full, empty;
    /// This lane's 16 bytes of the first stage.
    const u32 base;
    pipeline::PipelineState<STAGES> state;

    __device__ static u32 full_of(u32 shared) { return shared + STAGES * STAGE_BYTES; }
    __device__ static u32 empty_of(u32 shared) { return full_of(shared) + STAGES * 8; }

    /// The side that multiplies; what the copying side has prepared is visible.
    __device__ Ring(const GemmOperands &, const stream::Line &, u32 shared, int, int)
        : full(full_of(shared)),
          empty(empty_of(shared)),
          base(shared + threadIdx.x / 32 * (skinny::STRIPES * RUN_BYTES) + threadIdx.x % 32 * 16) {}

    /// The copies have been started by the thread that makes them.
    __device__ void start() const {}

    /// Waits for the weights of step `step` of a unit and, at the first one, for this thread's
    /// copies of activations: all but those of the units ahead.
    template <int ROW_STAGES>
    __device__ __forceinline__ void wait(int step) const {
        if (step == 0) ptx::copy_async_wait<ROW_STAGES - 2>();
        if (step % STAGE_STEPS == 0) pipeline::wait(full + state.stage * 8, state.parity);
    }

    /// This lane's weights of that step, of the first stripe.
    __device__ __forceinline__ u32 at(int step) const {
        return base + state.stage * STAGE_BYTES + step % STAGE_STEPS * 512;
    }

    /// Ends step `step`; behind the last one of a stage, this warp has read it: the products, which
    /// all its lanes execute together, have their operands.
    __device__ __forceinline__ void pass(int step) {
        // The group of activations that was copied at the first step.
        if (step == 0) ptx::copy_async_commit();
        if (step % STAGE_STEPS == STAGE_STEPS - 1) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::barrier_arrive(empty + state.stage * 8);
            state.advance();
        }
    }

    /// The side that copies, one thread: keeps the ring full. Weights do not depend on the previous
    /// kernel, so it waits for none. The next kernel may begin when nothing is left to copy, so
    /// that its first copies follow this one's last: earlier, they would be in the way of copies
    /// that are waited for, and its ring would be full while this kernel ends.
    static __device__ __forceinline__ void produce(const GemmOperands &g, const stream::Line &line,
                                                   u32 shared) {
        const u32 full = full_of(shared), empty = empty_of(shared);
        const u64 policy = ptx::evict_first_policy();
        skinny::WeightCursor ahead(g, line, line.first(line.me), line.first(line.me + 1), 0);
        pipeline::PipelineState<STAGES> state;
        while (ahead.left > 0) {
#pragma unroll 1
            for (int part = 0; part < UNIT_STAGES; part++) {
                // The first time round every stage is free: a barrier that was never used has ended
                // the phase before its first.
                pipeline::wait(empty + state.stage * 8, state.parity ^ 1);
                const u32 barrier = full + state.stage * 8, to = shared + state.stage * STAGE_BYTES;
                ptx::barrier_arrive_expect(barrier, STAGE_BYTES);
#pragma unroll
                for (int i = 0; i < 2 * RUNS; i++)
                    ptx::copy_bulk_stream(to + i * RUN_BYTES,
                                          ahead.from + static_cast<i64>(i % RUNS) * ahead.stripe +
                                              i / RUNS * (skinny::STEPS * 512) + part * RUN_BYTES,
                                          RUN_BYTES, barrier, policy);
                state.advance();
            }
            ahead.advance(line);
        }
        ptx::launch_successor();
    }
};

/// The whole block's product.
template <class Epilogue, int TOKENS, int STAGES, int ROW_STAGES>
__device__ __forceinline__ void run(const typename Epilogue::Params &p, unsigned char *shared) {
    using Weights = Ring<STAGES>;
    const u32 ring = ptx::shared_address(shared);
    if (threadIdx.x == CONSUMERS)
        pipeline::prepare<STAGES>(Weights::full_of(ring), Weights::empty_of(ring));
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (ptx::elect_lane())
            Weights::produce(p.gemm, skinny::line_of(p.gemm, blockIdx.x, gridDim.x), ring);
    } else {
        skinny::Kernel<Epilogue, TOKENS, Weights, ROW_STAGES>(p, shared, blockIdx.x, gridDim.x)
            .run([] { ptx::wait_for_predecessor(); });
    }
}

}  // namespace bulk

/// One instance: `TOKENS` rows at most a tile, `STAGES` half units in the ring of weights,
/// `ROW_STAGES` units in that of activations, registers for `BLOCKS` blocks a multiprocessor.
#define BULK_KERNEL(NAME, EPILOGUE, TOKENS, STAGES, ROW_STAGES, BLOCKS)                   \
    extern "C" __global__ void __launch_bounds__(bulk::THREADS, BLOCKS)                   \
        NAME(const __grid_constant__ epilogue::EPILOGUE::Params p) {                      \
        extern __shared__ __align__(128) unsigned char shared[];                          \
        bulk::run<epilogue::EPILOGUE, TOKENS, STAGES, ROW_STAGES>(p, shared);             \
    }
