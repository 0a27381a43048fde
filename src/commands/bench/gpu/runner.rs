//! Requests that decode on and on, driven as the engine drives them: the next step is launched while one runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trail_runtime::batch::{BLOCK_TOKENS, Batch, Segment};
use trail_runtime::cuda::{CudaBackend, CudaOptions, TapMode};
use trail_runtime::engine::sampling::Sampled;
use trail_runtime::engine::{
    Backend, Choice, Choices, Forecast, SamplingParams, Step, TapPlan, TapReceiver, Tenant,
};

use super::super::subject::Subject;

/// Share of a step after which the next one is launched, whatever is predicted by then.
const CUT_OFF: f64 = 0.9;
/// Weight of the newest step in what the next one is expected to take.
const NEWEST: f64 = 0.2;

/// What a runner is for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Most requests at once.
    pub requests: usize,
    /// Most rows of a step.
    pub rows: usize,
    /// Longest context, tokens.
    pub context: usize,
}

/// Figures of the steps since they were last taken.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// From the end of one step to the end of the next, microseconds.
    pub step_us: Vec<f64>,
    /// Host time from a step's plan to its launch, microseconds.
    pub launch_us: Vec<f64>,
    /// From a step's last prediction to its end, microseconds.
    pub slack_us: Vec<f64>,
    /// Steps whose predictions were there when the next was launched, and others.
    pub fresh: u64,
    /// Those whose predictions were not.
    pub late: u64,
}

impl Figures {
    /// Adds those of `more`.
    pub fn add(&mut self, more: Figures) {
        self.step_us.extend(more.step_us);
        self.launch_us.extend(more.launch_us);
        self.slack_us.extend(more.slack_us);
        self.fresh += more.fresh;
        self.late += more.late;
    }
}

/// One backend, and the requests it works on.
pub struct Runner {
    backend: CudaBackend,
    forecast: Option<Arc<Forecast>>,
    batch: Batch,
    tap: TapPlan,
    sampled: Vec<Sampled>,
    /// Of all requests, one after the other.
    blocks: Vec<u32>,
    blocks_each: usize,
    vocab: u32,
    step: u64,
    generation: u32,
    expected_s: f64,
    /// Since they were last taken.
    pub figures: Figures,
}

/// Everyone chooses the most likely token.
struct Greedy {
    sampling: SamplingParams,
    /// Of the token that is chosen: all rows are in step.
    position: u32,
}

impl Choices for Greedy {
    fn choice(&self, _: u32) -> Choice<'_> {
        let Greedy { sampling, position } = self;
        Choice { sampling, prompt: &[], generated: &[], position: *position }
    }
}

impl Runner {
    /// A backend of `sizes`, tapped by `mode`.
    pub fn new(subject: &Subject, sizes: Sizes, mode: TapMode) -> Result<Runner, String> {
        let settings = subject.settings();
        let blocks_each = sizes.context.div_ceil(BLOCK_TOKENS);
        let probe = match mode {
            TapMode::Off => None,
            _ => Some(subject.probe().map_err(|error| error.to_string())?),
        };
        let options = CudaOptions {
            ordinal: subject.ordinal(),
            max_rows: sizes.rows.max(sizes.requests),
            max_segments: sizes.requests,
            max_requests: sizes.requests,
            max_context: sizes.context,
            kv_blocks: Some(sizes.requests * blocks_each),
            host_kv_bytes: 0,
            graphs: settings.graphs,
            megakernel: settings.persistent,
            hopper_products: settings.hopper_products,
            tap_layer: probe.as_ref().map(|probe| probe.layer),
            tap: mode,
            probe: probe.as_ref().map(|probe| probe.weights.clone()),
            probe_threads: settings.probe_threads,
            checksums: false,
        };
        let forecast =
            probe.map(|probe| Arc::new(Forecast::new(probe, sizes.requests, 2 * sizes.requests)));
        let receiver = forecast.clone().map(|forecast| forecast as Arc<dyn TapReceiver>);
        let backend = CudaBackend::new(&subject.model, &options, receiver, &mut |_| {})
            .map_err(|error| error.to_string())?;
        let blocks = sizes.requests * blocks_each;
        Ok(Runner {
            backend,
            forecast,
            batch: Batch::with_capacity(sizes.rows.max(sizes.requests), sizes.requests, blocks),
            tap: TapPlan::with_capacity(sizes.requests),
            sampled: Vec::with_capacity(sizes.requests),
            blocks: (0..blocks as u32).collect(),
            blocks_each,
            vocab: subject.model.config.vocab_size as u32,
            step: 0,
            generation: 0,
            expected_s: 0.0,
            figures: Figures::default(),
        })
    }

