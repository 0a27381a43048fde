//! The CUDA backend: the engine's interface over the step executor, the result ring and the tap's
//! threads.

use super::context::{StepWait, UnlessHung};
use super::device::Device;
use super::error::{CudaError, driver_error};
use super::kv::KvPool;
use super::launch;
use super::near_cpus;
use super::options::CudaOptions;
use super::queue::has_run;
use super::step::{Executor, ExecutorConfig, StepPhase, TapConfig};
use super::swap::{Swap, SwapOptions};
use super::tap::{TapMode, Threads, consume};
use super::trace::{Anchor, StepTimes};
use super::weights::DeviceWeights;
use crate::backend::Sampled;
use crate::backend::{Backend, Fault, Progress, RowSink, Step, Transfers};
use crate::model::{Model, ModelConfig};
use cudarc::driver::CudaEvent;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trail_ptx::DevicePtr;
use trail_scheduler::Copies;

/// How often a host that polls memory asks the driver whether the device is still there.
const QUERY_EVERY: Duration = Duration::from_micros(100);
/// Looks at memory without a pause, before the thread yields between looks.
const SPINS: u32 = 1000;
/// Blocks are counted in 32 bits.
const MAX_BLOCKS: usize = i32::MAX as usize;
/// Steps that may be in flight.
const STEPS: usize = 2;

/// A step that was launched and not collected.
struct Pending {
    number: u64,
    /// Rows of the results, in order of segments.
    sampled_rows: Vec<u32>,
    /// Recorded after a step that samples no token.
    end: CudaEvent,
}

/// Runs a model on a CUDA device.
pub struct CudaBackend {
    // The first field to drop: the threads look at what the executor owns.
    threads: Option<Threads>,
    receiver: Option<Arc<dyn RowSink>>,
    mode: TapMode,
    // Before the pool that it copies.
    swap: Option<UnlessHung<Swap>>,
    executor: UnlessHung<Executor>,
    /// By parity of the step's number.
    pending: UnlessHung<[Pending; STEPS]>,
    /// The last step that was launched, and that was collected.
    launched: u64,
    collected: u64,
    takes_drafts: bool,
    /// From a step's plan to its launch.
    host: Duration,
    name: String,
    warnings: Vec<String>,
}

