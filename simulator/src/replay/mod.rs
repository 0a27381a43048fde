//! The replay of a decision log.
//!
//! [`Replay::run`] makes the calls of a [`DecisionLog`] again, to a scheduler of the recorded
//! policy, and compares the decisions; [`Recording::simulate`] runs the recorded requests under
//! another policy, with step costs fitted to the recorded steps.

mod recording;
mod step_fit;

use std::collections::HashMap;
use std::fmt;

use trail_scheduler::log::{DecisionLog, LogError, LogEvent};
use trail_scheduler::{
    Decision, Finished, NewRequest, Plan, Prediction, RequestId, RequestIdx, Scheduler, Transferred,
};

pub use recording::Recording;

/// A log that was replayed to the recorded decisions.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Steps planned.
    pub plans: u64,
    /// Decisions, each as recorded.
    pub decisions: u64,
    /// Requests, times and predictions of the log.
    pub recording: Recording,
}

/// The reason for which a replay ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// The log has a call that no scheduler of these settings was given.
    Damaged(LogError),
    /// The first decision that differs: line, recorded and replayed.
    Differs(LogError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ReplayError::Damaged(error) | ReplayError::Differs(error)) = self;
        error.fmt(f)
    }
}

impl std::error::Error for ReplayError {}

impl Replay {
    /// Replays `log`.
    pub fn run(log: &DecisionLog) -> Result<Replay, ReplayError> {
        let damaged = |line, why: String| ReplayError::Damaged(LogError::new(line, why));
        let scheduler = Scheduler::new(log.header.config, log.header.policy.build())
            .map_err(|error| damaged(1, error.to_string()))?;
        let mut replayer =
            Replayer { scheduler, indices: HashMap::new(), now_s: 0.0, is_advanced: true };
        let (mut recording, mut replay) = (Recording::new(log.header), (0, 0));
        for (at, event) in log.events.iter().enumerate() {
            let line = at + 2;
            replayer.apply(event, &mut recording).map_err(|why| damaged(line, why))?;
            compare(line, event, &log.events[at + 1..], replayer.scheduler.last_plan())
                .map_err(ReplayError::Differs)?;
            replay.0 += u64::from(matches!(event, LogEvent::Plan { .. }));
            replay.1 += u64::from(matches!(event, LogEvent::Decision(_)));
        }
        Ok(Replay { plans: replay.0, decisions: replay.1, recording })
    }
}

/// A scheduler, and the state by which wrong calls are refused.
struct Replayer {
    scheduler: Scheduler,
    /// Live requests, and ended ones whose transfer is in flight.
    indices: HashMap<RequestId, RequestIdx>,
    now_s: f64,
    /// True if the last plan was launched.
    is_advanced: bool,
}

impl Replayer {
    fn apply(&mut self, event: &LogEvent, recording: &mut Recording) -> Result<(), String> {
        match *event {
            LogEvent::Submit(request) => {
                self.submit(request)?;
                recording.submitted(&request)?;
            }
            LogEvent::BlockHash { id, hash } => {
                let idx = self.live(id)?;
                self.scheduler.push_block_hash(idx, hash);
                recording.hashed(id, hash);
            }
            LogEvent::ForgetHashes { id } => self.scheduler.forget_hashes(self.in_plan(id)?),
            LogEvent::Restart { id } => {
                let idx = self.in_plan(id)?;
                self.scheduler.restart(idx);
            }
            LogEvent::Resumable { block, is_resumable } => {
                if block >= self.scheduler.config().num_blocks {
                    return Err(format!("there is no block {block}"));
                }
                self.scheduler.set_resumable(block, is_resumable);
            }
            LogEvent::Accept { id, tokens } => {
                let idx = self.live(id)?;
                self.check_accept(idx, tokens)?;
                self.scheduler.accept(idx, tokens);
                recording.accepted(id, tokens);
            }
            LogEvent::Predict { id, step, age, remaining, p10, p50, p90 } => {
                let idx = self.live(id)?;
                let generation = self.scheduler.generation(idx);
                let prediction = Prediction { remaining, p10, p50, p90, step, generation };
                self.scheduler.predict(idx, prediction);
                recording.predicted(id, age, remaining);
            }
            LogEvent::Finish { id, tokens } => {
                let idx = self.live(id)?;
                let state = self.scheduler.state(idx);
                if state.generated != tokens {
                    let generated = state.generated;
                    return Err(format!("request {} has {generated} tokens, not {tokens}", id.0));
                }
                recording.finished(state);
                if self.scheduler.finish(idx) != Finished::AfterTransfer {
                    self.indices.remove(&id);
                }
            }
            LogEvent::Transferred { id } => self.transferred(id)?,
            LogEvent::PrefillLimit(limit) => self.scheduler.limit_prefill(limit),
            LogEvent::Policy(policy) => self.scheduler.set_policy(policy.build()),
            LogEvent::TrustPredictions(trusted) => self.scheduler.trust_predictions(trusted),
            LogEvent::Plan { step, now_s, .. } => {
                self.plan(step, now_s)?;
                recording.planned(self.scheduler.last_plan());
            }
            LogEvent::Decision(_) => {}
            LogEvent::Advance { step } => {
                self.check_advance(step)?;
                recording.launched(&self.scheduler);
                self.scheduler.advance();
                self.is_advanced = true;
            }
            LogEvent::Collected { step, end_s, duration_s } => {
                recording.collected(step, end_s, duration_s)?;
            }
        }
        Ok(())
    }

