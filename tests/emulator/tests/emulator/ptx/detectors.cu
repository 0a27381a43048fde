// Planted bugs, each with a clean variant: `NAME_bug` and `NAME_ok`. Compiled to detectors.ptx by
// NVRTC 12.4 (--gpu-architecture=compute_80); the tests take the PTX as it is here.
#include <cuda_pipeline_primitives.h>

extern "C" {

__global__ void bounds_bug(float *out, const float *in, int n) {
    out[threadIdx.x] = in[threadIdx.x];
}
__global__ void bounds_ok(float *out, const float *in, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x];
}

__global__ void align_bug(float *out, const float *in, int n) {
    float2 v = *reinterpret_cast<const float2 *>(in + 1);
    out[threadIdx.x] = v.x + v.y;
}
__global__ void align_ok(float *out, const float *in, int n) {
    float2 v = *reinterpret_cast<const float2 *>(in + 2);
    out[threadIdx.x] = v.x + v.y;
}

__global__ void copy(float *out, const float *in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}

__global__ void shared_bounds_bug(float *out, const float *in, int n) {
    extern __shared__ float s[];
    s[threadIdx.x + n] = in[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x + n];
}
__global__ void shared_bounds_ok(float *out, const float *in, int n) {
    extern __shared__ float s[];
    s[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void shared_unwritten_bug(float *out, const float *in, int n) {
    __shared__ float s[256];
    if (threadIdx.x != 5) s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void shared_unwritten_ok(float *out, const float *in, int n) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

// A read before another warp's write is ordered.
__global__ void race_read_bug(float *out, const float *in, int n) {
    __shared__ float s[256];
    s[threadIdx.x] = 0.f;
    __syncthreads();
    s[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}
__global__ void race_read_ok(float *out, const float *in, int n) {
    __shared__ float s[256];
    s[threadIdx.x] = 0.f;
    __syncthreads();
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}

// A write before another warp's read is done.
__global__ void race_write_bug(float *out, const float *in, int n) {
    __shared__ float s[256];
    float sum = 0.f;
    for (int round = 0; round < 3; round++) {
        s[threadIdx.x] = in[threadIdx.x] + round;
        __syncthreads();
        sum += s[threadIdx.x ^ 64];
    }
    out[threadIdx.x] = sum;
}
__global__ void race_write_ok(float *out, const float *in, int n) {
    __shared__ float s[256];
    float sum = 0.f;
    for (int round = 0; round < 3; round++) {
        s[threadIdx.x] = in[threadIdx.x] + round;
        __syncthreads();
        sum += s[threadIdx.x ^ 64];
        __syncthreads();
    }
    out[threadIdx.x] = sum;
}

// Lanes of one warp without __syncwarp.
__global__ void race_warp_bug(float *out, const float *in, int n) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void race_warp_ok(float *out, const float *in, int n) {
    __shared__ float s[256];
    s[threadIdx.x] = in[threadIdx.x];
    __syncwarp();
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}

// Named barriers: warps 0 and 1 meet, warps 2 and 3 meet.
__global__ void race_named_bug(float *out, const float *in, int n) {
    __shared__ float s[128];
    s[threadIdx.x] = in[threadIdx.x];
    asm volatile("bar.sync %0, 64;" ::"r"(1 + (int)threadIdx.x / 64) : "memory");
    out[threadIdx.x] = s[threadIdx.x ^ 64];
}
__global__ void race_named_ok(float *out, const float *in, int n) {
    __shared__ float s[128];
    s[threadIdx.x] = in[threadIdx.x];
    asm volatile("bar.sync %0, 64;" ::"r"(1 + (int)threadIdx.x / 64) : "memory");
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}

// Shared atomics do not race with one another; a plain read of their sum needs the barrier.
__global__ void race_atomic_bug(float *out, const float *in, int n) {
    __shared__ float s;
    if (threadIdx.x == 0) s = 0.f;
    __syncthreads();
    atomicAdd(&s, in[threadIdx.x]);
    out[threadIdx.x] = s;
}
__global__ void race_atomic_ok(float *out, const float *in, int n) {
    __shared__ float s;
    if (threadIdx.x == 0) s = 0.f;
    __syncthreads();
    atomicAdd(&s, in[threadIdx.x]);
    __syncthreads();
    out[threadIdx.x] = s;
}

// cp.async read before it is waited for.
__global__ void async_wait_bug(float *out, const float *in, int n) {
    __shared__ float s[256];
    __pipeline_memcpy_async(&s[threadIdx.x], &in[threadIdx.x], 4);
    __pipeline_commit();
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}
__global__ void async_wait_ok(float *out, const float *in, int n) {
    __shared__ float s[256];
    __pipeline_memcpy_async(&s[threadIdx.x], &in[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}
// One group too many left in flight.
__global__ void async_group_bug(float *out, const float *in, int n) {
    __shared__ float s[2][128];
    for (int stage = 0; stage < 2; stage++) {
        __pipeline_memcpy_async(&s[stage][threadIdx.x], &in[stage * 128 + threadIdx.x], 4);
        __pipeline_commit();
    }
    __pipeline_wait_prior(1);
    __syncthreads();
    out[threadIdx.x] = s[0][threadIdx.x] + s[1][threadIdx.x];
}
__global__ void async_group_ok(float *out, const float *in, int n) {
    __shared__ float s[2][128];
    for (int stage = 0; stage < 2; stage++) {
        __pipeline_memcpy_async(&s[stage][threadIdx.x], &in[stage * 128 + threadIdx.x], 4);
        __pipeline_commit();
    }
    __pipeline_wait_prior(1);
    __syncthreads();
    float first = s[0][threadIdx.x];
    __pipeline_wait_prior(0);
    __syncthreads();
    out[threadIdx.x] = first + s[1][threadIdx.x];
}
// Waited for by the thread that copied, read by another without a barrier.
__global__ void async_barrier_bug(float *out, const float *in, int n) {
    __shared__ float s[256];
    __pipeline_memcpy_async(&s[threadIdx.x], &in[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[threadIdx.x] = s[threadIdx.x ^ 32];
}
__global__ void async_barrier_ok(float *out, const float *in, int n) {
    __shared__ float s[256];
    __pipeline_memcpy_async(&s[threadIdx.x], &in[threadIdx.x], 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void divergence_bug(float *out, const float *in, int n) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    out[threadIdx.x] = in[threadIdx.x];
}
__global__ void divergence_ok(float *out, const float *in, int n) {
    if (n > 0) __syncthreads();
    out[threadIdx.x] = in[threadIdx.x];
}
// Warps wait at different barriers, and never continue.
__global__ void deadlock_bug(float *out, const float *in, int n) {
    asm volatile("bar.sync %0, 64;" ::"r"((int)threadIdx.x / 32) : "memory");
    out[threadIdx.x] = in[threadIdx.x];
}
__global__ void deadlock_ok(float *out, const float *in, int n) {
    asm volatile("bar.sync %0, 64;" ::"r"((int)threadIdx.x / 64) : "memory");
    out[threadIdx.x] = in[threadIdx.x];
}
// A shuffle that names lanes which are elsewhere.
__global__ void shuffle_bug(float *out, const float *in, int n) {
    float v = in[threadIdx.x];
    if (threadIdx.x % 32 < n) v += __shfl_xor_sync(0xFFFFFFFFu, v, 1);
    out[threadIdx.x] = v;
}
__global__ void shuffle_ok(float *out, const float *in, int n) {
    float v = in[threadIdx.x];
    if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(0x0000FFFFu, v, 1);
    out[threadIdx.x] = v;
}

__global__ void local_bug(float *out, const float *in, int n) {
    float values[8];
    for (int i = 0; i < 8; i++) values[i] = in[i];
    out[threadIdx.x] = values[(threadIdx.x & 7) + n];
}
__global__ void local_ok(float *out, const float *in, int n) {
    float values[8];
    for (int i = 0; i < 8; i++) values[i] = in[i];
    out[threadIdx.x] = values[(threadIdx.x + n) & 7];
}

__global__ void trap_bug(float *out, const float *in, int n) {
    if (threadIdx.x == 3) __trap();
    out[threadIdx.x] = in[threadIdx.x];
}
__global__ void trap_ok(float *out, const float *in, int n) {
    if (n < 0) __trap();
    out[threadIdx.x] = in[threadIdx.x];
}

// Blocks that write the same place, or read what another one wrote.
__global__ void blocks_write_bug(float *out, const float *in, int n) {
    out[threadIdx.x] = in[threadIdx.x] + blockIdx.x;
}
__global__ void blocks_write_ok(float *out, const float *in, int n) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[threadIdx.x] + blockIdx.x;
}
// The last block to arrive sums the values of all blocks; the bug is that no block counts arrivals.
__device__ unsigned arrivals;
__global__ void blocks_read_bug(float *out, const float *in, int n) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[threadIdx.x];
    __threadfence();
    if (blockIdx.x == gridDim.x - 1) {
        float sum = 0.f;
        for (int b = 0; b < gridDim.x; b++) sum += out[b * blockDim.x + threadIdx.x];
        out[gridDim.x * blockDim.x + threadIdx.x] = sum;
    }
}
__global__ void blocks_read_ok(float *out, const float *in, int n) {
    __shared__ bool last;
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(&arrivals, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
    __syncthreads();
    if (last) {
        float sum = 0.f;
        for (int b = 0; b < gridDim.x; b++) sum += __ldcg(&out[b * blockDim.x + threadIdx.x]);
        out[gridDim.x * blockDim.x + threadIdx.x] = sum;
    }
}

__global__ void hang_bug(float *out, const float *in, int n) {
    while (*reinterpret_cast<volatile const float *>(in) >= 0.f) {
    }
    out[threadIdx.x] = 1.f;
}
__global__ void hang_ok(float *out, const float *in, int n) {
    while (*reinterpret_cast<volatile const float *>(in) < 0.f) {
    }
    out[threadIdx.x] = 1.f;
}
}
