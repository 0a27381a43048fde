// op      attention of decode rows over the paged KV cache, second rung: a block of threads per row
//         and key/value head, a warp per query head
// params  DecodeAttentionParams
// in      q [T, heads, hd] bf16, row-major, 16-byte aligned
// in      kv.pool [block, layer, 2, kv_heads, 16, hd] bf16, block-major, 16-byte aligned
// in      kv.block_table [batch_slots, max_blocks] i32, row-major, 4-byte aligned
// in      position [T] i32, tokens, 4-byte aligned
// in      batch_idx [T] i32, -1 for padding, 4-byte aligned
// out     out [T, heads, hd] bf16, row-major, 16-byte aligned
// arch    sm_80
// launch  grid [kv_heads, rows], block 32*group, shared 64*hd bytes
// limit   bytes: sum(min(context, window)) * kv_heads * hd * 4 + T*heads*hd*4
// reference runtime/tests/cuda/attention/reference.rs::attention
// why     Adds to the first rung: a 16-token block comes to shared memory once for the whole group,
//         and the softmax moves by blocks, so its shuffles are shared by 16 tokens. Still missing,
//         and what the kernel one folder up adds: the copy of the next block runs while this one is
//         computed, tensor cores, no barrier among warps, and a long context cut over several
//         blocks of threads.
#include "common/paged.cuh"

namespace {

extern __shared__ __align__(16) bf16 shared_block[];

template <int HD>
__device__ void attend(const DecodeAttentionParams &p) {
    constexpr int EACH = HD / 32, TILE = BLOCK_TOKENS * HD;
    const int row = blockIdx.y, kv_head = blockIdx.x, lane = threadIdx.x % 32,
              head = kv_head * p.kv.group + threadIdx.x / 32;
    const int batch_idx = p.batch_idx[row], position = p.position[row];
    if (batch_idx < 0) return;
    const int *table = p.kv.block_table + static_cast<i64>(batch_idx) * p.kv.max_blocks;
    const bf16 *query = p.q + (static_cast<i64>(row) * p.kv.kv_heads * p.kv.group + head) * HD;
    const int oldest = oldest_token(p.kv, position);
    float out[EACH] = {}, largest = NO_SCORE, sum = 0.0f;
    for (int block = oldest / BLOCK_TOKENS; block <= position / BLOCK_TOKENS; block++) {
        const bf16 *keys = keys_of(p.kv, table[block], kv_head, HD),
                   *values = keys + value_distance(p.kv, HD);
        const int valid = min(position + 1 - block * BLOCK_TOKENS, BLOCK_TOKENS);
        __syncthreads();
        for (int i = threadIdx.x; i < valid * HD; i += blockDim.x) {
            shared_block[i] = keys[i];
            shared_block[TILE + i] = values[i];
        }
        __syncthreads();
        // A lane has half the places of one token; tokens outside are scored last and weigh
        // nothing.
        const int token = lane % BLOCK_TOKENS, at = block * BLOCK_TOKENS + token,
                  half = lane / BLOCK_TOKENS * (HD / 2);
        const bool attended = at >= oldest && token < valid;
        float score = 0.0f;
        for (int i = 0; attended && i < HD / 2; i++)
            score +=
                ptx::to_float(query[half + i]) * ptx::to_float(shared_block[token * HD + half + i]);
        score = (score + __shfl_xor_sync(~0u, score, 16)) * p.scale;
        if (!attended) score = NO_SCORE;
        float tile_max = score;
        for (int step = 8; step > 0; step /= 2)
            tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, step));
        const float before = largest;
        largest = fmaxf(largest, tile_max);
        const float decay = ptx::exp2_approx(before - largest),
                    weight = ptx::exp2_approx(score - largest);
        sum *= decay;
        for (int i = 0; i < EACH; i++) out[i] *= decay;
        for (int t = 0; t < valid; t++) {
            const float of_token = __shfl_sync(~0u, weight, t);
            sum += of_token;
            for (int i = 0; i < EACH; i++)
                out[i] += of_token * ptx::to_float(shared_block[TILE + t * HD + i * 32 + lane]);
        }
    }
    bf16 *to = p.out + (static_cast<i64>(row) * p.kv.kv_heads * p.kv.group + head) * HD + lane;
    for (int i = 0; i < EACH; i++) to[i * 32] = ptx::to_bf16(out[i] / sum);
}

}  // namespace

/// Grid: key/value heads, rows. A warp per head of the group.
extern "C" __global__ void __launch_bounds__(1024)
    attention_rung2_hd64(const __grid_constant__ DecodeAttentionParams p) {
    attend<64>(p);
}
extern "C" __global__ void __launch_bounds__(1024)
    attention_rung2_hd128(const __grid_constant__ DecodeAttentionParams p) {
    attend<128>(p);
}
