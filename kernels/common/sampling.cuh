// The sampler's arithmetic, to the bit what runtime/src/sampling does on the CPU: no multiply-add
// is fused, sums have the CPU's lanes and order.
#pragma once
#include "common/ptx.cuh"

/// Tokens of a partial sum, and the lanes that share it: token i belongs to lane i % 16.
constexpr int SUM_TOKENS = 256, SUM_LANES = 16;

/// Bit of a token count that is set if the token is in the prompt; the bits below count its
/// occurrences in the output.
constexpr u32 IN_PROMPT = 0x80000000u;

#define MINUS_INFINITY __int_as_float(static_cast<int>(0xff800000u))
#define PLUS_INFINITY __int_as_float(0x7f800000)

/// True for NaN and plus infinity: damaged weights or an overflow. Minus infinity masks a token.
__device__ __forceinline__ bool is_broken(float logit) { return !(logit < PLUS_INFINITY); }

/// 2^x for x <= 0 to a relative error of 3e-7; 0 below 2^-126 and for NaN. exp2.rs has the
/// derivation.
__device__ __forceinline__ float exp2_exact(float x) {
    const float rounder = 12582912.0f, shifted = __fadd_rn(x, rounder),
                fraction = __fsub_rn(x, __fsub_rn(shifted, rounder));
    float y = 0.0013264626f;
    y = __fadd_rn(__fmul_rn(y, fraction), 0.009671494f);
    y = __fadd_rn(__fmul_rn(y, fraction), 0.05550734f);
    y = __fadd_rn(__fmul_rn(y, fraction), 0.24022242f);
    y = __fadd_rn(__fmul_rn(y, fraction), 0.693147f);
    y = __fadd_rn(__fmul_rn(y, fraction), 1.0f);
    const float power = __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
    return x >= -126.0f ? power : 0.0f;
}

/// exp((logit - max) / temperature), where `tempering` is log2(e) / temperature.
__device__ __forceinline__ float exponential(float logit, float max, float tempering) {
    return exp2_exact(__fmul_rn(__fsub_rn(logit, max), tempering));
}

