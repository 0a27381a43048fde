//! Several engines in one process: their shares of the CPU and of the memory.

use std::path::Path;
use std::sync::{Arc, Mutex};

use trail_platform::Memory;
use trail_runtime::cpu::Pool;
use trail_runtime::engine::{ComputeDevice, Counters, CpuShare, Engine, EngineConfig, Turns};

use crate::args::EngineArgs;
use crate::error::Error;
use crate::output_file::OutputFile;
use crate::setup::Setup;

/// Resources that an engine shares with those of other models, and with earlier ones of its model.
/// By default it shares none.
#[derive(Clone, Default)]
pub struct EngineShare {
    cpu: Option<CpuShare>,
    memory_bytes: Option<u64>,
    counters: Arc<Counters>,
}

impl EngineShare {
    /// The shares of the engines of `setups`, by their weights: of the time of one pool of threads,
    /// and of the memory that is available beside the weights of all models. Where the system does
    /// not state its memory, each engine has its own default.
    pub fn of(
        setups: &[Setup],
        weights: &[u32],
        args: &EngineArgs,
    ) -> Result<Vec<EngineShare>, Error> {
        if args.device() != ComputeDevice::Cpu {
            return Err(Error::usage(
                "several models are served by the CPU alone: give --device cpu",
            ));
        }
        let start = if args.cpu.cpu_strict { Pool::pinned } else { Pool::new };
        let pool = Arc::new(Mutex::new(start(args.threads()).map_err(Error::failed)?));
        let turns = Arc::new(Turns::default());
        let mapped: Vec<u64> =
            setups.iter().map(|setup| setup.model.weights.mapped_bytes as u64).collect();
        let available = Memory::read().map(|memory| memory.available_bytes);
        let memory = available.map(|available| memory_of(available, &mapped, weights));
        let share = |(at, &weight): (usize, &u32)| EngineShare {
            cpu: Some(CpuShare { pool: pool.clone(), turns: turns.clone(), weight }),
            memory_bytes: memory.as_ref().map(|memory| memory[at]),
            counters: Arc::default(),
        };
        Ok(weights.iter().enumerate().map(share).collect())
    }
}

/// The memory of each model of `mapped` bytes of weights: these, and its part by `weights` of what
/// all leave of `available`.
fn memory_of(available: u64, mapped: &[u64], weights: &[u32]) -> Vec<u64> {
    let room = available.saturating_sub(mapped.iter().sum());
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let part = |weight: u32| u128::from(room) * u128::from(weight) / u128::from(total.max(1));
    mapped.iter().zip(weights).map(|(&mapped, &weight)| mapped + part(weight) as u64).collect()
}

impl Setup {
    /// An engine for these options, with a decision log in `log`. A policy that was not named
    /// follows from the model's files.
    pub fn shared_engine(
        &self,
        args: &EngineArgs,
        log: Option<&OutputFile>,
        share: &EngineShare,
    ) -> Result<Engine, Error> {
        let policy = self.serving_policy(args)?;
        let build = |model, config| {
            let EngineShare { cpu, memory_bytes, counters } = share.clone();
            let config = EngineConfig { cpu_share: cpu, memory_bytes, counters, ..config };
            Engine::new(model, config)
        };
        self.build(args, policy, args.max_requests, log, build)
    }

    /// The model's file or folder: that of the cache for one of the hub.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::memory_of;

    #[test]
    fn memory_beside_all_weights_is_shared_by_weight() {
        assert_eq!(memory_of(100, &[10, 30], &[1, 1]), [40, 60]);
        assert_eq!(memory_of(100, &[10, 30], &[1, 3]), [25, 75]);
        assert_eq!(memory_of(30, &[10, 30], &[1, 1]), [10, 30], "they have no room");
        let all = memory_of(u64::MAX, &[1, 2, 3], &[1000, 1, 7]);
        assert!(all.iter().map(|&bytes| u128::from(bytes)).sum::<u128>() <= u128::from(u64::MAX));
    }
}
