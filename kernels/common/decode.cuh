// Flash decoding over the paged KV cache (split-K over the context, GQA packing: the query heads of
// a group share one pass), a piece of it at a time: the body of attention_decode.cu and of the
// attention stage of decode_megakernel.cu.
//
// Keys and values pass once per group of query heads. A warp is its own pipeline: it takes
// every fourth 16-token block, with its own cp.async ring and softmax, so that
// nothing but warp barriers stands in the loop. Splits merge in the last to arrive, in split order.
#pragma once
#include "common/columns.cuh"

namespace decode {

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
/// Stages of a warp's ring: as many as leave room for two blocks on a multiprocessor with heads 128
/// wide.
#if __CUDA_ARCH__ >= 900
constexpr int STAGES = 3;
#else
constexpr int STAGES = 2;
#endif

/// A barrier of the working threads: of the whole block (0), or of its first `THREADS` by a named
/// barrier.
template <int BARRIER>
__device__ __forceinline__ void meet() {
    if constexpr (BARRIER == 0) {
        __syncthreads();
    } else {
        ptx::barrier_named<BARRIER, THREADS>();
    }
}

/// The piece that the threads compute: tokens `first_token..length` of a request; its
/// warps take blocks `begin..end`.
struct Work {
    int row, batch_idx, kv_head, head_tile, split, active_splits;
    int first_token, length, begin, end;
};

/// Bytes of the keys, or values, of a block in a warp's ring, and of a stage: keys, then values.
template <int HD>
constexpr int TILE_BYTES = BLOCK_TOKENS * HD * 2;
template <int HD>
constexpr int STAGE_BYTES = 2 * TILE_BYTES<HD>;

/// The ids of a warp's blocks, 32 at a time, one batch ahead.
struct BlockIds {
    const int *table;
    int first, count;
    int now, next;

    __device__ int fetch(int batch) const {
        const int index = batch * 32 + threadIdx.x % 32;
        return index < count ? ptx::load_l2_word(table + first + index * WARPS) : 0;
    }
    __device__ void start() {
        now = fetch(0);
        next = fetch(1);
    }
    /// The id of the warp's block `index`; indices must be asked for in order.
    __device__ int at(int index) {
        if (index % 32 == 0 && index > 0) {
            now = next;
            next = fetch(index / 32 + 1);
        }
        return __shfl_sync(~0u, now, index % 32);
    }
};

/// Starts the copy of a block's keys, or values, from `from` to a tile; tokens from `valid` on are
/// not read and become zeros.
template <int HD>
__device__ __forceinline__ void copy_tile(u32 tile, const bf16 *from, int valid) {
    // Chunks of a row, and rows that the lanes copy at a time, 512 bytes.
    constexpr int CHUNKS = HD / 8, ROWS = 32 / CHUNKS;
    const int lane = threadIdx.x % 32, token = lane / CHUNKS;
    const u32 first = tile + chunk_at<HD>(token, lane % CHUNKS);
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS / ROWS; i++) {
        // chunk_at of row token + i * ROWS: the swizzle flips bits of the chunk.
        const u32 to = (first ^ (i * ROWS % 8 * 16)) + i * 512;
        ptx::copy_async_or_zero(to, from + (i * 32 + lane) * 8, i * ROWS < valid - token ? 16 : 0);
    }
}

/// The queries as mma's second operand: heads are its columns.
template <int HD, int TILES>
__device__ void load_queries(const DecodeAttentionParams &p, const Work &work,
                             u32 (&queries)[TILES][HD / 16][2]) {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const int heads = p.kv.kv_heads * p.kv.group;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int head = (work.head_tile * TILES + t) * 8 + g;
        const i64 first =
            (static_cast<i64>(work.row) * heads + work.kv_head * p.kv.group + head) * HD;
        const u32 *pairs = reinterpret_cast<const u32 *>(p.q + first);
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            queries[t][k][0] = head < p.kv.group ? pairs[k * 8 + q] : 0;
            queries[t][k][1] = head < p.kv.group ? pairs[k * 8 + 4 + q] : 0;
        }
    }
}

/// Masks what `block` holds outside `work`'s tokens. Of each block at least one token is inside.
template <int TILES>
__device__ void mask(const Work &work, int block, float (&scores)[TILES][4]) {
    const int token = block * BLOCK_TOKENS + threadIdx.x % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = token + half * 8;
        if (at >= work.first_token && at < work.length) continue;
#pragma unroll
        for (int t = 0; t < TILES; t++) scores[t][half * 2] = scores[t][half * 2 + 1] = NO_SCORE;
    }
}

