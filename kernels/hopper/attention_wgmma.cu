// op      attention of segments of prompt rows over the paged KV cache on Hopper, causal: softmax(q
//         k^T / sqrt(hd)) v
// params  WgmmaAttentionParams
// in      q [T, heads, hd] bf16, row-major, 16-byte aligned
// in      kv.pool [block, layer, 2, kv_heads, 16, hd] bf16, block-major, 16-byte aligned
// in      kv.block_table [batch_slots, max_blocks] i32, row-major, 4-byte aligned
// in      segments [segments, 4] i32, first row, rows, batch_idx, context, 16-byte aligned
// in      tiles [tiles, 2] i32, segment, first query, 8-byte aligned
// out     out [T, heads, hd] bf16, row-major, 16-byte aligned; of tiles that are not cut
// out     partial_out [cut_tiles, kv_heads, splits, 128, hd] f32, scratch, 16-byte aligned
// out     partial_sums [cut_tiles, kv_heads, splits, 128, 2] f32, scratch, 8-byte aligned
// arch    sm_90a
// launch  grid [at most multiprocessors], block 384, shared 64 KiB at hd 64, 128 KiB at hd 128: 4
//         stages of 64 keys and values, barriers
// limit   flops: sum over rows(min(context+1, window)) * heads * hd * 4
// reference runtime/tests/cuda/attention/reference.rs::attention
// why     Warp-specialised, persistent blocks. One thread brings blocks of the pool by TMA, four to
//         a tile of 64 tokens, and runs ahead into the next work while the last one ends. Two
//         warpgroups have 64 queries each (GQA packing: common/prefill.cuh). Queries stay in
//         registers: from shared memory they would take as many of its cycles as the keys, and
//         products of 64 columns would wait for shared memory. Scores of a tile are multiplied
//         together with the values of the one before, so that softmax overlaps products within a
//         warpgroup (FlashAttention-3), and between the two. Only a partition's first tile and
//         those at the diagonal or at the window's edge are masked, by code of their own. At the
//         end of a partition its sums are added to those before, in registers too
//         (common/order.cuh).
#include "hopper/pipeline.cuh"
#include "hopper/warpgroup_softmax.cuh"

namespace {

using pipeline::CONSUMERS;
using pipeline::PipelineState;
using pipeline::THREADS;
using prefill::Work;
using prefill::head_offset;
using prefill::row_of;

/// Tokens of a tile, and stages of the ring.
constexpr int TOKENS = 64, STAGES = 4;
/// Elements of a box's row.
constexpr int COLUMNS = 64;
constexpr int BOX_BYTES = BLOCK_TOKENS * COLUMNS * 2;
/// 64 columns of a tile's tokens: the boxes of its blocks one behind another.
constexpr int SLAB_BYTES = TOKENS * COLUMNS * 2;

template <int HD, bool SPLIT>
struct Kernel {
    static constexpr int TILE_BYTES = TOKENS * HD * 2, STAGE_BYTES = 2 * TILE_BYTES;
    using State = softmax::State<HD, TOKENS>;
    using Totals = softmax::Totals<HD>;
    using Scores = softmax::Scores<TOKENS>;

    const WgmmaAttentionParams &all;
    const PrefillAttentionParams &p;
    const u32 ring;
    /// Barriers: stage i is full; stage i is free.
    const u32 full, empty;

    __device__ Kernel(const WgmmaAttentionParams &params, unsigned char *shared)
        : all(params),
          p(params.base),
          ring(ptx::shared_address(shared)),
          full(ring + STAGES * STAGE_BYTES),
          empty(full + STAGES * 8) {}

    /// This block's next work: a tile, or a split of one, and a head. Tiles come longest first;
    /// every other round goes backwards, so that all blocks get about the same number of tokens.
    /// False: no more.
    __device__ __forceinline__ bool next(int &round, Work &work) const {
        const int pieces = all.tile_count + (SPLIT ? p.cut_tiles * (p.splits - 1) : 0),
                  blocks = gridDim.x, block = blockIdx.x, items = pieces * p.kv.kv_heads;
        while (round * blocks < items) {
            const int item = round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
            round++;
            const int piece = item / p.kv.kv_heads, head = item - piece * p.kv.kv_heads;
            if (item < items && (SPLIT ? prefill::take_piece(p, piece, head, work)
                                       : prefill::take(p, piece, head, work)))
                return true;
        }
        return false;
    }

