//! The reason for which an answer waits, in words.

use trail_scheduler::{Action, Decision, Key, Phase};

use super::frame::{LiveFrame, LiveRow};

/// `None` for one that runs.
pub(super) fn reason(frame: &LiveFrame, row: &LiveRow) -> Option<String> {
    let request = &row.request;
    match request.phase {
        Phase::Running | Phase::Free => None,
        Phase::SwappingOut => Some("its KV is being copied to host memory".into()),
        Phase::SwappingIn => Some("its KV is being copied back to the device".into()),
        Phase::Waiting if !request.started => Some(of_queue(frame, row)),
        Phase::Waiting | Phase::Paused | Phase::Swapped => {
            let last = row.decisions.iter().rev().find(|of| is_loss(of.action));
            Some(last.map_or_else(|| of_queue(frame, row), |of| of_loss(of, frame, row)))
        }
    }
}

fn is_loss(action: Action) -> bool {
    matches!(action, Action::Preempted | Action::Evicted | Action::SwappedOut)
}

/// Returns true if the row has waited for so long that it precedes those ranked by value. While
/// predictions are not trusted all have that class, in order of arrival.
fn is_overdue(frame: &LiveFrame, row: &LiveRow) -> bool {
    let is_trusted = frame.stats.prediction_window.is_none_or(|window| window.trusted);
    is_trusted && row.request.key.class() == Key::OVERDUE
}

/// Why one that was never in the batch waits.
fn of_queue(frame: &LiveFrame, row: &LiveRow) -> String {
    let (running, max_running) = frame.batch;
    let overdue = frame.rows.iter().take_while(|of| of.request.id != row.request.id);
    let overdue = overdue.filter(|of| of.place > 0 && is_overdue(frame, of)).count();
    let ahead = row.place.saturating_sub(1);
    let before = match (ahead, overdue) {
        (0, _) if is_overdue(frame, row) => "it is overdue, and the next".to_owned(),
        (count, overdue) if is_overdue(frame, row) => {
            format!("it is overdue; {count} are ranked before it, {overdue} of these overdue")
        }
        (0, _) => "it is the next".to_owned(),
        (1, 0) => "1 is ranked before it".to_owned(),
        (count, 0) => format!("{count} are ranked before it"),
        (count, overdue) => format!("{count} are ranked before it, {overdue} of these overdue"),
    };
    if running >= max_running {
        return format!("the batch is full ({running} requests): {before}");
    }
    let (used, total) = frame.blocks;
    format!("too few KV blocks are free ({used} of {total} in use): {before}")
}

