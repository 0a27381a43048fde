// op      output projection of few listed rows: row scale, logits in f32
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [tiles * pieces], block 128, shared the rings: 4 KiB a step of weights, tokens*128
//         bytes a unit of activations, or tokens*528 bytes of sums; and the row scales
// limit   bytes: n*k_padded*2 + rows*(k*2 + n*4)
// reference runtime/tests/support/gemm.rs::logits
// why     weights stream through a ring of each warp, each piece of the depth by a block; see
//         common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_logits_8, Logits, 8, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_logits_16, Logits, 16, 10, 4, 20, 6, 3)
SKINNY_KERNEL(skinny_logits_32, Logits, 32, 8, 3, 20, 6, 3)
SKINNY_KERNEL(skinny_logits_64, Logits, 64, 7, 3, 14, 5, 3)