/// One warp's loop over its KV blocks, through its cp.async ring. Keys and values are groups of
/// copies of their own: at the wait for the keys of a block, its values and the STAGES - 1 blocks
/// behind it, but for the last one's values, stay in flight. Older tokens than the newest are asked
/// for before `wait`.
template <int HD, int TILES, class Wait>
__device__ void walk(const DecodeAttentionParams &p, const Work &work, u8 *shared,
                     Softmax<HD, TILES> &state, const Wait &wait) {
    const int warp = threadIdx.x / 32;
    const int first = work.begin + warp, count = max(work.end - first + WARPS - 1, 0) / WARPS;
    const u32 ring = ptx::shared_address(shared) + warp * (STAGES * STAGE_BYTES<HD>);
    BlockIds ids{p.kv.block_table + static_cast<i64>(work.batch_idx) * p.kv.max_blocks, first,
                 count, 0, 0};
    ids.start();
    // Keys of the block that was asked for last, and its tokens from there on.
    const bf16 *keys = nullptr;
    int valid = 0;
    // An empty group keeps the count of groups that the waits rely on; at the end only such groups
    // are pending.
    const auto copy_keys = [&](int index, u32 stage) {
        if (index < count) {
            keys = keys_of(p.kv, ids.at(index), work.kv_head, HD);
            valid = work.length - (first + index * WARPS) * BLOCK_TOKENS;
            copy_tile<HD>(stage, keys, valid);
        }
        ptx::copy_async_commit();
    };
    const auto copy_values = [&](int index, u32 stage) {
        if (index < count)
            copy_tile<HD>(stage + TILE_BYTES<HD>, keys + value_distance(p.kv, HD), valid);
        ptx::copy_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        // The newest token is in the last block of all, which comes last in its warp, too.
        if (first + stage * WARPS == (work.length - 1) / BLOCK_TOKENS) wait();
        copy_keys(stage, ring + stage * STAGE_BYTES<HD>);
        if (stage < STAGES - 1) copy_values(stage, ring + stage * STAGE_BYTES<HD>);
    }
    wait();
    u32 queries[TILES][HD / 16][2];
    load_queries<HD, TILES>(p, work, queries);
    // The stage at work, and the one before it.
    u32 stage = ring, free = ring + (STAGES - 1) * STAGE_BYTES<HD>;
#pragma unroll 1
    for (int index = 0; index < count; index++) {
        ptx::copy_async_wait<2 * STAGES - 2>();
        // All lanes' keys have landed, and all lanes have read the values that are filled next.
        __syncwarp();
        copy_values(index + STAGES - 1, free);
        float scores[TILES][4];
        score<HD, TILES>(stage, queries, scores);
        const int block = first + index * WARPS;
        if (block * BLOCK_TOKENS < work.first_token || (block + 1) * BLOCK_TOKENS > work.length)
            mask<TILES>(work, block, scores);
        soften<HD, TILES>(p.scale, scores, state);
        ptx::copy_async_wait<2 * STAGES - 2>();
        // The same of values, and of keys.
        __syncwarp();
        copy_keys(index + STAGES, stage);
        accumulate<HD, TILES>(stage + TILE_BYTES<HD>, scores, state);
        free = stage;
        stage = stage == ring + (STAGES - 1) * STAGE_BYTES<HD> ? ring : stage + STAGE_BYTES<HD>;
    }
}

/// The warps' results side by side in shared memory, where the rings were.
template <int HD, int TILES>
struct Exchange {
    static constexpr int HEADS = 8 * TILES;
    /// Four floats more than a row, so that the lanes of a store are in different banks.
    static constexpr int STRIDE = HD + 4;
    float out[WARPS][HEADS][STRIDE];
    float largest[WARPS][HEADS];
    float sum[WARPS][HEADS];
};

template <int HD, int TILES>
__device__ void put(Exchange<HD, TILES> &exchange, Softmax<HD, TILES> &state) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int head = t * 8 + q * 2 + h;
            float sum = state.sum[t][h];
#pragma unroll
            for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
            if (g == 0) {
                exchange.largest[warp][head] = state.largest[t][h];
                exchange.sum[warp][head] = sum;
            }
#pragma unroll
            for (int j = 0; j < HD / 16; j++) {
                exchange.out[warp][head][j * 16 + g] = state.out[t][j][h];
                exchange.out[warp][head][j * 16 + 8 + g] = state.out[t][j][h + 2];
            }
        }
    }
}

