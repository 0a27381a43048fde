//! Models of real shapes with random weights, for benchmarks and tests.

use std::sync::Arc;

use memmap2::MmapMut;
use trail_cpu_kernels::fill_random;
use trail_platform::{Memory, Rng};

use super::{
    DeltaNet, DeltaNetConfig, Dtype, GatedMlp, LayerWeights, Mixture, Mlp, MlpBias, Model,
    ModelConfig, PostNorms, QkNorm, QkvBias, Storage, Tensor, Weights,
};

/// Number of values drawn from one seed: the unit of parallel generation.
const PIECE: usize = 1 << 20;

impl Model {
    /// Creates a model of a named shape with random weights, determined by `seed`.
    pub fn random(shape: &str, dtype: Dtype, seed: u64) -> Result<Model, String> {
        Model::random_of(ModelConfig::named(shape)?, dtype, seed)
    }

    /// Creates a model of `config` with random weights, determined by `seed`.
    pub fn random_of(config: ModelConfig, dtype: Dtype, seed: u64) -> Result<Model, String> {
        let shapes = tensor_shapes(&config);
        let len: usize = shapes.iter().map(|(rows, cols)| rows * cols).sum();
        let storage = random_storage(len, dtype, seed)?;
        let mut shapes = shapes.into_iter();
        let mut offset = 0;
        let mut next = || {
            let (rows, cols) = shapes.next()?;
            let tensor = Tensor::new(dtype, rows, cols, storage.clone(), offset)?;
            offset += tensor.bytes().len();
            Some(tensor)
        };
        let hidden = config.hidden_size;
        let mut vectors = Vectors(Rng::new(seed ^ 0x6e6f_726d)); // Apart from the pieces' seeds.
        let weights = (|| {
            let embed = next()?;
            let mut layers = Vec::with_capacity(config.num_layers);
            for index in 0..config.num_layers {
                layers.push(LayerWeights {
                    attention_norm: vectors.norm(hidden),
                    q: next()?,
                    k: next()?,
                    v: next()?,
                    o: next()?,
                    delta_net: match config.layer_delta_net(index) {
                        None => None,
                        Some(net) => Some(vectors.delta_net(next()?, hidden, net)),
                    },
                    mlp_norm: vectors.norm(hidden),
                    mlp: match config.layer_mixture(index) {
                        None => Mlp::Dense(gated(&mut next)?),
                        Some(mixture) => Mlp::Mixture(Mixture {
                            router: vectors.router(hidden, mixture.router_rows()),
                            router_bias: vectors.bias(&config, mixture.router_rows()),
                            experts: (0..mixture.num_experts)
                                .map(|_| {
                                    let bias = vectors.mlp_bias(&config, mixture.expert_size);
                                    Some(GatedMlp { bias, ..gated(&mut next)? })
                                })
                                .collect::<Option<_>>()?,
                            shared: match mixture.shared_size {
                                None => None,
                                Some(_) => Some(gated(&mut next)?),
                            },
                        }),
                    },
                    qkv_bias: vectors.qkv_bias(&config),
                    o_bias: vectors.bias(&config, hidden),
                    sinks: vectors.bias(&config, config.num_heads),
                    qk_norm: vectors.qk_norm(&config, index),
                    post_norms: vectors.post_norms(&config),
                });
            }
            let lm_head = if config.tie_word_embeddings { embed.clone() } else { next()? };
            let norm = vectors.norm(hidden);
            Some(Weights { embed, layers, norm, lm_head, mapped_bytes: 0 })
        })();
        let weights = weights.ok_or("the tensors exceed their storage")?;
        Ok(Model { config, weights })
    }
}

/// The next three matrices.
fn gated(next: &mut impl FnMut() -> Option<Tensor>) -> Option<GatedMlp> {
    Some(GatedMlp { gate: next()?, up: next()?, down: next()?, bias: None })
}

/// Random norms, biases and routers.
struct Vectors(Rng);

impl Vectors {
    /// `len` values around `mean`, with a standard deviation of 0.1.
    fn draw(&mut self, mean: f32, len: usize) -> Vec<f32> {
        (0..len).map(|_| mean + 0.1 * self.0.fast_normal()).collect()
    }

    fn norm(&mut self, len: usize) -> Vec<f32> {
        self.draw(1.0, len)
    }

    /// Scores of unit activations have a standard deviation of 1.
    fn router(&mut self, hidden: usize, rows: usize) -> Tensor {
        let deviation = 1.0 / (hidden as f32).sqrt();
        let values: Vec<f32> =
            (0..rows * hidden).map(|_| deviation * self.0.fast_normal()).collect();
        let bytes = Arc::new(bytemuck::cast_slice::<f32, u8>(&values).to_vec());
        Tensor::new(Dtype::F32, rows, hidden, bytes, 0).expect("as many bytes")
    }

