//! Training of the prompt-only predictor: a linear classifier over the tokens of a prompt.
//!
//! Source of the optimizer: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 2011: a
//! token that is rare keeps a high rate.

use trail_base::Rng;
use trail_base::rng::mix;
use trail_probe::{Bins, Predictor};

/// Rates that are tried; the best by validation is kept.
const RATES: [f64; 4] = [0.003, 0.01, 0.03, 0.1];

/// Most passes over the prompts, and passes without a better loss that end a training.
const EPOCHS: u64 = 60;
const PATIENCE: u64 = 5;

/// A prompt with the length of its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Tokens that occur, and ln(1 + occurrences).
    features: Vec<(u32, f64)>,
    /// Output tokens of the answer.
    tokens: u32,
}

impl Prompt {
    /// The features of a prompt of tokens `ids`, whose answer has `tokens` output tokens.
    pub fn new(ids: &[u32], tokens: u32) -> Prompt {
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        let runs = sorted.chunk_by(|a, b| a == b);
        Prompt { features: runs.map(|run| (run[0], (run.len() as f64).ln_1p())).collect(), tokens }
    }
}

/// A trained predictor with its figures on the validation's prompts.
pub struct Trained {
    /// The predictor.
    pub predictor: Predictor,
    /// Mean cross-entropy of the bin of the total length.
    pub loss: f64,
    /// Passes over the prompts.
    pub epochs: u64,
    /// Rate that was best.
    pub rate: f64,
}

/// Trains on `training`; stops by, and chooses the rate by, `validation`. Token ids are below
/// `vocab`.
pub fn train(
    bins: Bins,
    vocab: usize,
    training: &[Prompt],
    validation: &[Prompt],
    seed: u64,
) -> Trained {
    let mut best: Option<(Classifier, f64, u64, f64)> = None;
    for rate in RATES {
        let mut classifier = Classifier::new(bins, vocab);
        let mut least = (f64::INFINITY, 0);
        for epoch in 1..=EPOCHS {
            classifier.pass(training, rate, &mut Rng::new(seed ^ mix(epoch)));
            let loss = classifier.loss(validation);
            if loss < least.0 {
                least = (loss, epoch);
                if best.as_ref().is_none_or(|best| loss < best.1) {
                    best = Some((classifier.clone(), loss, epoch, rate));
                }
            }
            if epoch >= least.1 + PATIENCE {
                break;
            }
        }
    }
    let (classifier, loss, epochs, rate) = best.expect("every loss is finite");
    Trained { predictor: classifier.predictor(), loss, epochs, rate }
}

/// Weights and sums of squared gradients, by token: `[vocab + 1][bins]`, the bias last.
#[derive(Clone)]
struct Classifier {
    bins: Bins,
    vocab: usize,
    weights: Vec<f64>,
    squares: Vec<f64>,
}

impl Classifier {
    fn new(bins: Bins, vocab: usize) -> Classifier {
        let zeros = vec![0.0; (vocab + 1) * bins.count()];
        Classifier { bins, vocab, weights: zeros.clone(), squares: zeros }
    }

    /// Log probabilities of the bins.
    fn log_probabilities(&self, prompt: &Prompt) -> Vec<f64> {
        let count = self.bins.count();
        let mut logits = self.weights[self.vocab * count..].to_vec();
        for &(token, feature) in &prompt.features {
            let weights = &self.weights[token as usize * count..][..count];
            logits.iter_mut().zip(weights).for_each(|(logit, weight)| *logit += feature * weight);
        }
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        logits.iter_mut().for_each(|logit| *logit -= largest + sum.ln());
        logits
    }

    fn loss(&self, prompts: &[Prompt]) -> f64 {
        let of = |prompt: &Prompt| -self.log_probabilities(prompt)[self.bins.bin_of(prompt.tokens)];
        prompts.iter().map(of).sum::<f64>() / prompts.len().max(1) as f64
    }

    /// A pass over `prompts` in random order, one at a time.
    fn pass(&mut self, prompts: &[Prompt], rate: f64, rng: &mut Rng) {
        let count = self.bins.count();
        let mut order: Vec<&Prompt> = prompts.iter().collect();
        crate::train::shuffle(&mut order, rng);
        for prompt in order {
            let mut gradient: Vec<f64> =
                self.log_probabilities(prompt).iter().map(|log_p| log_p.exp()).collect();
            gradient[self.bins.bin_of(prompt.tokens)] -= 1.0;
            let bias = (self.vocab as u32, 1.0);
            for &(token, feature) in prompt.features.iter().chain([&bias]) {
                let range = token as usize * count..(token as usize + 1) * count;
                let both = self.weights[range.clone()].iter_mut().zip(&mut self.squares[range]);
                for ((weight, square), slope) in both.zip(&gradient) {
                    let slope = slope * feature;
                    *square += slope * slope;
                    *weight -= rate * slope / (square.sqrt() + 1e-8);
                }
            }
        }
    }

    fn predictor(&self) -> Predictor {
        let count = self.bins.count();
        let by_bin = |bin: usize| (0..self.vocab).map(move |token| token * count + bin);
        let weight: Vec<f32> =
            (0..count).flat_map(by_bin).map(|at| self.weights[at] as f32).collect();
        let bias: Vec<f32> =
            self.weights[self.vocab * count..].iter().map(|&bias| bias as f32).collect();
        Predictor::new(self.bins, self.vocab, &weight, &bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_which_token_asks_for_a_long_answer() {
        let mut rng = Rng::new(2);
        let mut prompts = |count: usize| -> Vec<Prompt> {
            let one = |_| {
                let is_long = rng.below(2) == 0;
                let ids = [rng.below(90) as u32, rng.below(90) as u32, 90 + u32::from(is_long)];
                Prompt::new(&ids, if is_long { 400 } else { 30 })
            };
            (0..count).map(one).collect()
        };
        let (training, validation) = (prompts(300), prompts(60));
        let trained = train(Bins::default(), 100, &training, &validation, 1);
        assert!(trained.loss < 0.2, "{}", trained.loss);
        let said = |ids: &[u32]| trained.predictor.predict(ids);
        assert!(said(&[3, 91]) > 350.0 && said(&[3, 90]) < 80.0);
        let again = train(Bins::default(), 100, &training, &validation, 1);
        assert_eq!(again.loss, trained.loss);
    }

    #[test]
    fn occurrences_are_counted() {
        let prompt = Prompt::new(&[5, 3, 5], 10);
        assert_eq!(prompt.features, [(3, 1.0_f64.ln_1p()), (5, 2.0_f64.ln_1p())]);
    }
}
