//! Times of live requests, estimated before they come: intervals of 80 % hold in 74 to 87 % of the
//! cases, at loads below and above the capacity, for waiting and for running requests.
//!
//! The demo model answers once; its lengths and posteriors then run under policies and loads by the
//! steps clock. Exact and seeded.

mod replayed;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use clap::Parser;
use trail_cli::drive::{self, TimedRequest};
use trail_cli::{EngineArgs, ModelArgs, Setup};
use trail_runtime::engine::{
    LiveSnapshot, PolicyKind, Request, SamplingParams, StepClock, StepCost,
};
use trail_scheduler::SchedulerConfig;
use trail_scheduler::rng::Rng;
use trail_simulator::arrivals::Arrivals;
use trail_simulator::forecast::Interval;

use replayed::{Recorded, Run, Sizes, replay};

/// Requests that the engine answers, and their most tokens.
const REQUESTS: usize = 300;
const MAX_TOKENS: u32 = 512;

/// Arrivals of a run: each of those several times.
const ARRIVALS: usize = 1500;
const RUNNING: u32 = 16;

/// Output tokens at which an estimate of each request is counted.
const AGES: [u32; 4] = [0, 1, 16, 64];

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Bundled prompts over and over with other seeds, all at once.
fn jobs(setup: &Setup) -> Vec<TimedRequest> {
    let file = setup.folder.join("prompts.jsonl");
    let text = std::fs::read_to_string(file).expect("the bundled prompts");
    let lines = text.lines().cycle().zip(0..).take(REQUESTS);
    lines
        .map(|(line, seed)| {
            let prompt: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let text = prompt["prompt"].as_str().expect("a text");
            let tokens = setup.user_prompt(text).expect("tokens");
            let sampling = SamplingParams { seed, ..SamplingParams::default() };
            let request = Request { sampling, ..Request::new(tokens, MAX_TOKENS) };
            TimedRequest::first(request, 0.0)
        })
        .collect()
}

/// The requests as the engine runs them.
fn recorded() -> (Vec<Recorded>, StepCost) {
    // Products in bf16, where a machine has them, round otherwise, and the answers are sampled: the
    // same on every machine.
    let isa = if cfg!(target_arch = "x86_64") { "avx2" } else { "auto" };
    let options = ["eta", "--device", "cpu", "--threads", "2", "--isa", isa];
    let options = Options::parse_from(options);
    let setup = Setup::load(&options.model).expect("the bundled model");
    let jobs = jobs(&setup);
    let cost = setup.step_cost(None).expect("the bundled step costs");
    let clock = Arc::new(StepClock::new(cost));
    let policy: PolicyKind = "trail".parse().expect("a policy");
    let mut engine = setup
        .stepped_engine_with(&options.engine, policy, jobs.len(), None, clock.clone())
        .expect("an engine");
    let mut snapshot = LiveSnapshot::default();
    let mut posteriors: HashMap<(u64, u32), [f32; 4]> = HashMap::new();
    let mut initial: HashMap<u64, Option<f32>> = HashMap::new();
    let run = drive::run_on_step_clock(&mut engine, &clock, &jobs, |_, engine| {
        if engine.live_board().take(&mut snapshot) {
            for request in &snapshot.requests {
                initial.entry(request.id.0).or_insert(request.first_prediction);
                if let (Some([p10, p50, p90]), Some(mean)) = (request.quantiles, request.remaining)
                {
                    let key = (request.id.0, request.generated);
                    posteriors.insert(key, [p10, p50, p90, mean]);
                }
            }
        }
        engine.live_board().ask();
    });
    let outcomes = run.expect("a run").outcomes.into_iter();
    let requests = outcomes.zip(&jobs).zip(0..).map(|((outcome, job), id)| {
        let length = outcome.tokens.len() as u32;
        Recorded {
            prompt_tokens: job.request.prompt.len() as u32,
            length,
            initial: initial[&id],
            posteriors: (1..length).map_while(|age| posteriors.get(&(id, age)).copied()).collect(),
        }
    });
    (requests.collect(), cost)
}

/// Seconds of the batch's time that a request takes, in the mean.
fn service_s(requests: &[Recorded], cost: &StepCost, running: u32) -> f64 {
    let mean = |of: fn(&Recorded) -> u32| {
        requests.iter().map(|request| f64::from(of(request))).sum::<f64>() / requests.len() as f64
    };
    let (prompt, length) = (mean(|of| of.prompt_tokens), mean(|of| of.length));
    let running = f64::from(running);
    let context = running * (prompt + length / 2.0) * cost.context_token;
    let step = cost.fixed + running * cost.decode_row + context;
    (length * step / running + prompt * cost.prefill_token) * 1e-9
}

