// Kernels of tests/semantics.rs. Compiled to semantics.ptx by NVRTC 12.4
// (--gpu-architecture=compute_80).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Parameters {
    float *a;
    const float *b;
    int n;
    float s;
};
__device__ int launches = 3;
__constant__ float table[4] = {1.f, 2.f, 3.f, 4.f};

extern "C" {

// Struct argument, dynamic shared memory, shuffles, constants, a variable of the module, an
// exponential.
__global__ void common(const __grid_constant__ Parameters p) {
    extern __shared__ float sm[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    sm[threadIdx.x] = i < p.n ? p.b[i] : 0.f;
    __syncthreads();
    float v = sm[threadIdx.x ^ 1];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (i < p.n) p.a[i] = p.s * v + expf(p.b[i]) * table[threadIdx.x & 3] / (1.f + p.b[i]);
    if (threadIdx.x == 0) atomicAdd(&launches, 1);
}
__global__ void read_launches(int *out) { *out = launches; }

// Nested divergence, loops with break and continue, early return.
__global__ void control(int *out, int n) {
    int i = threadIdx.x, sum = 0;
    if (i == 77) {
        out[i] = -1;
        return;
    }
    for (int j = 0; j < i; j++) {
        if (j % 3 == 1) continue;
        if (j * j > n) break;
        int k = j;
        while (k > 0) {
            if (k & 1)
                sum += k;
            else
                sum ^= k;
            k >>= 1 + (i & 1);
        }
    }
    switch (i % 9) {
        case 0:
            sum += 1;
            break;
        case 1:
            sum -= out[128 + i];
            break;
        case 2:
            sum *= 7;
        case 3:
            sum ^= 0x55;
            break;
        case 4:
            return;
        case 5:
            sum = ~sum;
            break;
        case 6:
            sum <<= 3;
            break;
        case 7:
            sum = sum / 5;
            break;
        default:
            sum = sum % 11;
            break;
    }
    out[i] = sum;
}

struct Pair { int low, high; };
__device__ __noinline__ Pair split(int value, int by) {
    Pair p; p.low = value % by; p.high = value / by; return p;
}
__device__ __noinline__ int both(int value) {
    Pair p = split(value, 10); Pair q = split(p.high, 7); return p.low * 100 + q.low * 10 + q.high;
}
__global__ void calls(int *out) {
    out[threadIdx.x] = both(threadIdx.x * 31 + 5) + split(threadIdx.x, 3).low;
}

__global__ void votes(unsigned *out) {
    int i = threadIdx.x;
    unsigned r[12];
    r[0] = __ballot_sync(~0u, i % 3 == 0);
    r[1] = __any_sync(~0u, i == 40);
    r[2] = __all_sync(~0u, i < 64);
    r[3] = __match_any_sync(~0u, i / 5);
    int pred;
    r[4] = __match_all_sync(~0u, 9, &pred) + pred;
    r[5] = __reduce_add_sync(~0u, i);
    r[6] = __reduce_max_sync(~0u, -i);
    r[7] = __shfl_up_sync(~0u, i, 3);
    r[8] = __shfl_down_sync(~0u, i, 5, 8);
    r[9] = __shfl_sync(~0u, i, i + 1, 16);
    r[10] = __syncthreads_count(i % 2);
    r[11] = __syncthreads_or(i == 1000) + 2 * __syncthreads_and(i < 64);
    for (int k = 0; k < 12; k++) out[k * 64 + i] = r[k];
}

__global__ void arithmetic(unsigned *out, const unsigned *in) {
    int i = threadIdx.x;
    unsigned a = in[i], b = in[64 + i], c = in[128 + i];
    float x = __uint_as_float(a), y = __uint_as_float(b), z = __uint_as_float(c);
    unsigned *o = out + i;
    int k = 0;
#define PUT(value) o[64 * k++] = (unsigned)(value)
    PUT(__umulhi(a, b)); PUT(__mulhi((int)a, (int)b)); PUT(a / (b | 1)); PUT((int)a % (int)(b | 1));
    PUT(__popc(a)); PUT(__clz(a)); PUT(__brev(a)); PUT(__ffs(a)); PUT(__byte_perm(a, b, c));
    PUT(__funnelshift_l(a, b, c)); PUT(__funnelshift_rc(a, b, c));
    PUT((a & b) | (~a & c)); PUT(((unsigned long long)a * b + c) >> 17);
    PUT((long long)(int)a * (int)b >> 40);
    PUT(__float_as_uint(fmaf(x, y, z))); PUT(__float_as_uint(x / y));
    PUT(__float_as_uint(sqrtf(x))); PUT(__float_as_uint(fminf(x, y)));
    PUT(__float_as_uint(fmaxf(x, y)));
    PUT(__float_as_uint(__fmaf_rz(x, y, z))); PUT(__float_as_uint(__fadd_rd(x, y)));
    PUT(__float_as_uint(__fmul_ru(x, y)));
    PUT(__float2int_rz(x)); PUT(__float2int_rn(y)); PUT(__float2uint_rz(z));
    PUT(__float_as_uint((float)(int)a)); PUT(__float_as_uint((float)b));
    PUT(__bfloat16_as_ushort(__float2bfloat16(x))); PUT(__half_as_ushort(__float2half(y)));
    PUT(__float_as_uint(__half2float(__ushort_as_half(c))));
    PUT(__bfloat16_as_ushort(
        __hfma(__ushort_as_bfloat16(a), __ushort_as_bfloat16(b), __ushort_as_bfloat16(c))));
    PUT(__half_as_ushort(__hadd(__ushort_as_half(a), __ushort_as_half(b))));
    PUT(__float_as_uint(floorf(x))); PUT(__float_as_uint(rintf(y))); PUT(x < y); PUT(!(x >= y));
    PUT(__float_as_uint(__saturatef(x)));
    double d = (double)x * y + z; PUT(__double2hiint(d)); PUT(__double2loint(d));
    PUT((short)a >> 3); PUT((unsigned char)(a + b)); PUT((int)(signed char)a * 3);
}

__global__ void atomics(int *out) {
    __shared__ int s[4];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x < 4) s[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&s[0], 1); atomicMax(&s[1], (int)threadIdx.x);
    atomicOr(&s[2], 1 << (threadIdx.x & 31)); atomicCAS(&s[3], 0, (int)threadIdx.x + 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(out, s[0]); atomicMax(out + 1, s[1]); atomicAnd(out + 2, s[2]);
        atomicAdd((float *)out + 3, 0.5f);
    }
    atomicInc((unsigned *)out + 4, 99); atomicExch(out + 5, 7); atomicMin(out + 6, i - 3);
    atomicAdd((unsigned long long *)(out + 8), (1ull << 32) + 1);
}

// m16n8k16 through ldmatrix, cp.async with zero fill, and movmatrix: D = A * B, A row-major, B
// column-major.
__global__ void matrix(float *d, const __nv_bfloat16 *a, const __nv_bfloat16 *b, unsigned *moved) {
    __shared__ __align__(16) __nv_bfloat16 sa[16 * 16], sb[8 * 16];
    int lane = threadIdx.x;
    unsigned at = (unsigned)__cvta_generic_to_shared(sa + lane * 8),
        bt = (unsigned)__cvta_generic_to_shared(sb + (lane & 15) * 8);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(a + lane * 8));
    if (lane < 16) asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(bt), "l"(b + lane * 8),
        "r"(lane == 15 ? 8 : 16));
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
    __syncwarp();
    unsigned ra[4], rb[2], m;
    unsigned pa = (unsigned)__cvta_generic_to_shared(sa + (lane & 15) * 16 + (lane >> 4) * 8),
        pb = (unsigned)__cvta_generic_to_shared(sb + (lane & 7) * 16 + (lane >> 3 & 1) * 8);
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]),
        "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]),
        "=r"(rb[1]) : "r"(pb));
    float c[4] = {1.f, 2.f, 3.f, 4.f};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]),
            "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int r = 0; r < 4; r++) d[(lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2] = c[r];
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(m) : "r"(ra[0]));
    unsigned t;
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(t) : "r"(pa));
    moved[lane] = m;
    moved[32 + lane] = t;
}

