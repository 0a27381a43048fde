// Tiles of the paged KV cache in shared memory, swizzled for ldmatrix.
#pragma once
#include "common/order.cuh"

/// Tokens of a block.
constexpr int BLOCK_TOKENS = 16;

/// XOR swizzle: bytes from a tile's start to 16-byte chunk `chunk` of row `row`, rows of HD bf16.
/// Eight rows at one chunk are in eight different groups of four banks, and so do eight
/// neighbouring chunks of a row: neither ldmatrix nor the copy has a bank conflict.
template <int HD>
__device__ __forceinline__ u32 chunk_at(int row, int chunk) {
    return row * (HD * 2) + ((chunk ^ (row & 7)) << 4);
}

/// From the address of chunk c (0 or 1) of a row to that of chunk 2 * steps + c. The tile must
/// begin at a multiple of 256 bytes. One operation on one register, where the sum above would keep
/// a register for each step.
__device__ __forceinline__ u32 along(u32 address, int steps) { return address ^ (steps << 5); }

/// The first key of `kv_head` in block `id`; the values of the same block follow `value_distance`
/// elements on.
__device__ __forceinline__ const bf16 *keys_of(const PagedKv &kv, int id, int kv_head,
                                               int head_dim) {
    return kv.pool + id * kv.block_stride + kv.layer_offset + kv_head * BLOCK_TOKENS * head_dim;
}
__device__ __forceinline__ int value_distance(const PagedKv &kv, int head_dim) {
    return kv.kv_heads * BLOCK_TOKENS * head_dim;
}

/// The oldest token that a row at `position` attends to.
__device__ __forceinline__ int oldest_token(const PagedKv &kv, int position) {
    return kv.window > 0 ? max(position + 1 - kv.window, 0) : 0;
}