impl CudaBackend {
    /// Opens the device, uploads `model`, allocates everything that steps need, and captures their
    /// graphs.
    pub fn new(
        model: &Model,
        options: &CudaOptions,
        receiver: Option<Arc<dyn RowSink>>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaBackend, CudaError> {
        let device = Arc::new(Device::open_within(options.ordinal, options.device_timeout)?);
        DeviceWeights::check_room(&device, &model.config)?;
        // Before the upload, which launches kernels too.
        device.compile_texts(options.megakernel, progress)?;
        let weights = Arc::new(DeviceWeights::upload(&device, model, progress)?);
        CudaBackend::sharing(&device, &weights, &model.config, options, receiver, progress)
    }

    /// The same on an open device, with the uploaded weights of a model of `config`: several
    /// backends hold them once.
    pub fn sharing(
        device: &Arc<Device>,
        weights: &Arc<DeviceWeights>,
        config: &ModelConfig,
        options: &CudaOptions,
        receiver: Option<Arc<dyn RowSink>>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<CudaBackend, CudaError> {
        let name = device.context().name().map_err(driver_error("asking for the device's name"))?;
        let tap = options.tap_layer.filter(|_| options.tap != TapMode::Off && receiver.is_some());
        let mode = if tap.is_some() { options.tap } else { TapMode::Off };
        let executor = Executor::new(ExecutorConfig {
            device: device.clone(),
            config: config.clone(),
            weights: weights.clone(),
            limits: options.limits(),
            kv_blocks: options.kv_blocks,
            tap: tap.map(|layer| TapConfig {
                mode,
                layer,
                probe: options.probe.as_deref(),
                shares_blocks: options.shares_blocks,
            }),
            order: options.order,
            megakernel: options.megakernel,
        })?;
        let mut executor = UnlessHung::new(executor, device.shared());
        executor.prepare(options.graphs, mode == TapMode::Blocking, progress)?;
        let mut warnings = std::mem::take(&mut executor.warnings);
        let swap = open_swap(&mut executor, options, &mut warnings)?;
        let threads = match (executor.ring(), &receiver) {
            (Some((ring, on_device)), Some(receiver)) if mode != TapMode::Blocking => {
                let (ring, receiver) = (ring.clone(), receiver.clone());
                let cpus = near_cpus::of_device(options.ordinal);
                Some(Threads::start(ring, receiver, on_device, options.probe_threads, &cpus)?)
            }
            _ => None,
        };
        let pending = || {
            let sampled_rows = Vec::with_capacity(options.max_segments + options.max_drafts);
            Ok::<_, CudaError>(Pending { number: 0, sampled_rows, end: executor.device.event()? })
        };
        let pending = UnlessHung::new([pending()?, pending()?], device.shared());
        let (launched, collected, takes_drafts) = (0, 0, options.max_drafts > 0);
        Ok(CudaBackend {
            threads,
            receiver,
            mode,
            swap,
            executor,
            pending,
            launched,
            collected,
            takes_drafts,
            host: Duration::ZERO,
            name,
            warnings,
        })
    }

    /// Warnings of its start, a line for each thing that it goes on without.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Blocks of the KV pool.
    pub fn kv_blocks(&self) -> usize {
        self.executor.kv().blocks() as usize
    }

    /// The KV pool.
    pub fn kv(&self) -> &KvPool {
        self.executor.kv()
    }

    /// Device address of the grid barrier's word of [`CudaOptions::megakernel`] launches:
    /// generations in the upper half, zero in the lower half between launches; `None` where no step
    /// is launched so. For tests, and for debugging a device that hangs.
    pub fn barrier(&self) -> Option<DevicePtr<u32>> {
        self.executor.barrier()
    }

    /// Host time of the last step, from its plan until everything was ready to be launched.
    pub fn host_time(&self) -> Duration {
        self.host
    }

    /// The driver's name of the device.
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.executor.device
    }

    /// Steps so far that were replayed graphs.
    pub fn replayed_steps(&self) -> u64 {
        self.executor.replayed()
    }

    /// Steps whose tapped rows were overwritten before a prediction was made from them.
    pub fn late_steps(&self) -> u64 {
        self.executor.ring().map_or(0, |(ring, _)| ring.slots.late())
    }

    /// From here on steps are launched kernel by kernel, with events that
    /// [`CudaBackend::step_times`] reads. No step may be in flight.
    pub fn trace(&mut self) -> Result<Anchor, CudaError> {
        assert_eq!(self.launched, self.collected, "a step is in flight");
        self.executor.start_trace()
    }

    /// The step collected last, and when its parts ran; `None` where steps are not traced. To be
    /// asked before two more are launched.
    pub fn step_times(&self) -> Result<Option<(u64, StepTimes)>, CudaError> {
        let number = self.collected;
        let times = self.executor.times((number % STEPS as u64) as usize)?;
        Ok(times.map(|times| (number, times)))
    }

    fn launch_step(&mut self, step: &Step<'_>) -> Result<(), CudaError> {
        let begin = Instant::now();
        let written = self.executor.write(step)?;
        self.host = begin.elapsed();
        let ring = self.executor.ring().map(|(ring, _)| ring.clone());
        let staged = ring.as_ref().is_some_and(|ring| {
            // Before the device may write: the threads must know that the step two before is over.
            ring.slots.announce(step.number, self.executor.staged())
        });
        if self.mode == TapMode::Blocking {
            self.executor.launch(&written, StepPhase::Lower)?;
            if let (Some(ring), Some(receiver), true) = (&ring, &self.receiver, staged) {
                self.wait(step.number, || ring.is_there(step.number).then_some(()))?;
                consume(ring, &**receiver, step.number, self.executor.staged());
                ring.slots.finish(step.number);
            }
            self.executor.launch(&written, StepPhase::Upper)?;
        } else {
            self.executor.launch(&written, StepPhase::Whole)?;
            if let (Some(threads), true) = (&self.threads, staged) {
                threads.wake();
            }
        }
        let pending = &mut self.pending[(step.number % STEPS as u64) as usize];
        pending.number = step.number;
        pending.sampled_rows.clear();
        pending.sampled_rows.extend_from_slice(self.executor.sampled_rows());
        if pending.sampled_rows.is_empty() {
            let recorded = pending.end.record(self.executor.compute().stream());
            recorded.map_err(driver_error("recording the end of a step"))?;
        }
        self.launched = step.number;
        Ok(())
    }

    fn collect_step(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), CudaError> {
        let number = self.collected + 1;
        let pending = &self.pending[(number % STEPS as u64) as usize];
        assert!(number <= self.launched && pending.number == number, "no step to collect");
        if pending.sampled_rows.is_empty() {
            let context = self.executor.device.shared();
            context.wait(StepWait(number), || has_run(&pending.end))?;
        }
        let first = sampled.len();
        for &row in &pending.sampled_rows {
            let row = self.wait(number, || self.executor.results().take(number, row as usize))?;
            sampled.push(launch::sampled(&row));
        }
        self.collected = number;
        // A step with draft tokens is collected before the next one is written.
        match self.launched == number {
            true => self.executor.add_accepted(&sampled[first..]),
            false => Ok(()),
        }
    }

    /// Polls `look` until it finds something. A device that has stopped, or that has ended its work
    /// without bringing it, is an error.
    fn wait<T>(&self, number: u64, look: impl Fn() -> Option<T>) -> Result<T, CudaError> {
        let (begin, mut queried) = (Instant::now(), None::<Instant>);
        let mut spins = 0;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            if queried.is_some_and(|at| at.elapsed() < QUERY_EVERY) {
                continue;
            }
            queried = Some(Instant::now());
            if self.executor.compute().is_idle().map_err(|code| at_step(number, code))? {
                // Work that ended between the two queries has stored its result by now.
                return look().ok_or(CudaError::Silent { step: number });
            }
            self.executor.device.shared().check_time(begin, StepWait(number))?;
        }
    }
}

