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
// launch  grid [tiles * pieces], block 128, shared the rings: 4 KiB a step of weights, tokens*128
//         bytes a unit of activations, or tokens*528 bytes of sums; and the row scales
// limit   bytes: n*k_padded*2 + rows*(k + n)*2
// reference runtime/tests/support/gemm.rs::qkv
// why     weights stream through a ring of each warp, each piece of the depth by a block; see
//         common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_qkv_8, Qkv, 8, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_qkv_16, Qkv, 16, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_qkv_32, Qkv, 32, 8, 3, 20, 6, 3)
SKINNY_KERNEL(skinny_qkv_64, Qkv, 64, 7, 3, 14, 5, 3)
