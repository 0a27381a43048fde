// op      attention of decode rows over the paged KV cache, first rung: a warp per row and query
//         head
// params  DecodeAttentionParams
// in      q [T, heads, hd] bf16, row-major, 16-byte aligned
// in      kv.pool [block, layer, 2, kv_heads, 16, hd] bf16, block-major, 16-byte aligned
// in      kv.block_table [batch_slots, max_blocks] i32, row-major, 4-byte aligned
// in      position [T] i32, tokens, 4-byte aligned
// in      batch_idx [T] i32, -1 for padding, 4-byte aligned
// out     out [T, heads, hd] bf16, row-major, 16-byte aligned
// arch    sm_80
// launch  grid [heads, rows], block 32, shared 0
// limit   bytes: sum(min(context, window)) * heads * hd * 4 + T*heads*hd*4
// reference runtime/tests/cuda/attention/reference.rs::attention
// why     The definition, with the online softmax as its one idea: token after token, nothing kept
//         but a maximum, a sum and a row. What it costs: keys and values pass once per query head
//         instead of once per group, each token waits for five shuffles, and one warp per head
//         leaves a long context to few threads. A prefill row is a row like any other here, so it
//         holds the prefill kernel against itself too.
#include "common/paged.cuh"

namespace {

template <int HD>
__device__ void attend(const DecodeAttentionParams &p) {
    constexpr int EACH = HD / 32;
    const int row = blockIdx.y, head = blockIdx.x, lane = threadIdx.x,
              heads = p.kv.kv_heads * p.kv.group;
    const int batch_idx = p.batch_idx[row], position = p.position[row];
    if (batch_idx < 0) return;
    const int *table = p.kv.block_table + static_cast<i64>(batch_idx) * p.kv.max_blocks;
    const i64 at = (static_cast<i64>(row) * heads + head) * HD + lane;
    float query[EACH], out[EACH] = {}, largest = NO_SCORE, sum = 0.0f;
    for (int i = 0; i < EACH; i++) query[i] = ptx::to_float(p.q[at + i * 32]);
    for (int token = oldest_token(p.kv, position); token <= position; token++) {
        const bf16 *key = keys_of(p.kv, table[token / BLOCK_TOKENS], head / p.kv.group, HD) +
                          token % BLOCK_TOKENS * HD + lane;
        const bf16 *value = key + value_distance(p.kv, HD);
        float score = 0.0f;
        for (int i = 0; i < EACH; i++) score += query[i] * ptx::to_float(key[i * 32]);
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
        const float before = largest;
        largest = fmaxf(largest, score * p.scale);
        const float decay = ptx::exp2_approx(before - largest),
                    weight = ptx::exp2_approx(score * p.scale - largest);
        sum = sum * decay + weight;
        for (int i = 0; i < EACH; i++)
            out[i] = out[i] * decay + weight * ptx::to_float(value[i * 32]);
    }
    for (int i = 0; i < EACH; i++) p.out[at + i * 32] = ptx::to_bf16(out[i] / sum);
}

}  // namespace

/// Grid: query heads, rows.
extern "C" __global__ void __launch_bounds__(32)
    attention_rung1_hd64(const __grid_constant__ DecodeAttentionParams p) {
    attend<64>(p);
}
extern "C" __global__ void __launch_bounds__(32)
    attention_rung1_hd128(const __grid_constant__ DecodeAttentionParams p) {
    attend<128>(p);
}
