//! Draft tokens of a smaller model.
//!
//! Before the model's step, the requests that decode take passes of the draft model together, a
//! token each, as long as one more pays. It draws with the request's own parameters, seed and
//! position, so that equal distributions give equal tokens, sampled or greedy (Leviathan et al.
//! 2023 reject by a ratio instead, which changes the draw). What it lacks of a request's tokens,
//! the prompt above all, it computes in chunks once the answer is long enough to pay for it.

use std::ops::Range;
use std::time::Instant;

use trail_scheduler::{PlanRow, RequestIdx};

use super::acceptance::Class;
use super::draft_kv::DraftKv;
use super::draft_times::{DraftTimes, nanoseconds};
use super::row_times::{Choice, Outcome};
use super::{DraftBudget, PlannedStep, Proposer, StepSizes};
use crate::backend::{BLOCK_TOKENS, Batch, DraftModel, MAX_DRAFT_TOKENS, Sampled};
use crate::engine::lifecycle::Lifecycle;

/// Most tokens of a request that are computed in its first pass of a step.
const FIRST_TOKENS: usize = BLOCK_TOKENS;
/// Share of the longest gap that computing missing tokens may take of a step.
const GAP_SHARE: f32 = 0.5;

/// A request that drafts in this step.
struct Candidate {
    /// Index of its row in the plan.
    at: usize,
    idx: RequestIdx,
    /// Position after its last token, draft tokens included.
    end: usize,
    /// Draft tokens for which there is still room.
    max: usize,
    /// Probability that all its draft tokens so far are right.
    all_right: f32,
    /// Probability that a further one is, if all before it are.
    right: f32,
}

/// Proposes the tokens of a draft model.
pub(super) struct DraftProposer {
    kv: DraftKv,
    times: DraftTimes,
    /// Most rows of a pass.
    max_rows: usize,
    /// Most time of missing tokens in a step, nanoseconds.
    max_ns: f32,
    /// Longest context of the draft model, tokens.
    max_context: usize,
    candidates: Vec<Candidate>,
    batch: Batch,
    sampled: Vec<Sampled>,
}

impl DraftProposer {
    /// For a `model` with a context of `max_context` tokens.
    pub(super) fn new(
        sizes: StepSizes,
        max_context: usize,
        model: &dyn DraftModel,
    ) -> DraftProposer {
        let gap_ns = nanoseconds(sizes.max_gap) * GAP_SHARE;
        let StepSizes { max_rows, max_running, kv_blocks, .. } = sizes;
        let table_entries = max_running * max_context.div_ceil(BLOCK_TOKENS);
        DraftProposer {
            kv: DraftKv::new(kv_blocks),
            times: DraftTimes::of(model),
            max_rows,
            max_ns: if gap_ns > 0.0 { gap_ns } else { f32::INFINITY },
            max_context,
            candidates: Vec::with_capacity(MAX_DRAFT_TOKENS),
            batch: Batch::with_capacity(max_rows, max_running, table_entries),
            sampled: Vec::with_capacity(max_running),
        }
    }

    /// Finds the requests that can draft in this step, and fills the batch with tokens that others
    /// lack.
    fn select(&mut self, step: &PlannedStep<'_>, budget: &DraftBudget) {
        self.candidates.clear();
        self.batch.clear();
        for (at, row) in step.scheduler.last_plan().rows.iter().enumerate() {
            let active = step.lifecycle.planned(row.idx);
            let end = row.start as usize + 1;
            let max = budget.max_drafts(active, row, step.scheduler.room(row.idx));
            let max = max.min(self.max_context.saturating_sub(end));
            if max == 0 || self.candidates.len() == budget.left {
                continue;
            }
            let right = active.acceptance.mean();
            let candidate = Candidate { at, idx: row.idx, end, max, all_right: 1.0, right };
            let run = self.kv.first_missing(step.scheduler.blocks(row.idx), end);
            if run.end == end && run.len() <= FIRST_TOKENS.min(self.max_rows) {
                self.candidates.push(candidate);
            } else if budget.always || self.pays(&candidate, active.generated(), step, budget) {
                self.push_missing(row, run, step);
            }
        }
    }

    /// True if drafting would have saved more time than its missing tokens take, had it begun with
    /// the answer: as many tokens may follow as came.
    fn pays(
        &self,
        candidate: &Candidate,
        generated: usize,
        step: &PlannedStep<'_>,
        budget: &DraftBudget,
    ) -> bool {
        let choice = budget.choose(candidate.max, |count| {
            further(std::slice::from_ref(candidate), count, self.times.pass_ns(1))
        });
        let missing = self.kv.missing(step.scheduler.blocks(candidate.idx), candidate.end);
        would_have_paid(&choice, generated, missing as f32 * self.times.token_ns())
    }

    /// Adds a part of `run`, the first tokens of a request that the draft model lacks, to the
    /// batch.
    fn push_missing(&mut self, row: &PlanRow, run: Range<usize>, step: &PlannedStep<'_>) {
        let in_time = (self.max_ns / self.times.token_ns().max(1.0)) as usize;
        let max = in_time.max(BLOCK_TOKENS).min(self.max_rows);
        let free = max.saturating_sub(self.batch.rows());
        let run = run.start..run.end.min(run.start + free);
        if run.is_empty() {
            return;
        }
        push(&mut self.batch, row.idx, &run, step, false);
        self.kv.compute(step.scheduler.blocks(row.idx), run);
    }

    /// Computes the batch. Returns its time, nanoseconds.
    fn pass(&mut self, model: &mut dyn DraftModel, lifecycle: &Lifecycle) -> f32 {
        let begin = Instant::now();
        self.sampled.clear();
        model.step(&self.batch, lifecycle, &mut self.sampled);
        nanoseconds(begin.elapsed())
    }

