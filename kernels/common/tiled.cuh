// The matrix product of many rows, for mma.sync: both operands through a cp.async multistage
// pipeline in shared memory.
//
// Each warp sums 64 features x 64 tokens, two warps side by side make the tile's 128 features.
// Weights keep their fragment order: a stage's piece is contiguous in global memory and in shared
// memory, and a lane's A registers are one 16-byte load without bank conflicts. Activations lie
// row-major with their 16-byte chunks swizzled, for ldmatrix. Fragments of the next step are loaded
// before this step's products, across the barrier too.
#pragma once
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/split_k.cuh"

namespace tiled {

/// Feature tiles of 16 of one warp, and columns of 8 tokens: 64 x 64.
constexpr int STRIPES = 4, COLUMNS = 8, WARP_TOKENS = COLUMNS * 8;

template <class Epilogue, int TOKENS, int DEPTH, int STAGES>
struct Kernel {
    using Params = typename Epilogue::Params;
    static constexpr int STEPS = DEPTH / 16;
    /// Two warps for each 64 tokens.
    static constexpr int THREADS = TOKENS / WARP_TOKENS * 64;
    static_assert(THREADS == TOKENS, "as the launch bounds have it");
    static constexpr int WEIGHT_BYTES = split_k::FEATURES * DEPTH * 2,
                         STAGE_BYTES = WEIGHT_BYTES + TOKENS * DEPTH * 2;
    static constexpr int SUM_BYTES = TOKENS * split_k::ROW * 4;
    /// The stages, and over them, once they are used up, the sums.
    static constexpr int POOL_BYTES =
        STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES;
    static_assert(STEPS % 2 == 0, "fragment buffers alternate by step");
    /// Chunks of 16 bytes of a unit: of a row of activations, and of 16 features of weights; and
    /// the threads that copy the latter.
    static constexpr int CHUNKS = DEPTH / 8, RUN = STEPS * 32,
                         RUN_THREADS = THREADS / (split_k::FEATURES / 16);
    /// Chunks that a thread copies of a unit, and distance of their rows of activations.
    static constexpr int WEIGHT_COPIES = RUN / RUN_THREADS, ROW_COPIES = TOKENS * CHUNKS / THREADS,
                         ROWS_APART = THREADS / CHUNKS;
    static_assert(WEIGHT_COPIES % STEPS == 0 && ROW_COPIES % STEPS == 0, "each step copies a part");
    static_assert(ROWS_APART % 8 == 0, "a thread keeps its column");
    static_assert(WEIGHT_BYTES % 128 == 0 && STAGE_BYTES % 128 == 0, "rows begin where bits are 0");

    const Params &p;
    const GemmOperands &g;
    unsigned char *const pool;
    float *const scales;
    /// Row of x that each token of the tile reads; -1 beyond the last.
    int *const sources;
    const u32 ring;
    /// This lane's first fragments of weights and of activations, from the beginning of a stage.
    const u32 weights_at, rows_at;

    /// Fragments of two steps.
    uint4 a[2][STRIPES];
    u32 b[2][COLUMNS][2];
    float sum[STRIPES][COLUMNS][4];
    /// This thread's weights in the next unit to copy, and its column of activations in row 0.
    const char *weights, *activations;
    /// Chunk of x with which each row begins that this thread copies.
    u32 rows[ROW_COPIES];
    /// Number of these rows that exist, the first ones.
    int present;
    /// The same where this thread's column exists too, else 0.
    int inside;
    /// Units left to the products from which on the copies are past the last column.
    int outside;

    __device__ Kernel(const Params &params, unsigned char *shared)
        : p(params),
          g(params.gemm),
          pool(shared),
          scales(reinterpret_cast<float *>(shared + POOL_BYTES)),
          sources(reinterpret_cast<int *>(shared + POOL_BYTES) + TOKENS),
          ring(ptx::shared_address(shared)),
          weights_at(threadIdx.x / 32 % 2 * (STRIPES * STEPS * 512) + threadIdx.x % 32 * 16),
          rows_at(WEIGHT_BYTES + swizzled(threadIdx.x / 64 * WARP_TOKENS +
                                              threadIdx.x % 32 / 16 * 8 + threadIdx.x % 8,
                                          threadIdx.x / 8 % 2)) {}

    /// Byte of chunk `chunk` of row `row` among a stage's activations: eight neighbouring rows of
    /// one chunk fall on different banks.
    static __device__ __forceinline__ u32 swizzled(int row, int chunk) {
        const int mixed = DEPTH == 64 ? chunk ^ (row & 7) : chunk ^ (row / 2 & 3);
        return row * (DEPTH * 2) + mixed * 16;
    }