    /// The producer, one thread: keeps the ring full, work after work. A block that no query
    /// attends to is not looked up: its box lies outside of the pool, and is zero.
    __device__ __forceinline__ void produce() const {
        ptx::prefetch_map(&all.pool);
        PipelineState<STAGES> state;
        const int block_rows = p.kv.block_stride / HD, values = p.kv.kv_heads * BLOCK_TOKENS;
        Work work;
        for (int round = 0; next(round, work);) {
            const int *table =
                p.kv.block_table + static_cast<i64>(work.batch_idx) * p.kv.max_blocks;
            const int head_row = p.kv.layer_offset / HD + work.kv_head * BLOCK_TOKENS;
            for (int tile = work.oldest / TOKENS; tile * TOKENS < work.end; tile++) {
                int row[TOKENS / BLOCK_TOKENS];
#pragma unroll
                for (int b = 0; b < TOKENS / BLOCK_TOKENS; b++) {
                    const int token = tile * TOKENS + b * BLOCK_TOKENS;
                    const bool attended = token >= work.oldest && token < work.end;
                    row[b] = attended ? table[token / BLOCK_TOKENS] * block_rows + head_row
                                      : -values - BLOCK_TOKENS;
                }
                // The first time round every stage is free: a barrier that was never used has ended
                // the phase before its first.
                pipeline::wait_bounded(empty + state.stage * 8, state.parity ^ 1);
                const u32 barrier = full + state.stage * 8;
                ptx::barrier_arrive_expect(barrier, STAGE_BYTES);
#pragma unroll
                for (int i = 0; i < TOKENS / BLOCK_TOKENS * HD / COLUMNS; i++) {
                    const int b = i % (TOKENS / BLOCK_TOKENS), slab = i / (TOKENS / BLOCK_TOKENS);
                    const u32 to =
                        ring + state.stage * STAGE_BYTES + slab * SLAB_BYTES + b * BOX_BYTES;
                    ptx::copy_box(to, &all.pool, slab * COLUMNS, row[b], barrier);
                    ptx::copy_box(to + TILE_BYTES, &all.pool, slab * COLUMNS, row[b] + values,
                                  barrier);
                }
                state.advance();
            }
        }
        pipeline::wait_until_free<STAGES>(empty, state);
    }

