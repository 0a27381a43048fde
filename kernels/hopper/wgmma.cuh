// The matrix product of more than a few rows on Hopper: a warp-specialised kernel with TMA copies,
// mbarriers and wgmma.
//
// Three warpgroups a block, one block a multiprocessor, tiles of 128 features x 64, 128 or 256
// tokens. One thread of the last warpgroup keeps the ring full: eight contiguous runs of weights
// and a box of activations for each 64 tokens a stage. The other two warpgroups have 64 features
// each: weights from the ring to registers (the fragment order of all our products is what the A
// operand wants), activations straight from the ring. While they end a tile, through a
// separate buffer, the ring already fills for the next.
//
// Pieces of the depth (common/split_k.cuh): blocks walk over whole tiles, and add each piece to the
// total of those before, or over the pieces of all tiles, whose last block adds them.
//
// Clusters: the two blocks of a cluster, neighbours in y, have tiles of the same tokens and of
// neighbouring features, and walk them in step. Each loads its own weights and half of the
// activations, which the copy engine writes to both (multicast): 32 KiB of L2 a stage of 256 tokens
// in place of 48. (With tiles of the same features they would share weights, and load 40.) A stage
// is free when the consumers of both blocks have read it.
#pragma once
#include "common/epilogue.cuh"
#include "hopper/pipeline.cuh"
#include "common/split_k.cuh"

namespace wgmma {

using pipeline::ConsumerBarrier;
using pipeline::CONSUMERS;
using pipeline::PipelineState;
using pipeline::wait;

/// Depth of a stage, and its products along k.
constexpr int DEPTH = 64, STEPS = DEPTH / 16;
/// Depth of a unit: two stages. Pieces are whole units.
constexpr int UNIT_DEPTH = 2 * DEPTH;
static_assert(split_k::UNIT % UNIT_DEPTH == 0, "pieces are whole units");
constexpr int WEIGHT_BYTES = split_k::FEATURES * DEPTH * 2;
/// Bytes of a stage that belong to one tile of 16 features: contiguous in global memory too.
constexpr int RUN_BYTES = STEPS * 512;
/// Rows of activations that one copy brings.
constexpr int BOX = 64;
/// Tokens whose sums are ended at a time.
constexpr int PASS = 64;

template <class Epilogue, class Params, int TOKENS, int STAGES, int CLUSTER>
struct Kernel {
    static constexpr int STAGE_BYTES = WEIGHT_BYTES + TOKENS * DEPTH * 2, SUMS = TOKENS / 2;
    /// Loads in flight of the fix-up: the sums of later passes take the registers.
    static constexpr int FLIGHT = TOKENS > 128 ? 4 : 8;
    static_assert(TOKENS % (BOX * CLUSTER) == 0 && TOKENS % PASS == 0, "whole boxes and passes");
    /// Boxes of a stage that a block brings, for all of its cluster.
    static constexpr int BOXES = TOKENS / BOX / CLUSTER;
    static constexpr u16 ALL_BLOCKS = (1 << CLUSTER) - 1;

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
          tiles(params.base.gemm.n / (gridDim.y * split_k::FEATURES) *
                ((params.base.gemm.rows + TOKENS - 1) / TOKENS)),
          ring(ptx::shared_address(shared)),
          sums(reinterpret_cast<float *>(shared + STAGES * STAGE_BYTES)),
          scales(sums + PASS * split_k::ROW),
          full(ptx::shared_address(scales + TOKENS)),
          empty(full + STAGES * 8),
          arrived(reinterpret_cast<u32 *>(scales + TOKENS) + STAGES * 4) {}

    /// Place of a tile of this block's column of the grid: each has every gridDim.y-th tile of
    /// features, numbered as if there were no others.
    __device__ __forceinline__ split_k::Place place_of(int tile) const {
        const int columns = gridDim.y, column = blockIdx.y;
        struct {
            int n, rows, tile_swizzle;
        } one = {g.n / columns, g.rows, g.tile_swizzle};
        const split_k::Place place = split_k::place_of<TOKENS>(one, tile);
        return {place.feature * columns + column * split_k::FEATURES, place.token};
    }

    /// The workspace of a column.
    struct Workspace {
        float *partials;
        u32 *tile_counters;
    };
    __device__ __forceinline__ Workspace workspace() const {
        const int column = blockIdx.y;
        return {g.partials +
                    static_cast<i64>(column) * tiles * g.pieces * (TOKENS * split_k::FEATURES),
                g.tile_counters + column * tiles * (TOKENS / PASS)};
    }

