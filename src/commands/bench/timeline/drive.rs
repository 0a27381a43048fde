//! Requests that decode on and on, scheduled as the engine schedules them: predictions, plan, launch, and the tokens of the step before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_runtime::batch::Batch;
use trail_runtime::engine::sampling::Sampled;
use trail_runtime::engine::{
    Backend, Choice, Choices, Forecast, SamplingParams, Smoothed, Step, TapPlan, Tenant,
};
use trail_scheduler::policies::Trail;
use trail_scheduler::{NewRequest, Prediction, RequestId, Scheduler, SchedulerConfig, Slot};

use super::Kind;
use super::recorder::Recorder;
use super::sizes::{STEPS, Sizes, WARM_UP};

/// Share of a step after which the next one is planned, whatever is predicted by then.
const CUT_OFF: f64 = 0.9;
/// Weight of the newest step in what the next one is expected to take.
const NEWEST: f64 = 0.2;
/// Output tokens that the running requests are first thought to have, and the waiting ones: these stay behind.
const RUNNING_TOKENS: f32 = 250.0;
const WAITING_TOKENS: f32 = 4096.0;
/// The engine's thread, as far as a timeline needs it.
pub struct Line {
    sizes: Sizes,
    scheduler: Scheduler,
    forecast: Arc<Forecast>,
    recorder: Arc<Recorder>,
    batch: Batch,
    tap: TapPlan,
    /// By slot: the prompt, and the output as far as the host knows it.
    tokens: Vec<Vec<u32>>,
    sampled: Vec<Sampled>,
    /// Who samples, in order: by parity of the step.
    choosers: [Vec<Slot>; 2],
    step: u64,
    /// Steps that were launched and not collected; of a backend that works ahead.
    under_way: bool,
    expected_s: f64,
    landed: Instant,
    smoothed: Vec<(u64, Smoothed)>,
}

impl Line {
    /// All requests are there; none has begun.
    pub fn new(
        sizes: Sizes,
        vocab: usize,
        forecast: Arc<Forecast>,
        recorder: Arc<Recorder>,
    ) -> Result<Line, String> {
        let requests = sizes.requests();
        let config = SchedulerConfig {
            max_running: sizes.batch as u32,
            max_requests: requests as u32,
            token_budget: sizes.rows as u32,
            num_blocks: sizes.blocks() as u32,
            max_context: sizes.longest() as u32,
            watermark: 0.0,
            ..SchedulerConfig::default()
        };
        let mut scheduler = Scheduler::new(config, Box::new(Trail::default()))
            .map_err(|error| error.to_string())?;
        let mut tokens = vec![Vec::new(); requests];
        for id in 0..requests {
            let runs = id < sizes.batch;
            let slot = scheduler
                .submit(NewRequest {
                    id: RequestId(id as u64),
                    prompt_tokens: sizes.context as u32,
                    max_tokens: (sizes.longest() - sizes.context) as u32,
                    arrival_s: 0.0,
                    initial_prediction: Some(if runs { RUNNING_TOKENS } else { WAITING_TOKENS }),
                    true_length: None,
                })
                .map_err(|refusal| refusal.to_string())?;
            forecast.begin(slot.0, scheduler.generation(slot));
            let prompt = (0..sizes.context).map(|at| ((at * 7 + id * 13 + 1) % vocab) as u32);
            tokens[slot.index()].reserve(sizes.longest());
            tokens[slot.index()].extend(prompt);
        }
        Ok(Line {
            batch: Batch::with_capacity(sizes.rows, sizes.batch, sizes.blocks()),
            tap: TapPlan::with_capacity(sizes.batch),
            sampled: Vec::with_capacity(sizes.batch),
            choosers: [Vec::with_capacity(sizes.batch), Vec::with_capacity(sizes.batch)],
            smoothed: Vec::with_capacity(STEPS + 2),
            step: 0,
            under_way: false,
            expected_s: 0.0,
            landed: Instant::now(),
            sizes,
            scheduler,
            forecast,
            recorder,
            tokens,
        })
    }

    /// Takes the prompts in, decodes for a while, and records further steps; `ready` is called before these, with no step under way, and
    /// `landed` behind each that was collected.
    pub fn record<B: Backend>(
        &mut self,
        backend: &mut B,
        ready: impl FnOnce(&mut B) -> Result<(), String>,
        mut landed: impl FnMut(&B) -> Result<(), String>,
    ) -> Result<(), String> {
        for _ in 0..self.sizes.prefills() {
            self.step(backend, &mut |_| Ok(()))?;
        }
        for _ in 0..WARM_UP {
            self.step(backend, &mut |_| Ok(()))?;
            if self.tap.singles.len() != self.sizes.batch {
                return Err("a step was to decode all requests, and did not".into());
            }
        }
        self.drain(backend, &mut |_| Ok(()))?;
        ready(backend)?;
        self.recorder.start();
        self.smoothed.clear();
        for _ in 0..STEPS {
            self.step(backend, &mut landed)?;
        }
        self.drain(backend, &mut landed)?;
        self.recorder.stop();
        Ok(())
    }

    /// Who smoothed each recorded step's predictions, and when.
    pub fn smoothed(&self) -> Vec<(u64, Smoothed)> {
        self.smoothed.clone()
    }

