// Softmax of decode rows over tiles of 16 tokens (tokens on mma's rows, heads on its columns), and
// the merge of partial softmaxes.
#pragma once
#include "common/paged.cuh"

/// scores[token, head] of one block: tokens g and g+8, heads 2q and 2q+1.
template <int HD, int TILES>
__device__ void score(u32 keys, const u32 (&queries)[TILES][HD / 16][2],
                      float (&scores)[TILES][4]) {
    const int lane = threadIdx.x % 32;
    const u32 row = keys + chunk_at<HD>(lane % 16, lane / 16);
#pragma unroll
    for (int t = 0; t < TILES; t++)
        scores[t][0] = scores[t][1] = scores[t][2] = scores[t][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        u32 a[4];
        ptx::load_matrix_x4(a, along(row, k));
#pragma unroll
        for (int t = 0; t < TILES; t++)
            ptx::mma_bf16(scores[t], a[0], a[1], a[2], a[3], queries[t][k][0], queries[t][k][1]);
    }
}

/// Exponentials of four blocks of 16 tokens, one of each warp, for all warps.
template <int TILES>
struct Exponentials {
    static constexpr int HEADS = 8 * TILES, BLOCKS = 4;
    /// Floats of a head: 4 more than tokens, so that the lanes of a store are in different banks.
    static constexpr int STRIDE = BLOCK_TOKENS + 4;
    float of[BLOCKS][HEADS][STRIDE];
    /// Score that a block's exponentials are relative to.
    float reference[BLOCKS][HEADS];
};

/// Scores of a warp's block become its exponentials, relative to a score of the block.
template <int TILES>
__device__ void put(float scale, const float (&scores)[TILES][4], Exponentials<TILES> &to) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int head = t * 8 + q * 2 + h;
            const float low = order::on_grid(scores[t][h], scale),
                        high = order::on_grid(scores[t][h + 2], scale);
            float largest = fmaxf(low, high);
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
            const float reference = order::reference_of(largest);
            to.of[warp][head][g] = order::exponential(low, reference);
            to.of[warp][head][g + 8] = order::exponential(high, reference);
            if (g == 0) to.reference[warp][head] = reference;
        }
    }
}

/// One warp's part of a row's attention: 8 * TILES heads over all blocks, PLACES of the tiles of 16
/// output places. Lane (g = lane/4, q = lane%4) holds places g and g+8 of each 16, heads 2q and
/// 2q+1 of each 8; and what concerns the exponentials of head g.
template <int PLACES, int TILES>
struct Softmax {
    /// Of the partition at work.
    float out[TILES][PLACES][4];
    /// The same of the partitions before it.
    float total[TILES][PLACES][4];
    /// Score that the exponentials are relative to, of head g; and those of the partitions before.
    float reference[TILES], total_reference[TILES];
    /// Sum of exponentials of head g, of tokens 2q and 2q+1 of every eight; and of the partitions
    /// before, all tokens.
    float sum[TILES], total_sum[TILES];

    __device__ void clear() {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            sum[t] = 0.0f;
#pragma unroll
            for (int j = 0; j < PLACES; j++)
                out[t][j][0] = out[t][j][1] = out[t][j][2] = out[t][j][3] = 0.0f;
        }
    }
    __device__ void start() {
        clear();
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            reference[t] = total_reference[t] = static_cast<float>(order::NOTHING);
            total_sum[t] = 0.0f;
#pragma unroll
            for (int j = 0; j < PLACES; j++)
                total[t][j][0] = total[t][j][1] = total[t][j][2] = total[t][j][3] = 0.0f;
        }
    }

    /// Multiplies `values`, of heads 2q and 2q+1, by factors that lanes have for head g.
    static __device__ __forceinline__ void scale(float (&values)[PLACES][4], float factor) {
        const int q = threadIdx.x % 4;
        const float even = __shfl_sync(~0u, factor, q * 8),
                    odd = __shfl_sync(~0u, factor, q * 8 + 4);
#pragma unroll
        for (int j = 0; j < PLACES; j++) {
            values[j][0] *= even, values[j][1] *= odd;
            values[j][2] *= even, values[j][3] *= odd;
        }
    }

    /// out[place, head] += values[token, place] * exponentials[token, head] over blocks
    /// `first..last` of four, in their order. `values_of(block)` is where a block's values begin.
    template <int HD, class Values>
    __device__ __forceinline__ void accumulate(const Exponentials<TILES> &from, int first, int last,
                                               const Values &values_of) {
        constexpr int BLOCKS = Exponentials<TILES>::BLOCKS;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
        float factor[TILES][BLOCKS], decay[TILES];
        bool grew = false;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float before = reference[t];
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const bool is_there = b >= first && b < last;
                factor[t][b] = is_there ? from.reference[b][t * 8 + g] : NO_SCORE;
                reference[t] = fmaxf(reference[t], factor[t][b]);
            }
