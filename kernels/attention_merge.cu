// op      merge of the partitions of prefill attention: adds those of a cut tile, and normalises
// params  PrefillAttentionParams
// in      partial_out [cut_tiles, kv_heads, splits, 128, hd] f32, row-major, 16-byte aligned
// in      partial_sums [cut_tiles, kv_heads, splits, 128, 2] f32, row-major, 8-byte aligned
// in      segments [segments, 4] i32, first row, rows, batch_idx, context, 16-byte aligned
// in      tiles [tiles, 2] i32, segment, first query, 8-byte aligned
// out     out [T, heads, hd] bf16, row-major, of the rows of cut tiles, 16-byte aligned
// arch    sm_80, sm_90a
// launch  grid [cut_tiles, kv_heads, hd/8], block 256, shared 0
// limit   bytes: sum over parts(128 * (hd + 2) * 4), from L2
// reference runtime/tests/cuda/attention/reference.rs::attention
// why     A separate launch and not the last block to arrive: that one would read up to a few MB
//         while the other multiprocessors are idle, and needs counters. Here a thread has
//         four places of a query, and reads eight partitions at one time. They are added in their
//         order (common/order.cuh).
#include "common/columns.cuh"
#include "common/prefill.cuh"

namespace {

constexpr int THREADS = 256;

template <int HD>
__device__ void merge(const PrefillAttentionParams &p) {
    ptx::launch_successor();
    ptx::wait_for_predecessor();
    prefill::Work work;
    if (!prefill::take(p, blockIdx.x, blockIdx.y, work)) return;
    const int item = blockIdx.z * THREADS + threadIdx.x, query = item / (HD / 4),
              place = item % (HD / 4) * 4;
    if (work.first + query >= work.count) return;
    const int part = prefill::first_part(p, blockIdx.x, blockIdx.y);
    const Merged merged = merge_splits(prefill::part_out<HD>(p, part, query) + place,
                                       prefill::QUERIES * HD, prefill::part_sums(p, part, query),
                                       prefill::QUERIES * 2, prefill::partitions_of(work));
    store_normalised(p.out + prefill::head_offset(p, work, work.first + query, HD) + place, merged);
}

}  // namespace

/// Grid: cut tiles, key/value heads, pieces of a tile's queries.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_merge_hd64(const __grid_constant__ PrefillAttentionParams p) {
    merge<64>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_merge_hd128(const __grid_constant__ PrefillAttentionParams p) {
    merge<128>(p);
}