    fn step<B: Backend>(
        &mut self,
        backend: &mut B,
        landed: &mut impl FnMut(&B) -> Result<(), String>,
    ) -> Result<(), String> {
        if self.step > 0 {
            self.foresee();
        }
        self.plan();
        self.launch(backend)?;
        let behind = u64::from(backend.ahead() > 0);
        if behind == 0 || std::mem::replace(&mut self.under_way, true) {
            self.collect(backend, self.step - behind)?;
            landed(backend)?;
        }
        Ok(())
    }

    /// Until nothing is under way.
    fn drain<B: Backend>(
        &mut self,
        backend: &mut B,
        landed: &mut impl FnMut(&B) -> Result<(), String>,
    ) -> Result<(), String> {
        if std::mem::take(&mut self.under_way) {
            self.foresee();
            self.collect(backend, self.step)?;
            landed(backend)?;
        }
        Ok(())
    }

    /// Waits for the predictions of the last step, or until it is time to plan the next.
    fn foresee(&mut self) {
        let begin = Instant::now();
        let until = self.landed + Duration::from_secs_f64(CUT_OFF * self.expected_s);
        let predicts = !self.tap.rows.is_empty();
        while predicts && !self.forecast.is_done(self.step) && Instant::now() < until {
            std::hint::spin_loop();
        }
        self.recorder.step_seq(Kind::Await, self.step, begin);
        self.note_smoothed(self.step);
    }

    fn note_smoothed(&mut self, step: u64) {
        let Some(smoothed) = self.forecast.smoothed(step) else { return };
        if self.smoothed.last().is_none_or(|(last, _)| *last < step) {
            self.smoothed.push((step, smoothed));
        }
    }

    /// Predictions into ranks, and the next step's plan.
    fn plan(&mut self) {
        let begin = Instant::now();
        let scheduler = &mut self.scheduler;
        for segment in &self.batch.segments {
            let Some(reading) = self.forecast.read(segment.slot) else { continue };
            let [p10, p50, p90] = reading.estimate.quantiles;
            let (remaining, generation) = (reading.estimate.remaining, reading.estimate.generation);
            let prediction =
                Prediction { remaining, p10, p50, p90, step: reading.step, generation };
            scheduler.predict(Slot(segment.slot), prediction);
        }
        scheduler.plan(self.step + 1, 0.0);
        self.recorder.step_seq(Kind::Plan, self.step + 1, begin);
    }

    /// The plan into the batch, and to the backend. One that does not work ahead has computed it then, which it stamps itself.
    fn launch<B: Backend>(&mut self, backend: &mut B) -> Result<(), String> {
        let begin = Instant::now();
        let Line { scheduler, batch, tap, tokens, sizes, choosers, .. } = self;
        self.step += 1;
        let choosers = &mut choosers[(self.step % 2) as usize];
        choosers.clear();
        batch.clear();
        for row in &scheduler.last_plan().rows {
            choosers.extend(row.sample.then_some(row.slot));
            let (first, last) = (row.start as usize, (row.start + row.len) as usize);
            let blocks = scheduler.blocks(row.slot);
            match tokens[row.slot.index()].get(first..last) {
                Some(tokens) => batch.push(row.slot.0, row.start, tokens, blocks, row.sample),
                None => batch.push_pending(row.slot.0, row.start, blocks),
            }
        }
        let prompt_len = sizes.context as u32;
        tap.fill(batch, |slot| Tenant { generation: scheduler.generation(Slot(slot)), prompt_len });
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let greedy = Greedy { sampling, tokens, scheduler, prompt: sizes.context };
        let step = Step { number: self.step, batch, choices: &greedy, tap: Some(tap) };
        if backend.ahead() == 0 {
            self.recorder.step_seq(Kind::Launch, self.step, begin);
            backend.launch(&step).map_err(|fault| fault.0)?;
        } else {
            backend.launch(&step).map_err(|fault| fault.0)?;
            self.recorder.step_seq(Kind::Launch, self.step, begin);
        }
        self.scheduler.advance();
        Ok(())
    }

    /// Waits for the tokens of `step`.
    fn collect<B: Backend>(&mut self, backend: &mut B, step: u64) -> Result<(), String> {
        let begin = Instant::now();
        self.sampled.clear();
        backend.collect(&mut self.sampled).map_err(|fault| fault.0)?;
        self.recorder.step_seq(Kind::Collect, step, begin);
        let now = Instant::now();
        self.expected_s += NEWEST * ((now - self.landed).as_secs_f64() - self.expected_s);
        self.landed = now;
        self.note_smoothed(step);
        for (slot, chosen) in self.choosers[(step % 2) as usize].iter().zip(&self.sampled) {
            self.tokens[slot.index()].push(chosen.id);
        }
        Ok(())
    }
}

/// Everyone chooses the most likely token.
struct Greedy<'a> {
    sampling: SamplingParams,
    tokens: &'a [Vec<u32>],
    scheduler: &'a Scheduler,
    prompt: usize,
}

impl Choices for Greedy<'_> {
    fn choice(&self, slot: u32) -> Choice<'_> {
        let (prompt, generated) = self.tokens[slot as usize].split_at(self.prompt);
        let position = self.scheduler.state(Slot(slot)).tokens();
        Choice { sampling: &self.sampling, prompt, generated, position }
    }
}
