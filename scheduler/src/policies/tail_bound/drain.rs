//! The time that first come, first served would let a new arrival wait.

use crate::policies::recent::Recent;

/// Work that is left, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    /// Output tokens.
    pub(crate) output: f64,
    /// Prompt tokens, and others without KV.
    pub(crate) prefill: f64,
}

impl Work {
    /// The work in output tokens; a prompt token costs `prefill_weight` such tokens.
    pub(crate) fn in_output_tokens(self, prefill_weight: f64) -> f64 {
        self.output + prefill_weight * self.prefill
    }
}

/// Mean step of a full batch, and what it leaves over at an arrival: by these a backlog of tokens
/// becomes a time.
pub(super) struct Drain {
    /// Seconds of a step over its prefill tokens: most steps have some where many requests arrive,
    /// so none may show the time of the decodes alone.
    steps: Line,
    /// Decode rows of a full batch.
    rows: Recent<1>,
    /// Output tokens of the answers that ended, and their squares.
    lengths: Recent<2>,
    /// The same over the predictions from their prompts. Where these are poor, requests that wait
    /// under shortest first are long by prediction more than in truth.
    predictions: Line,
    /// Tokens that were left of answers that had begun, over those that were expected then. A probe
    /// expects no more than its last bin of an answer that is far longer.
    expectations: Line,
    answers: u32,
}

/// Expectations of a request that has begun, each with the age at which it was made: their number
/// and sums.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expectations {
    count: f64,
    age: f64,
    expected: f64,
    squared: f64,
    by_age: f64,
}

impl Expectations {
    /// Adds an expectation of `expected` output tokens at `age`.
    pub(super) fn add(&mut self, age: u32, expected: f64) {
        let age = f64::from(age);
        self.count += 1.0;
        self.age += age;
        self.expected += expected;
        self.squared += expected * expected;
        self.by_age += expected * age;
    }
}

/// Steps and answers that the means are over. A backlog is drained by far more steps than a short
/// mean has, and its maximum over time would be that of the mean's noise: with 256 steps, long
/// prompts in a row took D to twice its value.
const STEPS: u32 = 4096;
const ANSWERS: u32 = 1024;

/// Answers before which predictions are believed as they are.
const FEWEST_ANSWERS: u32 = 64;

impl Default for Drain {
    fn default() -> Drain {
        Drain {
            steps: Line::over(STEPS),
            rows: Recent::over(STEPS),
            lengths: Recent::over(ANSWERS),
            predictions: Line::over(ANSWERS),
            expectations: Line::over(ANSWERS),
            answers: 0,
        }
    }
}

impl Drain {
    /// Records a step that left requests waiting: its decode rows, prefill tokens and time.
    pub(super) fn on_full_step(&mut self, rows: usize, prefill: f64, elapsed_s: f64) {
        self.steps.add(prefill, elapsed_s);
        self.rows.add([rows as f64]);
    }

    /// Records the length of an answer, its prediction from the prompt, and what was expected of it
    /// since. Returns true if predictions are corrected from this answer on.
    pub(super) fn on_finished(&mut self, tokens: u32, predicted: f64, since: Expectations) -> bool {
        let tokens = f64::from(tokens);
        self.lengths.add([tokens, tokens * tokens]);
        self.predictions.add(predicted, tokens);
        let Expectations { count, age, expected, squared, by_age } = since;
        let (left, product) = (count * tokens - age, expected * tokens - by_age);
        self.expectations.add_sums([count, expected, left, squared, product]);
        self.answers = self.answers.saturating_add(1);
        self.answers == FEWEST_ANSWERS
    }

    /// Output tokens of `requests` that have not begun, whose predictions add up to `predicted`, by
    /// what became of earlier predictions.
    pub(super) fn unbegun(&self, requests: f64, predicted: f64) -> f64 {
        self.corrected(&self.predictions, requests, predicted)
    }

    /// The same of requests that have begun, whose expectations add up to `expected`.
    pub(super) fn begun(&self, requests: f64, expected: f64) -> f64 {
        self.corrected(&self.expectations, requests, expected)
    }

    fn corrected(&self, line: &Line, requests: f64, expected: f64) -> f64 {
        if self.answers < FEWEST_ANSWERS || line.is_empty() {
            return expected;
        }
        let (a, b) = line.coefficients();
        a * requests + b * expected
    }

    /// Seconds until a request that arrives behind `backlog` enters the batch; 0 before a step was
    /// measured.
    ///
    /// A batch of n rows needs W / n steps for W output tokens, and prefill comes on top. When the
    /// newcomer enters, the others of its batch are not done: each has E\[X^2\] / 2 E\[X\] tokens
    /// to go, the mean residual of a length X (renewal theory).
    pub(super) fn wait_s(&self, backlog: Work) -> f64 {
        let ([rows], [mean, square]) = (self.rows.mean, self.lengths.mean);
        if rows < 1.0 {
            return 0.0;
        }
        let residual = if mean > 0.0 { square / (2.0 * mean) } else { 0.0 };
        let (step_s, token_s) = self.steps.coefficients();
        (backlog.output / rows - residual).max(0.0) * step_s + backlog.prefill * token_s
    }
}

