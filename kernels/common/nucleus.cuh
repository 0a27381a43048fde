// Top-p: where a row's nucleus ends, and the truncation of its weights. A row has a team of blocks
// of threads, the grid's first extent: each passes over its share of the row, and meets the others
// at a barrier with the sums of 256 tokens, from which all draw the same conclusions. With a team
// of one the barrier is the block's own.
#pragma once
#include "common/barrier.cuh"
#include "common/select.cuh"

/// A band of so many tokens is not narrowed further; nor is it after so many steps. The CPU's
/// bounds: the choice depends on them in its last bits.
constexpr int FEW = 2048, MAX_STEPS = 16;

/// The arrays by 256 tokens, in dynamic shared memory, and a band of tokens (key of the logit,
/// token) behind them.
struct Blocks {
    float *max, *raw_max, *sums, *raw_sums;
    u64 *band;
};

/// The end of a set of tokens: all that rank before `key`, and those of this key up to token
/// `last`.
struct SetEnd {
    bool found;
    u32 key;
    int last;
};

/// Sum of `count` floats, f64 as on the CPU: in order of index. Where all floats are multiples of
/// 2^(e - 52), and their sum is below 2^e, no addition of any order rounds, and a tree gives the
/// same bits as the chain of additions, in a tenth of its time. That fails where a number is some
/// 2^29 times smaller than the sum, and one thread adds in order.
__device__ double ordered_sum(Scratch &scratch, const float *values, int count) {
    const int warp = threadIdx.x / 32;
    double total = 0.0;
    for (int i = threadIdx.x; i < count; i += THREADS) total += static_cast<double>(values[i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    if (threadIdx.x % 32 == 0) scratch.sums[warp] = total;
    __syncthreads();
    total = 0.0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) total += scratch.sums[w];
    // The power of two above the sum: what is added to it keeps only multiples of 2^(e - 52).
    const double above =
        __longlong_as_double((__double_as_longlong(total) >> 52 & 0x7ff) + 1 << 52);
    bool is_exact = true;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const double value = values[i];
        is_exact &= __dsub_rn(__dadd_rn(value, above), above) == value;
    }
    is_exact = __all_sync(~0u, is_exact);
    if (threadIdx.x % 32 == 0) scratch.exact[warp] = is_exact;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) is_exact &= scratch.exact[w] != 0;
    if (!is_exact) {
        if (threadIdx.x == 0) {
            double in_order = 0.0;
#pragma unroll 16
            for (int i = 0; i < count; i++) in_order += static_cast<double>(values[i]);
            scratch.total = in_order;
        }
        __syncthreads();
        total = scratch.total;
    }
    // The next sum writes the scratch again.
    __syncthreads();
    return total;
}

/// A pass over a row: sum of its values, and how many are above zero.
struct Sum {
    double total;
    int tokens;
};

/// A row's team, as one of its blocks sees it.
class Team {
    GridBarrier barrier;
    /// Sums that the team exchanges: of two passes, in turn, so that none is overwritten before all
    /// have read it.
    float *const sums;
    int pass;

  public:
    const int begin, end;

    /// The row's blocks of 256 tokens `begin..end` are this block's share.
    __device__ Team(const SampleParams &p, const Row &row)
        : barrier(p.team_barriers + blockIdx.y),
          sums(p.team_sums + row.blocks * 4),
          pass(0),
          begin(p.blocks * blockIdx.x / gridDim.x),
          end(p.blocks * (blockIdx.x + 1) / gridDim.x) {}

    /// Returns when the whole team has come; what its blocks wrote is visible to all.
    __device__ __forceinline__ void meet() {
        if (gridDim.x == 1) {
            __syncthreads();
        } else {
            barrier.arrive();
            barrier.wait();
        }
    }

