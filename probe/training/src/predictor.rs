//! Training of a prompt-only length predictor: a head over features of the prompt.
//!
//! A bag of tokens has a linear head (`sparse`); dense features, a prompt's length or an embedding,
//! have a linear head or an MLP (`dense`). Each setting is tried, and the epoch and setting with
//! the least validation loss are kept.

mod dense;
mod learner;
mod sparse;

use trail_platform::Rng;
use trail_platform::kendall::kendall_tau_b;
use trail_platform::rng::mix;
use trail_probe::Predictor;
use trail_probe::predictor::{Features, Layer, Output, RankScale};

use crate::objective::{LIST, Objective};
use crate::train::shuffle;
use dense::Dense;
use learner::Learner;
pub use learner::{Example, Recipe, Setting};
use sparse::Sparse;

/// Most passes over the prompts, and passes without a better loss that end a training.
const EPOCHS: u64 = 60;
const PATIENCE: u64 = 5;

/// Points of the scale of scores.
const SCALE_POINTS: usize = 32;

/// A trained predictor with its figures on the validation's prompts.
pub struct Trained {
    /// The predictor.
    pub predictor: Predictor,
    /// The objective's mean loss.
    pub loss: f64,
    /// Passes over the prompts.
    pub epochs: u64,
    /// Rate and weight decay that were best.
    pub setting: Setting,
    /// The passes with this setting, in order, until the loss got no better.
    pub curve: Vec<Pass>,
}

/// A predictor after one pass over the prompts, judged on the validation's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// The objective's mean loss.
    pub loss: f64,
    /// Kendall's tau-b of predicted and true lengths.
    pub tau_b: f64,
}

/// Trains on `training`; stops by, and chooses the setting by, `validation`. Inputs have indices
/// below the features' width; neither list is empty.
pub fn train(recipe: &Recipe, training: &[Example], validation: &[Example]) -> Trained {
    let objective = &recipe.objective;
    match recipe.features {
        Features::BagOfTokens { vocab } => {
            search(&Sparse::new(vocab, objective.outputs()), recipe, training, validation)
        }
        _ => search(&Dense::new(recipe, training), recipe, training, validation),
    }
}

/// The predictor with the least loss on `validation`, from `start`.
fn search<L: Learner>(
    start: &L,
    recipe: &Recipe,
    training: &[Example],
    validation: &[Example],
) -> Trained {
    let held: Vec<&Example> = validation.iter().collect();
    let mut best: Option<Trained> = None;
    for &setting in L::SETTINGS {
        let mut learner = start.clone();
        let mut curve: Vec<Pass> = Vec::new();
        let (mut least, mut is_best) = ((f64::INFINITY, 0), false);
        for epoch in 1..=EPOCHS {
            pass(&mut learner, recipe, training, setting, &mut Rng::new(recipe.seed ^ mix(epoch)));
            let loss = loss(&learner, &recipe.objective, &held);
            let predictor = finished(recipe, learner.layers(), training);
            curve.push(Pass { loss, tau_b: tau_b(&predictor, validation) });
            if loss < least.0 {
                least = (loss, epoch);
                if best.as_ref().is_none_or(|best| loss < best.loss) {
                    best = Some(Trained { predictor, loss, epochs: epoch, setting, curve: vec![] });
                    is_best = true;
                }
            }
            if epoch >= least.1 + PATIENCE {
                break;
            }
        }
        if let Some(best) = best.as_mut().filter(|_| is_best) {
            best.curve = curve;
        }
    }
    best.expect("some loss is finite")
}

/// Kendall's tau-b of what `predictor` says of `examples` and their lengths.
fn tau_b(predictor: &Predictor, examples: &[Example]) -> f64 {
    let predicted = |of: &Example| f64::from(predictor.of_features(&of.inputs).mean());
    let pairs: Vec<_> = examples.iter().map(|of| (predicted(of), f64::from(of.tokens))).collect();
    kendall_tau_b(&pairs)
}

