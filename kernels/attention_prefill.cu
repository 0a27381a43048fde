// op      attention of segments of prompt rows over the paged KV cache, causal: softmax(q k^T /
//         sqrt(hd)) v
// params  PrefillAttentionParams
// in      q [T, heads, hd] bf16, row-major, 16-byte aligned
// in      kv.pool [block, layer, 2, kv_heads, 16, hd] bf16, block-major, 16-byte aligned
// in      kv.block_table [batch_slots, max_blocks] i32, row-major, 4-byte aligned
// in      segments [segments, 4] i32, first row, rows, batch_idx, context, 16-byte aligned
// in      tiles [tiles, 2] i32, segment, first query, 8-byte aligned
// out     out [T, heads, hd] bf16, row-major, 16-byte aligned; of tiles that are not cut
// out     partial_out [P, 128, hd] f32, scratch, 16-byte aligned; P: cut_tiles*kv_heads*splits, or,
//         where no tile is cut, blocks
// out     partial_sums [P, 128, 2] f32, scratch, 8-byte aligned
// arch    sm_80, sm_90a
// launch  grid [tiles + cut_tiles*(splits-1), kv_heads], block 128, shared 64 KiB at hd 64, 80 KiB
//         at hd 128: queries and 3 stages of K and V
// limit   flops: sum over rows(min(context+1, window)) * heads * hd * 4
// reference runtime/tests/cuda/attention/reference.rs::attention
// why     GQA packing: a query is a row and a head of the group, and 128 queries share one pass
//         over keys and values, so any group size fills the tile and short chunks do not waste it.
//         Four warps of 32 queries: each key fragment from shared memory meets two mma, which keeps
//         ldmatrix under the tensor cores' pace (16 queries a warp would tie them). Three stages of
//         16 KiB of keys and values: with the queries 80 KiB at hd 128, so two blocks of threads
//         share a multiprocessor of sm_80 and one computes exponentials while the other multiplies.
//         Only tiles at the diagonal, the window's edge or the segment's end are masked. At the end
//         of a partition its sums are added to those before, in a workspace, as registers have no
//         room for both. The split kernels give each partition of a tile its own block,
//         where there are fewer tiles than places for blocks; attention_merge adds the parts.
#include "common/prefill.cuh"

