// op      query, key and value projection of many rows: row scale, bias, head norms, RoPE,
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
// launch  grid [tiles, or tiles*pieces], block 128 or 256 (tokens of a tile), shared 67 KiB (128
//         tokens) or 146 KiB (256)
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::qkv
// why     weights of the same layout through shared memory by contiguous copies, activations
//         swizzled for ldmatrix; see common/tiled.cuh
#include "common/tiled.cuh"

TILED_KERNEL(tiled_qkv_128, Qkv, 128, 32, 4, 2)
TILED_KERNEL(tiled_qkv_256, Qkv, 256, 64, 3, 1)
