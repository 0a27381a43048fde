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
// launch  grid [splits, kv_heads * head_tiles, rows], block 128, shared 768*hd bytes: 4 warps * 3
//         stages * K and V of 16 tokens
// limit   bytes: sum(min(context, window)) * kv_heads * hd * 4 + T*heads*hd*4
// reference runtime/tests/cuda_attention/reference.rs::attention
// why     Keys and values pass once per group of query heads. A warp is a pipeline of its own: it
//         takes every fourth 16-token block, a 3-stage cp.async ring of its own (8 KiB a stage at
//         hd 128), and a softmax of its own, so that nothing but warp barriers stands in the loop:
//         64 KiB are in flight per block of threads, 128 KiB per H200 multiprocessor with two.
//         Tokens are the 16 rows of mma.m16n8k16 and heads its 8 columns: half the instructions,
//         and half the accumulators, of the other way round at groups up to 8; the exponentials
//         turn by movmatrix. Block ids come 32 at a time, a batch ahead. Splits merge in the last
//         block to arrive, in split order: same bits every time.
#include "common/decode.cuh"

namespace {

constexpr int STAGES = 3;

extern __shared__ __align__(256) u8 shared_bytes[];

/// Grid: splits, key/value heads times head tiles, rows.
template <int HD, int TILES>
__device__ void attend(const DecodeAttentionParams &p) {
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    const decode::Piece piece = {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
                                 static_cast<int>(blockIdx.z)};
    decode::attend<HD, TILES, STAGES, 0>(p, piece, shared_bytes);
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