    /// The producer, one thread: keeps the ring full, tile after tile.
    __device__ __forceinline__ void produce() const {
        ptx::prefetch_map(&all.x);
        PipelineState<STAGES> state;
        // Of the activations this block brings those from `box_row` on.
        const int box_row = CLUSTER > 1 ? blockIdx.y * (BOXES * BOX) : 0;
        const int parts = split_k::Part::count(g, tiles);
        for (int index = blockIdx.x; index < parts; index += gridDim.x) {
            const split_k::Part part(g, index);
            const split_k::Place place = place_of(part.tile);
            const int from = split_k::begin_of(g, part.piece) / DEPTH,
                      end = part.end(g) / DEPTH;
            const char *weights = reinterpret_cast<const char *>(g.w) +
                                  static_cast<i64>(place.feature) * g.k_padded * 2 +
                                  from * RUN_BYTES;
            for (int stage = from; stage < end; stage++, weights += RUN_BYTES) {
                // The first time round every stage is free: a barrier that was never used has ended
                // the phase before its first.
                pipeline::wait_bounded(empty + state.stage * 8, state.parity ^ 1);
                const u32 barrier = full + state.stage * 8, to = ring + state.stage * STAGE_BYTES;
                ptx::barrier_arrive_expect(barrier, STAGE_BYTES);
#pragma unroll
                for (int run = 0; run < split_k::FEATURES / 16; run++)
                    ptx::copy_bulk(to + run * RUN_BYTES,
                                   weights + static_cast<i64>(run) * g.k_padded * 32, RUN_BYTES,
                                   barrier);
#pragma unroll
                for (int box = 0; box < BOXES; box++) {
                    const int row = box_row + box * BOX;
                    const u32 rows = to + WEIGHT_BYTES + row * (DEPTH * 2);
                    if constexpr (CLUSTER > 1)
                        ptx::copy_box_to_blocks(rows, &all.x, stage * DEPTH, place.token + row,
                                                barrier, ALL_BLOCKS);
                    else
                        ptx::copy_box(rows, &all.x, stage * DEPTH, place.token + row, barrier);
                }
                state.advance();
            }
        }
        pipeline::wait_until_free<STAGES>(empty, state);
    }

    /// Frees the stage of a barrier that this thread arrives at.
    static __device__ __forceinline__ void release(bool arrives, u32 barrier) {
        if (!arrives) return;
        if constexpr (CLUSTER > 1)
            ptx::barrier_arrive_at_block(barrier);
        else
            ptx::barrier_arrive(barrier);
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
        // A warp frees a stage in each block that fills it: lane i arrives at block i's barrier.
        const bool arrives = threadIdx.x % 32 < CLUSTER;
        const u32 free = CLUSTER > 1 ? ptx::block_address(empty, threadIdx.x % CLUSTER) : empty;
        const int parts = split_k::Part::count(g, tiles);
        for (int index = blockIdx.x; index < parts; index += gridDim.x) {
            float sum[SUMS];
            int piece = split_k::Part(g, index).piece;
            do {
                accumulate(sum, piece, pool, state, arrives, free);
                if (split_k::carries(g)) carry(sum, piece);
            } while (split_k::carries(g) && ++piece < g.pieces);
            end_part(sum, {g, ptx::opaque(index)});
        }
    }

    /// Sums one piece.
    __device__ __forceinline__ void accumulate(float (&sum)[SUMS], int piece,
                                               const unsigned char *pool,
                                               PipelineState<STAGES> &state, bool arrives,
                                               u32 free) const {
#pragma unroll
        for (int i = 0; i < SUMS; i++) sum[i] = 0.0f;
        const int units =
            (split_k::begin_of(g, piece + 1) - split_k::begin_of(g, piece)) / UNIT_DEPTH;
        uint4 even[STEPS], odd[STEPS];
        int before = 0;
        // Stages come in pairs, so that registers of one are loaded while the other's are read.
        for (int unit = 0; unit < units; unit++) {
            wait(full + state.stage * 8, state.parity);
            load(even, pool, state.stage);
            multiply(sum, even, state.stage);
            // All but the newest products have ended: the stage before is free.
            ptx::wgmma_wait<1>();
            if (unit > 0) release(arrives, free + before * 8);
            before = state.stage;
            state.advance();

            wait(full + state.stage * 8, state.parity);
            load(odd, pool, state.stage);
            multiply(sum, odd, state.stage);
            ptx::wgmma_wait<1>();
            release(arrives, free + before * 8);
            before = state.stage;
            state.advance();
        }
        ptx::wgmma_wait<0>();
        ptx::wgmma_results(sum);
        release(arrives, free + before * 8);
    }

