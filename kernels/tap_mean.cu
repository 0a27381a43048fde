// op      running mean of the tapped layer over each prompt, across chunks; the staging row when
//         the prompt is complete
// params  TapMeanParams
// in      h [T, d] f32, row-major, 4-byte aligned
// in      segments [segments, 6] i32, first row, prompt rows, slot, first position, prompt tokens,
//         stage row, 4-byte aligned
// out     sums [slots, d] f32, row-major, read and written, 4-byte aligned
// out     stage [stage_rows, d] bf16, row-major, 2-byte aligned
// arch    sm_80
// launch  grid [d/64, segments], block 64, shared 0
// limit   bytes: prompt_rows*d*4
// reference runtime/tests/cuda/step/reference.rs::tap_mean
// why     A thread owns a column and adds rows in order of position, its loads 32 rows to a loop so
//         that they run ahead: the sum is then the CPU backend's, bit for bit, however a prompt is
//         cut into chunks. A tree over rows would be faster and would depend on the cuts; this runs
//         beside the upper layers.
#include "common/ptx.cuh"

namespace {

/// Rows of one iteration: their loads do not wait for their additions.
constexpr int AHEAD = 32;

__device__ float add_rows(const float *column, int rows, i64 stride, float sum) {
    int row = 0;
    for (; row + AHEAD <= rows; row += AHEAD) {
        float values[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) values[i] = column[(row + i) * stride];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) sum += values[i];
    }
    for (; row < rows; row++) sum += column[row * stride];
    return sum;
}

}  // namespace

/// Grid: columns in pieces of a block, segments.
extern "C" __global__ void __launch_bounds__(128)
    tap_mean(const __grid_constant__ TapMeanParams p) {
    const int *segment = p.segments + blockIdx.y * 6;
    const int first_row = segment[0], rows = segment[1], slot = segment[2],
              first_position = segment[3], prompt = segment[4], stage_row = segment[5];
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot < 0 || column >= p.d) return;
    float *sum = p.sums + static_cast<i64>(slot) * p.d + column;
    const float total = add_rows(p.h + static_cast<i64>(first_row) * p.d + column, rows, p.d,
                                 first_position == 0 ? 0.0f : *sum);
    *sum = total;
    if (stage_row >= 0)
        p.stage[static_cast<i64>(stage_row) * p.d + column] =
            ptx::to_bf16(total * (1.0f / static_cast<float>(prompt)));
}
