// op      weights, row-major as the file has them, into the fragment order that all matrix products
//         read
// params  ShuffleParams
// in      a [rows_a, k] bytes: bf16, f16 or f32 by entry, row-major, 2-byte aligned (f32: 4-byte
//         aligned)
// in      b [rows_b, k] bytes: as a, 2-byte aligned
// in      c [rows_c, k] bytes: as a, 2-byte aligned
// out     w [n/16, k_padded/16, 32, 8] bf16, fragment order, 16-byte aligned
// arch    sm_80
// launch  grid [n*k_padded/8/256, at most 2^20], block 256, shared 0
// limit   bytes: (rows_a+rows_b+rows_c)*k*source_bytes + n*k_padded*2
// reference runtime/tests/support/gemm.rs::fragment_order
// why     a lane's 16 bytes are its A registers of m16n8k16, so a product loads weights from global
//         memory straight into registers
#include "common/ptx.cuh"

namespace {

enum Order { PLAIN = 0, ROTATION_PAIRS = 1, ALTERNATING = 2 };

/// Source row, counted through a, b, c, of destination row `row`; negative where it is padding.
__device__ int source_row(const ShuffleParams &p, int row) {
    const int tile = row / 16, in_tile = row % 16;
    int source = row;
    if (p.order == ROTATION_PAIRS) {
        // Place i of a head and its rotation partner i + hd/2 lie 8 rows apart in one tile.
        const int tiles_per_head = p.head_dim / 16;
        const int place = (tile % tiles_per_head) * 8 + in_tile % 8;
        source = tile / tiles_per_head * p.head_dim + place + (in_tile / 8) * (p.head_dim / 2);
    } else if (p.order == ALTERNATING) {
        const int place = tile * 8 + in_tile % 8;
        source = place >= p.rows_a ? -1 : place + (in_tile / 8) * p.rows_a;
    }
    return source < p.rows_a + p.rows_b + p.rows_c ? source : -1;
}

__device__ float element(const bf16 *row, int column) { return ptx::to_float(row[column]); }
__device__ float element(const u16 *row, int column) { return ptx::half_to_float(row[column]); }
__device__ float element(const float *row, int column) { return row[column]; }

template <class Source>
__device__ float weight(const ShuffleParams &p, int row, int column) {
    int source = source_row(p, row);
    if (source < 0 || column >= p.k) return 0.0f;
    const void *base = p.a;
    if (source >= p.rows_a + p.rows_b) {
        source -= p.rows_a + p.rows_b;
        base = p.c;
    } else if (source >= p.rows_a) {
        source -= p.rows_a;
        base = p.b;
    }
    return element(static_cast<const Source *>(base) + static_cast<i64>(source) * p.k, column);
}

/// One thread, one lane's 16 bytes.
template <class Source>
__device__ void shuffle(const ShuffleParams &p) {
    const int k_tiles = p.k_padded / 16;
    const i64 lanes = static_cast<i64>(p.n / 16) * k_tiles * 32;
    for (i64 i = blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x; i < lanes;
         i += static_cast<i64>(gridDim.x) * blockDim.x) {
        const int lane = static_cast<int>(i % 32);
        const i64 tile = i / 32;
        const int row = static_cast<int>(tile / k_tiles) * 16 + lane / 4;
        const int column = static_cast<int>(tile % k_tiles) * 16 + lane % 4 * 2;
        u32 registers[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int at_row = row + r % 2 * 8, at_column = column + r / 2 * 8;
            registers[r] = ptx::pack_bf16(weight<Source>(p, at_row, at_column),
                                          weight<Source>(p, at_row, at_column + 1));
        }
        reinterpret_cast<uint4 *>(p.w)[i] =
            make_uint4(registers[0], registers[1], registers[2], registers[3]);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    shuffle_bf16(const __grid_constant__ ShuffleParams p) {
    shuffle<bf16>(p);
}
extern "C" __global__ void __launch_bounds__(256)
    shuffle_f16(const __grid_constant__ ShuffleParams p) {
    shuffle<u16>(p);
}
extern "C" __global__ void __launch_bounds__(256)
    shuffle_f32(const __grid_constant__ ShuffleParams p) {
    shuffle<float>(p);
}
