//! The weights cut into chunks that a buffer can hold: the bytes of the file, and their arrangement
//! on the device.

use super::DeviceWeights;
use crate::cuda::launch::RowOrder;
use crate::cuda::plan::shuffle::{FEATURES, WIDTH};
use crate::model::{Dtype, LayerWeights, Model, QkNorm, QkvBias, RopePairing, Tensor};
use std::ops::Range;
use trail_ptx::DevicePtr;
use trail_ptx::params::{HeadTerms, bf16};

/// Parts of a buffer begin at multiples of this.
const PART_ALIGNMENT: usize = 16;

/// Rows of one tensor.
#[derive(Clone, Copy, Default)]
pub(super) struct Part<'a> {
    /// As the file has them.
    pub(super) bytes: &'a [u8],
    /// Its rows.
    pub(super) rows: usize,
    /// `None` for a part that is not there.
    pub(super) dtype: Option<Dtype>,
    /// Where the part begins in the buffer, bytes.
    pub(super) offset: usize,
    /// Width of the heads whose rows are staged in another order than the file's: see
    /// [`Part::staged_row`].
    pub(super) adjacent_pairs: Option<usize>,
}

impl Part<'_> {
    /// Row of the staged part where row `row` of the file goes. The device takes heads whose row i
    /// turns with row i + head_dim / 2; a file of adjacent pairs has them at 2i and 2i + 1.
    pub(super) fn staged_row(&self, row: usize) -> usize {
        let Some(head_dim) = self.adjacent_pairs else { return row };
        let within = row % head_dim;
        row - within + within % 2 * (head_dim / 2) + within / 2
    }
}

/// A piece of a matrix that fits one staging buffer.
pub(super) struct Chunk<'a> {
    /// Up to three sources, in order.
    pub(super) parts: [Part<'a>; 3],
    /// The type that the buffer holds: the sources', or bf16 where they differ, are quantized or
    /// only copied.
    pub(super) staged: Dtype,
    /// Bytes of the buffer.
    pub(super) staged_bytes: usize,
    /// Arrangement on the device.
    pub(super) arrangement: Arrangement,
    /// Where that goes.
    pub(super) to: DevicePtr<bf16>,
}

/// Arrangement of a chunk on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// It is there as it is.
    Rows,
    /// A run of whole tiles in fragment order.
    Fragments { order: RowOrder, width: usize },
}

impl Chunk<'_> {
    /// Bytes of the file that it brings.
    pub(super) fn source_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }
}

/// Sources of one matrix, and where it goes.
struct Matrix<'a> {
    sources: Vec<Source<'a>>,
    arrangement: Arrangement,
    to: DevicePtr<bf16>,
}

/// A row-major matrix of the file, or a vector as a matrix of one row.
struct Source<'a> {
    bytes: &'a [u8],
    rows: usize,
    cols: usize,
    dtype: Dtype,
    /// As in [`Part`].
    adjacent_pairs: Option<usize>,
}

impl<'a> From<&'a Tensor> for Source<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let Tensor { rows, cols, dtype, .. } = *tensor;
        Source { bytes: tensor.bytes(), rows, cols, dtype, adjacent_pairs: None }
    }
}

/// All chunks of `model` on their way to `weights`, each of at most `buffer_bytes` where a tile's
/// rows are not more. A tied output projection is not among them: it is made of the embedding, on
/// the device.
pub(super) fn cut<'a>(
    model: &'a Model,
    weights: &DeviceWeights,
    buffer_bytes: usize,
) -> Vec<Chunk<'a>> {
    matrices(model, weights).iter().flat_map(|matrix| matrix.chunks(buffer_bytes)).collect()
}

fn matrices<'a>(model: &'a Model, weights: &DeviceWeights) -> Vec<Matrix<'a>> {
    let source = &model.weights;
    let rows = |sources, to| Matrix { sources, arrangement: Arrangement::Rows, to };
    let mut all = vec![rows(vec![Source::from(&source.embed)], weights.embed)];
    let norms = source.layers.iter().flat_map(|layer| [&layer.attention_norm, &layer.mlp_norm]);
    for (norm, &to) in norms.chain([&source.norm]).zip(&weights.norms) {
        all.push(rows(vec![vector(norm)], to));
    }
    let shuffled = |tensors: &[&'a Tensor], order, to| Matrix {
        sources: tensors.iter().map(|&tensor| Source::from(tensor)).collect(),
        arrangement: Arrangement::Fragments { order, width: tensors[0].cols },
        to,
    };
    let head_dim = model.config.head_dim;
    let pairs = RowOrder::RotationPairs { head_dim };
    let is_adjacent = model.config.rope_pairing == RopePairing::Adjacent;
    let adjacent_pairs = is_adjacent.then_some(head_dim);
    let rotated = |tensor: &'a Tensor| Source { adjacent_pairs, ..Source::from(tensor) };
    for (layer, to) in source.layers.iter().zip(&weights.layers) {
        all.push(Matrix {
            sources: vec![rotated(&layer.q), rotated(&layer.k), Source::from(&layer.v)],
            ..shuffled(&[&layer.q], pairs, to.qkv)
        });
        all.extend(head_terms(layer, adjacent_pairs, &to.terms));
        all.push(shuffled(&[&layer.o], RowOrder::Plain, to.o));
        let mlp = layer.mlp.dense().expect("mixtures are refused");
        all.push(shuffled(&[&mlp.gate, &mlp.up], RowOrder::Alternating, to.gate_up));
        all.push(shuffled(&[&mlp.down], RowOrder::Plain, to.down));
    }
    if !model.config.tie_word_embeddings {
        all.push(shuffled(&[&source.lm_head], RowOrder::Plain, weights.lm_head));
    }
    all
}

