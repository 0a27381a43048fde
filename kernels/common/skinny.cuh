// The matrix product of few rows (GEMV-like, memory bound): every weight is read from global
// memory once.
//
// Eight warps a block on a tile of 128 features: four pairs, each with 32 features; of a pair, one
// warp takes the first half of a unit's depth and one the second. So each warp streams two tiles of
// 16 features, and reads each fragment of activations for two tiles. Weights and activations come
// through multistage pipelines, so that loads stay in flight while others are waited for: loads
// into registers would share one scoreboard of the machine code, which can be waited for only until
// it is empty. That of the activations is the block's, by cp.async, with one barrier a unit. That
// of the weights is the ring of lane_ring.cuh.
#pragma once
#include "common/epilogue.cuh"
#include "common/lane_ring.cuh"

namespace skinny {

/// Byte of 16-byte chunk `chunk` of row `row` in a stage [TOKENS][DEPTH]: XOR swizzle: neighbouring
/// rows of one chunk fall on different banks.
__device__ __forceinline__ u32 swizzled(int row, int chunk) {
    return row * (DEPTH * 2) + ((chunk ^ (row & 7)) * 16);
}

/// The product, with weights through a `Weights` and a ring of `STAGES` units of activations.
template <class Epilogue, int TOKENS, class Weights, int STAGES>
struct Kernel {
    using Params = typename Epilogue::Params;
    using Barrier = typename Weights::Barrier;
    static constexpr int COLUMNS = TOKENS / 8;
    static constexpr int STAGE_BYTES = TOKENS * DEPTH * 2;
    /// Chunks of 16 bytes of a row of activations in a unit; rows that all threads copy at a time,
    /// a chunk each.
    static constexpr int CHUNKS = DEPTH / 8, ROWS_APART = THREADS / CHUNKS,
                         ROW_COPIES = (TOKENS + ROWS_APART - 1) / ROWS_APART;
    static_assert(ROWS_APART % 8 == 0, "the swizzle repeats");

    const Params &p;
    const GemmOperands &g;
    const stream::Line line;
    /// The ring of weights.
    const u32 weights;
    /// Stages of activations, and from the beginning of one this lane's first fragments.
    const u32 ring, rows_at;
    float *const sums;
    float *const scales;
    const int lane, pair, half;

    float sum[STRIPES][COLUMNS][4];
    /// Chunk of x with which each row begins that this thread copies; number of these rows that
    /// exist, the first ones.
    u32 rows[ROW_COPIES];
    int present;

    /// As block `me` of `blocks`.
    __device__ Kernel(const Params &params, unsigned char *shared, int me, int blocks)
        : p(params),
          g(params.gemm),
          line(line_of(params.gemm, me, blocks)),
          weights(ptx::shared_address(shared)),
          ring(ptx::shared_address(shared) + Weights::BYTES),
          rows_at(swizzled(threadIdx.x % 32 / 16 * 8 + threadIdx.x % 8,
                           threadIdx.x / 128 * STEPS * 2 + threadIdx.x / 8 % 2)),
          sums(reinterpret_cast<float *>(shared + Weights::BYTES + STAGES * STAGE_BYTES)),
          scales(sums + TOKENS * stream::ROW),
          lane(threadIdx.x % 32),
          pair(threadIdx.x / 32 % 4),
          half(threadIdx.x / 128) {}

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

    /// Starts the copy of a unit's activations into a stage; rows and columns beyond the matrix
    /// become zeros.
    __device__ __forceinline__ void copy_rows(int unit, int stage) {
        const int i = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const int column = unit * DEPTH + chunk * 8;
        if (TOKENS < ROWS_APART && i >= TOKENS) return;
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

    /// The two halves of the depth added in shared memory, `sums` [TOKENS, ROW], visible to all.
    __device__ __forceinline__ void collect() {
        float *corner = sums + lane % 4 * 2 * stream::ROW + pair * (STRIPES * 16) + lane / 4;
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            if (half == turn) {
#pragma unroll
                for (int s = 0; s < STRIPES; s++) {
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                        for (int r = 0; r < 4; r++) {
                            float *at = corner + (c * 8 + r % 2) * stream::ROW + s * 16 + r / 2 * 8;
                            *at = turn == 0 ? sum[s][c][r] : *at + sum[s][c][r];
                        }
                    }
                }
            }
            Barrier::wait();
        }
    }