    /// Runs `value(token, weight)` over all blocks of 256 tokens whose sum is above `least`. Its
    /// sums by block, in the CPU's order, go to `to`.
    template <class Value>
    __device__ Sum sum_blocks(const SampleParams &p, const Row &row, Scratch &scratch,
                              const float *block_sums, float least, float *to, Value value) {
        float *const shared_out = sums + (pass ^= 1) * p.blocks * 2;
        const int lane = threadIdx.x % SUM_LANES, halves = THREADS / SUM_LANES;
        // Both halves of a warp shuffle together, so they go on together.
        for (int first = begin + threadIdx.x / 32 * 2; first < end; first += halves) {
            const int b = first + threadIdx.x / SUM_LANES % 2;
            float sum = 0.0f;
            int tokens = 0;
            if (b < end && block_sums[b] > least) {
#pragma unroll 8
                for (int i = 0; i < SUM_TOKENS / SUM_LANES; i++) {
                    const int token = b * SUM_TOKENS + i * SUM_LANES + lane;
                    const float kept = token < p.vocab ? value(token, row.weights[token]) : 0.0f;
                    sum = __fadd_rn(sum, kept);
                    tokens += kept > 0.0f;
                }
            }
            sum = sum_lanes(sum);
#pragma unroll
            for (int step = SUM_LANES / 2; step > 0; step /= 2)
                tokens += __shfl_xor_sync(~0u, tokens, step);
            if (b < end && lane == 0)
                *reinterpret_cast<float2 *>(shared_out + b * 2) =
                    make_float2(sum, __int_as_float(tokens));
        }
        meet();
        int tokens = 0;
        for (int b = threadIdx.x; b < p.blocks; b += THREADS) {
            const float2 found = ptx::load_l2_pair(shared_out + b * 2);
            to[b] = found.x;
            tokens += __float_as_int(found.y);
        }
        tokens = __reduce_add_sync(~0u, tokens);
        if (threadIdx.x % 32 == 0) scratch.counts[threadIdx.x / 32] = tokens;
        __syncthreads();
        tokens = 0;
        for (int w = 0; w < WARPS; w++) tokens += scratch.counts[w];
        return {ordered_sum(scratch, to, p.blocks), tokens};
    }
};

/// Tokens above a weight: mass and number of all greater weights.
struct Above {
    float weight;
    double mass;
    int tokens;
};

__device__ Above above(const SampleParams &p, const Row &row, Team &team, Scratch &scratch,
                       const Blocks &blocks, float weight) {
    // The maxima have done their work: their place holds this weight's sums.
    const Sum sum = team.sum_blocks(
        p, row, scratch, blocks.sums, weight, blocks.max,
        [&](int, float other) { return other > weight ? other : 0.0f; });
    return {weight, sum.total, sum.tokens};
}

/// The band of weights above `low` and at most `high`, in which the nucleus ends, in fixed point.
struct Band {
    float low, high;
    double scale;
    __device__ bool holds(float weight) const { return weight > low && weight <= high; }
    __device__ u64 measure(float weight) const {
        const u64 fixed = __double2ull_rn(__dmul_rn(static_cast<double>(weight), scale));
        return fixed > 0 ? fixed : 1;
    }
};

/// Brings the band's tokens, at most FEW, to every block's shared memory, in no particular order.
__device__ void gather(const SampleParams &p, const Row &row, Team &team, const Blocks &blocks,
                       const Band &band, int count) {
    u64 *const list = p.band + static_cast<i64>(blockIdx.y) * FEW;
    for (int b = team.begin + threadIdx.x / 32; b < team.end; b += WARPS) {
        if (blocks.sums[b] <= band.low) continue;
#pragma unroll 4
        for (int i = 0; i < SUM_TOKENS / 32; i++) {
            const int token = b * SUM_TOKENS + i * 32 + threadIdx.x % 32;
            if (token < p.vocab && band.holds(row.weights[token]))
                list[atomicAdd(p.band_count + blockIdx.y, 1u)] =
                    static_cast<u64>(key_of(row.penalised(token))) << 32 | static_cast<u32>(token);
        }
    }
    team.meet();
    // For the next launch.
    if (blockIdx.x == 0 && threadIdx.x == 0) p.band_count[blockIdx.y] = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) blocks.band[i] = list[i];
    __syncthreads();
}

/// The end of the nucleus in a band of few tokens, `wanted` of whose measure belong to it.
__device__ SetEnd end_in_list(const Row &row, Scratch &scratch, const Blocks &blocks,
                                const Band &band, int count, u64 wanted) {
    const float max = scratch.weights[0];
    const auto weight_of = [&](u32 key) {
        return exponential(logit_of(key), max, row.sampling.tempering);
    };
    SetEnd end{true, 0, 0};
    // Where rounding leaves the whole band short of the target, its last token ends the nucleus.
    descend(scratch, wanted, end.key, true, [&](const Take &take) {
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const u32 key = static_cast<u32>(blocks.band[i] >> 32);
            take(key, band.measure(weight_of(key)));
        }
    });
    // Equal logits have equal weights: the number that is needed, in order of id.
    const u64 each = band.measure(weight_of(end.key));
    u64 nth = (wanted + each - 1) / each;
    u32 last = 0;
    descend(scratch, nth, last, true, [&](const Take &take) {
        for (int i = threadIdx.x; i < count; i += THREADS) {
            if (static_cast<u32>(blocks.band[i] >> 32) == end.key)
                take(static_cast<u32>(blocks.band[i]), 1);
        }
    });
    end.last = static_cast<int>(last);
    return end;
}

