//! Adapters of a benchmark's requests.

use std::sync::Arc;

use clap::Args;
use trail_cli::{Error, LoraArgs};
use trail_runtime::model::{Adapter, Dtype, ModelConfig, Projection};

/// Options of adapters.
#[derive(Args, Clone, Debug)]
pub struct AdapterArgs {
    #[command(flatten)]
    lora: LoraArgs,
    /// Random adapters of all projections beside those of --lora
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=256))]
    random_lora: u32,
    /// Rank of random adapters
    #[arg(long, value_name = "RANK", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    lora_rank: u32,
}

impl AdapterArgs {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.lora.is_empty() && self.random_lora == 0
    }

    /// The adapters for models of `config`: those of files, then random ones in bf16.
    pub fn load(&self, config: &ModelConfig) -> Result<Vec<Arc<Adapter>>, Error> {
        let mut adapters: Vec<_> =
            self.lora.load(config)?.into_iter().map(|of| of.adapter).collect();
        let rank = self.lora_rank as usize;
        let random =
            |seed: u32| Adapter::random(config, &Projection::ALL, rank, Dtype::Bf16, seed.into());
        adapters.extend((0..self.random_lora).map(random).map(Arc::new));
        Ok(adapters)
    }
}
