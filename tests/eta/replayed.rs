//! Recorded requests under a policy, by the steps clock: the calls that the engine makes of the
//! scheduler, without a model.

use std::collections::HashMap;

use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{
    LiveRequest, NewRequest, Prediction, RequestId, RequestIdx, Scheduler, SchedulerConfig,
    StepCost, StepLine, StepWork,
};
use trail_simulator::forecast::{Answer, ArrivalForecast, Forecast, Forecaster, Queue};

/// A request as the engine ran it.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) prompt_tokens: u32,
    pub(crate) length: u32,
    pub(crate) initial: Option<f32>,
    /// The posterior's 10 % quantile, median, 90 % quantile and mean after each token.
    pub(crate) posteriors: Vec<[f32; 4]>,
}

/// Times of a request, seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// NaN for one that was refused, cut off or given up.
    pub(crate) last_s: f64,
}

/// An estimate, and the age at which it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) at_s: f64,
    pub(crate) age: u32,
    pub(crate) forecast: Forecast,
}

/// Sizes and costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) config: SchedulerConfig,
    pub(crate) cost: StepCost,
    /// Seconds between two estimates.
    pub(crate) every_s: f64,
    /// Time at which all live requests are cut off; infinite for none.
    pub(crate) cut_s: f64,
    /// Seconds after its arrival in which a request is to end: it is refused if that has less than
    /// 90 %, and given up later; infinite for no limit.
    pub(crate) deadline_s: f64,
    /// Number of priorities that requests have in turn, from -1.
    pub(crate) priorities: usize,
}

/// A run: the times of each request, and the estimates given meanwhile.
pub(crate) struct Run {
    pub(crate) times: Vec<Times>,
    pub(crate) given: Vec<Vec<Given>>,
    /// Arrivals, seconds, and what was estimated then.
    pub(crate) on_arrival: Vec<Option<(f64, ArrivalForecast)>>,
    /// True for each request that was admitted.
    pub(crate) admitted: Vec<bool>,
    /// Times, and the seconds to the next end of a request that were estimated then.
    pub(crate) next_ends: Vec<(f64, f64)>,
}

struct Replay<'a> {
    requests: &'a [Recorded],
    sizes: Sizes,
    scheduler: Scheduler,
    forecaster: Forecaster,
    queue: Queue,
    line: StepLine,
    /// By request of the scheduler.
    at: HashMap<RequestIdx, usize>,
    now_ns: u64,
    step: u64,
    run: Run,
}

/// Runs `requests`, which arrive at `arrivals` seconds.
pub(crate) fn replay(
    requests: &[Recorded],
    arrivals: &[f64],
    policy: PolicyKind,
    sizes: Sizes,
) -> Run {
    let scheduler = Scheduler::new(sizes.config, policy.build()).expect("valid sizes");
    let mut replay = Replay {
        requests,
        sizes,
        scheduler,
        forecaster: Forecaster::new(7),
        queue: Queue::new(&sizes.config, policy),
        line: StepLine::default(),
        at: HashMap::new(),
        now_ns: 0,
        step: 0,
        run: Run {
            times: vec![Times::default(); requests.len()],
            given: vec![Vec::new(); requests.len()],
            on_arrival: vec![None; requests.len()],
            admitted: vec![false; requests.len()],
            next_ends: Vec::new(),
        },
    };
    let (mut next, mut estimate_s) = (0, 0.0);
    while next < requests.len() || replay.scheduler.live() > 0 {
        if replay.scheduler.live() == 0 {
            replay.now_ns = replay.now_ns.max((arrivals[next] * 1e9) as u64 + 1);
        }
        replay.cut_if_due();
        while next < requests.len() && arrivals[next] <= replay.now_s() {
            replay.submit(next, arrivals[next]);
            next += 1;
        }
        replay.step();
        if replay.now_s() >= estimate_s {
            estimate_s = replay.now_s() + sizes.every_s;
            replay.estimate();
        }
    }
    replay.run
}

