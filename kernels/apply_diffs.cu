// op      what the host has changed since the last step, written into the device's copy of it
// params  ApplyDiffsParams
// in      count [2] u32, how many, and a word that is not used, 8-byte aligned
// in      diffs [count, 2] u32, index and value, 8-byte aligned
// out     words [words] u32, 4-byte aligned
// arch    sm_80
// limit   bytes: count*12
// twin    runtime/tests/cuda_step/twins.rs::apply_diffs
// why     The step's metadata stays on the device; a step of decode rows changes a word or two a row. The pairs lie in pinned memory and are read through
//         the link, so that a graph can hold this launch: no copy whose size would change. Threads read at once, so the link's latency is paid once.
//         An index is named once; who names it twice in one list leaves open which value stays.
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(256) apply_diffs(const __grid_constant__ ApplyDiffsParams p) {
    const u32 count = ptx::load_host(p.count).x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const uint2 diff = ptx::load_host(p.diffs + 2 * static_cast<i64>(i));
        p.words[diff.x] = diff.y;
    }
}
