//! One possible future of a queue.
//!
//! A coarse simulation in events instead of steps: a place in the batch is taken by the next
//! request in the order, held for as many steps as tokens are left, and given up at the end, or
//! earlier for a shorter one. Prefill stops all others for its time. Requests go on arriving as
//! they did.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use trail_platform::rng::Rng;
use trail_scheduler::policies::Ranking;
use trail_scheduler::{Key, LiveRequest, Phase};

use super::history::History;
use super::queue::{Queue, QueueOrder};
use super::task::{Ordered, Task, remaining};

/// Arrivals of a sample for each request of the queue, and more.
const ARRIVALS: (usize, usize) = (3, 200);

/// Share of the predicted length during which a request may be preempted: TRAIL's default.
const PREEMPTABLE: f64 = 0.8;

/// Added to the rank of a request that precedes the overdue, and of one that keeps its place.
const EXPRESS: f64 = -1e9;
const PINNED: f64 = -1e13;

/// Added to the rank for each priority.
pub(super) const PRIORITY: f64 = 1e10;

/// Spread of the error that all lengths of a sample have in common, as a logarithm: errors of
/// single requests cancel in a queue, and those of predictor, traffic and step times do not.
const COMMON: f64 = 0.15;

/// Spread of the belief about a length at the end of a burn-in, as a logarithm.
const BELIEF: f64 = 0.5;

/// Seconds by which the bound falls per second (the scheduler's `tail_bound`).
const FORGET: f64 = 0.1;

/// Seconds from now to the first and the last token of each request of the queue. The first is 0
/// for one that has it.
pub(super) type Times = Vec<[f64; 2]>;

/// A future, drawn.
pub(super) struct Sample<'a> {
    queue: &'a Queue,
    history: &'a History,
    rng: &'a mut Rng,
    tasks: Vec<Task>,
    times: Times,
    /// Those in the batch.
    placed: Vec<usize>,
    /// By the count of tokens at which they end.
    ends: BinaryHeap<Reverse<(Ordered, usize, u32)>>,
    waiting: BinaryHeap<Reverse<(Ordered, usize)>>,
    by_arrival: VecDeque<usize>,
    kv: f64,
    /// Output tokens that all have left, without those that the batch has got since.
    backlog: f64,
    /// Time in the system after which a request is overdue, seconds; infinite without a bound.
    overdue_s: f64,
    /// Common error of all lengths.
    length_scale: f64,
    /// Predicted length below which a request precedes the overdue, and the trial of a new one.
    express: f64,
    trial: f64,
    now_s: f64,
    /// Tokens that a request in the batch since the beginning has got.
    tokens: f64,
}

impl<'a> Sample<'a> {
    /// Draws the times of `queue`'s requests.
    pub(super) fn draw(queue: &'a Queue, history: &'a History, rng: &'a mut Rng) -> Times {
        let Ranking { express, min_run_tokens, tail_bound, .. } = queue.ranking;
        let is_bounded = tail_bound > 0.0 && queue.order != QueueOrder::Arrival;
        let (mean, found) = history.found_short(f64::from(express));
        let express = if is_bounded { f64::from(express) * mean } else { 0.0 };
        let trial = f64::from(min_run_tokens);
        let preempts = queue.order == (QueueOrder::Length { preempts: true });
        let mut sample = Sample {
            overdue_s: queue.overdue_after_s.filter(|_| is_bounded).unwrap_or(f64::INFINITY),
            express,
            trial: if preempts && trial < express * found { trial } else { 0.0 },
            queue,
            history,
            rng,
            tasks: Vec::with_capacity(2 * queue.requests.len()),
            times: vec![[0.0; 2]; queue.requests.len()],
            placed: Vec::with_capacity(queue.max_running),
            ends: BinaryHeap::new(),
            waiting: BinaryHeap::new(),
            by_arrival: VecDeque::new(),
            kv: 0.0,
            backlog: 0.0,
            length_scale: 1.0,
            now_s: 0.0,
            tokens: 0.0,
        };
        sample.length_scale = (COMMON * sample.rng.normal()).exp();
        sample.begin();
        sample.run();
        sample.times
    }

    /// The requests of the queue; those that run keep their places.
    fn begin(&mut self) {
        let queue = self.queue;
        let mut by_arrival: Vec<usize> = Vec::new();
        for (at, request) in queue.requests.iter().enumerate() {
            let task = self.live(at, request);
            self.backlog += task.left;
            self.tasks.push(task);
            match request.phase {
                Phase::Running => self.place(at),
                _ => {
                    self.waiting.push(Reverse((Ordered(task.rank), at)));
                    by_arrival.push(at);
                }
            }
        }
        by_arrival.sort_by(|&a, &b| self.tasks[a].arrival_s.total_cmp(&self.tasks[b].arrival_s));
        self.by_arrival = by_arrival.into();
    }

