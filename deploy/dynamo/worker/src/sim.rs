//! A simulated engine by the wall clock: the real scheduler, steps that sleep for what they would
//! cost, and tokens that are a function of their position alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use trail_dynamo_proto::Prompts;
use trail_runtime::engine::{
    BlockSink, Event, FinishReason, Request, StepCost, StepWork, SubmitError,
};
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    BLOCK_TOKENS, ConfigError, NewRequest, Prediction, RequestIdx, Scheduler, SchedulerConfig,
};
use trail_simulator::{Job, Noise, Refined};

use crate::sim_prefix::{Blocks, Sequence};

/// Settings of a simulated engine.
pub struct SimSettings {
    /// Sizes of the scheduler.
    pub scheduler: SchedulerConfig,
    /// The policy.
    pub policy: PolicyKind,
    /// Time of a step.
    pub cost: StepCost,
    /// Predictions of the length where a request brings none.
    pub noise: Noise,
    /// The token at position p is entry p modulo their number.
    pub alphabet: Vec<u32>,
    /// Receives the blocks of the prefix cache.
    pub block_sink: Box<dyn BlockSink>,
    /// Steps after which the engine breaks down; `None` never.
    pub break_after: Option<u64>,
}

/// The caller's end of a simulated engine. Dropping it ends every request.
pub struct SimEngine {
    inbox: Sender<Submission>,
    config: SchedulerConfig,
    policy: PolicyKind,
    cost: StepCost,
    noise: Noise,
    counts: Arc<Counts>,
    thread: thread::JoinHandle<()>,
}

/// Counts of the engine's thread.
#[derive(Default)]
struct Counts {
    blocks_used: AtomicU32,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
}

/// A request on its way to the engine's thread.
struct Submission {
    job: Job,
    sequence: Sequence,
    /// Output tokens that it had on arrival.
    generated: u32,
    events: UnboundedSender<Event>,
}

impl SimEngine {
    /// Starts the engine's thread.
    pub fn start(settings: SimSettings) -> Result<SimEngine, ConfigError> {
        let SimSettings { scheduler: config, policy, cost, noise, alphabet, .. } = settings;
        let mut scheduler = Scheduler::new(config, policy.build())?;
        let blocks = Blocks::new(&mut scheduler, settings.block_sink);
        let (inbox, submissions) = channel();
        let counts = Arc::new(Counts::default());
        let steps = Steps {
            scheduler,
            blocks,
            cost,
            alphabet,
            submissions,
            live: HashMap::new(),
            step: 0,
            begun: Instant::now(),
            due: Instant::now(),
            counts: counts.clone(),
        };
        let thread = thread::spawn(move || steps.run(settings.break_after.unwrap_or(u64::MAX)));
        Ok(SimEngine { inbox, config, policy, cost, noise, counts, thread })
    }

    /// True after a breakdown.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Begins an answer of exactly `max_tokens` tokens. Returns the predicted length, if any, and
    /// the events.
    pub fn submit(
        &self,
        request: Request,
    ) -> Result<(Option<f32>, UnboundedReceiver<Event>), SubmitError> {
        let generated = request.generated;
        let prompt_tokens = (request.prompt.len() as u32).saturating_sub(generated);
        let output_tokens = request.max_tokens;
        let new = NewRequest {
            prompt_tokens,
            generated,
            max_tokens: output_tokens,
            ..NewRequest::default()
        };
        self.config.admit(&new).map_err(SubmitError::Refused)?;
        let job = Job {
            id: request.sampling.seed,
            arrival_ns: 0,
            prompt_tokens,
            output_tokens,
            // The policies see the context as the limit, as the length is the simulation's secret.
            max_tokens: self.context() - prompt_tokens,
            priority: 0,
            r: None,
            refined: Refined::None,
            block_hashes: [].into(),
        };
        let mut jobs = [job];
        self.noise.predict(&mut jobs, request.sampling.seed);
        let [mut job] = jobs;
        job.r = request.length_hint.map(|tokens| tokens as f32).or(job.r);
        let (events, answer) = unbounded_channel();
        let initial = job.r;
        // A closed inbox drops the sender: the answer then ends with a shutdown.
        // Sequences under a salt share blocks with none here.
        let shares = request.shares_prefix && request.cache_salt.is_empty();
        let sequence = Sequence::new(request.prompt, shares);
        let _ = self.inbox.send(Submission { job, sequence, generated, events });
        Ok((initial, answer))
    }

    /// The policy.
    pub fn policy(&self) -> PolicyKind {
        self.policy
    }

    /// Most tokens of prompt and output.
    pub fn context(&self) -> u32 {
        self.config.max_context.min(self.config.num_blocks * BLOCK_TOKENS)
    }

    /// Most sequences in one step.
    pub fn slots(&self) -> u32 {
        self.config.max_running
    }

    /// Seconds of a step in which all sequences decode, and of a prompt token in a step.
    pub fn pace(&self) -> (f64, f64) {
        let rows = f64::from(self.config.max_running);
        let StepCost { fixed, decode_row, prefill_token, .. } = self.cost;
        ((fixed + rows * decode_row) * 1e-9, prefill_token * 1e-9)
    }

    /// KV blocks, and those in use.
    pub fn blocks(&self) -> (u32, u32) {
        (self.config.num_blocks, self.counts.blocks_used.load(Ordering::Relaxed))
    }

