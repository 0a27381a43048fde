//! The decision log of an engine replays to the same decisions, and simulates its run.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use trail_probe::Probe;
use trail_runtime::engine::{
    Clock, CpuSettings, EngineConfig, Event, PolicyKind, QueueConfig, Request, RequestHandle,
    StepClock, StepCost, StepOutcome, SteppedEngine,
};
use trail_runtime::model::{Dtype, Model};
use trail_scheduler::log::LogEvent;
use trail_scheduler::policies::{Ranking, Trail};
use trail_scheduler::{Action, DecisionLog, LogHeader, LogSink};
use trail_simulator::replay::{Replay, ReplayError};

const COST: StepCost = StepCost {
    fixed: 1e5,
    decode_row: 2e4,
    prefill_token: 1e4,
    context_token: 10.0,
    experts: None,
};

/// More steps than any run needs.
const MAX_STEPS: usize = 100_000;

/// Collects the lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl Lines {
    fn push(&self, line: &str) {
        let mut text = self.0.lock().expect("one writer");
        *text += line;
        *text += "\n";
    }

    fn text(&self) -> String {
        self.0.lock().expect("one writer").clone()
    }
}

impl LogSink for Lines {
    fn begin(&mut self, header: &LogHeader) {
        self.push(&header.line());
    }

    fn event(&mut self, event: &LogEvent) {
        self.push(&event.line());
    }
}

fn request(i: u32) -> Request {
    let prompt = (0..3 + (i * 13) % 40).map(|at| (at * 7 + i) % 50).collect();
    let mut request = Request::new(prompt, 5 + (i * 17) % 60);
    request.ignore_eos = true;
    request.true_length = Some(request.max_tokens);
    request
}

/// Answers 40 requests by a simulated clock; one request is cancelled. Returns the log, the mean
/// latency in seconds, and the engine's preemptions. `no_prefix_cache`: a simulation of the log has
/// sizes, and no names of blocks.
fn run(policy: PolicyKind, no_prefix_cache: bool) -> (String, f64, u64) {
    run_of("tiny", policy, no_prefix_cache)
}

/// The same of a model of `shape`.
fn run_of(shape: &str, policy: PolicyKind, no_prefix_cache: bool) -> (String, f64, u64) {
    let model = Arc::new(Model::random(shape, Dtype::Bf16, 7).expect("a known shape"));
    let (clock, lines) = (Arc::new(StepClock::new(COST)), Lines::default());
    let config = EngineConfig {
        probe: Some(Probe::random(model.config.hidden_size, 0, 3)),
        policy,
        cpu: CpuSettings { threads: Some(1), ..CpuSettings::default() },
        max_running: Some(4),
        // So few blocks that requests are evicted.
        kv_blocks: Some(14),
        queue: QueueConfig { max_requests: 64, ..QueueConfig::default() },
        clock: Some(clock.clone()),
        log: Some(Box::new(lines.clone())),
        no_prefix_cache,
        ..EngineConfig::default()
    };
    let mut engine = SteppedEngine::new(model, config).expect("builds");
    let mut handles: Vec<(u64, RequestHandle)> = Vec::new();
    let (mut latencies, mut steps) = (Vec::new(), 0);
    loop {
        steps += 1;
        assert!(steps < MAX_STEPS, "{} requests are left", engine.live());
        let next_ns = handles.len() as u64 * 150_000;
        if handles.len() < 40 && next_ns <= clock.now_ns() {
            let handle = engine.submit(request(handles.len() as u32)).expect("fits");
            handles.push((clock.now_ns(), handle));
            continue;
        }
        let outcome = engine.step().expect("no breakdown");
        for (arrival_ns, handle) in &handles {
            while let Some(event) = handle.try_recv() {
                if let Event::Finished { .. } = event {
                    latencies.push((clock.now_ns() - arrival_ns) as f64 * 1e-9);
                }
            }
        }
        match outcome {
            StepOutcome::Idle if handles.len() == 40 => break,
            StepOutcome::Idle => clock.advance_to(next_ns),
            _ => {}
        }
    }
    let preemptions = engine.stats().preemptions;
    drop(engine);
    (lines.text(), latencies.iter().sum::<f64>() / latencies.len() as f64, preemptions)
}