    /// The backend.
    pub fn backend(&self) -> &CudaBackend {
        &self.backend
    }

    /// Takes in a prompt of `tokens` tokens for the request in `slot`, in steps of at most `rows` rows; its seconds.
    pub fn prefill(&mut self, slot: u32, tokens: usize, rows: usize) -> Result<f64, String> {
        let vocab = self.vocab;
        let ids: Vec<u32> = (0..tokens as u32).map(|at| (at * 7 + slot * 13 + 1) % vocab).collect();
        self.begin(slot + 1);
        let start = Instant::now();
        for (index, chunk) in ids.chunks(rows).enumerate() {
            let (first, last) = (index * rows, index * rows + chunk.len() == tokens);
            let blocks = &self.blocks[slot as usize * self.blocks_each..][..self.blocks_each];
            self.batch.clear();
            self.batch.push(slot, first as u32, chunk, blocks, last);
            self.launch(tokens as u32)?;
            self.collect()?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// New tenants for the first `count` slots.
    fn begin(&mut self, count: u32) {
        self.generation += 1;
        if let Some(forecast) = &self.forecast {
            (0..count).for_each(|slot| forecast.begin(slot, self.generation));
        }
    }

    /// `steps` decode steps of the first `count` requests, the first at `position`; what the last one chose.
    pub fn decode(
        &mut self,
        count: usize,
        position: usize,
        steps: usize,
    ) -> Result<Vec<u32>, String> {
        self.begin(count as u32);
        let mut ended = Instant::now();
        for at in 0..=steps {
            if at > 0 {
                self.await_predictions(ended);
            }
            if at < steps {
                let begin = Instant::now();
                self.fill(count, position + at, at > 0);
                self.launch(position as u32)?;
                self.figures.launch_us.push(begin.elapsed().as_secs_f64() * 1e6);
            }
            if at > 0 {
                self.collect_behind(u64::from(at < steps))?;
                let now = Instant::now();
                // The first has none before it.
                if at > 1 {
                    let step_s = (now - ended).as_secs_f64();
                    self.figures.step_us.push(step_s * 1e6);
                    self.expected_s += NEWEST * (step_s - self.expected_s);
                }
                ended = now;
            }
        }
        Ok(self.chosen())
    }

    /// What the last step chose.
    pub fn chosen(&self) -> Vec<u32> {
        self.sampled.iter().map(|chosen| chosen.id).collect()
    }

    /// One token each of the first `count` requests; a step under way may have chosen it.
    fn fill(&mut self, count: usize, position: usize, pending: bool) {
        self.batch.clear();
        for (slot, blocks) in self.blocks.chunks_exact(self.blocks_each).take(count).enumerate() {
            let (slot, position) = (slot as u32, position as u32);
            match pending {
                true => self.batch.push_pending(slot, position, blocks),
                false => {
                    self.batch.push(slot, position, &[(slot * 31 + 1) % self.vocab], blocks, true)
                }
            }
        }
    }

    fn launch(&mut self, prompt_len: u32) -> Result<(), String> {
        self.step += 1;
        let tenant = Tenant { generation: self.generation, prompt_len };
        self.tap.fill(&self.batch, |_| tenant);
        let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let end = |last: &Segment| last.start + last.len;
        let position = self.batch.segments.last().map_or(0, end);
        let greedy = Greedy { sampling, position };
        let step = Step {
            number: self.step,
            batch: &self.batch,
            choices: &greedy,
            tap: self.forecast.is_some().then_some(&self.tap),
        };
        self.backend.launch(&step).map_err(|fault| fault.0)
    }

    fn collect(&mut self) -> Result<(), String> {
        self.sampled.clear();
        self.backend.collect(&mut self.sampled).map_err(|fault| fault.0)
    }

    /// Collects a step with `behind` steps launched behind it.
    fn collect_behind(&mut self, behind: u64) -> Result<(), String> {
        self.collect()?;
        let step = self.step - behind;
        let ready = self.forecast.as_ref().and_then(|forecast| forecast.ready(step));
        if let Some(ready) = ready {
            self.figures.slack_us.push(ready.elapsed().as_secs_f64() * 1e6);
        }
        Ok(())
    }

    /// Until the predictions of the last step are there, or it is time to launch the next.
    fn await_predictions(&mut self, began: Instant) {
        let Some(forecast) = self.forecast.as_ref().filter(|_| !self.tap.rows.is_empty()) else {
            return;
        };
        let until = began + Duration::from_secs_f64(CUT_OFF * self.expected_s);
        while !forecast.is_done(self.step) && Instant::now() < until {
            std::hint::spin_loop();
        }
        match forecast.is_done(self.step) {
            true => self.figures.fresh += 1,
            false => self.figures.late += 1,
        }
    }
}
