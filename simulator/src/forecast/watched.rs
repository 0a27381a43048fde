//! Estimates that wait for what comes, and the corrections that follow from it.

use std::collections::{HashMap, VecDeque};

use trail_platform::rng::Rng;

use super::Forecast;
use super::calibration::{Calibration, Interval, Known};
use super::class::{CLASSES, Class, Corrections, Token};

/// Times that came over which the coverage is counted.
const WINDOW: usize = 256;

/// An estimate that waits for what comes.
#[derive(Clone, Copy, Debug)]
struct Pending {
    token: Token,
    class: Class,
    made_s: f64,
    corrected: Interval,
    raw: Interval,
    /// Number of estimates that it was chosen from.
    chosen_from: u64,
}

/// The estimates of live requests that will be compared with what comes.
pub(super) struct Watched {
    rng: Rng,
    pending: HashMap<u64, Vec<Pending>>,
    classes: [Vec<Calibration>; 2],
    /// True for each of the last times that came within its interval.
    held: VecDeque<bool>,
    pub(super) corrections: Corrections,
}

impl Watched {
    pub(super) fn new(seed: u64) -> Watched {
        Watched {
            rng: Rng::new(seed),
            pending: HashMap::new(),
            classes: [0, 1].map(|_| vec![Calibration::default(); CLASSES]),
            held: VecDeque::new(),
            corrections: Corrections::default(),
        }
    }

    /// Share of the last times that were within the intervals given before; `None` before the
    /// first.
    pub(super) fn coverage(&self) -> Option<f64> {
        let held = self.held.iter().filter(|&&held| held).count();
        (!self.held.is_empty()).then(|| held as f64 / self.held.len() as f64)
    }

    /// Takes in that request `id` is live.
    pub(super) fn begin(&mut self, id: u64) {
        self.pending.entry(id).or_default();
    }

    /// Keeps one of a request's estimates in each class that it passes through, any with equal
    /// chance. Not of one that is no longer live: a queue may be older than its end.
    pub(super) fn add(
        &mut self,
        id: u64,
        (token, class): (Token, Class),
        (raw, corrected): (Interval, Interval),
        made_s: f64,
    ) {
        let Some(all) = self.pending.get_mut(&id) else { return };
        match all.iter_mut().find(|of| (of.token, of.class) == (token, class)) {
            None => {
                all.push(Pending { token, class, made_s, raw, corrected, chosen_from: 1 });
            }
            Some(of) => {
                of.chosen_from += 1;
                if self.rng.below(of.chosen_from) == 0 {
                    (of.made_s, of.raw, of.corrected) = (made_s, raw, corrected);
                }
            }
        }
    }

    /// Compares the estimates of `token` of request `id` with the time at which it came.
    pub(super) fn came(&mut self, id: u64, token: Token, at_s: f64) {
        let Some(all) = self.pending.get_mut(&id) else { return };
        for of in all.extract_if(.., |of| of.token == token) {
            self.classes[token as usize][usize::from(of.class)].record(of.raw, at_s - of.made_s);
            if self.held.len() == WINDOW {
                self.held.pop_front();
            }
            self.held.push_back(of.corrected.contains(at_s - of.made_s));
        }
    }

    /// Forgets request `id`.
    pub(super) fn forget(&mut self, id: u64) {
        self.pending.remove(&id);
    }

    /// Computes the corrections from what has come, and from what has not: `expected` is what was
    /// last estimated, at time `then_s`.
    pub(super) fn update(&mut self, now_s: f64, step_s: f64, expected: &[Forecast], then_s: f64) {
        self.corrections.step_s = step_s.max(1e-6);
        let scale = self.corrections.scale();
        let mut open = [0, 1].map(|_| vec![Vec::new(); CLASSES]);
        let mut add = |of: &Pending, known| {
            open[of.token as usize][usize::from(of.class)].push((of.raw, known));
        };
        for of in self.pending.values().flatten().filter(|of| !of.class.is_of_arrivals()) {
            add(of, Known::Passed(now_s - of.made_s));
        }
        for forecast in expected {
            let all = self.pending.get(&forecast.id).into_iter().flatten();
            for of in all.filter(|of| of.class.is_of_arrivals()) {
                let interval = match of.token {
                    Token::First => forecast.first,
                    Token::Last => Some(forecast.last),
                };
                let Some(Interval { low, median, high }) = interval else { continue };
                // Three points with the mean and the variance of what they stand for (Keefer and
                // Bodily 1983).
                let at = [low, low, low, median, median, median, median, high, high, high];
                add(of, Known::Expected(then_s - of.made_s + at[forecast.id as usize % 10]));
            }
        }
        for ((of, classes), open) in self.corrections.of.iter_mut().zip(&self.classes).zip(&open) {
            for (at, ((of, class), open)) in of.iter_mut().zip(classes).zip(open).enumerate() {
                *of = class.correction(open, Class::outside(at), scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::class::Stage;
    use super::*;

    /// By the interval that was given, not by the raw one; over the last [`WINDOW`] times.
    #[test]
    fn the_coverage_is_the_share_of_times_within_their_interval() {
        let mut watched = Watched::new(1);
        assert_eq!(watched.coverage(), None);
        let mut held = Vec::new();
        for id in 0..2 * WINDOW as u64 {
            let raw = Interval { low: 0.0, median: 0.5, high: 100.0 };
            let given = Interval { low: 1.0, median: 2.0, high: 3.0 };
            let class = watched.corrections.class(Stage::Waiting { started: false }, raw);
            watched.begin(id);
            watched.add(id, (Token::Last, class), (raw, given), 10.0);
            // A second and three are within; a cut answer and a first token say nothing of this.
            let seconds = (id * id % 7) as f64;
            watched.came(id, Token::First, 10.0);
            if id % 5 != 0 {
                watched.came(id, Token::Last, 10.0 + seconds);
                held.push((1.0..=3.0).contains(&seconds));
            }
            watched.forget(id);
        }
        let last = &held[held.len() - WINDOW..];
        let share = last.iter().filter(|&&held| held).count() as f64 / WINDOW as f64;
        assert_eq!(watched.coverage(), Some(share));
        assert!((0.2..0.8).contains(&share), "{share}");
    }
}
