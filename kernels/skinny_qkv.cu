// op      query, key and value projection of few rows: row scale, bias, head norms, RoPE,
//         append to the paged pool
// params  QkvParams
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
// arch    sm_80, sm_90a
// launch  grid [equal shares: up to 2 blocks a multiprocessor, 1 at 64 rows], block 256, shared
//         tokens*1556 bytes: 4 stages, sums, scales; at 32 rows tokens*1300, 3 stages; and 8 KiB a
//         stage of weights
// limit   bytes: n*k_padded*2 + rows*(k + n)*2
// reference runtime/tests/support/gemm.rs::qkv
// why     weights stream through a ring of each warp in equal shares over all
//         multiprocessors; see common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_qkv_8, Qkv, 8, 6, 4, 2)
SKINNY_KERNEL(skinny_qkv_16, Qkv, 16, 6, 4, 2)
SKINNY_KERNEL(skinny_qkv_32, Qkv, 32, 5, 3, 2)
SKINNY_KERNEL(skinny_qkv_64, Qkv, 64, 8, 4, 1)
