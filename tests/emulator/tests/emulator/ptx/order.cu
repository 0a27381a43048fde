// Order between blocks: planted bugs, each with a clean variant, `NAME_bug` and `NAME_ok`. Compiled
// to order.ptx by NVRTC 12.4 (--gpu-architecture=compute_80); the tests take the PTX as it is here.

__device__ unsigned arrivals;

/// The old value of a counter that starts again after `bound`.
__device__ unsigned relaxed(unsigned bound) { return atomicInc(&arrivals, bound); }
__device__ unsigned acq_rel(unsigned bound) {
    unsigned old;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(old) : "l"(&arrivals), "r"(bound) : "memory");
    return old;
}

/// Each block stores a part; the last to arrive at the counter adds them up.
template <class Arrive>
__device__ void last_block(float *out, const float *in, Arrive arrive) {
    __shared__ bool last;
    out[blockIdx.x * blockDim.x + threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) last = arrive(gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last) return;
    float sum = 0.f;
    for (int b = 0; b < gridDim.x; b++) sum += __ldcg(&out[b * blockDim.x + threadIdx.x]);
    out[gridDim.x * blockDim.x + threadIdx.x] = sum;
}

/// Block 0 stores values and a flag, which the others wait for.
template <class Raise>
__device__ void message(float *out, const float *in, Raise raise) {
    unsigned *flag = reinterpret_cast<unsigned *>(out + 1000);
    if (blockIdx.x == 0) {
        out[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) raise(flag);
        return;
    }
    if (threadIdx.x == 0) {
        unsigned seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        } while (seen == 0);
    }
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = out[threadIdx.x] + 1.f;
}

/// Block 0 stores values and a flag, the others read them, and block 0 writes there again.
template <class Wait>
__device__ void reused(float *out, const float *in, Wait wait) {
    unsigned *flag = reinterpret_cast<unsigned *>(out + 1000), *readers = flag + 1;
    if (blockIdx.x == 0) {
        out[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
            wait(readers, gridDim.x - 1);
        }
        __syncthreads();
        out[threadIdx.x] = in[threadIdx.x + 1];
        return;
    }
    if (threadIdx.x == 0) {
        unsigned seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        } while (seen == 0);
    }
    __syncthreads();
    const float value = out[threadIdx.x] + 1.f;
    out[blockIdx.x * blockDim.x + threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(readers) : "memory");
}

extern "C" {

// A relaxed atomic alone orders nothing.
__global__ void order_atomic_bug(float *out, const float *in, int n) {
    last_block(out, in, [](unsigned bound) { return relaxed(bound); });
}
__global__ void order_atomic_ok(float *out, const float *in, int n) {
    last_block(out, in, [](unsigned bound) { return acq_rel(bound); });
}

// A fence before a relaxed atomic releases; it acquires only with a fence behind it.
__global__ void order_fence_bug(float *out, const float *in, int n) {
    last_block(out, in, [](unsigned bound) {
        __threadfence();
        return relaxed(bound);
    });
}
__global__ void order_fence_ok(float *out, const float *in, int n) {
    last_block(out, in, [](unsigned bound) {
        __threadfence();
        const unsigned old = relaxed(bound);
        __threadfence();
        return old;
    });
}

// A fence of the block alone orders nothing between blocks.
__global__ void order_scope_bug(float *out, const float *in, int n) {
    last_block(out, in, [](unsigned bound) {
        __threadfence_block();
        const unsigned old = relaxed(bound);
        __threadfence_block();
        return old;
    });
}
__global__ void order_scope_ok(float *out, const float *in, int n) {
    last_block(out, in, [](unsigned bound) {
        __threadfence();
        const unsigned old = relaxed(bound);
        __threadfence();
        return old;
    });
}

// A flag that is not released.
__global__ void order_flag_bug(float *out, const float *in, int n) {
    message(out, in, [](unsigned *flag) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
    });
}
__global__ void order_flag_ok(float *out, const float *in, int n) {
    message(out, in, [](unsigned *flag) {
        asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
    });
}

// A place that is written again while others may read it: a count seen by a relaxed load is not
// enough.
__global__ void order_reuse_bug(float *out, const float *in, int n) {
    reused(out, in, [](unsigned *readers, unsigned all) {
        unsigned seen;
        do {
            asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                         : "=r"(seen) : "l"(readers) : "memory");
        } while (seen < all);
    });
}
__global__ void order_reuse_ok(float *out, const float *in, int n) {
    reused(out, in, [](unsigned *readers, unsigned all) {
        unsigned seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen) : "l"(readers) : "memory");
        } while (seen < all);
    });
}
}
