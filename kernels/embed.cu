// op      token embeddings into the residual stream, the first product's operand, and its partial
//         sums of squares
// params  EmbedParams
// in      table [vocab, d] bf16, row-major, 16-byte aligned
// in      token [T] i32, 4-byte aligned
// in      last [batch_slots] i32, 4-byte aligned
// in      batch_idx [T] i32, 4-byte aligned; -1: a padding row, which becomes zeros
// in      gamma [d] bf16, 16-byte aligned
// out     h [T, d] f32, row-major, 16-byte aligned
// out     x [T, d] bf16, row-major, 16-byte aligned
// out     ss [T, parts] f32, row-major, 4-byte aligned
// arch    sm_80, sm_90a
// launch  grid [parts/16, rows], block 256, shared 0
// limit   bytes: T*d*(2+4+2) + d*2
// reference runtime/tests/cuda/step/reference.rs::embed
// why     Half a warp per 128 columns, 16 bytes a lane: the columns of one partial sum, in the
//         shape in which the residual epilogues leave theirs, so the first norm is no special case.
//         h is exact (bf16 widened); the sum has one fixed order.
#include "common/ptx.cuh"

namespace {

/// Columns of one partial sum, and lanes that share them.
constexpr int PART = 128, LANES = PART / 8;

__device__ void embed_part(const EmbedParams &p, int row, int token, int part) {
    const int column = part * PART + threadIdx.x % LANES * 8;
    float sum = 0.0f;
    if (column < p.d) {
        const i64 at = static_cast<i64>(row) * p.d + column;
        const uint4 values =
            *reinterpret_cast<const uint4 *>(p.table + static_cast<i64>(token) * p.d + column);
        const uint4 gammas = *reinterpret_cast<const uint4 *>(p.gamma + column);
        const u32 value[4] = {values.x, values.y, values.z, values.w},
                  gamma[4] = {gammas.x, gammas.y, gammas.z, gammas.w};
        float h[8];
        u32 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            h[2 * i] = ptx::low_bf16(value[i]);
            h[2 * i + 1] = ptx::high_bf16(value[i]);
            x[i] = ptx::pack_bf16(h[2 * i] * ptx::low_bf16(gamma[i]),
                                  h[2 * i + 1] * ptx::high_bf16(gamma[i]));
            sum += h[2 * i] * h[2 * i] + h[2 * i + 1] * h[2 * i + 1];
        }
        float4 *h_out = reinterpret_cast<float4 *>(p.h + at);
        h_out[0] = make_float4(h[0], h[1], h[2], h[3]);
        h_out[1] = make_float4(h[4], h[5], h[6], h[7]);
        *reinterpret_cast<uint4 *>(p.x + at) = make_uint4(x[0], x[1], x[2], x[3]);
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % LANES == 0) p.ss[static_cast<i64>(row) * p.parts + part] = sum;
}

/// Zeros in a padding row: what it holds goes through every product, beside the others' sums, and
/// the residual stream would add it up from step to step.
__device__ void clear_part(const EmbedParams &p, int row, int part) {
    const int column = part * PART + threadIdx.x % LANES * 8;
    if (column < p.d) {
        const i64 at = static_cast<i64>(row) * p.d + column;
        float4 *h = reinterpret_cast<float4 *>(p.h + at);
        h[0] = h[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        *reinterpret_cast<uint4 *>(p.x + at) = make_uint4(0, 0, 0, 0);
    }
    if (threadIdx.x % LANES == 0) p.ss[static_cast<i64>(row) * p.parts + part] = 0.0f;
}

}  // namespace

/// Grid: parts in pieces of a block's half-warps, rows.
extern "C" __global__ void __launch_bounds__(256) embed(const __grid_constant__ EmbedParams p) {
    // In this order: behind it in the step no kernel begins before apply_diffs has ended, so each
    // may read what that wrote before its own wait.
    ptx::wait_for_predecessor();
    ptx::launch_successor();
    const int row = blockIdx.y, parts_here = blockDim.x / LANES;
    // Both halves of a warp take part in the shuffles: one beyond the last part does the last one's
    // work again, with the same bits.
    const int part = min(blockIdx.x * parts_here + threadIdx.x / LANES, p.parts - 1);
    const int batch_idx = p.batch_idx[row];
    if (batch_idx < 0) {
        clear_part(p, row, part);
        return;
    }
    int token = p.token[row];
    if (token < 0) token = p.last[batch_idx];
    embed_part(p, row, token, part);
}