template <int HD, int TILES>
__device__ Merged merge_warps(const Exchange<HD, TILES> &exchange, int head, int place) {
    Merged merged{make_float4(0.0f, 0.0f, 0.0f, 0.0f), NO_SCORE, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        merged.largest = fmaxf(merged.largest, exchange.largest[w][head]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float factor = ptx::exp2_approx(exchange.largest[w][head] - merged.largest);
        add_scaled(merged, *reinterpret_cast<const float4 *>(&exchange.out[w][head][place]),
                   exchange.sum[w][head], factor);
    }
    return merged;
}

/// Merges the warps; with one split that is the answer, with more the last to arrive merges the
/// splits.
template <int HD, int TILES, int BARRIER>
__device__ void finish(const DecodeAttentionParams &p, const Work &work,
                       const Exchange<HD, TILES> &exchange) {
    constexpr int HEADS = 8 * TILES;
    __shared__ bool is_last;
    const int head_tiles = (p.kv.group + HEADS - 1) / HEADS;
    const int first_head = work.head_tile * HEADS, heads_here = min(HEADS, p.kv.group - first_head);
    const i64 first_row = static_cast<i64>(work.row) * p.kv.kv_heads * p.kv.group +
                          work.kv_head * p.kv.group + first_head;
    bf16 *out = p.out + first_row * HD;
    const i64 unit =
        (static_cast<i64>(work.row) * p.kv.kv_heads + work.kv_head) * head_tiles + work.head_tile;
    float *partial_out = p.partial_out + unit * p.splits * HEADS * HD;
    float *partial_sums = p.partial_sums + unit * p.splits * HEADS * 2;
    for (int i = threadIdx.x; i < heads_here * (HD / 4); i += THREADS) {
        const int head = i / (HD / 4), place = i % (HD / 4) * 4;
        const Merged merged = merge_warps<HD, TILES>(exchange, head, place);
        if (work.active_splits == 1) {
            store_normalised(out + head * HD + place, merged);
            continue;
        }
        *reinterpret_cast<float4 *>(partial_out + (work.split * HEADS + head) * HD + place) =
            merged.out;
        if (place == 0)
            *reinterpret_cast<float2 *>(partial_sums + (work.split * HEADS + head) * 2) =
                make_float2(merged.largest, merged.sum);
    }
    if (work.active_splits == 1) return;
    meet<BARRIER>();
    if (threadIdx.x == 0) {
        is_last = ptx::add_acq_rel(p.tile_counters + unit, 1) + 1 == work.active_splits;
        if (is_last) p.tile_counters[unit] = 0;
    }
    meet<BARRIER>();
    if (!is_last) return;
    for (int i = threadIdx.x; i < heads_here * (HD / 4); i += THREADS) {
        const int head = i / (HD / 4), place = i % (HD / 4) * 4;
        const float *of_head = partial_out + head * HD + place;
        store_normalised(out + head * HD + place,
                         merge_splits(of_head, HEADS * HD, partial_sums + head * 2, HEADS * 2,
                                      work.active_splits));
    }
}

/// A piece of attention: of a row, one of its columns (key/value heads times head tiles) and one of
/// its splits.
struct Piece {
    int split, column, row;
};

/// The work of a piece; false: there is none.
template <int TILES>
__device__ bool take(const DecodeAttentionParams &p, const Piece &piece, Work &work) {
    const int head_tiles = (p.kv.group + 8 * TILES - 1) / (8 * TILES);
    work.row = piece.row;
    work.split = piece.split;
    work.kv_head = piece.column / head_tiles;
    work.head_tile = piece.column % head_tiles;
    work.batch_idx = ptx::load_l2_word(p.batch_idx + work.row);
    const int position = ptx::load_l2_word(p.position + work.row);
    if (work.batch_idx < 0) return false;
    work.length = position + 1;
    work.first_token = oldest_token(p.kv, position);
    const int first = work.first_token / BLOCK_TOKENS, blocks = position / BLOCK_TOKENS + 1 - first;
    // A short context is not cut into pieces that cost more than they carry.
    work.active_splits = max(min(blocks / p.split_blocks, p.splits), 1);
    work.begin = first + blocks * work.split / work.active_splits;
    work.end = first + blocks * (work.split + 1) / work.active_splits;
    return work.split < work.active_splits;
}

/// Attention of one piece, by `THREADS` threads with `shared` for their rings and their exchange,
/// 256-byte aligned. `wait` returns when the queries are there, and the rows' own keys and values;
/// every thread calls it, perhaps twice.
template <int HD, int TILES, int BARRIER, class Wait>
__device__ __forceinline__ void attend(const DecodeAttentionParams &p, const Piece &piece,
                                       u8 *shared, const Wait &wait) {
    Work work;
    if (!take<TILES>(p, piece, work)) return wait();
    Softmax<HD, TILES> state;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int j = 0; j < HD / 16; j++)
            state.out[t][j][0] = state.out[t][j][1] = state.out[t][j][2] = state.out[t][j][3] =
                0.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            state.largest[t][h] = NO_SCORE;
            state.sum[t][h] = 0.0f;
        }
    }
    walk<HD, TILES>(p, work, shared, state, wait);
    meet<BARRIER>();
    auto &exchange = *reinterpret_cast<Exchange<HD, TILES> *>(shared);
    put<HD, TILES>(exchange, state);
    meet<BARRIER>();
    finish<HD, TILES, BARRIER>(p, work, exchange);
}

}  // namespace decode
