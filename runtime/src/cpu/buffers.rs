//! Buffers of a forward pass, allocated once.

use crate::backend::{BLOCK_TOKENS, Batch};
use crate::model::ModelConfig;

use super::adapted::{Adapted, PIECE_ROWS};
use super::delta_net::{DeltaBuffers, item_scratch};
use super::narrow::{Narrow, NarrowKernels};
use super::options::CpuOptions;
use super::routes::Routes;
use trail_cpu_kernels::Aligned;
use trail_cpu_kernels::{AttentionScratch, Packing};

/// Maximum rows of activations in one product. The slice that is multiplied with one block of
/// weights (4 KiB per row) then stays in a core's L2. A multiple of every tile's rows.
pub(crate) const ROW_BLOCK: usize = 192;
/// Maximum number of weight rows in one work item.
pub(crate) const MAX_ITEM_COLS: usize = 64;
/// Bytes of weights that one worker reads in a row: below, prefetchers start too often.
const ITEM_BYTES: usize = 256 << 10;
/// Weight rows of the widest tile of products in 8 bits.
const Q8_TILE_COLS: usize = 32;
/// Queries of one attention task: enough to amortize the load of a key, few enough for L1.
const ATTENTION_QUERIES: usize = 24;

/// Number of weight rows in one work item: small enough that every worker gets several items, for
/// load balance.
pub(crate) fn item_cols(cols: usize, num_workers: usize) -> usize {
    (cols / (4 * num_workers)).next_multiple_of(8).clamp(8, MAX_ITEM_COLS)
}

/// The same where `rows` rows are multiplied in 8 bits with weights of `row_bytes` a row: whole
/// tiles, of as many bytes as memory reads fastest, as far as the scratch and the balance allow.
pub(crate) fn q8_item_cols(
    cols: usize,
    row_bytes: usize,
    rows: usize,
    num_workers: usize,
) -> usize {
    let scratch = ROW_BLOCK * MAX_ITEM_COLS / rows.clamp(1, ROW_BLOCK);
    let max = (ITEM_BYTES / row_bytes).min(scratch).min(cols / (4 * num_workers));
    (max / Q8_TILE_COLS * Q8_TILE_COLS).max(Q8_TILE_COLS)
}

/// Number of rows in one attention task where `group` query heads share a KV head.
fn attention_rows(group: usize) -> usize {
    (ATTENTION_QUERIES / group).max(1)
}

/// One attention task: consecutive rows of one segment.
#[derive(Clone, Copy)]
pub(crate) struct AttentionRows {
    /// Index of the segment in the batch.
    pub(crate) segment: usize,
    /// First row, as an index into the batch.
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Position of the first row in its request's context.
    pub(crate) position: usize,
}

/// A partition of the context of an attention task of one row, which a thread attends to alone.
#[derive(Clone, Copy)]
pub(crate) struct Split {
    /// Index of the task.
    pub(crate) task: usize,
    /// See [`partitions`](trail_cpu_kernels::partitions).
    pub(crate) partition: usize,
}

/// Activations that parallel regions pass on. `packed` rows are in [`Packing`] order and stride.
pub(crate) struct Buffers {
    /// Residual stream `[rows, hidden]`.
    pub(crate) hidden: Aligned,
    /// Normalised residual stream, packed `[rows][hidden]`; in a mixture, copies of rows follow.
    pub(crate) normed: Aligned,
    /// Queries after RoPE and scaling `[rows][num_heads][head_dim]`.
    pub(crate) queries: Aligned,
    /// Keys before a norm of all heads `[rows][num_kv_heads][head_dim]`; empty in families without.
    pub(crate) raw_keys: Aligned,
    /// Values between the projections and the output of a hybrid's layers.
    pub(super) delta: DeltaBuffers,
    /// Output of attention, packed `[rows][num_heads * head_dim]`, or of a gated delta net.
    pub(crate) attended: Aligned,
    /// Output of a block before its post norm `[rows, hidden]`; empty in families without these.
    pub(crate) projected: Aligned,
    /// Inner activations of the MLP, packed `[rows][intermediate]`, or of all experts.
    pub(crate) inner: Aligned,
    /// Rows with adapters.
    pub(super) adapted: Adapted,
    /// Which rows each MLP of the current layer computes.
    pub(crate) routes: Routes,
    /// Input of the current products in narrow types.
    pub(super) narrow: Narrow,
    /// Logits `[sampled rows][vocab]`.
    pub(crate) logits: Aligned,
    /// Index of each row's token in the KV pool: block * BLOCK_TOKENS + token in the block
    /// `[rows]`.
    pub(crate) kv_indices: Vec<u32>,
    /// Attention tasks of the batch; each is run once per KV head.
    pub(crate) tasks: Vec<AttentionRows>,
    /// The tasks by partitions of their contexts; empty where whole tasks are enough.
    pub(crate) splits: Vec<Split>,
    /// State of each split's softmax `[splits][kv heads][group][Softmax::stored_len]`. Takes memory
    /// when it is first used.
    pub(crate) partials: Aligned,
    /// Rows whose logits are requested.
    pub(crate) wanted: Vec<u32>,
}

