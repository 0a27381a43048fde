// op      pieces of KV blocks, gathered from the pool into one packed run, or scattered back: what is too small for the copy engine
// params  KvPiecesParams
// in      offsets [pieces] u64, elements from the pool's start as i64, negative for padding, 8-byte aligned
// in      pool [elements] bf16, block-major, 16-byte aligned (out for kv_scatter)
// out     packed [pieces, piece] bf16, row-major, 16-byte aligned (in for kv_scatter)
// arch    sm_80, sm_90a
// limit   bytes: pieces*piece*2*2
// twin    runtime/tests/cuda_step/twins.rs::kv_gather
// why     A block of threads per piece, 16 bytes a thread, four in flight: whole blocks (2 MiB at 8B) go by the copy engine, which takes no
//         multiprocessor; below about 128 KiB a descriptor costs it more than the copy does.
#include "common/ptx.cuh"

namespace {

template <bool GATHER>
__device__ void copy_piece(const KvPiecesParams &p) {
    const i64 offset = p.offsets[blockIdx.x];
    if (offset < 0) return;
    uint4 *pooled = reinterpret_cast<uint4 *>(p.pool + offset);
    uint4 *packed = reinterpret_cast<uint4 *>(p.packed + static_cast<i64>(blockIdx.x) * p.piece);
    const uint4 *from = GATHER ? pooled : packed;
    uint4 *to = GATHER ? packed : pooled;
#pragma unroll 4
    for (int i = threadIdx.x; i < p.piece / 8; i += blockDim.x) to[i] = from[i];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) kv_gather(const __grid_constant__ KvPiecesParams p) { copy_piece<true>(p); }
extern "C" __global__ void __launch_bounds__(256) kv_scatter(const __grid_constant__ KvPiecesParams p) { copy_piece<false>(p); }