    fn live(&mut self, at: usize, request: &LiveRequest) -> Task {
        let left = self.length_scale * remaining(request, self.history, self.rng);
        let known = f64::from(request.prompt_tokens + request.generated);
        let expected = request.remaining.map_or(left, f64::from);
        let class = request.key.class();
        let first = request.first_prediction.map_or(expected, f64::from);
        let preemptable = PREEMPTABLE * first - f64::from(request.generated);
        // A burn-in protects for a few tokens only.
        let burns_in = request.phase == Phase::Running && preemptable > 0.0;
        let priority = PRIORITY * f64::from(request.priority);
        let rank = match (self.queue.order, class) {
            (_, ..Key::EXPRESS) if !burns_in => PINNED + at as f64,
            (QueueOrder::Arrival, _) => priority + at as f64,
            (_, Key::EXPRESS) => priority + EXPRESS + expected,
            _ => priority + expected,
        };
        let is_express = class == Key::EXPRESS && expected >= self.express;
        let trial = self.trial - f64::from(request.generated);
        Task {
            left,
            rank,
            priority,
            prefill: f64::from(request.uncomputed() - 1),
            kv: known + 0.5 * left,
            arrival_s: request.arrival_s - self.queue.now_s,
            preemptable,
            is_new: request.generated == 0,
            trial: if is_express { trial.max(0.0) } else { 0.0 },
            is_overdue: class == Key::OVERDUE && self.overdue_s.is_finite(),
            since: None,
            version: 0,
            ended: false,
        }
    }

    /// Lets time pass until the requests of the queue have ended.
    fn run(&mut self) {
        let live = self.queue.requests.len();
        let rate = self.history.rate(self.queue.now_s);
        let mut arrivals_left = if rate > 0.0 { ARRIVALS.0 * live + ARRIVALS.1 } else { 0 };
        let mut arrival_s = self.rng.exponential() / rate;
        let end_s = self.history.goes_on_s(self.queue.now_s, self.rng);
        let mut open = live;
        self.fill();
        while open > 0 {
            let Some((next_s, task)) = self.next_end() else { break };
            if arrivals_left > 0 && arrival_s < next_s.min(end_s) {
                arrivals_left -= 1;
                self.pass_until(arrival_s);
                self.arrive();
                arrival_s = self.now_s.max(arrival_s) + self.rng.exponential() / rate;
            } else {
                self.pass_until(next_s);
                if self.end(task) {
                    open -= usize::from(task < live);
                }
            }
            self.fill();
        }
    }

    fn step_s(&self) -> f64 {
        self.queue.pace.step_s(self.placed.len()).max(1e-9)
    }

    /// Time of the next end, and whose.
    fn next_end(&mut self) -> Option<(f64, usize)> {
        while let Some(&Reverse((Ordered(at), task, version))) = self.ends.peek() {
            if self.tasks[task].version == version {
                return Some((self.now_s + (at - self.tokens).max(0.0) * self.step_s(), task));
            }
            self.ends.pop();
        }
        None
    }

    fn pass_until(&mut self, at_s: f64) {
        let elapsed_s = (at_s - self.now_s).max(0.0);
        let tokens = elapsed_s / self.step_s();
        self.tokens += tokens;
        self.now_s += elapsed_s;
        self.backlog -= tokens * self.placed.len() as f64;
        if self.overdue_s.is_finite() {
            let places = self.queue.max_running;
            let drain_s = self.backlog * self.queue.pace.step_s(places) / places as f64;
            let share = f64::from(self.queue.ranking.tail_bound);
            self.overdue_s = (self.overdue_s - share * FORGET * elapsed_s).max(share * drain_s);
        }
    }

    /// Gives places to those next in the order.
    fn fill(&mut self) {
        while self.placed.len() < self.queue.max_running {
            let Some(next) = self.next_waiting() else { break };
            let fits = self.kv + self.tasks[next].kv <= self.queue.kv_tokens;
            if !self.placed.is_empty() && !fits {
                break;
            }
            self.place(next);
        }
    }

