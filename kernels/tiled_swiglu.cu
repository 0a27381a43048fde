// op      gate and up projection of many rows: row scale, silu(gate) * up
// params  SwigluParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with gate and up alternating by 8 rows,
//         16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// out     out [rows, ff] bf16, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [tiles, or tiles*pieces], block 128 or 256 (tokens of a tile), shared 67 KiB (128
//         tokens) or 146 KiB (256)
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::swiglu
// why     weights of the same layout through shared memory by contiguous copies, activations
//         swizzled for ldmatrix; see common/tiled.cuh
#include "common/tiled.cuh"

TILED_KERNEL(tiled_swiglu_128, Swiglu, 128, 32, 4, 2)
TILED_KERNEL(tiled_swiglu_256, Swiglu, 256, 64, 3, 1)
