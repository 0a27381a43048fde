// Radix select: where a set of tokens ends, without a sort, by a descent over the digits of the
// logits' keys. One block of threads per row.
#pragma once
#include "common/sampling.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr int DIGIT_BITS = 11, BINS = 1 << DIGIT_BITS;
constexpr int MAX_TOP = 20;
/// Static shared memory of the choosing block of threads: everything but the row's arrays by block.
struct Scratch {
    u64 histogram[BINS];
    u64 warp_totals[WARPS];
    float weights[SUM_TOKENS];
    u64 top[MAX_TOP];
    /// A bin and what is still missing in it.
    u64 missing;
    /// A sum, its parts by warp, and whether no warp's numbers round in it.
    double total, sums[WARPS];
    int exact[WARPS];
    int counts[WARPS];
    int bin, place, num_top;
    /// By warp: whether it found a logit that is not finite, and the largest logits.
    u32 broken[WARPS];
    float2 largest[WARPS];
};

/// Finds the bin of the histogram in which `missing` is reached; leaves what is missing within it.
/// Where all bins fall short: false, or with `clamp` the last bin that holds anything.
__device__ bool find_bin(Scratch &scratch, u64 missing, bool clamp) {
    constexpr int EACH = BINS / THREADS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 mine = 0;
    for (int i = 0; i < EACH; i++) mine += scratch.histogram[threadIdx.x * EACH + i];
    u64 up_to = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u64 below = __shfl_up_sync(~0u, up_to, step);
        if (lane >= step) up_to += below;
    }
    if (lane == 31) scratch.warp_totals[warp] = up_to;
    if (threadIdx.x == 0) {
        scratch.bin = -1;
        scratch.missing = 0;
    }
    __syncthreads();
    u64 all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w == warp) up_to += all;
        all += scratch.warp_totals[w];
    }
    if (clamp && missing > all) missing = all;
    u64 before = up_to - mine;
    if (before < missing && missing <= up_to) {
        int bin = threadIdx.x * EACH;
        while (before + scratch.histogram[bin] < missing) before += scratch.histogram[bin++];
        scratch.bin = bin;
        scratch.missing = missing - before;
    }
    __syncthreads();
    return scratch.bin >= 0;
}

/// One step of the descent: counts those whose key begins with `prefix`, by its next digit.
struct Take {
    u64 *histogram;
    u32 prefix;
    /// Bits of the prefix; position and bits of the digit.
    int known, shift, width;
    __device__ void operator()(u32 key, u64 measure) const {
        if (known > 0 && key >> (32 - known) != prefix) return;
        atomicAdd(&histogram[key >> shift & ((1u << width) - 1)], measure);
    }
};

/// The key at which the measures of the better ones first reach `missing` (at least 1), and what is
/// then missing among its equals. Where they all fall short: false, or with `clamp` the last key.
/// `each(take)` calls take(key, measure) for this thread's members of the set; all threads together
/// cover it once.
template <class Each>
__device__ bool descend(Scratch &scratch, u64 &missing, u32 &key, bool clamp, Each each) {
    u32 prefix = 0;
    for (int shift = 32 - DIGIT_BITS;; shift = shift > DIGIT_BITS ? shift - DIGIT_BITS : 0) {
        const int width = shift == 0 ? 32 - 2 * DIGIT_BITS : DIGIT_BITS, known = 32 - shift - width;
        for (int i = threadIdx.x; i < BINS; i += THREADS) scratch.histogram[i] = 0;
        __syncthreads();
        each(Take{scratch.histogram, prefix, known, shift, width});
        __syncthreads();
        const bool found = find_bin(scratch, missing, clamp);
        if (found) {
            missing = scratch.missing;
            prefix = prefix << width | scratch.bin;
        }
        // All threads have read what the next step, or the caller, overwrites.
        __syncthreads();
        if (!found) return false;
        if (shift == 0) break;
    }
    key = prefix;
    return true;
}

/// Calls `each(first token, members among it and the 31 behind it)` for a warp's run of blocks of
/// 256 tokens, those that `may_hold` a member.
template <class Block, class Member, class Each>
__device__ __forceinline__ void walk_run(const SampleParams &p, Block may_hold, Member is_member,
                                         Each each) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int b = p.blocks * warp / WARPS; b < p.blocks * (warp + 1) / WARPS; b++) {
        if (!may_hold(b)) continue;
#pragma unroll 2
        for (int i = 0; i < SUM_TOKENS / 32; i++) {
            const int token = b * SUM_TOKENS + i * 32 + lane;
            each(token - lane, __ballot_sync(~0u, token < p.vocab && is_member(token)));
        }
    }
}

/// The `nth` (from 1) token, in order of id, that `is_member` names in the blocks of 256 tokens
/// that `may_hold` one; there must be so many. A warp has a run of blocks.
template <class Block, class Member>
__device__ int find_nth(const SampleParams &p, Scratch &scratch, u64 nth, Block may_hold,
                        Member is_member) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int count = 0;
    walk_run(p, may_hold, is_member, [&](int, u32 members) { count += __popc(members); });
    if (lane == 0) scratch.counts[warp] = count;
    __syncthreads();
    u64 before = 0;
    for (int w = 0; w < warp; w++) before += scratch.counts[w];
    if (before < nth && nth <= before + count) {
        walk_run(p, may_hold, is_member, [&](int first, u32 members) {
            const u64 rank = before + __popc(members & ((2u << lane) - 1));
            if (members >> lane & 1 && rank == nth) scratch.place = first + lane;
            before += __popc(members);
        });
    }
    __syncthreads();
    return scratch.place;
}
