// Stream-K work decomposition: every block streams the same number of weight bytes, whatever the
// shape.
//
// The output is cut into tiles (128 features x TOKENS tokens), a tile's depth into units. All units
// form one line, tile after tile, and block i takes the i-th equal share of it. A tile that crosses
// a border between shares is summed in parts (stream-K's fix-up): each block with a part writes it
// to the workspace and increments the tile's counter; the block that finishes last adds the parts
// in the order of the line, so the bits do not depend on which block that was. With as many blocks
// as tiles the same formula gives each block one whole tile, and nothing is shared (data-parallel).
#pragma once
#include "common/ptx.cuh"

namespace stream {

/// Features of a tile.
constexpr int FEATURES = 128;
/// Floats from one token's row of sums to the next in shared memory; 4 more than a row, so that
/// fragments are written without bank conflicts.
constexpr int ROW = FEATURES + 4;

/// The line of all units, as the grid shares it.
struct Line {
    /// Units per tile.
    int depth;
    /// Units in all; the planner keeps them below 2^31.
    int total;
    /// Blocks that share them.
    int blocks;
    /// Number of this block among them: the grid's, or one of several that a block of the
    /// megakernel executes in turn.
    int me;

    /// First unit of block `block`; with `blocks`, the end of the line.
    __device__ int first(int block) const {
        return static_cast<int>(static_cast<i64>(total) * block / blocks);
    }
    /// The block that has `unit`.
    __device__ int owner(int unit) const {
        return static_cast<int>((static_cast<i64>(unit + 1) * blocks - 1) / total);
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

/// Units [from, to) of a tile.
struct Part {
    int tile, from, to;
};

/// The parts of a block of a persistent kernel, in order (hybrid stream-K): whole tiles, one of
/// each wave over the grid, then its share of the tiles of the last, incomplete wave. Without a
/// workspace for sums, or with as many blocks as tiles, all tiles are whole.
struct Share {
    /// Tiles that are whole, and the line of the others.
    const int whole;
    const Line line;
    /// Next whole tile, next unit of the line.
    int tile, unit;

    /// `depth`: units of a tile.
    __device__ Share(const GemmOperands &g, int tiles, int depth)
        : whole(g.partials ? tiles / static_cast<int>(gridDim.x) * static_cast<int>(gridDim.x)
                           : tiles),
          line({depth, (tiles - whole) * depth, static_cast<int>(gridDim.x),
                static_cast<int>(blockIdx.x)}),
          tile(blockIdx.x),
          unit(line.first(line.me)) {}

    /// Returns false at the end.
    __device__ __forceinline__ bool next(Part &part) {
        if (tile < whole) {
            part = {tile, 0, line.depth};
            tile += gridDim.x;
            return true;
        }
        const int last = line.first(line.me + 1);
        if (unit >= last) return false;
        const int from = unit % line.depth, to = min(line.depth, from + last - unit);
        part = {whole + unit / line.depth, from, to};
        unit += to - from;
        return true;
    }
};

/// Barrier of the whole block.
struct BlockBarrier {
    static __device__ __forceinline__ void wait() { __syncthreads(); }
};

/// A tile of the line, or one of several equal pieces of it along the tokens: the unit of a fix-up.
struct Piece {
    int tile;
    int index = 0, count = 1;
};

/// Stream-K's fix-up: sums a shared piece of `TOKENS` tokens; `rows` exist. `sums` [rows,
/// ROW] f32 in shared memory holds this block's part, complete and visible to all threads. Returns
/// true in the block that finished last: `sums` is then the whole, again visible to all. A thread
/// has `FLIGHT` loads in flight, because the parts are in L2 and nothing else hides their latency
/// by then. `arrived` is a word of shared memory. `Workspace`: GemmOperands, or what has its
/// workspaces.
template <int THREADS, int TOKENS, int FLIGHT, class Barrier = BlockBarrier, class Workspace>
__device__ bool add_up(const Workspace &g, const Line &line, const Piece &piece, float *sums,
                       int rows, u32 *arrived) {
    constexpr int ROW_QUADS = FEATURES / 4, EACH = TOKENS * ROW_QUADS / THREADS,
                  BATCH = EACH < FLIGHT ? EACH : FLIGHT, GROUP = FLIGHT / BATCH;
    constexpr i64 PART_FLOATS = TOKENS * FEATURES;
    const int me = line.me, quads = rows * ROW_QUADS, thread = ptx::thread_now(),
              begin = piece.tile * line.depth;
    u32 *const counter = g.tile_counters + piece.tile * piece.count + piece.index;
    const int from = line.owner(begin), to = line.owner(begin + line.depth - 1);
    // A block shares its first tile and its last, and has room for two parts. Only `from` can have
    // begun with an earlier tile.
    const int second = line.first(from) < begin ? from : -1;
    const auto part_of = [&](int block) {
        return g.partials +
               ((2 * block + (block == second ? 1 : 0)) * piece.count + piece.index) * PART_FLOATS;
    };
    const auto sum_of = [&](int i) {
        return reinterpret_cast<float4 *>(sums + i / ROW_QUADS * ROW + i % ROW_QUADS * 4);
    };
#pragma unroll 1
    for (int i = thread; i < quads; i += THREADS)
        reinterpret_cast<float4 *>(part_of(me))[i] = *sum_of(i);
    Barrier::wait();
    if (thread == 0) {
        // Releases the whole block's part (the barrier before it is cumulative), and acquires the
        // others': one fence of the machine code.
        *arrived = ptx::add_acq_rel(counter, 1);
    }
    Barrier::wait();
    if (*arrived != static_cast<u32>(to - from)) return false;
    if (thread == 0) *counter = 0;
#pragma unroll 1
    for (int base = thread; base < quads; base += THREADS * BATCH) {
        float4 sum[BATCH] = {};
#pragma unroll 1
        for (int block = from; block <= to; block += GROUP) {
            float4 part[GROUP][BATCH] = {};
#pragma unroll
            for (int b = 0; b < GROUP; b++) {
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    const int i = base + j * THREADS;
                    if (block + b <= to && i < quads)
                        part[b][j] = ptx::load_l2(part_of(block + b) + i * 4);
                }
            }
#pragma unroll
            for (int b = 0; b < GROUP; b++) {
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    sum[j].x += part[b][j].x, sum[j].y += part[b][j].y;
                    sum[j].z += part[b][j].z, sum[j].w += part[b][j].w;
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

}  // namespace stream
