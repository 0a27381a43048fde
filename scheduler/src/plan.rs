//! The plan of one step: a value that the engine executes and that can be printed.

use std::fmt;

use crate::decision::Decision;
use crate::request::RequestIdx;

/// One request's part of a step: compute tokens `start..start + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRow {
    /// Index of the request.
    pub idx: RequestIdx,
    /// Position (0-based) of the first token to compute.
    pub start: u32,
    /// Tokens to compute, at least 1.
    pub len: u32,
    /// True if the last token's logits are sampled, because the row computes all known tokens.
    pub sample: bool,
}

/// The plan of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Number of the step, as passed by the caller.
    pub step: u64,
    /// The tokens to compute, best rank first.
    pub rows: Vec<PlanRow>,
    /// Unfinished requests that were in the last plan and are not in this one: paused, evicted or
    /// swapped out.
    pub preempted: Vec<RequestIdx>,
    /// Requests that lost their KV in this step, and are recomputed later.
    pub evicted: Vec<RequestIdx>,
    /// Requests whose swap-out begins in this step. The caller starts to copy their blocks
    /// ([`crate::Scheduler::blocks`]) after the steps launched so far.
    pub swap_out: Vec<RequestIdx>,
    /// Requests whose swap-in begins in this step, into their blocks. They have no row yet.
    pub swap_in: Vec<RequestIdx>,
    /// Tokens of this step's rows that are recomputed after an eviction.
    pub recomputed_tokens: u32,
    /// Tokens before the rows of this step that enter it with blocks found by hash.
    pub cached_tokens: u32,
    /// The part of these that belongs to requests which were never in a plan.
    pub prompt_hits: u32,
    /// The reason of each entry, preemption, eviction and swap of this step.
    pub decisions: Vec<Decision>,
}

impl Plan {
    /// An empty plan that holds `max_rows` rows and `max_victims` victims without allocating.
    pub(crate) fn with_capacity(max_rows: usize, max_victims: usize) -> Plan {
        Plan {
            rows: Vec::with_capacity(max_rows),
            preempted: Vec::with_capacity(max_rows),
            evicted: Vec::with_capacity(max_victims),
            swap_out: Vec::with_capacity(max_victims),
            swap_in: Vec::with_capacity(max_rows),
            // A row may enter, a row of the last plan leave, a victim lose its KV.
            decisions: Vec::with_capacity(3 * max_rows + 2 * max_victims),
            ..Plan::default()
        }
    }

    pub(crate) fn clear(&mut self, step: u64) {
        self.step = step;
        self.rows.clear();
        self.preempted.clear();
        self.evicted.clear();
        self.swap_out.clear();
        self.swap_in.clear();
        self.recomputed_tokens = 0;
        self.cached_tokens = 0;
        self.prompt_hits = 0;
        self.decisions.clear();
    }

    /// Tokens the step computes.
    pub fn tokens(&self) -> u32 {
        self.rows.iter().map(|row| row.len).sum()
    }
}

impl fmt::Display for Plan {
    /// `step 7: 34 tokens in 2 rows, 1 preempted, 0 evicted, 0 recomputed | s4 0..33 | s1 90..91*`
    /// (an asterisk: sampled). Before the rows `, 1 out, 2 in` where KV is swapped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {}: {} tokens in {} rows, {} preempted, {} evicted, {} recomputed",
            self.step,
            self.tokens(),
            self.rows.len(),
            self.preempted.len(),
            self.evicted.len(),
            self.recomputed_tokens
        )?;
        if !(self.swap_out.is_empty() && self.swap_in.is_empty()) {
            write!(f, ", {} out, {} in", self.swap_out.len(), self.swap_in.len())?;
        }
        for row in &self.rows {
            let sampled = if row.sample { "*" } else { "" };
            write!(f, " | s{} {}..{}{sampled}", row.idx.0, row.start, row.start + row.len)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_prints_on_one_line() {
        let rows = vec![
            PlanRow { idx: RequestIdx(4), start: 0, len: 33, sample: false },
            PlanRow { idx: RequestIdx(1), start: 90, len: 1, sample: true },
        ];
        let plan = Plan { step: 7, rows, preempted: vec![RequestIdx(2)], ..Plan::default() };
        assert_eq!(
            plan.to_string(),
            "step 7: 34 tokens in 2 rows, 1 preempted, 0 evicted, 0 recomputed \
             | s4 0..33 | s1 90..91*"
        );
        let plan = Plan { rows: Vec::new(), swap_in: vec![RequestIdx(3)], ..plan };
        let want = "step 7: 0 tokens in 0 rows, 1 preempted, 0 evicted, 0 recomputed, 0 out, 1 in";
        assert_eq!(plan.to_string(), want);
    }
}
