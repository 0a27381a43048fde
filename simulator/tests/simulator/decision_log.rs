//! A decision log: any run replays to the same decisions, and damage is named by its line.

use std::sync::{Arc, Mutex};

use trail_scheduler::log::{LogError, LogEvent};
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::rng::Rng;
use trail_scheduler::{
    DecisionLog, LogHeader, LogSink, LoggedScheduler, NewRequest, Prediction, Preemption,
    PrefillLimit, RequestId, RequestIdx, Reserve, SchedulerConfig,
};
use trail_simulator::replay::{Replay, ReplayError};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl LogSink for Lines {
    fn begin(&mut self, header: &LogHeader) {
        *self.0.lock().expect("one thread") += &(header.line() + "\n");
    }

    fn event(&mut self, event: &LogEvent) {
        *self.0.lock().expect("one thread") += &(event.line() + "\n");
    }
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        max_running: 4,
        max_requests: 12,
        token_budget: 48,
        num_blocks: 14,
        max_context: 200,
        preemption: Preemption::Swap,
        host_blocks: 12,
        block_s: 1e-5 / 3.0,
        token_s: 1e-5,
        ..SchedulerConfig::default()
    }
}

/// The log of `steps` steps of random requests, with predictions that are late, stale or no number,
/// cancels, transfers and prefill limits.
fn random_log(policy: PolicyKind, seed: u64, steps: u64) -> String {
    let (mut rng, lines) = (Rng::new(seed), Lines::default());
    let reserve = [Reserve::None, Reserve::Mean, Reserve::P90][seed as usize % 3];
    let config = SchedulerConfig { reserve, refresh_tokens: 1 + seed as u32 % 4, ..config() };
    let header = LogHeader { config, policy, max_gap_s: 0.1 };
    let mut scheduler =
        LoggedScheduler::new(&header, Some(Box::new(lines.clone()))).expect("a sound config");
    let (mut live, mut moving, mut id): (Vec<RequestIdx>, Vec<RequestIdx>, u64) =
        Default::default();
    let (mut step, mut now_s) = (0, 0.0);
    while step < steps {
        if rng.below(3) == 0 {
            let (prompt_tokens, max_tokens) = (1 + rng.below(60), 1 + rng.below(60));
            let request = NewRequest {
                id: RequestId(id),
                prompt_tokens: prompt_tokens as u32,
                max_tokens: max_tokens as u32,
                arrival_s: now_s,
                initial_prediction: Some([40.0 / 3.0, f32::NAN, 9.0][rng.below(3) as usize]),
                true_length: Some(max_tokens as u32),
                ..NewRequest::default()
            };
            id += 1;
            live.extend(scheduler.submit(request));
        }
        let is_done = |idx: RequestIdx, scheduler: &LoggedScheduler| {
            let state = scheduler.state(idx);
            state.generated >= state.max_tokens
        };
        while let Some(at) = live.iter().position(|&idx| is_done(idx, &scheduler)) {
            scheduler.finish(live.swap_remove(at));
        }
        if !live.is_empty() && rng.below(40) == 0 {
            let idx = live.swap_remove(rng.below(live.len() as u64) as usize);
            scheduler.finish(idx);
            scheduler.finish(idx);
        }
        if !moving.is_empty() && rng.below(2) == 0 {
            scheduler.transferred(moving.remove(0));
        }
        scheduler.limit_prefill([None, Some(limit(&mut rng))][rng.below(2) as usize]);
        scheduler.trust_predictions(id % 50 < 40);
        now_s += 1e-3 / 3.0;
        let plan = scheduler.plan(step + 1, now_s);
        moving.extend(plan.swap_out.iter().chain(&plan.swap_in));
        if plan.rows.is_empty() {
            if !moving.is_empty() {
                scheduler.transferred(moving.remove(0));
            }
            continue;
        }
        let sampled: Vec<_> =
            plan.rows.iter().filter(|row| row.sample).map(|row| row.idx).collect();
        step += 1;
        scheduler.advance();
        scheduler.collected(step, (now_s * 1e9) as u64 + 200_000, 200_000);
        for idx in sampled {
            let remaining = [30.0 / 7.0, f32::NAN, 50.0, 0.1][rng.below(4) as usize];
            let generation = scheduler.generation(idx) + u32::from(rng.below(9) == 0);
            let step = step - rng.below(3).min(step);
            let (p10, p50, p90) = (remaining, f32::INFINITY, remaining);
            let prediction = Prediction { remaining, p10, p50, p90, step, generation };
            scheduler.predict(idx, prediction);
        }
    }
    drop(scheduler);
    let lines = lines.0.lock().expect("one thread");
    lines.clone()
}

