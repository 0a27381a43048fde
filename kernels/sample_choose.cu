// op      the sampler's choice: top-k, top-p, the draw, the most likely tokens, and the count of
//         the chosen token
// params  SampleParams
// in      logits [rows, stride] f32, row-major, 16-byte aligned
// in      row_sampling [rows] bytes: RowSampling, 8-byte aligned
// in      block_max [rows, blocks] f32, 4-byte aligned
// in      block_raw_max [rows, blocks] f32, 4-byte aligned
// in      block_sums [rows, blocks] f32, 4-byte aligned
// in      block_raw_sums [rows, blocks] f32, 4-byte aligned
// in      block_broken [rows, blocks] u32, 4-byte aligned
// in      step_seq [1] u32, 4-byte aligned
// out     weights [rows, blocks*256] f32, row-major, truncated in place, 16-byte aligned
// out     token_counts [batch_slots, vocab] u32, row-major, the chosen token counted, 4-byte
//         aligned
// out     sampled [rows] bytes: RowSampled, 8-byte aligned
// out     last [batch_slots] i32, 4-byte aligned
// arch    sm_80, sm_90a
// launch  grid [rows], block 512, shared blocks*16 bytes
// limit   bytes: rows*blocks*20
// reference runtime/tests/cuda_sampling/reference.rs::sample
// why     One block of threads a row, working from the sums of 256 tokens. Where a set ends (the k
//         best; the nucleus) is found by descending the bits of the logits, three histograms of 11
//         bits, never by a sort: with counts for top-k, with probabilities in fixed point, which
//         are exact and so of no particular order, for top-p. Blocks of tokens that cannot matter
//         are skipped: those whose maximum is below the k-th largest maximum, those whose sum is
//         below the band of weights that the nucleus ends in. Sums over blocks are f64 in the CPU's
//         order.
#include "common/select.cuh"

