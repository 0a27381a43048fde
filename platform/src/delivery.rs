//! Times at which the tokens of an answer come, as a reader feels them.

/// Tokens a second that a reader takes: a fast one (Andes, arXiv 2404.16283, has 3.3 to 4.8).
pub const READING_SPEED: f64 = 6.0;

/// The tokens of one answer, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delivery {
    tokens: u64,
    first_ns: u64,
    last_ns: u64,
    longest_gap_ns: u64,
    smooth_s: f64,
    hold_back_s: f64,
}

impl Delivery {
    /// Takes in the next token, at `at_ns`.
    pub fn token(&mut self, at_ns: u64) {
        if self.tokens == 0 {
            self.first_ns = at_ns;
        } else {
            self.longest_gap_ns = self.longest_gap_ns.max(at_ns.saturating_sub(self.last_ns));
            let (read, since_s) =
                (self.tokens as f64, at_ns.saturating_sub(self.first_ns) as f64 * 1e-9);
            self.smooth_s = self.smooth_s.max(since_s / read);
            self.hold_back_s = self.hold_back_s.max(since_s - read / READING_SPEED);
        }
        self.last_ns = at_ns;
        self.tokens += 1;
    }

    /// Time of the last token.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Longest time between two tokens, seconds; 0 for one.
    pub fn longest_gap_s(&self) -> f64 {
        self.longest_gap_ns as f64 * 1e-9
    }

    /// The least time that a reader who begins with the first token takes for each token and
    /// never waits, seconds; 0 for one token.
    pub fn smooth_s(&self) -> f64 {
        self.smooth_s
    }

    /// Seconds by which the first token would have to be held back so that a reader of
    /// [`READING_SPEED`] never waits.
    pub fn hold_back_s(&self) -> f64 {
        self.hold_back_s
    }
}

/// Share of the answers, by their [`Delivery::smooth_s`], in which a reader of [`READING_SPEED`]
/// never waits.
pub fn smooth_share(smooth_s: impl ExactSizeIterator<Item = f64>) -> f64 {
    let all = smooth_s.len().max(1) as f64;
    smooth_s.filter(|&seconds| seconds <= 1.0 / READING_SPEED).count() as f64 / all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(seconds: &[f64]) -> Delivery {
        let mut delivery = Delivery::default();
        seconds.iter().for_each(|at| delivery.token((at * 1e9) as u64));
        delivery
    }

    #[test]
    fn a_reader_waits_where_a_token_is_later_than_all_before_are_read() {
        let none = delivered(&[7.0]);
        assert_eq!((none.smooth_s(), none.longest_gap_s(), none.hold_back_s()), (0.0, 0.0, 0.0));
        // Eight tokens at once last for a second and a third, and the pause is longer.
        let mut seconds = vec![5.0; 8];
        seconds.push(7.0);
        let paused = delivered(&seconds);
        assert!((paused.smooth_s() - 0.25).abs() < 1e-6 && paused.longest_gap_s() == 2.0);
        assert!((paused.hold_back_s() - (2.0 - 8.0 / READING_SPEED)).abs() < 1e-6);
        let even = delivered(&[0.0, 0.1, 0.2, 0.3]);
        assert!((even.smooth_s() - 0.1).abs() < 1e-6 && even.hold_back_s() == 0.0);
        let shares = [none, paused, even].map(|of| of.smooth_s());
        assert!((smooth_share(shares.into_iter()) - 2.0 / 3.0).abs() < 1e-9);
    }
}
