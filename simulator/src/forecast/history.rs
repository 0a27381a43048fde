//! Recent traffic: the arrivals to expect, and the lengths of answers.

use std::collections::VecDeque;

use trail_platform::rng::Rng;

use super::calibration::Interval;

/// Answers and arrivals that are remembered.
const REMEMBERED: usize = 256;

/// Mean intervals between arrivals that are a pause.
const PAUSE: f64 = 20.0;

/// Output tokens expected before the first answer.
const UNKNOWN_TOKENS: f64 = 128.0;

/// A whole answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Output tokens.
    pub length: u32,
    /// Output tokens expected on its arrival.
    pub predicted: Option<f32>,
    /// Its priority: lower goes first.
    pub priority: i32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    answers: VecDeque<Answer>,
    arrivals: VecDeque<f64>,
    /// Time of the first of the arrivals that have come without a pause.
    since_s: f64,
}

impl History {
    pub(super) fn arrived(&mut self, at_s: f64) {
        let last_s = self.arrivals.back().copied();
        if last_s.is_none_or(|last_s| (at_s - last_s) * self.rate(last_s) > PAUSE) {
            self.since_s = at_s;
        }
        push(&mut self.arrivals, at_s);
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        push(&mut self.answers, answer);
    }

    /// Arrivals per second, of the remembered ones; 0 for fewer than two.
    pub(super) fn rate(&self, now_s: f64) -> f64 {
        let Some(&first) = self.arrivals.front().filter(|_| self.arrivals.len() > 1) else {
            return 0.0;
        };
        (self.arrivals.len() - 1) as f64 / (now_s - first).max(1e-9)
    }

    /// Seconds for which arrivals go on like the remembered ones, drawn: nothing is known but how
    /// long they have gone on, and the chance that they do so for as long again is a half.
    pub(super) fn goes_on_s(&self, now_s: f64, rng: &mut Rng) -> f64 {
        let past_s = now_s - self.since_s;
        let at = rng.uniform();
        past_s * at / (1.0 - at)
    }

    /// Mean length of the remembered answers as they were predicted, and the share of those
    /// predicted at `short` times that or longer whose answer was shorter.
    pub(super) fn found_short(&self, short: f64) -> (f64, f64) {
        let expected = |of: &Answer| of.predicted.map_or(f64::from(of.length), f64::from);
        let sum: f64 = self.answers.iter().map(expected).sum();
        let mean = sum / (self.answers.len() as f64).max(1.0);
        let long = self.answers.iter().filter(|of| expected(of) >= short * mean);
        let (mut all, mut found) = (0.0, 0.0);
        for answer in long {
            all += 1.0;
            found += f64::from(u8::from(f64::from(answer.length) < short * mean));
        }
        (mean, if all > 0.0 { found / all } else { 0.0 })
    }

    /// A remembered answer.
    pub(super) fn draw(&self, rng: &mut Rng) -> Option<Answer> {
        let len = self.answers.len() as u64;
        (len > 0).then(|| self.answers[rng.below(len) as usize])
    }

    /// Quantiles of the length over the predicted one, and of the length.
    pub(super) fn lengths(&self) -> [Interval; 2] {
        let lengths = || self.answers.iter().map(|of| (f64::from(of.length), of.predicted));
        let ratio = |(length, predicted): (f64, Option<f32>)| {
            predicted.map(|tokens| length / f64::from(tokens).max(1.0))
        };
        let of = |mut values: Vec<f64>, unknown: f64| match values.is_empty() {
            true => Interval { low: 0.3 * unknown, median: unknown, high: 2.3 * unknown },
            false => Interval::of(&mut values),
        };
        [
            of(lengths().filter_map(ratio).collect(), 1.0),
            of(lengths().map(|(length, _)| length).collect(), UNKNOWN_TOKENS),
        ]
    }

    /// Draws the length of an answer of more than `age` tokens; `expected`: as predicted on its
    /// arrival.
    pub(super) fn length(&self, expected: Option<f64>, age: f64, rng: &mut Rng) -> f64 {
        let mut longest: f64 = 0.0;
        for _ in 0..8 {
            let Some(answer) = self.draw(rng) else { break };
            let length = f64::from(answer.length);
            let length = match (expected, answer.predicted) {
                (Some(expected), Some(predicted)) => {
                    expected * length / f64::from(predicted).max(1.0)
                }
                _ => length,
            };
            longest = longest.max(length);
            if length > age {
                return length;
            }
        }
        // Longer than what is known: as much again, with a spread.
        let mean = expected.unwrap_or(UNKNOWN_TOKENS).max(longest - age).max(0.5 * age).max(1.0);
        age + mean * rng.exponential()
    }
}

fn push<T>(to: &mut VecDeque<T>, value: T) {
    if to.len() == REMEMBERED {
        to.pop_front();
    }
    to.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_arrivals() {
        let mut history = History::default();
        assert_eq!(history.rate(5.0), 0.0);
        (0..1000).for_each(|at| history.arrived(f64::from(at) / 8.0));
        let rate = history.rate(125.0);
        assert!((rate - 8.0).abs() < 0.05, "{rate}");
        assert!(history.rate(250.0) < 2.0, "a pause");
    }

    #[test]
    fn lengths_are_those_of_like_answers_beyond_the_age() {
        let mut rng = Rng::new(1);
        let mut history = History::default();
        let mean = |history: &History, expected, age, rng: &mut Rng| {
            (0..4000).map(|_| history.length(expected, age, rng)).sum::<f64>() / 4000.0
        };
        let unknown = mean(&history, None, 0.0, &mut rng);
        assert!((unknown - UNKNOWN_TOKENS).abs() < 8.0, "{unknown}");
        for (length, predicted) in [(100, 50.0), (25, 50.0)] {
            let predicted = Some(predicted);
            history.answered(Answer { prompt_tokens: 9, length, predicted, priority: 0 });
        }
        let relative = mean(&history, Some(20.0), 0.0, &mut rng);
        assert!((relative - 25.0).abs() < 1.0, "40 or 10: {relative}");
        assert!((0..100).all(|_| history.length(Some(20.0), 15.0, &mut rng) > 15.0));
        assert!((0..100).all(|_| history.length(None, 300.0, &mut rng) > 300.0));
    }
}
