// op      megakernel: layers of a decode step (a tile of 8 rows; planned for up to 4) in one
//         cooperative launch of resident blocks (persistent kernel), grid barriers between a
//         layer's five stages
// params  MegakernelParams
// in      layers [model layers, 11] u64, 8-byte aligned; a MegakernelLayer each: weights as
//         skinny_* take them, norms, place in the KV pool
// in      qkv.gemm.x [rows, d] bf16, row-major, 16-byte aligned
// in      qkv.scale.ss [rows, d/128] f32, 4-byte aligned
// out     down.h [rows, d] f32, 16-byte aligned; read, too
// out     down.x_next [rows, d] bf16, 16-byte aligned
// out     down.ss [rows, d/128] f32, 4-byte aligned
// out     down.tap [stage rows, d] bf16, 16-byte aligned; of the last of these layers
// out     qkv.kv_pool [block, layer, 2, kv_heads, 16, hd] bf16, block-major, 16-byte aligned
// out     barrier [1] u32, 4-byte aligned; generations of barriers so far in its upper half, its
//         lower half zero before and after
// arch    sm_80, sm_90a
// launch  grid [resident blocks], cooperative, block 128, shared the larger of attention's rings
//         and the products' stages
// limit   bytes: layers * (weights + rows*(d*20 + ff*4 + heads*hd*8) + sum(min(context, window)) *
//         kv_heads * hd * 4)
// reference runtime/tests/cuda_backend/backend/megakernel.rs::five_kernels
// why     With a row or two, launch gaps are what is left to save: a barrier costs less, and while
//         a block waits at one its first weights of the next product are on their way (40 KiB a
//         block on sm_80, 80 KiB on sm_90a); before attention, where most blocks have nothing to
//         do, O's first weights are prefetched into L2, too. Each stage is the kernel's own code:
//         a block of this grid does the work of one or several blocks of that kernel's grid, one
//         after another, so the bits are the five kernels'.
#include "common/barrier.cuh"
#include "common/decode.cuh"
#include "common/skinny.cuh"

namespace {

constexpr int TOKENS = 8;
static_assert(decode::THREADS == skinny::THREADS, "attention takes all warps");

extern __shared__ __align__(256) u8 shared_bytes[];

/// A product as its own kernel does it on a grid of `blocks`. No block of a product waits for
/// another, so this block may execute several in turn.
template <class Epilogue>
__device__ __forceinline__ void multiply(const typename Epilogue::Params &p, int blocks,
                                         GridBarrier &barrier) {
    using Kernel = skinny::Kernel<Epilogue, TOKENS, SKINNY_RINGS(10, 4, 20, 6)>;
    bool waited = false;
    const auto wait = [&] {
        if (!waited) barrier.wait();
        waited = true;
    };
#pragma unroll 1
    for (int me = ptx::opaque(blockIdx.x); me < blocks; me += gridDim.x) {
        Kernel(p, shared_bytes, me).run(wait);
        // The next one's rings lie where this one's sums are still read.
        __syncthreads();
    }
    if (!waited) barrier.wait();
}

/// Attention of all pieces, splits innermost: neighbouring pieces go to different
/// blocks, as short contexts leave some empty.
template <int HD, int TILES>
__device__ __forceinline__ void attend(const MegakernelParams &p, GridBarrier &barrier) {
    barrier.wait();
#pragma unroll 1
    for (int i = ptx::opaque(blockIdx.x); i < p.attention_pieces; i += gridDim.x) {
        const int splits = p.attention.splits, rest = i / splits;
        const decode::Piece piece = {i % splits, rest % p.attention_columns,
                                     rest / p.attention_columns};
        decode::attend<HD, TILES>(p.attention, piece, shared_bytes, [] {});
        // The next piece's rings lie where this one's exchange was.
        __syncthreads();
    }
}

/// Parameters of the stages, in shared memory: a register for each would be more than there are.
struct Stages {
    MegakernelParams p;
    /// The layer at work, and the next one.
    MegakernelLayer layers[2];

    template <class T>
    static __device__ __forceinline__ void copy(const T &from, T &to) {
        for (int i = threadIdx.x; i < sizeof(T) / sizeof(u32); i += skinny::THREADS)
            reinterpret_cast<u32 *>(&to)[i] = reinterpret_cast<const u32 *>(&from)[i];
    }
    __device__ __forceinline__ void start(const MegakernelParams &from) {
        copy(from, p);
        fetch(from, from.first_layer);
    }
    /// Brings a layer's addresses; visible behind the next barrier.
    __device__ __forceinline__ void fetch(const MegakernelParams &from, int layer) {
        copy(from.layers[layer], layers[layer % 2]);
    }
    /// Makes the stages those of a layer that was fetched, when none is at work.
    __device__ __forceinline__ void turn(const MegakernelParams &from, int layer) {
        if (threadIdx.x == 0) {
            const MegakernelLayer &of = layers[layer % 2];
            p.qkv.gemm.w = of.qkv;
            p.qkv.terms = of.terms;
            p.qkv.layer_offset = of.layer_offset;
            p.attention.kv.layer_offset = of.layer_offset;
            p.attention.kv.window = of.window;
            p.o.gemm.w = of.o;
            p.o.gamma = of.o_gamma;
            p.gate_up.gemm.w = of.gate_up;
            p.down.gemm.w = of.down;
            p.down.gamma = of.down_gamma;
            p.down.tap_row = layer + 1 == from.end_layer ? from.down.tap_row : nullptr;
        }
        __syncthreads();
    }
};

template <int HD, int TILES>
__device__ __forceinline__ void run(const MegakernelParams &p) {
    __shared__ Stages stages;
    const MegakernelParams &now = stages.p;
    GridBarrier barrier(p.barrier);
    stages.start(p);
    __syncthreads();
#pragma unroll 1
    for (int layer = p.first_layer; layer < p.end_layer; layer++) {
        stages.turn(p, layer);
        multiply<epilogue::Qkv>(now.qkv, now.qkv_blocks, barrier);
        barrier.arrive();

#pragma unroll 1
        for (int me = blockIdx.x; me < now.o_blocks; me += gridDim.x)
            skinny::prefetch(now.o.gemm, me, now.o_units);
        if (layer + 1 < p.end_layer) stages.fetch(p, layer + 1);
        attend<HD, TILES>(now, barrier);
        barrier.arrive();

        // O and down are one code, so that the loop over layers fits the instruction cache.
#pragma unroll 1
        for (int down = 0; down < 2; down++) {
            multiply<epilogue::Residual>(down ? now.down : now.o,
                                         down ? now.down_blocks : now.o_blocks, barrier);
            if (down) break;
            barrier.arrive();
            multiply<epilogue::Swiglu>(now.gate_up, now.gate_up_blocks, barrier);
            barrier.arrive();
        }
        // The end of the kernel is a barrier, too.
        if (layer + 1 < p.end_layer) barrier.arrive();
    }
}

}  // namespace

#define MEGAKERNEL(NAME, HD, TILES, BLOCKS)                               \
    extern "C" __global__ void __launch_bounds__(skinny::THREADS, BLOCKS) \
        NAME(const __grid_constant__ MegakernelParams p) {                \
        run<HD, TILES>(p);                                                \
    }
MEGAKERNEL(decode_megakernel_hd64_heads8, 64, 1, 2)
MEGAKERNEL(decode_megakernel_hd64_heads16, 64, 2, 2)
MEGAKERNEL(decode_megakernel_hd128_heads8, 128, 1, 2)
MEGAKERNEL(decode_megakernel_hd128_heads16, 128, 2, 1)
