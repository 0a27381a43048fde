// Kernels of tests/vectors.rs: single instructions over many inputs, to compare a device with the
// emulator. Compiled to vectors.ptx by NVRTC 12.4 (--gpu-architecture=compute_80).

typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" {

// out[i] = op(first + i * stride) on bit patterns of f32; each op is one instruction.
__global__ void approximate(u32 *out, int op, u32 first, u32 stride, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = __uint_as_float(first + static_cast<u32>(i) * stride);
    float y = 0.0f;
    switch (op) {
        case 0:
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
            break;
        case 1:
            asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
            break;
        case 2:
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
            break;
        case 3:
            asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
            break;
        case 4:
            asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
            break;
        case 5:
            asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
            break;
    }
    out[i] = __float_as_uint(y);
}

// out[i] = op(a[i], b[i]) on bit patterns: conversions of `a`, least and greatest of both.
__global__ void exact(u64 *out, int op, const u64 *a, const u64 *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = __uint_as_float(static_cast<u32>(a[i])),
                y = __uint_as_float(static_cast<u32>(b[i]));
    const double wide = __longlong_as_double(a[i]), other = __longlong_as_double(b[i]);
    u32 narrow = 0;
    u64 result = 0;
    float least = 0.0f;
    double twice = 0.0;
    switch (op) {
        case 0:
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(narrow) : "f"(x), "f"(y));
            result = narrow;
            break;
        case 1:
            asm("cvt.rni.u64.f64 %0, %1;" : "=l"(result) : "d"(wide));
            break;
        case 2:
            asm("cvt.rpi.u64.f64 %0, %1;" : "=l"(result) : "d"(wide));
            break;
        case 3:
            asm("cvt.rn.f32.f64 %0, %1;" : "=f"(least) : "d"(wide));
            result = __float_as_uint(least);
            break;
        case 4:
            asm("min.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y));
            result = __float_as_uint(least);
            break;
        case 5:
            asm("max.f32 %0, %1, %2;" : "=f"(least) : "f"(x), "f"(y));
            result = __float_as_uint(least);
            break;
        case 6:
            asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(narrow) : "f"(x));
            result = narrow;
            break;
        case 7:
            asm("min.f64 %0, %1, %2;" : "=d"(twice) : "d"(wide), "d"(other));
            result = __double_as_longlong(twice);
            break;
        case 8:
            asm("max.f64 %0, %1, %2;" : "=d"(twice) : "d"(wide), "d"(other));
            result = __double_as_longlong(twice);
            break;
    }
    out[i] = result;
}

// A warp's shuffles by lane distances and clamps beyond its ends: out[op * 32 + lane].
__global__ void shuffles(u32 *out) {
    const u32 lane = threadIdx.x, value = 100 + lane;
    u32 got;
    asm volatile("shfl.sync.up.b32 %0, %1, 5, 0, -1;" : "=r"(got) : "r"(value));
    out[lane] = got;
    asm volatile("shfl.sync.down.b32 %0, %1, 5, 31, -1;" : "=r"(got) : "r"(value));
    out[32 + lane] = got;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 9, 31, -1;" : "=r"(got) : "r"(value));
    out[64 + lane] = got;
    asm volatile("shfl.sync.idx.b32 %0, %1, 37, 31, -1;" : "=r"(got) : "r"(value));
    out[96 + lane] = got;
    // Segments of 8 lanes.
    asm volatile("shfl.sync.idx.b32 %0, %1, 3, 6175, -1;" : "=r"(got) : "r"(value));
    out[128 + lane] = got;
    int sum;
    asm volatile("redux.sync.add.s32 %0, %1, -1;" : "=r"(sum) : "r"(static_cast<int>(lane) - 40));
    out[160 + lane] = sum;
}

// A tile for each warp: d[16][8] = a[16][16] b[16][8] + c, of bf16 bit patterns, with f32 sums.
__global__ void tiles(float *d, const unsigned short *a, const unsigned short *b, const float *c) {
    const u32 tile = blockIdx.x, lane = threadIdx.x, g = lane / 4, q = lane % 4;
    a += tile * 256;
    b += tile * 128;
    c += tile * 128;
    d += tile * 128;
    const auto pair = [](u32 low, u32 high) { return low | high << 16; };
    const auto left = [&](u32 row, u32 k) { return pair(a[row * 16 + k], a[row * 16 + k + 1]); };
    const auto right = [&](u32 k) { return pair(b[k * 8 + g], b[(k + 1) * 8 + g]); };
    const u32 a0 = left(g, 2 * q), a1 = left(g + 8, 2 * q), a2 = left(g, 2 * q + 8),
              a3 = left(g + 8, 2 * q + 8), b0 = right(2 * q), b1 = right(2 * q + 8);
    float sum[4] = {c[g * 8 + 2 * q], c[g * 8 + 2 * q + 1], c[(g + 8) * 8 + 2 * q],
                    c[(g + 8) * 8 + 2 * q + 1]};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    d[g * 8 + 2 * q] = sum[0];
    d[g * 8 + 2 * q + 1] = sum[1];
    d[(g + 8) * 8 + 2 * q] = sum[2];
    d[(g + 8) * 8 + 2 * q + 1] = sum[3];
}
}
