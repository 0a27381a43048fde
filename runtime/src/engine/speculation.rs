//! Speculation without loss: tokens are proposed in advance, computed beside the next one in the
//! same step, and kept as far as they are what the sampler draws.
//!
//! The token at a position depends on the seed, the position and the logits, and a row's logits do
//! not depend on the rows beside it. So the answer is that without speculation, sampled or greedy.
//! Proposals continue the latest occurrence of the last tokens in the prompt, the output, or the
//! text that the client expects (prompt lookup: Saxena 2023; vLLM: ngram; OpenAI: predicted
//! outputs). They take no KV block: they fill the last one.

use std::fmt;
use std::str::FromStr;

use trail_scheduler::{Plan, PlanRow};

use super::active::ActiveRequest;
use crate::backend::{BLOCK_TOKENS, MAX_PROPOSED};

/// Use of speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// As many proposed tokens as pay by the measured times of steps and the request's acceptance.
    #[default]
    Auto,
    /// No proposed tokens.
    Off,
    /// As many proposed tokens as there is room for, whether they pay or not.
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

/// Fewest and most last tokens that are looked for.
const MATCH: std::ops::RangeInclusive<usize> = 3..=8;

/// A place after an occurrence of the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Occurrence {
    /// Tokens that are alike.
    length: usize,
    place: usize,
}

/// The longest occurrence of the last of `tokens` in `text` before its last token, the latest of
/// equals. Reads the text backwards once: 4 bytes a token beside a step that reads the model.
fn longest_occurrence(text: &[u32], tokens: &[u32]) -> Option<Occurrence> {
    let last = tokens.last()?;
    let mut best = None;
    for place in (1..text.len()).rev().filter(|&place| text[place - 1] == *last) {
        let alike = text[..place].iter().rev().zip(tokens.iter().rev()).take(*MATCH.end());
        let length = alike.take_while(|(a, b)| a == b).count();
        if length > best.map_or(MATCH.start() - 1, |best: Occurrence| best.length) {
            best = Some(Occurrence { length, place });
        }
        if length == *MATCH.end() {
            break;
        }
    }
    best
}

/// Appends up to `count` proposed tokens: those that came after the last ones before, in `tokens`
/// or in the `expected` text. Returns their number.
fn propose(expected: &[u32], tokens: &mut Vec<u32>, count: usize) -> usize {
    let earlier = longest_occurrence(tokens, tokens);
    let in_expected = longest_occurrence(expected, tokens);
    let length = |of: Option<Occurrence>| of.map_or(0, |of| of.length);
    if let Some(Occurrence { place, .. }) =
        in_expected.filter(|_| length(in_expected) >= length(earlier))
    {
        let rest = &expected[place..];
        let rest = &rest[..count.min(rest.len())];
        tokens.extend_from_slice(rest);
        return rest.len();
    }
    let Some(Occurrence { place, .. }) = earlier else { return 0 };
    // One by one: the continuation of a repetition is itself.
    for next in place..place + count {
        tokens.push(tokens[next]);
    }
    count
}

/// Estimate of the probability that a request's proposed token is right if those before it were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acceptance(f32);

impl Acceptance {
    /// Before the first proposal: high enough to try.
    const PRIOR: f32 = 0.6;
    /// Weight of the newest token in the mean.
    const NEWEST: f32 = 0.15;
    /// Weight of the prior where none was tried: after some tens of tokens one is.
    const RETRY: f32 = 0.004;

    /// Records that of `proposed` tokens the first `accepted` were right.
    pub(super) fn record(&mut self, proposed: u32, accepted: u32) {
        (0..accepted).for_each(|_| self.0 += Acceptance::NEWEST * (1.0 - self.0));
        if accepted < proposed {
            self.0 -= Acceptance::NEWEST * self.0;
        }
    }

    /// Expected number of right tokens among `count` proposed ones.
    fn expected(self, count: usize) -> f32 {
        (1..=count as i32).map(|place| self.0.powi(place)).sum()
    }

    /// Records that no token was proposed.
    fn decline(&mut self) {
        self.0 += Acceptance::RETRY * (Acceptance::PRIOR - self.0);
    }
}

impl Default for Acceptance {
    fn default() -> Acceptance {
        Acceptance(Acceptance::PRIOR)
    }
}

/// Most rows of a step whose time is kept; a step of more is bound by arithmetic.
const MAX_ROWS: usize = 96;

/// Mean times of steps without prefill, by their rows, and what more rows gain by them.
struct RowTimes([f32; MAX_ROWS + 1]);

impl RowTimes {
    /// Weight of the newest step in the mean.
    const NEWEST: f32 = 0.1;
    /// Least expected gain: below, the estimates are not good enough.
    const LEAST_GAIN: f32 = 1.03;

    fn new() -> RowTimes {
        RowTimes([0.0; MAX_ROWS + 1])
    }

    /// Adds a step of `rows` decode and proposed rows that took `ns`.
    fn record(&mut self, rows: usize, ns: u64) {
        if let Some(mean) = self.0.get_mut(rows) {
            let newest = ns as f32;
            *mean = if *mean == 0.0 { newest } else { *mean + RowTimes::NEWEST * (newest - *mean) };
        }
    }

    /// Time of a step of `rows` rows: of the nearest measured ones, on the line through both;
    /// beyond the largest measured as that one, so that it is tried. `None` before any was
    /// measured.
    fn ns(&self, rows: usize) -> Option<f32> {
        let below = (1..=rows).rev().find(|&at| self.0[at] > 0.0);
        let above = (rows..=MAX_ROWS).find(|&at| self.0[at] > 0.0);
        match (below, above) {
            (Some(low), Some(high)) if low < high => {
                let share = (rows - low) as f32 / (high - low) as f32;
                Some(self.0[low] + share * (self.0[high] - self.0[low]))
            }
            (at, other) => at.or(other).map(|at| self.0[at]),
        }
    }

