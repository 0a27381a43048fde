//! Low-rank adapters (LoRA), as PEFT saves them: `y = W x + scale B (A x)` for some projections.
//!
//! [`Adapter::load`] reads `adapter_config.json` and `adapter_model.safetensors` of a folder. An
//! adapter is never merged into its base model, so that rows with and without one share a step, and
//! so that the base may be quantized.

mod config;
mod load;
mod projection;
mod random;

use std::sync::atomic::{AtomicU64, Ordering};

pub use projection::Projection;

use super::{ModelConfig, RopePairing, Tensor};

/// Largest rank of an adapter.
pub const MAX_RANK: usize = 256;

/// The names of an adapter's files in its folder.
pub const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// A loaded adapter. Its weights are copied, so that its files may change afterwards.
#[derive(Debug)]
pub struct Adapter {
    id: u64,
    /// By layer; `None`: the projection is the base model's.
    layers: Vec<[Option<LowRank>; Projection::ALL.len()]>,
    /// Inputs and outputs of the base model's projections.
    shapes: [(usize, usize); Projection::ALL.len()],
    /// Order of the base model's queries and keys, and their width.
    heads: (RopePairing, usize),
    /// By layer: true if the base model's MLP is a mixture, whose tensors are not adapted.
    mixtures: Vec<bool>,
}

/// The two factors of an adapter's difference from one projection.
#[derive(Debug)]
pub struct LowRank {
    /// A: `[rank, in]`.
    pub a: Tensor,
    /// B transposed: `[rank, out]`. Its outputs have the order of the base model's.
    pub b: Tensor,
    /// Factor of the product: alpha / rank, or alpha / sqrt(rank).
    pub scale: f32,
}

impl LowRank {
    /// Inner values of the product.
    pub fn rank(&self) -> usize {
        self.a.rows
    }
}

impl Adapter {
    /// An adapter for models of `config`, with factors by layer.
    fn new(config: &ModelConfig, layers: Vec<[Option<LowRank>; Projection::ALL.len()]>) -> Adapter {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let shapes = Projection::ALL.map(|projection| projection.shape(config));
        let heads = (config.rope_pairing, config.head_dim);
        let mixtures = (0..config.num_layers).map(|at| config.layer_mixture(at).is_some());
        let (id, mixtures) = (NEXT.fetch_add(1, Ordering::Relaxed), mixtures.collect());
        Adapter { id, layers, shapes, heads, mixtures }
    }

    /// A number that no other adapter of this process has: KV blocks are shared within it alone.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The factors of `projection` in layer `layer`; `None`: the projection is the base model's.
    pub fn factors(&self, layer: usize, projection: Projection) -> Option<&LowRank> {
        self.layers[layer][projection as usize].as_ref()
    }

    /// True if models of `config` have the shapes of the model that it was loaded for, and the
    /// order of its rows. Hybrids take none.
    pub fn fits(&self, config: &ModelConfig) -> bool {
        let shapes = Projection::ALL.map(|projection| projection.shape(config));
        let heads = (config.rope_pairing, config.head_dim);
        let is_mixture = |layer: usize| config.layer_mixture(layer).is_some();
        config.delta_net.is_none()
            && (self.layers.len(), self.shapes, self.heads) == (config.num_layers, shapes, heads)
            && (0..).zip(&self.mixtures).all(|(layer, &mixture)| mixture == is_mixture(layer))
    }

    /// The largest rank of its projections.
    pub fn rank(&self) -> usize {
        self.all_factors().map(LowRank::rank).max().unwrap_or(0)
    }

    /// Bytes of its weights in memory.
    pub fn bytes(&self) -> usize {
        self.all_factors().map(|factors| factors.a.bytes().len() + factors.b.bytes().len()).sum()
    }

    fn all_factors(&self) -> impl Iterator<Item = &LowRank> {
        self.layers.iter().flatten().flatten()
    }
}
