// The one order in which attention sums, of decode rows and of prompts.
//
// A context is cut into partitions at absolute positions. In a partition a query's outputs are one
// chain of mma's, 16 tokens each, from its first token on; its exponentials are summed by four
// lanes, each those of two neighbouring tokens of every eight, and these in a fixed tree.
// Partitions are added one after the other. So a row's bits depend neither on the kernel, nor on
// other rows, nor on which blocks share a context.
//
// That needs exponentials whose bits do not depend on what they are relative to, as that is the
// largest score of what a kernel happens to have read so far (online softmax). It is an integer
// here, so that another one scales exponentials, outputs and sums by a power of two, exactly; and
// scores are rounded to a grid before, so that the difference is exact, too. Beyond the range of
// floats that ends: a weight 2^-126 times the largest, and scores of a magnitude above
// 1024 ln 2, at which the grid is coarser.
#pragma once
#include "common/ptx.cuh"

/// The score of a token that is not attended to: minus infinity.
#define NO_SCORE __int_as_float(static_cast<int>(0xff800000u))

namespace order {

/// Scores are rounded to multiples of 2^-12, the unit in the last place of floats near this origin.
/// An exponential is off by 2^-13 ln 2 at most, a fortieth of its rounding to bf16.
constexpr int ORIGIN = 3072;

/// A score times scale (log2 e / sqrt(hd)) on the grid, from the origin on.
__device__ __forceinline__ float on_grid(float score, float scale) {
    return __fmaf_rn(score, scale, static_cast<float>(ORIGIN));
}

/// The integer next to a score on the grid: what exponentials are relative to. No score: none.
__device__ __forceinline__ float reference_of(float largest) {
    constexpr float INTEGERS = 12582912.0f;
    return __fadd_rn(__fadd_rn(largest, INTEGERS), -INTEGERS);
}

/// Reference of sums without a score: far below all scores, and finite, so that differences
/// are numbers.
constexpr int NOTHING = -1048576;

/// 2 to the power of the difference of two scores on the grid.
__device__ __forceinline__ float exponential(float score, float reference) {
    return ptx::exp2_approx(__fadd_rn(score, -reference));
}

/// Partitions of a context: of 512 tokens up to position 8192, of 2048 up to 32768, then of 8192.
/// Many share a short context, and the sums of a long one are few.
constexpr int SMALL = 512, MIDDLE = 2048, LARGE = 8192;
constexpr int MIDDLE_FROM = 8192, LARGE_FROM = 32768;
constexpr int SMALL_ONES = MIDDLE_FROM / SMALL,
              UP_TO_MIDDLE = SMALL_ONES + (LARGE_FROM - MIDDLE_FROM) / MIDDLE;

/// The partition of a token.
__device__ __forceinline__ int partition_of(int token) {
    if (token < MIDDLE_FROM) return token / SMALL;
    if (token < LARGE_FROM) return SMALL_ONES + (token - MIDDLE_FROM) / MIDDLE;
    return UP_TO_MIDDLE + (token - LARGE_FROM) / LARGE;
}

/// The first token of a partition.
__device__ __forceinline__ int begin_of(int partition) {
    if (partition <= SMALL_ONES) return partition * SMALL;
    if (partition <= UP_TO_MIDDLE) return MIDDLE_FROM + (partition - SMALL_ONES) * MIDDLE;
    return LARGE_FROM + (partition - UP_TO_MIDDLE) * LARGE;
}

/// True if a partition begins with `token`.
__device__ __forceinline__ bool begins_partition(int token) {
    return token % SMALL == 0 &&
           (token <= MIDDLE_FROM ||
            (token % MIDDLE == 0 && (token <= LARGE_FROM || token % LARGE == 0)));
}

/// The first token behind the partition of `token`.
__device__ __forceinline__ int end_of(int token) { return begin_of(partition_of(token) + 1); }

/// The sum of a row's exponentials, a part in each of four neighbouring lanes.
__device__ __forceinline__ float total(float sum) {
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
}

}  // namespace order
