// op      gate and up projection of few rows: row scale, silu(gate) * up
// params  SwigluParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with gate and up alternating by 8 rows,
//         16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// out     out [rows, ff] bf16, 16-byte aligned
// arch    sm_90a
// launch  grid [that of skinny_*], block 288, shared: 3 stages of activations, sums, scales as
//         skinny_*; 16 KiB a stage of weights, and 128 bytes
// limit   bytes: n*k_padded*2 + rows*(k + ff)*2
// reference runtime/tests/support/gemm.rs::swiglu
// why     skinny_* with weights by the copy engine: no thread that multiplies copies them; see
//         hopper/bulk.cuh
#include "hopper/bulk.cuh"

BULK_KERNEL(bulk_swiglu_8, Swiglu, 8, 4, 3, 3)
BULK_KERNEL(bulk_swiglu_16, Swiglu, 16, 5, 3, 2)
BULK_KERNEL(bulk_swiglu_32, Swiglu, 32, 4, 3, 2)
BULK_KERNEL(bulk_swiglu_64, Swiglu, 64, 8, 3, 1)