#pragma unroll
            for (int b = 0; b < BLOCKS; b++)
                factor[t][b] = order::exponential(factor[t][b], reference[t]);
            decay[t] = order::exponential(before, reference[t]);
            grew |= reference[t] > before;
        }
        if (__any_sync(~0u, grew)) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                sum[t] *= decay[t];
                scale(out[t], decay[t]);
            }
        }
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (b < first || b >= last) continue;
            u32 weights[TILES][2];
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const float *of = &from.of[b][t * 8 + g][q * 2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float2 pair = *reinterpret_cast<const float2 *>(of + half * 8);
                    pair.x *= factor[t][b], pair.y *= factor[t][b];
                    sum[t] = __fadd_rn(__fadd_rn(sum[t], pair.x), pair.y);
                    weights[t][half] = ptx::pack_bf16(pair.x, pair.y);
                }
            }
            const u32 row = values_of(b) + chunk_at<HD>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
            for (int j = 0; j < PLACES; j++) {
                u32 a[4];
                ptx::load_matrix_x4_trans(a, along(row, warp * PLACES + j));
#pragma unroll
                for (int t = 0; t < TILES; t++)
                    ptx::mma_bf16(out[t][j], a[0], a[1], a[2], a[3], weights[t][0], weights[t][1]);
            }
        }
    }

    /// Ends a partition: adds it to the total of those before.
    __device__ void end_partition() {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float decay = order::exponential(total_reference[t], reference[t]);
            total_sum[t] = __fadd_rn(total_sum[t] * decay, order::total(sum[t]));
            scale(total[t], decay);
#pragma unroll
            for (int j = 0; j < PLACES; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    total[t][j][i] = __fadd_rn(total[t][j][i], out[t][j][i]);
            }
            total_reference[t] = reference[t];
        }
        clear();
    }
};

/// Four places of one head, unnormalised, with what they are relative to.
struct Merged {
    float4 out;
    float reference, sum;
};

__device__ __forceinline__ void add_scaled(Merged &merged, const float4 &out, float sum,
                                           float factor) {
    merged.out.x += out.x * factor;
    merged.out.y += out.y * factor;
    merged.out.z += out.z * factor;
    merged.out.w += out.w * factor;
    merged.sum += sum * factor;
}

/// Sums the partitions of one head in their order. `sums` and `out` are the first split's; others
/// follow at the strides.
__device__ Merged merge_splits(const float *out, i64 out_stride, const float *sums, int sums_stride,
                               int splits) {
    Merged merged{make_float4(0.0f, 0.0f, 0.0f, 0.0f), static_cast<float>(order::NOTHING), 0.0f};
#pragma unroll 8
    for (int s = 0; s < splits; s++)
        merged.reference = fmaxf(merged.reference, ptx::load_l2_pair(sums + s * sums_stride).x);
#pragma unroll 8
    for (int s = 0; s < splits; s++) {
        const float2 of_split = ptx::load_l2_pair(sums + s * sums_stride);
        add_scaled(merged, ptx::load_l2(out + s * out_stride), of_split.y,
                   order::exponential(of_split.x, merged.reference));
    }
    return merged;
}

__device__ void store_normalised(bf16 *to, const Merged &merged) {
    const float scale = 1.0f / merged.sum;
    const uint2 packed = make_uint2(ptx::pack_bf16(merged.out.x * scale, merged.out.y * scale),
                                    ptx::pack_bf16(merged.out.z * scale, merged.out.w * scale));
    *reinterpret_cast<uint2 *>(to) = packed;
}
