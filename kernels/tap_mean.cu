// op      sums of the tapped layer over each KV block, across chunks; the staging row of the mean
//         when a prompt is complete; rows that are not added yet kept aside
// params  TapMeanParams
// in      h [T, d] f32, row-major, 4-byte aligned
// in      segments [segments, 8] i32, first row, rows, batch_idx, first position, prompt tokens,
//         stage row, rows to keep, first kept row, 16-byte aligned
// in      block_table [batch_slots, max_blocks] i32, row-major, 4-byte aligned
// out     pool [block, block_stride] bf16, of each block the sums [d] f32 at sums_offset, read and
//         written, 16-byte aligned
// out     kept [kept_rows, d] f32, row-major, 4-byte aligned
// out     stage [stage_rows, d] bf16, row-major, 2-byte aligned
// arch    sm_80
// launch  grid [d/64, segments], block 64, shared 0
// limit   bytes: rows*d*4
// reference runtime/tests/cuda/step/reference.rs::tap_mean
// why     A thread owns a column and adds rows in order of position, its loads 32 rows to a loop so
//         that they run ahead: rows of a block first, then blocks, as the CPU backend does. So the
//         mean is the same, bit for bit, however a prompt is cut into chunks, and where another
//         request computed its first blocks. A block ends in its sums: what moves the block, or
//         keeps it, does so with them. This runs before the upper layers, which overwrite h.
#include "common/paged.cuh"

namespace {

/// Rows of one iteration: their loads do not wait for their additions.
constexpr int AHEAD = 32;
/// Blocks of one iteration of the mean.
constexpr int BLOCKS_AHEAD = 8;

/// A column of one request's sums.
struct Sums {
    const int *table;
    bf16 *pool;
    i64 block_stride;

    __device__ float &of(int block) const {
        return *reinterpret_cast<float *>(pool + table[block] * block_stride);
    }
};

/// Adds `rows` rows of a column from `position` on.
__device__ void add_rows(const Sums &sums, const float *column, i64 stride, int rows,
                         int position) {
    int row = 0;
    while (row < rows) {
        const int block = position / BLOCK_TOKENS, at = position % BLOCK_TOKENS;
        int count = min(BLOCK_TOKENS - at, rows - row);
        if (at == 0 && row + AHEAD <= rows) {
            count = AHEAD;
            float values[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) values[i] = column[(row + i) * stride];
#pragma unroll
            for (int b = 0; b < AHEAD / BLOCK_TOKENS; b++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < BLOCK_TOKENS; i++) sum += values[b * BLOCK_TOKENS + i];
                sums.of(block + b) = sum;
            }
        } else {
            float sum = at == 0 ? 0.0f : sums.of(block);
            for (int i = 0; i < count; i++) sum += column[(row + i) * stride];
            sums.of(block) = sum;
        }
        row += count;
        position += count;
    }
}

/// The sum over a request's first `tokens` tokens, the last ones it has sums of.
__device__ float total(const Sums &sums, int tokens) {
    const int blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    float total = 0.0f;
    int block = 0;
    for (; block + BLOCKS_AHEAD <= blocks; block += BLOCKS_AHEAD) {
        float values[BLOCKS_AHEAD];
#pragma unroll
        for (int i = 0; i < BLOCKS_AHEAD; i++) values[i] = sums.of(block + i);
#pragma unroll
        for (int i = 0; i < BLOCKS_AHEAD; i++) total += values[i];
    }
    for (; block < blocks; block++) total += sums.of(block);
    return total;
}

}  // namespace

/// Grid: columns in pieces of a block, segments.
extern "C" __global__ void __launch_bounds__(128)
    tap_mean(const __grid_constant__ TapMeanParams p) {
    const int4 *segment = reinterpret_cast<const int4 *>(p.segments) + blockIdx.y * 2;
    const int4 place = segment[0], use = segment[1];
    const int first_row = place.x, rows = place.y, batch_idx = place.z, position = place.w,
              prompt = use.x, stage_row = use.y, keep = use.z, kept_row = use.w;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (batch_idx < 0 || column >= p.d) return;
    const i64 d = p.d;
    const float *h = p.h + first_row * d + column;
    const Sums sums{p.block_table + static_cast<i64>(batch_idx) * p.max_blocks,
                    p.pool + p.sums_offset + 2 * column, p.block_stride};
    const int in_prompt = max(0, min(rows, prompt - position));
    add_rows(sums, h, d, in_prompt, position);
    // Before the output's rows: the prompt's last block may be theirs too.
    if (stage_row >= 0)
        p.stage[stage_row * d + column] =
            ptx::to_bf16(total(sums, prompt) * (1.0f / static_cast<float>(prompt)));
    add_rows(sums, h + in_prompt * d, d, rows - in_prompt, position + in_prompt);
    for (int i = 0; i < keep; i++) p.kept[(kept_row + i) * d + column] = h[(rows + i) * d];
}