/// Numbers of estimates by whether they held: of first and last tokens at each of [`AGES`].
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    held: u32,
    all: u32,
}

impl Counts {
    fn add(&mut self, interval: Interval, seconds: f64) {
        self.held += u32::from(interval.contains(seconds));
        self.all += 1;
    }

    fn share(&self) -> f64 {
        f64::from(self.held) / f64::from(self.all)
    }
}

/// Coverage of the estimates of `run` when a request reached each of [`AGES`], after the first
/// requests, which teach the forecaster.
fn coverage(run: &Run) -> [Counts; AGES.len()] {
    let mut counts = [Counts::default(); AGES.len()];
    for (times, given) in run.times.iter().zip(&run.given).skip(run.times.len() / 8) {
        for (age, counts) in AGES.iter().zip(&mut counts) {
            if let Some(given) = given.iter().find(|given| given.age >= *age) {
                counts.add(given.forecast.last, times.last_s - given.at_s);
            }
        }
    }
    counts
}

/// Coverage of the estimates on arrival.
fn coverage_on_arrival(run: &Run) -> Counts {
    let mut counts = Counts::default();
    let given = run.times.iter().zip(&run.on_arrival).skip(run.times.len() / 8);
    for (times, (arrival_s, estimate)) in
        given.filter_map(|(of, given)| Some((of, given.as_ref()?)))
    {
        counts.add(estimate.last, times.last_s - arrival_s);
    }
    counts
}

static RECORDED: LazyLock<(Vec<Recorded>, StepCost)> = LazyLock::new(recorded);

/// `arrivals` requests, the recorded ones over and over, with the sizes of a run and the seconds of
/// the batch's time that one takes.
fn setting(arrivals: usize) -> (Vec<Recorded>, Sizes, f64) {
    let (requests, cost) = &*RECORDED;
    let config = SchedulerConfig { max_running: RUNNING, ..SchedulerConfig::default() };
    let sizes = Sizes {
        config,
        cost: *cost,
        every_s: 0.1,
        cut_s: f64::INFINITY,
        deadline_s: f64::INFINITY,
        priorities: 1,
    };
    let service_s = service_s(requests, cost, RUNNING);
    (requests.iter().cycle().take(arrivals).cloned().collect(), sizes, service_s)
}

#[test]
fn intervals_hold_as_often_as_they_say() {
    let (requests, sizes, service_s) = setting(ARRIVALS);
    for policy in ["fcfs", "sjf", "trail"] {
        for load in [0.6, 0.9, 1.1, 1.5] {
            let arrivals = Arrivals::Poisson { rate: load / service_s };
            let arrivals = arrivals.seconds(ARRIVALS, &mut Rng::new(5));
            let run = replay(&requests, &arrivals, policy.parse().expect("a policy"), sizes);
            let counts = coverage(&run);
            let shares = counts.map(|counts| counts.share());
            let arrivals = coverage_on_arrival(&run).share();
            println!("{policy} at load {load}: {shares:.2?}, on arrival {arrivals:.2}");
            let sum = |of: fn(&Counts) -> u32| counts.iter().map(of).sum();
            let all = Counts { held: sum(|of| of.held), all: sum(|of| of.all) };
            assert!((0.74..0.87).contains(&all.share()), "{policy} {load}: {all:?}");
            assert!(shares.iter().all(|share| (0.72..0.92).contains(share)), "{shares:?}");
            assert!((0.70..0.90).contains(&arrivals), "{arrivals}");
        }
    }
}

/// Requests of three priorities in turn: the last ones wait for the longest.
#[test]
fn intervals_hold_for_every_priority() {
    let (requests, sizes, service_s) = setting(ARRIVALS);
    let sizes = Sizes { priorities: 3, ..sizes };
    let arrivals = Arrivals::Poisson { rate: 1.1 / service_s };
    let arrivals = arrivals.seconds(ARRIVALS, &mut Rng::new(7));
    for policy in ["fcfs", "sjf", "trail"] {
        let run = replay(&requests, &arrivals, policy.parse().expect("a policy"), sizes);
        let share = |priority: usize| {
            let mut counts = Counts::default();
            for at in (ARRIVALS / 8..ARRIVALS).filter(|at| at % 3 == priority) {
                if let Some(given) = run.given[at].first() {
                    counts.add(given.forecast.last, run.times[at].last_s - given.at_s);
                }
            }
            counts.share()
        };
        let shares = [0, 1, 2].map(share);
        println!("{policy}, priorities -1, 0, 1: {shares:.2?}");
        assert!(shares.iter().all(|share| (0.5..0.97).contains(share)), "{policy}: {shares:?}");
    }
}

