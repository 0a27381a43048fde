// The matrix product of few rows (GEMV-like, memory bound): every weight is read from global
// memory once.
//
// Four warps a block on a piece of a tile of 128 features (split_k.cuh), each with 32 features over
// the piece's whole depth: two tiles of 16, for which it reads each fragment of activations once.
// Weights and activations come through multistage pipelines, so that loads stay in flight while
// others are waited for: loads into registers would share one scoreboard of the machine code, which
// can be waited for only until it is empty. That of the activations is the block's, by cp.async,
// with one barrier a unit. That of the weights is the ring of lane_ring.cuh. Blocks are small, and
// several share a multiprocessor: all are resident at one time where a product has few tiles.
#pragma once
#include "common/epilogue.cuh"
#include "common/lane_ring.cuh"

namespace skinny {

/// Byte of 16-byte chunk `chunk` of row `row` in a stage [TOKENS][DEPTH]: XOR swizzle: neighbouring
/// rows of one chunk fall on different banks.
__device__ __forceinline__ u32 swizzled(int row, int chunk) {
    return row * (DEPTH * 2) + ((chunk ^ (row & 7)) * 16);
}

/// The product, with a ring of `WEIGHT_STAGES` steps of weights and one of `STAGES` units of
/// activations.
template <class Epilogue, int TOKENS, int WEIGHT_STAGES, int STAGES>
struct Kernel {
    using Params = typename Epilogue::Params;
    using Weights = LaneRing<WEIGHT_STAGES>;
    static constexpr int COLUMNS = TOKENS / 8;
    static constexpr int STAGE_BYTES = TOKENS * DEPTH * 2, SUM_BYTES = TOKENS * split_k::ROW * 4,
                         RING_BYTES = Weights::BYTES + STAGES * STAGE_BYTES;
    /// The rings, and over them, once they are used up, the sums.
    static constexpr int POOL_BYTES = RING_BYTES > SUM_BYTES ? RING_BYTES : SUM_BYTES;
    /// Chunks of 16 bytes of a row of activations in a unit; rows that all threads copy at a time,
    /// a chunk each.
    static constexpr int CHUNKS = DEPTH / 8, ROWS_APART = THREADS / CHUNKS,
                         ROW_COPIES = (TOKENS + ROWS_APART - 1) / ROWS_APART;
    static_assert(ROWS_APART % 8 == 0, "the swizzle repeats");

    const Params &p;
    const GemmOperands &g;
    const split_k::Pass part;
    /// Elements of k of the piece.
    const int begin, end;
    /// The ring of weights.
    const u32 weights;
    /// Stages of activations, and from the beginning of one this lane's first fragments.
    const u32 ring, rows_at;
    float *const sums;
    float *const scales;
    const int lane, warp;

    float sum[STRIPES][COLUMNS][4];
    /// Chunk of x with which each row begins that this thread copies; number of these rows that
    /// exist, the first ones.
    u32 rows[ROW_COPIES];
    int present;

    /// As block `me` of all tiles' pieces.
    __device__ Kernel(const Params &params, unsigned char *shared, int me)
        : p(params),
          g(params.gemm),
          part({me / params.gemm.pieces, me % params.gemm.pieces}),
          begin(split_k::begin_of(params.gemm, part.piece)),
          end(split_k::begin_of(params.gemm, part.piece + 1)),
          weights(ptx::shared_address(shared)),
          ring(ptx::shared_address(shared) + Weights::BYTES),
          rows_at(swizzled(threadIdx.x % 32 / 16 * 8 + threadIdx.x % 8, threadIdx.x / 8 % 2)),
          sums(reinterpret_cast<float *>(shared)),
          scales(reinterpret_cast<float *>(shared + POOL_BYTES)),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32) {}

    /// Prepares this thread's copies of activations.
    __device__ __forceinline__ void begin_rows() {
        present = 0;
#pragma unroll
        for (int j = 0; j < ROW_COPIES; j++) {
            const int row = threadIdx.x / CHUNKS + j * ROWS_APART;
            const bool exists = row < g.rows;
            rows[j] = exists ? (g.row_list ? g.row_list[row] : row) * (g.k / 8) : 0;
            present += exists ? 1 : 0;
        }
    }

    /// Starts the copy of the activations from `depth` on into a stage; rows and columns beyond the
    /// matrix become zeros. Beyond the piece there are none.
    __device__ __forceinline__ void copy_rows(int depth, int stage) {
        const int i = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        if (depth >= end || (TOKENS < ROWS_APART && i >= TOKENS)) return;
        const int column = depth + chunk * 8;
        const u32 to = ring + stage * STAGE_BYTES + swizzled(i, chunk);
        const int inside = column < g.k ? present : 0;
#pragma unroll
        for (int j = 0; j < ROW_COPIES; j++)
            ptx::copy_async_or_zero(to + j * ROWS_APART * DEPTH * 2,
                                    ptx::chunk_at(g.x + column, rows[j]), j < inside ? 16 : 0);
    }

