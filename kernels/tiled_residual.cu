// op      O or down projection of many rows: added to the residual stream, next operand, sums of
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
// launch  grid [tiles, or tiles*pieces], block 128 or 256 (tokens of a tile), shared 67 KiB (128
//         tokens) or 146 KiB (256)
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::residual
// why     weights of the same layout through shared memory by contiguous copies, activations
//         swizzled for ldmatrix; see common/tiled.cuh
#include "common/tiled.cuh"

TILED_KERNEL(tiled_residual_128, Residual, 128, 32, 4, 2)
TILED_KERNEL(tiled_residual_256, Residual, 256, 64, 3, 1)
