// Parameters of every kernel, plain C: the kernels include it, and bindgen makes ptx/src/params.rs
// of it. A kernel takes one of these structs by value as its only argument, so that "the argument
// lists agree" is one size and one alignment. Letters: T rows of a step, d model width, ff inner
// width, hd head width. Strides and counts are in elements unless a unit is named.
#pragma once

/// A bfloat16 in memory.
typedef struct {
    unsigned short bits;
} bf16;

/// Operands of every matrix product: out[rows, n] = x[rows, k] * w[n, k]^T, summed along k in
/// pieces (split_k.cuh).
typedef struct {
    /// Activations [rows, k] bf16, row-major, 16-byte aligned; rows are `k` elements apart.
    const bf16 *x;
    /// Weights [n/16, k_padded/16, 32, 8] bf16 in fragment order, 16-byte aligned, zero where
    /// padded.
    const bf16 *w;
    /// Row of `x` that each row of the product reads [rows] i32; null: the same row.
    const int *row_list;
    /// Sums of pieces [tiles, pieces, tile] f32 where a block has one piece, totals [grid, tile]
    /// f32 where it has all of a tile; 16-byte aligned; unused where there is one piece.
    float *partials;
    /// Pieces that have arrived of a tile [tiles] u32 (the counters of the fix-up), zero before the
    /// launch, zero after it. Null: a block has all pieces of a tile.
    unsigned int *tile_counters;
    /// Rows of the product.
    int rows;
    /// Output features, a multiple of 128.
    int n;
    /// Width of `x`, a multiple of 8.
    int k;
    /// Width of `w`: `k` rounded up to a multiple of 256.
    int k_padded;
    /// Token tiles that are walked together before the next feature tile (tile swizzling, for L2);
    /// at least 1.
    int tile_swizzle;
    /// Pieces of the depth, at least 1.
    int pieces;
} GemmOperands;

/// RMSNorm's row scale, from the partial sums of squares that the producer of `x` left: 1 /
/// sqrt(sum / width + eps).
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

/// Terms of some families, applied to a layer's queries, keys and values before RoPE.
typedef struct {
    /// Bias [(heads + 2 * kv_heads) * hd] bf16, 4-byte aligned; null: none.
    const bf16 *bias;
    /// Weight of the RMSNorm of each query head [hd] bf16, 4-byte aligned; null: no norm.
    const bf16 *q_norm;
    /// Weight of the RMSNorm of each key head [hd] bf16, 4-byte aligned; null: no norm.
    const bf16 *k_norm;
} HeadTerms;

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
    const int *batch_idx;
    /// Block ids [batch_slots, max_blocks] i32.
    const int *block_table;
    /// RoPE frequency of each rotation [hd/2] u64: turns per token (inverse frequency / 2 pi) as a
    /// fraction of 2^64.
    const unsigned long long *rope_freqs;
    /// Bias and norms of the layer's heads.
    HeadTerms terms;
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
    /// Order of the rows: 0 as they are (a, b, c), 1 rotation pairs of a head 8 apart, 2 rows of
    /// `a` and `b` alternating by 8.
    int order;
    /// Width of a head in order 1.
    int head_dim;
} ShuffleParams;

/// The driver's CUtensorMap: how TMA reads a tensor.
typedef struct {
    /// Opaque.
    __attribute__((aligned(64))) unsigned long long words[16];
} TensorMap;

/// Qkv of many rows on Hopper.
typedef struct {
    /// The rows of `base.gemm.x`, in boxes of 64 elements by 64 rows, swizzled by 128 bytes.
    TensorMap x;
    /// All else.
    QkvParams base;
} WgmmaQkvParams;

/// Residual of many rows on Hopper.
typedef struct {
    /// The rows of `base.gemm.x`, as above.
    TensorMap x;
    /// All else.
    ResidualParams base;
} WgmmaResidualParams;

