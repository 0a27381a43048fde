// The matrix product of many rows on Hopper: a warp-specialised kernel with TMA copies, mbarriers
// and wgmma.
//
// Three warpgroups a block, one block a multiprocessor, tiles of 128 features x 256 tokens, each
// block every gridDim-th tile. One thread of the last warpgroup keeps the ring full: eight
// contiguous runs of weights and one box of activations a stage. The other two warpgroups have 64
// features each: weights from the ring to registers (the fragment order of all our products is what
// the A operand wants), activations straight from the ring. While they end a tile, through a buffer
// of its own, the ring already fills for the next.
#pragma once
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/stream.cuh"

namespace wgmma {

constexpr int TOKENS = 256, DEPTH = 64, STEPS = DEPTH / 16, STAGES = 4;
/// Threads that multiply, and all.
constexpr int CONSUMERS = 256, THREADS = 384;
constexpr int WEIGHT_BYTES = stream::FEATURES * DEPTH * 2,
              STAGE_BYTES = WEIGHT_BYTES + TOKENS * DEPTH * 2;
/// Bytes of a stage that belong to one tile of 16 features: contiguous in global memory too.
constexpr int RUN_BYTES = STEPS * 512;
/// Tokens whose sums are ended at a time.
constexpr int PASS = 64;

/// A stage of the ring, and the parity of the pass over the ring (CUTLASS: PipelineState).
struct PipelineState {
    int stage = 0;
    u32 parity = 0;
    __device__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::barrier_try_wait(barrier, parity)) {
    }
}

template <class Epilogue, class Params>
struct Kernel {
    const Params &all;
    const typename Epilogue::Params &p;
    const GemmOperands &g;
    const int tiles, depth;
    const u32 ring;
    float *const sums;
    float *const scales;
    /// Barriers: stage i is full; stage i is free.
    const u32 full, empty;

    __device__ Kernel(const Params &params, unsigned char *shared)
        : all(params),
          p(params.base),
          g(params.base.gemm),
          tiles(params.base.gemm.n / stream::FEATURES *
                ((params.base.gemm.rows + TOKENS - 1) / TOKENS)),
          depth(params.base.gemm.k_padded / DEPTH),
          ring(ptx::shared_address(shared)),
          sums(reinterpret_cast<float *>(shared + STAGES * STAGE_BYTES)),
          scales(sums + PASS * stream::ROW),
          full(ptx::shared_address(scales + TOKENS)),
          empty(full + STAGES * 8) {}

