// The matrix product of few rows (GEMV-like, memory bound): every weight is read from global
// memory once.
//
// Eight warps a block on a tile of 128 features: four pairs, each with 32 features; of a pair, one
// warp takes the first half of a unit's depth and one the second. So each warp streams two tiles of
// 16 features, and reads each fragment of activations for two tiles. Weights and activations come
// through cp.async multistage pipelines. That of the activations is the block's, one barrier a
// unit. That of the weights is a lane's own: the layout is in fragment order, so a lane copies the
// very 16 bytes that it multiplies, and waits for its own copies alone. Copies are counted: a step
// waits for its own weights while the WEIGHT_STAGES - 1 steps behind it stay in flight. Loads into
// registers would share one scoreboard of the machine code, which can be waited for only until it
// is empty.
#pragma once
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/stream.cuh"

namespace skinny {

constexpr int THREADS = 256, WARPS = THREADS / 32;
/// Depth of a unit, elements of k; of a warp's half, in steps of 16.
constexpr int DEPTH = 128, STEPS = DEPTH / 2 / 16;
/// Activation stages of the ring.
constexpr int STAGES = 4;
/// Feature tiles of 16 that a warp streams.
constexpr int STRIPES = 2;
/// Bytes of a warp's weights in a step of 16 along k.
constexpr int STEP_BYTES = STRIPES * 512;

/// Byte of 16-byte chunk `chunk` of row `row` in a stage [TOKENS][DEPTH]: XOR swizzle: neighbouring
/// rows of one chunk fall on different banks.
__device__ __forceinline__ u32 swizzled(int row, int chunk) {
    return row * (DEPTH * 2) + ((chunk ^ (row & 7)) * 16);
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

template <class Epilogue, int TOKENS, int WEIGHT_STAGES>
struct Kernel {
    using Params = typename Epilogue::Params;
    static constexpr int COLUMNS = TOKENS / 8;
    static constexpr int STAGE_BYTES = TOKENS * DEPTH * 2;
    static constexpr int WEIGHT_BYTES = WARPS * WEIGHT_STAGES * STEP_BYTES;
    // A stage of activations is copied with the first step of a unit, STAGES - 1 units ahead: then
    // the wait for that unit's weights is one for its activations, too.
    static_assert(WEIGHT_STAGES <= (STAGES - 1) * STEPS, "activations would arrive late");

    const Params &p;
    const GemmOperands &g;
    const stream::Line line;
    /// This lane's 16 bytes of the first stripe in the first stage of weights.
    const u32 weights;
    /// Stages of activations.
    const u32 ring;
    float *const sums;
    float *const scales;
    const u64 policy;
    const int lane, pair, half;
    /// Bytes from one feature tile of 16 to the next.
    const int stripe;

    float sum[STRIPES][COLUMNS][4];

    /// As block `me` of `blocks`.
    __device__ Kernel(const Params &params, unsigned char *shared, int me, int blocks)
        : p(params),
          g(params.gemm),
          line(stream::line_of<TOKENS, DEPTH>(params.gemm, me, blocks)),
          weights(ptx::shared_address(shared) + threadIdx.x / 32 * (WEIGHT_STAGES * STEP_BYTES) +
                  threadIdx.x % 32 * 16),
          ring(ptx::shared_address(shared) + WEIGHT_BYTES),
          sums(reinterpret_cast<float *>(shared + WEIGHT_BYTES + STAGES * STAGE_BYTES)),
          scales(sums + TOKENS * stream::ROW),
          policy(ptx::evict_first_policy()),
          lane(threadIdx.x % 32),
          pair(threadIdx.x / 32 % 4),
          half(threadIdx.x / 128),
          stripe(params.gemm.k_padded * 32) {}

    __device__ int token_of(int tile) const { return stream::place_of<TOKENS>(g, tile).token; }

    /// This warp's first weights of a tile, for this lane.
    __device__ const char *tile_weights(int tile) const {
        const int feature = stream::place_of<TOKENS>(g, tile).feature;
        return reinterpret_cast<const char *>(g.w) +
               static_cast<i64>(feature / 16 + pair * STRIPES) * stripe + half * (STEPS * 512) +
               lane * 16;
    }

    /// Starts the copy of the weights of step `step` of `ahead`'s unit, at `from`, into a stage,
    /// and moves both on behind the unit's last step. Nothing is left to copy at the end of the
    /// line.
    __device__ __forceinline__ void copy_weights(Cursor &ahead, const char *&from, int step,
                                                 int stage) {
        if (ahead.left == 0) return;
#pragma unroll
        for (int s = 0; s < STRIPES; s++)
            ptx::copy_async_stream(weights + stage * STEP_BYTES + s * 512,
                                   from + s * stripe + step * 512, policy);
        if (step == STEPS - 1)
            from = ahead.advance(line) ? tile_weights(ahead.tile) : from + DEPTH / 16 * 512;
    }

    /// Starts the copy of a unit's activations into a stage; rows and columns beyond the matrix
    /// become zeros.
    __device__ __forceinline__ void copy_rows(const Cursor &at, int token, int stage) {
        constexpr int CHUNKS = DEPTH / 8;
        const int chunk = threadIdx.x % CHUNKS, column = at.unit * DEPTH + chunk * 8;
#pragma unroll
        for (int first = 0; first < TOKENS; first += THREADS / CHUNKS) {
            const int i = first + threadIdx.x / CHUNKS, row = token + i;
            if (TOKENS < THREADS / CHUNKS && i >= TOKENS) break;
            const bool inside = row < g.rows && column < g.k;
            const i64 source = inside ? (g.row_list ? g.row_list[row] : row) : 0;
            ptx::copy_async_or_zero(ring + stage * STAGE_BYTES + swizzled(i, chunk),
                                    g.x + source * g.k + (inside ? column : 0), inside ? 16 : 0);
        }
    }

    /// One step of 16 along k: two feature tiles from the weights' stage, times the activations of
    /// all tokens, which are at `stage`.
    __device__ __forceinline__ void multiply(int weight_stage, u32 stage, int step) {
        const int chunk = (half * STEPS + step) * 2;
        uint4 a[STRIPES];
#pragma unroll
        for (int s = 0; s < STRIPES; s++)
            a[s] = ptx::load_shared(weights + weight_stage * STEP_BYTES + s * 512);
        u32 b[COLUMNS][2];
        if constexpr (COLUMNS == 1) {
            ptx::load_matrix_x2(b[0], stage + swizzled(lane % 8, chunk + lane / 8 % 2));
        } else {
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 2) {
                u32 four[4];
                ptx::load_matrix_x4(
                    four, stage + swizzled(c * 8 + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
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
            __syncthreads();
        }
    }

    /// Ends this block's part of a tile; `whole`: it has all of it. `scaled` is the token tile
    /// whose scales are there.
    __device__ __forceinline__ void end_tile(int tile, bool whole, int &scaled) {
        const stream::Place place = stream::place_of<TOKENS>(g, ptx::opaque(tile));
        const int rows = min(TOKENS, g.rows - place.token);
        if (place.token != scaled) {
            epilogue::scales_of<Epilogue, TOKENS, THREADS>(p, place.token, scales);
            scaled = place.token;
        }
        collect();
        // As many as the registers hold.
        constexpr int FLIGHT = TOKENS == 64 ? 16 : TOKENS == 32 ? 4 : 8;
        __shared__ u32 arrived;
        if (!whole && !stream::add_up<THREADS, TOKENS, FLIGHT>(g, line, {tile}, sums, rows,
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
        Cursor ahead(line, first, last);
        const char *from = tile_weights(ahead.tile) + ahead.unit * (DEPTH / 16 * 512);
#pragma unroll 1
        for (int stage = 0; stage < WEIGHT_STAGES; stage++)
            copy_weights(ahead, from, stage % STEPS, stage);
        wait();

        Cursor rows(line, first, last);
        int scaled = token_of(rows.tile), stage = 0, rows_token = scaled;
#pragma unroll 1
        for (int filled = 0; filled < STAGES - 1; filled++) {
            if (rows.left > 0) {
                copy_rows(rows, rows_token, filled);
                if (rows.advance(line)) rows_token = token_of(rows.tile);
            }
        }
        ptx::copy_async_commit();
        epilogue::scales_of<Epilogue, TOKENS, THREADS>(p, scaled, scales);
        clear();

        // All that a full ring can hold is on its way: there is nothing to gain from a part of it.
        ptx::copy_async_wait<0>();
        Cursor now(line, first, last);
        int begun = now.unit, weight_stage = 0;
        while (now.left > 0) {
            const int tile = now.tile;
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                ptx::copy_async_wait<WEIGHT_STAGES - 1>();
                if (step == 0) {
                    __syncthreads();
                    if (rows.left > 0) {
                        copy_rows(rows, rows_token, (stage + STAGES - 1) % STAGES);
                        if (rows.advance(line)) rows_token = token_of(rows.tile);
                    }
                }
                multiply(weight_stage, ring + stage * STAGE_BYTES, step);
                // Into the stage that this lane has just read.
                copy_weights(ahead, from, (step + WEIGHT_STAGES) % STEPS, weight_stage);
                // An empty group keeps the count of groups that the waits rely on.
                ptx::copy_async_commit();
                weight_stage = weight_stage == WEIGHT_STAGES - 1 ? 0 : weight_stage + 1;
            }
            stage = (stage + 1) % STAGES;
            const bool ended = now.advance(line);
            if (ended || now.left == 0) {
                end_tile(tile, ended && begun == 0, scaled);
                clear();
                begun = 0;
            }
        }
    }
};

/// Prefetches into L2 the first `units` units of weights that block `me` of `blocks` will stream, a
/// line of 128 bytes a thread.
__device__ __forceinline__ void prefetch(const GemmOperands &g, int me, int blocks, int units) {
    const stream::Line line = stream::line_of<8, DEPTH>(g, me, blocks);
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
/// `BLOCKS` blocks a multiprocessor.
#define SKINNY_KERNEL(NAME, EPILOGUE, TOKENS, WEIGHT_STAGES, BLOCKS)                       \
    extern "C" __global__ void __launch_bounds__(skinny::THREADS, BLOCKS)                  \
        NAME(const __grid_constant__ epilogue::EPILOGUE::Params p) {                       \
        extern __shared__ __align__(128) unsigned char shared[];                           \
        using Kernel = skinny::Kernel<epilogue::EPILOGUE, TOKENS, WEIGHT_STAGES>;          \
        Kernel(p, shared, blockIdx.x, gridDim.x).run([] {                                  \
            ptx::launch_successor();                                                       \
            ptx::wait_for_predecessor();                                                   \
        });                                                                                \
    }
