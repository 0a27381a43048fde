//! Models of odd sizes, their way to the device, and what should have arrived.

use cudarc::driver::result;
use half::bf16;
use std::sync::Arc;
use trail_ptx::DevicePtr;
use trail_runtime::cuda::weights::UploadPool;
use trail_runtime::cuda::{CudaError, Device, DeviceWeights, params};
use trail_runtime::model::{
    Architecture, Dtype, LayerWeights, Model, ModelConfig, QkNorm, QkvBias, RopePairing, Tensor,
};
use trail_test_support::cuda::Chance;
use trail_test_support::gemm::{self as reference, Matrix};

/// A buffer that holds no more than one tile of most matrices here.
pub(crate) const TINY_SLOT: usize = 1 << 10;

/// The part of a configuration that the weights depend on.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab: usize,
    pub(crate) tied: bool,
}

/// Sizes that fill no tile: features that are no multiple of 128 nor 64, a width that is no
/// multiple of 256.
pub(crate) fn odd(head_dim: usize, tied: bool) -> Shape {
    Shape { hidden: 72, inner: 200, head_dim, vocab: 333, tied }
}

/// A model of `shape` with random weights.
pub(crate) fn model(shape: &Shape, dtype: Dtype, seed: u64) -> Model {
    let config = ModelConfig {
        hidden_size: shape.hidden,
        intermediate_size: shape.inner,
        head_dim: shape.head_dim,
        num_heads: 3,
        num_kv_heads: 1,
        vocab_size: shape.vocab,
        tie_word_embeddings: shape.tied,
        ..ModelConfig::named("tiny").unwrap()
    };
    Model::random_of(config, dtype, seed).unwrap()
}

/// A model whose matrices of one product have different types.
pub(crate) fn mixed(shape: &Shape) -> Model {
    let of = |dtype| model(shape, dtype, 4);
    let (mut mixed, halves, singles) = (of(Dtype::Bf16), of(Dtype::F16), of(Dtype::F32));
    for (index, layer) in mixed.weights.layers.iter_mut().enumerate() {
        layer.k = halves.weights.layers[index].k.clone();
        layer.v = singles.weights.layers[index].v.clone();
        let dense = |model: &Model| model.weights.layers[index].mlp.dense().unwrap().clone();
        let mlp = layer.mlp.dense_mut().unwrap();
        mlp.up = dense(&singles).up;
        mlp.down = dense(&halves).down;
    }
    mixed
}

/// A model of `architecture` whose q and k have adjacent pairs, as a GGUF file of Llama, with
/// random biases and norms of heads where the family has them.
pub(crate) fn of_family(shape: &Shape, architecture: Architecture) -> Model {
    let mut model = model(shape, Dtype::F16, 6);
    model.config.architecture = architecture;
    model.config.rope_pairing = RopePairing::Adjacent;
    let (q, kv, head) = (model.config.q_size(), model.config.kv_size(), shape.head_dim);
    let mut chance = Chance(7);
    let mut vector = |len: usize| -> Vec<f32> { (0..len).map(|_| chance.unit()).collect() };
    for layer in &mut model.weights.layers {
        let has_bias = architecture.has_qkv_bias();
        layer.qkv_bias = has_bias.then(|| QkvBias { q: vector(q), k: vector(kv), v: vector(kv) });
        let has_norm = architecture.has_qk_norm();
        layer.qk_norm = has_norm.then(|| QkNorm { q: vector(head), k: vector(head) });
    }
    model
}

pub(crate) fn upload(
    device: &Arc<Device>,
    model: &Model,
    team: UploadPool,
) -> Result<DeviceWeights, CudaError> {
    DeviceWeights::upload_by(device, model, team, &mut |_| {})
}

/// Weights on the device, as bits.
pub(crate) struct Arrived {
    embed: Vec<u16>,
    norms: Vec<Vec<u16>>,
    /// qkv, o, gate_up, down.
    layers: Vec<[Vec<u16>; 4]>,
    /// Bias, norm of queries, norm of keys.
    terms: Vec<[Vec<u16>; 3]>,
    lm_head: Vec<u16>,
}

/// The expected weights.
struct Wanted;

