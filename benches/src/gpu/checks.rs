//! Checks that a GPU must pass before it serves, from the driver to whole answers, each for its own
//! process, since a kernel that hangs or fails takes its process along.

use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error, ModelArgs, Setup};
use trail_runtime::cuda::{Code, Device, TapMode, inventory};
use trail_runtime::engine::{ComputeDevice, Event, FinishReason, Request, SamplingParams};

use crate::decoding::StepShape;
use crate::kernels;
use crate::model::BenchModel;
use crate::overlap::{self, Counting, Uploaded};

/// A check: its name, its time limit in seconds, and its function.
#[derive(Clone, Copy, Debug)]
pub struct GpuCheck {
    /// Name, as `--gpu-check` takes it.
    pub name: &'static str,
    /// Seconds after which it hangs.
    pub limit_s: u64,
    run: fn(&Asked<'_>) -> Result<Value, Error>,
}

/// The checks, in the order in which one depends on another.
pub const GPU_CHECKS: [GpuCheck; 8] = [
    GpuCheck { name: "driver", limit_s: 10, run: driver },
    GpuCheck { name: "canary", limit_s: 15, run: canary },
    GpuCheck { name: "modules", limit_s: 60, run: modules },
    GpuCheck { name: "eager", limit_s: 20, run: eager },
    GpuCheck { name: "graphs", limit_s: 20, run: graphs },
    GpuCheck { name: "tap", limit_s: 20, run: tap },
    GpuCheck { name: "replays", limit_s: 30, run: replays },
    GpuCheck { name: "answers", limit_s: 40, run: answers },
];

/// Device, model and sizes of a check.
struct Asked<'a> {
    ordinal: usize,
    replays: u32,
    model: &'a ModelArgs,
    engine: &'a EngineArgs,
}

/// Runs the check named `name` on the device that `engine` names, and returns what it found;
/// `replays` is the number of steps of the check of that name.
pub fn check_gpu(
    name: &str,
    model: &ModelArgs,
    engine: &EngineArgs,
    replays: u32,
) -> Result<Value, Error> {
    let check = GPU_CHECKS.iter().find(|check| check.name == name).ok_or_else(|| {
        let names = GPU_CHECKS.map(|check| check.name).join(", ");
        Error::usage(format!("no check {name:?} of a GPU: choose {names}"))
    })?;
    let ordinal = match engine.device() {
        ComputeDevice::Cuda { ordinal } => ordinal,
        ComputeDevice::Cpu => 0,
    };
    (check.run)(&Asked { ordinal, replays, model, engine })
}

/// Program, driver and device; fails where the kernels cannot run.
fn driver(asked: &Asked<'_>) -> Result<Value, Error> {
    let driver = inventory::driver_version().map_err(failed)?;
    let found = inventory::devices().map_err(failed)?;
    let gpu = found.get(asked.ordinal).ok_or_else(|| {
        Error::failed(format!("no device cuda:{}: the driver has {}", asked.ordinal, found.len()))
    })?;
    if let Some(why) = gpu.refusal(driver) {
        return Err(Error::failed(why));
    }
    Ok(json!({
        "program": env!("CARGO_PKG_VERSION"),
        "driver": format!("CUDA {driver}"),
        "name": gpu.name,
        "compute": format!("{}.{}", gpu.compute.0, gpu.compute.1),
        "memory_bytes": gpu.memory_bytes,
        "multiprocessors": gpu.multiprocessors,
    }))
}

/// One small kernel, whose result is checked.
fn canary(asked: &Asked<'_>) -> Result<Value, Error> {
    kernels::canary(asked.ordinal).map(|()| json!({})).map_err(failed)
}

/// Every kernel that this device can run, loaded; `unlike` has those with other registers, shared
/// or local bytes than the compiler reported of the same machine code. Not a failure: the emulator
/// of Hopper runs the text instead, and has its own.
fn modules(asked: &Asked<'_>) -> Result<Value, Error> {
    let device = Device::open(asked.ordinal).map_err(failed)?;
    let before = device.free_bytes().map_err(failed)?;
    device.load_all().map_err(failed)?;
    let taken = before.saturating_sub(device.free_bytes().map_err(failed)?);
    let kernels = device.kernels().map_err(failed)?;
    let mut unlike = Vec::new();
    for kernel in &kernels {
        let Some(reported) = kernel.reported() else { continue };
        let expected = (reported.registers, reported.shared_bytes, reported.stack_bytes);
        let found = (kernel.registers, kernel.shared_bytes, kernel.local_bytes);
        if expected != found {
            unlike.push(json!({ "kernel": kernel.name, "reported": expected, "found": found }));
        }
    }
    let of = |code: Code| kernels.iter().filter(|kernel| kernel.code == code).count();
    Ok(json!({
        "kernels": kernels.len(),
        "from_ptx": of(Code::Ptx),
        "memory_bytes": taken,
        "unlike": unlike,
    }))
}

