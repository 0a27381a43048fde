// The matrix product of more than a few rows on Hopper: a warp-specialised kernel with TMA copies,
// mbarriers and wgmma.
//
// Three warpgroups a block, one block a multiprocessor, tiles of 128 features x 64, 128 or 256
// tokens. One thread of the last warpgroup keeps the ring full: eight contiguous runs of weights
// and a box of activations for each 64 tokens a stage. The other two warpgroups have 64 features
// each: weights from the ring to registers (the fragment order of all our products is what the A
// operand wants), activations straight from the ring. While they end a tile, through a buffer of
// its own, the ring already fills for the next.
//
// Hybrid stream-K: as many whole tiles as there are blocks, wave after wave; the tiles of the last,
// incomplete wave are a line that all blocks share in equal parts (common/stream.cuh), unless the
// plan leaves them whole.
#pragma once
#include "common/epilogue.cuh"
#include "common/pipeline.cuh"
#include "common/stream.cuh"

namespace wgmma {

using pipeline::ConsumerBarrier;
using pipeline::CONSUMERS;
using pipeline::PipelineState;
using pipeline::wait;

/// Depth of a stage, and its products along k.
constexpr int DEPTH = 64, STEPS = DEPTH / 16;
/// Depth of a unit of the line: two stages (k_padded is a multiple of 256).
constexpr int UNIT_DEPTH = 2 * DEPTH;
constexpr int WEIGHT_BYTES = stream::FEATURES * DEPTH * 2;
/// Bytes of a stage that belong to one tile of 16 features: contiguous in global memory too.
constexpr int RUN_BYTES = STEPS * 512;
/// Rows of activations that one copy brings.
constexpr int BOX = 64, BOX_BYTES = BOX * DEPTH * 2;
/// Tokens whose sums are ended at a time.
constexpr int PASS = 64;

template <class Epilogue, class Params, int TOKENS, int STAGES>
struct Kernel {
    static constexpr int STAGE_BYTES = WEIGHT_BYTES + TOKENS * DEPTH * 2, SUMS = TOKENS / 2;
    /// Loads in flight of the fix-up: the sums of later passes take the registers.
    static constexpr int FLIGHT = TOKENS > 128 ? 4 : 8;
    static_assert(TOKENS % BOX == 0 && TOKENS % PASS == 0, "whole boxes, whole passes");

    const Params &all;
    const typename Epilogue::Params &p;
    const GemmOperands &g;
    const int tiles;
    const u32 ring;
    float *const sums;
    float *const scales;
    /// Barriers: stage i is full; stage i is free.
    const u32 full, empty;
    /// The fix-up's own word.
    u32 *const arrived;

    __device__ Kernel(const Params &params, unsigned char *shared)
        : all(params),
          p(params.base),
          g(params.base.gemm),
          tiles(params.base.gemm.n / stream::FEATURES *
                ((params.base.gemm.rows + TOKENS - 1) / TOKENS)),
          ring(ptx::shared_address(shared)),
          sums(reinterpret_cast<float *>(shared + STAGES * STAGE_BYTES)),
          scales(sums + PASS * stream::ROW),
          full(ptx::shared_address(scales + TOKENS)),
          empty(full + STAGES * 8),
          arrived(reinterpret_cast<u32 *>(scales + TOKENS) + STAGES * 4) {}

    /// The producer, one thread: keeps the ring full, tile after tile.
    __device__ __forceinline__ void produce() const {
        ptx::prefetch_map(&all.x);
        PipelineState<STAGES> state;
        stream::Share share(g, tiles, g.k_padded / UNIT_DEPTH);
        for (stream::Part part; share.next(part);) {
            const stream::Place place = stream::place_of<TOKENS>(g, part.tile);
            const char *weights = reinterpret_cast<const char *>(g.w) +
                                  static_cast<i64>(place.feature) * g.k_padded * 2 +
                                  2 * part.from * RUN_BYTES;
            for (int stage = 2 * part.from; stage < 2 * part.to; stage++, weights += RUN_BYTES) {
                // The first time round every stage is free: a barrier that was never used has ended
                // the phase before its first.
                wait(empty + state.stage * 8, state.parity ^ 1);
                const u32 barrier = full + state.stage * 8, to = ring + state.stage * STAGE_BYTES;
                ptx::barrier_arrive_expect(barrier, STAGE_BYTES);
#pragma unroll
                for (int run = 0; run < stream::FEATURES / 16; run++)
                    ptx::copy_bulk(to + run * RUN_BYTES,
                                   weights + static_cast<i64>(run) * g.k_padded * 32, RUN_BYTES,
                                   barrier);
#pragma unroll
                for (int box = 0; box < TOKENS / BOX; box++)
                    ptx::copy_box(to + WEIGHT_BYTES + box * BOX_BYTES, &all.x, stage * DEPTH,
                                  place.token + box * BOX, barrier);
                state.advance();
            }
        }
    }

