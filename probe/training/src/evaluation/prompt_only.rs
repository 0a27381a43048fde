//! How good predictions from the prompt alone are.

use trail_platform::Rng;
use trail_platform::kendall::kendall_tau_b;
use trail_probe::Prediction;

use super::error::countdown;
use crate::train::shuffle;

/// Figures of one predictor over some answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PromptOnly {
    /// Mean absolute error of the total length, tokens.
    pub mae: f64,
    /// Root of the mean squared error of the total length, tokens.
    pub rmse: f64,
    /// Share of the lengths' variance that is explained (ELIS's R2).
    pub r2: f64,
    /// Mean absolute error of the remaining tokens over all steps, the prediction counted down.
    pub mae_countdown: f64,
    /// Kendall's tau-b of predicted and true lengths, over all pairs of answers (Learning to Rank).
    pub tau_b: f64,
    /// The same of the likeliest bins: a classifier whose equal classes go by arrival.
    pub tau_b_likeliest: f64,
    /// Share of the answers whose likeliest bin is the true one; `None` without bins.
    pub bin_accuracy: Option<f64>,
}

impl PromptOnly {
    /// The figures of some predictions, each with the answer's output tokens.
    pub fn of(answers: &[(Prediction, u32)]) -> PromptOnly {
        let count = answers.len().max(1) as f64;
        let length = |tokens: u32| f64::from(tokens);
        let mean = answers.iter().map(|of| length(of.1)).sum::<f64>() / count;
        let variance = answers.iter().map(|of| (length(of.1) - mean).powi(2)).sum::<f64>() / count;
        let error = |of: &(Prediction, u32)| f64::from(of.0.mean()) - length(of.1);
        let square = answers.iter().map(|of| error(of).powi(2)).sum::<f64>() / count;
        let (mut steps, mut stepwise) = (0, 0.0);
        for (prediction, tokens) in answers {
            let predicted = prediction.mean();
            let remaining = (0..*tokens as usize).zip((1..=*tokens).rev());
            steps += *tokens as usize;
            stepwise += remaining
                .map(|(step, left)| f64::from((countdown(predicted, step) - left as f32).abs()))
                .sum::<f64>();
        }
        let tau = |point: fn(&Prediction) -> f32| {
            let pair = |of: &(Prediction, u32)| (f64::from(point(&of.0)), length(of.1));
            kendall_tau_b(&answers.iter().map(pair).collect::<Vec<_>>())
        };
        PromptOnly {
            mae: answers.iter().map(|of| error(of).abs()).sum::<f64>() / count,
            rmse: square.sqrt(),
            r2: if variance > 0.0 { 1.0 - square / variance } else { 0.0 },
            mae_countdown: stepwise / steps.max(1) as f64,
            tau_b: tau(Prediction::mean),
            tau_b_likeliest: tau(Prediction::likeliest),
            bin_accuracy: bin_accuracy(answers),
        }
    }
}

/// Kendall's tau-b within batches of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchTau {
    /// Answers of a batch.
    pub batch: usize,
    /// Mean over the batches.
    pub mean: f64,
    /// Variance over the batches.
    pub variance: f64,
}

/// Random orders that the answers are cut into batches in.
const ORDERS: usize = 20;

impl BatchTau {
    /// Tau-b of predicted and true lengths within batches of `batch` answers, of as many as there
    /// are in some random orders (Learning to Rank, Table 5); `None` with fewer than two batches.
    pub fn of(answers: &[(Prediction, u32)], batch: usize) -> Option<BatchTau> {
        if batch < 2 || answers.len() < 2 * batch {
            return None;
        }
        let pair = |of: &(Prediction, u32)| (f64::from(of.0.mean()), f64::from(of.1));
        let mut pairs: Vec<(f64, f64)> = answers.iter().map(pair).collect();
        let mut rng = Rng::new(1);
        let mut taus = Vec::new();
        for _ in 0..ORDERS {
            shuffle(&mut pairs, &mut rng);
            taus.extend(pairs.chunks_exact(batch).map(kendall_tau_b));
        }
        let count = taus.len() as f64;
        let mean = taus.iter().sum::<f64>() / count;
        let variance = taus.iter().map(|tau| (tau - mean).powi(2)).sum::<f64>() / count;
        Some(BatchTau { batch, mean, variance })
    }
}

/// Share of the answers whose likeliest bin is the true one, if all predictions have bins.
fn bin_accuracy(answers: &[(Prediction, u32)]) -> Option<f64> {
    let is_right = |(prediction, tokens): &(Prediction, u32)| prediction.is_likeliest(*tokens);
    let right: Option<Vec<bool>> = answers.iter().map(is_right).collect();
    let right = right.filter(|right| !right.is_empty())?;
    Some(right.iter().filter(|right| **right).count() as f64 / right.len() as f64)
}
