// op      the sampler's choice: top-k, top-p, the draw, the most likely tokens, and the count of
//         the chosen token
// params  SampleParams
// in      logits [rows, stride] f32, row-major, 16-byte aligned
// in      row_sampling [rows] bytes: RowSampling, 8-byte aligned
// in      masks [rows, mask_words] u32, row-major, 4-byte aligned
// in      block_max [rows, blocks] f32, 4-byte aligned
// in      block_raw_max [rows, blocks] f32, 4-byte aligned
// in      block_sums [rows, blocks] f32, 4-byte aligned
// in      block_raw_sums [rows, blocks] f32, 4-byte aligned
// in      block_broken [rows, blocks] u32, 4-byte aligned
// in      step_seq [1] u32, 4-byte aligned
// out     weights [rows, blocks*256] f32, row-major, truncated in place, 16-byte aligned
// out     team_sums [rows, 2, blocks, 2] f32, scratch, 8-byte aligned
// out     band [rows, 2048] u64, scratch, 8-byte aligned
// out     band_count [rows] u32, zero before and after, 4-byte aligned
// out     team_barriers [rows] u32, generations of barriers so far in the upper half, the lower
//         half zero before and after, 4-byte aligned
// out     token_counts [batch_slots, vocab] u32, row-major, the chosen token counted, 4-byte
//         aligned
// out     sampled [rows] bytes: RowSampled, 8-byte aligned
// out     last [batch_slots] i32, 4-byte aligned
// arch    sm_80, sm_90a
// launch  grid [team, rows], cooperative where a team has several, block 512, shared blocks*16 +
//         16 KiB bytes
// limit   bytes: rows*blocks*20
// reference runtime/tests/cuda/sampling/reference.rs::sample
// why     Works from the sums of 256 tokens. Where a set ends (the k best; the nucleus) is found by
//         descending the bits of the logits, three histograms of 11 bits, never by a sort: with
//         counts for top-k, with probabilities in fixed point, which are exact and so of no
//         particular order, for top-p. Passes over the whole row, which top-p needs, are shared by
//         a team of blocks (common/nucleus.cuh); all else is done by its first. Blocks of tokens
//         that cannot matter are skipped: those whose maximum is below the k-th largest maximum,
//         those whose sum is below the band of weights that the nucleus ends in. Sums over blocks
//         are f64 in the CPU's order.
#include "common/nucleus.cuh"

namespace {

extern __shared__ __align__(16) float block_arrays[];

/// The end of the `k` best tokens by `logit(token)`, given the blocks' maxima of it. Not found:
/// there are no more than k.
template <class Logit>
__device__ SetEnd end_of_best(const SampleParams &p, Scratch &scratch, const float *block_max,
                                u64 k, Logit logit) {
    SetEnd end{false, 0, 0};
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
        end.last = find_nth(
            p, scratch, missing, [&](int b) { return key_of(block_max[b]) <= key; },
            [&](int token) { return key_of(logit(token)) == key; });
    }
    return end;
}

/// The first of `count` weights at which `missing` of their cumulative sum is reached, where no sum
/// reaches it the last one above zero; `missing` becomes what is missing before it. One thread's
/// work: a chain of f64 subtractions, as on the CPU, in which a weight of zero changes nothing.
__device__ int walk(const float *weights, int count, double &missing) {
    constexpr int AT_ONCE = 16;
    int last = 0;
    for (int first = 0; first < count; first += AT_ONCE) {
        double before[AT_ONCE + 1];
        int hit = AT_ONCE;
        before[0] = missing;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const double weight = first + i < count ? weights[first + i] : 0.0f;
            before[i + 1] = __dsub_rn(before[i], weight);
            if (weight > 0.0) {
                if (before[i] < weight) hit = min(hit, i);
                last = first + i;
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (i == hit) missing = before[i];
        }
        if (hit < AT_ONCE) return first + hit;
        missing = before[AT_ONCE];
    }
    return last;
}

/// The token at `missing` of the cumulative weights, in order of id. One thread walks the sums,
/// then the weights of a block.
__device__ int draw(const SampleParams &p, const Row &row, Scratch &scratch, const Blocks &blocks,
                    double missing) {
    const float max = scratch.weights[0];
    if (threadIdx.x == 0) scratch.bin = walk(blocks.sums, p.blocks, missing);
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
    if (threadIdx.x == 0) scratch.place = first + walk(scratch.weights, SUM_TOKENS, missing);
    __syncthreads();
    return scratch.place;
}

/// Truncates the row's weights, whose sum is `total`, by the whole team; returns the new sum. On
/// entry `scratch.weights[0]` is the largest logit after penalties.
__device__ double truncate(const SampleParams &p, const Row &row, Scratch &scratch,
                           const Blocks &blocks, double total) {
    Team team(p, row);
    // First top-k, then top-p: a loop, as the code of a pass is long.
#pragma unroll 1
    for (int kind = 0; kind < 2; kind++) {
        SetEnd end{false, 0, 0};
        if (kind == 0 && row.sampling.top_k > 0 && row.sampling.top_k < p.vocab) {
            end = end_of_best(p, scratch, blocks.max, row.sampling.top_k,
                              [&](int token) { return row.penalised(token); });
        }
        if (kind == 1 && row.sampling.top_p < 1.0f) {
            const double target = __dmul_rn(static_cast<double>(row.sampling.top_p), total);
            const double negligible =
                __ddiv_rn(__dsub_rn(total, target), 2.0 * static_cast<double>(p.vocab));
            end = end_of_nucleus(p, row, team, scratch, blocks, target,
                                 __double2float_rn(negligible));
        }
        if (end.found) {
            total = keep_through(p, row, team, scratch, blocks, end);
        } else if (kind == 0 && row.sampling.top_k > 0) {
            // The first block counts the chosen token: no other still reads the counts.
            team.meet();
        }
    }
    return total;
}