fn limit(rng: &mut Rng) -> PrefillLimit {
    let ns = 1e6 / 3.0 * rng.below(9) as f64;
    PrefillLimit { ns, token_ns: 1e4 / 7.0, context_token_ns: 0.1 }
}

#[test]
fn any_run_replays_to_the_same_decisions() {
    for (seed, (name, _)) in PolicyKind::HELP.into_iter().enumerate() {
        let policy: PolicyKind = name.parse().expect("a name");
        let text = random_log(policy, seed as u64, if cfg!(miri) { 30 } else { 1500 });
        let log = DecisionLog::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(log.text() == text, "{name}: the log reads back as another");
        let replay = Replay::run(&log).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(replay.plans >= 30 && replay.decisions > 10, "{name}");
        let swapped = text.contains("\"swapped_out\"") && text.contains("\"transferred\"");
        assert!(swapped || cfg!(miri) || name == "fcfs", "{name}: nothing was swapped");
    }
}

/// A short log: one request of two tokens.
fn short_log() -> String {
    let lines = Lines::default();
    let header = LogHeader { config: config(), policy: PolicyKind::trail(0.8), max_gap_s: 0.0 };
    let mut scheduler =
        LoggedScheduler::new(&header, Some(Box::new(lines.clone()))).expect("a sound config");
    let (id, prompt_tokens, max_tokens) = (RequestId(7), 3, 2);
    let request = NewRequest { id, prompt_tokens, max_tokens, ..NewRequest::default() };
    let idx = scheduler.submit(request).expect("fits");
    for step in 1..=2 {
        scheduler.plan(step, 0.5 * step as f64);
        scheduler.advance();
        scheduler.collected(step, step * 1_000_000_000, 500_000_000);
        let prediction = Prediction { remaining: 2.5, step, ..Prediction::default() };
        scheduler.predict(idx, prediction);
    }
    scheduler.finish(idx);
    drop(scheduler);
    let lines = lines.0.lock().expect("one thread");
    lines.clone()
}

/// The error of a log, found by the parser or by the replay.
fn damage(text: &str) -> Option<(usize, String)> {
    let error = match DecisionLog::parse(text).map(|log| Replay::run(&log)) {
        Err(error) | Ok(Err(ReplayError::Damaged(error))) => error,
        Ok(Err(ReplayError::Differs(error))) => panic!("not damaged, but other: {error}"),
        Ok(Ok(_)) => return None,
    };
    assert_eq!(error.to_string().lines().count(), 1, "{error}");
    Some((error.line, error.why))
}

#[test]
fn the_seed_of_the_fuzz_target_is_a_whole_log() {
    let log = DecisionLog::parse(include_str!("../../../tests/fuzz/seeds/decision_log/demo.jsonl"));
    let replay = Replay::run(&log.expect("a log of this version")).expect("its decisions");
    assert!(replay.plans > 0);
}