/// Why one that has lost its place waits.
fn of_loss(decision: &Decision, frame: &LiveFrame, row: &LiveRow) -> String {
    let what = decision.action.name();
    let Some(by) = decision.by else {
        return format!("{what} at step {}: too few KV blocks were free", decision.step);
    };
    // The other one may be somebody else's: its lengths are no secret, its name is.
    let ranks = match (decision.by_remaining, decision.remaining) {
        (Some(by), Some(own)) if by < own => {
            format!("{by:.0} tokens were predicted to be left of it, and {own:.0} of this one")
        }
        _ => "it was ranked first".to_owned(),
    };
    let gone = if frame.places.contains_key(&by.0) { "" } else { ", which has ended" };
    let then = match row.place.saturating_sub(1) {
        0 => "it is the next".to_owned(),
        1 => "1 is ranked before it".to_owned(),
        count => format!("{count} are ranked before it"),
    };
    format!("{what} at step {} for request {}{gone}: {ranks}; {then}", decision.step, by.0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use trail_scheduler::policies::PolicyKind;
    use trail_scheduler::{NewRequest, RequestId, Scheduler, SchedulerConfig};

    use super::*;

    /// A scheduler whose steps take a second.
    struct Toy {
        scheduler: Scheduler,
        decisions: HashMap<u64, Vec<Decision>>,
        step: u64,
        max_running: u32,
        blocks: u32,
    }

    impl Toy {
        fn new(policy: &str, max_running: u32, blocks: u32) -> Toy {
            let policy: PolicyKind = policy.parse().expect("a policy");
            let config = SchedulerConfig {
                max_running,
                num_blocks: blocks,
                watermark: 0.0,
                ..SchedulerConfig::default()
            };
            let scheduler = Scheduler::new(config, policy.build()).expect("valid");
            Toy { scheduler, decisions: HashMap::new(), step: 0, max_running, blocks }
        }

        /// Submits a request that is predicted to have, and has, `tokens`.
        fn submit(&mut self, id: u64, tokens: u32) {
            let request = NewRequest {
                id: RequestId(id),
                prompt_tokens: 20,
                max_tokens: tokens,
                arrival_s: self.step as f64,
                initial_prediction: Some(tokens as f32),
                ..NewRequest::default()
            };
            self.scheduler.submit(request).expect("room");
        }

        fn step(&mut self) {
            self.step += 1;
            self.scheduler.plan(self.step, self.step as f64);
            let plan = self.scheduler.last_plan();
            for decision in &plan.decisions {
                self.decisions.entry(decision.request.0).or_default().push(*decision);
            }
            let sampled: Vec<_> = plan.rows.iter().filter(|row| row.sample).collect();
            let sampled: Vec<_> = sampled.into_iter().map(|row| row.idx).collect();
            self.scheduler.advance();
            for idx in sampled {
                let request = self.scheduler.state(idx);
                if request.generated == request.max_tokens {
                    self.scheduler.finish(idx);
                }
            }
        }

        fn frame(&self) -> LiveFrame {
            let mut requests: Vec<_> = self.scheduler.live_requests().collect();
            requests.sort_by_key(|request| (request.phase != Phase::Running, request.key));
            let running = requests.iter().filter(|of| of.phase == Phase::Running).count();
            let row = |(at, request): (usize, &trail_scheduler::LiveRequest)| LiveRow {
                request: *request,
                owner: None,
                place: (at + 1).saturating_sub(running),
                remaining: None,
                interval: None,
                step_s: 1.0,
                forecast: None,
                decisions: Arc::new(self.decisions.get(&request.id.0).cloned().unwrap_or_default()),
            };
            let rows: Vec<LiveRow> = requests.iter().enumerate().map(row).collect();
            LiveFrame {
                places: rows.iter().enumerate().map(|(at, row)| (row.request.id.0, at)).collect(),
                rows,
                batch: (running, self.max_running as usize),
                blocks: (u64::from(self.blocks), u64::from(self.blocks)),
                ..LiveFrame::default()
            }
        }

        fn reason(&self, id: u64) -> String {
            let frame = self.frame();
            frame.reason(frame.row(id).expect("it is live")).expect("it waits")
        }
    }

    #[test]
    fn a_preempted_request_names_the_one_in_its_place_with_the_ranks() {
        let mut toy = Toy::new("trail", 1, 64);
        toy.submit(7, 200);
        // It keeps its place until its first tokens have shown what it is.
        (0..30).for_each(|_| toy.step());
        toy.submit(8, 50);
        toy.submit(9, 300);
        toy.step();
        assert_eq!(
            toy.reason(7),
            "preempted at step 31 for request 8: 50 tokens were predicted to be left of it, and 170 \
             of this one; it is the next"
        );
        assert_eq!(toy.reason(9), "the batch is full (1 requests): 1 is ranked before it");
    }

    #[test]
    fn one_behind_an_overdue_request_says_so() {
        let mut toy = Toy::new("sjf", 1, 64);
        toy.submit(0, 5);
        toy.submit(1, 60);
        for id in 2..400 {
            toy.submit(id, 9);
            (0..5).for_each(|_| toy.step());
            let frame = toy.frame();
            if frame.rows.iter().any(|row| row.place > 0 && is_overdue(&frame, row)) {
                assert!(
                    toy.reason(1).ends_with("it is overdue, and the next"),
                    "{}",
                    toy.reason(1)
                );
                toy.submit(1000, 900);
                let reason = toy.reason(1000);
                assert!(reason.contains("1 of these overdue"), "{reason}");
                return;
            }
            (0..4).for_each(|_| toy.step());
        }
        panic!("the long request is never overdue");
    }

    #[test]
    fn one_that_finds_no_memory_names_the_blocks() {
        let mut toy = Toy::new("fcfs", 4, 4);
        toy.submit(1, 44);
        toy.submit(2, 44);
        toy.submit(3, 44);
        toy.step();
        let waits = "too few KV blocks are free (4 of 4 in use): 1 is ranked before it";
        assert_eq!(toy.reason(3), waits.replace("1 is ranked before it", "it is the next"));
        // The second one has begun, and loses its blocks to the first one.
        (0..30).for_each(|_| toy.step());
        let reason = toy.reason(2);
        assert!(
            reason.starts_with("evicted at step ")
                && reason.contains("for request 1: it was ranked"),
            "{reason}"
        );
        assert_eq!(toy.reason(3), waits);
    }
}
