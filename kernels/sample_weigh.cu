// op      the sampler's passes over whole rows: maxima of the logits, then unnormalised
//         probabilities and their partial sums
// params  SampleParams
// in      logits [rows, stride] f32, row-major, 16-byte aligned
// in      row_sampling [rows] bytes: RowSampling, 8-byte aligned
// in      token_counts [batch_slots, vocab] u32, row-major, 4-byte aligned
// in      masks [rows, mask_words] u32, row-major, 4-byte aligned
// out     weights [rows, blocks*256] f32, row-major, of rows with top-k or top-p, 16-byte aligned
// out     block_max [rows, blocks] f32, after penalties, 4-byte aligned
// out     block_raw_max [rows, blocks] f32, 4-byte aligned
// out     block_sums [rows, blocks] f32, 4-byte aligned
// out     block_raw_sums [rows, blocks] f32, 4-byte aligned
// out     block_broken [rows, blocks] u32, 4-byte aligned
// arch    sm_80, sm_90a
// launch  grid [blocks/16, rows], block 256, shared 0
// limit   bytes: rows*vocab*(4+4), and rows*vocab*4 of rows with top-k or top-p
// reference runtime/tests/cuda/sampling/reference.rs::sample
// why     All multiprocessors share each row: blocks of 256 tokens are the CPU sampler's partial
//         sums, a half-warp each with its 16 lanes and its tree, so sums have the CPU's bits. What
//         follows (sample_choose) then looks at 600 sums, and at few blocks of the row itself.
#include "common/sampling.cuh"

namespace {

/// Which block of tokens a half-warp has. The grid covers them in pieces; beyond the last there is
/// nothing to do but shuffles.
__device__ __forceinline__ int block_of() {
    return blockIdx.x * (blockDim.x / SUM_LANES) + threadIdx.x / SUM_LANES;
}

__device__ void scan(const SampleParams &p, const Row &row, int block) {
    float max = MINUS_INFINITY, raw_max = MINUS_INFINITY;
    u32 broken = 0;
    const int first = block * SUM_TOKENS + threadIdx.x % SUM_LANES;
#pragma unroll
    for (int i = 0; i < SUM_TOKENS / SUM_LANES; i++) {
        const int token = first + i * SUM_LANES;
        if (block >= p.blocks || token >= p.vocab) continue;
        broken |= is_broken(row.logits[token]);
        raw_max = fmaxf(raw_max, row.raw(token));
        max = fmaxf(max, row.penalised(token));
    }
#pragma unroll
    for (int step = SUM_LANES / 2; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
        raw_max = fmaxf(raw_max, __shfl_xor_sync(~0u, raw_max, step));
        broken |= __shfl_xor_sync(~0u, broken, step);
    }
    if (block >= p.blocks || threadIdx.x % SUM_LANES != 0) return;
    p.block_max[row.blocks + block] = max;
    p.block_raw_max[row.blocks + block] = raw_max;
    p.block_broken[row.blocks + block] = broken;
}

__device__ void weigh(const SampleParams &p, const Row &row, int block, float max, float raw_max) {
    // Without a temperature the choice is greedy, and only the sum of the model's own probabilities
    // is wanted.
    const bool tempered = row.sampling.tempering > 0.0f;
    float sum = 0.0f, raw_sum = 0.0f;
    const int first = block * SUM_TOKENS + threadIdx.x % SUM_LANES;
#pragma unroll
    for (int i = 0; i < SUM_TOKENS / SUM_LANES; i++) {
        const int token = first + i * SUM_LANES;
        if (block >= p.blocks || token >= p.vocab) continue;
        raw_sum = __fadd_rn(raw_sum, exponential(row.raw(token), raw_max, 1.44269504f));
        if (!tempered) continue;
        const float weight = row.weight(token, max);
        if (row.truncates()) row.weights[token] = weight;
        sum = __fadd_rn(sum, weight);
    }
    sum = sum_lanes(sum);
    raw_sum = sum_lanes(raw_sum);
    if (block >= p.blocks || threadIdx.x % SUM_LANES != 0) return;
    p.block_sums[row.blocks + block] = sum;
    p.block_raw_sums[row.blocks + block] = raw_sum;
}

}  // namespace

/// Grid: pieces of 16 blocks, rows.
extern "C" __global__ void __launch_bounds__(256)
    sample_scan(const __grid_constant__ SampleParams p) {
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    Row row;
    if (take_row(p, blockIdx.y, row)) scan(p, row, block_of());
}

/// Grid: pieces of 16 blocks, rows.
extern "C" __global__ void __launch_bounds__(256)
    sample_weigh(const __grid_constant__ SampleParams p) {
    __shared__ float2 exchange[8];
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    Row row;
    if (!take_row(p, blockIdx.y, row)) return;
    const float2 max =
        largest_pair<8>(p.block_max + row.blocks, p.block_raw_max + row.blocks, p.blocks, exchange);
    // A row that is broken, or all minus infinity, is weighed too, and its weights are not read.
    weigh(p, row, block_of(), max.x, max.y);
}
