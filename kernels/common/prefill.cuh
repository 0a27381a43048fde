// Prefill attention, by mma.sync and by wgmma: tiles, splits, masks, the reference of online
// softmax. A tile is 128 queries of a segment, a query being a row and a head of the group that
// shares a key/value head (GQA packing). Tiles with a long context may be cut (split-KV, as in
// FlashDecoding): blocks share its tokens, and attention_merge.cu adds their parts.
#pragma once
#include "common/paged.cuh"

namespace prefill {

/// Queries of a tile.
constexpr int QUERIES = 128;
/// Splits begin and end at multiples of so many tokens: whole tiles of tokens of either kernel.
constexpr int SPLIT_UNIT = 64;

/// A tile of one key/value head: queries `first..count` (at most QUERIES) of a segment, over tokens
/// `oldest..end`.
struct Work {
    int first_row, batch_idx, context, kv_head;
    int first, count;
    /// The first token that any query attends to, rounded down to a block; one beyond the last. Of
    /// a split: its own.
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

/// Splits of a cut tile, and split `split` of it as the first unit and the one behind the last.
/// With a window a tile may have fewer splits than the planner counted.
struct Cut {
    int splits, begin, end;
};
__device__ __forceinline__ Cut cut_of(const PrefillAttentionParams &p, const Work &work,
                                      int split) {
    const int first = work.oldest / SPLIT_UNIT,
              units = (work.end + SPLIT_UNIT - 1) / SPLIT_UNIT - first,
              splits = (units + p.split_units - 1) / p.split_units;
    return {splits, first + units * split / splits, first + units * (split + 1) / splits};
}

/// Part of the first split of a cut tile.
__device__ __forceinline__ int first_part(const PrefillAttentionParams &p, int tile, int kv_head) {
    return (tile * p.kv.kv_heads + kv_head) * p.splits;
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
    const Cut cut = cut_of(p, work, split);
    work.part = first_part(p, tile, kv_head) + split;
    work.oldest = max(work.oldest, cut.begin * SPLIT_UNIT);
    work.end = min(work.end, cut.end * SPLIT_UNIT);
    return split < cut.splits;
}

/// Where a cut tile's query has its part: outputs, and the largest score with the sum.
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

/// Value that a row's exponentials are relative to, and the factor of the earlier ones.
struct Reference {
    float value, decay;
    bool grew;
};

/// Raises a row's `largest` score, times scale, by those of a tile: four
/// neighbouring lanes have a `tile_max` of a part each (online softmax).
__device__ __forceinline__ Reference raise(float &largest, float tile_max, float scale) {
    tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, 1));
    tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, 2));
    const float before = largest;
    largest = fmaxf(before, tile_max * scale);
    // With a window, a row's first tiles may hold nothing for it: then everything is zero relative
    // to anything.
    const float value = largest == NO_SCORE ? 0.0f : largest;
    return {value, ptx::exp2_approx(before - value), largest > before};
}

}  // namespace prefill