    /// Adds the sums of piece `piece` to those before it, where a block has a tile's pieces.
    __device__ __forceinline__ void carry(float (&sum)[SUMS], int piece) const {
        const int block = blockIdx.x * gridDim.y + blockIdx.y;
        float4 *total = reinterpret_cast<float4 *>(g.partials) +
                        static_cast<i64>(block) * (SUMS / 4 * CONSUMERS) + ptx::thread_now();
#pragma unroll
        for (int i = 0; i < SUMS / 4; i++) {
            float four[4] = {sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]};
            split_k::carry(total + i * CONSUMERS, four, piece == 0, piece == g.pieces - 1);
#pragma unroll
            for (int r = 0; r < 4; r++) sum[4 * i + r] = four[r];
        }
    }

    /// Ends this block's part of a tile, 64 tokens at a time through `sums`. A pass of a tile that
    /// has several blocks is summed as a separate tile.
    __device__ __forceinline__ void end_part(const float (&sum)[SUMS],
                                             const split_k::Part &part) const {
        const split_k::Place place = place_of(part.tile);
        epilogue::scales_of<Epilogue, TOKENS, CONSUMERS>(p, place.token, scales);
        const int thread = ptx::thread_now(), lane = thread % 32;
        float *corner = sums + lane % 4 * 2 * split_k::ROW + thread / 32 * 16 + lane / 4;
        // Beyond the last token there is nothing to end, for no block that shares the tile.
        const int passes = min(TOKENS / PASS, (g.rows - place.token + PASS - 1) / PASS);
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            // The epilogue's code once; the registers of each pass by constant indices.
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                const int c = i / 4 % (PASS / 8), r = i % 4;
                if (i / (PASS / 2) == pass)
                    corner[(c * 8 + r % 2) * split_k::ROW + r / 2 * 8] = sum[i];
            }
            ConsumerBarrier::wait();
            const split_k::Place at = {place.feature, place.token + pass * PASS};
            const int rows = min(PASS, g.rows - at.token);
            const split_k::Pass piece = {part.tile, part.piece, pass, TOKENS / PASS};
            if (!split_k::piece_per_block(g) ||
                split_k::add_up<CONSUMERS, PASS, FLIGHT, ConsumerBarrier>(
                    workspace(), g.pieces, piece, sums, rows, arrived))
                epilogue::finish<Epilogue, CONSUMERS, 4>(p, sums, scales + pass * PASS, at, rows);
            ConsumerBarrier::wait();
        }
    }

    __device__ void run(const unsigned char *pool) {
        pipeline::run<STAGES, CLUSTER>(full, empty, [&] { produce(); }, [&] { consume(pool); });
    }
};

}  // namespace wgmma

#define WGMMA_BODY(NAME, EPILOGUE, TOKENS, STAGES, CLUSTER)                                    \
    NAME(const __grid_constant__ Wgmma##EPILOGUE##Params p) {                                  \
        extern __shared__ __align__(1024) unsigned char shared[];                              \
        wgmma::Kernel<epilogue::EPILOGUE, Wgmma##EPILOGUE##Params, TOKENS, STAGES, CLUSTER>(   \
            p, shared)                                                                         \
            .run(shared);                                                                      \
    }
/// One instance: tiles of 128 features x `TOKENS` tokens, `STAGES` stages.
#define WGMMA_KERNEL(NAME, EPILOGUE, TOKENS, STAGES)                   \
    extern "C" __global__ void __launch_bounds__(pipeline::THREADS, 1) \
        WGMMA_BODY(NAME, EPILOGUE, TOKENS, STAGES, 1)
/// The same in clusters of two blocks.
#define WGMMA_CLUSTER_KERNEL(NAME, EPILOGUE, TOKENS, STAGES)                                     \
    extern "C" __global__ void __cluster_dims__(1, 2, 1) __launch_bounds__(pipeline::THREADS, 1) \
        WGMMA_BODY(NAME, EPILOGUE, TOKENS, STAGES, 2)
