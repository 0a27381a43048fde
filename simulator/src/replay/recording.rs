//! The requests, times and predictions of a log, and their simulation under another policy.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use super::step_fit::fit;
use crate::{
    Job, JobOutcome, Progress, Refined, Simulation, SimulationError, SimulationRun, StepModel,
    StepTime,
};
use trail_platform::delivery::Delivery;
use trail_scheduler::limits::MAX_REQUESTS;
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    BLOCK_TOKENS, BlockHash, LogHeader, NewRequest, Plan, RequestId, RequestState, Scheduler,
    StepCost, StepWork,
};

/// The run that a log recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    header: LogHeader,
    /// In order of submission.
    lives: Vec<Life>,
    by_id: HashMap<RequestId, usize>,
    /// Launched steps that are not complete.
    in_flight: VecDeque<Launched>,
    /// Work and nanoseconds of the complete steps.
    steps: Vec<(StepWork, f64)>,
    preemptions: u64,
    evictions: u64,
    swaps_out: u64,
}

/// One request of the log.
#[derive(Clone, Debug)]
struct Life {
    request: NewRequest,
    /// Hashes of its prompt's blocks.
    block_hashes: Vec<BlockHash>,
    /// Predicted remaining tokens, by age.
    predictions: Vec<Option<f32>>,
    /// Output tokens of complete steps.
    tokens: u32,
    /// Times of the first and the last token, seconds.
    first_s: f64,
    last_s: f64,
    delivery: Delivery,
    /// Preemptions, evictions and swaps, once it has ended.
    ended: Option<[u32; 3]>,
}

/// A step in flight.
#[derive(Clone, Debug)]
struct Launched {
    step: u64,
    work: StepWork,
    /// Requests that get a token, by index in `lives`.
    sampled: Vec<usize>,
    /// It computed draft tokens, which no plan has: its time is not that of its work. Steps
    /// whose draft tokens were all wrong are not known.
    has_drafts: bool,
}

impl Recording {
    pub(super) fn new(header: LogHeader) -> Recording {
        Recording {
            header,
            lives: Vec::new(),
            by_id: HashMap::new(),
            in_flight: VecDeque::new(),
            steps: Vec::new(),
            preemptions: 0,
            evictions: 0,
            swaps_out: 0,
        }
    }

    pub(super) fn submitted(&mut self, request: &NewRequest) -> Result<(), String> {
        if self.by_id.insert(request.id, self.lives.len()).is_some() {
            return Err(format!("request {} was submitted before", request.id.0));
        }
        self.lives.push(Life {
            request: *request,
            block_hashes: Vec::new(),
            predictions: Vec::new(),
            tokens: 0,
            first_s: 0.0,
            last_s: 0.0,
            delivery: Delivery::default(),
            ended: None,
        });
        Ok(())
    }

    pub(super) fn hashed(&mut self, id: RequestId, hash: BlockHash) {
        let life = &mut self.lives[self.by_id[&id]];
        if life.block_hashes.len() < (life.request.prompt_tokens / BLOCK_TOKENS) as usize {
            life.block_hashes.push(hash);
        }
    }

    /// The step launched last yielded `tokens` more for a request.
    pub(super) fn accepted(&mut self, id: RequestId, tokens: u32) {
        let life = self.by_id[&id];
        if let Some(step) = self.in_flight.back_mut() {
            step.sampled.extend((0..tokens).map(|_| life));
            step.has_drafts = true;
        }
    }

    pub(super) fn predicted(&mut self, id: RequestId, age: u32, remaining: f32) {
        let life = &mut self.lives[self.by_id[&id]];
        if age < life.request.max_tokens {
            let age = age as usize;
            life.predictions.resize(life.predictions.len().max(age + 1), None);
            life.predictions[age].get_or_insert(remaining);
        }
    }

    pub(super) fn planned(&mut self, plan: &Plan) {
        self.preemptions += plan.preempted.len() as u64;
        self.evictions += plan.evicted.len() as u64;
        self.swaps_out += plan.swap_out.len() as u64;
    }

    /// The last plan of `scheduler` is launched.
    pub(super) fn launched(&mut self, scheduler: &Scheduler) {
        let plan = scheduler.last_plan();
        let (mut work, mut sampled) = (StepWork::default(), Vec::new());
        for row in &plan.rows {
            work.add(row.start, row.len, row.sample);
            let state = scheduler.state(row.idx);
            if row.sample && state.planned {
                sampled.push(self.by_id[&state.id]);
            }
        }
        self.in_flight.push_back(Launched { step: plan.step, work, sampled, has_drafts: false });
    }

    pub(super) fn collected(
        &mut self,
        step: u64,
        end_s: f64,
        duration_s: f64,
    ) -> Result<(), String> {
        let launched = self.in_flight.pop_front().filter(|launched| launched.step == step);
        let launched = launched.ok_or_else(|| format!("step {step} is not in flight"))?;
        if !launched.has_drafts {
            self.steps.push((launched.work, (duration_s * 1e9).max(1.0)));
        }
        for at in launched.sampled {
            let life = &mut self.lives[at];
            if life.tokens == 0 {
                life.first_s = end_s;
            }
            life.delivery.token((end_s * 1e9).round() as u64);
            (life.last_s, life.tokens) = (end_s, life.tokens + 1);
        }
        Ok(())
    }