namespace {

using prefill::QUERIES;
using prefill::Work;
using prefill::head_offset;
using prefill::row_of;

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
/// Queries of a warp.
constexpr int WARP_QUERIES = QUERIES / WARPS;
/// Tokens of a tile: as many as leave the scores in registers beside the output.
template <int HD>
constexpr int TOKENS_OF = HD > 64 ? 32 : 64;
constexpr int STAGES = 3;

extern __shared__ __align__(256) u8 shared_bytes[];

template <int HD>
__device__ void copy_queries(const PrefillAttentionParams &p, const Work &work, u32 shared) {
#pragma unroll 4
    for (int chunk = threadIdx.x; chunk < QUERIES * HD / 8; chunk += THREADS) {
        const int query = chunk / (HD / 8), place = chunk % (HD / 8);
        const bool real = work.first + query < work.count;
        const i64 from =
            head_offset(p, work, real ? work.first + query : work.first, HD) + place * 8;
        ptx::copy_async_or_zero(shared + chunk_at<HD>(query, place), p.q + from, real ? 16 : 0);
    }
}

/// The block ids of one tile of tokens; blocks that no query attends to are not looked up.
template <int TOKENS>
struct TileIds {
    static constexpr int TILE_BLOCKS = TOKENS / BLOCK_TOKENS;
    int id[TILE_BLOCKS];
    __device__ void fetch(const PrefillAttentionParams &p, const Work &work, int tile) {
        const int *table = p.kv.block_table + static_cast<i64>(work.batch_idx) * p.kv.max_blocks;
#pragma unroll
        for (int b = 0; b < TILE_BLOCKS; b++) {
            const int token = tile * TOKENS + b * BLOCK_TOKENS;
            id[b] = token >= work.oldest && token < work.end ? table[token / BLOCK_TOKENS] : 0;
        }
    }
};

/// Starts the copy of one tile of keys and one of values behind it; other tokens than the work's
/// become zeros.
template <int HD>
__device__ void copy_tile(const PrefillAttentionParams &p, const Work &work,
                          const TileIds<TOKENS_OF<HD>> &ids, int tile, u32 shared) {
    constexpr int TOKENS = TOKENS_OF<HD>;
    const int distance = value_distance(p.kv, HD);
#pragma unroll
    for (int i = 0; i < TOKENS * HD / 8 / THREADS; i++) {
        const int chunk = i * THREADS + threadIdx.x, token = chunk / (HD / 8),
                  place = chunk % (HD / 8);
        const int at = tile * TOKENS + token;
        // A copy of all threads stays within one block, so its id is a register known at compile
        // time.
        const int block = i * THREADS / (HD / 8) / BLOCK_TOKENS;
        const bf16 *keys = keys_of(p.kv, ids.id[block], work.kv_head, HD) +
                           (token % BLOCK_TOKENS * HD + place * 8);
        const u32 to = shared + chunk_at<HD>(token, place),
                  bytes = at >= work.oldest && at < work.end ? 16 : 0;
        ptx::copy_async_or_zero(to, keys, bytes);
        ptx::copy_async_or_zero(to + TOKENS * HD * 2, keys + distance, bytes);
    }
}

/// One warp's queries in a partition: output, reference of the exponentials, and this lane's sum;
/// places [i/2] are 16-row tiles, i%2 rows g and g+8.
template <int HD>
struct State {
    float out[2][HD / 8][4];
    float reference[4];
    float sum[4];
};

template <int HD, int TOKENS>
__device__ void score(u32 queries, u32 keys, float (&scores)[2][TOKENS / 8][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 query_row = queries + chunk_at<HD>(warp * WARP_QUERIES + lane % 16, lane / 16);
    const u32 key_row = keys + chunk_at<HD>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++)
            scores[i][n][0] = scores[i][n][1] = scores[i][n][2] = scores[i][n][3] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        u32 a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            ptx::load_matrix_x4(a[i], along(query_row, k) + i * 16 * HD * 2);
#pragma unroll
        for (int n = 0; n < TOKENS / 16; n++) {
            u32 b[4];
            ptx::load_matrix_x4(b, along(key_row, k) + n * 16 * HD * 2);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ptx::mma_bf16(scores[i][2 * n], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
                ptx::mma_bf16(scores[i][2 * n + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
            }
        }
    }
}

/// Masks what a row must not see. Queries beyond the last are zeros that see what the last one
/// does, and are not stored.
template <int TOKENS>
__device__ void mask(const PrefillAttentionParams &p, const Work &work, int tile,
                     float (&scores)[2][TOKENS / 8][4]) {
    const int first = work.first + threadIdx.x / 32 * WARP_QUERIES + threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const prefill::Visible visible =
            prefill::visible_to(p, work, first + r * 8, tile * TOKENS + threadIdx.x % 4 * 2);
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!visible.has(n * 8 + e)) scores[r / 2][n][r % 2 * 2 + e] = NO_SCORE;
            }
        }
    }
}

/// Scores become exponentials relative to the largest so far, packed as mma's first operand; output
/// and sum follow when that grows.
template <int HD, int TOKENS>
__device__ void soften(float scale, float (&scores)[2][TOKENS / 8][4],
                       u32 (&exponentials)[2][TOKENS / 16][4], State<HD> &state) {
    float decay[4];
    bool grew = false;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float tile_max = NO_SCORE;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &score = scores[r / 2][n][r % 2 * 2 + e];
                score = order::on_grid(score, scale);
                tile_max = fmaxf(tile_max, score);
            }
        }
        decay[r] = prefill::raise(state.reference[r], tile_max);
        grew |= decay[r] != 1.0f;
    }
    if (__any_sync(~0u, grew)) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            state.sum[r] *= decay[r];
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                state.out[r / 2][n][r % 2 * 2] *= decay[r];
                state.out[r / 2][n][r % 2 * 2 + 1] *= decay[r];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
            const float *pair = &scores[r / 2][n][r % 2 * 2];
            const float left = order::exponential(pair[0], state.reference[r]),
                        right = order::exponential(pair[1], state.reference[r]);
            exponentials[r / 2][n / 2][n % 2 * 2 + r % 2] = ptx::pack_bf16(left, right);
            state.sum[r] = __fadd_rn(__fadd_rn(state.sum[r], left), right);
        }
    }
}