/// SwiGLU of many rows on Hopper.
typedef struct {
    /// The rows of `base.gemm.x`, as above.
    TensorMap x;
    /// All else.
    SwigluParams base;
} WgmmaSwigluParams;

/// Microbenchmarks of the chip's ceilings: memory bandwidth and tensor cores.
typedef struct {
    /// Words to read [quads, 4] u32, 16-byte aligned.
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

// ---- attention, embedding, sampling, tap, probe

/// One layer of the paged KV pool: [block][layer][K|V][kv head][16 tokens][hd] bf16, block-major
/// over all layers.
typedef struct {
    /// The pool, 16-byte aligned.
    const bf16 *pool;
    /// Block ids [batch_slots, max_blocks] i32.
    const int *block_table;
    /// Elements from one block to the next.
    long long block_stride;
    /// Elements from a block's start to this layer's keys.
    long long layer_offset;
    /// Entries per row of the block table.
    int max_blocks;
    /// Key/value heads.
    int kv_heads;
    /// Query heads that share a key/value head.
    int group;
    /// Tokens that a row attends to, itself included; 0: all before it.
    int window;
} PagedKv;

/// Attention of decode rows: each attends to its request's cached tokens up to its own position.
typedef struct {
    /// Keys and values, the row's own included.
    PagedKv kv;
    /// Queries after RoPE [T, heads, hd] bf16, 16-byte aligned.
    const bf16 *q;
    /// Absolute position of each row [T] i32, tokens.
    const int *position;
    /// Block table row of each row [T] i32; -1: a padding row, which touches nothing.
    const int *batch_idx;
    /// Attended values [T, heads, hd] bf16, 16-byte aligned.
    bf16 *out;
    /// Unnormalised outputs of partitions [T, kv_heads, head tiles, splits, heads of a tile, hd]
    /// f32, 16-byte aligned; unused with one split.
    float *partial_out;
    /// References of the partitions' exponentials, and their sums [T, kv_heads, head tiles, splits,
    /// heads of a tile, 2] f32, 8-byte aligned.
    float *partial_sums;
    /// Partitions that have finished [T, kv_heads, head tiles] u32; zero before the launch, and
    /// after it.
    unsigned int *tile_counters;
    /// Multiplies scores: log2(e) / sqrt(hd).
    float scale;
    /// Most partitions of a row that have a block each, the grid's width; a row of more has one
    /// block.
    int splits;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved[2];
} DecodeAttentionParams;

/// The part of MegakernelParams that differs between layers.
typedef struct {
    /// Weights of the four products, as their own kernels take them.
    const bf16 *qkv;
    /// Output projection.
    const bf16 *o;
    /// Gate and up projection.
    const bf16 *gate_up;
    /// Down projection.
    const bf16 *down;
    /// Weight of the norm after O [d] bf16, 16-byte aligned.
    const bf16 *o_gamma;
    /// Weight of the norm after down [d] bf16, 16-byte aligned: the next layer's first, or the
    /// model's last.
    const bf16 *down_gamma;
    /// Bias and norms of the heads.
    HeadTerms terms;
    /// Elements from a KV block's start to this layer's keys.
    long long layer_offset;
    /// Tokens that a row attends to, itself included; 0: all before it.
    int window;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} MegakernelLayer;

/// Consecutive layers of a step of decode rows (one tile of 8 rows; the planner uses it for up to
/// 4). The fields that MegakernelLayer has are ignored in the products' and attention's parameters.
typedef struct {
    /// All layers of the model, 8-byte aligned.
    const MegakernelLayer *layers;
    /// Query, key and value projection.
    QkvParams qkv;
    /// Attention.
    DecodeAttentionParams attention;
    /// Output projection; nothing is tapped here.
    ResidualParams o;
    /// Gate and up projection.
    SwigluParams gate_up;
    /// Down projection; the tap is the last layer's.
    ResidualParams down;
    /// Barrier of the grid [1] u32; zero before the first launch, and afterwards as launches leave
    /// it.
    unsigned int *barrier;
    /// First layer.
    int first_layer;
    /// Layer after the last; more than `first_layer`.
    int end_layer;
    /// Blocks that share each product: as many as its own kernel would be launched with.
    int qkv_blocks;
    /// Of the output projection.
    int o_blocks;
    /// Of the gate and up projection.
    int gate_up_blocks;
    /// Of the down projection.
    int down_blocks;
    /// Key/value heads times head tiles.
    int attention_columns;
    /// Rows times columns times splits.
    int attention_pieces;
    /// Units of 16 KiB of its piece of O's weights that a block prefetches into L2 before
    /// attention.
    int o_units;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} MegakernelParams;

/// Attention of segments of prompt rows of a request: causal among themselves, and over all the
/// request's earlier tokens.
typedef struct {
    /// Keys and values, the rows' own included.
    PagedKv kv;
    /// Queries after RoPE [T, heads, hd] bf16, 16-byte aligned.
    const bf16 *q;
    /// Segments [segments, 4] i32, 16-byte aligned: first row, rows, batch_idx, context (tokens
    /// before the segment). batch_idx -1: touches nothing.
    const int *segments;
    /// Tiles [tiles, 2] i32, 8-byte aligned: segment, first query of the tile (a query is a row and
    /// a head of the group). Segment -1: nothing to do.
    const int *tiles;
    /// Attended values [T, heads, hd] bf16, 16-byte aligned.
    bf16 *out;
    /// Multiplies scores: log2(e) / sqrt(hd).
    float scale;
    /// Most partitions of a cut tile's context; 1 where no tile is cut.
    int splits;
    /// Unnormalised outputs of the partitions of cut tiles [cut tiles, kv_heads, splits, 128, hd]
    /// f32; by mma.sync, where no tile is cut, totals of the blocks [blocks, 128 * hd]; 16-byte
    /// aligned.
    float *partial_out;
    /// References of the exponentials of the same, and their sums [.., 128, 2] f32, 8-byte
    /// aligned.
    float *partial_sums;
    /// Tiles whose contexts are cut, a block a partition: the first ones of `tiles`.
    int cut_tiles;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} PrefillAttentionParams;

/// Attention of segments of prompt rows on Hopper.
typedef struct {
    /// The pool as rows of hd elements: 16 rows are a block's keys or values of one head; in
    /// boxes of 64 elements by 16 rows, swizzled by 128 bytes.
    TensorMap pool;
    /// All else.
    PrefillAttentionParams base;
    /// Tiles of `base.tiles`.
    int tile_count;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved[3];
} WgmmaAttentionParams;

/// Token embeddings into the residual stream.
typedef struct {
    /// Embeddings [vocab, d] bf16, 16-byte aligned.
    const bf16 *table;
    /// Token of each row [T] i32; -1: the row's request chose it in an earlier step, and `last` has
    /// it.
    const int *token;
    /// Token that each request chose last [batch slots] i32, by batch_idx; null: no token is -1.
    const int *last;
    /// Block table row of each row [T] i32; -1: a padding row, which touches nothing.
    const int *batch_idx;
    /// The first norm's weight [d] bf16, 16-byte aligned.
    const bf16 *gamma;
    /// Residual stream [T, d] f32, 16-byte aligned.
    float *h;
    /// The first product's operand [T, d] bf16: h * gamma, 16-byte aligned.
    bf16 *x;
    /// Partial sums of squares of h over 128 columns each [T, parts] f32.
    float *ss;
    /// Rows.
    int rows;
    /// Model width, a multiple of 8.
    int d;
    /// d / 128, rounded up.
    int parts;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} EmbedParams;

/// Sampling parameters of one row.
typedef struct {
    /// Key of the request's randomness.
    unsigned long long seed;
    /// log2(e) / temperature, rounded once; 0: greedy.
    float tempering;
    /// Keep this much of the probability; 1 keeps all.
    float top_p;
    /// Drop what is less likely than this times the most likely.
    float min_p;
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    float repetition;
    /// Subtracted once from the logit of a generated token.
    float presence;
    /// Subtracted per occurrence from the logit of a generated token.
    float frequency;
    /// Keep this many of the most likely tokens; 0 keeps all.
    int top_k;
    /// Row of the token counts; -1: no penalties.
    int token_counts_row;
    /// Absolute position of the token that is chosen: the draw's counter.
    unsigned int position;
    /// Most likely tokens to report beside the chosen one, at most 20.
    int top_logprobs;
    /// Row of `logits`; -1: a padding row, which touches nothing.
    int row;
    /// The request's row of the block table, which is its place in `last`.
    int batch_idx;
    /// Row of `masks`; -1: every token may be chosen.
    int mask_row;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} RowSampling;

/// The sampled token of one row. A token's log-probability is logit - max - ln(sum). Of a row whose
/// logits are not finite only `is_broken` and `step_seq` mean anything.
typedef struct {
    /// Sum of exp(logit - max) over the raw logits.
    double sum;
    /// The token.
    int token;
    /// Its raw logit.
    float logit;
    /// Largest raw logit.
    float max;
    /// Valid entries of `top_token`.
    int num_top;
    /// The most likely tokens, best first.
    int top_token[20];
    /// Their raw logits.
    float top_logit[20];
    /// The step's number, modulo 2^32, stored after all else with release semantics: a host that
    /// reads it sees the rest.
    unsigned int step_seq;
    /// Nonzero: the row holds NaN or plus infinity, or is all minus infinity.
    unsigned int is_broken;
} RowSampled;

/// Tokens from logits.
typedef struct {
    /// Logits [rows, stride] f32, 16-byte aligned; never written.
    const float *logits;
    /// Sampling parameters [rows], 8-byte aligned.
    const RowSampling *row_sampling;
    /// Token counts [batch slots, vocab] u32: bit 31 is set if the token is in the prompt, the rest
    /// counts its occurrences in the output. Null: no row has penalties.
    unsigned int *token_counts;
    /// Tokens that may be chosen [rows, mask_words] u32: token i is bit i % 32 of word i / 32.
    /// Null: no row has a mask.
    const unsigned int *masks;
    /// Unnormalised probabilities [rows, vocab rounded up to 256] f32, 16-byte aligned: between the
    /// kernels.
    float *weights;
    /// Largest logit after penalties of every 256 tokens [rows, blocks] f32.
    float *block_max;
    /// Largest raw logit of every 256 tokens [rows, blocks] f32.
    float *block_raw_max;
    /// Sums of `weights` over every 256 tokens [rows, blocks] f32.
    float *block_sums;
    /// Sums of exp(logit - max) of the raw logits over every 256 tokens [rows, blocks] f32.
    float *block_raw_sums;
    /// Nonzero where a block of 256 tokens holds a NaN or plus infinity [rows, blocks] u32.
    unsigned int *block_broken;
    /// Choices [rows], 8-byte aligned.
    RowSampled *sampled;
    /// The chosen tokens again [batch slots] i32, by batch_idx, where the next step's embedding
    /// reads them; null: nowhere.
    int *last;
    /// The step's number, modulo 2^32, stored with the choices [1] u32.
    const unsigned int *step_seq;
    /// Exchange of a row's team of blocks: sum of 256 tokens, and the number of weights in it
    /// [rows, 2, blocks, 2] f32 and u32, 8-byte aligned; of two passes, in turn.
    float *team_sums;
    /// Tokens among which a nucleus ends [rows, 2048] u64: key of the logit, token.
    unsigned long long *band;
    /// Their number [rows] u32; zero before the launch, zero after it.
    unsigned int *band_count;
    /// Barrier of each row's team [rows] u32; zero before the first launch, and afterwards as
    /// launches leave it.
    unsigned int *team_barriers;
    /// Rows.
    int rows;
    /// Tokens of the vocabulary.
    int vocab;
    /// Elements from one row of logits to the next, a multiple of 4.
    int stride;
    /// vocab / 256, rounded up.
    int blocks;
    /// Words of a row of `masks`.
    int mask_words;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} SampleParams;

/// Words of the step's metadata that the host has changed since the last step.
typedef struct {
    /// The copy [words] u32.
    unsigned int *words;
    /// Number of differences, and an unused word, 8-byte aligned; in pinned host memory.
    const unsigned int *count;
    /// Index and new value of each [count, 2] u32, 8-byte aligned; in pinned host memory.
    const unsigned int *diffs;
} ApplyDiffsParams;

/// A request's row of token counts, rewritten.
typedef struct {
    /// Token counts [batch slots, vocab] u32: see the sampler.
    unsigned int *token_counts;
    /// Prompts and outputs of all jobs, one after the other [tokens] i32; ids outside the
    /// vocabulary are ignored.
    const int *tokens;
    /// Jobs [jobs, 4] i32, 16-byte aligned: row, first token, prompt tokens, output tokens. Row -1:
    /// touches nothing.
    const int *jobs;
    /// Tokens of the vocabulary.
    int vocab;
    /// Keeps the struct's size a multiple of its alignment in words.
    int reserved;
} TokenCountsParams;

/// Sums of the tapped layer over each request's KV blocks, and the mean over its prompt.
typedef struct {
    /// Residual stream after the tapped layer [T, d] f32.
    const float *h;
    /// Segments of rows of a request [segments, 8] i32, 16-byte aligned: first row, rows,
    /// batch_idx, first position, prompt tokens, stage row (-1: the rows do not complete the
    /// prompt), rows after these that are kept, first row of `kept`. batch_idx -1: touches nothing.
    const int *segments;
    /// Block ids [batch_slots, max_blocks] i32.
    const int *block_table;
    /// KV pool, whose blocks end in their sums [d] f32, 16-byte aligned.
    bf16 *pool;
    /// Rows of draft tokens, which may turn out wrong [kept rows, d] f32; null: none.
    float *kept;
    /// Staging rows [stage rows, d] bf16.
    bf16 *stage;
    /// Elements of the pool from one block to the next.
    long long block_stride;
    /// Elements of the pool from a block's start to its sums.
    long long sums_offset;
    /// Entries per row of the block table.
    int max_blocks;
    /// Model width.
    int d;
} TapMeanParams;

/// The probe's MLP: d -> hidden, ReLU -> bins, softmax.
typedef struct {
    /// Staged activations [rows, d] bf16, 16-byte aligned.
    const bf16 *x;
    /// Inputs beside them [rows, 4] i32, 16-byte aligned: index of the request (-1: none), class of
    /// age (0: the mean over a prompt), bits of the f32 logarithm of the prompt's length, 0.
    const int *inputs;
    /// Hidden weights [hidden, d] bf16, row-major, 16-byte aligned.
    const bf16 *hidden_weight;
    /// Hidden biases [classes of age, hidden] f32.
    const float *hidden_bias;
    /// Weights of the mean over a prompt [hidden, d] bf16, row-major, 16-byte aligned.
    const bf16 *mean_weight;
    /// Weights of the logarithm of its length [hidden] f32.
    const float *length_weight;
    /// Each request's share of its prompt [requests, hidden] f32, 8-byte aligned; null: the prompt
    /// is not read.
    float *prompt_sums;
    /// Output weights [bins, hidden] f32.
    const float *output_weight;
    /// Output biases [bins] f32.
    const float *output_bias;
    /// Hidden units after ReLU [rows, hidden] f32, 8-byte aligned: between the kernels.
    float *hidden_out;
    /// Probabilities [rows, bins] f32.
    float *probabilities;
    /// Rows.
    int rows;
    /// Width of an activation, a multiple of 64.
    int d;
    /// Hidden units, a multiple of 32.
    int hidden;
    /// Bins, at most 32.
    int bins;
} ProbeParams;
