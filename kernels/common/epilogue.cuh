// The four fused epilogues of a matrix product. A warp takes a row (token) of 128 features at a
// time, from shared memory.
//
// Each epilogue has: Column, what a lane needs for its features in every row; Input, what a row
// needs from global memory, fetched for several rows before the first is used; and `row`, which
// does the work. Lanes hold 4 neighbouring features, or 2 and their partners 8 further on. What is
// multiplied and added is written as __fmaf_rn and __fmul_rn: ptxas chooses which of two products
// it fuses with an addition, and might choose otherwise in another kernel (docs/one-answer.md).
#pragma once
#include "common/ptx.cuh"
#include "common/split_k.cuh"

namespace epilogue {

/// A row's scale 1/rms for each of `TOKENS` rows from `token` on, into shared memory; zero beyond
/// the last row. Four lanes a row, each every fourth part, then a fixed tree: the same bits every
/// time.
template <int TOKENS, int THREADS>
__device__ void row_scales(const GemmOperands &g, const RowScale &s, int token, float *scales) {
    for (int i = threadIdx.x / 4; i < TOKENS; i += THREADS / 4) {
        const int row = token + i;
        float sum = 0.0f;
        if (row < g.rows) {
            const int source = g.row_list ? g.row_list[row] : row;
            for (int part = threadIdx.x % 4; part < s.parts; part += 4)
                sum += s.ss[static_cast<i64>(source) * s.parts + part];
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (threadIdx.x % 4 == 0)
            scales[i] = row < g.rows ? rsqrtf(sum / static_cast<float>(s.width) + s.eps) : 0.0f;
    }
}

/// Residual: h += sum; x = h * gamma in bf16; the row's part of the sum of squares; a copy of
/// tapped rows.
struct Residual {
    using Params = ResidualParams;
    struct Column {
        float gamma[4];
    };
    struct Input {
        float4 h;
        int tap;
    };
    static __device__ Column column(const Params &p, int feature, int lane) {
        Column c = {};
        const int at = feature + lane * 4;
        if (at < p.d) {
            const uint2 pairs = *reinterpret_cast<const uint2 *>(p.gamma + at);
            c = {ptx::low_bf16(pairs.x), ptx::high_bf16(pairs.x), ptx::low_bf16(pairs.y),
                 ptx::high_bf16(pairs.y)};
        }
        return c;
    }
    static __device__ Input fetch(const Params &p, int token, int feature, int lane) {
        const int at = feature + lane * 4;
        Input in = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), -1};
        if (at < p.d)
            in.h = *reinterpret_cast<const float4 *>(p.h + static_cast<i64>(token) * p.d + at);
        if (p.tap_row) in.tap = p.tap_row[token];
        return in;
    }
    static __device__ void row(const Params &p, const Column &c, const Input &in, const float *sums,
                               float, int token, int feature, int lane) {
        const int at = feature + lane * 4;
        float4 h = *reinterpret_cast<const float4 *>(sums + lane * 4);
        h = make_float4(h.x + in.h.x, h.y + in.h.y, h.z + in.h.z, h.w + in.h.w);
        float squares = __fmul_rn(h.x, h.x);
        squares = __fmaf_rn(h.y, h.y, squares);
        squares = __fmaf_rn(h.z, h.z, squares);
        squares = at < p.d ? __fmaf_rn(h.w, h.w, squares) : 0.0f;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            squares += __shfl_xor_sync(0xffffffffu, squares, distance);
        const i64 row_start = static_cast<i64>(token) * p.d;
        if (lane == 0)
            p.ss[static_cast<i64>(token) * (p.gemm.n / split_k::FEATURES) +
                 feature / split_k::FEATURES] = squares;
        if (at >= p.d) return;
        *reinterpret_cast<float4 *>(p.h + row_start + at) = h;
        *reinterpret_cast<uint2 *>(p.x_next + row_start + at) =
            make_uint2(ptx::pack_bf16(h.x * c.gamma[0], h.y * c.gamma[1]),
                       ptx::pack_bf16(h.z * c.gamma[2], h.w * c.gamma[3]));
        if (in.tap >= 0)
            *reinterpret_cast<uint2 *>(p.tap + static_cast<i64>(in.tap) * p.d + at) =
                make_uint2(ptx::pack_bf16(h.x, h.y), ptx::pack_bf16(h.z, h.w));
    }
};

/// A lane's two features in a tile whose rows come as eight of one kind and eight of their
/// partners.
struct Paired {
    float low[2], high[2];
    /// Of the first of the two, among features of one kind.
    int place;

    __device__ Paired(const float *sums, float scale, int feature, int lane) {
        const int at = lane / 4 * 16 + lane % 4 * 2;
        const float2 first = *reinterpret_cast<const float2 *>(sums + at),
                     second = *reinterpret_cast<const float2 *>(sums + at + 8);
        low[0] = __fmul_rn(first.x, scale), low[1] = __fmul_rn(first.y, scale);
        high[0] = __fmul_rn(second.x, scale), high[1] = __fmul_rn(second.y, scale);
        place = feature / 2 + lane / 4 * 8 + lane % 4 * 2;
    }
};

