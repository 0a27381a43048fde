// Online softmax in the registers of a warpgroup: scores as wgmma leaves them, weights as its first
// operand. A thread has two of 64 queries, 8 apart, and of each a quarter of the tokens.
#pragma once
#include "common/prefill.cuh"

namespace softmax {

/// Scores of a tile, then exponentials: 4n + 2r + e is row r, token 8n + 2 (lane % 4) + e.
template <int TOKENS>
using Scores = float[TOKENS / 2];

/// A partition in progress: queries and weights as operands, output as sums of products, of each
/// row the reference of its exponentials and this thread's sum.
template <int HD, int TOKENS>
struct State {
    u32 queries[HD / 16][4], weights[TOKENS / 16][4];
    float out[HD / 2];
    float reference[2], sum[2];
};

/// The partitions so far of a work: as in State, `sum` of all lanes.
template <int HD>
struct Totals {
    float out[HD / 2];
    float reference[2], sum[2];

    __device__ __forceinline__ void begin() {
        reference[0] = reference[1] = static_cast<float>(order::NOTHING);
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HD / 2; i++) out[i] = 0.0f;
    }

    /// Adds a partition, whose sums of all lanes are `sums`.
    template <int TOKENS>
    __device__ __forceinline__ void add(const State<HD, TOKENS> &state, const float (&sums)[2]) {
        float before[2], now[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float all = fmaxf(reference[r], state.reference[r]);
            before[r] = order::exponential(reference[r], all);
            now[r] = order::exponential(state.reference[r], all);
            sum[r] = __fadd_rn(sum[r] * before[r], sums[r] * now[r]);
            reference[r] = all;
        }
#pragma unroll
        for (int i = 0; i < HD / 2; i++)
            out[i] = __fadd_rn(out[i] * before[i / 2 % 2], state.out[i] * now[i / 2 % 2]);
    }
};

/// The query of this thread's row `r`.
__device__ __forceinline__ int query_of(const prefill::Work &work, int r) {
    return work.first + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + r * 8;
}

template <int HD, int TOKENS>
__device__ __forceinline__ void begin(State<HD, TOKENS> &state) {
    state.reference[0] = state.reference[1] = static_cast<float>(order::NOTHING);
    state.sum[0] = state.sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < HD / 2; i++) state.out[i] = 0.0f;
}

/// Masks what a row must not see.
template <int TOKENS>
__device__ __forceinline__ void mask(const PrefillAttentionParams &p, const prefill::Work &work,
                                     int tile, Scores<TOKENS> &scores) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const prefill::Visible visible =
            prefill::visible_to(p, work, query_of(work, r), tile * TOKENS + threadIdx.x % 4 * 2);
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!visible.has(n * 8 + e)) scores[n * 4 + r * 2 + e] = NO_SCORE;
            }
        }
    }
}

/// Scores become exponentials relative to the largest so far. Returns true if that grew, and the
/// output is to be multiplied by `decay`.
template <int HD, int TOKENS>
__device__ __forceinline__ bool soften(State<HD, TOKENS> &state, float scale,
                                       Scores<TOKENS> &scores, float (&decay)[2]) {
    bool grew = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float tile_max = NO_SCORE;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &score = scores[n * 4 + r * 2 + e];
                score = order::on_grid(score, scale);
                tile_max = fmaxf(tile_max, score);
            }
        }
        decay[r] = prefill::raise(state.reference[r], tile_max);
        grew |= decay[r] != 1.0f;
        state.sum[r] *= decay[r];
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &score = scores[n * 4 + r * 2 + e];
                score = order::exponential(score, state.reference[r]);
                state.sum[r] = __fadd_rn(state.sum[r], score);
            }
        }
    }
    return grew;
}

/// Multiplies the output by `decay` where the reference of the exponentials has changed, and packs
/// them as the next products' first operand.
template <int HD, int TOKENS>
__device__ __forceinline__ void weigh(State<HD, TOKENS> &state, const Scores<TOKENS> &scores,
                                      bool grew, const float (&decay)[2]) {
    if (__any_sync(~0u, grew)) {
#pragma unroll
        for (int i = 0; i < HD / 2; i++) state.out[i] *= decay[i / 2 % 2];
    }
#pragma unroll
    for (int n = 0; n < TOKENS / 8; n++) {
#pragma unroll
        for (int r = 0; r < 2; r++)
            state.weights[n / 2][n % 2 * 2 + r] =
                ptx::pack_bf16(scores[n * 4 + r * 2], scores[n * 4 + r * 2 + 1]);
    }
}

}  // namespace softmax
