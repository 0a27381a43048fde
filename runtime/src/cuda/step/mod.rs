//! Steps on the device: buffers, metadata, and launches. [`metadata_writer`] writes a batch into
//! the metadata, [`launches`] is the list of launches: [`forward`], [`tap`], [`sampler`].
//! Everything is allocated and planned at start.

mod batch_slots;
mod buffers;
mod drafts;
mod forward;
mod launches;
mod layout;
mod megakernel;
mod metadata_writer;
pub(in crate::cuda) mod phase;
mod plans;
mod sampler;
mod sampling_params;
mod shape;
mod sizes;
mod staged;
mod tap;
mod token_counts;
mod token_masks;

pub use layout::StepLimits;
pub(in crate::cuda) use phase::StepPhase;

use super::device::Device;
use super::error::CudaError;
use super::graphs::{Graph, Graphs};
use super::kv::KvPool;
use super::plan::LaunchPlan;
use super::plan::order::OrderChoice;
use super::queue::Queue;
use super::sample_results::SampleResults;
use super::step_metadata::{PARITIES, StepMetadata};
use super::tap::Ring;
use super::trace::{Anchor, StepTimes};
use super::weights::DeviceWeights;
use crate::backend::{BLOCK_TOKENS, Progress, Sampled, SamplingInput, Step, TapRow};
use crate::model::ModelConfig;
use launches::{Launches, LaunchesParts};
use metadata_writer::MetadataWriter;
use plans::Plans;
use shape::StepShape;
use std::sync::Arc;
use std::time::Instant;
pub(in crate::cuda) use tap::TapConfig;
use trail_ptx::DevicePtr;

/// Rows of a step: a grid's second extent.
const MAX_ROWS: usize = 65_535;
/// Words beyond those of rows that a step's list of differences has room for: new blocks.
const MORE_DIFFS: usize = 16 << 10;
/// Most tokens of the chunk that [`Executor::measure_token_s`] times: enough to fill the chip, and
/// soon done.
const MAX_TIMED_TOKENS: usize = 2048;
/// Its repetitions; the fastest counts: the first loads code.
const TIMED_RUNS: usize = 3;

/// Least device memory that a graph is taken for, bytes: the driver takes it in pieces.
const LEAST_GRAPH_BYTES: usize = 256 << 10;

/// The limit: eight times the largest figure known, 8 MiB for a graph of 128 nodes of 65 KB.
const MAX_GRAPH_BYTES: usize = 64 << 20;

/// Size, parity and phase of the steps that a graph replays.
type GraphKey = ([usize; 2], StepPhase);

/// A model on a device, and all that its steps need.
pub(in crate::cuda) struct Executor {
    // Dropped first.
    graphs: Graphs,
    pub(in crate::cuda) device: Arc<Device>,
    limits: StepLimits,
    plans: Arc<Plans>,
    writer: MetadataWriter,
    metadata: StepMetadata,
    launches: Launches,
    /// Steps that were replayed graphs, or their first half.
    replayed: u64,
    /// A line for each thing that it goes on without.
    pub(in crate::cuda) warnings: Vec<String>,
}

/// Everything that an executor is built from.
pub(in crate::cuda) struct ExecutorConfig<'a> {
    pub(in crate::cuda) device: Arc<Device>,
    pub(in crate::cuda) config: ModelConfig,
    pub(in crate::cuda) weights: Arc<DeviceWeights>,
    pub(in crate::cuda) limits: StepLimits,
    /// Blocks of the KV pool; `None`: as many as fit.
    pub(in crate::cuda) kv_blocks: Option<usize>,
    /// `None`: no layer is tapped.
    pub(in crate::cuda) tap: Option<TapConfig<'a>>,
    /// Orders of summing to choose from.
    pub(in crate::cuda) order: OrderChoice,
    /// Use the megakernel: all layers of a step of few decode rows in one launch.
    pub(in crate::cuda) megakernel: bool,
}

/// A step whose metadata was written.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct WrittenStep {
    shape: StepShape,
}

impl Executor {
    pub(in crate::cuda) fn new(parts: ExecutorConfig<'_>) -> Result<Executor, CudaError> {
        let ExecutorConfig { device, config, weights, limits, kv_blocks, tap, .. } = parts;
        let (order, megakernel) = (parts.order, parts.megakernel);
        let mut plans = Plans::new(device.chip(), &config, &limits, order, megakernel);
        if plans.rows.last() > MAX_ROWS {
            return Err(CudaError::Unsupported {
                what: format!("--token-budget of {} rows", limits.rows),
                supported: format!("{MAX_ROWS} rows of a step, their padding included"),
            });
        }
        let loads: Vec<LaunchPlan> = plans.kernels().collect();
        loads.iter().try_for_each(|plan| device.ready(plan))?;
        let cut = plans.fit_cooperative(|plan| device.resident_blocks(plan))?;
        let plans = Arc::new(plans);
        let tapped = tap.as_ref().map(TapConfig::staged);
        let writer = MetadataWriter::new(&limits, &plans, tapped);
        let layout = writer.layout;
        let metadata = StepMetadata::new(&device, layout.words, layout.usual + MORE_DIFFS)?;
        let launches = LaunchesParts {
            config,
            weights,
            plans: plans.clone(),
            limits: &limits,
            metadata: layout.addresses(metadata.at(0)),
            tap,
            kv_blocks,
        };
        Ok(Executor {
            graphs: Graphs::default(),
            launches: Launches::new(&device, launches)?,
            device,
            limits,
            plans,
            writer,
            metadata,
            replayed: 0,
            warnings: cut.into_iter().collect(),
        })
    }

