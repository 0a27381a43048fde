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

/// Why one that was never in the batch waits.
fn of_queue(frame: &LiveFrame, row: &LiveRow) -> String {
    let (running, max_running) = frame.batch;
    let overdue = frame.rows.iter().take_while(|of| of.request.id != row.request.id);
    let overdue =
        overdue.filter(|of| of.place > 0 && of.request.key.class() == Key::OVERDUE).count();
    let before = match (row.place.saturating_sub(1), overdue) {
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
