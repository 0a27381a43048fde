// op      gate and up projection of many rows on Hopper: row scale, silu(gate) * up
// params  GroupSwigluParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with gate and up alternating by 8 rows, 16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// out     out [rows, ff] bf16, 16-byte aligned
// arch    sm_90a
// limit   flops: 2*rows*n*k
// twin    runtime/tests/cuda_gemm/twins.rs::swiglu
// why     copy engine and warpgroup products, weights of the same layout as registers; see common/group.cuh. Not yet run anywhere
#include "common/group.cuh"

GROUP_KERNEL(group_swiglu, Swiglu)