    /// Loads the kernels of every step, gives the KV pool its size, and where `graphs` says so
    /// captures the steps of single rows. A thing that it can go on without is a warning.
    pub(in crate::cuda) fn prepare(
        &mut self,
        graphs: bool,
        halves: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), CudaError> {
        self.device.ready(self.metadata.plan())?;
        self.launches.prepare(&self.device)?;
        let phases: &[StepPhase] = match (graphs, halves) {
            (false, _) => &[],
            (true, true) => &[StepPhase::Lower, StepPhase::Upper],
            (true, false) => &[StepPhase::Whole],
        };
        let sizes = self.plans.decode_sizes.iter().len();
        // The largest first: it needs the most memory.
        let keys =
            (0..sizes).rev().flat_map(|size| (0..PARITIES).map(move |parity| [size, parity]));
        let keys = keys.flat_map(|key| phases.iter().map(move |&phase| (key, phase)));
        let keys: Vec<_> = keys.collect();
        let measured = self.measure_graph(&keys);
        let graph_bytes = *measured.as_ref().unwrap_or(&0);
        self.launches.forward.size_pool(&self.device, graph_bytes)?;
        let captured = measured.and_then(|_| self.capture(phases.len(), &keys, progress));
        match captured {
            Err(error) if error.is_about_recording() => {
                // The error of a context that is broken is not about graphs.
                self.device.free_bytes()?;
                self.warnings.push(format!(
                    "{error} (driver of CUDA {}): {} of {} graphs of decode steps were made, the \
                     other steps are launched kernel by kernel, with the same answers: a lower \
                     --max-running needs fewer graphs, --no-graphs none",
                    self.device.driver(),
                    self.graphs.count(),
                    keys.len()
                ));
                Ok(())
            }
            captured => captured,
        }
    }

    /// Device memory to be kept for the graphs of `keys`, whose first is the largest: twice its
    /// memory for each. The first of all may take more, once. Only where the KV pool takes all that
    /// is left.
    fn measure_graph(&self, keys: &[GraphKey]) -> Result<usize, CudaError> {
        let Some(&(key, phase)) = keys.first() else { return Ok(0) };
        if !self.launches.forward.takes_all_memory() {
            return Ok(0);
        }
        let before = self.device.free_bytes()?;
        let first = self.record(key, phase)?;
        let between = self.device.free_bytes()?;
        let second = self.record(key, phase)?;
        let after = self.device.free_bytes()?;
        drop((first, second));
        let once = before.saturating_sub(between);
        // Another program may take or free memory meanwhile.
        let each = between.saturating_sub(after).clamp(LEAST_GRAPH_BYTES, MAX_GRAPH_BYTES);
        Ok(once.min(MAX_GRAPH_BYTES) + 2 * each * keys.len())
    }

    /// Records a step of single rows.
    fn record(&self, [size, parity]: [usize; 2], phase: StepPhase) -> Result<Graph, CudaError> {
        let shape = self.plain_shape(size, parity);
        let issue = || self.launches.issue(&self.metadata, &shape, phase);
        Graph::record(&self.launches.compute, issue)
    }

    /// A graph for each of `keys`; a step has `parts`.
    fn capture(
        &mut self,
        parts: usize,
        keys: &[GraphKey],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), CudaError> {
        self.graphs = Graphs::with_parts(parts);
        for &(key, phase) in keys {
            self.graphs.keep(key, phase, self.record(key, phase)?);
            let (done, total) = (self.graphs.count() as u64, keys.len() as u64);
            progress(Progress { what: "graphs", done, total });
        }
        Ok(())
    }

    /// The shape of a step of nothing but single rows, padded to size `size`.
    fn plain_shape(&self, size: usize, parity: usize) -> StepShape {
        let rows = self.plans.decode_sizes.at(size);
        StepShape {
            parity,
            rows: self.plans.rows.index(rows),
            decode: Some(size),
            sampled_rows: Some(size),
            staged: if self.launches.tap.is_some() { rows } else { 0 },
            sums: self.writer.staged.plain_sums(rows),
            sum_rows: rows,
            is_plain: true,
            ..StepShape::default()
        }
    }

    /// Writes `step` into the list of differences, and the token counts of its new requests.
    pub(in crate::cuda) fn write(&mut self, step: &Step<'_>) -> Result<WrittenStep, CudaError> {
        let Launches { sampler, compute, .. } = &mut self.launches;
        let masks = &mut sampler.token_masks;
        let shape = self.writer.write(step, &self.plans, masks, &mut self.metadata);
        let token_counts = &mut sampler.token_counts;
        token_counts.begin(shape.parity);
        for (request, place, unknown) in self.writer.fresh(step.batch) {
            let input = step.sampling.of(request);
            let known = input.generated.len().saturating_sub(unknown);
            let input = SamplingInput { generated: &input.generated[..known], ..input };
            token_counts.add(compute, place, &input)?;
        }
        Ok(WrittenStep { shape })
    }