    /// The number of passes that pay.
    fn passes(&self, budget: &DraftBudget) -> usize {
        let max = self.candidates.iter().map(|of| of.max).max().unwrap_or(0);
        if budget.always {
            return max;
        }
        let pass_ns = self.times.pass_ns(self.candidates.len());
        budget.choose(max, |count| further(&self.candidates, count, pass_ns)).count
    }

    /// Fills the batch with the last tokens of the candidates, as far as the draft model lacks
    /// them. A candidate that finds no room is none.
    fn push_last(&mut self, step: &PlannedStep<'_>) {
        let DraftProposer { candidates, batch, kv, max_rows, .. } = self;
        batch.clear();
        candidates.retain(|of| {
            let blocks = step.scheduler.blocks(of.idx);
            let run = kv.first_missing(blocks, of.end);
            if batch.rows() + run.len() > *max_rows {
                return false;
            }
            push(batch, of.idx, &run, step, true);
            kv.compute(blocks, run);
            true
        });
    }

    /// Appends the sampled tokens to those of the candidates.
    fn append(&mut self, step: &mut PlannedStep<'_>, budget: &mut DraftBudget) {
        for (of, result) in self.candidates.iter_mut().zip(&self.sampled) {
            let Ok(token) = result else {
                of.max = 0;
                continue;
            };
            let active = step.lifecycle.planned_mut(of.idx);
            let class = Class::of_logprob(token.logprob);
            active.tokens.push(token.id);
            active.acceptance.propose(class);
            of.all_right *= active.acceptance.right(class);
            budget.take(of.at, 1, of.all_right);
            (of.end, of.max) = (of.end + 1, of.max - 1);
        }
        self.candidates.retain(|of| of.max > 0);
        self.candidates.truncate(budget.left);
    }
}

impl Proposer for DraftProposer {
    fn propose(&mut self, step: &mut PlannedStep<'_>, budget: &mut DraftBudget) {
        self.times.begin();
        for row in &step.scheduler.last_plan().rows {
            let (start, end) = (row.start as usize, (row.start + row.len) as usize);
            self.kv.overwrite(step.scheduler.blocks(row.idx), start..end);
        }
        let Some(model) = step.model.take().filter(|_| budget.left > 0) else { return };
        self.select(step, budget);
        if self.batch.rows() > 0 {
            let ns = self.pass(model, step.lifecycle);
            self.times.record_tokens(self.batch.rows(), ns);
        }
        if self.passes(budget) == 0 {
            for of in &self.candidates {
                step.lifecycle.planned_mut(of.idx).acceptance.rest();
            }
            return;
        }
        loop {
            self.push_last(step);
            let requests = self.candidates.len();
            let ns = self.pass(model, step.lifecycle);
            self.times.record_pass(requests, ns);
            budget.step.ns += ns;
            self.append(step, budget);
            if self.candidates.is_empty() || self.passes(budget) == 0 {
                return;
            }
        }
    }
}

/// Adds the positions `run` of a request to the batch.
fn push(
    batch: &mut Batch,
    idx: RequestIdx,
    run: &Range<usize>,
    step: &PlannedStep<'_>,
    logits: bool,
) {
    let tokens = &step.lifecycle.planned(idx).tokens[run.clone()];
    let blocks = &step.scheduler.blocks(idx)[..run.end.div_ceil(BLOCK_TOKENS)];
    batch.push(idx.0, run.start as u32, tokens, blocks, logits);
}

/// True if `generated` tokens, in steps that draft as `choice` says, had saved more than `ns`.
fn would_have_paid(choice: &Choice, generated: usize, ns: f32) -> bool {
    let steps = generated as f32 / (1.0 + choice.added.tokens);
    steps * choice.saved_ns > ns
}

/// The rows, tokens and time that `count` further tokens of each of `candidates`, or as many as it
/// has room for, add to the step, where a pass takes `pass_ns`.
fn further(candidates: &[Candidate], count: usize, pass_ns: f32) -> Outcome {
    let mut outcome = Outcome { ns: count as f32 * pass_ns, ..Outcome::default() };
    for of in candidates {
        let (count, mut all_right) = (count.min(of.max), of.all_right);
        outcome.rows += count;
        for _ in 0..count {
            all_right *= of.right;
            outcome.tokens += all_right;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 steps of 3 tokens save 10 ms; nothing pays where nothing is saved.
    #[test]
    fn missing_tokens_are_computed_once_the_answer_is_long_enough() {
        let added = Outcome { rows: 4, tokens: 2.0, ns: 0.0 };
        let choice = Choice { count: 4, added, saved_ns: 1e6 };
        assert!(would_have_paid(&choice, 30, 9.9e6) && !would_have_paid(&choice, 30, 10.1e6));
        assert!(!would_have_paid(&Choice::default(), 1000, 0.0));
    }

    /// Two requests; the first has room for a single token.
    #[test]
    fn a_pass_costs_the_time_of_the_requests_in_it() {
        let candidate = |max, all_right| Candidate {
            at: 0,
            idx: RequestIdx(0),
            end: 20,
            max,
            all_right,
            right: 0.5,
        };
        let outcome = further(&[candidate(1, 1.0), candidate(9, 0.8)], 2, 3e6);
        assert_eq!((outcome.rows, outcome.ns), (3, 6e6));
        assert!((outcome.tokens - (0.5 + 0.4 + 0.2)).abs() < 1e-6, "{outcome:?}");
    }
}