// A barrier of all blocks, in which each waits for the others.
__device__ unsigned arrived, released;
__global__ void grid_barrier(int *out, int rounds) {
    for (int round = 0; round < rounds; round++) {
        out[round * gridDim.x + blockIdx.x] = blockIdx.x + round;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            if (atomicAdd(&arrived, 1) == gridDim.x * (round + 1) - 1) {
                // Acquires the others' parts at `arrived`, and releases them to those that wait.
                __threadfence();
                atomicExch(&released, round + 1);
            }
            while (*(volatile unsigned *)&released <= round) __nanosleep(20);
            __threadfence();
        }
        __syncthreads();
        int sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += __ldcg(&out[round * gridDim.x + b]);
        if (threadIdx.x == 0) atomicAdd(&out[rounds * gridDim.x + blockIdx.x], sum);
    }
}

__global__ void add(int *at, int n, int value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) at[i] += value;
}
__global__ void sum(int *to, const int *a, const int *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] = a[i] + b[i];
}
// Instructions per second: arithmetic in registers, shared memory, products of matrices.
__global__ void busy_registers(float *out, int rounds) {
    float x = threadIdx.x, y = 1.0001f;
    int k = threadIdx.x;
    for (int i = 0; i < rounds; i++) {
        x = fmaf(x, y, 0.5f);
        k = k * 3 + i;
        x += (k & 7);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
__global__ void busy_memory(float *out, const float4 *in, int rounds) {
    __shared__ float4 s[256];
    float sum = 0.f;
    for (int i = 0; i < rounds; i++) {
        s[threadIdx.x] = in[(i * 256 + threadIdx.x) & 4095];
        __syncthreads();
        float4 v = s[threadIdx.x ^ 33];
        sum += v.x + v.y + v.z + v.w;
        __syncthreads();
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
__global__ void busy_matrix(float *out, int rounds) {
    unsigned a = 0x3f803f80u + threadIdx.x, b = 0x3f803f80u;
    float c[4] = {0.f, 0.f, 0.f, 0.f};
    for (int i = 0; i < rounds; i++)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a), "r"(b));
    out[blockIdx.x * blockDim.x + threadIdx.x] = c[0] + c[3];
}
}