    /// Queries to registers. Those beyond the last are the last one again, and are not stored.
    __device__ __forceinline__ void load_queries(const Work &work, State &state) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = min(softmax::query_of(work, r), work.count - 1);
            const u32 *from = reinterpret_cast<const u32 *>(p.q + head_offset(p, work, query, HD)) +
                              threadIdx.x % 4;
#pragma unroll
            for (int k = 0; k < HD / 16; k++) {
                state.queries[k][r] = from[k * 8];
                state.queries[k][r + 2] = from[k * 8 + 4];
            }
        }
    }

    /// Clears values beyond the work's last token, in the last tile's last block: they may be
    /// anything, which a weight of zero does not make zero.
    __device__ __forceinline__ void clear_rest(const Work &work, int stage, int tile) const {
        const int used = work.end - tile * TOKENS;
        if (used >= TOKENS || used % BLOCK_TOKENS == 0) return;
        // A row has 8 chunks of each slab; which one a thread clears does not depend on the
        // swizzle.
        const int rows = BLOCK_TOKENS - used % BLOCK_TOKENS;
        const u32 first = ring + stage * STAGE_BYTES + TILE_BYTES + used * COLUMNS * 2;
#pragma unroll 1
        for (int i = threadIdx.x; i < rows * HD / 8; i += CONSUMERS) {
            const int slab = i / (rows * 8);
            ptx::clear_shared(first + slab * SLAB_BYTES + (i - slab * rows * 8) * 16);
        }
        ptx::proxy_fence();
        ptx::barrier_named<1, CONSUMERS>();
    }

    /// Starts the products of the queries and a tile's keys.
    __device__ __forceinline__ void score(const State &state, int stage, Scores &scores) const {
        const u32 keys = ring + stage * STAGE_BYTES;
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            const u32(&a)[4] = state.queries[k];
            const u64 b = ptx::rows_descriptor(keys + k / 4 * SLAB_BYTES) + k % 4 * (32 >> 4);
            if (k == 0)
                ptx::wgmma_mma_bf16<0>(scores, a[0], a[1], a[2], a[3], b);
            else
                ptx::wgmma_mma_bf16(scores, a[0], a[1], a[2], a[3], b);
        }
        ptx::wgmma_commit();
    }

    /// Starts the products of the weights and a tile's values.
    __device__ __forceinline__ void accumulate(State &state, int stage) const {
        const u32 values = ring + stage * STAGE_BYTES + TILE_BYTES;
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < TOKENS / 16; k++) {
            const u32(&a)[4] = state.weights[k];
            const u64 b = ptx::columns_descriptor(values + k * BOX_BYTES, SLAB_BYTES);
            ptx::wgmma_mma_bf16<1, 1>(state.out, a[0], a[1], a[2], a[3], b);
        }
        ptx::wgmma_commit();
    }

    /// A tile behind the first: its scores, and the values of the tile before, whose stage is
    /// `before`. `wait_for_next` waits for the next tile, between the exponentials and the wait for
    /// the products of values.
    template <bool MASKED, class Wait>
    __device__ __forceinline__ void step(const Work &work, State &state, int tile, int stage,
                                         int before, const Wait &wait_for_next) const {
        Scores scores;
        float decay[2];
        score(state, stage, scores);
        accumulate(state, before);
        ptx::wgmma_wait<1>();
        ptx::wgmma_results(scores);
        if (MASKED) softmax::mask<TOKENS>(p, work, tile, scores);
        const bool grew = softmax::soften(state, p.scale, scores, decay);
        wait_for_next();
        ptx::wgmma_wait<0>();
        ptx::wgmma_results(state.out);
        // Until here the products of values read the weights' registers, which `weigh` writes.
        ptx::wgmma_results(scores);
        release(before);
        softmax::weigh(state, scores, grew, decay);
    }

    __device__ __forceinline__ void release(int stage) const {
        if (threadIdx.x % 32 == 0) ptx::barrier_arrive(empty + stage * 8);
    }

    /// Normalises and stores this thread's rows.
    __device__ __forceinline__ void store(const Work &work, const Totals &totals) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = softmax::query_of(work, r);
            if (query >= work.count) continue;
            const float scale = 1.0f / totals.sum[r];
            u32 *out = reinterpret_cast<u32 *>(p.out + head_offset(p, work, query, HD)) +
                       threadIdx.x % 4;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                out[n * 4] = ptx::pack_bf16(totals.out[n * 4 + r * 2] * scale,
                                            totals.out[n * 4 + r * 2 + 1] * scale);
        }
    }

    /// Stores this thread's rows as they are, with what they are relative to: a partition of a cut
    /// tile.
    __device__ __forceinline__ void store_part(const Work &work, const float (&sums)[2],
                                               const State &state) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = softmax::query_of(work, r) - work.first;
            if (work.first + query >= work.count) continue;
            if (threadIdx.x % 4 == 0)
                *reinterpret_cast<float2 *>(prefill::part_sums(p, work.part, query)) =
                    make_float2(state.reference[r], sums[r]);
            float2 *out = reinterpret_cast<float2 *>(prefill::part_out<HD>(p, work.part, query)) +
                          threadIdx.x % 4;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                out[n * 4] = make_float2(state.out[n * 4 + r * 2], state.out[n * 4 + r * 2 + 1]);
        }
    }

    /// The first tile of a partition: nothing to overlap with.
    __device__ __forceinline__ void first_step(const Work &work, State &state, int tile,
                                               int stage) const {
        Scores scores;
        float decay[2];
        softmax::begin(state);
        score(state, stage, scores);
        ptx::wgmma_wait<0>();
        ptx::wgmma_results(scores);
        softmax::mask<TOKENS>(p, work, tile, scores);
        softmax::soften(state, p.scale, scores, decay);
        softmax::weigh(state, scores, false, decay);
    }

    /// All tiles of a partition but the values of the last, whose stage is returned.
    __device__ __forceinline__ int attend(const Work &work, State &state,
                                          PipelineState<STAGES> &at) const {
        int tile = work.oldest / TOKENS, before = at.stage;
        const int end = (work.end + TOKENS - 1) / TOKENS;
        // The first position sees all of the tiles up to here; the last one's window begins there.
        const int seen_by_all = (work.context + row_of(p, work.first) + 1) / TOKENS,
                  seen_end = min(seen_by_all, end),
                  seen_begin = (oldest_token(p.kv, work.newest) + TOKENS - 1) / TOKENS;
        const auto wait_for_next = [&] {
            at.advance();
            // No sum is negative: ptxas puts exponentials behind a branch that does not need them,
            // and then behind the wait for the products of values.
            if (tile + 1 < end || state.sum[0] + state.sum[1] < 0.0f)
                pipeline::wait(full + at.stage * 8, at.parity);
        };
        pipeline::wait(full + at.stage * 8, at.parity);
        clear_rest(work, at.stage, tile);
        first_step(work, state, tile, at.stage);
        wait_for_next();
        for (tile++; tile < end; tile++) {
            for (int stage = at.stage; tile >= seen_begin && tile < seen_end; tile++) {
                step<false>(work, state, tile, stage, before, wait_for_next);
                before = stage, stage = at.stage;
            }
            if (tile >= end) break;
            const int stage = at.stage;
            clear_rest(work, stage, tile);
            step<true>(work, state, tile, stage, before, wait_for_next);
            before = stage;
        }
        return before;
    }

    /// The consumers, two warpgroups. What the next work begins with is fetched before this one
    /// ends.
    __device__ __forceinline__ void consume() const {
        PipelineState<STAGES> at;
        Work work, following;
        State state;
        int round = 0;
        bool more = next(round, work);
        if (more) load_queries(work, state);
        while (more) {
            more = next(round, following);
            Totals totals;
            totals.begin();
            Work part = prefill::partition_from(work, work.oldest);
            while (true) {
                const bool is_last = part.end == work.end;
                const int last = attend(part, state, at);
                if (is_last && more) load_queries(following, state);
                accumulate(state, last);
                ptx::wgmma_wait<0>();
                ptx::wgmma_results(state.out);
                release(last);
                const float sums[2] = {order::total(state.sum[0]), order::total(state.sum[1])};
                if (SPLIT && work.part >= 0) {
                    store_part(part, sums, state);
                    break;
                }
                totals.add(state, sums);
                if (is_last) {
                    store(work, totals);
                    break;
                }
                part = prefill::partition_from(work, part.end);
            }
            work = following;
        }
    }

    __device__ void run() const {
        pipeline::run<STAGES>(full, empty, [&] { produce(); }, [&] { consume(); });
    }
};

}  // namespace

/// One instance: heads of HD elements; SPLIT: some tiles are cut.
#define WGMMA_ATTENTION(NAME, HD, SPLIT)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                  \
        NAME(const __grid_constant__ WgmmaAttentionParams p) {                                \
        extern __shared__ __align__(1024) unsigned char shared[];                             \
        Kernel<HD, SPLIT>(p, shared).run();                                                   \
    }

WGMMA_ATTENTION(attention_wgmma_hd64, 64, false)
WGMMA_ATTENTION(attention_wgmma_hd128, 128, false)
WGMMA_ATTENTION(attention_wgmma_split_hd64, 64, true)
WGMMA_ATTENTION(attention_wgmma_split_hd128, 128, true)