/// A pass over `examples` in random order.
fn pass(
    learner: &mut impl Learner,
    recipe: &Recipe,
    examples: &[Example],
    setting: Setting,
    rng: &mut Rng,
) {
    let mut order: Vec<&Example> = examples.iter().collect();
    shuffle(&mut order, rng);
    for examples in order.chunks(learner.batch(&recipe.objective)) {
        let lengths: Vec<u32> = examples.iter().map(|example| example.tokens).collect();
        let slopes = |outputs: &mut [f64]| recipe.objective.slopes(outputs, &lengths, rng);
        learner.step(examples, slopes, setting);
    }
}

/// Mean loss over `examples`; the same lists and ties each time.
fn loss(learner: &impl Learner, objective: &Objective, examples: &[&Example]) -> f64 {
    let lengths: Vec<u32> = examples.iter().map(|example| example.tokens).collect();
    objective.slopes(&mut learner.outputs(examples), &lengths, &mut Rng::new(1))
}

/// The predictor of the trained `layers`, whose outputs are brought to tokens.
fn finished(recipe: &Recipe, mut layers: Vec<Layer>, training: &[Example]) -> Predictor {
    let features = recipe.features.clone();
    let output = match &recipe.objective {
        Objective::CrossEntropy(bins) => Output::Bins(bins.clone()),
        Objective::L1 { unit } | Objective::Mse { unit } => {
            let last = layers.pop().expect("at least one layer");
            let times = |values: Vec<f32>| -> Vec<f32> {
                values.into_iter().map(|value| value * *unit as f32).collect()
            };
            layers.push(Layer::new(&times(last.rows()), &times(last.bias)));
            Output::Tokens
        }
        Objective::ListMle { .. } => {
            // The raw score, by way of an output that is a number.
            let raw = Predictor::new(features.clone(), Output::Tokens, layers.clone());
            let score = |example: &Example| raw.outputs(&example.inputs)[0];
            let pairs = training.iter().map(|of| (score(of), f64::from(of.tokens))).collect();
            Output::Score(scale(pairs))
        }
    };
    Predictor::new(features, output, layers)
}

/// The scale of some (score, tokens): the mean length of neighbouring scores, made to increase by
/// pooling neighbours (isotonic regression). The order is the scores', whatever the scale.
fn scale(mut pairs: Vec<(f64, f64)>) -> RankScale {
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Sums of scores and lengths, and how many.
    let mut pools: Vec<(f64, f64, f64)> = Vec::new();
    for group in pairs.chunks(pairs.len().div_ceil(SCALE_POINTS).max(LIST / 4)) {
        let sum = |of: fn(&(f64, f64)) -> f64| group.iter().map(of).sum::<f64>();
        let mut pool = (sum(|pair| pair.0), sum(|pair| pair.1), group.len() as f64);
        while let Some(last) = pools.pop_if(|last| {
            // At least a token apart, and scores that f32 tells apart.
            pool.1 / pool.2 < last.1 / last.2 + 1.0
                || (pool.0 / pool.2) as f32 <= (last.0 / last.2) as f32
        }) {
            pool = (pool.0 + last.0, pool.1 + last.1, pool.2 + last.2);
        }
        pools.push(pool);
    }
    if let [(score, tokens, count)] = pools[..] {
        // The scores say nothing of the length: a scale that keeps their order all the same.
        let (score, tokens) = ((score / count) as f32, (tokens / count) as f32);
        let apart = score.abs().max(1.0);
        let scores = vec![score - apart, score + apart];
        return RankScale::new(scores, vec![tokens.max(2.0) - 1.0, tokens.max(2.0) + 1.0])
            .expect("two points that increase");
    }
    let scores = pools.iter().map(|pool| (pool.0 / pool.2) as f32).collect();
    let lengths = pools.iter().map(|pool| ((pool.1 / pool.2) as f32).max(f32::MIN_POSITIVE));
    RankScale::new(scores, lengths.collect()).expect("pools increase")
}

#[cfg(test)]
mod tests;