    /// Prompt tokens so far.
    pub fn prompts(&self) -> Prompts {
        let Counts { prompt_tokens, cached_tokens, .. } = &*self.counts;
        let [tokens, cached] =
            [prompt_tokens, cached_tokens].map(|count| count.load(Ordering::Relaxed));
        Prompts { tokens, cached }
    }
}

/// The request at a scheduler's index.
struct Live {
    events: UnboundedSender<Event>,
    sequence: Sequence,
    output_tokens: u32,
    /// Predicted remaining tokens by tokens generated.
    refined: Vec<f32>,
}

/// The engine's thread.
struct Steps {
    scheduler: Scheduler,
    blocks: Blocks,
    cost: StepCost,
    alphabet: Vec<u32>,
    submissions: Receiver<Submission>,
    live: HashMap<RequestIdx, Live>,
    step: u64,
    begun: Instant,
    /// End of the last step.
    due: Instant,
    counts: Arc<Counts>,
}

impl Steps {
    /// Takes at most `most` steps, until the engine is dropped.
    fn run(mut self, max: u64) {
        while self.step < max && self.take_submissions() {
            self.end_cancelled();
            self.execute();
            self.counts.blocks_used.store(self.scheduler.blocks_used(), Ordering::Relaxed);
        }
    }

    /// Admits what was submitted; waits for a request if there is none. False once the engine is
    /// dropped.
    fn take_submissions(&mut self) -> bool {
        loop {
            let next = match self.live.is_empty() {
                true => self.submissions.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.submissions.try_recv(),
            };
            match next {
                Ok(submission) => self.admit(submission),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn admit(&mut self, submission: Submission) {
        let Submission { job, mut sequence, generated, events } = submission;
        let new = NewRequest {
            prompt_tokens: job.prompt_tokens,
            generated,
            max_tokens: job.max_tokens,
            arrival_s: self.begun.elapsed().as_secs_f64(),
            initial_prediction: job.r,
            true_length: Some(job.output_tokens),
            ..NewRequest::default()
        };
        let Ok(idx) = self.scheduler.submit(new) else {
            let _ = events.send(Event::Finished { reason: FinishReason::Overloaded });
            return;
        };
        let mut refined = Vec::new();
        job.refined.fill(job.output_tokens, &mut refined);
        self.counts.prompt_tokens.fetch_add(job.prompt_tokens.into(), Ordering::Relaxed);
        sequence.hash_blocks(idx, &mut self.scheduler);
        let output_tokens = job.output_tokens;
        self.live.insert(idx, Live { events, sequence, output_tokens, refined });
    }

    /// Ends the requests whose callers are gone.
    fn end_cancelled(&mut self) {
        let gone = self.live.iter().filter(|(_, live)| live.events.is_closed());
        let gone: Vec<RequestIdx> = gone.map(|(&idx, _)| idx).collect();
        for idx in gone {
            self.live.remove(&idx);
            self.scheduler.finish(idx);
        }
    }

    /// Plans a step, sleeps for its cost and sends its tokens.
    fn execute(&mut self) {
        if self.live.is_empty() {
            return;
        }
        self.step += 1;
        self.scheduler.plan(self.step, self.begun.elapsed().as_secs_f64());
        self.blocks.report(&mut self.scheduler);
        let plan = self.scheduler.last_plan();
        for row in &plan.rows {
            if let Some(live) = self.live.get(&row.idx) {
                let rows = (row.start, row.start + row.len);
                self.blocks.fill(rows, &live.sequence, self.scheduler.blocks(row.idx));
            }
        }
        self.counts.cached_tokens.fetch_add(plan.prompt_hits.into(), Ordering::Relaxed);
        let mut work = StepWork::default();
        plan.rows.iter().for_each(|row| work.add(row.start, row.len, row.sample));
        for idx in &plan.preempted {
            let evicted = plan.evicted.contains(idx);
            if let Some(live) = self.live.get(idx) {
                let _ = live.events.send(Event::Preempted { evicted, times: 1 });
            }
        }
        let sampled: Vec<RequestIdx> =
            plan.rows.iter().filter(|row| row.sample).map(|row| row.idx).collect();
        self.due = self.due.max(Instant::now()) + Duration::from_nanos(self.cost.ns(&work));
        thread::sleep(self.due.saturating_duration_since(Instant::now()));
        self.scheduler.advance();
        sampled.into_iter().for_each(|idx| self.sampled(idx));
        // Those of the last requests too, after which there may be no plan for long.
        self.blocks.report(&mut self.scheduler);
    }

    /// Sends the token of `idx` and its prediction, and the end after the last one.
    fn sampled(&mut self, idx: RequestIdx) {
        let state = self.scheduler.state(idx);
        let (generated, generation) = (state.generated, state.generation);
        let position = (state.tokens() - 1) as usize;
        let Some(live) = self.live.get_mut(&idx) else { return };
        let id = self.alphabet[position % self.alphabet.len()];
        live.sequence.push(id);
        live.sequence.hash_blocks(idx, &mut self.scheduler);
        let _ = live.events.send(Event::Token { id, logprob: 0.0 });
        if let Some(&remaining) = live.refined.get(generated as usize - 1) {
            let _ = live.events.send(Event::Prediction { generated: generated - 1, remaining });
            let step = self.step;
            let prediction = Prediction { remaining, step, generation, ..Prediction::default() };
            self.scheduler.predict(idx, prediction);
        }
        if generated >= live.output_tokens {
            let _ = live.events.send(Event::Finished { reason: FinishReason::Length });
            self.live.remove(&idx);
            self.scheduler.finish(idx);
        }
    }
}

#[cfg(test)]
mod tests;
