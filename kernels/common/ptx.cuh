// Inline assembly, which stands here and in hopper.cuh alone: one function per instruction. What an
// instruction does is in the PTX ISA under its name; the comment says what it is used for.
// `volatile` keeps the order of the loads as written in the PTX, which is the order of the software
// pipeline; ptxas may schedule them otherwise, and ptx/tests/machine_code.rs has gates on what it
// made. `memory` is named where other accesses must not pass.
#pragma once
#include "common/params.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

namespace ptx {

// ---- addresses

/// A shared-memory pointer as the 32-bit address that instructions take.
__device__ __forceinline__ u32 shared_address(const void *pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// This thread's index in its block, read again: what is computed from it need not live in
/// registers since the kernel's start.
__device__ __forceinline__ int thread_now() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/// The same value, but the compiler no longer knows: what follows from it is computed here and not
/// kept in registers from before.
__device__ __forceinline__ int opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// ---- bfloat16

/// Two floats rounded to nearest even; `low` in bits 0..15.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/// Bits 0..15 as a float: exact.
__device__ __forceinline__ float low_bf16(u32 packed) { return __uint_as_float(packed << 16); }
/// Bits 16..31 as a float: exact.
__device__ __forceinline__ float high_bf16(u32 packed) {
    return __uint_as_float(packed & 0xffff0000u);
}
/// One value as a float: exact.
__device__ __forceinline__ float to_float(bf16 value) {
    return __uint_as_float(static_cast<u32>(value.bits) << 16);
}
/// One float rounded to nearest even.
__device__ __forceinline__ bf16 to_bf16(float value) {
    return bf16{static_cast<u16>(pack_bf16(value, 0.0f))};
}

/// A half-precision value as a float: exact.
__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// ---- approximate functions (2 ulp or so; the results go through bf16, or are compared with a
// tolerance that says so)

/// 2^x.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// 1 / x.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// sin(x), absolute error 2^-20.9 for x in [-pi, pi].
__device__ __forceinline__ float sin_approx(float x) {
    float y;
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/// cos(x), absolute error 2^-20.9 for x in [-pi, pi].
__device__ __forceinline__ float cos_approx(float x) {
    float y;
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- global memory

/// An L2 policy for what is read once a step: the first to be evicted.
__device__ __forceinline__ u64 evict_first_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// 16 bytes of read-only data past L1, under an L2 policy: a weight stream.
__device__ __forceinline__ uint4 load_stream(const void *pointer, u64 policy) {
    uint4 value;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(pointer), "l"(policy));
    return value;
}

/// 16 bytes from L2, never from L1: what another block wrote.
__device__ __forceinline__ float4 load_l2(const float *pointer) {
    float4 value;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "l"(pointer)
                 : "memory");
    return value;
}

/// A word from L2, never from L1, which may hold an earlier step's value of it.
__device__ __forceinline__ int load_l2_word(const int *pointer) {
    int value;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
    return value;
}

/// Prefetches the line at `pointer` into L2.
__device__ __forceinline__ void prefetch_l2(const void *pointer) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

/// Address of chunk `chunk` of 16 bytes from `base`. One instruction where it is used: written in
/// C++, the product of a loop is kept in two registers for each chunk.
__device__ __forceinline__ const void *chunk_at(const void *base, u32 chunk) {
    u64 address;
    asm volatile("mad.wide.u32 %0, %1, 16, %2;"
                 : "=l"(address)
                 : "r"(chunk), "l"(reinterpret_cast<u64>(base)));
    return reinterpret_cast<const void *>(address);
}

/// Adds to a counter with acquire and release semantics at device scope; returns the old value.
__device__ __forceinline__ u32 add_acq_rel(u32 *counter, u32 value) {
    u32 old;
    asm volatile("atom.global.acq_rel.gpu.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(value)
                 : "memory");
    return old;
}

/// Two words that the host wrote, read where they are.
__device__ __forceinline__ uint2 load_host(const u32 *pointer) {
    uint2 value;
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(pointer)
                 : "memory");
    return value;
}

/// Stores a word with release semantics at system scope: after all writes of this thread, and of
/// those it has met at a barrier. For the host.
__device__ __forceinline__ void store_release_system(u32 *pointer, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

/// Adds to a counter with release semantics at device scope; returns the old value.
__device__ __forceinline__ u32 add_release(u32 *counter, u32 value) {
    u32 old;
    asm volatile("atom.global.release.gpu.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(counter), "r"(value)
                 : "memory");
    return old;
}

/// A word that other blocks change; what they wrote before is visible after it.
__device__ __forceinline__ u32 load_acquire(const u32 *pointer) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
    return value;
}

// ---- barriers

/// Waits at named barrier `ID` for `THREADS` threads.
template <int ID, int THREADS>
__device__ __forceinline__ void barrier_named() {
    asm volatile("barrier.sync.aligned %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// ---- asynchronous copies to shared memory

/// Starts a copy of 16 bytes, past L1.
__device__ __forceinline__ void copy_async(u32 shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// Starts a copy of 16 bytes: the first `bytes` (0..16) are read and the rest are zero;
/// with 0, `global` is not read.
__device__ __forceinline__ void copy_async_or_zero(u32 shared, const void *global, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}
/// Starts a copy of 16 bytes under an L2 policy.
__device__ __forceinline__ void copy_async_stream(u32 shared, const void *global, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(global), "l"(policy)
                 : "memory");
}
/// Closes this thread's group of copies.
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `PENDING` of this thread's groups are pending.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// 16 bytes of shared memory.
__device__ __forceinline__ uint4 load_shared(u32 shared) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(shared)
                 : "memory");
    return value;
}

// ---- tensor cores, warp wide

/// Four 8x8 matrices of 16-bit elements; lane i names row i%8 of matrix i/8.
__device__ __forceinline__ void load_matrix_x4(u32 (&to)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
}
/// Two 8x8 matrices; lanes 0..15 name their rows.
__device__ __forceinline__ void load_matrix_x2(u32 (&to)[2], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(shared)
                 : "memory");
}
/// Four 8x8 matrices, each transposed.
__device__ __forceinline__ void load_matrix_x4_trans(u32 (&to)[4], u32 shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
}

/// sum[16, 8] += a[16, 16] * b[16, 8], bf16 in, f32 out. Lane: g = lane/4, q = lane%4. a: {rows g,
/// g+8} x {k 2q, 2q+8} as pairs; b: k {2q, 2q+8} as pairs, column g; sum: rows g (0, 1) and g+8 (2,
/// 3), columns 2q, 2q+1.
__device__ __forceinline__ void mma_bf16(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                         u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- programmatic dependent launch: Hopper's; nothing elsewhere

/// Waits until the kernels this one depends on have finished and their writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel's blocks start as multiprocessors come free.
__device__ __forceinline__ void launch_successor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- attention

/// 8 bytes from L2, never from L1: what another block wrote.
__device__ __forceinline__ float2 load_l2_pair(const float *pointer) {
    float2 value;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value.x), "=f"(value.y)
                 : "l"(pointer)
                 : "memory");
    return value;
}

}  // namespace ptx
