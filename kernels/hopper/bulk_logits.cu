// op      output projection of few listed rows: row scale, logits in f32
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_90a
// launch  grid [that of skinny_*], block 288, shared: 3 stages of activations, sums, scales as
//         skinny_*; 16 KiB a stage of weights, and 128 bytes
// limit   bytes: n*k_padded*2 + rows*(k*2 + n*4)
// reference runtime/tests/support/gemm.rs::logits
// why     skinny_* with weights by the copy engine: no thread that multiplies copies them; see
//         hopper/bulk.cuh
#include "hopper/bulk.cuh"

BULK_KERNEL(bulk_logits_8, Logits, 8, 4, 3, 3)
BULK_KERNEL(bulk_logits_16, Logits, 16, 5, 3, 2)
BULK_KERNEL(bulk_logits_32, Logits, 32, 4, 3, 2)
BULK_KERNEL(bulk_logits_64, Logits, 64, 8, 3, 1)