    /// The first that precedes the overdue, the first overdue one, or else the first in the order.
    fn next_waiting(&mut self) -> Option<usize> {
        let is_open = |task: &Task| task.since.is_none() && !task.ended;
        while self.by_arrival.front().is_some_and(|&at| !is_open(&self.tasks[at])) {
            self.by_arrival.pop_front();
        }
        while let Some(&Reverse((Ordered(rank), at))) = self.waiting.peek()
            && !(is_open(&self.tasks[at]) && self.tasks[at].rank == rank)
        {
            self.waiting.pop();
        }
        let first = self.waiting.peek().map(|&Reverse((_, at))| at);
        let priority = first.map_or(0.0, |at| self.tasks[at].priority);
        let overdue = self.by_arrival.front().copied().filter(|&at| {
            let task = &self.tasks[at];
            let is_late = task.is_overdue || self.now_s - task.arrival_s > self.overdue_s;
            is_late && task.priority <= priority
        });
        let is_before = |&at: &usize| self.tasks[at].rank - priority < 0.5 * EXPRESS;
        let before = first.filter(|_| self.overdue_s.is_finite()).filter(is_before);
        before.or(overdue).or(first)
    }

    fn place(&mut self, at: usize) {
        let pace = &self.queue.pace;
        let task = &mut self.tasks[at];
        self.now_s += pace.prefill_token_s * task.prefill;
        task.prefill = 0.0;
        task.since = Some(self.tokens);
        self.kv += task.kv;
        let next = if task.trial > 0.0 { task.left.min(task.trial) } else { task.left };
        self.ends.push(Reverse((Ordered(self.tokens + next), at, task.version)));
        self.placed.push(at);
        let step_s = self.step_s();
        if std::mem::take(&mut self.tasks[at].is_new)
            && let Some(times) = self.times.get_mut(at)
        {
            times[0] = self.now_s + step_s;
        }
    }

    /// Takes the place of `at` away.
    fn leave(&mut self, at: usize) {
        self.placed.retain(|&placed| placed != at);
        let task = &mut self.tasks[at];
        let got = self.tokens - task.since.take().unwrap_or(self.tokens);
        task.left -= got;
        task.rank -= got;
        task.preemptable -= got;
        task.version += 1;
        self.kv -= task.kv;
    }

    /// Ends a request, or its trial: then it waits at its place. True for the request's end.
    fn end(&mut self, at: usize) -> bool {
        self.leave(at);
        let task = &mut self.tasks[at];
        if task.left > 1e-6 {
            task.trial = 0.0;
            task.rank = task.priority + task.left * (BELIEF * self.rng.normal()).exp();
            self.wait(at);
            return false;
        }
        task.ended = true;
        if let Some(times) = self.times.get_mut(at) {
            times[1] = self.now_s;
        }
        true
    }

    /// Puts a request that has left the batch among those that wait.
    fn wait(&mut self, at: usize) {
        self.waiting.push(Reverse((Ordered(self.tasks[at].rank), at)));
        let arrival_s = self.tasks[at].arrival_s;
        let place = self.by_arrival.partition_point(|&of| self.tasks[of].arrival_s <= arrival_s);
        self.by_arrival.insert(place, at);
    }

    /// A request arrives, and may take the place of a longer one.
    fn arrive(&mut self) {
        let Some(like) = self.history.draw(self.rng) else { return };
        let length = self.length_scale * f64::from(like.length);
        let predicted = like.predicted.map_or(length, f64::from);
        let at = self.tasks.len();
        let priority = PRIORITY * f64::from(like.priority);
        let rank = match self.queue.order {
            QueueOrder::Arrival => priority + at as f64,
            QueueOrder::Length { .. } if predicted < self.express || self.trial > 0.0 => {
                priority + EXPRESS + predicted
            }
            QueueOrder::Length { .. } => priority + predicted,
        };
        self.backlog += length;
        let prefill = f64::from(like.prompt_tokens);
        self.tasks.push(Task {
            left: length,
            rank,
            priority,
            prefill,
            kv: prefill + 0.5 * length,
            arrival_s: self.now_s,
            preemptable: PREEMPTABLE * predicted,
            is_new: true,
            trial: if predicted < self.express { 0.0 } else { self.trial },
            is_overdue: false,
            since: None,
            version: 0,
            ended: false,
        });
        self.waiting.push(Reverse((Ordered(rank), at)));
        self.by_arrival.push_back(at);
        let is_full = self.placed.len() >= self.queue.max_running;
        if is_full && self.queue.order == (QueueOrder::Length { preempts: true }) {
            self.preempt_for(rank);
        }
    }

    /// Takes the place of the request that is ranked last, if that is behind `rank`.
    fn preempt_for(&mut self, rank: f64) {
        let tokens = self.tokens;
        let got = |task: &Task| tokens - task.since.unwrap_or(tokens);
        let last = (self.placed.iter().copied())
            .filter(|&at| got(&self.tasks[at]) < self.tasks[at].preemptable)
            .map(|at| (Ordered(self.tasks[at].rank - got(&self.tasks[at])), at))
            .max();
        let Some((_, at)) = last.filter(|&(Ordered(last), _)| last > rank) else { return };
        self.leave(at);
        self.wait(at);
    }
}
