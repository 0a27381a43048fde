// op      gate and up projection of few rows: row scale, silu(gate) * up
// params  SwigluParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with gate and up alternating by 8 rows,
//         16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// out     out [rows, ff] bf16, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [tiles * pieces], block 128, shared the rings: 4 KiB a step of weights, tokens*128
//         bytes a unit of activations, or tokens*528 bytes of sums; and the row scales
// limit   bytes: n*k_padded*2 + rows*(k + ff)*2
// reference runtime/tests/support/gemm.rs::swiglu
// why     weights stream through a ring of each warp, each piece of the depth by a block; see
//         common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_swiglu_8, Swiglu, 8, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_swiglu_16, Swiglu, 16, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_swiglu_32, Swiglu, 32, 8, 3, 20, 6, 3)
SKINNY_KERNEL(skinny_swiglu_64, Swiglu, 64, 7, 3, 14, 5, 3)
