//! The overlap on a GPU: decode steps without the probe, with the probe on the CPU or on the GPU
//! beside the upper layers, and on the CPU after a blocking copy. One engine each, measured in
//! turn, so that the machine's drift affects all modes alike.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use trail_platform::stats::{median, quantile};
use trail_runtime::backend::RowSink;
use trail_runtime::cuda::{CudaBackend, CudaError, Device, DeviceWeights, TapMode};
use trail_runtime::engine::{BuildError, BuiltBackend, EngineConfig, SteppedEngine};

use super::OverlapArgs;
use super::counted::{Counted, StepCounts};
use crate::decoding::{Decoding, StepShape, StepStats};
use crate::model::BenchModel;

/// Steps of one measurement.
const STEPS: u32 = 16;

/// The modes with their names; the first is the baseline of the others.
const MODES: [(TapMode, &str); 4] = [
    (TapMode::Off, "off"),
    (TapMode::Cpu, "cpu"),
    (TapMode::Gpu, "gpu"),
    (TapMode::Blocking, "blocking"),
];

/// Measures each batch size of `args`.
pub fn run(args: &OverlapArgs, bench: &BenchModel) -> Result<Value, String> {
    let mut rows = Vec::new();
    let mut device = String::new();
    let uploaded = Uploaded::new(bench)?;
    for &batch in &args.batch {
        let mut engines = Vec::new();
        for (mode, _) in MODES {
            let shape = StepShape { batch, context: args.context };
            engines.push(engine(shape, bench, &uploaded, mode)?);
        }
        device = engines[0].decoding.engine().device().to_owned();
        rows.extend(measure(bench, &mut engines, batch)?);
    }
    Ok(json!({
        "device": device,
        "model": bench.name,
        "context": args.context,
        "rows": rows,
    }))
}

/// A model's weights on its device, for several engines: Llama-3-8B's would not fit four times.
pub struct Uploaded {
    device: Arc<Device>,
    weights: Arc<DeviceWeights>,
}

impl Uploaded {
    /// Opens the device of `bench` and uploads its model.
    pub fn new(bench: &BenchModel) -> Result<Uploaded, String> {
        let uploaded = || {
            let device = Arc::new(Device::open(bench.ordinal())?);
            let weights = DeviceWeights::upload(&device, &bench.model, &mut |_| {})?;
            Ok(Uploaded { device, weights: Arc::new(weights) })
        };
        uploaded().map_err(|error: CudaError| error.to_string())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// An engine, and the counts of its backend's steps.
pub struct Counting {
    /// The engine.
    pub decoding: Decoding,
    counts: Arc<Mutex<StepCounts>>,
    has_graphs: bool,
}

impl Counting {
    /// Runs `steps` steps: an error if graphs were asked for and not one step was one.
    pub fn steps(&mut self, steps: u32) -> Result<(), String> {
        self.decoding.steps(steps)?;
        match self.has_graphs && self.counts().replayed == 0 {
            true => Err("no step was replayed as a graph".into()),
            false => Ok(()),
        }
    }

    fn counts(&self) -> StepCounts {
        self.counts.lock().map_or(StepCounts::default(), |counts| *counts)
    }
}

/// An engine on `uploaded` whose backend taps by `mode`. A backend that goes on without something
/// is an error: other figures than those that were asked for.
pub fn engine(
    shape: StepShape,
    bench: &BenchModel,
    uploaded: &Uploaded,
    mode: TapMode,
) -> Result<Counting, String> {
    let probe = match mode {
        TapMode::Off => None,
        _ => Some(bench.probe().map_err(|error| error.to_string())?),
    };
    let counts = Arc::<Mutex<StepCounts>>::default();
    let counted = counts.clone();
    let config = EngineConfig { probe, ..shape.config(bench) };
    let vocab = bench.model.config.vocab_size;
    let decoding = Decoding::new(shape, config, vocab, |config| {
        let model = bench.model.clone();
        let built = SteppedEngine::with_backend(model, config, |config, model, probe| {
            let mut options = config.cuda_options(bench.ordinal(), model, probe.as_ref())?;
            options.tap = mode;
            let receiver = probe.map(|parts| parts.probe as Arc<dyn RowSink>);
            let Uploaded { device, weights } = uploaded;
            let backend = CudaBackend::sharing(
                device,
                weights,
                &model.config,
                &options,
                receiver,
                &mut |_| {},
            )?;
            if !backend.warnings().is_empty() {
                return Err(BuildError::Failed(backend.warnings().join("; ")));
            }
            let (kv_blocks, device) = (backend.kv_blocks(), backend.device_name().to_owned());
            let backend = Box::new(Counted { inner: backend, counts: counted });
            Ok(BuiltBackend { backend, kv_blocks, device })
        });
        built.map_err(|error| error.to_string())
    })?;
    Ok(Counting { decoding, counts, has_graphs: bench.settings().graphs })
}

fn measure(
    bench: &BenchModel,
    engines: &mut [Counting],
    batch: usize,
) -> Result<Vec<Value>, String> {
    for engine in engines.iter_mut() {
        engine.steps(STEPS)?;
        engine.decoding.take_stats();
    }
    // The median step of each mode and repetition, microseconds.
    let mut medians = vec![Vec::new(); engines.len()];
    let mut all = vec![StepStats::default(); engines.len()];
    for repeat in 0..bench.repeats {
        for index in 0..engines.len() {
            // The order rotates.
            let index = (index + repeat) % engines.len();
            engines[index].steps(STEPS)?;
            let stats = engines[index].decoding.take_stats();
            medians[index].push(median(&stats.step_us));
            all[index].extend(stats);
        }
        // The tap must not change any token.
        if engines.iter().any(|one| one.decoding.tokens() != engines[0].decoding.tokens()) {
            return Err(format!("batch {batch}: the tap changed the tokens"));
        }
    }
    let rows = MODES.iter().zip(&all).zip(&medians).zip(engines);
    Ok(rows
        .map(|((((_, mode), stats), steps), engine)| {
            row(mode, batch, stats, steps, &medians[0], engine.counts().late)
        })
        .collect())
}

fn row(
    mode: &str,
    batch: usize,
    stats: &StepStats,
    steps: &[f64],
    without: &[f64],
    overwritten: u64,
) -> Value {
    let added: Vec<f64> = steps.iter().zip(without).map(|(a, b)| a / b - 1.0).collect();
    let predicted = stats.fresh + stats.late;
    json!({
        "batch": batch,
        "probe": mode,
        "step_us": {
            "median": median(steps),
            "p10": quantile(&stats.step_us, 0.1),
            "p90": quantile(&stats.step_us, 0.9),
        },
        "added": { "median": median(&added), "p10": quantile(&added, 0.1), "p90": quantile(&added, 0.9) },
        "fresh_share": (predicted > 0).then(|| stats.fresh as f64 / predicted as f64),
        "slack_us": (!stats.slack_us.is_empty()).then(|| json!({
            "p50": quantile(&stats.slack_us, 0.5),
            "p1": quantile(&stats.slack_us, 0.01),
        })),
        "overwritten_steps": overwritten,
    })
}
