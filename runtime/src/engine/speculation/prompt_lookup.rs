//! Draft tokens from the texts that a request has already.

use super::acceptance::{Acceptance, Class};
use super::continuation::Continuation;
use super::row_times::Outcome;
use super::{DraftBudget, PlannedStep, Proposer};
use crate::backend::BLOCK_TOKENS;
use crate::engine::in_flight::{InFlightStep, Sampling};
use crate::engine::lifecycle::Lifecycle;

/// Prompt lookup: what came after the last tokens before (Saxena 2023; vLLM: ngram; OpenAI:
/// predicted outputs).
pub(super) struct PromptLookup;

impl Proposer for PromptLookup {
    fn propose(&mut self, step: &mut PlannedStep<'_>, budget: &mut DraftBudget) {
        for (at, row) in step.scheduler.last_plan().rows.iter().enumerate() {
            let active = step.lifecycle.planned_mut(row.idx);
            let max = budget.max_drafts(active, row, step.scheduler.room(row.idx));
            if max == 0 {
                continue;
            }
            let Some(found) = Continuation::find(&active.request.expected, &active.tokens) else {
                continue;
            };
            let (length, max) = (found.occurrence.length, found.len(max));
            let (count, expected) = match budget.always {
                true => (max, 0.0),
                false => {
                    let choice = budget.choose(max, |count| Outcome {
                        rows: count,
                        tokens: expected_tokens(&active.acceptance, length, count),
                        ns: 0.0,
                    });
                    (choice.count, choice.added.tokens)
                }
            };
            if count == 0 {
                active.acceptance.withhold(Class::of_length(length), found.first(&active.tokens));
            }
            (0..count).for_each(|at| active.acceptance.propose(Class::of_length(length + at)));
            found.append(&mut active.tokens, count);
            budget.take(at, count, expected);
        }
    }

    fn waits(
        &mut self,
        step: &InFlightStep,
        requests: &mut Lifecycle,
        budget: &DraftBudget,
    ) -> bool {
        let tokens = step.sampled.len() as f32;
        let before = Outcome { rows: step.rows, tokens, ns: 0.0 };
        let (mut after, mut left) = (before, budget.max_after(step));
        for &Sampling { idx, id, .. } in &step.sampled {
            let max = left.min(BLOCK_TOKENS - 1);
            let Some(active) = requests.get_mut(idx, id).filter(|_| max > 0) else { continue };
            let Some(found) = Continuation::find(&active.request.expected, &active.tokens) else {
                continue;
            };
            let length = found.occurrence.length;
            let class = Class::of_length(length);
            // The token in flight must be the first one: then the others may follow.
            active.acceptance.withhold(class, found.first(&active.tokens));
            let choice = budget.times.choose(after, found.len(max + 1) - 1, |count| Outcome {
                rows: count,
                tokens: active.acceptance.right(class)
                    * expected_tokens(&active.acceptance, length + 1, count),
                ns: 0.0,
            });
            left -= choice.count;
            after.rows += choice.count;
            after.tokens += choice.added.tokens;
        }
        after.rows > before.rows && budget.times.pays(before, after)
    }
}

/// Tokens that `count` draft tokens after an occurrence of `length` yield in the mean.
fn expected_tokens(acceptance: &Acceptance, length: usize, count: usize) -> f32 {
    let mut all_right = 1.0;
    (0..count)
        .map(|at| {
            all_right *= acceptance.right(Class::of_length(length + at));
            all_right
        })
        .sum()
}
