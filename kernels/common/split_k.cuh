// Split-K with fixed pieces: the one order in which all products sum along k.
//
// The output is cut into tiles (128 features x TOKENS tokens), the depth into pieces. Their number
// is a function of the product's shape (plan/order.rs), never of rows, grid or chip. A piece is a
// chain of mma's, 16 along k each, that begins at zero; a tile is the sum of its pieces in their
// order. So a row's bits are the same in every kernel, tile size and grid.
//
// The plan assigns pieces to blocks in one of two ways. With few tiles a block computes one piece,
// writes its sums to the workspace and increments the tile's counter; the last block to arrive adds
// all pieces of the tile (`add_up`, the fix-up). With many tiles a block computes all pieces of a
// tile and adds each to the total of the pieces before it (`carry`).
#pragma once
#include "common/ptx.cuh"

namespace split_k {

/// Features of a tile.
constexpr int FEATURES = 128;
/// Floats from one token's row of sums to the next in shared memory; 4 more than a row, so that
/// fragments are written without bank conflicts.
constexpr int ROW = FEATURES + 4;
/// Pieces begin at multiples of so many elements along k.
constexpr int UNIT = 128;

/// First element along k of piece `piece`; of `g.pieces`, the padded width.
__device__ __forceinline__ int begin_of(const GemmOperands &g, int piece) {
    return g.k_padded / UNIT * piece / g.pieces * UNIT;
}

/// True if a block has one piece, false if it has all of a tile: the plan's choice.
__device__ __forceinline__ bool piece_per_block(const GemmOperands &g) { return g.tile_counters; }
/// True if a block adds the pieces of a tile.
__device__ __forceinline__ bool carries(const GemmOperands &g) {
    return !piece_per_block(g) && g.pieces > 1;
}

/// Work of a block, of a product of `tiles` tiles: a tile, and the first or only one of its pieces.
struct Part {
    int tile, piece;

    static __device__ __forceinline__ int count(const GemmOperands &g, int tiles) {
        return piece_per_block(g) ? tiles * g.pieces : tiles;
    }
    __device__ __forceinline__ Part(const GemmOperands &g, int index)
        : tile(piece_per_block(g) ? index / g.pieces : index),
          piece(piece_per_block(g) ? index % g.pieces : 0) {}
    /// The element along k behind its last piece.
    __device__ __forceinline__ int end(const GemmOperands &g) const {
        return piece_per_block(g) ? begin_of(g, piece + 1) : g.k_padded;
    }
};

/// Where a tile lies.
struct Place {
    /// First feature.
    int feature;
    /// First token.
    int token;
};

/// Place of tile `tile`: token tiles in groups of `tile_swizzle`, features within a group, tokens
/// of the group innermost (tile swizzling), so that concurrent blocks share both weights and
/// activations in L2. `Product`: GemmOperands, or what has its extents.
template <int TOKENS, class Product>
__device__ Place place_of(const Product &g, int tile) {
    const int feature_tiles = g.n / FEATURES, token_tiles = (g.rows + TOKENS - 1) / TOKENS;
    const int group = tile / (g.tile_swizzle * feature_tiles), first = group * g.tile_swizzle;
    const int in_group = min(g.tile_swizzle, token_tiles - first),
              rest = tile - first * feature_tiles;
    return {rest / in_group * FEATURES, (first + rest % in_group) * TOKENS};
}

/// Barrier of the whole block.
struct BlockBarrier {
    static __device__ __forceinline__ void wait() { __syncthreads(); }
};

/// A part, or one of several equal pieces of it along the tokens: the unit of a fix-up.
struct Pass {
    int tile, piece;
    int index = 0, count = 1;
};

/// Clears the sums of a thread, at the beginning of a piece.
template <int STRIPES, int COLUMNS>
__device__ __forceinline__ void clear(float (&sum)[STRIPES][COLUMNS][4]) {
#pragma unroll
    for (int s = 0; s < STRIPES; s++) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
            for (int r = 0; r < 4; r++) sum[s][c][r] = 0.0f;
        }
    }
}

