// op      the probe's MLP on the device: softmax(relu(x w1^T + b1 + p) w2^T + b2), in two kernels,
//         b1 by the class of age; a third kernel computes p, a prompt's share of the first layer
// params  ProbeParams
// in      x [rows, d] bf16, row-major, 16-byte aligned
// in      inputs [rows, 4] i32, request, age class, bits of ln(prompt tokens), 0, 16-byte aligned
// in      hidden_weight [hidden, d] bf16, row-major, 16-byte aligned
// in      hidden_bias [ages, hidden] f32, 4-byte aligned
// in      mean_weight [hidden, d] bf16, row-major, 16-byte aligned
// in      length_weight [hidden] f32, 4-byte aligned
// out     prompt_sums [requests, hidden] f32, read and written, 8-byte aligned
// in      output_weight [bins, hidden] f32, row-major, 4-byte aligned
// in      output_bias [bins] f32, 4-byte aligned
// out     hidden_out [rows, hidden] f32, row-major, 8-byte aligned
// out     probabilities [rows, bins] f32, row-major, 4-byte aligned
// arch    sm_80, sm_90a
// launch  probe_prompt, probe_hidden: grid [hidden/32, rows/64], block 128, shared 48 KiB;
//         probe_bins: grid [rows/4], block 128, shared 0
// limit   flops: rows*hidden*(d+bins)*2
// reference runtime/tests/cuda/step/reference.rs::probe
// why     TRAIL's first way of running the probe, kept to compare the CPU's against. 64 rows by 32
//         units a block of threads: 128 blocks at 512 rows and 512 units, about one per
//         multiprocessor; four 12 KiB stages of cp.async. The small second layer is a warp a row,
//         in f32. Fixed order of sums. A prompt's share is constant for an answer: steps with a
//         mean compute it over all staged rows, and store those of means.
#include "common/paged.cuh"

