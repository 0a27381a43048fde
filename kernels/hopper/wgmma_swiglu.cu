// op      gate and up projection of many rows on Hopper: row scale, silu(gate) * up
// params  WgmmaSwigluParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with gate and up alternating by 8 rows,
//         16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// out     out [rows, ff] bf16, 16-byte aligned
// arch    sm_90a
// launch  grid [at most multiprocessors, 1], in clusters [at most half, 2], block 384, shared
//         226 KiB: 6 or 4 stages, sums of 64 tokens, scales, barriers
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::swiglu
// why     copy engine and warpgroup products, weights of the same layout as registers; see
//         hopper/wgmma.cuh
#include "hopper/wgmma.cuh"

WGMMA_KERNEL(wgmma_swiglu_128, Swiglu, 128, 6)
WGMMA_KERNEL(wgmma_swiglu_256, Swiglu, 256, 4)
WGMMA_CLUSTER_KERNEL(wgmma_swiglu_cluster_256, Swiglu, 256, 4)