/// The most likely tokens of the raw logits, best first, into `out`.
__device__ void report_top(const SampleParams &p, const Row &row, Scratch &scratch,
                           const Blocks &blocks, RowSampled &out) {
    const int wanted = min(row.sampling.top_logprobs, MAX_TOP);
    if (threadIdx.x == 0) scratch.num_top = 0;
    __syncthreads();
    if (wanted > 0) {
        const SetEnd end = end_of_best(p, scratch, blocks.raw_max, wanted,
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
    if (threadIdx.x >= MAX_TOP) return;
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

/// The row's arrays by block into shared memory, and largest logits: after penalties, and raw.
__device__ float2 load_blocks(const SampleParams &p, const Row &row, Scratch &scratch,
                              const Blocks &blocks) {
    u32 broken = 0;
    for (int b = threadIdx.x; b < p.blocks; b += THREADS) {
        blocks.max[b] = p.block_max[row.blocks + b];
        blocks.raw_max[b] = p.block_raw_max[row.blocks + b];
        blocks.sums[b] = p.block_sums[row.blocks + b];
        blocks.raw_sums[b] = p.block_raw_sums[row.blocks + b];
        broken |= p.block_broken[row.blocks + b];
    }
    broken = __any_sync(~0u, broken != 0);
    if (threadIdx.x % 32 == 0) scratch.broken[threadIdx.x / 32] = broken;
    return largest_pair<WARPS>(blocks.max, blocks.raw_max, p.blocks, scratch.largest);
}

/// The lowest token whose logit after penalties is `max`. One warp's work.
__device__ int first_at(const SampleParams &p, const Row &row, const Blocks &blocks, float max) {
    const int lane = threadIdx.x % 32;
    for (int group = 0; group < p.blocks; group += 32) {
        const u32 held = __ballot_sync(~0u, group + lane < p.blocks &&
                                                blocks.max[min(group + lane, p.blocks - 1)] == max);
        if (held == 0) continue;
        const int first = (group + __ffs(held) - 1) * SUM_TOKENS;
        u32 at[SUM_TOKENS / 32];
#pragma unroll
        for (int i = 0; i < SUM_TOKENS / 32; i++) {
            const int token = first + i * 32 + lane;
            at[i] = __ballot_sync(~0u, token < p.vocab && row.penalised(token) == max);
        }
        int found = 0;
#pragma unroll
        for (int i = SUM_TOKENS / 32 - 1; i >= 0; i--) {
            if (at[i] != 0) found = i * 32 + __ffs(at[i]) - 1;
        }
        return first + found;
    }
    return 0;
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
    const bool greedy = !(row.sampling.tempering > 0.0f), leads = blockIdx.x == 0;
    // Only passes over the whole row need a team.
    if (!leads && (greedy || !row.truncates())) return;
    const Blocks blocks{block_arrays, block_arrays + p.blocks, block_arrays + 2 * p.blocks,
                        block_arrays + 3 * p.blocks,
                        reinterpret_cast<u64 *>(block_arrays + 4 * p.blocks)};
    const float2 row_max = load_blocks(p, row, scratch, blocks);
    u32 broken = 0;
    for (int w = 0; w < WARPS; w++) broken |= scratch.broken[w];
    // All minus infinity, or all of what the mask leaves.
    if (broken != 0 || row_max.x == MINUS_INFINITY) {
        if (leads) refuse(p, row, out);
        return;
    }
    const double raw_total = ordered_sum(scratch, blocks.raw_sums, p.blocks);
    if (threadIdx.x == 0) scratch.weights[0] = row_max.x;
    int token;
    if (greedy) {
        if (threadIdx.x / 32 == 0) {
            const int first = first_at(p, row, blocks, row_max.x);
            if (threadIdx.x == 0) scratch.place = first;
        }
        __syncthreads();
        token = scratch.place;
    } else {
        double total = ordered_sum(scratch, blocks.sums, p.blocks);
        if (row.truncates()) total = truncate(p, row, scratch, blocks, total);
        if (!leads) return;
        // Read again: kept in registers since the start, they would be spilled.
        const RowSampling &again = p.row_sampling[blockIdx.y];
        token = draw(p, row, scratch, blocks,
                     __dmul_rn(uniform(again.seed, again.position), total));
    }
    report_top(p, row, scratch, blocks, out);
    // The reports of the other threads are stored before step_seq.
    __syncthreads();
    if (threadIdx.x != 0) return;
    out.token = token;
    out.max = row_max.y;
    out.logit = row.raw(token);
    out.sum = raw_total;
    out.is_broken = 0;
    if (p.last) p.last[p.row_sampling[blockIdx.y].batch_idx] = token;
    if (row.token_counts) row.token_counts[token] += 1;
    ptx::store_release_system(&out.step_seq, *p.step_seq);
}

}  // namespace

/// Grid: a row's team, rows.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sample_choose(const __grid_constant__ SampleParams p) {
    __shared__ Scratch scratch;
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    Row row;
    if (take_row(p, blockIdx.y, row)) choose(p, row, scratch, p.sampled[blockIdx.y]);
}
