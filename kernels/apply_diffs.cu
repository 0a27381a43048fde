// op      words of the step's metadata that the host has changed, written into the device's copy
// params  ApplyDiffsParams
// in      count [2] u32, number of differences, and an unused word, 8-byte aligned
// in      diffs [count, 2] u32, index and value, 8-byte aligned
// out     words [words] u32, 4-byte aligned
// arch    sm_80
// launch  grid [8], block 256, shared 0
// limit   bytes: count*12
// reference runtime/tests/cuda/step/reference.rs::apply_diffs
// why     The step's metadata stays on the device; a step of decode rows changes a word or two a
//         row. The pairs are in pinned memory and are read through the link, so that a graph can
//         hold this launch: no copy whose size would change. Threads read at once, so the link's
//         latency is paid once. Indices must be unique within a list: duplicates are a data race.
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(256)
    apply_diffs(const __grid_constant__ ApplyDiffsParams p) {
    const u32 count = ptx::load_host(p.count).x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const uint2 diff = ptx::load_host(p.diffs + 2 * static_cast<i64>(i));
        p.words[diff.x] = diff.y;
    }
}
