// op      what requests have seen, for the sampler's penalties: rows of marks written anew from prompts and outputs
// params  MarksParams
// in      tokens [tokens] i32, 4-byte aligned
// in      jobs [jobs, 4] i32, mark row, first token, prompt tokens, output tokens, 16-byte aligned
// out     marks [mark_rows, vocab] u32, row-major, bit 31 in the prompt, the rest a count, 4-byte aligned
// arch    sm_80
// limit   bytes: jobs*vocab*4 + tokens*4
// twin    runtime/tests/cuda_sampling/twins.rs::marks
// why     One block of threads per job, so that zeroing and marking need one barrier. Or and add on integers: any order gives the same marks. The
//         sampler adds each token it chooses by itself; this is for a request that arrives, or comes back.
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(1024) marks(const __grid_constant__ MarksParams p) {
    const int4 job = reinterpret_cast<const int4 *>(p.jobs)[blockIdx.x];
    if (job.x < 0) return;
    u32 *row = p.marks + static_cast<i64>(job.x) * p.vocab;
    for (int i = threadIdx.x; i < p.vocab; i += blockDim.x) row[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < job.z + job.w; i += blockDim.x) {
        const int token = p.tokens[job.y + i];
        if (token < 0 || token >= p.vocab) continue;
        if (i < job.z) {
            atomicOr(row + token, 0x80000000u);
        } else {
            atomicAdd(row + token, 1u);
        }
    }
}
