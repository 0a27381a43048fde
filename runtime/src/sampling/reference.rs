//! Reference of the sampler: f64, full sorts, one vector per stage.

use super::History;
use crate::backend::SamplingParams;

/// Natural-log probabilities of the raw logits.
pub(super) fn logprobs(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, &logit| max.max(f64::from(logit)));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit) - max - sum.ln()).collect()
}

/// Probability with which each token must be drawn; 0 for truncated tokens and those at minus
/// infinity. The temperature must not be 0.
pub(super) fn distribution(
    logits: &[f32],
    params: &SamplingParams,
    history: History<'_>,
) -> Vec<f64> {
    let tempered: Vec<f64> = penalised(logits, params, history)
        .iter()
        .map(|logit| logit / f64::from(params.temperature))
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| tempered[b].total_cmp(&tempered[a]).then(a.cmp(&b)));
    let best = tempered[order[0]];
    let mut probabilities: Vec<f64> = tempered.iter().map(|logit| (logit - best).exp()).collect();
    for probability in probabilities.iter_mut().filter(|p| **p < f64::from(params.min_p)) {
        *probability = 0.0;
    }
    if params.top_k > 0 {
        order.iter().skip(params.top_k as usize).for_each(|&id| probabilities[id] = 0.0);
    }
    let total: f64 = probabilities.iter().sum();
    let mut reached = 0.0;
    for &id in order.iter().filter(|_| params.top_p < 1.0) {
        let enough = reached >= f64::from(params.top_p) * total;
        reached += probabilities[id];
        if enough {
            probabilities[id] = 0.0;
        }
    }
    let kept: f64 = probabilities.iter().sum();
    probabilities.iter().map(|probability| probability / kept).collect()
}

fn penalised(logits: &[f32], params: &SamplingParams, history: History<'_>) -> Vec<f64> {
    let repetition = f64::from(params.repetition_penalty);
    let penalised = |(id, &logit): (usize, &f32)| {
        let count = history.generated.iter().filter(|&&token| token as usize == id).count();
        let seen = count > 0 || history.prompt.iter().any(|&token| token as usize == id);
        let bias = params.logit_bias.iter().find(|(token, _)| *token as usize == id);
        let logit = f64::from(logit) + bias.map_or(0.0, |&(_, bias)| f64::from(bias));
        let repeated = match (seen, logit > 0.0) {
            (false, _) => logit,
            (true, true) => logit / repetition,
            (true, false) => logit * repetition,
        };
        let presence = if count > 0 { f64::from(params.presence_penalty) } else { 0.0 };
        repeated - count as f64 * f64::from(params.frequency_penalty) - presence
    };
    logits.iter().enumerate().map(penalised).collect()
}
