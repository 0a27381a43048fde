//! Draft tokens of one step: how many there is room for, and how many pay.

use trail_scheduler::{Plan, PlanRow};

use super::StepSizes;
use super::row_times::{Choice, Outcome, RowTimes};
use crate::backend::BLOCK_TOKENS;
use crate::engine::active::ActiveRequest;
use crate::engine::in_flight::InFlightStep;

/// Rows and expected tokens of the step being planned.
pub(super) struct DraftBudget {
    /// True if tokens are proposed whether they pay or not.
    pub(super) always: bool,
    /// Times of steps without prefill.
    pub(super) times: RowTimes,
    /// Most rows of a step.
    max_rows: usize,
    /// Most draft tokens of a step.
    max_drafts: usize,
    /// Rows and tokens of the step so far, and the time that drafting took.
    pub(super) step: Outcome,
    /// Rows that are left for draft tokens.
    pub(super) left: usize,
    /// By row of the plan.
    drafts: Vec<u8>,
}

impl DraftBudget {
    pub(super) fn new(always: bool, sizes: StepSizes) -> DraftBudget {
        DraftBudget {
            always,
            times: RowTimes::new(),
            max_rows: sizes.max_rows,
            max_drafts: sizes.max_drafts,
            step: Outcome::default(),
            left: 0,
            drafts: Vec::with_capacity(sizes.max_running),
        }
    }

    /// Begins a step with the rows of `plan`. Draft tokens take what they leave; none where a
    /// prefill chunk fills the step, and none where tokens are still in flight.
    pub(super) fn begin(&mut self, plan: &Plan, is_in_flight: bool) {
        let prefills = plan.rows.iter().any(|row| row.len > 1 || !row.sample);
        let rows = plan.tokens() as usize;
        self.step = Outcome { rows, tokens: plan.rows.len() as f32, ns: 0.0 };
        let free = self.max_rows.saturating_sub(rows).min(self.max_drafts);
        self.left = if is_in_flight || prefills && !self.always { 0 } else { free };
        self.drafts.clear();
        self.drafts.resize(plan.rows.len(), 0);
    }

    /// Most draft tokens of `active` in this step, if its `row` decodes and it has no constraint.
    /// `room`: tokens for which its KV blocks have room.
    pub(super) fn max_drafts(&self, active: &ActiveRequest, row: &PlanRow, room: u32) -> usize {
        if active.constrained.is_some() { 0 } else { self.max_forced(active, row, room) }
    }

    /// Most forced tokens of `active`, as [`DraftBudget::max_drafts`].
    pub(super) fn max_forced(&self, active: &ActiveRequest, row: &PlanRow, room: u32) -> usize {
        let generated = active.generated();
        let decodes = row.sample && row.len == 1 && generated > 0;
        let remaining = (active.request.max_tokens as usize).saturating_sub(generated + 1);
        let room = (room as usize).saturating_sub(1).min(BLOCK_TOKENS - 1);
        if decodes { self.left.min(room).min(remaining) } else { 0 }
    }

    /// The number of further tokens, at most `max`, by which the step yields most per time;
    /// `outcome` is what a number of tokens adds.
    pub(super) fn choose(&self, max: usize, outcome: impl Fn(usize) -> Outcome) -> Choice {
        self.times.choose(self.step, max, outcome)
    }

    /// Most draft tokens after those of `step`, which is in flight.
    pub(super) fn max_after(&self, step: &InFlightStep) -> usize {
        self.max_rows.saturating_sub(step.rows).min(self.max_drafts)
    }

    /// Adds `count` draft tokens to row `at` of the plan; `expected`: those that are right in the
    /// mean.
    pub(super) fn take(&mut self, at: usize, count: usize, expected: f32) {
        self.drafts[at] += count as u8;
        self.left -= count;
        self.step.rows += count;
        self.step.tokens += expected;
    }

    pub(super) fn drafts(&self, at: usize) -> usize {
        self.drafts[at].into()
    }
}