namespace {

/// A band of so many tokens is not narrowed further; nor is it after so many steps. The CPU's
/// bounds: the choice depends on them in its last bits.
constexpr int FEW = 2048, MOST_STEPS = 16;

/// The arrays by block, in dynamic shared memory.
struct Blocks {
    float *max, *raw_max, *sums, *raw_sums;
};

extern __shared__ __align__(16) float block_arrays[];

/// The end of a set of tokens: all that rank before `key`, and those of this key up to token
/// `last`.
struct Epilogue {
    bool found;
    u32 key;
    int last;
};

/// Sum in order of index: f64 as on the CPU. One thread's work.
__device__ double ordered_sum(const float *values, int count) {
    double total = 0.0;
#pragma unroll 8
    for (int i = 0; i < count; i++) total += static_cast<double>(values[i]);
    return total;
}

/// The end of the `k` best tokens by `logit(token)`, given the blocks' maxima of it. Not found:
/// there are no more than k.
template <class Logit>
__device__ Epilogue end_of_best(const SampleParams &p, Scratch &scratch, const float *block_max,
                                u64 k, Logit logit) {
    Epilogue end{false, 0, 0};
    u64 missing = k;
    u32 bar = key_of(MINUS_INFINITY) - 1;
    if (k <= p.blocks) {
        // So many blocks hold something at or above the k-th largest maximum: what is below it is
        // not among the k best.
        descend(scratch, missing, bar, false, [&](const Take &take) {
            for (int b = threadIdx.x; b < p.blocks; b += THREADS) {
                if (block_max[b] > MINUS_INFINITY) take(key_of(block_max[b]), 1);
            }
        });
    }
    missing = k;
    const auto is_candidate = [&](int token) {
        return logit(token) > MINUS_INFINITY && key_of(logit(token)) <= bar;
    };
    end.found = descend(scratch, missing, end.key, false, [&](const Take &take) {
        for (int b = threadIdx.x / 32; b < p.blocks; b += WARPS) {
            if (key_of(block_max[b]) > bar) continue;
            for (int token = b * SUM_TOKENS + threadIdx.x % 32;
                 token < min((b + 1) * SUM_TOKENS, p.vocab); token += 32) {
                if (is_candidate(token)) take(key_of(logit(token)), 1);
            }
        }
    });
    const u32 key = end.key;
    if (end.found) {
        end.last = find_nth(p, scratch, missing, [&](int token) {
            return key_of(block_max[token / SUM_TOKENS]) <= key && key_of(logit(token)) == key;
        });
    }
    return end;
}

/// Tokens above a weight: mass and number of all greater weights.
struct Above {
    float weight;
    double mass;
    int tokens;
};

/// Runs `value(token, weight)` over all blocks whose sum is above `least`; its sums by block, in
/// the CPU's order, go to `sums`.
template <class Value>
__device__ void sum_blocks(const SampleParams &p, const Row &row, const float *block_sums,
                           float least, float *sums, Value value) {
    const int lane = threadIdx.x % SUM_LANES, halves = THREADS / SUM_LANES;
    // Both halves of a warp shuffle together, so they go on together.
    for (int first = threadIdx.x / 32 * 2; first < p.blocks; first += halves) {
        const int b = first + threadIdx.x / SUM_LANES % 2;
        const bool there = b < p.blocks && block_sums[b] > least;
        float sum = 0.0f;
        if (there) {
#pragma unroll 8
            for (int i = 0; i < SUM_TOKENS / SUM_LANES; i++) {
                const int token = b * SUM_TOKENS + i * SUM_LANES + lane;
                if (token < p.vocab) sum = __fadd_rn(sum, value(token, row.weights[token]));
            }
        }
        sum = sum_lanes(sum);
        if (b < p.blocks && lane == 0) sums[b] = sum;
    }
}

__device__ Above above(const SampleParams &p, const Row &row, Scratch &scratch,
                       const Blocks &blocks, float weight) {
    int tokens = 0;
    // The maxima have done their work: their place holds this weight's sums.
    sum_blocks(p, row, blocks.sums, weight, blocks.max, [&](int, float other) {
        tokens += other > weight;
        return other > weight ? other : 0.0f;
    });
    tokens = __reduce_add_sync(~0u, tokens);
    if (threadIdx.x % 32 == 0) scratch.counts[threadIdx.x / 32] = tokens;
    __syncthreads();
    if (threadIdx.x == 0) scratch.total = ordered_sum(blocks.max, p.blocks);
    Above result{weight, 0.0, 0};
    for (int w = 0; w < WARPS; w++) result.tokens += scratch.counts[w];
    __syncthreads();
    result.mass = scratch.total;
    __syncthreads();
    return result;
}

/// The end of the nucleus: the best tokens until their weights reach `target`. Not found: all is
/// nucleus. `negligible`: see the CPU's nucleus_end.
__device__ Epilogue end_of_nucleus(const SampleParams &p, const Row &row, Scratch &scratch,
                                   const Blocks &blocks, double target, float negligible) {
    Above low = above(p, row, scratch, blocks, fmaxf(negligible, 5.877471754e-39f)),
          high{1.0f, 0.0, 0};
    for (int step = 0; step < MOST_STEPS && low.tokens - high.tokens > FEW; step++) {
        const Above middle = above(p, row, scratch, blocks,
                                   __fmul_rn(__fsqrt_rn(low.weight), __fsqrt_rn(high.weight)));
        if (middle.mass >= target) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Epilogue end{false, 0, 0};
    if (low.mass < target || low.tokens == high.tokens) return end;
    // Weights of the band in fixed point. Few: 50 bits below the largest's first; more: 43, and
    // then they are nearly equal.
    const int exponent = static_cast<int>(__float_as_uint(high.weight) >> 23) - 127;
    const int bits = (low.tokens - high.tokens <= FEW ? 50 : 43) - exponent;
    const double scale = __longlong_as_double(static_cast<i64>(bits + 1023) << 52);
    const auto measure = [&](float weight) {
        const u64 fixed = __double2ull_rn(__dmul_rn(static_cast<double>(weight), scale));
        return fixed > 0 ? fixed : 1;
    };
    const auto in_band = [&](float weight) { return weight > low.weight && weight <= high.weight; };
    const double wanted = __dmul_rn(__dsub_rn(target, high.mass), scale);
    u64 missing = wanted > 1.0 ? __double2ull_ru(wanted) : 1;
    const auto each = [&](const Take &take) {
        for (int b = threadIdx.x / 32; b < p.blocks; b += WARPS) {
            if (blocks.sums[b] <= low.weight) continue;
            for (int token = b * SUM_TOKENS + threadIdx.x % 32;
                 token < min((b + 1) * SUM_TOKENS, p.vocab); token += 32) {
                const float weight = row.weights[token];
                if (in_band(weight)) take(key_of(row.penalised(token)), measure(weight));
            }
        }
    };
    // Where rounding leaves the whole band short of the target, its last token ends the nucleus.
    descend(scratch, missing, end.key, true, each);
    end.found = true;
    // Equal logits have equal weights: the number that is needed.
    const float max = scratch.weights[0];
    const float kept = exponential(logit_of(end.key), max, row.sampling.tempering);
    const u64 nth = (missing + measure(kept) - 1) / measure(kept);
    const u32 key = end.key;
    end.last = find_nth(p, scratch, nth, [&](int token) {
        return blocks.sums[token / SUM_TOKENS] > low.weight && in_band(row.weights[token]) &&
               key_of(row.penalised(token)) == key;
    });
    return end;
}

/// Zeroes the weights of all tokens after `end`; the blocks' sums and the total follow.
__device__ void keep_through(const SampleParams &p, const Row &row, Scratch &scratch,
                             const Blocks &blocks, const Epilogue &end) {
    sum_blocks(p, row, blocks.sums, 0.0f, blocks.max, [&](int token, float weight) {
        const u32 key = key_of(row.penalised(token));
        if (key < end.key || (key == end.key && token <= end.last)) return weight;
        row.weights[token] = 0.0f;
        return 0.0f;
    });
    __syncthreads();
    for (int b = threadIdx.x; b < p.blocks; b += THREADS) blocks.sums[b] = blocks.max[b];
    __syncthreads();
    if (threadIdx.x == 0) scratch.total = ordered_sum(blocks.sums, p.blocks);
    __syncthreads();
}

/// The token at `missing` of the cumulative weights, in order of id. One thread walks the sums,
/// then the weights of a block.
__device__ int draw(const SampleParams &p, const Row &row, Scratch &scratch, const Blocks &blocks,
                    double missing) {
    const float max = scratch.weights[0];
    if (threadIdx.x == 0) {
        int block = 0;
        for (int b = 0; b < p.blocks; b++) {
            const double sum = blocks.sums[b];
            if (!(sum > 0.0)) continue;
            block = b;
            if (missing < sum) break;
            missing = __dsub_rn(missing, sum);
        }
        scratch.bin = block;
    }
    __syncthreads();
    const int first = scratch.bin * SUM_TOKENS;
    for (int i = threadIdx.x; i < SUM_TOKENS; i += THREADS) {
        const int token = first + i;
        // No kernel has written the weights of a row that is not truncated: all but these few were
        // needed once.
        scratch.weights[i] = token >= p.vocab  ? 0.0f
                             : row.truncates() ? row.weights[token]
                                               : row.weight(token, max);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int token = first;
        for (int i = 0; i < SUM_TOKENS; i++) {
            const double weight = scratch.weights[i];
            if (!(weight > 0.0)) continue;
            token = first + i;
            if (missing < weight) break;
            missing = __dsub_rn(missing, weight);
        }
        scratch.place = token;
    }
    __syncthreads();
    return scratch.place;
}

/// Truncates and draws. On entry `scratch.total` is the sum of the weights and `scratch.weights[0]`
/// the largest logit after penalties.
__device__ int truncate_and_draw(const SampleParams &p, const Row &row, Scratch &scratch,
                                 const Blocks &blocks) {
    if (row.sampling.top_k > 0 && row.sampling.top_k < p.vocab) {
        const Epilogue end = end_of_best(p, scratch, blocks.max, row.sampling.top_k,
                                         [&](int token) { return row.penalised(token); });
        if (end.found) keep_through(p, row, scratch, blocks, end);
    }
    if (row.sampling.top_p < 1.0f) {
        const double total = scratch.total,
                     target = __dmul_rn(static_cast<double>(row.sampling.top_p), total);
        const double negligible =
            __ddiv_rn(__dsub_rn(total, target), 2.0 * static_cast<double>(p.vocab));
        // Everybody has read the total that `above` writes over.
        __syncthreads();
        const Epilogue end =
            end_of_nucleus(p, row, scratch, blocks, target, __double2float_rn(negligible));
        if (threadIdx.x == 0) scratch.total = total;
        __syncthreads();
        if (end.found) keep_through(p, row, scratch, blocks, end);
    }
    return draw(p, row, scratch, blocks,
                __dmul_rn(uniform(row.sampling.seed, row.sampling.position), scratch.total));
}

/// The most likely tokens of the raw logits, best first, into `out`.
__device__ void report_top(const SampleParams &p, const Row &row, Scratch &scratch,
                           const Blocks &blocks, RowSampled &out) {
    const int wanted = min(row.sampling.top_logprobs, MOST_TOP);
    if (threadIdx.x == 0) scratch.num_top = 0;
    __syncthreads();
    if (wanted > 0) {
        const Epilogue end = end_of_best(p, scratch, blocks.raw_max, wanted,
                                         [&](int token) { return row.raw(token); });
        for (int b = threadIdx.x / 32; b < p.blocks; b += WARPS) {
            if (end.found && key_of(blocks.raw_max[b]) > end.key) continue;
            for (int token = b * SUM_TOKENS + threadIdx.x % 32;
                 token < min((b + 1) * SUM_TOKENS, p.vocab); token += 32) {
                const float logit = row.raw(token);
                const u32 key = key_of(logit);
                if (logit == MINUS_INFINITY ||
                    (end.found && (key > end.key || (key == end.key && token > end.last))))
                    continue;
                scratch.top[atomicAdd(&scratch.num_top, 1)] =
                    static_cast<u64>(key) << 32 | static_cast<u32>(token);
            }
        }
    }
    __syncthreads();
    const int count = scratch.num_top;
    if (threadIdx.x == 0) out.num_top = count;
    if (threadIdx.x >= MOST_TOP) return;
    const int i = threadIdx.x;
    if (i >= count) {
        out.top_token[i] = 0;
        out.top_logit[i] = 0.0f;
        return;
    }
    int rank = 0;
    for (int other = 0; other < count; other++) rank += scratch.top[other] < scratch.top[i];
    out.top_token[rank] = static_cast<int>(scratch.top[i] & 0xffffffffu);
    // As on the CPU, the key's logit: a negative zero has become zero.
    out.top_logit[rank] = logit_of(static_cast<u32>(scratch.top[i] >> 32));
}

/// The largest of `values`, in every thread.
__device__ float max_of(Scratch &scratch, const float *values, int count) {
    float most = MINUS_INFINITY;
    for (int i = threadIdx.x; i < count; i += THREADS) most = fmaxf(most, values[i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    if (threadIdx.x % 32 == 0) scratch.weights[threadIdx.x / 32] = most;
    __syncthreads();
    most = scratch.weights[0];
    for (int w = 1; w < WARPS; w++) most = fmaxf(most, scratch.weights[w]);
    __syncthreads();
    return most;
}

/// The row's arrays by block into shared memory, and the sums over them.
__device__ Blocks load_blocks(const SampleParams &p, const Row &row, Scratch &scratch) {
    const Blocks blocks{block_arrays, block_arrays + p.blocks, block_arrays + 2 * p.blocks,
                        block_arrays + 3 * p.blocks};
    if (threadIdx.x == 0) scratch.broken = 0;
    __syncthreads();
    for (int b = threadIdx.x; b < p.blocks; b += THREADS) {
        blocks.max[b] = p.block_max[row.blocks + b];
        blocks.raw_max[b] = p.block_raw_max[row.blocks + b];
        if (p.block_broken[row.blocks + b]) atomicOr(&scratch.broken, 1u);
    }
    __syncthreads();
    return blocks;
}

__device__ void load_sums(const SampleParams &p, const Row &row, Scratch &scratch,
                          const Blocks &blocks, bool tempered) {
    for (int b = threadIdx.x; b < p.blocks; b += THREADS) {
        blocks.raw_sums[b] = p.block_raw_sums[row.blocks + b];
        if (tempered) blocks.sums[b] = p.block_sums[row.blocks + b];
    }
    __syncthreads();
    // Two warps, so that the two chains of additions run side by side.
    if (threadIdx.x == 0 && tempered) scratch.total = ordered_sum(blocks.sums, p.blocks);
    if (threadIdx.x == 32) scratch.raw_total = ordered_sum(blocks.raw_sums, p.blocks);
    __syncthreads();
}

/// The lowest token whose logit after penalties is `max`.
__device__ int first_at(const SampleParams &p, const Row &row, Scratch &scratch,
                        const Blocks &blocks, float max) {
    return find_nth(p, scratch, 1, [&](int token) {
        return blocks.max[token / SUM_TOKENS] == max && row.penalised(token) == max;
    });
}

/// Reports a row whose logits are not finite.
__device__ void refuse(const SampleParams &p, const Row &row, RowSampled &out) {
    if (threadIdx.x != 0) return;
    out.is_broken = 1;
    // The step that is in flight needs a token to embed; the host drops its result.
    if (p.last) p.last[row.sampling.batch_idx] = 0;
    ptx::store_release_system(&out.step_seq, *p.step_seq);
}

__device__ void choose(const SampleParams &p, const Row &row, Scratch &scratch, RowSampled &out) {
    const Blocks blocks = load_blocks(p, row, scratch);
    const float raw_max = max_of(scratch, blocks.raw_max, p.blocks);
    if (scratch.broken != 0 || raw_max == MINUS_INFINITY) {
        refuse(p, row, out);
        return;
    }
    const bool greedy = !(row.sampling.tempering > 0.0f);
    const float max = max_of(scratch, blocks.max, p.blocks);
    load_sums(p, row, scratch, blocks, !greedy);
    if (threadIdx.x == 0) scratch.weights[0] = max;
    __syncthreads();
    const int token = greedy ? first_at(p, row, scratch, blocks, max)
                             : truncate_and_draw(p, row, scratch, blocks);
    report_top(p, row, scratch, blocks, out);
    // The reports of the other threads are stored before step_seq.
    __syncthreads();
    if (threadIdx.x != 0) return;
    out.token = token;
    out.max = raw_max;
    out.logit = row.raw(token);
    out.sum = scratch.raw_total;
    out.is_broken = 0;
    if (p.last) p.last[row.sampling.batch_idx] = token;
    if (row.token_counts) row.token_counts[token] += 1;
    ptx::store_release_system(&out.step_seq, *p.step_seq);
}

}  // namespace

/// Grid: rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sample_choose(const __grid_constant__ SampleParams p) {
    __shared__ Scratch scratch;
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    Row row;
    if (take_row(p, blockIdx.x, row)) choose(p, row, scratch, p.sampled[blockIdx.x]);
}