    /// The producer, one thread: keeps the ring full, tile after tile.
    __device__ __forceinline__ void produce() const {
        ptx::prefetch_map(&all.x);
        PipelineState state;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const stream::Place place = stream::place_of<TOKENS>(g, tile);
            const char *weights = reinterpret_cast<const char *>(g.w) +
                                  static_cast<i64>(place.feature) * g.k_padded * 2;
            for (int unit = 0; unit < depth; unit++, weights += RUN_BYTES) {
                // The first time round every stage is free: a barrier that was never used has ended
                // the phase before its first.
                wait(empty + state.stage * 8, state.parity ^ 1);
                const u32 barrier = full + state.stage * 8,
                          stage = ring + state.stage * STAGE_BYTES;
                ptx::barrier_arrive_expect(barrier, STAGE_BYTES);
#pragma unroll
                for (int run = 0; run < stream::FEATURES / 16; run++)
                    ptx::copy_bulk(stage + run * RUN_BYTES,
                                   weights + static_cast<i64>(run) * g.k_padded * 32, RUN_BYTES,
                                   barrier);
                ptx::copy_box(stage + WEIGHT_BYTES, &all.x, unit * DEPTH, place.token, barrier);
                state.advance();
            }
        }
    }

    /// This warp's weights of a stage, for its lane: registers of STEPS products.
    __device__ __forceinline__ void load(uint4 (&a)[STEPS], const unsigned char *pool,
                                         int stage) const {
        const unsigned char *from =
            pool + stage * STAGE_BYTES + threadIdx.x / 32 * RUN_BYTES + threadIdx.x % 32 * 16;
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            a[step] = *reinterpret_cast<const uint4 *>(from + step * 512);
    }

    /// Starts the products of a stage.
    __device__ __forceinline__ void multiply(float (&sum)[128], const uint4 (&a)[STEPS],
                                             int stage) const {
        const u64 rows = ptx::rows_descriptor(ring + stage * STAGE_BYTES + WEIGHT_BYTES);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            ptx::wgmma_mma_bf16(sum, a[step].x, a[step].y, a[step].z, a[step].w,
                                rows + step * (32 >> 4));
        ptx::wgmma_commit();
    }

    /// The consumers, two warpgroups: products, then the tile's epilogue.
    __device__ __forceinline__ void consume(const unsigned char *pool) const {
        PipelineState state;
        const bool elected = threadIdx.x % 32 == 0;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            float sum[128];
#pragma unroll
            for (int i = 0; i < 128; i++) sum[i] = 0.0f;
            uint4 even[STEPS], odd[STEPS];
            int before = 0;
            // Units come in pairs (k_padded is a multiple of 256), so that registers of one are
            // loaded while the other's are read.
            for (int unit = 0; unit < depth; unit += 2) {
                wait(full + state.stage * 8, state.parity);
                load(even, pool, state.stage);
                multiply(sum, even, state.stage);
                // All but the newest products have ended: the stage before is free.
                ptx::wgmma_wait<1>();
                if (unit > 0 && elected) ptx::barrier_arrive(empty + before * 8);
                before = state.stage;
                state.advance();

                wait(full + state.stage * 8, state.parity);
                load(odd, pool, state.stage);
                multiply(sum, odd, state.stage);
                ptx::wgmma_wait<1>();
                if (elected) ptx::barrier_arrive(empty + before * 8);
                before = state.stage;
                state.advance();
            }
            ptx::wgmma_wait<0>();
            if (elected) ptx::barrier_arrive(empty + before * 8);
            end_tile(sum, tile);
        }
    }

    /// The tile's end, 64 tokens at a time through `sums`.
    __device__ __forceinline__ void end_tile(const float (&sum)[128], int tile) const {
        const stream::Place place = stream::place_of<TOKENS>(g, ptx::opaque(tile));
        epilogue::scales_of<Epilogue, TOKENS, CONSUMERS>(p, place.token, scales);
        const int thread = ptx::thread_now(), lane = thread % 32;
        float *corner = sums + lane % 4 * 2 * stream::ROW + thread / 32 * 16 + lane / 4;
#pragma unroll
        for (int pass = 0; pass < TOKENS / PASS; pass++) {
#pragma unroll
            for (int c = 0; c < PASS / 8; c++) {
#pragma unroll
                for (int r = 0; r < 4; r++)
                    corner[(c * 8 + r % 2) * stream::ROW + r / 2 * 8] =
                        sum[(pass * (PASS / 8) + c) * 4 + r];
            }
            ptx::barrier_named<1, CONSUMERS>();
            const stream::Place part = {place.feature, place.token + pass * PASS};
            epilogue::finish<Epilogue, CONSUMERS, 4>(p, sums, scales + pass * PASS, part,
                                                     min(PASS, g.rows - part.token));
            ptx::barrier_named<1, CONSUMERS>();
        }
    }

    __device__ void run(const unsigned char *pool) {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < STAGES; stage++) {
                ptx::barrier_init(full + stage * 8, 1);
                ptx::barrier_init(empty + stage * 8, CONSUMERS / 32);
            }
            ptx::barrier_init_fence();
        }
        __syncthreads();
        ptx::launch_successor();
        ptx::wait_for_predecessor();
        if (threadIdx.x >= CONSUMERS) {
            ptx::registers_give<40>();
            if (threadIdx.x == CONSUMERS) produce();
        } else {
            ptx::registers_take<232>();
            consume(pool);
        }
    }
};

}  // namespace wgmma

/// One instance.
#define WGMMA_KERNEL(NAME, EPILOGUE)                                                       \
    extern "C" __global__ void __launch_bounds__(wgmma::THREADS, 1)                        \
        NAME(const __grid_constant__ Wgmma##EPILOGUE##Params p) {                          \
        extern __shared__ __align__(1024) unsigned char shared[];                          \
        wgmma::Kernel<epilogue::EPILOGUE, Wgmma##EPILOGUE##Params>(p, shared).run(shared); \
    }
