// op      gate and up projection of few rows: row scale, silu(gate) * up
// params  SwigluParams
// in      x [rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order with gate and up alternating by 8 rows,
//         16-byte aligned
// in      ss [rows, parts] f32, 4-byte aligned
// out     out [rows, ff] bf16, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [equal shares: up to 2 blocks a multiprocessor, 1 at 64 rows], block 256, shared
//         tokens*1556 bytes: 4 stages, sums, scales; at 32 rows tokens*1300, 3 stages; and 8 KiB a
//         stage of weights
// limit   bytes: n*k_padded*2 + rows*(k + ff)*2
// reference runtime/tests/support/gemm.rs::swiglu
// why     weights stream through a ring of each warp in equal shares over all
//         multiprocessors; see common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_swiglu_8, Swiglu, 8, 6, 4, 2)
SKINNY_KERNEL(skinny_swiglu_16, Swiglu, 16, 6, 4, 2)
SKINNY_KERNEL(skinny_swiglu_32, Swiglu, 32, 5, 3, 2)
SKINNY_KERNEL(skinny_swiglu_64, Swiglu, 64, 8, 4, 1)
