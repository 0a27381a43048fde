//! The model that a benchmark runs, and its device settings.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{CpuArgs, EngineArgs, Error, ModelArgs, Setup};
use trail_platform::Memory;
use trail_platform::topology::ranges;
use trail_probe::Probe;
use trail_runtime::backend::{BLOCK_TOKENS, Batch};
use trail_runtime::cpu::{Compute, CpuForward, CpuOptions, Pool};
use trail_runtime::engine::{ComputeDevice, CpuSettings, CudaSettings, EngineConfig, Speculate};
use trail_runtime::model::{Dtype, LayerWeights, Model, Tensor, Weights};

/// Most requests of a batch, as in the engine.
pub const MAX_BATCH: usize = 4096;
/// Most tokens of a prompt or a context, as in the engine.
pub const MAX_CONTEXT: usize = 1 << 20;

/// Options common to the benchmarks of a model.
#[derive(Args, Clone, Debug)]
pub struct BenchModelArgs {
    /// Measure this shape with random weights, instead of --model: llama3.2-1b, llama3-8b, ...
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    random_weights: Option<String>,
    /// Storage type of random weights: bf16, f16, f32, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or
    /// q6_k
    #[arg(long, default_value = "bf16", value_parser = parse_dtype)]
    dtype: Dtype,
    /// Measurements of each figure; the median is reported
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
}

/// A model and the settings it runs with.
pub struct BenchModel {
    /// Name of the model or of its shape.
    pub name: String,
    /// The model.
    pub model: Arc<Model>,
    /// Measurements of each figure; the median is reported.
    pub repeats: usize,
    threads: usize,
    cpu: CpuArgs,
    device: ComputeDevice,
    settings: CudaSettings,
    setup: Option<Setup>,
}

impl BenchModel {
    /// Loads the model, or makes one of the named shape with random weights.
    pub fn load(
        args: &BenchModelArgs,
        model: &ModelArgs,
        engine: &EngineArgs,
    ) -> Result<BenchModel, Error> {
        let cpu = engine.cpu();
        if cpu.repack && (cpu.compute == Compute::Exact || engine.device() != ComputeDevice::Cpu) {
            return Err(Error::usage(
                "--repack is for the CPU's products in 8 bits: leave it out, or choose --compute \
                 fast and --device cpu",
            ));
        }
        if cpu.cpu_strict && engine.device() != ComputeDevice::Cpu {
            return Err(Error::usage(
                "--cpu-strict 1 is for the CPU's threads: leave it out, or choose --device cpu",
            ));
        }
        let (name, model, setup) = match args.random_weights.clone() {
            Some(name) => {
                let model = Model::random(&name, args.dtype, 1).map_err(Error::usage)?;
                (name, Arc::new(model), None)
            }
            None => {
                let setup = Setup::load(model)?;
                (setup.name.clone(), setup.model.clone(), Some(setup))
            }
        };
        Ok(BenchModel {
            name,
            model,
            repeats: args.repeats as usize,
            threads: engine.threads(),
            cpu,
            device: engine.device(),
            settings: engine.cuda(),
            setup,
        })
    }

    /// The named shape with random weights, on the device and with the settings of `engine`.
    pub fn of_shape(shape: &str, engine: &EngineArgs) -> Result<BenchModel, Error> {
        let model = Model::random(shape, Dtype::Bf16, 1).map_err(Error::usage)?;
        Ok(BenchModel {
            name: shape.to_owned(),
            model: Arc::new(model),
            repeats: 1,
            threads: engine.threads(),
            cpu: engine.cpu(),
            device: engine.device(),
            settings: engine.cuda(),
            setup: None,
        })
    }

    /// The same for the checks of a GPU: with or without graphs, and without a host pool of KV
    /// blocks, which would be measured at each start.
    pub fn for_checks(mut self, graphs: bool) -> BenchModel {
        self.settings = CudaSettings { graphs, host_kv_bytes: 0, ..self.settings };
        self
    }

    /// The name for titles; says so where the weights are random.
    pub fn title(&self) -> String {
        match self.setup {
            Some(_) => self.name.clone(),
            None => format!("{} (random weights)", self.name),
        }
    }

    /// The device to measure on.
    pub fn device(&self) -> ComputeDevice {
        self.device
    }

    /// The CUDA device's ordinal; 0 if the CPU is to compute.
    pub fn ordinal(&self) -> usize {
        match self.device {
            ComputeDevice::Cpu => 0,
            ComputeDevice::Cuda { ordinal } => ordinal,
        }
    }

    /// CUDA settings from the command line.
    pub fn settings(&self) -> CudaSettings {
        self.settings
    }