    /// The index of a request of the last plan.
    fn in_plan(&self, id: RequestId) -> Result<RequestIdx, String> {
        let idx = self.live(id)?;
        match self.scheduler.state(idx).planned {
            true => Ok(idx),
            false => Err(format!("request {} is not in the plan", id.0)),
        }
    }

    fn submit(&mut self, request: NewRequest) -> Result<(), String> {
        let idx = self.scheduler.submit(request).map_err(|refusal| refusal.to_string())?;
        match self.indices.insert(request.id, idx) {
            None => Ok(()),
            Some(_) => Err(format!("request {} is live already", request.id.0)),
        }
    }

    fn live(&self, id: RequestId) -> Result<RequestIdx, String> {
        let known = self.indices.get(&id).copied();
        let live = known.filter(|&idx| !self.scheduler.state(idx).ended);
        live.ok_or_else(|| format!("request {} is not live", id.0))
    }

    fn transferred(&mut self, id: RequestId) -> Result<(), String> {
        let moving = self.indices.get(&id).filter(|&&idx| self.scheduler.state(idx).moving());
        let idx = *moving.ok_or_else(|| format!("request {} is in no transfer", id.0))?;
        if self.scheduler.transferred(idx) == Transferred::Finished {
            self.indices.remove(&id);
        }
        Ok(())
    }

    fn plan(&mut self, step: u64, now_s: f64) -> Result<(), String> {
        let last = self.scheduler.last_plan();
        let launched = self.is_advanced && !last.rows.is_empty();
        if step < last.step || launched && step == last.step {
            return Err(format!("step {step} comes after step {}", last.step));
        }
        if now_s < self.now_s {
            return Err(format!("now_s is {now_s:?}, after {:?}", self.now_s));
        }
        (self.now_s, self.is_advanced) = (now_s, false);
        self.scheduler.plan(step, now_s);
        Ok(())
    }

    /// Refuses tokens for a request that did not decode in the last step, or more than it has room
    /// for.
    fn check_accept(&self, idx: RequestIdx, tokens: u32) -> Result<(), String> {
        let state = self.scheduler.state(idx);
        let rows = &self.scheduler.last_plan().rows;
        let decoded = rows.iter().any(|row| row.idx == idx && row.sample && row.len == 1);
        let max = self.scheduler.room(idx).min(state.max_tokens - state.generated);
        match self.is_advanced && decoded && state.resident() && tokens <= max {
            true => Ok(()),
            false => Err(format!("request {} did not get {tokens} tokens more", state.id.0)),
        }
    }

    /// Refuses a launch that was not planned, or of a request that has all its tokens.
    fn check_advance(&self, step: u64) -> Result<(), String> {
        let plan = self.scheduler.last_plan();
        if self.is_advanced || plan.step != step {
            return Err(format!("step {step} was not planned"));
        }
        let states =
            plan.rows.iter().filter(|row| row.sample).map(|row| self.scheduler.state(row.idx));
        match states.filter(|state| state.planned).find(|s| s.generated >= s.max_tokens) {
            Some(state) => Err(format!("request {} has all its tokens", state.id.0)),
            None => Ok(()),
        }
    }
}

/// Compares the recorded plan on `line` and its decisions with the scheduler's.
fn compare(line: usize, event: &LogEvent, rest: &[LogEvent], plan: &Plan) -> Result<(), LogError> {
    let LogEvent::Plan { step, rows, tokens, decisions, .. } = *event else { return Ok(()) };
    let recorded = rest.iter().take(decisions as usize).filter_map(|event| match event {
        LogEvent::Decision(decision) => Some(decision),
        _ => None,
    });
    let mut replayed = plan.decisions.iter();
    for (at, recorded) in recorded.enumerate() {
        let replayed = replayed.next();
        if replayed != Some(recorded) {
            let replayed = replayed.map_or("no further decision".into(), Decision::to_string);
            let why = format!("the log has '{recorded}', the replay '{replayed}'");
            return Err(LogError::new(line + 1 + at, why));
        }
    }
    if let Some(extra) = replayed.next() {
        let why = format!("the log has no further decision, the replay '{extra}'");
        return Err(LogError::new(line + decisions as usize, why));
    }
    let replayed = (plan.rows.len() as u32, plan.tokens());
    if (rows, tokens) != replayed {
        let why = format!(
            "step {step} has {rows} rows with {tokens} tokens in the log, {} with {} in the replay",
            replayed.0, replayed.1
        );
        return Err(LogError::new(line, why));
    }
    Ok(())
}
