// op      rung 1 of the matrix product: one thread an output, one product at a time
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_80
// launch  grid [n/128, rows], block 128, shared 0
// limit   bytes: rows*n*k_padded*2, each row reads all weights again
// reference runtime/tests/support/gemm.rs::logits
// why     the meaning of the product and of the fragment order, in as few lines as it takes
#include "common/ptx.cuh"

/// Weight [feature, column] where the fragment order has it: the tile, the lane that holds it, its
/// place among the lane's eight.
__device__ float weight(const GemmOperands &g, int feature, int column) {
    const int row = feature % 16, in_step = column % 16;
    const i64 tile = static_cast<i64>(feature / 16) * (g.k_padded / 16) + column / 16;
    const int lane = row % 8 * 4 + in_step % 8 / 2,
              element = in_step / 8 * 4 + row / 8 * 2 + column % 2;
    return ptx::to_float(g.w[(tile * 32 + lane) * 8 + element]);
}

extern "C" __global__ void __launch_bounds__(128)
    gemm_naive(const __grid_constant__ LogitsParams p) {
    const GemmOperands &g = p.gemm;
    const int feature = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    const int source = g.row_list ? g.row_list[row] : row;
    float squares = 0.0f, sum = 0.0f;
    for (int part = 0; part < p.scale.parts; part++)
        squares += p.scale.ss[static_cast<i64>(source) * p.scale.parts + part];
    for (int column = 0; column < g.k; column++)
        sum += weight(g, feature, column) *
               ptx::to_float(g.x[static_cast<i64>(source) * g.k + column]);
    const float scale = rsqrtf(squares / static_cast<float>(p.scale.width) + p.scale.eps);
    p.logits[static_cast<i64>(row) * g.n + feature] = sum * scale;
}