/// Requests of a step, and tokens of a prompt.
const SHAPE: StepShape = StepShape { batch: 3, context: 17 };
/// Decode steps of a check.
const STEPS: u32 = 4;

/// Steps launched kernel by kernel.
fn eager(asked: &Asked<'_>) -> Result<Value, Error> {
    let mut steps = Steps::new(asked, false, TapMode::Off)?;
    steps.run(STEPS)?;
    Ok(json!({ "steps": STEPS, "memory_bytes": steps.taken }))
}

/// The same as graphs: the same tokens, and the device memory that graphs take.
fn graphs(asked: &Asked<'_>) -> Result<Value, Error> {
    let mut eager = Steps::new(asked, false, TapMode::Off)?;
    let mut graphs = Steps::new(asked, true, TapMode::Off)?;
    same(&eager.run(STEPS)?, &graphs.run(STEPS)?, "graphs")?;
    let more = graphs.taken.saturating_sub(eager.taken);
    Ok(json!({ "steps": STEPS, "graph_memory_bytes": more }))
}

/// The same with the tap: the same tokens, and a prediction of every row.
fn tap(asked: &Asked<'_>) -> Result<Value, Error> {
    let mut without = Steps::new(asked, true, TapMode::Off)?;
    let mut with = Steps::new(asked, true, TapMode::Cpu)?;
    same(&without.run(STEPS)?, &with.run(STEPS)?, "the tap")?;
    with.predictions(STEPS)
}

/// Many replayed steps, each with its flag.
fn replays(asked: &Asked<'_>) -> Result<Value, Error> {
    let mut steps = Steps::new(asked, true, TapMode::Cpu)?;
    let mut left = asked.replays;
    while left > 0 {
        let next = left.min(STEPS);
        steps.run(next)?;
        left -= next;
    }
    steps.predictions(asked.replays)
}

/// The model's greedy answer on the device and on the CPU.
fn answers(asked: &Asked<'_>) -> Result<Value, Error> {
    // A small KV pool and small steps, as one step is timed at start.
    let small = ["--kv-blocks=64", "--token-budget=48", "--max-running=4"];
    let on = |device: String| {
        let options = [&small.map(str::to_owned)[..], &[device]].concat();
        asked.engine.parsed(&options)
    };
    let setup = Setup::load(asked.model)?;
    let expected = answer(&setup, &on("--device=cpu".into())?)?;
    let found = answer(&setup, &on(format!("--device=cuda:{}", asked.ordinal))?)?;
    same(&expected, &found, "the device")?;
    Ok(json!({ "model": setup.name, "tokens": found.len() }))
}

fn answer(setup: &Setup, engine: &EngineArgs) -> Result<Vec<u32>, Error> {
    let prompt = setup.user_prompt("Show the table of 9 from 1 to 16.")?;
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let request = Request { sampling, ..Request::new(prompt, 24) };
    let engine = setup.engine(engine)?;
    let handle = engine.submit(request);
    let handle = handle.map_err(|error| Error::refused("the request: ", &error))?;
    let mut tokens = Vec::new();
    while let Some(event) = handle.recv() {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { reason: FinishReason::Stop | FinishReason::Length } => {
                return Ok(tokens);
            }
            _ => {}
        }
    }
    Err(Error::failed("the answer has no end"))
}

/// Decode steps of a small shape with random weights.
struct Steps {
    engine: Counting,
    /// Device memory that opening the engine took, without weights, bytes.
    taken: usize,
}

impl Steps {
    fn new(asked: &Asked<'_>, graphs: bool, tap: TapMode) -> Result<Steps, Error> {
        let bench = BenchModel::of_shape("demo", asked.engine)?.for_checks(graphs);
        let uploaded = Uploaded::new(&bench)?;
        let before = uploaded.device().free_bytes().map_err(failed)?;
        let engine = overlap::gpu_engine(SHAPE, &bench, &uploaded, tap)?;
        let taken = before.saturating_sub(uploaded.device().free_bytes().map_err(failed)?);
        Ok(Steps { engine, taken })
    }

    /// Runs `count` steps. Returns all tokens so far.
    fn run(&mut self, count: u32) -> Result<Vec<u32>, Error> {
        self.engine.steps(count)?;
        Ok(self.engine.decoding.tokens().concat())
    }

    /// The predictions of `steps` steps: an error unless each row had one.
    fn predictions(&mut self, steps: u32) -> Result<Value, Error> {
        let stats = self.engine.decoding.take_stats();
        let rows = u64::from(steps) * SHAPE.batch as u64;
        match stats.fresh + stats.late {
            found if found < rows => {
                Err(Error::failed(format!("{found} of {rows} rows have a prediction")))
            }
            _ => Ok(json!({ "steps": steps, "fresh": stats.fresh, "late": stats.late })),
        }
    }
}

fn same(expected: &[u32], found: &[u32], what: &str) -> Result<(), Error> {
    match expected == found {
        true => Ok(()),
        false => {
            Err(Error::failed(format!("other tokens by {what}: {found:?}, expected {expected:?}")))
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::failed(error.to_string())
}