impl Replay<'_> {
    fn now_s(&self) -> f64 {
        self.now_ns as f64 * 1e-9
    }

    fn submit(&mut self, at: usize, arrival_s: f64) {
        let Recorded { prompt_tokens, length, initial, .. } = self.requests[at];
        let request = NewRequest {
            id: RequestId(at as u64),
            prompt_tokens,
            max_tokens: self.sizes.config.max_context - prompt_tokens,
            arrival_s,
            initial_prediction: initial,
            true_length: Some(length),
            priority: self.priority(at),
            ..NewRequest::default()
        };
        let arrivals = self.forecaster.arrivals(&self.queue);
        let max_tokens = request.max_tokens;
        let estimate = arrivals.estimate(prompt_tokens, max_tokens, initial, request.priority);
        if self.scheduler.live() > self.sizes.config.max_running as usize {
            self.run.next_ends.push((arrival_s, arrivals.next_end_s()));
        }
        if estimate.is_some_and(|of| of.last.high > self.sizes.deadline_s) {
            self.run.times[at] = Times { last_s: f64::NAN };
            return;
        }
        self.run.admitted[at] = true;
        let idx = self.scheduler.submit(request).expect("it fits");
        self.at.insert(idx, at);
        self.forecaster.arrived(at as u64, arrival_s, estimate.as_ref());
        self.run.on_arrival[at] = estimate.map(|estimate| (arrival_s, estimate));
    }

    fn priority(&self, at: usize) -> i32 {
        match self.sizes.priorities {
            1 => 0,
            count => (at % count) as i32 - 1,
        }
    }

    /// Ends all live requests without an answer, once.
    fn cut_if_due(&mut self) {
        if self.now_s() < self.sizes.cut_s {
            return;
        }
        self.sizes.cut_s = f64::INFINITY;
        let mut live: Vec<_> = self.at.values().copied().collect();
        live.sort_unstable();
        live.into_iter().for_each(|at| self.give_up(at));
    }

    /// Ends a live request without an answer.
    fn give_up(&mut self, at: usize) {
        let idx = self.at.iter().find(|&(_, of)| *of == at).map(|(&idx, _)| idx);
        let idx = idx.expect("it is live");
        self.at.remove(&idx);
        self.scheduler.finish(idx);
        self.run.times[at].last_s = f64::NAN;
        self.forecaster.ended(at as u64, self.now_s(), None);
    }

    fn step(&mut self) {
        if self.scheduler.live() == 0 {
            return;
        }
        self.step += 1;
        self.scheduler.plan(self.step, self.now_s());
        let rows = self.scheduler.last_plan().rows.clone();
        let mut work = StepWork::default();
        rows.iter().for_each(|row| work.add(row.start, row.len, row.sample));
        let ns = self.sizes.cost.ns(&work);
        self.scheduler.advance();
        self.now_ns += ns;
        if rows.iter().all(|row| row.sample) {
            self.line.record(rows.len(), ns);
        }
        let mut ended = Vec::new();
        for row in rows.iter().filter(|row| row.sample) {
            let state = self.scheduler.state(row.idx);
            let (generated, generation) = (state.generated, state.generation);
            let at = self.at[&row.idx];
            let recorded = &self.requests[at];
            if generated == 1 {
                self.forecaster.began(at as u64, self.now_s());
            }
            if generated == recorded.length {
                ended.push((row.idx, at));
            } else if let Some(&[p10, p50, p90, remaining]) =
                recorded.posteriors.get(generated as usize - 1)
            {
                let step = self.step + 1;
                let read = Prediction { remaining, p10, p50, p90, step, generation };
                self.scheduler.predict(row.idx, read);
            }
        }
        for (idx, at) in ended {
            self.scheduler.finish(idx);
            self.at.remove(&idx);
            self.run.times[at].last_s = self.now_s();
            let Recorded { prompt_tokens, length, initial, .. } = self.requests[at];
            let priority = self.priority(at);
            let answer = Answer { prompt_tokens, length, predicted: initial, priority };
            self.forecaster.ended(at as u64, self.now_s(), Some(answer));
        }
    }

    fn estimate(&mut self) {
        let now_s = self.now_s();
        let mut requests: Vec<LiveRequest> = self.scheduler.live_requests().collect();
        requests.sort_by_key(|request| request.key);
        let pace = self.line.pace(self.sizes.cost.prefill_token * 1e-9);
        let overdue_after_s = self.scheduler.policy().overdue_after_s();
        self.queue = Queue { now_s, requests, pace, overdue_after_s, ..self.queue.clone() };
        let forecasts = self.forecaster.estimate(&self.queue);
        let mut late = Vec::new();
        for (&forecast, request) in forecasts.iter().zip(&self.queue.requests) {
            let (age, id) = (request.generated, forecast.id as usize);
            self.run.given[id].push(Given { at_s: now_s, age, forecast });
            let left_s = self.sizes.deadline_s - (now_s - request.arrival_s);
            late.extend((left_s < forecast.last.low.max(0.0)).then_some(id));
        }
        late.into_iter().for_each(|at| self.give_up(at));
    }
}