/// The sum over 16 neighbouring lanes, returned to each: the CPU's tree.
__device__ __forceinline__ float sum_lanes(float value) {
#pragma unroll
    for (int step = SUM_LANES / 2; step > 0; step /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

/// The largest of `count` floats, of two arrays, in every thread of a block of `WARPS` warps.
template <int WARPS>
__device__ __forceinline__ float2 largest_pair(const float *left, const float *right, int count,
                                               float2 *exchange) {
    float2 row_max = make_float2(MINUS_INFINITY, MINUS_INFINITY);
    for (int i = threadIdx.x; i < count; i += WARPS * 32) {
        row_max.x = fmaxf(row_max.x, left[i]);
        row_max.y = fmaxf(row_max.y, right[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        row_max.x = fmaxf(row_max.x, __shfl_xor_sync(~0u, row_max.x, step));
        row_max.y = fmaxf(row_max.y, __shfl_xor_sync(~0u, row_max.y, step));
    }
    if (threadIdx.x % 32 == 0) exchange[threadIdx.x / 32] = row_max;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        row_max.x = fmaxf(row_max.x, exchange[w].x);
        row_max.y = fmaxf(row_max.y, exchange[w].y);
    }
    return row_max;
}

/// The logit of a token after penalties.
__device__ __forceinline__ float penalise(float logit, u32 seen, const RowSampling &row) {
    if (seen == 0 || logit == MINUS_INFINITY) return logit;
    const u32 count = seen & ~IN_PROMPT;
    const float repeated =
        logit > 0.0f ? __fdiv_rn(logit, row.repetition) : __fmul_rn(logit, row.repetition);
    const float frequent = __fsub_rn(repeated, __fmul_rn(static_cast<float>(count), row.frequency));
    const float penalised = __fsub_rn(frequent, count > 0 ? row.presence : 0.0f);
    return fminf(fmaxf(penalised, -3.40282347e+38f), 3.40282347e+38f);
}

/// Orders logits best first: the better one has the smaller key; 0 and -0 are equal. Not for NaN.
__device__ __forceinline__ u32 key_of(float logit) {
    const u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    return ~(bits ^ (static_cast<u32>(static_cast<int>(bits) >> 31) | 0x80000000u));
}
/// The logit of a key.
__device__ __forceinline__ float logit_of(u32 key) {
    const u32 ascending = ~key;
    return __uint_as_float(ascending >> 31 ? ascending ^ 0x80000000u : ~ascending);
}

/// Philox4x32-10's number in [0, 1) that belongs to (seed, position), with 53 random bits.
__device__ __forceinline__ double uniform(u64 seed, u32 position) {
    u32 counter[4] = {position, 0, 0, 0},
        key[2] = {static_cast<u32>(seed), static_cast<u32>(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        const u64 a = 0xD2511F53ull * counter[0], b = 0xCD9E8D57ull * counter[2];
        const u32 first = static_cast<u32>(b >> 32) ^ counter[1] ^ key[0],
                  third = static_cast<u32>(a >> 32) ^ counter[3] ^ key[1];
        counter[0] = first;
        counter[1] = static_cast<u32>(b);
        counter[2] = third;
        counter[3] = static_cast<u32>(a);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    const u64 bits = (static_cast<u64>(counter[0]) << 32 | counter[1]) >> 11;
    return static_cast<double>(bits) * (1.0 / 9007199254740992.0);
}

/// One row of the sampler: where its logits, token counts and scratch are.
struct Row {
    RowSampling sampling;
    const float *logits;
    /// Null: no penalties.
    u32 *token_counts;
    /// All rows' masks, and the first word of this one's; -1: every token may be chosen. The
    /// address stays in the bank of parameters: registers are short.
    const SampleParams *params;
    int mask_word;
    float *weights;
    /// First of this row's places in the arrays by block.
    i64 blocks;
    int vocab;

    __device__ float raw(int token) const { return logits[token]; }
    /// After mask and penalties.
    __device__ float penalised(int token) const {
        if (mask_word >= 0 &&
            (params->masks[mask_word + token / 32] >> (token % 32) & 1) == 0)
            return MINUS_INFINITY;
        return token_counts ? penalise(raw(token), token_counts[token], sampling) : raw(token);
    }
    /// True if tokens may be cut off (top-k, top-p): then weights are looked at more than once, and
    /// kept in memory.
    __device__ bool truncates() const {
        return sampling.top_p < 1.0f || (sampling.top_k > 0 && sampling.top_k < vocab);
    }
    /// The unnormalised probability of a token before truncation; `max` is the largest logit after
    /// penalties.
    __device__ float weight(int token, float max) const {
        const float weight = exponential(penalised(token), max, sampling.tempering);
        return weight >= sampling.min_p ? weight : 0.0f;
    }
};

/// Row `index` of the launch; false for a padding row.
__device__ __forceinline__ bool take_row(const SampleParams &p, int index, Row &row) {
    row.sampling = p.row_sampling[index];
    if (row.sampling.row < 0) return false;
    row.logits = p.logits + static_cast<i64>(row.sampling.row) * p.stride;
    row.token_counts =
        row.sampling.token_counts_row < 0
            ? nullptr
            : p.token_counts + static_cast<i64>(row.sampling.token_counts_row) * p.vocab;
    row.params = &p;
    row.mask_word = row.sampling.mask_row < 0 ? -1 : row.sampling.mask_row * p.mask_words;
    row.weights = p.weights + static_cast<i64>(index) * p.blocks * SUM_TOKENS;
    row.blocks = static_cast<i64>(index) * p.blocks;
    row.vocab = p.vocab;
    return true;
}