impl Arrived {
    pub(crate) fn read(device: &Device, model: &Model, weights: &DeviceWeights) -> Arrived {
        let config = &model.config;
        let (d, inner, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
        device.synchronize().unwrap();
        let bits = |at: DevicePtr<params::bf16>, count: usize| {
            let mut bits = vec![0u16; count];
            // SAFETY: nothing is in flight; a read beyond the weights would be a finding.
            unsafe { result::memcpy_dtoh_sync(&mut bits, at.address()).unwrap() };
            bits
        };
        let fragments = |at, rows: usize, width: usize| {
            bits(at, rows.next_multiple_of(128) * width.next_multiple_of(256))
        };
        Arrived {
            embed: bits(weights.embed, vocab * d),
            norms: weights.norms.iter().map(|&at| bits(at, d)).collect(),
            layers: weights
                .layers
                .iter()
                .map(|layer| {
                    [
                        fragments(layer.qkv, config.q_size() + 2 * config.kv_size(), d),
                        fragments(layer.o, d, config.q_size()),
                        fragments(layer.gate_up, 2 * inner, d),
                        fragments(layer.down, d, inner),
                    ]
                })
                .collect(),
            terms: weights
                .layers
                .iter()
                .map(|layer| {
                    let (all, head) = (config.q_size() + 2 * config.kv_size(), config.head_dim);
                    let terms = &layer.terms;
                    [(terms.bias, all), (terms.q_norm, head), (terms.k_norm, head)].map(
                        |(at, len)| if at == DevicePtr::NULL { Vec::new() } else { bits(at, len) },
                    )
                })
                .collect(),
            lm_head: fragments(weights.lm_head, vocab, d),
        }
    }

    /// Asserts that it is what the file's values make.
    pub(crate) fn check(&self, model: &Model) {
        let weights = &model.weights;
        let rows =
            |values: &[f32]| -> Vec<u16> { values.iter().map(|&x| narrow(x).to_bits()).collect() };
        assert!(self.embed == rows(&weights.embed.to_f32()), "embedding");
        let norms =
            weights.layers.iter().flat_map(|layer| [&layer.attention_norm, &layer.mlp_norm]);
        let norms: Vec<Vec<u16>> = norms.chain([&weights.norm]).map(|norm| rows(norm)).collect();
        assert!(self.norms == norms, "norms");
        assert!(self.lm_head == Wanted::plain(&weights.lm_head), "output projection");
        for (index, (found, layer)) in self.layers.iter().zip(&weights.layers).enumerate() {
            let qkv = Wanted::pairs(&[&layer.q, &layer.k, &layer.v], &model.config);
            assert!(
                self.terms[index] == wanted_terms(layer, &model.config),
                "bias and norms of layer {index}"
            );
            let mlp = layer.mlp.dense().unwrap();
            let gate_up = Wanted::alternating(&[&mlp.gate, &mlp.up]);
            let wanted = [qkv, Wanted::plain(&layer.o), gate_up, Wanted::plain(&mlp.down)];
            for ((found, wanted), name) in
                found.iter().zip(&wanted).zip(["qkv", "o", "gate_up", "down"])
            {
                assert!(found == wanted, "{name} of layer {index}");
            }
        }
    }
}

/// Bias, norm of queries and norm of keys; empty where there is none. Their values have the order
/// of the rows of q and k, those of v the file's.
fn wanted_terms(layer: &LayerWeights, config: &ModelConfig) -> [Vec<u16>; 3] {
    let turned = config.q_size() + config.kv_size();
    let bits = |values: &[f32]| -> Vec<u16> {
        let source = |at| if at < turned { stored_row(at, config) } else { at };
        (0..values.len()).map(|at| narrow(values[source(at)]).to_bits()).collect()
    };
    let bias = layer.qkv_bias.as_ref().map(|bias| [&bias.q[..], &bias.k, &bias.v].concat());
    let norms = layer.qk_norm.as_ref().map(|norms| [bits(&norms.q), bits(&norms.k)]);
    let [q_norm, k_norm] = norms.unwrap_or_default();
    [bits(&bias.unwrap_or_default()), q_norm, k_norm]
}

/// Row of q and k in the file whose place on the device is `row`: row i of a head's first half is
/// row 2i of a file of adjacent pairs, row i of its second half row 2i + 1.
fn stored_row(row: usize, config: &ModelConfig) -> usize {
    let (within, half) = (row % config.head_dim, config.head_dim / 2);
    match config.rope_pairing {
        RopePairing::Halves => row,
        RopePairing::Adjacent => row - within + within % half * 2 + within / half,
    }
}

fn narrow(value: f32) -> bf16 {
    bf16::from_f32(value)
}

impl Wanted {
    fn plain(tensor: &Tensor) -> Vec<u16> {
        let padded = tensor.rows.next_multiple_of(128);
        Wanted::ordered(&[tensor], &reference::plain_order(tensor.rows, padded))
    }

    fn pairs(sources: &[&Tensor], config: &ModelConfig) -> Vec<u16> {
        let rows: usize = sources.iter().map(|tensor| tensor.rows).sum();
        let mut order =
            reference::rotation_order(rows, config.head_dim, rows.next_multiple_of(128));
        let turned = config.q_size() + config.kv_size();
        for row in order.iter_mut().flatten().filter(|row| **row < turned) {
            *row = stored_row(*row, config);
        }
        Wanted::ordered(sources, &order)
    }

    fn alternating(sources: &[&Tensor]) -> Vec<u16> {
        let rows = sources[0].rows;
        Wanted::ordered(
            sources,
            &reference::alternating_order(rows, (2 * rows).next_multiple_of(128)),
        )
    }

    fn ordered(sources: &[&Tensor], order: &[Option<usize>]) -> Vec<u16> {
        let values = sources.iter().flat_map(|tensor| tensor.to_f32());
        let matrix = Matrix {
            data: values.map(narrow).collect(),
            rows: sources.iter().map(|tensor| tensor.rows).sum(),
            width: sources[0].cols,
        };
        let padded = matrix.width.next_multiple_of(256);
        reference::fragment_order(&matrix, order, padded)
            .iter()
            .map(|value| value.to_bits())
            .collect()
    }
}
