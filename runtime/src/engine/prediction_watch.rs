//! Watches whether predictions rank requests better than their age alone, and decides whether the
//! scheduler trusts the predictions.
//!
//! Of each finished answer one prediction is kept, at a random age, with a weight of the number of
//! its predictions: the window estimates means over all predictions, not over answers, so that long
//! answers count as often as the scheduler meets them. Over a window, tau is the weight of the
//! pairs that the predictions order as the true remaining lengths do, less the weight of those
//! ordered the other way, over the weight of all pairs (a pair weighs the product). A constant
//! length counted down ranks by age; it is what TRAIL is left with if its predictions say nothing.
//! Trust is lost and found by a lead in tau, so that it does not follow the noise of a window.

use trail_platform::rng::mix;

/// Answers in the window.
const WINDOW: usize = 128;
/// Answers between two judgements.
const INTERVAL: usize = 16;
/// Lead in tau: 1.7 standard errors of tau over a window (sqrt(2 (2n + 5) / (9 n (n - 1))) = 0.06
/// where nothing is correlated and weights are equal).
const LEAD: f64 = 0.1;

/// One prediction of a finished answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// Output tokens at the prediction.
    generated: f32,
    /// Remaining tokens that were predicted.
    predicted: f32,
    /// Tokens that did remain.
    remaining: f32,
    /// Number of the answer's predictions.
    weight: f32,
}

impl Sample {
    fn error(&self) -> f32 {
        self.predicted - self.remaining
    }
}

/// How good the predictions of the last 128 answers were: estimates of means over all predictions,
/// from one of each answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PredictionWindow {
    /// Mean absolute error, tokens.
    pub mae: f64,
    /// Mean of predicted less true remaining tokens: 0 if calibrated.
    pub bias: f64,
    /// Kendall's tau of predicted and true remaining tokens.
    pub tau: f64,
    /// Tau of a constant length counted down, which ranks by age.
    pub tau_of_age: f64,
    /// False while the scheduler ranks by arrival, as the predictions rank worse than age.
    pub trusted: bool,
}

/// The window, and whether predictions are trusted.
pub(super) struct PredictionWatch {
    samples: Vec<Sample>,
    /// Answers so far.
    answers: usize,
    trusted: bool,
}

impl PredictionWatch {
    /// An empty window; predictions are trusted.
    pub(super) fn new() -> PredictionWatch {
        PredictionWatch { samples: Vec::with_capacity(WINDOW), answers: 0, trusted: true }
    }

    /// Adds the answer of request `id`, of `tokens`, with the predictions `(generated, remaining)`
    /// that were made. Returns a judgement where one is due.
    pub(super) fn finished(
        &mut self,
        id: u64,
        tokens: usize,
        predictions: &[(u32, f32)],
    ) -> Option<PredictionWindow> {
        let at = mix(id).checked_rem(predictions.len() as u64)?;
        let (generated, predicted) = predictions[at as usize];
        let generated = generated as f32;
        let (remaining, weight) = (tokens as f32 - generated, predictions.len() as f32);
        let sample = Sample { generated, predicted, remaining, weight };
        match self.samples.get_mut(self.answers % WINDOW) {
            Some(oldest) => *oldest = sample,
            None => self.samples.push(sample),
        }
        self.answers += 1;
        let is_due = self.samples.len() == WINDOW && self.answers.is_multiple_of(INTERVAL);
        is_due.then(|| self.judge())
    }

    fn judge(&mut self) -> PredictionWindow {
        let (tau, tau_of_age) = (self.tau(|sample| sample.predicted), self.tau(|s| -s.generated));
        let lead = tau - tau_of_age;
        self.trusted = if self.trusted { lead > -LEAD } else { lead > LEAD };
        PredictionWindow {
            mae: self.mean(|sample| sample.error().abs()),
            bias: self.mean(Sample::error),
            tau,
            tau_of_age,
            trusted: self.trusted,
        }
    }

