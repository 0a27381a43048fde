// Flash decoding over the paged KV cache (split-K over the context, GQA packing: the query heads of
// a group share one pass), a piece of it at a time: the body of attention_decode.cu and of the
// attention stage of decode_megakernel.cu.
//
// Keys and values pass once per group of query heads. Four blocks of 16 tokens are a tile: a warp
// copies and scores one of these, with its own cp.async ring, and sums a quarter of the output
// places over all four, in the one order of attention (order.cuh). A block of threads has one
// partition of a row's context, and the last to arrive adds all; or it has all partitions.
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

/// The piece that the threads compute: tokens `first_token..length` of a request, of these blocks
/// `begin..end`.
struct Work {
    int row, batch_idx, kv_head, head_tile, split, active_splits;
    int first_token, length, begin, end;
};

/// Bytes of the keys, or values, of a block in a warp's ring, and of a stage: keys, then values.
template <int HD>
constexpr int TILE_BYTES = BLOCK_TOKENS * HD * 2;
template <int HD>
constexpr int STAGE_BYTES = 2 * TILE_BYTES<HD>;

/// The ids of a warp's blocks, every fourth from `first` on, 32 at a time, one batch ahead. Blocks
/// outside of `begin..end` are not looked up.
struct BlockIds {
    const int *table;
    int first, begin, end;
    int now, next;

    __device__ int fetch(int batch) const {
        const int block = first + (batch * 32 + threadIdx.x % 32) * WARPS;
        return block >= begin && block < end ? ptx::load_l2_word(table + block) : 0;
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

/// Output places of a warp, in tiles of 16.
template <int HD>
constexpr int PLACES = HD / 16 / WARPS;
/// Shared memory of a block: the warps' rings, then exponentials of two tiles.
template <int HD>
constexpr int RING_BYTES = WARPS * STAGES * STAGE_BYTES<HD>;

/// The loop over the work's tiles. Keys and values are groups of copies of their own: at the wait
/// for the keys of a block, its values and the STAGES - 1 blocks behind it, but for the last one's
/// values, stay in flight. Older tokens than the newest are asked for before `wait`.
template <int HD, int TILES, class Wait>
__device__ void walk(const DecodeAttentionParams &p, const Work &work, u8 *shared,
                     Softmax<PLACES<HD>, TILES> &state, const Wait &wait) {
    static_assert(WARPS == Exponentials<TILES>::BLOCKS, "a block a warp");
    constexpr int OWN_BYTES = STAGES * STAGE_BYTES<HD>;
    const int warp = threadIdx.x / 32;
    const int first_tile = work.begin / WARPS, count = (work.end + WARPS - 1) / WARPS - first_tile,
              first = first_tile * WARPS + warp;
    const u32 rings = ptx::shared_address(shared), ring = rings + warp * OWN_BYTES;
    auto *exponentials = reinterpret_cast<Exponentials<TILES> *>(shared + RING_BYTES<HD>);
    BlockIds ids{p.kv.block_table + static_cast<i64>(work.batch_idx) * p.kv.max_blocks, first,
                 work.begin, work.end, 0, 0};
    ids.start();
    const auto is_there = [&](int index) {
        const int block = first + index * WARPS;
        return block >= work.begin && block < work.end;
    };
    // Keys of the block that was asked for last, and its tokens from there on.
    const bf16 *keys = nullptr;
    int valid = 0;
    // An empty group keeps the count of groups that the waits rely on.
    const auto copy_keys = [&](int index, u32 stage) {
        if (is_there(index)) {
            keys = keys_of(p.kv, ids.at(index), work.kv_head, HD);
            valid = work.length - (first + index * WARPS) * BLOCK_TOKENS;
            copy_tile<HD>(ring + stage, keys, valid);
        }
        ptx::copy_async_commit();
    };
    const auto copy_values = [&](int index, u32 stage) {
        if (is_there(index))
            copy_tile<HD>(ring + stage + TILE_BYTES<HD>, keys + value_distance(p.kv, HD), valid);
        ptx::copy_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        // The newest token is in the last block of all, which comes last in its warp, too.
        if (first + stage * WARPS == (work.length - 1) / BLOCK_TOKENS) wait();
        copy_keys(stage, stage * STAGE_BYTES<HD>);
        if (stage < STAGES - 1) copy_values(stage, stage * STAGE_BYTES<HD>);
    }
    wait();
    u32 queries[TILES][HD / 16][2];
    load_queries<HD, TILES>(p, work, queries);
    // The stage at work, and the one before it, from the beginning of a ring.
    u32 stage = 0, free = (STAGES - 1) * STAGE_BYTES<HD>;
#pragma unroll 1
    for (int index = 0; index < count; index++) {
        Exponentials<TILES> &of_tile = exponentials[index % 2];
        ptx::copy_async_wait<2 * STAGES - 2>();
        // All lanes' keys have landed.
        __syncwarp();
        if (is_there(index)) {
            float scores[TILES][4];
            score<HD, TILES>(ring + stage, queries, scores);
            const int block = first + index * WARPS;
            if (block * BLOCK_TOKENS < work.first_token || (block + 1) * BLOCK_TOKENS > work.length)
                mask<TILES>(work, block, scores);
            put<TILES>(p.scale, scores, of_tile);
        }
        ptx::copy_async_wait<2 * STAGES - 3>();
        // All warps' values have landed, and exponentials are there; all are done with the values
        // that are filled next, and with the exponentials of the tile before the last.
        __syncthreads();
        copy_values(index + STAGES - 1, free);
        copy_keys(index + STAGES, stage);
        const int tile = first_tile + index;
        state.template accumulate<HD>(
            of_tile, work.begin - tile * WARPS, work.end - tile * WARPS,
            [&](int block) { return rings + block * OWN_BYTES + stage + TILE_BYTES<HD>; });
        if (index + 1 < count && order::begins_partition((tile + 1) * (WARPS * BLOCK_TOKENS)))
            state.end_partition();
        free = stage;
        stage = stage == (STAGES - 1) * STAGE_BYTES<HD> ? 0 : stage + STAGE_BYTES<HD>;
    }
    state.end_partition();
}

/// The warps' results side by side in shared memory, where the rings were.
template <int HD, int TILES>
struct Exchange {
    static constexpr int HEADS = 8 * TILES;
    /// Four floats more than a row, so that the lanes of a store are in different banks.
    static constexpr int STRIDE = HD + 4;
    float out[HEADS][STRIDE];
    float reference[HEADS];
    float sum[HEADS];
};

template <int HD, int TILES>
__device__ void put(Exchange<HD, TILES> &exchange, const Softmax<PLACES<HD>, TILES> &state) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (warp == 0 && q == 0) {
            exchange.reference[t * 8 + g] = state.total_reference[t];
            exchange.sum[t * 8 + g] = state.total_sum[t];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float *row = exchange.out[t * 8 + q * 2 + h];
#pragma unroll
            for (int j = 0; j < PLACES<HD>; j++) {
                const int place = (warp * PLACES<HD> + j) * 16 + g;
                row[place] = state.total[t][j][h];
                row[place + 8] = state.total[t][j][h + 2];
            }
        }
    }
}

