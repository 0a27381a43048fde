// op      query, key and value projection of many rows on Hopper: row scale, RoPE, append to the
//         paged pool
// params  WgmmaQkvParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with rotation pairs 8 rows apart,
//         16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// in      position [rows] i32, 4-byte aligned
// in      batch_idx [rows] i32, 4-byte aligned; -1: a padding row, which touches nothing
// in      block_table [batch_slots, max_blocks] i32, 4-byte aligned
// in      rope_freqs [head_dim/2] u64, 8-byte aligned
// in      terms.bias [(heads+2*kv_heads)*head_dim] bf16, 4-byte aligned; null: none
// in      terms.q_norm [head_dim] bf16, 4-byte aligned; null: no norms of heads; k_norm alike
// out     q [rows, heads, head_dim] bf16, 16-byte aligned
// out     kv_pool [blocks, layers, 2, kv_heads, 16, head_dim] bf16, 16-byte aligned
// arch    sm_90a
// launch  grid [at most multiprocessors, 1], in clusters [at most half, 2], block 384, shared
//         226 KiB: 6 or 4 stages, sums of 64 tokens, scales, barriers
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::qkv
// why     copy engine and warpgroup products, weights of the same layout as registers; see
//         hopper/wgmma.cuh
#include "hopper/wgmma.cuh"

WGMMA_KERNEL(wgmma_qkv_128, Qkv, 128, 6)
WGMMA_KERNEL(wgmma_qkv_256, Qkv, 256, 4)
WGMMA_CLUSTER_KERNEL(wgmma_qkv_cluster_256, Qkv, 256, 4)
