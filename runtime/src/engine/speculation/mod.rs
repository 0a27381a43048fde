//! Speculation without loss: tokens are proposed in advance, computed beside the next one in the
//! same step, and kept as far as they are what the sampler draws.
//!
//! The token at a position depends on the seed, the position and the logits, and a row's logits do
//! not depend on the rows beside it. So the answer is that without speculation, sampled or greedy.
//! Draft tokens take no KV block: they fill the last one. Two sources ([`Proposer`]): the latest
//! occurrence of the last tokens in the prompt, the output, or the text that the client expects
//! ([`PromptLookup`]), and a smaller model ([`DraftProposer`]).

mod acceptance;
mod continuation;
mod draft_budget;
mod draft_kv;
mod draft_proposer;
mod draft_times;
mod prompt_lookup;
mod row_times;

use std::sync::Arc;
use std::time::Duration;

use trail_scheduler::Scheduler;

pub(super) use acceptance::Acceptance;
use draft_budget::DraftBudget;
use draft_proposer::DraftProposer;
use prompt_lookup::PromptLookup;

use super::in_flight::InFlightStep;
use super::lifecycle::Lifecycle;
use crate::backend::DraftModel;
use crate::model::Model;

/// Use of speculation.
#[derive(Clone, Default)]
pub enum Speculate {
    /// As many draft tokens as pay by the measured times of steps and the request's acceptance,
    /// by prompt lookup.
    #[default]
    Auto,
    /// No draft tokens.
    Off,
    /// As many draft tokens as there is room for, whether they pay or not, by prompt lookup.
    Ngram,
    /// Draft tokens of a smaller model.
    Draft {
        /// The model; it has the vocabulary of the engine's.
        model: Arc<Model>,
        /// False: as many tokens as pay. True: as many as there is room for, for tests.
        always: bool,
    },
}

impl Speculate {
    /// The draft model, if any.
    pub fn draft(&self) -> Option<&Arc<Model>> {
        match self {
            Speculate::Draft { model, .. } => Some(model),
            Speculate::Auto | Speculate::Off | Speculate::Ngram => None,
        }
    }
}

/// Sizes of an engine's steps.
#[derive(Clone, Copy)]
pub(super) struct StepSizes {
    /// Most rows of a step.
    pub(super) max_rows: usize,
    /// Most requests in a step.
    pub(super) max_running: usize,
    pub(super) kv_blocks: usize,
    /// Bound on the gap that prefill causes; zero for none.
    pub(super) max_gap: Duration,
    /// Most draft tokens of a step.
    pub(super) max_drafts: usize,
}

/// A source of draft tokens.
trait Proposer: Send {
    /// Appends draft tokens to those of requests of `step`, within `budget`. Called in each step,
    /// also where `budget` has no room.
    fn propose(&mut self, step: &mut PlannedStep<'_>, budget: &mut DraftBudget);

    /// On a device: true if draft tokens after those of `step`, which is in flight, are expected to
    /// gain more than the time in which the device waits for them.
    fn waits(&mut self, _: &InFlightStep, _: &mut Lifecycle, _: &DraftBudget) -> bool {
        false
    }
}

/// The step being planned.
pub(super) struct PlannedStep<'a> {
    /// With the plan and the block tables.
    pub(super) scheduler: &'a Scheduler,
    pub(super) lifecycle: &'a mut Lifecycle,
    /// True if tokens of the step before are not known yet: then it gets no draft tokens.
    pub(super) is_in_flight: bool,
    /// The backend's draft model, if any.
    pub(super) model: Option<&'a mut dyn DraftModel>,
}

/// Appends the tokens that constraints force, which cannot be wrong. Others are not proposed for
/// constrained requests, as their masks are not known in advance.
fn propose_forced(step: &mut PlannedStep<'_>, budget: &mut DraftBudget) {
    for (at, row) in step.scheduler.last_plan().rows.iter().enumerate() {
        let active = step.lifecycle.planned_mut(row.idx);
        let Some(answer) = active.constrained.clone() else { continue };
        let max = budget.max_forced(active, row, step.scheduler.room(row.idx));
        if max > 0 {
            let count = answer.append_forced(max, &mut active.tokens);
            budget.take(at, count, count as f32);
        }
    }
}

/// The draft tokens of an engine's steps.
pub(super) struct Speculation {
    proposer: Box<dyn Proposer>,
    budget: DraftBudget,
}

impl Speculation {
    /// `None` for [`Speculate::Off`], and without the draft model that [`Speculate::Draft`] needs.
    pub(super) fn new(
        mode: &Speculate,
        sizes: StepSizes,
        model: Option<&mut dyn DraftModel>,
    ) -> Option<Speculation> {
        let (always, proposer): (bool, Box<dyn Proposer>) = match mode {
            Speculate::Off => return None,
            Speculate::Auto => (false, Box::new(PromptLookup)),
            Speculate::Ngram => (true, Box::new(PromptLookup)),
            Speculate::Draft { model: draft, always } => {
                let max_context = draft.config.max_context;
                (*always, Box::new(DraftProposer::new(sizes, max_context, model?)))
            }
        };
        Some(Speculation { proposer, budget: DraftBudget::new(always, sizes) })
    }

    /// True if the next step is to be planned with the tokens of `step`, which is in flight: it has
    /// draft tokens, or some that may follow its tokens are expected to gain more than the device
    /// loses meanwhile.
    pub(super) fn waits(&mut self, step: &InFlightStep, requests: &mut Lifecycle) -> bool {
        if step.drafts() > 0 || self.budget.always {
            return !step.sampled.is_empty();
        }
        step.prefill.is_empty() && self.proposer.waits(step, requests, &self.budget)
    }

    /// Records that a step which waited for tokens was launched `ns` after these were known.
    pub(super) fn record_gap(&mut self, ns: u64) {
        self.budget.times.record_gap(ns as f32);
    }

    /// Appends draft tokens to those of the requests of `step`, whose buffers are reserved.
    pub(super) fn propose(&mut self, mut step: PlannedStep<'_>) {
        self.budget.begin(step.scheduler.last_plan(), step.is_in_flight);
        propose_forced(&mut step, &mut self.budget);
        self.proposer.propose(&mut step, &mut self.budget);
    }

    /// Draft tokens of the request in row `at` of the plan.
    pub(super) fn drafts(&self, at: usize) -> usize {
        self.budget.drafts(at)
    }

    /// Records that a step of `rows` decode and draft rows took `ns`.
    pub(super) fn record(&mut self, rows: usize, ns: u64) {
        self.budget.times.record(rows, ns as f32);
    }
}