    /// One step of 16 along k: two feature tiles, this lane's part at `weights_at`, times the
    /// activations of all tokens, which are at `stage`.
    __device__ __forceinline__ void multiply(u32 weights_at, u32 stage, int step) {
        uint4 a[STRIPES];
#pragma unroll
        for (int s = 0; s < STRIPES; s++)
            a[s] = ptx::load_shared(weights_at + s * Weights::APART);
        u32 b[COLUMNS][2];
        // The swizzle repeats after 8 rows, so one address serves all columns; stages begin at
        // multiples of 128, so a step's chunks are those of the first with other bits.
        const u32 from = (stage + rows_at) ^ (step * 32);
        if constexpr (COLUMNS == 1) {
            ptx::load_matrix_x2(b[0], from);
        } else {
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 2) {
                u32 four[4];
                ptx::load_matrix_x4(four, from + c * 8 * DEPTH * 2);
                b[c][0] = four[0], b[c][1] = four[1], b[c + 1][0] = four[2], b[c + 1][1] = four[3];
            }
        }
#pragma unroll
        for (int s = 0; s < STRIPES; s++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                ptx::mma_bf16(sum[s][c], a[s].x, a[s].y, a[s].z, a[s].w, b[c][0], b[c][1]);
        }
    }

    /// The sums to shared memory, `sums` [TOKENS, ROW], visible to all.
    __device__ __forceinline__ void collect() {
        float *corner = sums + lane % 4 * 2 * split_k::ROW + warp * (STRIPES * 16) + lane / 4;
        // Over the rings, which other warps may still read.
        __syncthreads();
#pragma unroll
        for (int s = 0; s < STRIPES; s++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                for (int r = 0; r < 4; r++)
                    corner[(c * 8 + r % 2) * split_k::ROW + s * 16 + r / 2 * 8] = sum[s][c][r];
            }
        }
        __syncthreads();
    }

    /// Ends the piece, and with the last one the tile.
    __device__ __forceinline__ void end_piece() {
        const split_k::Place place = {ptx::opaque(part.tile) * split_k::FEATURES, 0};
        collect();
        // Loads in flight of the fix-up, and rows whose inputs the epilogue has in flight: as many
        // as the registers of so many blocks hold.
        constexpr int FLIGHT = TOKENS == 64 ? 16 : 8;
        __shared__ u32 arrived;
        if (g.pieces > 1 && !split_k::add_up<THREADS, TOKENS, FLIGHT>(g, g.pieces, part, sums,
                                                                      g.rows, &arrived))
            return;
        constexpr int BATCH = TOKENS == 8 ? 2 : 4;
        epilogue::finish<Epilogue, THREADS, BATCH>(p, sums, scales, place, g.rows);
    }

    /// The block's piece of the product; `wait` returns when what the product reads, weights aside,
    /// is there.
    template <class Wait>
    __device__ __forceinline__ void run(const Wait &wait) {
        // Weights do not depend on the previous kernel: their first copies are issued before it has
        // ended.
        Weights ahead(g, part.tile, begin, end, weights);
        ahead.start();
        wait();

        begin_rows();
        int behind = begin;
#pragma unroll 1
        for (int filled = 0; filled < STAGES - 1; filled++, behind += DEPTH)
            copy_rows(behind, filled);
        ptx::copy_async_commit();
        epilogue::scales_of<Epilogue, TOKENS, THREADS>(p, 0, scales);
        split_k::clear(sum);

        // All that a full ring can hold is on its way: there is nothing to gain from a part of it.
        ptx::copy_async_wait<0>();
        int stage = 0;
#pragma unroll 1
        for (int depth = begin; depth < end; depth += DEPTH, behind += DEPTH) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                ahead.template wait<STAGES>();
                if (step == 0) {
                    __syncthreads();
                    copy_rows(behind, stage == 0 ? STAGES - 1 : stage - 1);
                }
                multiply(ahead.at(), ring + stage * STAGE_BYTES, step);
                ahead.pass();
            }
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        end_piece();
    }
};

/// Prefetches into L2 the first `units` units of weights that block `me` will stream, a line of 128
/// bytes a thread.
__device__ __forceinline__ void prefetch(const GemmOperands &g, int me, int units) {
    const int tile = me / g.pieces, piece = me % g.pieces,
              begin = split_k::begin_of(g, piece) / DEPTH,
              end = min(split_k::begin_of(g, piece + 1) / DEPTH, begin + units);
    constexpr int LINES = STEPS * 512 / 128;
    static_assert(split_k::FEATURES / 16 * LINES == THREADS, "a line a thread");
    const char *weights = reinterpret_cast<const char *>(g.w) +
                          static_cast<i64>(tile * (split_k::FEATURES / 16) + threadIdx.x / LINES) *
                              g.k_padded * 32 +
                          threadIdx.x % LINES * 128;
#pragma unroll 1
    for (int unit = begin; unit < end; unit++) ptx::prefetch_l2(weights + unit * (STEPS * 512));
}

}  // namespace skinny

/// One instance: `TOKENS` rows at most a tile; on sm_80 a ring of `WEIGHTS` steps of weights and
/// one of `ROWS` units of activations, on sm_90a of `WEIGHTS_90` and `ROWS_90`; registers for
/// `BLOCKS` blocks a multiprocessor.
#if __CUDA_ARCH__ >= 900
#define SKINNY_RINGS(WEIGHTS, ROWS, WEIGHTS_90, ROWS_90) WEIGHTS_90, ROWS_90
#else
#define SKINNY_RINGS(WEIGHTS, ROWS, WEIGHTS_90, ROWS_90) WEIGHTS, ROWS
#endif
#define SKINNY_KERNEL(NAME, EPILOGUE, TOKENS, WEIGHTS, ROWS, WEIGHTS_90, ROWS_90, BLOCKS)       \
    extern "C" __global__ void __launch_bounds__(skinny::THREADS, BLOCKS)                       \
        NAME(const __grid_constant__ epilogue::EPILOGUE::Params p) {                            \
        extern __shared__ __align__(128) unsigned char shared[];                                \
        skinny::Kernel<epilogue::EPILOGUE, TOKENS,                                              \
                       SKINNY_RINGS(WEIGHTS, ROWS, WEIGHTS_90, ROWS_90)>(p, shared, blockIdx.x) \
            .run([] {                                                                           \
                ptx::launch_successor();                                                        \
                ptx::wait_for_predecessor();                                                    \
            });                                                                                 \
    }