    /// The number of proposed tokens, at most `max`, by which a step of `rows` rows that yields
    /// `tokens` yields most per time.
    fn choose(&self, rows: usize, tokens: f32, acceptance: &mut Acceptance, max: usize) -> usize {
        let Some(now) = self.ns(rows.min(MAX_ROWS)) else { return 0 };
        let mut best = (RowTimes::LEAST_GAIN * tokens / now, 0);
        let (mut expected, mut right) = (tokens, 1.0);
        for count in 1..=max.min(MAX_ROWS.saturating_sub(rows)) {
            right *= acceptance.0;
            expected += right;
            let rate = self.ns(rows + count).map_or(0.0, |ns| expected / ns);
            if rate > best.0 {
                best = (rate, count);
            }
        }
        if best.1 == 0 {
            acceptance.decline();
        }
        best.1
    }
}

/// The proposed tokens of an engine's steps.
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
    /// Rows that are left for proposed tokens.
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

    /// Begins a step with the rows of `plan`. Proposed tokens take what they leave; none where a
    /// prefill chunk fills the step.
    pub(super) fn begin(&mut self, plan: &Plan) {
        let prefills = plan.rows.iter().any(|row| row.len > 1 || !row.sample);
        self.rows = plan.tokens() as usize;
        self.tokens = plan.rows.len() as f32;
        let free = self.max_rows.saturating_sub(self.rows).min(MAX_PROPOSED);
        self.left = if prefills && !self.always { 0 } else { free };
    }

    /// Appends proposed tokens to those of `active`, if its `row` decodes. `room`: tokens for which
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
        let count = match self.always {
            true => max,
            false => self.times.choose(self.rows, self.tokens, &mut active.acceptance, max),
        };
        let count = propose(&active.request.expected, &mut active.tokens, count);
        self.rows += count;
        self.left -= count;
        self.tokens += active.acceptance.expected(count);
        count
    }

    /// Records that a step of `rows` decode and proposed rows took `ns`.
    pub(super) fn record(&mut self, rows: usize, ns: u64) {
        self.times.record(rows, ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_latest_occurrence_is_continued() {
        let proposed = |tokens: &[u32]| -> Vec<u32> {
            let mut all = tokens.to_vec();
            propose(&[], &mut all, 2);
            all.split_off(tokens.len())
        };
        assert_eq!(proposed(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 2, 3, 6, 1, 2, 3]), [5, 9]);
        assert_eq!(proposed(&[7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3]), [4, 8]);
        assert!(proposed(&[1, 2, 3, 1, 2]).is_empty(), "two tokens are not enough");
        assert!(proposed(&[]).is_empty());
    }

    #[test]
    fn a_repetition_goes_on() {
        let mut tokens = vec![5, 1, 2, 1, 2, 1, 2];
        assert_eq!(propose(&[], &mut tokens, 5), 5);
        assert_eq!(tokens, [5, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1]);
    }

    #[test]
    fn the_expected_text_is_continued_to_its_end() {
        let mut tokens = vec![9, 1, 2, 3];
        assert_eq!(propose(&[4, 1, 2, 3, 7, 8], &mut tokens, 5), 2);
        assert_eq!(tokens, [9, 1, 2, 3, 7, 8]);
        assert_eq!(propose(&[4, 1, 2, 3, 7, 8], &mut tokens, 5), 0);
    }

    fn times(of: impl Fn(usize) -> f32) -> RowTimes {
        let mut times = RowTimes::new();
        for rows in 1..=MAX_ROWS {
            times.record(rows, of(rows) as u64);
        }
        times
    }

    /// Rows that cost nothing are all taken, rows that cost as much as a step none; in between the
    /// choice is the best of all.
    #[test]
    fn the_choice_yields_the_best_rate() {
        let mut sure = Acceptance(0.99);
        assert_eq!(times(|_| 1e6).choose(1, 1.0, &mut sure, 15), 15);
        assert_eq!(times(|rows| 1e6 * rows as f32).choose(1, 1.0, &mut sure, 15), 0);
        let costs = |rows: usize| 1e6 + 2e5 * rows as f32;
        let mut some = Acceptance(0.7);
        let rate = |count: usize| {
            let expected: f32 = (0..=count as i32).map(|power| 0.7f32.powi(power)).sum();
            expected / costs(1 + count)
        };
        let best = (0..=15).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap();
        assert_eq!(times(costs).choose(1, 1.0, &mut some, 15), best);
    }

    #[test]
    fn unmeasured_rows_are_tried() {
        let mut times = RowTimes::new();
        let mut acceptance = Acceptance::default();
        assert_eq!(times.choose(1, 1.0, &mut acceptance, 8), 0, "nothing is known");
        times.record(1, 1_000_000);
        assert_eq!(times.choose(1, 1.0, &mut acceptance, 8), 8);
        times.record(9, 9_000_000);
        assert_eq!(times.choose(1, 1.0, &mut acceptance, 8), 0);
    }

    #[test]
    fn wrong_proposals_end_and_are_tried_again() {
        let times = times(|rows| 1e6 + 2e5 * rows as f32);
        let mut acceptance = Acceptance::default();
        let tried = (0..1000)
            .filter(|_| {
                let count = times.choose(1, 1.0, &mut acceptance, 8);
                acceptance.record(count as u32, 0);
                count > 0
            })
            .count();
        assert!((2..60).contains(&tried), "{tried} of 1000 steps");
    }
}