/// SwiGLU: silu(gate) * up of the scaled row.
struct Swiglu {
    using Params = SwigluParams;
    struct Column {};
    struct Input {};
    static __device__ Column column(const Params &, int, int) { return {}; }
    static __device__ Input fetch(const Params &, int, int, int) { return {}; }
    /// x / (1 + e^-x); for x far below zero e^-x is infinite and the result -0, as it should be.
    static __device__ float silu(float x) {
        return x * ptx::reciprocal_approx(1.0f + ptx::exp2_approx(x * -1.4426950408889634f));
    }
    static __device__ void row(const Params &p, const Column &, const Input &, const float *sums,
                               float scale, int token, int feature, int lane) {
        const Paired pair(sums, scale, feature, lane);
        if (pair.place >= p.ff) return;
        const u32 packed =
            ptx::pack_bf16(silu(pair.low[0]) * pair.high[0], silu(pair.low[1]) * pair.high[1]);
        *reinterpret_cast<u32 *>(p.out + static_cast<i64>(token) * p.ff + pair.place) = packed;
    }
};

/// Logits: the scaled row in f32.
struct Logits {
    using Params = LogitsParams;
    struct Column {};
    struct Input {};
    static __device__ Column column(const Params &, int, int) { return {}; }
    static __device__ Input fetch(const Params &, int, int, int) { return {}; }
    static __device__ void row(const Params &p, const Column &, const Input &, const float *sums,
                               float scale, int token, int feature, int lane) {
        const float4 sum = *reinterpret_cast<const float4 *>(sums + lane * 4);
        *reinterpret_cast<float4 *>(p.logits + static_cast<i64>(token) * p.gemm.n + feature +
                                    lane * 4) =
            make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
    }
};

/// Queries, keys, values: the scaled row, RoPE on queries and keys; keys and values into the paged
/// pool. `head_terms` comes before, where the family has bias or norms.
struct Qkv {
    using Params = QkvParams;
    /// Tokens of a block of the pool.
    static constexpr int BLOCK_TOKENS = 16;
    /// A lane's two features, the same in every row.
    struct Column {
        /// Head, counted through queries, keys, values; beyond them: padding.
        int head;
        /// Place of the first in its head; its rotation partner is hd/2 further on.
        int place;
        /// RoPE frequency: turns per token, as a fraction of 2^64.
        u64 freqs[2];
    };
    struct Input {
        int position, batch_idx, block;
    };
    static __device__ Column column(const Params &p, int feature, int lane) {
        const int half = p.head_dim / 2, at = feature / 2 + lane / 4 * 8 + lane % 4 * 2;
        return {at / half, at % half, {p.rope_freqs[at % half], p.rope_freqs[at % half + 1]}};
    }
    static __device__ Input fetch(const Params &p, int token, int, int) {
        Input in = {p.position[token], p.batch_idx[token], 0};
        if (in.batch_idx >= 0)
            in.block = p.block_table[static_cast<i64>(in.batch_idx) * p.max_blocks +
                                     in.position / BLOCK_TOKENS];
        return in;
    }
    /// The angle of `position` times `freq`, in [-pi, pi]. The product of integers is exact modulo
    /// 2^64, that is modulo whole turns; its upper 32 bits, read with a sign, are within 2^-32
    /// turns of the angle at any position. A float product would be wrong by 0.008 rad at position
    /// 131072.
    static __device__ float angle(u64 freq, int position) {
        const int fraction = static_cast<int>((freq * static_cast<u64>(position)) >> 32);
        return static_cast<float>(fraction) * 1.4629180792671596e-9f;  // 2 pi / 2^32
    }
    static __device__ void row(const Params &p, const Column &c, const Input &in, const float *sums,
                               float scale, int token, int feature, int lane) {
        if (in.batch_idx < 0 || c.head >= p.heads + 2 * p.kv_heads) return;
        Paired pair(sums, scale, feature, lane);
        if (c.head < p.heads + p.kv_heads) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float turned = angle(c.freqs[i], in.position), sine = ptx::sin_approx(turned),
                            cosine = ptx::cos_approx(turned);
                const float low = pair.low[i], high = pair.high[i];
                pair.low[i] = __fmaf_rn(low, cosine, -__fmul_rn(high, sine));
                pair.high[i] = __fmaf_rn(high, cosine, __fmul_rn(low, sine));
            }
        }
        bf16 *to;
        if (c.head < p.heads) {
            to = p.q + (static_cast<i64>(token) * p.heads + c.head) * p.head_dim;
        } else {
            // Keys of all heads, then values of all heads: heads counted through both lie one after
            // the other.
            const int head = c.head - p.heads;
            to = p.kv_pool + in.block * p.block_stride + p.layer_offset +
                 (static_cast<i64>(head) * BLOCK_TOKENS + in.position % BLOCK_TOKENS) * p.head_dim;
        }
        *reinterpret_cast<u32 *>(to + c.place) = ptx::pack_bf16(pair.low[0], pair.low[1]);
        *reinterpret_cast<u32 *>(to + c.place + p.head_dim / 2) =
            ptx::pack_bf16(pair.high[0], pair.high[1]);
    }
};

