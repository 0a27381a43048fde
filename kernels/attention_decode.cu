// op      attention of decode rows over the paged KV cache (flash decoding): softmax(q k^T /
//         sqrt(hd)) v, one pass over each key/value head
// params  DecodeAttentionParams
// in      q [T, heads, hd] bf16, row-major, 16-byte aligned
// in      kv.pool [block, layer, 2, kv_heads, 16, hd] bf16, block-major, 16-byte aligned
// in      kv.block_table [batch_slots, max_blocks] i32, row-major, 4-byte aligned
// in      position [T] i32, tokens, 4-byte aligned
// in      batch_idx [T] i32, -1 for padding, 4-byte aligned
// out     out [T, heads, hd] bf16, row-major, 16-byte aligned
// out     partial_out [T, kv_heads, head_tiles, splits, tile_heads, hd] f32, scratch, 16-byte
//         aligned
// out     partial_sums [T, kv_heads, head_tiles, splits, tile_heads, 2] f32, scratch, 8-byte
//         aligned
// out     tile_counters [T, kv_heads, head_tiles] u32, zero before and after, 4-byte aligned
// arch    sm_80, sm_90a
// launch  grid [splits, kv_heads * head_tiles, rows], block 128, shared 512*hd bytes, 768*hd on
//         sm_90a: 4 warps * 2 or 3 stages * K and V of 16 tokens; and 5376 bytes, 10752 for 16
//         heads: exponentials of two tiles of 64 tokens
// limit   bytes: sum(min(context, window)) * kv_heads * hd * 4 + T*heads*hd*4
// reference runtime/tests/cuda/attention/reference.rs::attention
// why     Keys and values pass once per group of query heads. Of a tile of four blocks of 16 tokens
//         each warp copies and scores one, by its own cp.async ring (8 KiB a stage at hd 128) whose
//         keys and values are waited for apart: a wait leaves all stages but one in flight, 64 KiB
//         of a multiprocessor on sm_80, 128 KiB on sm_90a, with two blocks on each. Outputs are
//         summed over the tokens in one chain, the same as in prompts (common/order.cuh), so each
//         warp has a quarter of the places of all four blocks, whose exponentials the warps
//         exchange: one barrier a tile.
//         Tokens are the 16 rows of mma.m16n8k16 and heads its 8 columns: half the instructions,
//         and half the accumulators, of the other way round at groups up to 8. Block ids come 32 at
//         a time, a batch ahead. Partitions merge in the last block to arrive, in their order.
#include "common/decode.cuh"

namespace {

extern __shared__ __align__(256) u8 shared_bytes[];

/// Grid: splits, key/value heads times head tiles, rows.
///
/// Reads before the wait are safe, as no kernel that may still run writes there. Those are this
/// step's products and attentions: each may let its successor begin before its own wait.
/// * batch_idx, position and block_table: apply_diffs wrote them, the step's head. It follows all
///   that was before it in the stream, as it does not overlap; and `embed`, behind it, waits for it
///   before it lets its successor begin. So it has ended when any later kernel begins.
/// * Keys and values of older tokens: products of earlier steps wrote them, which ended before
///   apply_diffs began, or copies of a swap, whose end the host saw before it launched the step.
///   The products of this step write the tokens at their rows' positions alone: a decode row's
///   newest one, whose block is read behind the wait, and those of other requests. Two conditions:
///   a request has one row or segment in a step, and no block is in two requests' tables.
/// They are read past L1, where lines of an earlier step could lie.
template <int HD, int TILES>
__device__ void attend(const DecodeAttentionParams &p) {
    ptx::launch_successor();
    const decode::Piece piece = {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                                 static_cast<int>(blockIdx.z)};
    decode::attend<HD, TILES>(p, piece, shared_bytes, [] { ptx::wait_for_predecessor(); });
}

}  // namespace

#define DECODE(NAME, HD, TILES)                                   \
    extern "C" __global__ void __launch_bounds__(decode::THREADS) \
        NAME(const __grid_constant__ DecodeAttentionParams p) {   \
        attend<HD, TILES>(p);                                     \
    }
DECODE(attention_decode_hd64_heads8, 64, 1)
DECODE(attention_decode_hd64_heads16, 64, 2)
DECODE(attention_decode_hd128_heads8, 128, 1)
DECODE(attention_decode_hd128_heads16, 128, 2)
