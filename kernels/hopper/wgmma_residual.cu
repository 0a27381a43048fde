// op      O or down projection of many rows on Hopper: added to the residual stream, next operand,
//         sums of squares, tap
// params  WgmmaResidualParams
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
// launch  grid [at most multiprocessors, 1], in clusters [at most half, 2], block 384, shared
//         226 KiB: 6 or 4 stages, sums of 64 tokens, scales, barriers
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::residual
// why     copy engine and warpgroup products, weights of the same layout as registers; see
//         hopper/wgmma.cuh
#include "hopper/wgmma.cuh"

WGMMA_KERNEL(wgmma_residual_128, Residual, 128, 6)
WGMMA_KERNEL(wgmma_residual_256, Residual, 256, 4)
WGMMA_CLUSTER_KERNEL(wgmma_residual_cluster_256, Residual, 256, 4)