    /// Returns the weighted mean of a value over the window.
    fn mean(&self, value: impl Fn(&Sample) -> f32) -> f64 {
        let weight: f64 = self.samples.iter().map(|s| f64::from(s.weight)).sum();
        let sum: f64 = self.samples.iter().map(|s| f64::from(s.weight * value(s))).sum();
        sum / weight
    }

    /// Returns the weighted tau of a predicted and the true remaining tokens.
    fn tau(&self, predicted: impl Fn(&Sample) -> f32) -> f64 {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (at, a) in self.samples.iter().enumerate() {
            for b in &self.samples[..at] {
                let weight = f64::from(a.weight * b.weight);
                let agrees = predicted(a).total_cmp(&predicted(b)) as i32
                    * a.remaining.total_cmp(&b.remaining) as i32;
                sum += weight * f64::from(agrees);
                weights += weight;
            }
        }
        sum / weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `answers` answers of 1 to 97 tokens with one prediction each, as `predict` makes it
    /// from age and remaining tokens. Returns the last judgement.
    fn feed(
        watch: &mut PredictionWatch,
        answers: u64,
        predict: impl Fn(u32, f32) -> f32,
    ) -> PredictionWindow {
        let judged = (0..answers).filter_map(|id| {
            let tokens = 1 + mix(id) % 97;
            let generated = (mix(id + 1000) % tokens) as u32;
            let remaining = tokens as f32 - generated as f32;
            watch.finished(id, tokens as usize, &[(generated, predict(generated, remaining))])
        });
        judged.last().expect("a judgement")
    }

    #[test]
    fn good_predictions_keep_their_trust() {
        let judgement = feed(&mut PredictionWatch::new(), 500, |_, remaining| remaining + 2.0);
        assert_eq!((judgement.mae, judgement.bias, judgement.trusted), (2.0, 2.0, true));
        assert!(judgement.tau > 0.95 && judgement.tau_of_age < 0.6, "{judgement:?}");
    }

    #[test]
    fn trust_is_lost_to_the_wrong_order_and_found_again() {
        let mut watch = PredictionWatch::new();
        let reversed = |_, remaining: f32| 100.0 - remaining;
        assert!(!feed(&mut watch, 500, reversed).trusted);
        // Neither order leads by enough: what is lost stays lost, what is trusted stays trusted.
        let as_age = |generated: u32, _| 200.0 - generated as f32;
        assert!(!feed(&mut watch, 500, as_age).trusted);
        assert!(feed(&mut PredictionWatch::new(), 500, as_age).trusted);
        assert!(feed(&mut watch, 500, |_, remaining| remaining).trusted);
    }

    /// Half the answers have 4 tokens, half 400. The predictions order all of the long answers'
    /// steps and are reversed within the short ones: over steps, nearly all pairs are in order.
    #[test]
    fn long_answers_count_by_their_steps() {
        let mut watch = PredictionWatch::new();
        let judged = (0..512).filter_map(|id| {
            let tokens: u32 = if id % 2 == 0 { 4 } else { 400 };
            let error = |generated: u32| if tokens == 4 { 500.0 } else { (generated % 2) as f32 };
            let predict = |age: u32| (age, (tokens - age) as f32 + error(age));
            let predictions: Vec<_> = (0..tokens).map(predict).collect();
            watch.finished(id, tokens as usize, &predictions)
        });
        let judgement = judged.last().expect("a judgement");
        // (4 x 500 + 400 x 0.5) / 404 over steps; over answers it would be 250.
        let mae = (4.0 * 500.0 + 400.0 * 0.5) / 404.0;
        assert!((judgement.mae - mae).abs() < 0.5, "{judgement:?}");
        assert!(judgement.tau > 0.9 && judgement.bias == judgement.mae, "{judgement:?}");
    }

    #[test]
    fn nothing_is_judged_without_predictions_or_before_a_window() {
        let mut watch = PredictionWatch::new();
        assert!((0..1000).all(|id| watch.finished(id, 5, &[]).is_none()));
        let early = (0..WINDOW as u64 - 1).all(|id| watch.finished(id, 5, &[(0, 5.0)]).is_none());
        assert!(early && watch.finished(0, 5, &[(0, 5.0)]).is_some());
    }
}