template <int HD, int TOKENS>
__device__ void accumulate(u32 values, const u32 (&exponentials)[2][TOKENS / 16][4],
                           State<HD> &state) {
    const int lane = threadIdx.x % 32;
    const u32 value_row = values + chunk_at<HD>(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < TOKENS / 16; k++) {
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            u32 b[4];
            ptx::load_matrix_x4_trans(b, along(value_row, n) + k * 16 * HD * 2);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u32(&a)[4] = exponentials[i][k];
                ptx::mma_bf16(state.out[i][2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
                ptx::mma_bf16(state.out[i][2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
    }
}

/// The sums of a partition's exponentials.
template <int HD>
__device__ __forceinline__ void add_lanes(const State<HD> &state, float (&sums)[4]) {
#pragma unroll
    for (int r = 0; r < 4; r++) sums[r] = order::total(state.sum[r]);
}

/// Adds a partition to those before it, of a block that has all of a tile's; `sums` are its own,
/// then those of all up to it.
template <int HD>
__device__ void fold(const PrefillAttentionParams &p, float (&sums)[4], State<HD> &state,
                     bool is_first, bool is_last) {
    const int thread = ptx::thread_now(), part = blockIdx.x * gridDim.y + blockIdx.y;
    float4 *total = reinterpret_cast<float4 *>(prefill::part_out<HD>(p, part, 0)) + thread;
    float2 *kept = reinterpret_cast<float2 *>(
        prefill::part_sums(p, part, thread / 32 * WARP_QUERIES + thread % 32 / 4));
#pragma unroll
    for (int i = 0; i < 2; i++)
        prefill::fold<HD / 8>(kept + i * 16, total + i * (HD / 8) * THREADS, THREADS,
                              &state.reference[i * 2], &sums[i * 2], state.out[i][0], is_first,
                              is_last);
}

/// Normalises and stores the warp's queries.
template <int HD>
__device__ void store(const PrefillAttentionParams &p, const Work &work, const float (&sums)[4],
                      const State<HD> &state) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int query = work.first + warp * WARP_QUERIES + r * 8 + lane / 4;
        if (query >= work.count) continue;
        const float scale = 1.0f / sums[r];
        u32 *out = reinterpret_cast<u32 *>(p.out + head_offset(p, work, query, HD)) + lane % 4;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            const float *pair = &state.out[r / 2][n][r % 2 * 2];
            out[n * 4] = ptx::pack_bf16(pair[0] * scale, pair[1] * scale);
        }
    }
}

/// Stores the warp's queries as they are, with their references: a partition of a cut tile.
template <int HD>
__device__ void store_part(const PrefillAttentionParams &p, const Work &work,
                           const float (&sums)[4], const State<HD> &state) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int query = warp * WARP_QUERIES + r * 8 + lane / 4;
        if (work.first + query >= work.count) continue;
        if (lane % 4 == 0)
            *reinterpret_cast<float2 *>(prefill::part_sums(p, work.part, query)) =
                make_float2(state.reference[r], sums[r]);
        float2 *out =
            reinterpret_cast<float2 *>(prefill::part_out<HD>(p, work.part, query)) + lane % 4;
#pragma unroll
        for (int n = 0; n < HD / 8; n++) {
            const float *pair = &state.out[r / 2][n][r % 2 * 2];
            out[n * 4] = make_float2(pair[0], pair[1]);
        }
    }
}

template <int HD>
__device__ void start(State<HD> &state) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
        state.reference[r] = static_cast<float>(order::NOTHING);
        state.sum[r] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            state.out[i][n][0] = state.out[i][n][1] = state.out[i][n][2] = state.out[i][n][3] =
                0.0f;
    }
}