impl Drop for CudaBackend {
    /// Finds out whether the device hangs before anything is given back to it.
    fn drop(&mut self) {
        self.executor.drain();
        if let Some(swap) = &self.swap {
            swap.drain();
        }
    }
}

/// The host pool that `options` ask for, if any.
fn open_swap(
    executor: &mut Executor,
    options: &CudaOptions,
    warnings: &mut Vec<String>,
) -> Result<Option<UnlessHung<Swap>>, CudaError> {
    let host_blocks = (options.host_kv_bytes / executor.kv().block_bytes()).min(MAX_BLOCKS) as u32;
    if host_blocks == 0 {
        return Ok(None);
    }
    let CudaOptions { max_requests, checksums, .. } = *options;
    let options = SwapOptions { host_blocks, max_requests, checksums };
    let stream = executor.compute().stream();
    let swap = Swap::that_fits(&executor.device, stream, executor.kv(), options)?;
    let fits = swap.as_ref().map_or(0, |swap| swap.host_blocks());
    if fits < host_blocks {
        let mib = |blocks: u32| (blocks as usize * executor.kv().block_bytes()) >> 20;
        warnings.push(format!(
            "the system pins {} MiB of host memory for swapped KV blocks, not the {} MiB of \
             --host-kv-gib: preempted requests that find no room there are recomputed",
            mib(fits),
            mib(host_blocks)
        ));
    }
    let Some(swap) = swap else { return Ok(None) };
    let mut swap = UnlessHung::new(swap, executor.device.shared());
    swap.set_token_s(executor.measure_token_s()?);
    Ok(Some(swap))
}

impl Backend for CudaBackend {
    fn ahead(&self) -> usize {
        STEPS - 1
    }

    fn takes_drafts(&self) -> bool {
        self.takes_drafts
    }

    fn takes_masks(&self) -> bool {
        true
    }

    fn launch(&mut self, step: &Step<'_>) -> Result<(), Fault> {
        Ok(self.launch_step(step)?)
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), Fault> {
        Ok(self.collect_step(sampled)?)
    }

    fn transfers(&mut self) -> Option<&mut dyn Transfers> {
        self.swap.is_some().then_some(self)
    }
}

impl CudaBackend {
    /// There is one wherever `transfers` gave the caller this.
    fn swap(&mut self) -> Result<&mut Swap, Fault> {
        let swap = self.swap.as_deref_mut();
        swap.ok_or_else(|| Fault("this backend was built without a host pool".into()))
    }
}

impl Transfers for CudaBackend {
    fn swap_out(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault> {
        self.executor.invalidate(request);
        self.swap()?.swap_out(request, copies)
    }

    fn swap_in(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault> {
        self.swap()?.swap_in(request, copies)
    }

    fn finished(&mut self, requests: &mut Vec<u32>) -> Result<(), Fault> {
        self.swap()?.finished(requests)
    }

    fn host_blocks(&self) -> u32 {
        self.swap.as_ref().map_or(0, |swap| swap.host_blocks())
    }

    fn block_bytes(&self) -> u64 {
        self.executor.kv().block_bytes() as u64
    }

    fn block_s(&self) -> f64 {
        self.swap.as_ref().map_or(0.0, |swap| swap.block_s())
    }

    fn token_s(&self) -> f64 {
        self.swap.as_ref().map_or(0.0, |swap| swap.token_s())
    }
}

fn at_step(number: u64, code: cudarc::driver::DriverError) -> CudaError {
    CudaError::Driver { operation: StepWait(number).to_string(), code }
}
