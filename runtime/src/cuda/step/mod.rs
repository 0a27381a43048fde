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
use super::graphs::Graphs;
use super::kv::KvPool;
use super::queue::Queue;
use super::sample_results::SampleResults;
use super::step_metadata::StepMetadata;
use super::tap::Ring;
use super::trace::{Anchor, StepTimes};
use super::weights::DeviceWeights;
use crate::backend::{BLOCK_TOKENS, Progress, Sampled, SamplingInput, Step, TapRow};
use crate::model::ModelConfig;
use launches::{Launches, LaunchesParts};
use metadata_writer::MetadataWriter;
pub(in crate::cuda) use plans::KernelOptions;
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
}

/// Everything that an executor is built from.
pub(in crate::cuda) struct ExecutorConfig<'a> {
    pub(in crate::cuda) device: Arc<Device>,
    pub(in crate::cuda) config: ModelConfig,
    pub(in crate::cuda) weights: DeviceWeights,
    pub(in crate::cuda) limits: StepLimits,
    /// Blocks of the KV pool; `None`: as many as fit.
    pub(in crate::cuda) kv_blocks: Option<usize>,
    /// `None`: no layer is tapped.
    pub(in crate::cuda) tap: Option<TapConfig<'a>>,
    /// The kernels that are to be used.
    pub(in crate::cuda) kernels: KernelOptions,
}

/// A step whose metadata was written.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct WrittenStep {
    shape: StepShape,
}

impl Executor {
    pub(in crate::cuda) fn new(parts: ExecutorConfig<'_>) -> Result<Executor, CudaError> {
        let ExecutorConfig { device, config, weights, limits, kv_blocks, tap, kernels } = parts;
        let plans = Arc::new(Plans::new(device.chip(), &config, &limits, kernels));
        if plans.rows.last() > MAX_ROWS {
            return Err(CudaError::Unsupported {
                what: format!("--token-budget of {} rows", limits.rows),
                supported: format!("{MAX_ROWS} rows of a step, their padding included"),
            });
        }
        let tapped = tap.as_ref().map(|tap| tap.shares_blocks);
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
        })
    }

    /// Loads the kernels of every step, and where `graphs` says so captures the steps of single
    /// rows.
    pub(in crate::cuda) fn prepare(
        &mut self,
        graphs: bool,
        halves: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), CudaError> {
        self.device.ready(self.metadata.plan())?;
        self.plans.kernels().try_for_each(|plan| self.device.ready(&plan))?;
        self.launches.prepare(&self.device)?;
        if graphs { self.capture(halves, progress) } else { Ok(()) }
    }

    /// A graph for each size, parity and phase.
    fn capture(
        &mut self,
        halves: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), CudaError> {
        let phases: &[StepPhase] =
            if halves { &[StepPhase::Lower, StepPhase::Upper] } else { &[StepPhase::Whole] };
        let sizes = self.plans.decode_sizes.iter().len();
        let total = (2 * sizes * phases.len()) as u64;
        let mut graphs = Graphs::with_parts(phases.len());
        // The largest first: what the driver allocates for one, smaller ones can use.
        for size in (0..sizes).rev() {
            for parity in 0..2 {
                let shape = self.plain_shape(size, parity);
                for &phase in phases {
                    let issue = || self.launches.issue(&self.metadata, &shape, phase);
                    graphs.capture(&self.launches.compute, [size, parity], phase, issue)?;
                    progress(Progress { what: "graphs", done: graphs.count() as u64, total });
                }
            }
        }
        self.graphs = graphs;
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
        self.launches.tracer.times(parity)
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
        self.device.shared().wait_regardless();
    }
}