template <int HD, bool SPLIT>
__device__ void attend(const PrefillAttentionParams &p) {
    constexpr int TOKENS = TOKENS_OF<HD>, TILE_BYTES = TOKENS * HD * 2,
                  STAGE_BYTES = 2 * TILE_BYTES;
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    Work work;
    if (SPLIT ? !prefill::take_piece(p, blockIdx.x, blockIdx.y, work)
              : !prefill::take(p, blockIdx.x, blockIdx.y, work))
        return;
    const u32 queries = ptx::shared_address(shared_bytes), ring = queries + QUERIES * HD * 2;
    const int first_tile = work.oldest / TOKENS, last_tile = (work.end - 1) / TOKENS;
    TileIds<TOKENS> ids;
    copy_queries<HD>(p, work, queries);
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        ids.fetch(p, work, first_tile + stage);
        if (first_tile + stage <= last_tile)
            copy_tile<HD>(p, work, ids, first_tile + stage, ring + stage * STAGE_BYTES);
        ptx::copy_async_commit();
    }
    ids.fetch(p, work, first_tile + STAGES - 1);
    State<HD> state;
    start<HD>(state);
    // The tile's first position sees all of a token tile up to here; its last position's window
    // begins there.
    const int seen_by_all = work.context + row_of(p, work.first) + 1,
              oldest_of_last = oldest_token(p.kv, work.newest);
    u32 now = ring, filled = ring + (STAGES - 1) * STAGE_BYTES;
    for (int tile = first_tile; tile <= last_tile; tile++) {
        if (!SPLIT && tile > first_tile && order::begins_partition(tile * TOKENS)) {
            float sums[4];
            add_lanes(state, sums);
            fold(p, sums, state, tile * TOKENS == order::end_of(work.oldest), false);
            start(state);
        }
        ptx::copy_async_wait<STAGES - 2>();
        // Everybody's part of the tile has landed, and everybody is done with the stage that is
        // filled next.
        __syncthreads();
        if (tile + STAGES - 1 <= last_tile) copy_tile<HD>(p, work, ids, tile + STAGES - 1, filled);
        ptx::copy_async_commit();
        ids.fetch(p, work, tile + STAGES);
        float scores[2][TOKENS / 8][4];
        score<HD, TOKENS>(queries, now, scores);
        if ((tile + 1) * TOKENS > seen_by_all || tile * TOKENS < oldest_of_last)
            mask<TOKENS>(p, work, tile, scores);
        u32 exponentials[2][TOKENS / 16][4];
        soften<HD, TOKENS>(p.scale, scores, exponentials, state);
        accumulate<HD, TOKENS>(now + TILE_BYTES, exponentials, state);
        filled = now;
        now = now == ring + (STAGES - 1) * STAGE_BYTES ? ring : now + STAGE_BYTES;
    }
    ptx::copy_async_wait<0>();
    // Looked up again: there is no register to keep all of it.
    if (!SPLIT) prefill::take(p, ptx::opaque(blockIdx.x), blockIdx.y, work);
    float sums[4];
    add_lanes(state, sums);
    if (SPLIT && work.part >= 0) return store_part(p, work, sums, state);
    if (!SPLIT && prefill::partitions_of(work) > 1) fold(p, sums, state, false, true);
    store(p, work, sums, state);
}

}  // namespace

/// One instance: heads of HD elements; SPLIT: some tiles are cut.
#define PREFILL_ATTENTION(NAME, HD, SPLIT)                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)          \
        NAME(const __grid_constant__ PrefillAttentionParams p) {      \
        attend<HD, SPLIT>(p);                                         \
    }

PREFILL_ATTENTION(attention_prefill_hd64, 64, false)
PREFILL_ATTENTION(attention_prefill_hd128, 128, false)
PREFILL_ATTENTION(attention_prefill_split_hd64, 64, true)
PREFILL_ATTENTION(attention_prefill_split_hd128, 128, true)
