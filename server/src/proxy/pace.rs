//! The time that a token takes in a slot.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Seconds a token before the first answer, and the bounds of what is measured.
const FIRST_S: f64 = 0.03;
const BOUNDS_S: RangeInclusive<f64> = 0.0005..=10.0;
/// Share of the measured times and tokens that an answer leaves to the next one.
const MEMORY: f64 = 0.98;

/// Seconds in a slot, and tokens, of the last answers.
pub(super) struct Pace {
    seconds: f64,
    tokens: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { seconds: FIRST_S, tokens: 1.0 }
    }
}

impl Pace {
    /// Seconds that a token takes in a slot, its share of the prompt's time included.
    pub(super) fn token_s(&self) -> f64 {
        (self.seconds / self.tokens).clamp(*BOUNDS_S.start(), *BOUNDS_S.end())
    }

    /// Takes in an answer.
    pub(super) fn add(&mut self, time: Duration, tokens: u32) {
        self.seconds = MEMORY * self.seconds + time.as_secs_f64();
        self.tokens = MEMORY * self.tokens + f64::from(tokens.max(1));
    }
}
