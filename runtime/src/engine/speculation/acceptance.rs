//! Estimates of the share of draft tokens that are right.

/// Estimates of the probability that a request's draft token is right if those before it were,
/// by the number of tokens before it that are alike.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Acceptance {
    /// By class of length.
    right: [f32; Acceptance::CLASSES.len()],
    /// Length of the occurrence that was found last, and its next token.
    pub(super) guess: Option<(usize, u32)>,
}

impl Acceptance {
    /// Least lengths of the classes.
    const CLASSES: [usize; 4] = [3, 5, 8, 16];
    /// Before the first token: what copies and free texts have in the mean.
    const PRIOR: [f32; Acceptance::CLASSES.len()] = [0.4, 0.6, 0.8, 0.9];
    /// Weight of the newest token in the mean.
    const NEWEST: f32 = 0.1;

    fn class(length: usize) -> usize {
        Acceptance::CLASSES.partition_point(|&least| least <= length).saturating_sub(1)
    }

    pub(super) fn right(&self, length: usize) -> f32 {
        self.right[Acceptance::class(length)]
    }

    fn count(&mut self, length: usize, is_right: bool) {
        let mean = &mut self.right[Acceptance::class(length)];
        *mean += Acceptance::NEWEST * (f32::from(u8::from(is_right)) - *mean);
    }

    /// Records that of `drafts` tokens the first `accepted` were right; where none was proposed,
    /// that `sampled` was the token instead.
    pub(in crate::engine) fn record(&mut self, drafts: u32, accepted: u32, sampled: u32) {
        let Some((length, guess)) = self.guess.take() else { return };
        if drafts == 0 {
            return self.count(length, guess == sampled);
        }
        (0..accepted as usize).for_each(|at| self.count(length + at, true));
        if accepted < drafts {
            self.count(length + accepted as usize, false);
        }
    }
}

impl Default for Acceptance {
    fn default() -> Acceptance {
        Acceptance { right: Acceptance::PRIOR, guess: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimates follow what was sampled, proposed or not.
    #[test]
    fn acceptance_is_learned_by_length() {
        let mut acceptance = Acceptance::default();
        for _ in 0..100 {
            acceptance.guess = Some((3, 7));
            acceptance.record(0, 0, 7);
            acceptance.guess = Some((9, 7));
            acceptance.record(4, 0, 1);
        }
        assert!(acceptance.right(4) > 0.99 && acceptance.right(15) < 0.01, "{acceptance:?}");
        assert_eq!(acceptance.right(16), Acceptance::PRIOR[3]);
        for _ in 0..100 {
            acceptance.guess = Some((14, 7));
            acceptance.record(5, 4, 7);
        }
        assert!(acceptance.right(15) > 0.99, "{acceptance:?}");
        assert!((0.5..0.8).contains(&acceptance.right(16)), "two of three: {acceptance:?}");
    }
}