#[test]
fn damage_is_named_by_its_line() {
    let text = short_log();
    assert_eq!(damage(&text), None);
    for (from, to, line, why) in [
        ("\"version\":2", "\"version\":1", 1, "version is 1"),
        ("decision log", "another", 1, "format is 'another'"),
        ("\"trail:0.8\"", "\"trail:7\"", 1, "c of policy trail is '7'"),
        ("\"trail:0.8\"", "\"fcfs\"", 1, "has no options"),
        ("\"express\":0.5", "\"express\":-2.0", 1, "out of range"),
        ("\"express\":0.5", "\"express\":0.5,\"x\":1", 1, "unknown field `x`"),
        ("\"express\":0.5", "\"express\":0.5,\"margin\":2.0", 1, "margin is 2.0: "),
        ("\"express\":0.5", "\"express\":0.5,\"window\":\"refined\"", 1, "window is \"refined\": "),
        ("\"num_blocks\":14", "\"num_blocks\":0", 1, "num_blocks is 0"),
        ("\"num_blocks\":14", "\"num_blocks\":14,\"x\":1", 1, "unknown field `x`"),
        ("\"refresh_tokens\":1", "\"refresh_tokens\":0", 1, "refresh_tokens is 0"),
        ("\"reserve\":\"present\"", "\"reserve\":\"all\"", 1, "unknown variant `all`"),
        ("{\"submit\"", "{\"admit\"", 2, "unknown variant `admit`"),
        ("\"tenant\":0", "\"tenant\":0,\"x\":1", 2, "unknown field `x`"),
        ("\"prompt_tokens\":3", "\"prompt_tokens\":0", 2, "prompt"),
        ("\"arrival_s\":0.0", "\"arrival_s\":NaN", 2, "expected value"),
        ("\"arrival_s\":0.0", "\"arrival_s\":-1.0", 2, "arrival_s is -1.0"),
        ("\"plan\":{", "\"plan\":{\"x\":1,", 3, "unknown field `x`"),
        ("\"now_s\":0.5", "\"now_s\":1e999", 3, "out of range"),
        ("\"advance\":{\"step\":1}", "\"advance\":{\"step\":3}", 5, "step 3 was not planned"),
        ("\"collected\":{\"step\":1", "\"collected\":{\"step\":9", 6, "step 9 is not in flight"),
        ("\"remaining\":2.5", "\"remaining\":1e99", 7, "number out of range at column"),
        ("{\"predict\":{\"id\":7", "{\"predict\":{\"id\":8", 7, "request 8 is not live"),
        ("{\"predict\":", "{\"transferred\":{\"id\":7}}\n{\"predict\":", 7, "in no transfer"),
        ("\"plan\":{\"step\":2", "\"plan\":{\"step\":1", 8, "step 1 comes after step 1"),
        ("\"now_s\":1.0", "\"now_s\":0.25", 8, "now_s is 0.25"),
        ("\"tokens\":2}}", "\"tokens\":1}}", 12, "2 tokens, not 1"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        let (got, got_why) = damage(&text.replacen(from, to, 1)).unwrap_or_else(|| panic!("{to}"));
        assert!(got == line && got_why.contains(why), "{to}: line {got}: {got_why}");
    }
}

/// At whatever byte a log ends, its whole steps are read and replayed.
#[test]
fn a_log_that_was_cut_is_read_up_to_its_last_whole_step() {
    let text = short_log();
    let whole = DecisionLog::parse(&text).expect("a log");
    assert_eq!(DecisionLog::parse_cut(&text), Ok((whole.clone(), None)));
    let header = text.find('\n').expect("a header") + 1;
    for end in 0..text.len() {
        match DecisionLog::parse_cut(&text[..end]) {
            Err(error) => assert!(end < header, "{end}: {error}"),
            Ok((log, left_out)) => {
                assert!(end >= header && whole.events.starts_with(&log.events));
                // Nothing is left out only where a line and a step end.
                assert_eq!(left_out.is_none(), log.text().len() == end, "{end}");
                assert!(left_out.is_none_or(|line| line == log.events.len() + 2));
                assert!(Replay::run(&log).is_ok(), "{end}");
            }
        }
    }
}

#[test]
fn a_decision_that_the_replay_does_not_make_is_named() {
    let text = short_log();
    let decision = text.lines().find(|line| line.starts_with("{\"decision\"")).expect("one");
    let without = text.replacen(&format!("{decision}\n"), "", 1).replacen(
        "\"decisions\":1",
        "\"decisions\":0",
        1,
    );
    let other = text.replacen("\"admitted\"", "\"resumed\"", 1);
    for (text, line, why) in [
        (without, 3, "the log has no further decision, the replay '7 admitted at step 1'"),
        (other, 4, "the log has '7 resumed at step 1', the replay '7 admitted at step 1'"),
    ] {
        let error = Replay::run(&DecisionLog::parse(&text).expect("a log")).expect_err(why);
        assert_eq!(error, ReplayError::Differs(LogError { line, why: why.into() }));
    }
}

#[test]
fn a_log_that_is_cut_off_is_refused_or_a_shorter_run() {
    let text = short_log();
    for end in 0..text.len() {
        let is_whole = text[..end].ends_with('\n');
        let plan_lacks_its_decision = text[..end]
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("{\"plan\"") && !line.contains("\"decisions\":0"));
        let error = damage(&text[..end]);
        let lines = text[..end].lines().count().max(1);
        match is_whole && !plan_lacks_its_decision {
            true => assert_eq!(error, None, "{lines} lines are a shorter run"),
            false => assert_eq!(error.map(|(line, _)| line), Some(lines), "at byte {end}"),
        }
    }
    assert_eq!(damage("").map(|(line, _)| line), Some(1));
}
