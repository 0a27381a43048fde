// op      what the chip can do at most: reads of memory that nothing waits for, and mma.sync
//         products of registers alone
// params  CeilingParams
// in      data [quads, 4] u32, 16-byte aligned; read by ceiling_read alone
// out     sums [grid] u32 (ceiling_read: of each block's words, modulo 2^32) or [grid * block] f32
//         (ceiling_mma), 4-byte aligned
// arch    sm_80
// launch  grid [8 blocks a multiprocessor] (read) or [2] (mma), block 256, shared 0
// limit   bytes: quads*16; flops: grid*block/32*rounds*16*16*8*2*8
// reference runtime/tests/cuda/ceiling.rs::sum_of_words
// why     the benchmarks' shares are of these, measured in the same run
#include "common/ptx.cuh"

namespace {

constexpr int THREADS = 256;
/// Loads of 16 bytes that a thread has in flight.
constexpr int AHEAD = 8;
/// Independent sums of a warp: enough to hide an mma's latency behind the others.
constexpr int CHAINS = 8;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    ceiling_read(const __grid_constant__ CeilingParams p) {
    const u64 policy = ptx::evict_first_policy();
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS * AHEAD;
    u32 sum = 0;
    for (i64 base = static_cast<i64>(blockIdx.x) * THREADS * AHEAD + threadIdx.x; base < p.quads;
         base += stride) {
        uint4 words[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const i64 at = base + i * THREADS;
            words[i] =
                at < p.quads ? ptx::load_stream(p.data + at * 4, policy) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) sum += words[i].x + words[i].y + words[i].z + words[i].w;
    }
    __shared__ u32 warps[THREADS / 32];
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < THREADS / 32; warp++) sum += warps[warp];
        p.sums[blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ceiling_mma(const __grid_constant__ CeilingParams p) {
    // Sixteen products of 0.25 * 0.25: each mma adds exactly 1 to every sum.
    const u32 quarter = ptx::pack_bf16(0.25f, 0.25f);
    float sum[CHAINS][4] = {};
#pragma unroll 1
    for (int round = 0; round < p.rounds; round++) {
#pragma unroll
        for (int chain = 0; chain < CHAINS; chain++)
            ptx::mma_bf16(sum[chain], quarter, quarter, quarter, quarter, quarter, quarter);
    }
    float total = 0.0f;
#pragma unroll
    for (int chain = 0; chain < CHAINS; chain++)
        total += sum[chain][0] + sum[chain][1] + sum[chain][2] + sum[chain][3];
    reinterpret_cast<float *>(p.sums)[blockIdx.x * THREADS + threadIdx.x] = total;
}
