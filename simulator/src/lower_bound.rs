//! A mean latency below which no policy can come on given requests, whatever it knows.
//!
//! The cost of a step is bounded from below by a sum over its rows: a step of at most n rows costs
//! each its share of the fixed time, and its own. So a request takes a known part of the machine's
//! time, its *work*, and all requests together get at most one second of it a second. That is one
//! machine with preemption, on which two sums of completion times are known not to be beaten:
//!
//! * shortest remaining work first (Schrage 1968);
//! * for the mean busy times M, shortest work first (Goemans 1997); and a request that gets
//!   one token a step ends at least a known time after M, as its tokens need as many steps:
//!   the parallel batch is what one fast machine lacks (Eastman, Even and Isaacs 1964, for equal
//!   machines).
//!
//! A third bound is the time of each request alone. The KV cache is a second machine: a request
//! holds a share of its tokens for at least the time of its steps. The largest bound counts.
//! Relaxations of this kind: arXiv 2502.07115, 2508.14544.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::job::Job;
use crate::simulation::Simulation;
use crate::step_model::{Roofline, StepTime};
use trail_scheduler::{BLOCK_TOKENS, BlockHash};

/// Weights of the memory time in the maximum of a roofline: each mixture is a bound.
const MIXTURES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// Parts of a step's time, seconds; their sum over its rows is no more than the step takes.
#[derive(Clone, Copy, Debug)]
struct RowCosts {
    fixed: f64,
    decode_row: f64,
    prefill_token: f64,
    /// Per context token of a decode row.
    context_token: f64,
    /// Prompt tokens attend to `context_token` each; otherwise their context is read once.
    prefill_attends: bool,
}

/// A request on one machine.
#[derive(Clone, Copy, Debug)]
struct Task {
    arrival_s: f64,
    /// Machine time that it takes.
    work_s: f64,
    /// Time of its end less its mean busy time, at least.
    tail_s: f64,
}

/// The largest of the bounds on the mean latency of `jobs`, seconds, on one worker of
/// `simulation`; 0 without jobs. No policy is below it, the oracle included.
pub fn lower_bound(simulation: &Simulation, jobs: &[Job]) -> f64 {
    if jobs.is_empty() {
        return 0.0;
    }
    let shared = shared_blocks(jobs);
    let arrivals: f64 = jobs.iter().map(arrival_s).sum();
    let config = &simulation.scheduler;
    let kv_tokens = f64::from(config.num_blocks) * f64::from(BLOCK_TOKENS);
    let mut best = 0.0_f64;
    for costs in RowCosts::of(&simulation.model.time) {
        let (mut alone, mut compute, mut memory) = (0.0, Vec::new(), Vec::new());
        for job in jobs {
            let needs = Needs::of(job, cached(job, &shared), &costs, config.max_running);
            alone += needs.alone_s;
            compute.push(needs.compute);
            memory.push(Task { work_s: needs.memory.work_s / kv_tokens, ..needs.memory });
        }
        for tasks in [&compute, &memory] {
            let by_remaining: f64 = completions(tasks);
            let by_work: f64 = busy_times(tasks) + tasks.iter().map(|of| of.tail_s).sum::<f64>();
            best = best.max(by_remaining - arrivals).max(by_work - arrivals);
        }
        best = best.max(alone);
    }
    best / jobs.len() as f64
}

fn arrival_s(job: &Job) -> f64 {
    job.arrival_ns as f64 * 1e-9
}

/// Number of requests whose prompt has a block.
fn shared_blocks(jobs: &[Job]) -> HashMap<BlockHash, u32> {
    let mut shared = HashMap::new();
    for hash in jobs.iter().flat_map(|job| job.block_hashes.iter()) {
        *shared.entry(*hash).or_default() += 1;
    }
    shared
}

/// Prompt tokens that a prefix cache may spare: of all blocks that another request has too.
fn cached(job: &Job, shared: &HashMap<BlockHash, u32>) -> u32 {
    let blocks = job.block_hashes.iter().take_while(|hash| shared[*hash] > 1).count();
    (blocks as u32 * BLOCK_TOKENS).min(job.prompt_tokens - 1)
}

impl RowCosts {
    fn of(time: &StepTime) -> Vec<RowCosts> {
        // Steps are rounded to nanoseconds.
        let rounded = |fixed: f64| (fixed - 1e-9).max(0.0);
        match *time {
            StepTime::Measured(cost) => vec![RowCosts {
                fixed: rounded(cost.fixed * 1e-9),
                decode_row: cost.decode_row * 1e-9,
                prefill_token: cost.prefill_token * 1e-9,
                context_token: cost.context_token * 1e-9,
                prefill_attends: true,
            }],
            StepTime::Roofline(Roofline { t0_s, weight_s, kv_token_s, token_s }) => MIXTURES
                .map(|memory| RowCosts {
                    fixed: rounded(t0_s + memory * weight_s),
                    decode_row: (1.0 - memory) * token_s,
                    prefill_token: (1.0 - memory) * token_s,
                    context_token: memory * kv_token_s,
                    prefill_attends: false,
                })
                .into(),
        }
    }
}

