//! Steps on the device: buffers, metadata, and launches. [`fill`] writes a batch into the metadata,
//! [`issue`] is the list of launches. Everything is allocated and planned at start.

mod batch_slots;
mod buffers;
mod fill;
mod issue;
mod layout;
mod measure;
mod plans;
mod sampling_params;
mod sizes;
mod staged;
mod stages;
mod tap;
mod token_counts;

pub(in crate::cuda) use issue::StepPhase;
pub use layout::StepLimits;

use super::device::Device;
use super::error::CudaError;
use super::graphs::Graphs;
use super::kv::{self, KvPool};
use super::memory::Priority;
use super::queue::Queue;
use super::sample_results::SampleResults;
use super::step_metadata::StepMetadata;
use super::tap::{Ring, TapMode};
use super::trace::{Anchor, StepTimes, Trace};
use super::weights::DeviceWeights;
use crate::backend::Progress;
use crate::backend::{Step, TapRow};
use crate::model::ModelConfig;
use buffers::Buffers;
use cudarc::driver::sys::CUdeviceptr;
use fill::{Filler, Shape};
use layout::Layout;
pub(in crate::cuda) use plans::KernelOptions;
use plans::Plans;
use sizes::Sizes;
use stages::Megakernel;
use std::sync::Arc;
use tap::TapWork;
use token_counts::TokenCounts;
use trail_probe::Weights;

/// Graphs of each size.
const PARITIES: usize = 2;
/// Rows of a step: a grid's second extent.
const MOST_ROWS: usize = 65_535;
/// Device memory that a captured graph may take, bytes.
const GRAPH_BYTES: usize = 256 << 10;
/// Left free for the driver, beside the graphs, when the KV pool takes the rest, bytes; on a small
/// device a sixteenth.
const RESERVE: usize = 512 << 20;

/// Words beyond those of rows that a step's list of differences has room for: new blocks.
const MORE_DIFFS: usize = 16 << 10;

/// A model on a device, and all that its steps need.
pub(in crate::cuda) struct Executor {
    // Dropped first.
    graphs: Graphs,
    pub(in crate::cuda) device: Arc<Device>,
    config: ModelConfig,
    limits: StepLimits,
    weights: DeviceWeights,
    plans: Plans,
    megakernel: Option<Megakernel>,
    filler: Filler,
    metadata: StepMetadata,
    buffers: Buffers,
    token_counts: TokenCounts,
    pub(in crate::cuda) results: SampleResults,
    tap: Option<TapWork>,
    /// Set while steps are traced.
    trace: Option<Box<Trace>>,
    pub(in crate::cuda) kv: KvPool,
    /// Where steps run.
    pub(in crate::cuda) compute: Queue,
}

/// Everything that an executor is built from.
pub(in crate::cuda) struct ExecutorConfig<'a> {
    pub(in crate::cuda) device: Arc<Device>,
    pub(in crate::cuda) config: ModelConfig,
    pub(in crate::cuda) weights: DeviceWeights,
    pub(in crate::cuda) limits: StepLimits,
    /// Blocks of the KV pool; `None`: as many as fit.
    pub(in crate::cuda) kv_blocks: Option<usize>,
    /// The tapped layer, and what becomes of it.
    pub(in crate::cuda) tap: Option<(TapMode, usize)>,
    /// The probe's weights, for the device.
    pub(in crate::cuda) probe: Option<&'a Weights>,
    /// The kernels that are to be used.
    pub(in crate::cuda) kernels: KernelOptions,
}

/// A step whose metadata was written.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Filled {
    shape: Shape,
}

