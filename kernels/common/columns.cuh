// Online softmax of one warp over tiles of 16 tokens (tokens on mma's rows, query heads on its
// columns), and the merge of partial softmaxes.
#pragma once
#include "common/paged.cuh"

/// One warp's part of the online softmax: 8 * TILES heads over its blocks. Lane (g = lane/4, q =
/// lane%4) holds output places g and g+8 of each 16, heads 2q and 2q+1 of each 8.
template <int HD, int TILES>
struct Softmax {
    float out[TILES][HD / 16][4];
    /// Largest score so far times scale, by head; the same in all lanes of a column.
    float largest[TILES][2];
    /// This lane's share of the sum of exponentials.
    float sum[TILES][2];
};

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

/// The online softmax's update: scores become exponentials relative to the largest score so far;
/// the accumulated output and sum are rescaled when it grows.
template <int HD, int TILES>
__device__ void soften(float scale, float (&scores)[TILES][4], Softmax<HD, TILES> &state) {
    float largest[TILES][2];
    bool grew = false;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float tile_max = fmaxf(scores[t][h], scores[t][h + 2]);
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                tile_max = fmaxf(tile_max, __shfl_xor_sync(~0u, tile_max, step));
            largest[t][h] = fmaxf(state.largest[t][h], tile_max * scale);
            grew |= largest[t][h] > state.largest[t][h];
        }
    }
    if (__any_sync(~0u, grew)) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float decay[2] = {ptx::exp2_approx(state.largest[t][0] - largest[t][0]),
                                    ptx::exp2_approx(state.largest[t][1] - largest[t][1])};
#pragma unroll
            for (int j = 0; j < HD / 16; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) state.out[t][j][i] *= decay[i % 2];
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                state.sum[t][h] *= decay[h];
                state.largest[t][h] = largest[t][h];
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            scores[t][i] = ptx::exp2_approx(scores[t][i] * scale - state.largest[t][i % 2]);
#pragma unroll
        for (int h = 0; h < 2; h++) state.sum[t][h] += scores[t][h] + scores[t][h + 2];
    }
}

/// out[place, head] += values[token, place] * exponentials[token, head].
template <int HD, int TILES>
__device__ void accumulate(u32 values, const float (&exponentials)[TILES][4],
                           Softmax<HD, TILES> &state) {
    const int lane = threadIdx.x % 32;
    const u32 row = values + chunk_at<HD>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    u32 b[TILES][2];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        b[t][0] = ptx::transpose_matrix(ptx::pack_bf16(exponentials[t][0], exponentials[t][1]));
        b[t][1] = ptx::transpose_matrix(ptx::pack_bf16(exponentials[t][2], exponentials[t][3]));
    }
#pragma unroll
    for (int j = 0; j < HD / 16; j++) {
        u32 a[4];
        ptx::load_matrix_x4_trans(a, along(row, j));
#pragma unroll
        for (int t = 0; t < TILES; t++)
            ptx::mma_bf16(state.out[t][j], a[0], a[1], a[2], a[3], b[t][0], b[t][1]);
    }
}

/// Four places of one head, unnormalised, with what they are relative to.
struct Merged {
    float4 out;
    float largest, sum;
};

__device__ __forceinline__ void add_scaled(Merged &merged, const float4 &out, float sum,
                                           float factor) {
    merged.out.x += out.x * factor;
    merged.out.y += out.y * factor;
    merged.out.z += out.z * factor;
    merged.out.w += out.w * factor;
    merged.sum += sum * factor;
}

/// Sums the splits of one head in their order. `sums` and `out` are the first split's; others
/// follow at the strides.
__device__ Merged merge_splits(const float *out, i64 out_stride, const float *sums, int sums_stride,
                               int splits) {
    Merged merged{make_float4(0.0f, 0.0f, 0.0f, 0.0f), NO_SCORE, 0.0f};
#pragma unroll 8
    for (int s = 0; s < splits; s++)
        merged.largest = fmaxf(merged.largest, ptx::load_l2_pair(sums + s * sums_stride).x);
#pragma unroll 8
    for (int s = 0; s < splits; s++) {
        const float2 of_split = ptx::load_l2_pair(sums + s * sums_stride);
        add_scaled(merged, ptx::load_l2(out + s * out_stride), of_split.y,
                   ptx::exp2_approx(of_split.x - merged.largest));
    }
    return merged;
}

__device__ void store_normalised(bf16 *to, const Merged &merged) {
    const float scale = 1.0f / merged.sum;
    const uint2 packed = make_uint2(ptx::pack_bf16(merged.out.x * scale, merged.out.y * scale),
                                    ptx::pack_bf16(merged.out.z * scale, merged.out.w * scale));
    *reinterpret_cast<uint2 *>(to) = packed;
}