/// Least time and work of a request.
struct Needs {
    /// Time of its steps, alone.
    alone_s: f64,
    compute: Task,
    /// Its work is KV tokens times seconds.
    memory: Task,
}

impl Needs {
    /// The needs of `job`, `cached` tokens of whose prompt cost nothing, beside at most `rows`
    /// requests in a step.
    fn of(job: &Job, cached: u32, costs: &RowCosts, rows: u32) -> Needs {
        let (prompt, output) = (f64::from(job.prompt_tokens), job.output_tokens);
        let (mut after_s, mut compute, mut memory) = (0.0, [0.0; 2], [0.0; 2]);
        // From the last token back: the work of a step, and the time that is left after it.
        for token in (0..output).rev() {
            let held = prompt + f64::from(token);
            let own = costs.decode_row + costs.context_token * held;
            let step_s = costs.fixed + own;
            let until_end_s = after_s + 0.5 * step_s;
            for (sums, work) in
                [(&mut compute, costs.fixed / f64::from(rows) + own), (&mut memory, held * step_s)]
            {
                sums[0] += work;
                sums[1] += work * until_end_s;
            }
            after_s += step_s;
        }
        let prefill = prompt - 1.0 - f64::from(cached);
        let context = match costs.prefill_attends {
            true => prefill * f64::from(cached) + 0.5 * prefill * (prefill + 1.0),
            // The first step reads the prompt for its sampled row already.
            false => 0.0,
        };
        let prefill_s = costs.prefill_token * prefill + costs.context_token * context;
        compute[0] += prefill_s;
        compute[1] += prefill_s * (after_s + 0.5 * prefill_s);
        let task = |[work_s, weighted]: [f64; 2]| Task {
            arrival_s: arrival_s(job),
            work_s,
            tail_s: weighted / work_s.max(f64::MIN_POSITIVE),
        };
        Needs { alone_s: after_s + prefill_s, compute: task(compute), memory: task(memory) }
    }
}

/// Work by its key, the least first.
#[derive(PartialEq)]
struct Ready {
    key: f64,
    task: usize,
}

impl Eq for Ready {}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> std::cmp::Ordering {
        self.key.total_cmp(&other.key).then(self.task.cmp(&other.task))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Runs `tasks` on one machine, always the ready one of the least key, which is its remaining or
/// its whole work; `ran` gets the task, the start, the duration, and what is left of it.
fn run(tasks: &[Task], by_remaining: bool, mut ran: impl FnMut(usize, f64, f64, f64)) {
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by(|&a, &b| tasks[a].arrival_s.total_cmp(&tasks[b].arrival_s));
    let mut left: Vec<f64> = tasks.iter().map(|task| task.work_s).collect();
    let mut ready = BinaryHeap::new();
    let (mut now_s, mut next) = (0.0_f64, 0);
    loop {
        while next < order.len() && tasks[order[next]].arrival_s <= now_s {
            ready.push(Reverse(Ready { key: left[order[next]], task: order[next] }));
            next += 1;
        }
        let arrival_s = order.get(next).map(|&task| tasks[task].arrival_s);
        let Some(Reverse(Ready { key, task })) = ready.pop() else {
            match arrival_s {
                Some(arrival_s) => now_s = arrival_s,
                None => return,
            }
            continue;
        };
        let until_s = arrival_s.map_or(left[task], |arrival_s| left[task].min(arrival_s - now_s));
        left[task] = if until_s < left[task] { left[task] - until_s } else { 0.0 };
        ran(task, now_s, until_s, left[task]);
        now_s = if left[task] > 0.0 { arrival_s.unwrap_or(now_s) } else { now_s + until_s };
        if left[task] > 0.0 {
            let key = if by_remaining { left[task] } else { key };
            ready.push(Reverse(Ready { key, task }));
        }
    }
}

/// Least sum of completion times on one machine: shortest remaining work first.
fn completions(tasks: &[Task]) -> f64 {
    let mut sum = 0.0;
    run(tasks, true, |_, start_s, seconds, left| {
        sum += if left > 0.0 { 0.0 } else { start_s + seconds };
    });
    sum
}

/// Least sum of mean busy times on one machine: shortest work first.
fn busy_times(tasks: &[Task]) -> f64 {
    let mut sum = 0.0;
    run(tasks, false, |task, start_s, seconds, _| {
        if tasks[task].work_s > 0.0 {
            sum += seconds * (start_s + 0.5 * seconds) / tasks[task].work_s;
        }
    });
    sum
}

#[cfg(test)]
mod tests;