impl Executor {
    pub(in crate::cuda) fn new(parts: ExecutorConfig<'_>) -> Result<Executor, CudaError> {
        let ExecutorConfig { device, config, weights, limits, kv_blocks, tap, probe, kernels } =
            parts;
        let plans = Plans::new(device.chip(), &config, &limits, kernels);
        if plans.rows.last() > MOST_ROWS {
            return Err(CudaError::Unsupported {
                what: format!("--token-budget of {} rows", limits.rows),
                supported: format!("{MOST_ROWS} rows of a step, their padding included"),
            });
        }
        let megakernel = match plans.megakernel.iter().any(Option::is_some) {
            true => Some(Megakernel::new(&device, &config, &weights)?),
            false => None,
        };
        let filler = Filler::new(&limits, &plans, tap.is_some());
        let layout = filler.layout;
        let metadata = StepMetadata::new(&device, layout.words, layout.usual + MORE_DIFFS)?;
        let queue = |priority| {
            let stream = device.stream(priority)?;
            // SAFETY: all launches and copies of this module name memory of the executor: buffers
            // as large as the largest step needs (`Buffers::new`, `Layout::new`), weights, the KV
            // pool, and pinned memory. It lives until `Drop` has waited for the device. Indices in
            // the metadata are within the layout and the limits, which `Filler` asserts. The two
            // streams are ordered by the tap's events.
            Ok::<_, CudaError>(unsafe { Queue::new(device.clone(), stream) })
        };
        let tap = match tap {
            Some(tap) => {
                let side = queue(Priority::High)?;
                Some(TapWork::new(&device, side, &config, &limits, &plans, tap, probe)?)
            }
            None => None,
        };
        Ok(Executor {
            graphs: Graphs::default(),
            buffers: Buffers::new(&device, &config, &limits, &plans)?,
            token_counts: TokenCounts::new(&device, config.vocab_size, &limits)?,
            results: SampleResults::new(&device, plans.choices.last())?,
            compute: queue(Priority::Low)?,
            // Last, because it may take all free memory.
            kv: pool(&device, &config, kv_blocks, &limits)?,
            device,
            config,
            limits,
            weights,
            plans,
            megakernel,
            filler,
            metadata,
            tap,
            trace: None,
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
        self.device.ready(&self.token_counts.plan(1, 1))?;
        self.plans.kernels().try_for_each(|plan| self.device.ready(&plan))?;
        if let Some(tap) = &self.tap {
            tap.prepare(&self.device, self.config.hidden_size)?;
        }
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
                    let issue = || self.issue(&shape, phase);
                    graphs.capture(&self.compute, [size, parity], phase, issue)?;
                    progress(Progress { what: "graphs", done: graphs.count() as u64, total });
                }
            }
        }
        self.graphs = graphs;
        Ok(())
    }

    /// The shape of a step of nothing but single rows, padded to size `size`.
    fn plain_shape(&self, size: usize, parity: usize) -> Shape {
        let rows = self.plans.decode_sizes.at(size);
        Shape {
            parity,
            rows: self.plans.rows.index(rows),
            decode: Some(size),
            choices: Some(size),
            staged: if self.tap.is_some() { rows } else { 0 },
            is_plain: true,
            ..Shape::default()
        }
    }

    /// Writes `step` into the list of differences, and the token counts of its new requests.
    pub(in crate::cuda) fn fill(&mut self, step: &Step<'_>) -> Result<Filled, CudaError> {
        let shape = self.filler.fill(step, &self.plans, &mut self.metadata);
        self.token_counts.begin(shape.parity);
        for (slot, batch_idx) in self.filler.fresh(step.batch) {
            let input = step.sampling.of(slot);
            self.token_counts.add(&self.compute, batch_idx, &input)?;
        }
        Ok(Filled { shape })
    }

    /// Launches `phase` of a filled step.
    pub(in crate::cuda) fn launch(
        &mut self,
        filled: &Filled,
        phase: StepPhase,
    ) -> Result<(), CudaError> {
        let shape = &filled.shape;
        if phase != StepPhase::Upper {
            self.token_counts.launch(&self.compute)?;
            self.metadata.spill(&self.compute)?;
        }
        if let Some(trace) = &mut self.trace {
            trace.begin(shape.parity, shape.staged > 0);
        }
        // Graphs record no timing events.
        let size = shape.decode.filter(|_| shape.is_plain && self.trace.is_none());
        match size.and_then(|size| self.graphs.get([size, shape.parity], phase)) {
            Some(graph) => graph.launch(&self.compute),
            None => self.issue(shape, phase),
        }
    }

    /// Traces the steps that follow; see [`Trace`].
    pub(in crate::cuda) fn start_trace(&mut self) -> Result<Anchor, CudaError> {
        let has_probe = self.tap.as_ref().is_some_and(TapWork::is_on_device);
        let (trace, anchor) = Trace::new(&self.device, self.compute.stream(), has_probe)?;
        self.trace = Some(Box::new(trace));
        Ok(anchor)
    }

    /// Times of the last step of `parity`, where steps are traced.
    pub(in crate::cuda) fn times(&self, parity: usize) -> Result<Option<StepTimes>, CudaError> {
        self.trace.as_ref().map(|trace| trace.times(parity)).transpose()
    }

    /// Rows of the results that the step which was filled last chooses, in order of segments.
    pub(in crate::cuda) fn chosen(&self) -> &[u32] {
        self.filler.samplings.chosen()
    }

    /// Tapped rows of the step that was filled last, in order of the stage's rows.
    pub(in crate::cuda) fn staged(&self) -> &[TapRow] {
        self.filler.staged.rows()
    }

    /// The tap's ring, and whether probabilities come through it.
    pub(in crate::cuda) fn ring(&self) -> Option<(&Arc<Ring>, bool)> {
        self.tap.as_ref().map(|tap| (&tap.ring, tap.is_on_device()))
    }

    /// Invalidates what was written for the request in `slot`, whose blocks were taken away.
    pub(in crate::cuda) fn invalidate(&mut self, slot: u32) {
        self.filler.invalidate(slot);
    }

    /// Address of the megakernel's grid barrier, a word of device memory.
    pub(in crate::cuda) fn barrier(&self) -> Option<CUdeviceptr> {
        self.megakernel.as_ref().map(|megakernel| megakernel.barrier.at())
    }

    fn layout(&self) -> &Layout {
        &self.filler.layout
    }
}

/// The KV pool; the default leaves something free, and is no larger than all requests can fill.
fn pool(
    device: &Device,
    config: &ModelConfig,
    blocks: Option<usize>,
    limits: &StepLimits,
) -> Result<KvPool, CudaError> {
    let free = device.free_bytes()?;
    let graphs = PARITIES * Sizes::up_to(limits.segments).iter().count();
    let reserve = (RESERVE + graphs * GRAPH_BYTES).min(free / 16);
    let most = limits.requests * limits.blocks();
    let fit = free.saturating_sub(reserve) / kv::block_bytes(config);
    let blocks = blocks.or_else(|| (fit > most).then_some(most));
    KvPool::new(device, config, blocks, reserve)
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Nothing may be freed that a kernel uses.
        self.device.shared().wait_regardless();
    }
}
