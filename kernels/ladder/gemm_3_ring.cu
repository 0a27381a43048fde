// op      rung 3 of the matrix product: loads run ahead of the products
// params  LogitsParams
// in      x [source rows, k] bf16, row-major, 16-byte aligned
// in      w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// in      row_list [rows] i32, 4-byte aligned
// in      ss [source rows, parts] f32, 4-byte aligned
// out     logits [rows, n] f32, 16-byte aligned
// arch    sm_80
// launch  grid [n/128, rows/8], block 256, shared static
// limit   bytes: n*k_padded*2 for every 8 rows
// reference runtime/tests/support/gemm.rs::logits
// why     memory is far away: eight steps of weights are in flight in registers, activations in two
//         stages of shared memory that all warps read. What skinny.cuh adds: pieces of K for
//         blocks of their own, so that few tiles fill the chip, more rows a tile, the other
//         epilogues.
#include "common/epilogue.cuh"
#include "common/ptx.cuh"

namespace {

constexpr int THREADS = 256, TOKENS = 8, DEPTH = 128, STEPS = DEPTH / 16;

/// Byte of a chunk of 16 bytes in a stage [8][128]: the same chunk of eight rows falls on different
/// banks.
__device__ u32 swizzled(int row, int chunk) { return row * (DEPTH * 2) + ((chunk ^ row) * 16); }

/// Starts the copy of 8 rows x 128 columns; half of the threads have a chunk each.
__device__ void copy(const GemmOperands &g, int first, int unit, u32 stage) {
    const int row = threadIdx.x / 16, chunk = threadIdx.x % 16, column = unit * DEPTH + chunk * 8;
    if (row < TOKENS) {
        const bool inside = first + row < g.rows && column < g.k;
        const i64 source = inside ? (g.row_list ? g.row_list[first + row] : first + row) : 0;
        ptx::copy_async_or_zero(stage + swizzled(row, chunk),
                                g.x + source * g.k + (inside ? column : 0), inside ? 16 : 0);
    }
    ptx::copy_async_commit();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_ring(const __grid_constant__ LogitsParams p) {
    __shared__ __align__(128) unsigned char stages[2][TOKENS * DEPTH * 2];
    __shared__ float sums[TOKENS * split_k::ROW];
    __shared__ float scales[TOKENS];
    const GemmOperands &g = p.gemm;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.y * TOKENS,
              units = g.k_padded / DEPTH;
    const u64 policy = ptx::evict_first_policy();
    const uint4 *weights = reinterpret_cast<const uint4 *>(g.w) +
                           static_cast<i64>(blockIdx.x * 8 + warp) * (g.k_padded / 16) * 32 + lane;

    uint4 a[STEPS];
    for (int step = 0; step < STEPS; step++)
        a[step] = ptx::load_stream(weights + step * 32, policy);
    copy(g, first, 0, ptx::shared_address(stages[0]));
    epilogue::row_scales<TOKENS, THREADS>(g, p.scale, first, scales);

    float sum[4] = {};
    for (int unit = 0; unit < units; unit++) {
        ptx::copy_async_wait<0>();
        __syncthreads();
        if (unit + 1 < units) copy(g, first, unit + 1, ptx::shared_address(stages[(unit + 1) % 2]));
        weights += STEPS * 32;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 b[2];
            ptx::load_matrix_x2(b, ptx::shared_address(stages[unit % 2]) +
                                       swizzled(lane % 8, step * 2 + lane / 8 % 2));
            ptx::mma_bf16(sum, a[step].x, a[step].y, a[step].z, a[step].w, b[0], b[1]);
            if (unit + 1 < units) a[step] = ptx::load_stream(weights + step * 32, policy);
        }
    }
    for (int r = 0; r < 4; r++)
        sums[(lane % 4 * 2 + r % 2) * split_k::ROW + warp * 16 + lane / 4 + r / 2 * 8] = sum[r];
    __syncthreads();
    const split_k::Place place = {static_cast<int>(blockIdx.x) * split_k::FEATURES, first};
    epilogue::finish<epilogue::Logits, THREADS, 1>(p, sums, scales, place,
                                                   min(TOKENS, g.rows - first));
}