    /// Settings of an engine that runs the model as the options say.
    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            device: self.device,
            cpu: CpuSettings {
                threads: Some(self.threads),
                pin: self.cpu.cpu_strict,
                isa: self.cpu.isa,
                compute: self.cpu.compute,
                repack: self.cpu.repack,
            },
            cuda: self.settings,
            // Steps are as large as the benchmark asks for.
            max_gap: Some(Duration::ZERO),
            kv_dtype: self.cpu.kv_dtype,
            // Each repetition computes what the one before did, a token of each request a step.
            no_prefix_cache: true,
            speculate: Speculate::Off,
            ..EngineConfig::default()
        }
    }

    /// Refuses sizes whose buffers, `copies` times, would exceed the memory that is available.
    pub fn check_memory(&self, options: &CpuOptions, copies: u32) -> Result<(), Error> {
        let needed = options.bytes(&self.model.config) * u128::from(copies);
        match Memory::read() {
            Some(memory) if needed > u128::from(memory.available_bytes) => {
                Err(Error::usage(format!(
                    "these sizes need {} MiB, {} MiB of memory are available: lower the batch, the \
                     context or the tokens",
                    needed >> 20,
                    memory.available_bytes >> 20
                )))
            }
            _ => Ok(()),
        }
    }

    /// A CPU forward pass for `segments` requests of `context` tokens, and batches of `rows` rows.
    pub fn forward(
        &self,
        rows: usize,
        segments: usize,
        context: usize,
    ) -> Result<CpuForward, Error> {
        self.forward_by(self.cpu.compute, self.kv_dtype(), rows, segments, context)
    }

    /// Type of keys and values on the CPU.
    pub fn kv_dtype(&self) -> Dtype {
        self.cpu.kv_dtype.unwrap_or(Dtype::F32)
    }

    /// The same with another arithmetic and type of keys and values than those of the command line.
    pub fn forward_by(
        &self,
        compute: Compute,
        kv_dtype: Dtype,
        rows: usize,
        segments: usize,
        context: usize,
    ) -> Result<CpuForward, Error> {
        let options = CpuOptions {
            threads: self.threads,
            pin: self.cpu.cpu_strict,
            isa: self.cpu.isa,
            compute,
            repack: self.cpu.repack && compute == Compute::Fast,
            max_rows: rows,
            max_segments: segments,
            kv_dtype,
            num_blocks: segments * context.div_ceil(BLOCK_TOKENS),
            max_context: context,
        };
        self.check_memory(&options, 1)?;
        Ok(CpuForward::new(self.model.clone(), options)?)
    }

    /// A pool of as many threads as the forward pass has, on the same CPUs.
    pub fn pool(&self) -> Result<Pool, Error> {
        let pool = if self.cpu.cpu_strict { Pool::pinned } else { Pool::new };
        Ok(pool(self.threads)?)
    }

    /// The tokens of `text`, special ones as text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let setup = self.setup.as_ref().ok_or_else(|| {
            Error::usage("random weights have no tokenizer: give a model with --model")
        })?;
        Ok(setup.tokenizer()?.encode_text(text, true)?)
    }

    /// The model's own probe, or one with random weights at the middle layer.
    pub fn probe(&self) -> Result<Probe, Error> {
        let own = self.setup.as_ref().map(Setup::probe).transpose()?.flatten();
        let config = &self.model.config;
        Ok(own.unwrap_or_else(|| Probe::random(config.hidden_size, config.num_layers / 2, 1)))
    }

    /// Model, storage type, threads and instruction set: the head of a CPU report.
    pub fn report(&self, backend: &CpuForward) -> Value {
        let cpus: Vec<usize> = backend.pool().cpus().iter().map(|cpu| cpu.id).collect();
        let cpus = (!cpus.is_empty()).then(|| ranges(&cpus));
        json!({
            "model": self.name,
            "dtype": self.model.weights.layers[0].q.dtype.to_string().to_lowercase(),
            "threads": self.threads,
            "cpus": cpus,
            "isa": backend.isa().to_string(),
            "byte_products": backend.byte_products(),
            "bf16_products": backend.bf16_products(),
            "repacked_bytes": backend.repacked_bytes(),
            "kv_dtype": backend.options().kv_dtype.to_string().to_lowercase(),
        })
    }

    /// A batch of `size` requests with one token each at `position`, and blocks for `context`
    /// tokens.
    pub fn decode_batch(&self, size: usize, position: usize, context: usize) -> Batch {
        let blocks_each = context.div_ceil(BLOCK_TOKENS) as u32;
        let mut batch = Batch::default();
        for request in 0..size as u32 {
            let blocks: Vec<u32> = (request * blocks_each..(request + 1) * blocks_each).collect();
            let token = (request * 31 + 1) % self.model.config.vocab_size as u32;
            batch.push(request, position as u32, &[token], &blocks, true);
            // The state before is left as it is, so that repetitions are equal.
            batch.keep_state((position > 0).then_some(size as u32 + request), request);
        }
        batch
    }

    /// Threads of the CPU backend.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

/// Parses a storage type's name, `bf16` or `q4_k` for instance.
pub fn parse_dtype(name: &str) -> Result<Dtype, String> {
    let lower = |dtype: Dtype| dtype.to_string().to_lowercase();
    Dtype::ALL.into_iter().find(|&dtype| lower(dtype) == name).ok_or_else(|| {
        let names = Dtype::ALL.map(lower).join(", ");
        format!("unknown dtype {name:?}: one of {names}")
    })
}

/// The matrices that every decode step reads in whole: all layers and the output projection, not
/// the embedding table.
pub fn streamed(weights: &Weights) -> impl Iterator<Item = &Tensor> {
    weights.layers.iter().flat_map(LayerWeights::matrices).chain([&weights.lm_head])
}

/// Fails if logits are not finite, or if their bits differ from the previous pass's.
pub fn verify(logits: &[f32], checksum: &mut Option<u64>) -> Result<(), String> {
    if !logits.iter().all(|x| x.is_finite()) {
        return Err("logits are not finite".into());
    }
    let sum = logits.iter().fold(0_u64, |sum, x| sum.rotate_left(5) ^ u64::from(x.to_bits()));
    if *checksum.get_or_insert(sum) != sum {
        return Err("logits differ between repetitions".into());
    }
    Ok(())
}
