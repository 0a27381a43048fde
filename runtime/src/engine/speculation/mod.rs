//! Speculation without loss: tokens are proposed in advance, computed beside the next one in the
//! same step, and kept as far as they are what the sampler draws.
//!
//! The token at a position depends on the seed, the position and the logits, and a row's logits do
//! not depend on the rows beside it. So the answer is that without speculation, sampled or greedy.
//! Proposals continue the latest occurrence of the last tokens in the prompt, the output, or the
//! text that the client expects (prompt lookup: Saxena 2023; vLLM: ngram; OpenAI: predicted
//! outputs). They take no KV block: they fill the last one.

mod acceptance;
mod continuation;
mod row_times;

use std::fmt;
use std::str::FromStr;

use trail_scheduler::{Plan, PlanRow};

pub(super) use acceptance::Acceptance;
use continuation::Continuation;
use row_times::RowTimes;

use super::active::ActiveRequest;
use super::in_flight::{InFlightStep, Sampling};
use super::lifecycle::Lifecycle;
use crate::backend::{BLOCK_TOKENS, MAX_DRAFT_TOKENS};

/// Use of speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// As many draft tokens as pay by the measured times of steps and the request's acceptance.
    #[default]
    Auto,
    /// No draft tokens.
    Off,
    /// As many draft tokens as there is room for, whether they pay or not.
    Ngram,
}

impl Speculate {
    /// The names, for help texts.
    pub const NAMES: [&str; 3] = ["auto", "off", "ngram"];
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Speculate::NAMES[*self as usize])
    }
}

impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Speculate, String> {
        let all = [Speculate::Auto, Speculate::Off, Speculate::Ngram];
        let named = all.into_iter().find(|mode| mode.to_string() == text);
        named.ok_or_else(|| format!("expected one of {}", Speculate::NAMES.join(", ")))
    }
}

/// The draft tokens of an engine's steps.
pub(super) struct Speculation {
    /// True if they are proposed whether they pay or not.
    always: bool,
    times: RowTimes,
    /// Most rows of a step.
    max_rows: usize,
    /// Rows of the step being planned.
    rows: usize,
    /// Tokens that it is expected to yield.
    tokens: f32,
    /// Rows that are left for draft tokens.
    left: usize,
}

impl Speculation {
    /// `None` for [`Speculate::Off`].
    pub(super) fn new(mode: Speculate, max_rows: usize) -> Option<Speculation> {
        (mode != Speculate::Off).then(|| Speculation {
            always: mode == Speculate::Ngram,
            times: RowTimes::new(),
            max_rows,
            rows: 0,
            tokens: 0.0,
            left: 0,
        })
    }

    /// True if the next step is to be planned with the tokens of `step`, which is in flight: it has
    /// draft tokens, or some that may follow its tokens are expected to gain more than the device
    /// loses meanwhile.
    pub(super) fn waits(&mut self, step: &InFlightStep, requests: &mut Lifecycle) -> bool {
        if step.drafts() > 0 || self.always {
            return !step.sampled.is_empty();
        }
        if !step.prefill.is_empty() {
            return false;
        }
        let before = (step.rows, step.sampled.len() as f32);
        let (mut rows, mut tokens) = before;
        let free = self.max_rows.saturating_sub(step.rows).min(MAX_DRAFT_TOKENS);
        for &Sampling { idx, id, .. } in &step.sampled {
            let max = (free + step.rows).saturating_sub(rows).min(BLOCK_TOKENS - 1);
            let Some(active) = requests.get_mut(idx, id).filter(|_| max > 0) else { continue };
            let Some(found) = Continuation::find(&active.request.expected, &active.tokens) else {
                continue;
            };
            let (length, acceptance) = (found.occurrence.length, active.acceptance);
            // The token in flight must be the first one: then the others may follow.
            active.acceptance.guess = Some((length, found.first(&active.tokens)));
            let first = acceptance.right(length);
            let right = |at| acceptance.right(length + 1 + at) * if at == 0 { first } else { 1.0 };
            let max = found.len(max + 1) - 1;
            let (count, expected) = self.times.choose(rows, tokens, right, max);
            (rows, tokens) = (rows + count, tokens + expected);
        }
        rows > before.0 && self.times.pays(before, (rows, tokens))
    }

    /// Records that a step which waited for tokens was launched `ns` after these were known.
    pub(super) fn record_gap(&mut self, ns: u64) {
        self.times.record_gap(ns);
    }

    /// Begins a step with the rows of `plan`. Draft tokens take what they leave; none where a
    /// prefill chunk fills the step, and none where tokens are still in flight.
    pub(super) fn begin(&mut self, plan: &Plan, is_in_flight: bool) {
        let prefills = plan.rows.iter().any(|row| row.len > 1 || !row.sample);
        self.rows = plan.tokens() as usize;
        self.tokens = plan.rows.len() as f32;
        let free = self.max_rows.saturating_sub(self.rows).min(MAX_DRAFT_TOKENS);
        self.left = if is_in_flight || prefills && !self.always { 0 } else { free };
    }

    /// Appends draft tokens to those of `active`, if its `row` decodes. `room`: tokens for which
    /// its KV blocks have room. Returns their number.
    pub(super) fn propose(
        &mut self,
        active: &mut ActiveRequest,
        row: &PlanRow,
        room: u32,
    ) -> usize {
        let generated = active.generated();
        let decodes = row.sample && row.len == 1 && generated > 0;
        let remaining = (active.request.max_tokens as usize).saturating_sub(generated + 1);
        let room = (room as usize).saturating_sub(1).min(BLOCK_TOKENS - 1);
        let max = self.left.min(room).min(remaining);
        if !decodes || max == 0 {
            return 0;
        }
        let Some(found) = Continuation::find(&active.request.expected, &active.tokens) else {
            return 0;
        };
        let (length, max) = (found.occurrence.length, found.len(max));
        let acceptance = active.acceptance;
        let right = |at| acceptance.right(length + at);
        let (count, expected) = match self.always {
            true => (max, 0.0),
            false => self.times.choose(self.rows, self.tokens, right, max),
        };
        active.acceptance.guess = Some((length, found.first(&active.tokens)));
        found.append(&mut active.tokens, count);
        self.rows += count;
        self.left -= count;
        self.tokens += expected;
        count
    }

    /// Records that a step of `rows` decode and draft rows took `ns`.
    pub(super) fn record(&mut self, rows: usize, ns: u64) {
        self.times.record(rows, ns);
    }
}