    /// Launches `phase` of a written step.
    pub(in crate::cuda) fn launch(
        &mut self,
        step: &WrittenStep,
        phase: StepPhase,
    ) -> Result<(), CudaError> {
        let (shape, launches) = (&step.shape, &mut self.launches);
        if phase != StepPhase::Upper {
            launches.sampler.token_counts.launch(&launches.compute)?;
            launches.sampler.token_masks.upload(&launches.compute)?;
            self.metadata.spill(&launches.compute)?;
        }
        launches.tracer.begin(shape.parity, shape.staged > 0);
        // Graphs record no timing events.
        let size = shape.decode.filter(|_| shape.is_plain && !launches.tracer.is_on());
        match size.and_then(|size| self.graphs.get([size, shape.parity], phase)) {
            Some(graph) => {
                self.replayed += u64::from(phase != StepPhase::Upper);
                graph.launch(&launches.compute)
            }
            None => launches.issue(&self.metadata, shape, phase),
        }
    }

    /// Steps that were replayed graphs.
    pub(in crate::cuda) fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Traces the steps that follow; see [`Trace`].
    pub(in crate::cuda) fn start_trace(&mut self) -> Result<Anchor, CudaError> {
        self.launches.start_trace(&self.device)
    }

    /// Times of the last step of `parity`, where steps are traced.
    pub(in crate::cuda) fn times(&self, parity: usize) -> Result<Option<StepTimes>, CudaError> {
        self.launches.tracer.times(&self.device, parity)
    }

    /// Rows of the results that the step which was written last samples, in order of segments.
    pub(in crate::cuda) fn sampled_rows(&self) -> &[u32] {
        self.writer.samplings.sampled_rows()
    }

    /// Tapped rows of the step that was written last, in order of the stage's rows.
    pub(in crate::cuda) fn staged(&self) -> &[TapRow] {
        self.writer.staged.rows()
    }

    /// Adds the tapped rows of draft tokens that turned out right to the sums of their blocks.
    /// `results`: of the step that was written last.
    pub(in crate::cuda) fn add_accepted(&mut self, results: &[Sampled]) -> Result<(), CudaError> {
        let Launches { tap, forward, compute, .. } = &mut self.launches;
        let Some(tap) = tap else { return Ok(()) };
        tap.add_kept(compute, &forward.kv, self.writer.staged.drafts.accepted(results))
    }

    /// The tap's ring, and whether probabilities come through it.
    pub(in crate::cuda) fn ring(&self) -> Option<(&Arc<Ring>, bool)> {
        self.launches.tap.as_ref().map(|tap| (&tap.ring, tap.is_on_device()))
    }

    /// Invalidates what was written for `request`, whose blocks were taken away.
    pub(in crate::cuda) fn invalidate(&mut self, request: u32) {
        self.writer.invalidate(request);
    }

    /// Address of the megakernel's grid barrier, a word of device memory.
    pub(in crate::cuda) fn barrier(&self) -> Option<DevicePtr<u32>> {
        self.launches.forward.barrier()
    }

    /// Waits for the work of all its streams, within the device's timeout.
    pub(in crate::cuda) fn drain(&self) {
        self.launches.compute.drain();
        if let Some(tap) = &self.launches.tap {
            tap.drain();
        }
    }

    /// The stream that steps run on.
    pub(in crate::cuda) fn compute(&self) -> &Queue {
        &self.launches.compute
    }

    /// The KV pool.
    pub(in crate::cuda) fn kv(&self) -> &KvPool {
        &self.launches.forward.kv
    }

    /// Sampled tokens, as the device writes them.
    pub(in crate::cuda) fn results(&self) -> &SampleResults {
        &self.launches.sampler.results
    }

    /// Seconds a token of a prompt takes, in a chunk as large as a step may be. To be called before
    /// the first step; the keys and values that it writes are never read.
    pub(in crate::cuda) fn measure_token_s(&mut self) -> Result<f64, CudaError> {
        let blocks = self.kv().blocks() as usize;
        let tokens = MAX_TIMED_TOKENS.min(self.limits.rows).min(self.limits.context);
        let tokens = tokens.min(blocks * BLOCK_TOKENS);
        let mut best = f64::INFINITY;
        for _ in 0..TIMED_RUNS {
            let shape = self.writer.write_prompt(tokens, &self.plans, &mut self.metadata);
            let begin = Instant::now();
            self.launch(&WrittenStep { shape }, StepPhase::Whole)?;
            self.launches.compute.synchronize("timing a prompt")?;
            best = best.min(begin.elapsed().as_secs_f64() / tokens as f64);
        }
        Ok(best.max(f64::MIN_POSITIVE))
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Nothing may be freed that a kernel uses.
        self.drain();
        self.device.shared().synchronize_regardless();
    }
}