/// Stores a piece; if it is a whole row that is the answer, else the last to arrive adds the
/// partitions.
template <int HD, int TILES>
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
        const Merged merged = {*reinterpret_cast<const float4 *>(&exchange.out[head][place]),
                               exchange.reference[head], exchange.sum[head]};
        if (work.active_splits == 1) {
            store_normalised(out + head * HD + place, merged);
            continue;
        }
        *reinterpret_cast<float4 *>(partial_out + (work.split * HEADS + head) * HD + place) =
            merged.out;
        if (place == 0)
            *reinterpret_cast<float2 *>(partial_sums + (work.split * HEADS + head) * 2) =
                make_float2(merged.reference, merged.sum);
    }
    if (work.active_splits == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = ptx::add_acq_rel(p.tile_counters + unit, 1) + 1 == work.active_splits;
        if (is_last) p.tile_counters[unit] = 0;
    }
    __syncthreads();
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
    work.begin = work.first_token / BLOCK_TOKENS;
    work.end = position / BLOCK_TOKENS + 1;
    const int first = order::partition_of(work.first_token),
              partitions = order::partition_of(position) + 1 - first;
    // A context of more partitions than there is room for has one block.
    work.active_splits = partitions <= p.splits ? partitions : 1;
    if (work.active_splits > 1) {
        const int partition = first + work.split;
        work.begin = max(work.begin, order::begin_of(partition) / BLOCK_TOKENS);
        work.end = min(work.end, order::begin_of(partition + 1) / BLOCK_TOKENS);
    }
    return work.split < work.active_splits;
}

/// Attention of one piece, by `THREADS` threads with `shared` for their rings and exponentials,
/// 256-byte aligned. `wait` returns when the queries are there, and the rows' own keys and values;
/// every thread calls it, perhaps twice.
template <int HD, int TILES, class Wait>
__device__ __forceinline__ void attend(const DecodeAttentionParams &p, const Piece &piece,
                                       u8 *shared, const Wait &wait) {
    Work work;
    if (!take<TILES>(p, piece, work)) return wait();
    Softmax<PLACES<HD>, TILES> state;
    state.start();
    walk<HD, TILES>(p, work, shared, state, wait);
    __syncthreads();
    auto &exchange = *reinterpret_cast<Exchange<HD, TILES> *>(shared);
    put<HD, TILES>(exchange, state);
    __syncthreads();
    finish<HD, TILES>(p, work, exchange);
}

}  // namespace decode