namespace {

constexpr int WARPS = 4, THREADS = WARPS * 32;
/// Rows and units of a tile, and inputs of a stage: rows of 128 bytes.
constexpr int ROWS = 64, UNITS = 32, DEPTH = 64, STAGES = 4;
constexpr int X_BYTES = ROWS * DEPTH * 2, STAGE_BYTES = X_BYTES + UNITS * DEPTH * 2;

extern __shared__ __align__(256) u8 shared_bytes[];

__device__ void copy_stage(const ProbeParams &p, const bf16 *weight, int first_row, int first_unit,
                           int depth, u32 stage) {
#pragma unroll
    for (int chunk = threadIdx.x; chunk < ROWS * DEPTH / 8; chunk += THREADS) {
        const int row = chunk / (DEPTH / 8), place = chunk % (DEPTH / 8),
                  real = min(first_row + row, p.rows - 1);
        ptx::copy_async_or_zero(stage + chunk_at<DEPTH>(row, place),
                                p.x + static_cast<i64>(real) * p.d + depth + place * 8,
                                first_row + row < p.rows ? 16 : 0);
    }
#pragma unroll
    for (int chunk = threadIdx.x; chunk < UNITS * DEPTH / 8; chunk += THREADS) {
        const int unit = chunk / (DEPTH / 8), place = chunk % (DEPTH / 8);
        const bf16 *from = weight + static_cast<i64>(first_unit + unit) * p.d + depth + place * 8;
        ptx::copy_async(stage + X_BYTES + chunk_at<DEPTH>(unit, place), from);
    }
}

__device__ void multiply_stage(u32 stage, float (&sums)[UNITS / 8][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 row = stage + chunk_at<DEPTH>(warp * 16 + lane % 16, lane / 16);
    const u32 unit = stage + X_BYTES + chunk_at<DEPTH>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        u32 a[4];
        ptx::load_matrix_x4(a, along(row, k));
#pragma unroll
        for (int n = 0; n < UNITS / 16; n++) {
            u32 b[4];
            ptx::load_matrix_x4(b, along(unit, k) + n * 16 * DEPTH * 2);
            ptx::mma_bf16(sums[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
            ptx::mma_bf16(sums[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

/// Products of 64 rows and 32 units with `weight`; `store` gets each row's sums of two neighbouring
/// units.
template <typename Store>
__device__ void multiply_tile(const ProbeParams &p, const bf16 *weight, Store store) {
    const int first_row = blockIdx.y * ROWS, first_unit = blockIdx.x * UNITS, steps = p.d / DEPTH;
    const u32 ring = ptx::shared_address(shared_bytes);
    const auto start_copy = [&](int step) {
        if (step < steps)
            copy_stage(p, weight, first_row, first_unit, step * DEPTH,
                       ring + step % STAGES * STAGE_BYTES);
        ptx::copy_async_commit();
    };
    for (int step = 0; step < STAGES - 1; step++) start_copy(step);
    float sums[UNITS / 8][4] = {};
    for (int step = 0; step < steps; step++) {
        ptx::copy_async_wait<STAGES - 2>();
        __syncthreads();
        start_copy(step + STAGES - 1);
        multiply_stage(ring + step % STAGES * STAGE_BYTES, sums);
    }
    ptx::copy_async_wait<0>();
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first_row + threadIdx.x / 32 * 16 + half * 8 + g;
        if (row >= p.rows) continue;
        const int4 inputs = reinterpret_cast<const int4 *>(p.inputs)[row];
#pragma unroll
        for (int n = 0; n < UNITS / 8; n++)
            store(row, inputs, first_unit + n * 8 + q * 2,
                  make_float2(sums[n][half * 2], sums[n][half * 2 + 1]));
    }
}

/// Two units of `[rows, hidden]` floats.
__device__ float2 &pair(const ProbeParams &p, float *of, int row, int unit) {
    return *reinterpret_cast<float2 *>(of + static_cast<i64>(row) * p.hidden + unit);
}

__device__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

__device__ float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

}  // namespace

/// Grid: unit tiles, row tiles. Stores the shares of prompts whose mean is staged.
extern "C" __global__ void __launch_bounds__(THREADS)
    probe_prompt(const __grid_constant__ ProbeParams p) {
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    multiply_tile(p, p.mean_weight, [&](int, int4 inputs, int unit, float2 sums) {
        const int request = inputs.x, age = inputs.y;
        if (request < 0 || age != 0) return;
        const float log = __int_as_float(inputs.z);
        sums.x += log * p.length_weight[unit];
        sums.y += log * p.length_weight[unit + 1];
        pair(p, p.prompt_sums, request, unit) = sums;
    });
}

/// Grid: unit tiles, row tiles.
extern "C" __global__ void __launch_bounds__(THREADS)
    probe_hidden(const __grid_constant__ ProbeParams p) {
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    multiply_tile(p, p.hidden_weight, [&](int row, int4 inputs, int unit, float2 sums) {
        const int request = inputs.x, age = inputs.y;
        const float *bias = p.hidden_bias + age * p.hidden + unit;
        sums.x += bias[0];
        sums.y += bias[1];
        if (p.prompt_sums && request >= 0) {
            const float2 share = pair(p, p.prompt_sums, request, unit);
            sums.x += share.x;
            sums.y += share.y;
        }
        pair(p, p.hidden_out, row, unit) = make_float2(fmaxf(sums.x, 0.0f), fmaxf(sums.y, 0.0f));
    });
}

/// Grid: rows in pieces of a block's warps. Lane b ends up with bin b.
extern "C" __global__ void __launch_bounds__(128)
    probe_bins(const __grid_constant__ ProbeParams p) {
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.rows) return;
    const float *hidden = p.hidden_out + static_cast<i64>(row) * p.hidden;
    float logit = NO_SCORE;
    for (int bin = 0; bin < p.bins; bin++) {
        float sum = 0.0f;
        for (int unit = lane; unit < p.hidden; unit += 32)
            sum += hidden[unit] * p.output_weight[bin * p.hidden + unit];
        sum = warp_sum(sum);
        if (lane == bin) logit = sum + p.output_bias[bin];
    }
    const float exponential = ptx::exp2_approx((logit - warp_max(logit)) * 1.4426950408889634f);
    const float sum = warp_sum(exponential);
    if (lane < p.bins) p.probabilities[static_cast<i64>(row) * p.bins + lane] = exponential / sum;
}