    /// Prepares this thread's copies for units [from, to) of a tile: its rows of x, from `sources`.
    __device__ __forceinline__ void begin_copies(int feature, int from, int to) {
        const int thread = threadIdx.x, chunk = thread % CHUNKS;
        const i64 stripe = feature / 16 + thread / RUN_THREADS;
        weights = reinterpret_cast<const char *>(g.w) +
                  (stripe * (g.k_padded / 16) + from * STEPS) * 512 + thread % RUN_THREADS * 16;
        activations = reinterpret_cast<const char *>(g.x + from * DEPTH + chunk * 8);
        present = 0;
#pragma unroll
        for (int j = 0; j < ROW_COPIES; j++) {
            const int source = sources[thread / CHUNKS + j * ROWS_APART];
            rows[j] = source >= 0 ? source * (g.k / 8) : 0;
            present += source >= 0 ? 1 : 0;
        }
        const int units = (g.k - chunk * 8 + DEPTH - 1) / DEPTH;
        outside = to - units + STAGES;
        inside = from < units ? present : 0;
    }

    /// Starts part `part` of `STEPS` of the copy of a unit into the stage at `to`. The parts stand
    /// between the products of another unit: all at once, they would leave the tensor cores idle.
    __device__ __forceinline__ void copy(u32 to, int part) {
        const int thread = threadIdx.x;
        // Chunks of 16 features alone, so that all but the first are at constant offsets from it.
        const u32 run = to + (thread / RUN_THREADS * RUN + thread % RUN_THREADS) * 16;
#pragma unroll
        for (int j = part * WEIGHT_COPIES / STEPS; j < (part + 1) * WEIGHT_COPIES / STEPS; j++)
            ptx::copy_async(run + j * RUN_THREADS * 16, weights + j * RUN_THREADS * 16);
        // ROWS_APART is a multiple of the rows after which the swizzle repeats.
        const u32 first = to + WEIGHT_BYTES + swizzled(thread / CHUNKS, thread % CHUNKS);
#pragma unroll
        for (int j = part * ROW_COPIES / STEPS; j < (part + 1) * ROW_COPIES / STEPS; j++)
            ptx::copy_async_or_zero(first + j * ROWS_APART * DEPTH * 2,
                                    ptx::chunk_at(activations, rows[j]),
                                    j < inside ? 16 : 0);
    }

    /// Ends the copy of a unit: the next one follows along k. The products have `left` units to
    /// do, and are STAGES - 1 behind.
    __device__ __forceinline__ void end_copy(int left) {
        ptx::copy_async_commit();
        weights += STEPS * 512;
        activations += DEPTH * 2;
        inside = left > outside ? present : 0;
    }

    /// Loads the fragments of one step from the stage at `stage`.
    __device__ __forceinline__ void load(int buffer, u32 stage, int step) {
        const u32 weights = stage + weights_at + step * 512;
#pragma unroll
        for (int s = 0; s < STRIPES; s++)
            a[buffer][s] = ptx::load_shared(weights + s * STEPS * 512);
        // The swizzle repeats after 8 rows, so one address serves all columns; rows begin at
        // multiples of their bytes, so the chunks of a step are those of step 0 with bits flipped.
        const u32 rows = (stage + rows_at) ^ (step * 32);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 2) {
            u32 four[4];
            ptx::load_matrix_x4(four, rows + c * 8 * DEPTH * 2);
            b[buffer][c][0] = four[0], b[buffer][c][1] = four[1], b[buffer][c + 1][0] = four[2],
            b[buffer][c + 1][1] = four[3];
        }
    }

    __device__ __forceinline__ void multiply(int buffer) {
#pragma unroll
        for (int s = 0; s < STRIPES; s++) {
            const uint4 w = a[buffer][s];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                ptx::mma_bf16(sum[s][c], w.x, w.y, w.z, w.w, b[buffer][c][0], b[buffer][c][1]);
        }
    }

    /// Waits for the next stage: this thread's copies, then everyone's.
    __device__ __forceinline__ void arrive() {
        ptx::copy_async_wait<STAGES - 2>();
        __syncthreads();
    }

    /// Adds the sums of piece `piece` to those before it, where a block has a tile's pieces.
    __device__ __forceinline__ void carry(int piece) {
        constexpr int QUADS = STRIPES * COLUMNS;
        float4 *total = reinterpret_cast<float4 *>(g.partials) + blockIdx.x * (QUADS * THREADS) +
                        ptx::thread_now();
#pragma unroll
        for (int s = 0; s < STRIPES; s++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                split_k::carry(total + (s * COLUMNS + c) * THREADS, sum[s][c], piece == 0,
                               piece == g.pieces - 1);
        }
    }