fn mean_latency(run: &trail_simulator::SimulationRun) -> f64 {
    run.outcomes.iter().map(|outcome| outcome.latency_s).sum::<f64>() / run.outcomes.len() as f64
}

#[test]
fn a_recorded_run_replays_to_the_same_decisions_under_every_policy() {
    let odd = Ranking { express: 0.7, prefill_weight: 0.3, ..Ranking::DEFAULT };
    for policy in PolicyKind::HELP.map(|(name, _)| name.parse::<PolicyKind>().expect("a name")) {
        // Predictors are for the bundled model alone; the log needs none.
        if policy.needs() == trail_runtime::engine::Needs::Predictor {
            continue;
        }
        let policy = policy.with_ranking(odd);
        let (text, latency_s, preemptions) = run(policy, false);
        let log = DecisionLog::parse(&text).unwrap_or_else(|error| panic!("{policy}: {error}"));
        assert_eq!((log.header.policy, log.text()), (policy, text), "{policy}");
        let replay = Replay::run(&log).unwrap_or_else(|error| panic!("{policy}: {error}"));
        assert!(replay.plans > 100 && replay.decisions >= 40, "{policy}");
        let recorded = replay.recording.run();
        assert_eq!((recorded.outcomes.len(), recorded.preemptions), (40, preemptions), "{policy}");
        let got = mean_latency(&recorded);
        assert!((got / latency_s - 1.0).abs() < 1e-6, "{policy}: {got}, not {latency_s}");
    }
}

/// Marks of blocks with snapshots are inputs of the scheduler.
#[test]
fn a_run_of_a_hybrid_replays_to_the_same_decisions() {
    let (text, ..) = run_of("tiny-hybrid", PolicyKind::trail(0.8), false);
    let log = DecisionLog::parse(&text).expect("sound");
    let is_marking = |event: &&LogEvent| matches!(event, LogEvent::Resumable { .. });
    assert!(log.header.config.marked_blocks && log.events.iter().any(|event| is_marking(&event)));
    let replay = Replay::run(&log).expect("the same decisions");
    assert!(replay.plans > 100 && replay.decisions >= 40);
}

#[test]
fn a_recorded_run_is_simulated_as_it_ran_and_under_another_policy() {
    let (text, latency_s, preemptions) = run(PolicyKind::trail(0.8), true);
    let log = DecisionLog::parse(&text).expect("sound");
    let recording = Replay::run(&log).expect("the same decisions").recording;
    let cost = recording.step_cost();
    assert!((cost.fixed / COST.fixed - 1.0).abs() < 1e-3, "{cost:?}");
    let simulate = |policy| {
        recording.simulate(policy, &mut |_| ControlFlow::Continue(())).expect("every job fits")
    };
    let same = simulate(PolicyKind::trail(0.8));
    let got = mean_latency(&same);
    assert!((got / latency_s - 1.0).abs() < 0.01, "{got} s, not {latency_s}");
    assert!(same.preemptions.abs_diff(preemptions) <= preemptions / 20, "{}", same.preemptions);
    let oracle = simulate(PolicyKind::SRPT);
    assert!(mean_latency(&oracle) < got, "no better by the true lengths");
}

#[test]
fn another_policy_and_a_changed_decision_are_found_where_they_differ() {
    let (text, ..) = run(PolicyKind::Trail(Trail::PAPER), false);
    let log = DecisionLog::parse(&text).expect("sound");
    let mut other = log.clone();
    other.header.policy = PolicyKind::Fcfs;
    assert!(matches!(Replay::run(&other), Err(ReplayError::Differs(_))));

    let preempted = |event: &LogEvent| match event {
        LogEvent::Decision(decision) => decision.action == Action::Preempted,
        _ => false,
    };
    let at = log.events.iter().position(preempted).expect("a preemption");
    let LogEvent::Decision(decision) = log.events[at] else { unreachable!("found as one") };
    let mut changed = log.clone();
    let remaining = decision.remaining.map(|tokens| tokens + 100.0);
    changed.events[at] = LogEvent::Decision(trail_scheduler::Decision { remaining, ..decision });
    let Err(ReplayError::Differs(error)) = Replay::run(&changed) else { panic!("not found") };
    assert_eq!(error.line, at + 2);
    assert!(error.why.contains(&decision.to_string()), "{error}");
}