/// Adds four sums of a piece to the `total` of those before, in a workspace of this thread's own,
/// where a block has all pieces: into `sum` at the last piece, into the workspace at the others.
__device__ __forceinline__ void carry(float4 *total, float (&sum)[4], bool is_first, bool is_last) {
    if (!is_first) {
        const float4 before = ptx::load_l2(reinterpret_cast<const float *>(total));
        sum[0] = before.x + sum[0], sum[1] = before.y + sum[1];
        sum[2] = before.z + sum[2], sum[3] = before.w + sum[3];
    }
    if (!is_last) *total = make_float4(sum[0], sum[1], sum[2], sum[3]);
}

/// The fix-up: sums the pieces of a tile, or of a part of it, of `TOKENS` tokens; `rows` exist.
/// `sums` [rows, ROW] f32 in shared memory holds this block's piece, complete and visible to all
/// threads. Returns true in the block that arrives last: `sums` is then the sum of all pieces,
/// again visible to all. A thread has `FLIGHT` loads in flight, because the pieces are in L2 and
/// nothing else hides their latency by then. `arrived` is a word of shared memory. `Workspace`:
/// GemmOperands, or what has its workspaces.
template <int THREADS, int TOKENS, int FLIGHT, class Barrier = BlockBarrier, class Workspace>
__device__ bool add_up(const Workspace &g, int pieces, const Pass &mine, float *sums, int rows,
                       u32 *arrived) {
    constexpr int ROW_QUADS = FEATURES / 4, EACH = TOKENS * ROW_QUADS / THREADS,
                  BATCH = EACH < FLIGHT ? EACH : FLIGHT, GROUP = FLIGHT / BATCH;
    constexpr i64 PIECE_FLOATS = TOKENS * FEATURES;
    const int quads = rows * ROW_QUADS, thread = ptx::thread_now();
    u32 *const counter = g.tile_counters + mine.tile * mine.count + mine.index;
    const auto sums_of = [&](int piece) {
        return g.partials +
               ((mine.tile * pieces + piece) * mine.count + mine.index) * PIECE_FLOATS;
    };
    const auto sum_of = [&](int i) {
        return reinterpret_cast<float4 *>(sums + i / ROW_QUADS * ROW + i % ROW_QUADS * 4);
    };
#pragma unroll 1
    for (int i = thread; i < quads; i += THREADS)
        reinterpret_cast<float4 *>(sums_of(mine.piece))[i] = *sum_of(i);
    Barrier::wait();
    if (thread == 0) {
        // Releases the whole block's piece (the barrier before it is cumulative), and acquires the
        // others': one fence of the machine code.
        *arrived = ptx::add_acq_rel(counter, 1);
    }
    Barrier::wait();
    if (*arrived != static_cast<u32>(pieces - 1)) return false;
    if (thread == 0) *counter = 0;
    // A negative zero changes no bit of what is added to it.
    const float4 zero = make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
#pragma unroll 1
    for (int base = thread; base < quads; base += THREADS * BATCH) {
        float4 sum[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) sum[j] = zero;
#pragma unroll 1
        for (int piece = 0; piece < pieces; piece += GROUP) {
            float4 loaded[GROUP][BATCH];
#pragma unroll
            for (int b = 0; b < GROUP; b++) {
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    const int i = base + j * THREADS;
                    loaded[b][j] = zero;
                    if (piece + b < pieces && i < quads)
                        loaded[b][j] = ptx::load_l2(sums_of(piece + b) + i * 4);
                }
            }
#pragma unroll
            for (int b = 0; b < GROUP; b++) {
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    sum[j].x += loaded[b][j].x, sum[j].y += loaded[b][j].y;
                    sum[j].z += loaded[b][j].z, sum[j].w += loaded[b][j].w;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = base + j * THREADS;
            if (i < quads) *sum_of(i) = sum[j];
        }
    }
    Barrier::wait();
    return true;
}

}  // namespace split_k
