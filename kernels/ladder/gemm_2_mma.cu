// op      rung 2 of the matrix product: tensor cores, operands straight from global memory
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_80
// launch  grid [n/64, rows/8], block 128, shared 0
// limit   bytes: n*k_padded*2 for every 8 rows
// reference runtime/tests/support/gemm.rs::logits
// why     a lane's A registers are its 16 bytes of the weights, so a step is one load, two small
//         ones, and one mma for 16 features x 8 rows
#include "common/ptx.cuh"

/// Two neighbouring activations of a row; zeros beyond the matrix.
__device__ u32 pair(const GemmOperands &g, int source, int column) {
    if (source < 0 || column >= g.k) return 0;
    return *reinterpret_cast<const u32 *>(g.x + static_cast<i64>(source) * g.k + column);
}

extern "C" __global__ void __launch_bounds__(128) gemm_mma(const __grid_constant__ LogitsParams p) {
    const GemmOperands &g = p.gemm;
    const int lane = threadIdx.x % 32, tile = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32,
              first = blockIdx.y * 8;
    // The row whose activations this lane loads, and the two whose sums it gets.
    const int row = first + lane / 4, source = row >= g.rows ? -1
                                               : g.row_list  ? g.row_list[row]
                                                             : row;
    const uint4 *weights = reinterpret_cast<const uint4 *>(g.w) +
                           static_cast<i64>(tile) * (g.k_padded / 16) * 32 + lane;
    float sum[4] = {};
    for (int step = 0; step < g.k_padded / 16; step++) {
        const uint4 a = weights[step * 32];
        const int column = step * 16 + lane % 4 * 2;
        ptx::mma_bf16(sum, a.x, a.y, a.z, a.w, pair(g, source, column),
                      pair(g, source, column + 8));
    }
    for (int i = 0; i < 2; i++) {
        const int out = first + lane % 4 * 2 + i;
        if (out >= g.rows) break;
        const int from = g.row_list ? g.row_list[out] : out;
        float squares = 0.0f;
        for (int part = 0; part < p.scale.parts; part++)
            squares += p.scale.ss[static_cast<i64>(from) * p.scale.parts + part];
        const float scale = rsqrtf(squares / static_cast<float>(p.scale.width) + p.scale.eps);
        float *to = p.logits + static_cast<i64>(out) * g.n + tile * 16 + lane / 4;
        to[0] = sum[i] * scale;
        to[8] = sum[2 + i] * scale;
    }
}