/// The same in a band of many, nearly equal weights: each block passes over the whole row.
__device__ SetEnd end_in_row(const SampleParams &p, const Row &row, Scratch &scratch,
                               const Blocks &blocks, const Band &band, u64 wanted) {
    SetEnd end{true, 0, 0};
    descend(scratch, wanted, end.key, true, [&](const Take &take) {
        for (int b = threadIdx.x / 32; b < p.blocks; b += WARPS) {
            if (blocks.sums[b] <= band.low) continue;
            for (int token = b * SUM_TOKENS + threadIdx.x % 32;
                 token < min((b + 1) * SUM_TOKENS, p.vocab); token += 32) {
                const float weight = row.weights[token];
                if (band.holds(weight)) take(key_of(row.penalised(token)), band.measure(weight));
            }
        }
    });
    const float max = scratch.weights[0];
    const u64 each = band.measure(exponential(logit_of(end.key), max, row.sampling.tempering));
    const u32 key = end.key;
    end.last = find_nth(
        p, scratch, (wanted + each - 1) / each, [&](int b) { return blocks.sums[b] > band.low; },
        [&](int token) {
            return band.holds(row.weights[token]) && key_of(row.penalised(token)) == key;
        });
    return end;
}

/// The end of the nucleus: the best tokens until their weights reach `target`. Not found: all is
/// nucleus. `negligible`: see the CPU's nucleus_end.
__device__ SetEnd end_of_nucleus(const SampleParams &p, const Row &row, Team &team,
                                   Scratch &scratch, const Blocks &blocks, double target,
                                   float negligible) {
    Above low{0.0f, 0.0, 0}, high{1.0f, 0.0, 0};
    float weight = fmaxf(negligible, 5.877471754e-39f);
    // The first weight is the band's lower end; those behind it halve the band. One loop, as the
    // code of a pass is long.
    for (int step = 0;; step++) {
        const Above middle = above(p, row, team, scratch, blocks, weight);
        if (step == 0 || middle.mass >= target) {
            low = middle;
        } else {
            high = middle;
        }
        if (step == MAX_STEPS || low.tokens - high.tokens <= FEW) break;
        weight = __fmul_rn(__fsqrt_rn(low.weight), __fsqrt_rn(high.weight));
    }
    const int count = low.tokens - high.tokens;
    if (low.mass < target || count == 0) return {false, 0, 0};
    // Few: 50 bits below the largest's first; more: 43, and then they are nearly equal.
    const int exponent = static_cast<int>(__float_as_uint(high.weight) >> 23) - 127;
    const int bits = (count <= FEW ? 50 : 43) - exponent;
    const Band band{low.weight, high.weight,
                    __longlong_as_double(static_cast<i64>(bits + 1023) << 52)};
    const double wanted = __dmul_rn(__dsub_rn(target, high.mass), band.scale);
    const u64 missing = wanted > 1.0 ? __double2ull_ru(wanted) : 1;
    if (count > FEW) {
        const SetEnd end = end_in_row(p, row, scratch, blocks, band, missing);
        // No block truncates weights that others still read.
        team.meet();
        return end;
    }
    gather(p, row, team, blocks, band, count);
    return end_in_list(row, scratch, blocks, band, count, missing);
}

/// Zeroes the weights of all tokens after `end`; the blocks' sums follow. Returns the new total.
__device__ double keep_through(const SampleParams &p, const Row &row, Team &team, Scratch &scratch,
                             const Blocks &blocks, const SetEnd &end) {
    // In place: a block's own sum is read before the team has met.
    const Sum sum = team.sum_blocks(
        p, row, scratch, blocks.sums, 0.0f, blocks.sums, [&](int token, float weight) {
            const u32 key = key_of(row.penalised(token));
            if (key < end.key || (key == end.key && token <= end.last)) return weight;
            row.weights[token] = 0.0f;
            return 0.0f;
        });
    return sum.total;
}