    /// Ends this block's part of a tile; `whole`: it has all of it.
    __device__ __forceinline__ void end_tile(int tile, bool whole) {
        const stream::Place place = {ptx::opaque(tile) * stream::FEATURES, 0};
        const int rows = g.rows;
        collect();
        // Loads in flight of the fix-up, and rows whose inputs the epilogue has in flight: as many
        // as the registers of so many blocks hold.
        constexpr int FLIGHT = TOKENS == 64 ? 16 : TOKENS == 32 ? 4 : 8;
        __shared__ u32 arrived;
        if (!whole && !stream::add_up<THREADS, TOKENS, FLIGHT, Barrier>(g, line, {tile}, sums, rows,
                                                                        &arrived))
            return;
        constexpr int BATCH =
            TOKENS == 64                                                              ? 4
            : TOKENS == 8 || (TOKENS == 32 && sizeof(typename Epilogue::Column) > 16) ? 1
                                                                                      : 2;
        epilogue::finish<Epilogue, THREADS, BATCH>(p, sums, scales, place, rows);
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int s = 0; s < STRIPES; s++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                for (int r = 0; r < 4; r++) sum[s][c][r] = 0.0f;
            }
        }
    }

    /// The block's piece of the product; `wait` returns when what the product reads, weights aside,
    /// is there. A block without a piece does not wait.
    template <class Wait>
    __device__ __forceinline__ void run(const Wait &wait) {
        const int first = line.first(line.me), last = line.first(line.me + 1);
        if (first == last) return;
        // Weights do not depend on the previous kernel: their first copies are issued before it has
        // ended.
        Weights ahead(g, line, weights, first, last);
        ahead.start();
        wait();

        Cursor now(line, first, last), behind = now;
        begin_rows();
#pragma unroll 1
        for (int filled = 0; filled < STAGES - 1; filled++) {
            if (behind.left > 0) {
                copy_rows(behind.unit, filled);
                behind.advance(line);
            }
        }
        ptx::copy_async_commit();
        epilogue::scales_of<Epilogue, TOKENS, THREADS>(p, 0, scales);
        clear();

        // All that a full ring can hold is on its way: there is nothing to gain from a part of it.
        ptx::copy_async_wait<0>();
        int begun = now.unit, stage = 0;
        while (now.left > 0) {
            const int tile = now.tile;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                ahead.template wait<STAGES>();
                if (step == 0) {
                    Barrier::wait();
                    if (behind.left > 0) {
                        copy_rows(behind.unit, stage == 0 ? STAGES - 1 : stage - 1);
                        behind.advance(line);
                    }
                }
                multiply(ahead.at(), ring + stage * STAGE_BYTES, step);
                ahead.pass(step);
            }
            stage = stage == STAGES - 1 ? 0 : stage + 1;
            const bool ended = now.advance(line);
            if (ended || now.left == 0) {
                end_tile(tile, ended && begun == 0);
                clear();
                begun = 0;
            }
        }
    }
};

/// Prefetches into L2 the first `units` units of weights that block `me` of `blocks` will stream, a
/// line of 128 bytes a thread.
__device__ __forceinline__ void prefetch(const GemmOperands &g, int me, int blocks, int units) {
    const stream::Line line = line_of(g, me, blocks);
    const int first = line.first(me), last = min(line.first(me + 1), first + units);
    const char *weights = reinterpret_cast<const char *>(g.w) +
                          static_cast<i64>(threadIdx.x / 32) * g.k_padded * 32 +
                          threadIdx.x % 32 * 128;
#pragma unroll 1
    for (int unit = first; unit < last; unit++) {
        const i64 stripe = static_cast<i64>(unit / line.depth) * (stream::FEATURES / 16);
        ptx::prefetch_l2(weights + stripe * g.k_padded * 32 +
                         unit % line.depth * (DEPTH / 16 * 512));
    }
}

}  // namespace skinny

/// One instance: `TOKENS` rows at most a tile, `WEIGHT_STAGES` steps in a warp's ring of weights,
/// `STAGES` units in the block's ring of activations, `BLOCKS` blocks a multiprocessor.
#define SKINNY_KERNEL(NAME, EPILOGUE, TOKENS, WEIGHT_STAGES, STAGES, BLOCKS)               \
    extern "C" __global__ void __launch_bounds__(skinny::THREADS, BLOCKS)                  \
        NAME(const __grid_constant__ epilogue::EPILOGUE::Params p) {                       \
        extern __shared__ __align__(128) unsigned char shared[];                           \
        using Weights = skinny::LaneRing<WEIGHT_STAGES>;                                   \
        using Kernel = skinny::Kernel<epilogue::EPILOGUE, TOKENS, Weights, STAGES>;        \
        Kernel(p, shared, blockIdx.x, gridDim.x).run([] {                                  \
            ptx::launch_successor();                                                       \
            ptx::wait_for_predecessor();                                                   \
        });                                                                                \
    }
