//! The sweep: batches of requests whose steps cover rows, prompt lengths and context.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trail_cli::drive::Display;
use trail_cli::notice;
use trail_platform::stats::median;
use trail_runtime::engine::{
    CollectedStep, ComputeDevice, EngineConfig, Request, StepObserver, StepOutcome, StepWork,
    SteppedEngine,
};

use crate::model::BenchModel;

/// Decode steps of each batch, beside those that take its prompts in.
const OUTPUT_TOKENS: u32 = 12;
/// Batches in each context: one, a quarter, a half and all of the engine's sequences.
const BATCHES: [usize; 4] = [8, 4, 2, 1];
/// Prompt lengths, tokens, as far as the model's context reaches.
const PROMPTS: [usize; 5] = [4, 24, 96, 384, 768];

/// Time in which repetitions end, if they take as long as those before; in the first one no prompt
/// length beyond [`LEAST_PROMPTS`] is begun after it.
const BUDGET: Duration = Duration::from_secs(150);
/// Prompt lengths that tell the costs of rows, prompt tokens and context apart.
const LEAST_PROMPTS: usize = 3;
/// Prompt lengths of the warm-up.
const WARM_PROMPTS: usize = 2;

/// Work of a step and its median time, nanoseconds.
pub type Observation = (StepWork, f64);

/// Work of the step collected last.
#[derive(Clone, Default)]
struct LastWork(Arc<Mutex<Option<StepWork>>>);

impl LastWork {
    fn take(&self) -> Option<StepWork> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl StepObserver for LastWork {
    fn collected(&mut self, step: &CollectedStep) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(step.work);
    }
}

/// Result of a sweep.
pub struct Swept {
    /// The observations, one for each work.
    pub observations: Vec<Observation>,
    /// Description of the device.
    pub device: String,
    /// Repetitions that were made.
    pub repeats: usize,
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
}

/// An engine, and the times of its steps by their work.
struct Sweep {
    engine: SteppedEngine,
    last: LastWork,
    device: ComputeDevice,
    times: BTreeMap<[u64; 3], Vec<f64>>,
}

impl Sweep {
    fn new(bench: &BenchModel) -> Result<Sweep, String> {
        let last = LastWork::default();
        let probe = bench.probe().map_err(|error| error.to_string())?;
        let config = EngineConfig {
            probe: Some(probe),
            observer: Some(Box::new(last.clone())),
            ..bench.config()
        };
        let engine = SteppedEngine::new(bench.model.clone(), config);
        let engine = engine.map_err(|error| error.to_string())?;
        Ok(Sweep { engine, last, device: bench.device(), times: BTreeMap::new() })
    }

    /// Times all batches with prompts of `prompt` tokens.
    fn measure(&mut self, prompt: usize) -> Result<(), String> {
        for share in BATCHES {
            let batch = (self.engine.max_running() / share).max(1);
            for (work, ns) in steps(&mut self.engine, &self.last, batch, prompt, self.device)? {
                let key = [work.decode_rows, work.prefill_tokens, work.context_tokens];
                self.times.entry(key).or_default().push(ns);
            }
        }
        Ok(())
    }

    /// Repeats the measurement of `prompts`, as far as [`BUDGET`] allows. Returns the repetitions
    /// and the number of prompt lengths in the first one.
    fn repeat(&mut self, prompts: &[usize], repeats: usize) -> Result<(usize, usize), String> {
        let begin = Instant::now();
        let fits = |done: usize| begin.elapsed().mul_f64((done + 1) as f64 / done as f64) <= BUDGET;
        let mut display = Display::new(repeats);
        let (mut done, mut lengths) = (0, prompts.len());
        while done < repeats && (done == 0 || fits(done)) {
            display.begin("sweep", prompts.len());
            for (at, &prompt) in prompts.iter().enumerate() {
                if done == 0 && at >= LEAST_PROMPTS && begin.elapsed() > BUDGET {
                    lengths = at;
                    break;
                }
                display.draw(at, |_| format!("prompts of {prompt} tokens"));
                self.measure(prompt)?;
            }
            display.end();
            done += 1;
        }
        Ok((done, lengths))
    }
}

/// Runs the sweep `repeats` times, as far as [`BUDGET`] allows.
pub fn run(bench: &BenchModel) -> Result<Swept, String> {
    let longest = bench.model.config.max_context.saturating_sub(OUTPUT_TOKENS as usize);
    let prompts: Vec<usize> = PROMPTS.into_iter().filter(|&prompt| prompt <= longest).collect();
    if prompts.is_empty() {
        return Err(format!(
            "a context of {longest} tokens beside an answer is too short to measure"
        ));
    }
    let mut sweep = Sweep::new(bench)?;
    prompts.iter().take(WARM_PROMPTS).try_for_each(|&prompt| sweep.measure(prompt))?;
    sweep.times.clear();
    let (repeats, lengths) = sweep.repeat(&prompts, bench.repeats)?;
    let (all, seconds, longest_prompt) = (bench.repeats, BUDGET.as_secs(), prompts[lengths - 1]);
    if lengths < prompts.len() {
        notice(format_args!(
            "one repetition of {all}, with prompts of up to {longest_prompt} tokens: the {seconds} s \
             for them are over, and longer prompts may cost more than their share"
        ));
    } else if repeats < all {
        notice(format_args!("{repeats} of {all} repetitions: {seconds} s have no room for more"));
    }
    let times = sweep.times.iter();
    let observations = times.map(|(&[decode_rows, prefill_tokens, context_tokens], ns)| {
        let work = StepWork { decode_rows, prefill_tokens, context_tokens, ..StepWork::default() };
        (work, median(ns))
    });
    let device = sweep.engine.device().to_owned();
    Ok(Swept { observations: observations.collect(), device, repeats, longest_prompt })
}

/// Runs `batch` requests with prompts of `prompt` tokens, half of the requests after the others
/// have begun to decode. Returns work and time of each step.
fn steps(
    engine: &mut SteppedEngine,
    last: &LastWork,
    batch: usize,
    prompt: usize,
    device: ComputeDevice,
) -> Result<Vec<(StepWork, f64)>, String> {
    let vocab = engine.model().config.vocab_size as u32;
    let mut handles = Vec::new();
    let mut submit = |engine: &SteppedEngine, index: usize| -> Result<(), String> {
        let id = |at: usize| (at * 7 + index * 13 + 1) as u32 % vocab;
        let mut request = Request::new((0..prompt).map(id).collect(), OUTPUT_TOKENS);
        request.ignore_eos = true;
        request.sampling.seed = index as u64;
        handles.push(engine.submit(request).map_err(|error| error.to_string())?);
        Ok(())
    };
    let first = batch.div_ceil(2);
    (0..first).try_for_each(|index| submit(engine, index))?;
    let mut observed = Vec::new();
    let mut begun = 0;
    loop {
        let begin = Instant::now();
        let outcome = engine.step().map_err(|fault| fault.0)?;
        let ns = begin.elapsed().as_nanos() as f64;
        if outcome == StepOutcome::Idle {
            return Ok(observed);
        }
        // On a device the first step of a batch is only launched, and the next one waits for both.
        let is_settled = begun > 1 || device == ComputeDevice::Cpu;
        observed.extend(last.take().filter(|_| is_settled).map(|work| (work, ns)));
        begun += 1;
        if begun == OUTPUT_TOKENS as usize / 2 {
            (first..batch).try_for_each(|index| submit(engine, index))?;
        }
    }
}
