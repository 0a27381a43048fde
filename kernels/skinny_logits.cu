// op      output projection of few listed rows: row scale, logits in f32
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [equal shares: up to 2 blocks a multiprocessor, 1 at 64 rows], block 256, shared
//         tokens*1556 bytes: 4 stages, sums, scales; at 32 rows tokens*1300, 3 stages; and 8 KiB a
//         stage of weights
// limit   bytes: n*k_padded*2 + rows*(k*2 + n*4)
// reference runtime/tests/support/gemm.rs::logits
// why     weights stream through a ring of each warp in equal shares over all
//         multiprocessors; see common/skinny.cuh
#include "common/skinny.cuh"

SKINNY_KERNEL(skinny_logits_8, Logits, 8, 6, 4, 2)
SKINNY_KERNEL(skinny_logits_16, Logits, 16, 6, 4, 2)
SKINNY_KERNEL(skinny_logits_32, Logits, 32, 5, 3, 2)
SKINNY_KERNEL(skinny_logits_64, Logits, 64, 8, 4, 1)