    /// A bias of the families that have attention sinks.
    fn bias(&mut self, config: &ModelConfig, len: usize) -> Option<Vec<f32>> {
        config.architecture.has_sinks().then(|| self.draw(0.0, len))
    }

    fn mlp_bias(&mut self, config: &ModelConfig, inner: usize) -> Option<MlpBias> {
        Some(MlpBias {
            gate: self.bias(config, inner)?,
            up: self.bias(config, inner)?,
            down: self.bias(config, config.hidden_size)?,
        })
    }

    fn qkv_bias(&mut self, config: &ModelConfig) -> Option<QkvBias> {
        config.architecture.has_qkv_bias().then(|| QkvBias {
            q: self.draw(0.0, config.q_size()),
            k: self.draw(0.0, config.kv_size()),
            v: self.draw(0.0, config.kv_size()),
        })
    }

    /// Decays of a token from 0.3 to 0.97.
    fn delta_net(&mut self, gate: Tensor, hidden: usize, net: &DeltaNetConfig) -> DeltaNet {
        let heads = net.value_heads;
        let decay = |head: usize| -(0.05 + (head % 8) as f32 / 5.0);
        DeltaNet {
            gate,
            rates: self.router(hidden, 2 * heads),
            conv: self.draw(0.5, net.taps * net.channels()),
            decay: (0..heads).map(decay).collect(),
            decay_bias: self.draw(0.0, heads),
            norm: self.norm(net.value_dim),
        }
    }

    fn qk_norm(&mut self, config: &ModelConfig, layer: usize) -> Option<QkNorm> {
        let (q, k) = config.qk_norm_sizes();
        let has = config.architecture.has_qk_norm() && config.layer_delta_net(layer).is_none();
        has.then(|| QkNorm { q: self.norm(q), k: self.norm(k) })
    }

    fn post_norms(&mut self, config: &ModelConfig) -> Option<PostNorms> {
        let len = config.hidden_size;
        let has = config.architecture.has_post_norms();
        has.then(|| PostNorms { attention: self.norm(len), mlp: self.norm(len) })
    }
}

/// Shapes `[rows, cols]` of all matrices, in the order of [`Weights`].
fn tensor_shapes(config: &ModelConfig) -> Vec<(usize, usize)> {
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let gated = |inner: usize| [(inner, hidden), (inner, hidden), (hidden, inner)];
    let mut shapes = vec![(vocab, hidden)];
    for layer in 0..config.num_layers {
        shapes.extend(config.projections(layer));
        shapes.extend(config.layer_delta_net(layer).map(|net| (net.value_size(), hidden)));
        match config.layer_mixture(layer) {
            None => shapes.extend(gated(config.intermediate_size)),
            Some(mixture) => {
                let experts = std::iter::repeat_n(mixture.expert_size, mixture.num_experts);
                shapes.extend(experts.chain(mixture.shared_size).flat_map(gated));
            }
        }
    }
    if !config.tie_word_embeddings {
        shapes.push((vocab, hidden));
    }
    shapes
}

/// Generates `len` random values of `dtype` on all cores.
fn random_storage(len: usize, dtype: Dtype, seed: u64) -> Result<Storage, String> {
    let bytes = dtype.bytes_of(len);
    if let Some(memory) = Memory::read().filter(|memory| bytes as u64 > memory.available_bytes) {
        return Err(format!(
            "random weights of this shape need {} MiB, {} MiB of memory are available: choose a \
             smaller shape or dtype",
            bytes >> 20,
            memory.available_bytes >> 20
        ));
    }
    let mut map = MmapMut::map_anon(bytes.max(1))
        .map_err(|error| format!("cannot allocate {bytes} bytes: {error}"))?;
    // `madvise` is a hint: without huge pages the weights are only read more slowly.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    let pieces = std::sync::Mutex::new(map[..bytes].chunks_mut(dtype.bytes_of(PIECE)).enumerate());
    let next = || pieces.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    let threads = trail_platform::available_threads();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, piece)) = next() {
                    fill_random(piece, dtype, &mut Rng::new(seed.wrapping_add(index as u64)));
                }
            });
        }
    });
    Ok(Arc::new(map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Architecture;

    #[test]
    fn families_have_their_vectors() {
        for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Gemma3] {
            let config = ModelConfig { architecture, ..ModelConfig::named("tiny").unwrap() };
            let model = Model::random_of(config.clone(), Dtype::Bf16, 1).unwrap();
            for layer in &model.weights.layers {
                let bias = layer.qkv_bias.as_ref().map(|bias| bias.q.len());
                assert_eq!(bias, architecture.has_qkv_bias().then(|| config.q_size()));
                let norm = layer.qk_norm.as_ref().map(|norm| norm.k.len());
                assert_eq!(norm, architecture.has_qk_norm().then_some(config.head_dim));
                assert_eq!(layer.post_norms.is_some(), architecture.has_post_norms());
            }
        }
    }
}