/// A line y = a + b x of neither a negative a nor b, by least squares over recent pairs.
struct Line {
    /// The number of pairs that were added at a time, and their sums of x, y, x^2 and x y: means.
    sums: Recent<5>,
}

impl Line {
    fn over(memory: u32) -> Line {
        Line { sums: Recent::over(memory) }
    }

    fn add(&mut self, x: f64, y: f64) {
        self.add_sums([1.0, x, y, x * x, x * y]);
    }

    fn add_sums(&mut self, sums: [f64; 5]) {
        self.sums.add(sums);
    }

    fn is_empty(&self) -> bool {
        self.sums.mean[0] <= 0.0
    }

    /// a and b. Without different x the mean of y is all that is known, and is a.
    fn coefficients(&self) -> (f64, f64) {
        let [pairs, sums @ ..] = self.sums.mean;
        let [x, y, xx, xy] = sums.map(|sum| if pairs > 0.0 { sum / pairs } else { 0.0 });
        let variance = xx - x * x;
        let slope = if variance > 1e-6 * xx { (xy - x * y) / variance } else { 0.0 };
        let slope = slope.clamp(0.0, if x > 0.0 { y / x } else { 0.0 });
        (y - slope * x, slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_a_prefill_token_have_their_costs() {
        let mut line = Line::over(100);
        for step in 0..1000 {
            let prefill = f64::from(step * 37 % 100);
            line.add(prefill, 0.02 + 1e-4 * prefill);
        }
        let (step_s, token_s) = line.coefficients();
        assert!((step_s - 0.02).abs() < 1e-9 && (token_s - 1e-4).abs() < 1e-9);
        let mut line = Line::over(100);
        (0..10).for_each(|_| line.add(8.0, 0.5));
        assert_eq!(line.coefficients(), (0.5, 0.0), "always as much prefill");
    }

    /// 2 rows a step of 0.1 s; answers of 10 and 30 tokens: 500 / 20 = 12.5 are left of one.
    #[test]
    fn a_newcomer_enters_before_the_batch_is_done() {
        let mut drain = Drain::default();
        let backlog = Work { output: 100.0, prefill: 0.0 };
        assert_eq!(drain.wait_s(backlog), 0.0, "no step yet");
        drain.on_full_step(2, 0.0, 0.1);
        assert!((drain.wait_s(backlog) - 5.0).abs() < 1e-9, "no length yet");
        let none = Expectations::default();
        let corrects = [10, 30].map(|tokens| drain.on_finished(tokens, 20.0, none));
        assert_eq!(corrects, [false; 2]);
        assert!((drain.wait_s(backlog) - 3.75).abs() < 1e-9, "(50 - 12.5) steps");
        assert_eq!(drain.wait_s(Work { output: 20.0, prefill: 0.0 }), 0.0);
    }

    /// Predictions of 10 and 30 for answers of 15 and 25 on average: half of the difference holds.
    #[test]
    fn predictions_count_by_what_became_of_them() {
        let mut drain = Drain::default();
        let pairs = [(10, 10.0), (20, 10.0), (20, 30.0), (30, 30.0)];
        for (tokens, predicted) in pairs.into_iter().cycle().take(60) {
            drain.on_finished(tokens, predicted, Expectations::default());
        }
        assert_eq!(drain.unbegun(3.0, 120.0), 120.0, "too few yet");
        for (tokens, predicted) in pairs {
            drain.on_finished(tokens, predicted, Expectations::default());
        }
        assert!((drain.unbegun(3.0, 120.0) - (3.0 * 10.0 + 0.5 * 120.0)).abs() < 1e-9);
        assert_eq!(drain.begun(3.0, 120.0), 120.0, "nothing was expected of any");
    }

    /// Answers of 100 tokens; at token 20 40 are expected, at token 80 10: twice that is left. An
    /// answer that ends before the first expectation says nothing.
    #[test]
    fn expectations_count_by_what_was_left() {
        let mut drain = Drain::default();
        for answer in 0..FEWEST_ANSWERS {
            assert_eq!(drain.begun(3.0, 120.0), 120.0, "too few yet");
            let mut since = Expectations::default();
            if answer % 2 == 0 {
                [(20, 40.0), (80, 10.0)].into_iter().for_each(|(age, of)| since.add(age, of));
                drain.on_finished(100, 50.0, since);
            } else {
                drain.on_finished(5, 50.0, since);
            }
        }
        assert!((drain.begun(3.0, 120.0) - 240.0).abs() < 1e-9);
        assert!((drain.unbegun(2.0, 100.0) - 105.0).abs() < 1e-9, "105 of two");
    }
}
