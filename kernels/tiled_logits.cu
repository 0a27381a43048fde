// op      output projection of many listed rows: row scale, logits in f32
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [tiles, or tiles*pieces], block 128 or 256 (tokens of a tile), shared 67 KiB (128
//         tokens) or 146 KiB (256)
// limit   flops: 2*rows*n*k
// reference runtime/tests/support/gemm.rs::logits
// why     weights of the same layout through shared memory by contiguous copies, activations
//         swizzled for ldmatrix; see common/tiled.cuh
#include "common/tiled.cuh"

TILED_KERNEL(tiled_logits_128, Logits, 128, 32, 4, 2)
TILED_KERNEL(tiled_logits_256, Logits, 256, 64, 3, 1)
