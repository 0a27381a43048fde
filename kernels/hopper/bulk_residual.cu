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
// arch    sm_90a
// launch  grid [that of skinny_*], block 288, shared: 3 stages of activations, sums, scales as
//         skinny_*; 16 KiB a stage of weights, and 128 bytes
// limit   bytes: n*k_padded*2 + rows*k*2 + rows*d*10
// reference runtime/tests/support/gemm.rs::residual
// why     skinny_* with weights by the copy engine: no thread that multiplies copies them; see
//         hopper/bulk.cuh
#include "hopper/bulk.cuh"

BULK_KERNEL(bulk_residual_8, Residual, 8, 4, 3, 3)
BULK_KERNEL(bulk_residual_16, Residual, 16, 5, 3, 2)
BULK_KERNEL(bulk_residual_32, Residual, 32, 4, 3, 2)
BULK_KERNEL(bulk_residual_64, Residual, 64, 8, 3, 1)
