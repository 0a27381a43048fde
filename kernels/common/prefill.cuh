// Prefill attention, by mma.sync and by wgmma: tiles, partitions, masks, what exponentials are
// relative to. A tile is 128 queries of a segment, a query being a row and a head of the group that
// shares a key/value head (GQA packing). Its context is summed in partitions (order.cuh). A block
// has all of a tile's, one after the other, or tiles with a long context are cut (split-KV, as in
// FlashDecoding): a block a partition, which attention_merge.cu adds.
#pragma once
#include "common/paged.cuh"

namespace prefill {

/// Queries of a tile.
constexpr int QUERIES = 128;

/// A tile of one key/value head: queries `first..count` (at most QUERIES) of a segment, over tokens
/// `oldest..end`.
struct Work {
    int first_row, batch_idx, context, kv_head;
    int first, count;
    /// The first token that any query attends to, rounded down to a block; one beyond the last. Of
    /// a partition: its own.
    int oldest, end;
    /// The last query's position.
    int newest;
    /// Which part of a cut tile this is, among all; -1: a whole tile.
    int part;
};

/// A row is `group` queries. A division: not for the loop over unmasked tiles.
__device__ __forceinline__ int row_of(const PrefillAttentionParams &p, int query) {
    return query / p.kv.group;
}

/// Elements before this query's head in q and out.
__device__ __forceinline__ i64 head_offset(const PrefillAttentionParams &p, const Work &work,
                                           int query, int head_dim) {
    const int row = row_of(p, query), head = work.kv_head * p.kv.group + query - row * p.kv.group;
    return (static_cast<i64>(work.first_row + row) * p.kv.kv_heads * p.kv.group + head) * head_dim;
}

/// Looks up tile `index`. False: nothing to do.
__device__ __forceinline__ bool take(const PrefillAttentionParams &p, int index, int kv_head,
                                     Work &work) {
    const int2 tile = reinterpret_cast<const int2 *>(p.tiles)[index];
    if (tile.x < 0) return false;
    const int4 segment = reinterpret_cast<const int4 *>(p.segments)[tile.x];
    work.first_row = segment.x;
    work.batch_idx = segment.z;
    work.context = segment.w;
    work.kv_head = kv_head;
    work.first = tile.y;
    work.count = min(segment.y * p.kv.group, tile.y + QUERIES);
    work.oldest =
        oldest_token(p.kv, segment.w + row_of(p, work.first)) / BLOCK_TOKENS * BLOCK_TOKENS;
    work.end = segment.w + row_of(p, work.count - 1) + 1;
    work.newest = work.end - 1;
    work.part = -1;
    return segment.z >= 0;
}

/// Number of a tile's partitions. With a window it may have fewer than the planner counted.
__device__ __forceinline__ int partitions_of(const Work &work) {
    return order::partition_of(work.end - 1) + 1 - order::partition_of(work.oldest);
}

/// Part of the first partition of a cut tile.
__device__ __forceinline__ int first_part(const PrefillAttentionParams &p, int tile, int kv_head) {
    return (tile * p.kv.kv_heads + kv_head) * p.splits;
}

/// `work` cut to the partition that begins at `oldest`, or in which that is.
__device__ __forceinline__ Work partition_from(const Work &work, int oldest) {
    Work part = work;
    part.oldest = oldest;
    part.end = min(work.end, order::end_of(oldest));
    return part;
}

/// Looks up piece `index` of a launch in which tiles are cut: `splits` of each cut tile, then the
/// others. False: nothing to do.
__device__ __forceinline__ bool take_piece(const PrefillAttentionParams &p, int index, int kv_head,
                                           Work &work) {
    const int cut_pieces = p.cut_tiles * p.splits;
    if (index >= cut_pieces)
        return take(p, index - cut_pieces + p.cut_tiles, kv_head, work);
    const int tile = index / p.splits, split = index - tile * p.splits;
    if (!take(p, tile, kv_head, work)) return false;
    const bool is_there = split < partitions_of(work);
    const int begin = order::begin_of(order::partition_of(work.oldest) + split);
    work = partition_from(work, max(work.oldest, begin));
    work.part = first_part(p, tile, kv_head) + split;
    return is_there;
}

/// Place of a query in part `part` of a cut tile, or in the totals of a block: its outputs.
template <int HD>
__device__ __forceinline__ float *part_out(const PrefillAttentionParams &p, int part, int query) {
    return p.partial_out + (static_cast<i64>(part) * QUERIES + query) * HD;
}
__device__ __forceinline__ float *part_sums(const PrefillAttentionParams &p, int part, int query) {
    return p.partial_sums + (static_cast<i64>(part) * QUERIES + query) * 2;
}

/// Tokens that a query sees, counted from some token on.
struct Visible {
    int newest, window;
    __device__ __forceinline__ bool has(int token) const {
        return token <= newest && newest - token < window;
    }
};

/// Tokens that a query sees, counted from token `first` on. A query beyond the last sees what the
/// last one does.
__device__ __forceinline__ Visible visible_to(const PrefillAttentionParams &p, const Work &work,
                                              int query, int first) {
    const int position = work.context + row_of(p, min(query, work.count - 1));
    return {position - first, p.kv.window > 0 ? p.kv.window : 0x7fffffff};
}

/// Raises what a row's exponentials are relative to, by the scores on the grid of a tile: four
/// neighbouring lanes have a `tile_max` of a part each (online softmax). Returns the factor of what
/// was summed before.
__device__ __forceinline__ float raise(float &reference, float tile_max) {
    tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, 1));
    tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, 2));
    const float before = reference;
    reference = fmaxf(before, order::reference_of(tile_max));
    return order::exponential(before, reference);
}

/// Adds a partition of two rows of a thread, 8 apart, to those before it, where a block has all of
/// a tile's. `references` and `sums` of the rows and `QUADS` times four outputs, two of each row,
/// are the partition's, then those of all up to it. `kept` and `total`, `stride` apart, are where
/// they are between partitions.
template <int QUADS>
__device__ __forceinline__ void fold(float2 *kept, float4 *total, int stride, float *references,
                                     float *sums, float *out, bool is_first, bool is_last) {
    float before[2], now[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (is_first) continue;
        const float2 earlier = ptx::load_l2_pair(reinterpret_cast<const float *>(kept + r * 8));
        const float all = fmaxf(earlier.x, references[r]);
        before[r] = order::exponential(earlier.x, all);
        now[r] = order::exponential(references[r], all);
        sums[r] = __fadd_rn(earlier.y * before[r], sums[r] * now[r]);
        references[r] = all;
    }
    // The four lanes of a row read before one writes.
    __syncwarp();
    if (!is_last && threadIdx.x % 4 == 0) {
        kept[0] = make_float2(references[0], sums[0]);
        kept[8] = make_float2(references[1], sums[1]);
    }
    __syncwarp();
    if (is_first) {
#pragma unroll
        for (int i = 0; i < QUADS; i++)
            total[i * stride] =
                make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const float4 earlier = ptx::load_l2(reinterpret_cast<const float *>(total + i * stride));
        out[4 * i] = __fadd_rn(earlier.x * before[0], out[4 * i] * now[0]);
        out[4 * i + 1] = __fadd_rn(earlier.y * before[0], out[4 * i + 1] * now[0]);
        out[4 * i + 2] = __fadd_rn(earlier.z * before[1], out[4 * i + 2] * now[1]);
        out[4 * i + 3] = __fadd_rn(earlier.w * before[1], out[4 * i + 3] * now[1]);
        if (!is_last)
            total[i * stride] =
                make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
    }
}

}  // namespace prefill
