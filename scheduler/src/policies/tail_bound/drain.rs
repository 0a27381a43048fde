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
    /// The work in output tokens, of which a prompt token costs `prefill_weight`.
    pub(crate) fn in_output_tokens(self, prefill_weight: f64) -> f64 {
        self.output + prefill_weight * self.prefill
    }
}

/// Mean step of a full batch, and what it leaves over at an arrival: by these a backlog of tokens
/// becomes a time.
pub(super) struct Drain {
    steps: StepLine,
    /// Decode rows of a full batch.
    rows: Recent<1>,
    /// Output tokens of the answers that ended, and their squares.
    lengths: Recent<2>,
}

/// Steps and answers that the means are over. A backlog is drained by far more steps than a short
/// mean has, and its maximum over time would be that of the mean's noise: with 256 steps, long
/// prompts in a row took D to twice its value.
const STEPS: u32 = 4096;
const ANSWERS: u32 = 1024;

impl Default for Drain {
    fn default() -> Drain {
        let steps = StepLine { moments: Recent::over(STEPS) };
        Drain { steps, rows: Recent::over(STEPS), lengths: Recent::over(ANSWERS) }
    }
}

impl Drain {
    /// Records a step that left requests waiting: its decode rows, prefill tokens and time.
    pub(super) fn on_full_step(&mut self, rows: usize, prefill: f64, elapsed_s: f64) {
        self.steps.add(prefill, elapsed_s);
        self.rows.add([rows as f64]);
    }

    /// Records the length of an answer.
    pub(super) fn on_finished(&mut self, tokens: u32) {
        let tokens = f64::from(tokens);
        self.lengths.add([tokens, tokens * tokens]);
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
        let (step_s, token_s) = self.steps.costs_s();
        (backlog.output / rows - residual).max(0.0) * step_s + backlog.prefill * token_s
    }
}

/// The line of step times over prefill tokens, by least squares over recent steps: most steps have
/// some prefill where many requests arrive, so none may show the time of the decodes alone.
struct StepLine {
    /// Means of p, t, p^2 and p t: prefill tokens and seconds.
    moments: Recent<4>,
}

impl StepLine {
    fn add(&mut self, prefill: f64, seconds: f64) {
        self.moments.add([prefill, seconds, prefill * prefill, prefill * seconds]);
    }

    /// Seconds of a step without prefill, and of a prefill token.
    fn costs_s(&self) -> (f64, f64) {
        let [p, t, pp, pt] = self.moments.mean;
        let variance = pp - p * p;
        // Without different amounts of prefill, the mean is all that is known.
        let token_s = if variance > 1e-6 * pp { (pt - p * t) / variance } else { 0.0 };
        let token_s = token_s.clamp(0.0, if p > 0.0 { t / p } else { 0.0 });
        (t - token_s * p, token_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_a_prefill_token_are_told_apart() {
        let mut line = StepLine { moments: Recent::over(100) };
        for step in 0..1000 {
            let prefill = f64::from(step * 37 % 100);
            line.add(prefill, 0.02 + 1e-4 * prefill);
        }
        let (step_s, token_s) = line.costs_s();
        assert!((step_s - 0.02).abs() < 1e-9 && (token_s - 1e-4).abs() < 1e-9);
        let mut line = StepLine { moments: Recent::over(100) };
        (0..10).for_each(|_| line.add(8.0, 0.5));
        assert_eq!(line.costs_s(), (0.5, 0.0), "always as much prefill");
    }

    /// 2 rows a step of 0.1 s; answers of 10 and 30 tokens: 500 / 20 = 12.5 are left of one.
    #[test]
    fn a_newcomer_enters_before_the_batch_is_done() {
        let mut drain = Drain::default();
        let backlog = Work { output: 100.0, prefill: 0.0 };
        assert_eq!(drain.wait_s(backlog), 0.0, "no step yet");
        drain.on_full_step(2, 0.0, 0.1);
        assert!((drain.wait_s(backlog) - 5.0).abs() < 1e-9, "no length yet");
        [10, 30].into_iter().for_each(|tokens| drain.on_finished(tokens));
        assert!((drain.wait_s(backlog) - 3.75).abs() < 1e-9, "(50 - 12.5) steps");
        assert_eq!(drain.wait_s(Work { output: 20.0, prefill: 0.0 }), 0.0);
    }
}