    pub(super) fn finished(&mut self, state: &RequestState) {
        let at = self.by_id[&state.id];
        self.lives[at].ended = Some([state.preemptions, state.evictions, state.swaps]);
        // One that ends by a stop token has a surplus row in the step in flight; the last of
        // max_tokens is a token.
        if state.generated < state.max_tokens {
            for launched in &mut self.in_flight {
                launched.sampled.retain(|&sampled| sampled != at);
            }
        }
    }

    /// The answered requests: those that ended with a token.
    fn answered(&self) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(|life| life.ended.is_some() && life.tokens > 0)
    }

    /// The recorded run.
    pub fn run(&self) -> SimulationRun {
        let mut outcomes: Vec<(u64, JobOutcome)> =
            self.answered().map(|life| (life.arrival_ns(), life.outcome())).collect();
        outcomes.sort_by_key(|&(arrival_ns, _)| arrival_ns);
        let first_s = outcomes.first().map_or(0.0, |(_, first)| first.arrival_s);
        let end_s = self.answered().map(|life| life.last_s).fold(first_s, f64::max);
        SimulationRun {
            outcomes: outcomes.into_iter().map(|(_, outcome)| outcome).collect(),
            makespan_s: end_s - first_s,
            tokens: self.lives.iter().map(|life| u64::from(life.tokens)).sum(),
            steps: self.steps.len() as u64,
            preemptions: self.preemptions,
            evictions: self.evictions,
            swaps_out: self.swaps_out,
            ..SimulationRun::default()
        }
    }

    /// The answered requests as jobs, in order of arrival. A request that was cancelled counts as
    /// complete where it ended.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs: Vec<Job> = self.answered().map(Life::job).collect();
        jobs.sort_by_key(|job| job.arrival_ns);
        jobs
    }

    /// The step costs that fit the recorded durations best.
    pub fn step_cost(&self) -> StepCost {
        fit(&self.steps)
    }

    /// Runs the answered requests under `policy` on a virtual clock.
    pub fn simulate(
        &self,
        policy: PolicyKind,
        watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<SimulationRun, SimulationError> {
        self.simulation().run(&|| policy.build(), &self.jobs(), watch)
    }

    /// The simulation of [`Recording::jobs`]: the recorded sizes, and steps of
    /// [`Recording::step_cost`].
    pub fn simulation(&self) -> Simulation {
        let mut config = self.header.config;
        // The simulator has no snapshots of recurrent states: any known block is a hit.
        config.marked_blocks = false;
        // A policy that keeps more requests waiting than the recorded one refuses none.
        let answered = self.answered().count().min(MAX_REQUESTS as usize) as u32;
        config.max_requests = config.max_requests.max(answered);
        let time = StepTime::Measured(self.step_cost());
        let block_s = config.block_s;
        let model = StepModel { name: "recorded".into(), time, kv_tokens: None, block_s };
        let max_gap = Duration::from_secs_f64(self.header.max_gap_s);
        Simulation { max_gap, ..Simulation::new(config, model) }
    }
}

impl Life {
    fn arrival_ns(&self) -> u64 {
        (self.request.arrival_s * 1e9).round() as u64
    }

    fn outcome(&self) -> JobOutcome {
        let NewRequest { id, arrival_s, prompt_tokens, .. } = self.request;
        let [preemptions, evictions, swaps] = self.ended.unwrap_or_default();
        JobOutcome {
            id: id.0,
            arrival_s,
            prompt_tokens,
            output_tokens: self.tokens,
            ttft_s: self.first_s - arrival_s,
            latency_s: self.last_s - arrival_s,
            longest_gap_s: self.delivery.longest_gap_s(),
            smooth_s: self.delivery.smooth_s(),
            hold_back_s: self.delivery.hold_back_s(),
            preemptions,
            evictions,
            swaps,
            worker: 0,
        }
    }

    fn job(&self) -> Job {
        let NewRequest { id, prompt_tokens, max_tokens, initial_prediction, priority, .. } =
            self.request;
        Job {
            id: id.0,
            arrival_ns: self.arrival_ns(),
            prompt_tokens,
            output_tokens: self.tokens,
            max_tokens,
            priority,
            r: initial_prediction,
            refined: self.refined(),
            block_hashes: self.block_hashes.as_slice().into(),
        }
    }

    /// The predictions of each age. One that did not arrive is the one before, counted down as the
    /// scheduler does, or the first one counted up.
    fn refined(&self) -> Refined {
        let first = self.predictions.iter().position(Option::is_some);
        let Some((at, Some(value))) = first.map(|at| (at, self.predictions[at])) else {
            return Refined::None;
        };
        let mut last = self.request.initial_prediction.unwrap_or(value + at as f32) + 1.0;
        let of_age = |age| {
            last = self.predictions.get(age).copied().flatten().unwrap_or(last - 1.0);
            last
        };
        Refined::Recorded((0..self.tokens as usize).map(of_age).collect())
    }
}