    /// This warp's weights of a stage, for its lane: registers of STEPS products.
    __device__ __forceinline__ void load(uint4 (&a)[STEPS], const unsigned char *pool,
                                         int stage) const {
        const unsigned char *from =
            pool + stage * STAGE_BYTES + threadIdx.x / 32 * RUN_BYTES + threadIdx.x % 32 * 16;
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            a[step] = *reinterpret_cast<const uint4 *>(from + step * 512);
    }

    /// Starts the products of a stage.
    __device__ __forceinline__ void multiply(float (&sum)[SUMS], const uint4 (&a)[STEPS],
                                             int stage) const {
        const u64 rows = ptx::rows_descriptor(ring + stage * STAGE_BYTES + WEIGHT_BYTES);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            ptx::wgmma_mma_bf16(sum, a[step].x, a[step].y, a[step].z, a[step].w,
                                rows + step * (32 >> 4));
        ptx::wgmma_commit();
    }

    /// The consumers, two warpgroups: products, then the tile's epilogue.
    __device__ __forceinline__ void consume(const unsigned char *pool) const {
        PipelineState<STAGES> state;
        const bool elected = threadIdx.x % 32 == 0;
        stream::Share share(g, tiles, g.k_padded / UNIT_DEPTH);
        for (stream::Part part; share.next(part);) {
            float sum[SUMS];
#pragma unroll
            for (int i = 0; i < SUMS; i++) sum[i] = 0.0f;
            uint4 even[STEPS], odd[STEPS];
            int before = 0;
            // Stages come in pairs, so that registers of one are loaded while the other's are read.
            for (int unit = part.from; unit < part.to; unit++) {
                wait(full + state.stage * 8, state.parity);
                load(even, pool, state.stage);
                multiply(sum, even, state.stage);
                // All but the newest products have ended: the stage before is free.
                ptx::wgmma_wait<1>();
                if (unit > part.from && elected) ptx::barrier_arrive(empty + before * 8);
                before = state.stage;
                state.advance();

                wait(full + state.stage * 8, state.parity);
                load(odd, pool, state.stage);
                multiply(sum, odd, state.stage);
                ptx::wgmma_wait<1>();
                if (elected) ptx::barrier_arrive(empty + before * 8);
                before = state.stage;
                state.advance();
            }
            ptx::wgmma_wait<0>();
            if (elected) ptx::barrier_arrive(empty + before * 8);
            end_tile(sum, share, part);
        }
    }

    /// Ends this block's part of a tile, 64 tokens at a time through `sums`. A pass of a shared
    /// tile is summed as a tile of its own.
    __device__ __forceinline__ void end_tile(const float (&sum)[SUMS], const stream::Share &share,
                                             const stream::Part &part) const {
        const stream::Place place = stream::place_of<TOKENS>(g, ptx::opaque(part.tile));
        const bool is_whole = part.to - part.from == share.line.depth;
        epilogue::scales_of<Epilogue, TOKENS, CONSUMERS>(p, place.token, scales);
        const int thread = ptx::thread_now(), lane = thread % 32;
        float *corner = sums + lane % 4 * 2 * stream::ROW + thread / 32 * 16 + lane / 4;
        // Beyond the last token there is nothing to end, for no block that shares the tile.
        const int passes = min(TOKENS / PASS, (g.rows - place.token + PASS - 1) / PASS);
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            // The epilogue's code once; the registers of each pass by constant indices.
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                const int c = i / 4 % (PASS / 8), r = i % 4;
                if (i / (PASS / 2) == pass)
                    corner[(c * 8 + r % 2) * stream::ROW + r / 2 * 8] = sum[i];
            }
            ConsumerBarrier::wait();
            const stream::Place at = {place.feature, place.token + pass * PASS};
            const int rows = min(PASS, g.rows - at.token);
            const stream::Piece piece = {part.tile - share.whole, pass, TOKENS / PASS};
            if (is_whole || stream::add_up<CONSUMERS, PASS, FLIGHT, ConsumerBarrier>(
                                g, share.line, piece, sums, rows, arrived))
                epilogue::finish<Epilogue, CONSUMERS, 4>(p, sums, scales + pass * PASS, at, rows);
            ConsumerBarrier::wait();
        }
    }

    __device__ void run(const unsigned char *pool) {
        pipeline::run<STAGES>(full, empty, [&] { produce(); }, [&] { consume(pool); });
    }
};

}  // namespace wgmma

/// One instance: tiles of 128 features x `TOKENS` tokens, `STAGES` stages.
#define WGMMA_KERNEL(NAME, EPILOGUE, TOKENS, STAGES)                                           \
    extern "C" __global__ void __launch_bounds__(pipeline::THREADS, 1)                         \
        NAME(const __grid_constant__ Wgmma##EPILOGUE##Params p) {                              \
        extern __shared__ __align__(1024) unsigned char shared[];                              \
        wgmma::Kernel<epilogue::EPILOGUE, Wgmma##EPILOGUE##Params, TOKENS, STAGES>(p, shared)  \
            .run(shared);                                                                      \
    }