fn vector(values: &[f32]) -> Source<'_> {
    let bytes = bytemuck::cast_slice(values);
    Source { bytes, rows: 1, cols: values.len(), dtype: Dtype::F32, adjacent_pairs: None }
}

/// Biases and norms of a layer's heads; `adjacent_pairs` as for the rows of q and k.
fn head_terms<'a>(
    layer: &'a LayerWeights,
    adjacent_pairs: Option<usize>,
    to: &HeadTerms,
) -> Vec<Matrix<'a>> {
    let mut vectors = Vec::new();
    if let Some(QkvBias { q, k, v }) = &layer.qkv_bias {
        let k_at = to.bias.add(q.len());
        let v_at = k_at.add(k.len());
        vectors.extend([(q, adjacent_pairs, to.bias), (k, adjacent_pairs, k_at), (v, None, v_at)]);
    }
    if let Some(QkNorm { q, k }) = &layer.qk_norm {
        vectors.extend([(q, adjacent_pairs, to.q_norm), (k, adjacent_pairs, to.k_norm)]);
    }
    let rows = |(values, adjacent_pairs, to): (&'a Vec<f32>, _, _)| Matrix {
        // As rows of one value, which are put in order like those of a matrix.
        sources: vec![Source { rows: values.len(), cols: 1, adjacent_pairs, ..vector(values) }],
        arrangement: Arrangement::Rows,
        to,
    };
    vectors.into_iter().map(rows).collect()
}

impl<'a> Matrix<'a> {
    /// The type in which the sources are staged.
    fn staged(&self) -> Dtype {
        let first = self.sources[0].dtype;
        let same = self.sources.iter().all(|source| source.dtype == first);
        let is_shuffled = self.arrangement != Arrangement::Rows && !first.is_quantized();
        if same && is_shuffled { first } else { Dtype::Bf16 }
    }

    /// Source rows of all chunks, in turn, and the destination's row at which each begins.
    fn chunks(&self, buffer_bytes: usize) -> Vec<Chunk<'a>> {
        let staged = self.staged();
        let row_bytes = staged.bytes_of(self.sources[0].cols);
        let alternating =
            matches!(self.arrangement, Arrangement::Fragments { order: RowOrder::Alternating, .. });
        // Alternating sources are cut alike; others are one matrix, whose rows are counted through.
        let (total, row_bytes) = match alternating {
            true => (self.sources[0].rows, row_bytes * self.sources.len()),
            false => (self.sources.iter().map(|source| source.rows).sum(), row_bytes),
        };
        let unit = match self.arrangement {
            Arrangement::Rows => self.sources[0].adjacent_pairs.unwrap_or(1),
            Arrangement::Fragments { .. } if alternating => FEATURES / self.sources.len(),
            Arrangement::Fragments { .. } => FEATURES,
        };
        let step = (buffer_bytes / row_bytes / unit * unit).max(unit);
        let ranges = (0..total).step_by(step).map(|first| first..(first + step).min(total));
        let chunk = |rows: Range<usize>| {
            let to_row = if alternating { rows.start * self.sources.len() } else { rows.start };
            let parts = if alternating { self.alike(&rows) } else { self.through(&rows) };
            self.chunk(parts, staged, to_row)
        };
        ranges.map(chunk).collect()
    }

    /// The same `rows` of every source.
    fn alike(&self, rows: &Range<usize>) -> [Part<'a>; 3] {
        let mut parts = [Part::default(); 3];
        for (part, source) in parts.iter_mut().zip(&self.sources) {
            *part = source.part(rows.clone());
        }
        parts
    }

    /// The part of each source that falls into `rows`, counted through all sources.
    fn through(&self, rows: &Range<usize>) -> [Part<'a>; 3] {
        let mut parts = [Part::default(); 3];
        let mut before = 0;
        for (part, source) in parts.iter_mut().zip(&self.sources) {
            let within = |row: usize| row.saturating_sub(before).min(source.rows);
            *part = source.part(within(rows.start)..within(rows.end));
            before += source.rows;
        }
        parts
    }

    /// The chunk of `parts` whose rows begin at the destination's `to_row`.
    fn chunk(&self, mut parts: [Part<'a>; 3], staged: Dtype, to_row: usize) -> Chunk<'a> {
        let cols = self.sources[0].cols;
        let mut end = 0;
        for part in &mut parts {
            part.offset = end;
            end += staged.bytes_of(part.rows * cols).next_multiple_of(PART_ALIGNMENT);
        }
        let width = match self.arrangement {
            Arrangement::Rows => cols,
            Arrangement::Fragments { width, .. } => width.next_multiple_of(WIDTH),
        };
        let to = self.to.add(to_row * width);
        Chunk { parts, staged, staged_bytes: end, arrangement: self.arrangement, to }
    }
}

impl<'a> Source<'a> {
    fn part(&self, rows: Range<usize>) -> Part<'a> {
        let row_bytes = self.dtype.bytes_of(self.cols);
        Part {
            bytes: &self.bytes[rows.start * row_bytes..rows.end * row_bytes],
            rows: rows.len(),
            dtype: Some(self.dtype),
            offset: 0,
            adjacent_pairs: self.adjacent_pairs,
        }
    }
}