    /// Sums the pieces of `part`, whose tile is at `place`. The pipeline runs on from one to the
    /// next.
    __device__ __forceinline__ void accumulate(split_k::Place place, const split_k::Part &part) {
        const int from = split_k::begin_of(g, part.piece) / DEPTH, to = part.end(g) / DEPTH;
        begin_copies(place.feature, from, to);
        int left = to - from;
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (stage < left) {
#pragma unroll
                for (int step = 0; step < STEPS; step++)
                    copy(ring + stage * STAGE_BYTES, step);
            }
            end_copy(left + STAGES - 1 - stage);
        }
        epilogue::scales_of<Epilogue, TOKENS, THREADS>(p, place.token, scales);
        arrive();
        load(0, ring, 0);
        // The stage at work, and the one before it, which no warp reads any more.
        u32 stage = ring, free = ring + (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
        for (int piece = 0; left > 0; piece++) {
            // Units behind this piece.
            const int rest =
                split_k::carries(g) ? (g.k_padded - split_k::begin_of(g, piece + 1)) / DEPTH : 0;
            split_k::clear(sum);
#pragma unroll 1
            for (; left > rest; left--) {
                const u32 next =
                    stage == ring + (STAGES - 1) * STAGE_BYTES ? ring : stage + STAGE_BYTES;
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    if (left > STAGES - 1) copy(free, step);
                    if (step + 1 == STEPS) end_copy(left);
                    if (step + 1 < STEPS) {
                        load((step + 1) % 2, stage, step + 1);
                    } else {
                        // The fragments of this stage have all been read: the barrier that frees it
                        // can come before its last products.
                        arrive();
                        if (left > 1) load(0, next, 0);
                    }
                    multiply(step % 2);
                }
                free = stage;
                stage = next;
            }
            if (split_k::carries(g)) carry(piece);
        }
        ptx::copy_async_wait<0>();
        __syncthreads();
    }

    /// The block's sums from registers to `sums` [TOKENS, ROW], visible to all.
    __device__ __forceinline__ void collect(float *sums) {
        const int thread = ptx::thread_now(), lane = thread % 32, feature_half = thread / 32 % 2,
                  token_block = thread / 64;
        float *corner = sums + (token_block * WARP_TOKENS + lane % 4 * 2) * split_k::ROW +
                        feature_half * (STRIPES * 16) + lane / 4;
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

    __device__ void run() {
        ptx::launch_successor();
        ptx::wait_for_predecessor();
        const int tiles = g.n / split_k::FEATURES * ((g.rows + TOKENS - 1) / TOKENS);
        const int parts = split_k::Part::count(g, tiles);
#pragma unroll 1
        for (int index = blockIdx.x; index < parts; index += gridDim.x) {
            const split_k::Part part(g, index);
            const split_k::Place place = split_k::place_of<TOKENS>(g, part.tile);
            for (int i = threadIdx.x; i < TOKENS; i += THREADS) {
                const int row = place.token + i;
                sources[i] = row >= g.rows ? -1 : g.row_list ? g.row_list[row] : row;
            }
            __syncthreads();
            accumulate(place, part);
            end_part({g, ptx::opaque(index)});
            // Redundant, as the one behind `sources` orders the same accesses; without it ptxas
            // keeps up to 13 more registers live.
            __syncthreads();
        }
    }

    /// Ends this block's part of a tile.
    __device__ __forceinline__ void end_part(const split_k::Part &part) {
        float *sums = reinterpret_cast<float *>(pool);
        collect(sums);
        const split_k::Place place = split_k::place_of<TOKENS>(g, part.tile);
        const int rows = min(TOKENS, g.rows - place.token);
        __shared__ u32 arrived;
        // More loads in flight would spill registers on sm_90a.
        constexpr int FLIGHT = TOKENS == 128 ? 4 : 8;
        if (split_k::piece_per_block(g) && !split_k::add_up<THREADS, TOKENS, FLIGHT>(
                                       g, g.pieces, {part.tile, part.piece}, sums, rows, &arrived))
            return;
        epilogue::finish<Epilogue, THREADS, 2>(p, sums, scales, place, rows);
    }
};

}  // namespace tiled

/// One instance: tiles of 128 features x `TOKENS` tokens, `STAGES` stages of `DEPTH` along k,
/// `BLOCKS` blocks a multiprocessor.
#define TILED_KERNEL(NAME, EPILOGUE, TOKENS, DEPTH, STAGES, BLOCKS)                \
    extern "C" __global__ void __launch_bounds__(TOKENS, BLOCKS)                   \
        NAME(const __grid_constant__ epilogue::EPILOGUE::Params p) {               \
        extern __shared__ __align__(128) unsigned char shared[];                   \
        tiled::Kernel<epilogue::EPILOGUE, TOKENS, DEPTH, STAGES>(p, shared).run(); \
    }
