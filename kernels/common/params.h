// Parameters of every kernel, plain C: the kernels include it, and bindgen makes ptx/src/params.rs of it.
// A kernel takes one of these structs by value as its only argument, so that "the argument lists agree" is one size and one alignment.
// Letters: T rows of a step, d model width, ff inner width, hd head width. Strides and counts are in elements unless a unit is named.
#pragma once

/// A bfloat16 as it lies in memory.
typedef struct {
    unsigned short bits;
} bf16;

/// What every matrix product takes: out[rows, n] = x[rows, k] * w[n, k]^T, its tiles split over the grid in equal shares (stream.cuh).
typedef struct {
    /// Activations [rows, k] bf16, row-major, 16-byte aligned; rows are `k` elements apart.
    const bf16 *x;
    /// Weights [n/16, k_padded/16, 32, 8] bf16 in fragment order, 16-byte aligned, zero where padded.
    const bf16 *w;
    /// Row of `x` that each row of the product reads [rows] i32; null: the same row.
    const int *row_list;
    /// Sums of shared tiles [2 * grid, tile] f32, 16-byte aligned; unused where no tile is shared.
    float *partials;
    /// How many have added to a shared tile [tiles] u32; zero before the launch, zero after it.
    unsigned int *arrivals;
    /// Rows of the product.
    int rows;
    /// Output features, a multiple of 128.
    int n;
    /// Width of `x`, a multiple of 8.
    int k;
    /// Width of `w`: `k` rounded up to a multiple of 256.
    int k_padded;
    /// Token tiles that are walked together before the next feature tile; at least 1.
    int raster;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} GemmOperands;

/// RMSNorm's row scale, from the partial sums of squares that the producer of `x` left: 1 / sqrt(sum / width + eps).
typedef struct {
    /// Partial sums of squares [T, parts] f32.
    const float *ss;
    /// Partial sums per row.
    int parts;
    /// Elements of the normalised row.
    int width;
    /// RMSNorm's epsilon.
    float eps;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} RowScale;

/// Query, key and value projection: row scale, RoPE, append to the paged pool.
typedef struct {
    /// The product; n = (heads + 2 * kv_heads) * head_dim, padded.
    GemmOperands gemm;
    /// Norm of the input rows.
    RowScale scale;
    /// Queries after RoPE [T, heads, hd] bf16, 16-byte aligned.
    bf16 *q;
    /// KV pool [block][layer][K|V][kv head][16][hd] bf16, 16-byte aligned.
    bf16 *kv_pool;
    /// Absolute position of each row [T] i32, tokens.
    const int *position;
    /// Block table row of each row [T] i32; -1: a padding row, which touches nothing.
    const int *slot;
    /// Block ids [slots, max_blocks] i32.
    const int *block_table;
    /// Turns per token of each rotation [hd/2] u64: inverse frequency / 2 pi, as a fraction of 2^64.
    const unsigned long long *turns;
    /// Elements from one block to the next.
    long long block_stride;
    /// Elements from a block's start to this layer's keys.
    long long layer_offset;
    /// Entries per row of the block table.
    int max_blocks;
    /// Query heads.
    int heads;
    /// Key/value heads.
    int kv_heads;
    /// Width of a head: 64 or 128.
    int head_dim;
} QkvParams;

/// O or down projection: adds to the residual stream, prepares the next product's operand.
typedef struct {
    /// The product; n = d, padded.
    GemmOperands gemm;
    /// Residual stream [T, d] f32, 16-byte aligned; read and written.
    float *h;
    /// The next norm's weight [d] bf16, 16-byte aligned.
    const bf16 *gamma;
    /// The next product's operand [T, d] bf16: h * gamma, 16-byte aligned.
    bf16 *x_next;
    /// Partial sums of squares of the new h [T, n/128] f32.
    float *ss;
    /// Stage row of each row [T] i32, -1 for none; null: nothing is tapped.
    const int *tap_row;
    /// Stage [stage rows, d] bf16, 16-byte aligned.
    bf16 *tap;
    /// Model width, a multiple of 8.
    int d;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} ResidualParams;

/// Gate and up projection: row scale, silu(gate) * up.
typedef struct {
    /// The product; n = 2 * ff, padded.
    GemmOperands gemm;
    /// Norm of the input rows.
    RowScale scale;
    /// silu(gate) * up [T, ff] bf16, 16-byte aligned.
    bf16 *out;
    /// Inner width, a multiple of 8.
    int ff;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} SwigluParams;

/// Output projection: row scale, logits in f32.
typedef struct {
    /// The product; n = vocabulary, padded. Its rows are those of `row_list`.
    GemmOperands gemm;
    /// Norm of the input rows, indexed as `x` is.
    RowScale scale;
    /// Logits [rows, n] f32, 16-byte aligned.
    float *logits;
} LogitsParams;

/// Weights into fragment order.
typedef struct {
    /// Source rows [rows_a, k], row-major; q's rows, or gate's.
    const void *a;
    /// Source rows [rows_b, k]: k's rows, or up's; null where there are none.
    const void *b;
    /// Source rows [rows_c, k]: v's rows; null where there are none.
    const void *c;
    /// Destination [n/16, k_padded/16, 32, 8] bf16, 16-byte aligned.
    bf16 *w;
    /// Rows of `a`.
    int rows_a;
    /// Rows of `b`.
    int rows_b;
    /// Rows of `c`.
    int rows_c;
    /// Output features of the destination, a multiple of 16.
    int n;
    /// Width of the sources.
    int k;
    /// Width of the destination, a multiple of 16.
    int k_padded;
    /// Order of the rows: 0 as they are (a, b, c), 1 rotation pairs of a head 8 apart, 2 rows of `a` and `b` alternating by 8.
    int order;
    /// Width of a head in order 1.
    int head_dim;
} ShuffleParams;

/// How the copy engine reads a tensor: the driver's CUtensorMap, which only it can read.
typedef struct {
    /// Opaque.
    __attribute__((aligned(64))) unsigned long long words[16];
} TensorMap;

/// Qkv of many rows on Hopper.
typedef struct {
    /// The rows of `base.gemm.x`, in boxes of 64 elements by 256 rows, swizzled by 128 bytes.
    TensorMap x;
    /// All else.
    QkvParams base;
} GroupQkvParams;

/// Residual of many rows on Hopper.
typedef struct {
    /// The rows of `base.gemm.x`, as above.
    TensorMap x;
    /// All else.
    ResidualParams base;
} GroupResidualParams;

/// SwiGLU of many rows on Hopper.
typedef struct {
    /// The rows of `base.gemm.x`, as above.
    TensorMap x;
    /// All else.
    SwigluParams base;
} GroupSwigluParams;

/// What the chip can do at most.
typedef struct {
    /// What is read [quads, 4] u32, 16-byte aligned.
    const unsigned int *data;
    /// A sum for each block, or for each thread.
    unsigned int *sums;
    /// Pieces of 16 bytes.
    long long quads;
    /// Products in each chain of a warp.
    int rounds;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} CeilingParams;