impl Buffers {
    /// Allocates buffers for batches within `options`, and for products by `kernels`.
    pub(super) fn new(
        config: &ModelConfig,
        options: &CpuOptions,
        kernels: NarrowKernels,
    ) -> Result<Self, String> {
        let (max_rows, max_sampled) = (options.max_rows, options.max_sampled());
        let inputs = Buffers::product_inputs(config, options);
        let normed_rows = inputs[0].0;
        let inner = config.inner_shapes().into_iter();
        let inner = inner.map(|(rows, len)| max_rows * rows * Packing::stride(len));
        let raw_key_rows = if config.architecture.has_wide_qk_norm() { max_rows } else { 0 };
        let post_norm_rows = if config.architecture.has_post_norms() { max_rows } else { 0 };
        // The number of rows that the experts of a mixture copy depends on the batch.
        let activations = match config.mixture {
            None => Aligned::zeroed,
            Some(_) => Aligned::reserved,
        };
        Ok(Buffers {
            hidden: Aligned::zeroed(max_rows * config.hidden_size)?,
            normed: activations(normed_rows * Packing::stride(config.hidden_size))?,
            queries: Aligned::zeroed(max_rows * config.q_size())?,
            raw_keys: Aligned::zeroed(raw_key_rows * config.kv_size())?,
            delta: DeltaBuffers::new(config, max_rows)?,
            attended: Aligned::zeroed(max_rows * Packing::stride(config.attended_size()))?,
            projected: Aligned::zeroed(post_norm_rows * config.hidden_size)?,
            inner: activations(inner.max().unwrap_or(0))?,
            adapted: Adapted::new(max_rows)?,
            routes: Routes::new(config, max_rows),
            narrow: Narrow::new(kernels, &inputs)?,
            logits: Aligned::zeroed(max_sampled * config.vocab_size)?,
            kv_indices: Vec::with_capacity(max_rows),
            tasks: Vec::with_capacity(max_rows),
            splits: Vec::with_capacity(options.max_splits()),
            partials: Aligned::reserved(options.partial_floats(config))?,
            wanted: Vec::with_capacity(max_sampled),
        })
    }

    /// Rows and width of the inputs of matrix products, at most: `normed`, `attended`, and `inner`
    /// of each kind of MLP.
    pub(super) fn product_inputs(
        config: &ModelConfig,
        options: &CpuOptions,
    ) -> Vec<(usize, usize)> {
        let rows = options.max_rows;
        let normed = (rows * config.mlp_input_rows()).max(options.max_sampled());
        let inner = config.inner_shapes().into_iter().map(|(each, len)| (rows * each, len));
        let inputs = [(normed, config.hidden_size), (rows, config.attended_size())];
        inputs.into_iter().chain(inner).collect()
    }

    /// The rows of `source`, and those with adapters.
    pub(super) fn source_and_adapted(&mut self, source: Source) -> (&[f32], &mut Adapted) {
        (source.rows(&self.normed, &self.attended, &self.inner), &mut self.adapted)
    }

    /// Derives `kv_indices`, `tasks`, `wanted` and `adapted` from `batch`.
    pub(crate) fn plan(&mut self, config: &ModelConfig, batch: &Batch) {
        self.kv_indices.clear();
        self.tasks.clear();
        self.wanted.clear();
        self.adapted.plan(batch);
        self.routes.begin();
        let step = attention_rows(config.num_heads / config.num_kv_heads);
        for (index, segment) in batch.segments.iter().enumerate() {
            let (start, len) = (segment.start as usize, segment.len as usize);
            let blocks = batch.blocks(segment);
            self.kv_indices.extend((start..start + len).map(|position| {
                let token = position % BLOCK_TOKENS;
                blocks[position / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + token as u32
            }));
            self.tasks.extend((0..len).step_by(step).map(|first| AttentionRows {
                segment: index,
                first_row: segment.first_row as usize + first,
                rows: step.min(len - first),
                position: start + first,
            }));
            self.wanted.extend(segment.sampled_rows());
        }
    }
}

/// Input of a projection.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Normed,
    Attended,
    Inner,
}

impl Source {
    /// Its rows, among those of all sources.
    pub(super) fn rows<'a>(
        self,
        normed: &'a [f32],
        attended: &'a [f32],
        inner: &'a [f32],
    ) -> &'a [f32] {
        match self {
            Source::Normed => normed,
            Source::Attended => attended,
            Source::Inner => inner,
        }
    }
}

/// Private memory of one worker.
pub(crate) struct WorkerScratch {
    /// Output of a product before it is scattered `[row block][item cols]`.
    pub(crate) tile: Aligned,
    /// A second tile, for the MLP's up projection, and for a rotated head.
    pub(crate) up_tile: Aligned,
    /// Rows of an adapter `[PIECE_ROWS]`, packed. Takes memory when it is first used.
    pub(crate) gathered: Aligned,
    /// Scratch of attention.
    pub(crate) attention: AttentionScratch,
}

impl WorkerScratch {
    /// Allocates scratch for a model of `config`.
    pub(crate) fn new(config: &ModelConfig) -> Result<Self, String> {
        let group = config.num_heads / config.num_kv_heads;
        let tile = ROW_BLOCK * MAX_ITEM_COLS.max(config.head_dim);
        let tile = tile.max(config.delta_net.as_ref().map_or(0, item_scratch));
        let widest = config.intermediate_size.max(config.q_size()).max(config.hidden_size);
        Ok(WorkerScratch {
            tile: Aligned::zeroed(tile)?,
            up_tile: Aligned::zeroed(tile)?,
            gathered: Aligned::reserved(PIECE_ROWS * Packing::stride(widest))?,
            attention: AttentionScratch::new(attention_rows(group) * group, config.head_dim)?,
        })
    }
}
