// op      O or down projection of few rows: added to the residual stream, next operand, sums of
//         squares, tap
// params  ResidualParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      h [rows, d] f32, 16-byte aligned
// in      gamma [d] bf16, 16-byte aligned
// in      tap_row [rows] i32, 4-byte aligned; -1 for rows that are not tapped
// out     h [rows, d] f32, 16-byte aligned
// out     x_next [rows, d] bf16, 16-byte aligned
// out     ss [rows, n/128] f32, 4-byte aligned
// out     tap [stage rows, d] bf16, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [tiles * pieces], block 128, shared the rings: 4 KiB a step of weights, tokens*128
//         bytes a unit of activations, or tokens*528 bytes of sums; and the row scales
// limit   bytes: n*k_padded*2 + rows*k*2 + rows*d*10
// reference runtime/tests/support/gemm.rs::residual
// why     weights stream through a ring of each warp, each piece of the depth by a block; see
//         common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_residual_8, Residual, 8, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_residual_16, Residual, 16, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_residual_32, Residual, 32, 8, 3, 20, 6, 3)
SKINNY_KERNEL(skinny_residual_64, Residual, 64, 7, 3, 14, 5, 3)
