//! Estimates of the share of draft tokens that are right.

use crate::backend::BLOCK_TOKENS;

/// Class of draft tokens by the evidence for them: 0 for the weakest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    const COUNT: usize = 4;
    /// Fewest tokens before a found one that are alike, by class.
    const LENGTHS: [usize; Class::COUNT] = [3, 5, 8, 16];
    /// Least probability that the draft model gives its token, by class.
    const PROBABILITIES: [f32; Class::COUNT] = [0.0, 0.5, 0.7, 0.9];

    /// Of a token found after `length` tokens that are alike.
    pub(super) fn of_length(length: usize) -> Class {
        let above = Class::LENGTHS.partition_point(|&least| least <= length);
        Class(above.saturating_sub(1) as u8)
    }

    /// Of a token with natural-log probability `logprob` under the draft model.
    pub(super) fn of_logprob(logprob: f32) -> Class {
        let probability = logprob.exp();
        let above = Class::PROBABILITIES.partition_point(|&least| least <= probability);
        Class(above.saturating_sub(1) as u8)
    }
}

/// Estimates of the probability that a request's draft token is right if those before it were.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Acceptance {
    /// By class.
    right: [f32; Class::COUNT],
    /// Of all classes.
    mean: f32,
    /// Classes of the tokens that are proposed in this step; the first `count` are valid.
    proposed: [Class; BLOCK_TOKENS - 1],
    count: usize,
    /// A token that was found and not proposed.
    withheld: Option<(Class, u32)>,
}

impl Acceptance {
    /// Before the first token: what copies and free texts have in the mean.
    const PRIOR: [f32; Class::COUNT] = [0.4, 0.6, 0.8, 0.9];
    const PRIOR_MEAN: f32 = 0.7;
    /// Weight of the newest token in the mean.
    const NEWEST: f32 = 0.1;
    /// Share of the way back to the prior mean in a step without draft tokens, so that they are
    /// tried again.
    const RETURN: f32 = 0.005;

    /// Of a token of `class`.
    pub(super) fn right(&self, class: Class) -> f32 {
        self.right[usize::from(class.0)]
    }

    /// Of a token whose class is not known yet.
    pub(super) fn mean(&self) -> f32 {
        self.mean
    }

    /// Adds a token of `class` to those that are proposed.
    pub(super) fn propose(&mut self, class: Class) {
        self.proposed[self.count] = class;
        self.count += 1;
    }

    /// Remembers a `token` of `class` that is not proposed, and counts as if it were.
    pub(super) fn withhold(&mut self, class: Class, token: u32) {
        self.withheld = Some((class, token));
    }

    /// Forgets a part of what was learned, where nothing is learned.
    pub(super) fn rest(&mut self) {
        self.mean += Acceptance::RETURN * (Acceptance::PRIOR_MEAN - self.mean);
    }

    fn count(&mut self, class: Class, is_right: bool) {
        let newest = f32::from(u8::from(is_right));
        for mean in [&mut self.right[usize::from(class.0)], &mut self.mean] {
            *mean += Acceptance::NEWEST * (newest - *mean);
        }
    }

    /// Records that the first `accepted` of the proposed tokens were right; where none was
    /// proposed, that `sampled` was the token instead.
    pub(in crate::engine) fn record(&mut self, accepted: usize, sampled: u32) {
        let count = std::mem::take(&mut self.count);
        if let Some((class, token)) = self.withheld.take().filter(|_| count == 0) {
            self.count(class, token == sampled);
        }
        for at in 0..count.min(accepted + 1) {
            self.count(self.proposed[at], at < accepted);
        }
    }
}

impl Default for Acceptance {
    fn default() -> Acceptance {
        Acceptance {
            right: Acceptance::PRIOR,
            mean: Acceptance::PRIOR_MEAN,
            proposed: [Class::default(); BLOCK_TOKENS - 1],
            count: 0,
            withheld: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(acceptance: &Acceptance, length: usize) -> f32 {
        acceptance.right(Class::of_length(length))
    }

    /// Proposes `count` tokens after `length` that are alike; the first `accepted` are right.
    fn proposed(acceptance: &mut Acceptance, length: usize, count: usize, accepted: usize) {
        (0..count).for_each(|at| acceptance.propose(Class::of_length(length + at)));
        acceptance.record(accepted, 0);
    }

    /// The estimates follow what was sampled, proposed or not.
    #[test]
    fn acceptance_is_learned_by_length() {
        let mut acceptance = Acceptance::default();
        for _ in 0..100 {
            acceptance.withhold(Class::of_length(3), 7);
            acceptance.record(0, 7);
            proposed(&mut acceptance, 9, 4, 0);
        }
        assert!(right(&acceptance, 4) > 0.99 && right(&acceptance, 15) < 0.01, "{acceptance:?}");
        assert_eq!(right(&acceptance, 16), Acceptance::PRIOR[3]);
        (0..100).for_each(|_| proposed(&mut acceptance, 14, 5, 4));
        assert!(right(&acceptance, 15) > 0.99, "{acceptance:?}");
        assert!((0.5..0.8).contains(&right(&acceptance, 16)), "two of three: {acceptance:?}");
    }

    #[test]
    fn acceptance_is_learned_by_probability() {
        let mut acceptance = Acceptance::default();
        let [likely, unlikely] = [0.95_f32, 0.2].map(|p| Class::of_logprob(p.ln()));
        assert_eq!((likely, unlikely), (Class(3), Class(0)));
        assert_eq!(Class::of_logprob(f32::NEG_INFINITY), Class(0));
        for _ in 0..100 {
            acceptance.propose(likely);
            acceptance.propose(unlikely);
            acceptance.record(1, 0);
        }
        assert!(acceptance.right(likely) > 0.99 && acceptance.right(unlikely) < 0.01);
        assert!((0.4..0.6).contains(&acceptance.mean()), "{acceptance:?}");
    }

    /// A request whose draft tokens did not pay tries them again.
    #[test]
    fn the_mean_returns_to_the_prior() {
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| proposed(&mut acceptance, 3, 1, 0));
        assert!(acceptance.mean() < 0.01);
        (0..1000).for_each(|_| acceptance.rest());
        assert!((acceptance.mean() - Acceptance::PRIOR_MEAN).abs() < 0.01, "{acceptance:?}");
    }
}
