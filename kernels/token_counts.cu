// op      token counts for the sampler's penalties: rows rewritten from prompts and outputs
// params  TokenCountsParams
// in      tokens [tokens] i32, 4-byte aligned
// in      jobs [jobs, 4] i32, row, first token, prompt tokens, output tokens, 16-byte aligned
// out     token_counts [batch_slots, vocab] u32, row-major, bit 31 in the prompt, the rest a count,
//         4-byte aligned
// arch    sm_80
// launch  grid [jobs], block 1024, shared 0
// limit   bytes: jobs*vocab*4 + tokens*4
// reference runtime/tests/cuda/sampling/reference.rs::token_counts
// why     One block of threads per job, so that zeroing and counting need one barrier. Integer or
//         and add: any order gives the same counts. The sampler counts each token that it chooses;
//         this kernel is for a request that enters the batch, or returns.
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    token_counts(const __grid_constant__ TokenCountsParams p) {
    const int4 job = reinterpret_cast<const int4 *>(p.jobs)[blockIdx.x];
    if (job.x < 0) return;
    u32 *row = p.token_counts + static_cast<i64>(job.x) * p.vocab;
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