/// Loads one after the other, and the requests that arrive in each.
const PHASES: [(f64, usize); 4] = [(0.15, 150), (1.8, 400), (0.15, 300), (0.9, 400)];

/// Corrections learned in a queue of minutes say nothing about an empty one.
#[test]
fn estimates_stay_sane_when_the_load_changes() {
    let all = PHASES.iter().map(|&(_, count)| count).sum();
    let (requests, sizes, service_s) = setting(all);
    let (mut arrivals, mut at_s, mut rng) = (Vec::new(), 0.0, Rng::new(9));
    for (load, count) in PHASES {
        for _ in 0..count {
            at_s += rng.exponential() * service_s / load;
            arrivals.push(at_s);
        }
    }
    let overload_end = arrivals[PHASES[0].1 + PHASES[1].1];
    for (policy, cut_s) in
        [("fcfs", f64::INFINITY), ("trail", f64::INFINITY), ("trail", overload_end)]
    {
        let sizes = Sizes { cut_s, ..sizes };
        let run = replay(&requests, &arrivals, policy.parse().expect("a policy"), sizes);
        let mut begin = 0;
        for (load, count) in PHASES {
            let (mut counts, mut wild) = (Counts::default(), 0);
            for at in begin..begin + count {
                let last_s = run.times[at].last_s;
                for given in run.given[at].iter().filter(|_| last_s.is_finite()) {
                    let Interval { median, high, .. } = given.forecast.last;
                    let seconds = last_s - given.at_s;
                    counts.add(given.forecast.last, seconds);
                    let is_wild = median > 5.0 * seconds + 0.5 || high > 20.0 * seconds + 2.0;
                    wild += u32::from(is_wild);
                }
            }
            begin += count;
            let (share, wild) = (counts.share(), f64::from(wild) / f64::from(counts.all));
            println!("{policy} at load {load}, cut at {cut_s:.0} s: {share:.2}, wild {wild:.3}");
            assert!((0.6..0.95).contains(&share) && wild < 0.05, "{policy} {load}");
        }
    }
}

/// Of the requests that are admitted with a deadline at least 90 % meet it, and more meet it than
/// where all are admitted.
#[test]
fn deadlines_of_those_admitted_are_met() {
    let (requests, sizes, service_s) = setting(ARRIVALS);
    let arrivals = Arrivals::Poisson { rate: 1.3 / service_s };
    let arrivals = arrivals.seconds(ARRIVALS, &mut Rng::new(11));
    for policy in ["fcfs", "trail"] {
        let kind: PolicyKind = policy.parse().expect("a policy");
        for deadline_s in [1.0, 2.5] {
            let all = replay(&requests, &arrivals, kind, sizes);
            let run = replay(&requests, &arrivals, kind, Sizes { deadline_s, ..sizes });
            let met = |run: &Run| {
                let latency_s = run.times.iter().zip(&arrivals).map(|(of, at_s)| of.last_s - at_s);
                latency_s.filter(|&seconds| seconds <= deadline_s).count() as f64
            };
            let admitted = run.admitted.iter().filter(|&&of| of).count() as f64;
            let share = met(&run) / admitted;
            println!(
                "{policy}, {deadline_s} s: {admitted} admitted, {share:.3} of these in time; {} of \
                 all {}",
                met(&all),
                arrivals.len()
            );
            assert!(share >= 0.9 && met(&run) > met(&all), "{policy} {deadline_s}: {share}");
        }
    }
}

/// Where requests wait, the time to the next end is right within 25 % in the median.
#[test]
fn a_refused_request_hears_when_the_next_one_ends() {
    let (requests, sizes, service_s) = setting(ARRIVALS);
    let arrivals = Arrivals::Poisson { rate: 1.3 / service_s };
    let arrivals = arrivals.seconds(ARRIVALS, &mut Rng::new(12));
    for policy in ["fcfs", "sjf", "trail"] {
        let run = replay(&requests, &arrivals, policy.parse().expect("a policy"), sizes);
        let mut ends: Vec<f64> = run.times.iter().map(|of| of.last_s).collect();
        ends.sort_by(f64::total_cmp);
        let actual = |at_s: f64| ends[ends.partition_point(|&end_s| end_s <= at_s)] - at_s;
        let ratios = run.next_ends.iter().map(|&(at_s, estimated_s)| estimated_s / actual(at_s));
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        let mut errors: Vec<f64> = ratios.iter().map(|ratio| (ratio - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        println!(
            "{policy}: estimated over actual seconds {median:.2} in the median of {}; error of one \
             {:.2} in the median",
            ratios.len(),
            errors[errors.len() / 2]
        );
        assert!((0.75..1.25).contains(&median), "{policy}: {median}");
    }
}