/// Adds the bias to a row of queries, keys and values, and normalises its query and key heads. The
/// row is in shared memory, and scaled on return. A separate pass, because the registers of `row`
/// are all in use.
__device__ inline void head_terms(const QkvParams &p, float *sums, float scale, int feature,
                                  int lane) {
    const int at = lane / 4 * 16 + lane % 4 * 2, half = p.head_dim / 2;
    const int place = feature / 2 + lane / 4 * 8 + lane % 4 * 2, head = place / half;
    Paired pair(sums, scale, feature, lane);
    if (p.terms.bias && head < p.heads + 2 * p.kv_heads) {
        const bf16 *bias = p.terms.bias + head * p.head_dim + place % half;
        const u32 low = *reinterpret_cast<const u32 *>(bias),
                  high = *reinterpret_cast<const u32 *>(bias + half);
        pair.low[0] += ptx::low_bf16(low), pair.low[1] += ptx::high_bf16(low);
        pair.high[0] += ptx::low_bf16(high), pair.high[1] += ptx::high_bf16(high);
    }
    if (p.terms.q_norm) {
        // A head's features are in a warp (if 128) or in half a warp (64). All lanes take part in
        // the sum, also those of padding.
        float squares = __fmul_rn(pair.low[0], pair.low[0]);
        squares = __fmaf_rn(pair.low[1], pair.low[1], squares);
        squares = __fmaf_rn(pair.high[0], pair.high[0], squares);
        squares = __fmaf_rn(pair.high[1], pair.high[1], squares);
#pragma unroll 1
        for (int distance = p.head_dim / 8; distance > 0; distance /= 2)
            squares += __shfl_xor_sync(0xffffffffu, squares, distance);
        if (head < p.heads + p.kv_heads) {
            const float scale = rsqrtf(squares / static_cast<float>(p.head_dim) + p.scale.eps);
            const bf16 *gamma = (head < p.heads ? p.terms.q_norm : p.terms.k_norm) + place % half;
            const u32 low = *reinterpret_cast<const u32 *>(gamma),
                      high = *reinterpret_cast<const u32 *>(gamma + half);
            pair.low[0] *= scale * ptx::low_bf16(low), pair.low[1] *= scale * ptx::high_bf16(low);
            pair.high[0] *= scale * ptx::low_bf16(high);
            pair.high[1] *= scale * ptx::high_bf16(high);
        }
    }
    *reinterpret_cast<float2 *>(sums + at) = make_float2(pair.low[0], pair.low[1]);
    *reinterpret_cast<float2 *>(sums + at + 8) = make_float2(pair.high[0], pair.high[1]);
}

/// True for epilogues that scale their rows.
template <class Epilogue>
struct Scaled {
    static constexpr bool YES = true;
};
template <>
struct Scaled<Residual> {
    static constexpr bool YES = false;
};

/// True for the epilogue whose rows have heads.
template <class Epilogue>
struct HasHeadTerms {
    static constexpr bool YES = false;
};
template <>
struct HasHeadTerms<Qkv> {
    static constexpr bool YES = true;
};

/// Row scales of the tile at `token`, for epilogues that have them. Visible to the other threads
/// after the next barrier.
template <class Epilogue, int TOKENS, int THREADS>
__device__ void scales_of(const typename Epilogue::Params &p, int token, float *scales) {
    if constexpr (Scaled<Epilogue>::YES)
        row_scales<TOKENS, THREADS>(p.gemm, p.scale, token, scales);
}

/// Runs `Epilogue` over `rows` rows of sums [rows, split_k::ROW], whole and visible to all threads;
/// a warp has `BATCH` rows' inputs in flight. `scales` is null for rows that are scaled.
template <class Epilogue, int THREADS, int BATCH>
__device__ void finish(const typename Epilogue::Params &p, float *sums, const float *scales,
                       split_k::Place place, int rows) {
    constexpr int WARPS = THREADS / 32;
    const int thread = ptx::thread_now(), warp = thread / 32, lane = thread % 32;
    if constexpr (HasHeadTerms<Epilogue>::YES) {
        if (p.terms.bias || p.terms.q_norm) {
            // The rows that this warp finishes below.
#pragma unroll 1
            for (int i = warp; i < rows; i += WARPS)
                head_terms(p, sums + i * split_k::ROW, scales[i], place.feature, lane);
            __syncwarp();
            scales = nullptr;  // The rows are scaled.
        }
    }
    const typename Epilogue::Column column = Epilogue::column(p, place.feature, lane);
#pragma unroll 1
    for (int first = warp; first < rows; first += WARPS * BATCH) {
        typename Epilogue::Input inputs[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = first + j * WARPS;
            if (i < rows) inputs[j] = Epilogue::fetch(p, place.token + i, place.feature, lane);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const int i = first + j * WARPS;
            if (i >= rows) break;
            const float scale = Scaled<Epilogue>::YES && scales ? scales[i] : 1.0f;
            Epilogue::row(p, column, inputs[j], sums + i * split_k::ROW, scale, place.token + i,
                          place.feature, lane);
        }
    }
}

}  // namespace epilogue
