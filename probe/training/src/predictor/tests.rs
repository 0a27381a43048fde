//! Trainings whose result is known.

use trail_platform::Rng;
use trail_probe::predictor::Pooling;
use trail_probe::{LengthPredictor, Prompt};

use super::*;

fn recipe(features: Features, objective: Objective) -> Recipe {
    Recipe { features, objective, hidden: 16, layers: 0, seed: 1 }
}

fn objectives() -> [Objective; 4] {
    [
        Objective::CrossEntropy(Box::default()),
        Objective::L1 { unit: 200.0 },
        Objective::Mse { unit: 200.0 },
        Objective::ListMle { bucket: 10 },
    ]
}

/// Prompts of three tokens; the last one decides if the answer has 400 tokens or 30.
fn prompts(features: &Features, count: usize, rng: &mut Rng) -> Vec<Example> {
    let one = |_| {
        let is_long = rng.below(2) == 0;
        let ids = [rng.below(90) as u32, rng.below(90) as u32, 90 + u32::from(is_long)];
        let tokens = if is_long { 400 } else { 30 };
        Example { inputs: features.of(&ids).expect("of tokens"), tokens }
    };
    (0..count).map(one).collect()
}

#[test]
fn each_objective_learns_which_token_asks_for_a_long_answer() {
    let features = Features::BagOfTokens { vocab: 100 };
    let mut rng = Rng::new(2);
    let (training, validation) =
        (prompts(&features, 300, &mut rng), prompts(&features, 60, &mut rng));
    for objective in objectives() {
        let recipe = recipe(features.clone(), objective.clone());
        let trained = train(&recipe, &training, &validation);
        let predicted =
            |ids: &[u32]| trained.predictor.predict(&Prompt::new(ids)).expect("of tokens").mean();
        let name = objective.name();
        assert!(
            predicted(&[3, 91]) > 300.0 && predicted(&[3, 90]) < 130.0,
            "{name}: {}",
            predicted(&[3, 91])
        );
        if matches!(objective, Objective::CrossEntropy(_)) {
            assert!(trained.loss < 0.2, "{}", trained.loss);
        }
        // Two lengths: half of the pairs are ties of the length and not of the prediction.
        let last = trained.curve[trained.epochs as usize - 1];
        assert!(last.loss == trained.loss && last.tau_b > 0.65, "{name}: {last:?}");
        let again = train(&recipe, &training, &validation);
        assert!(again.loss == trained.loss && again.predictor == trained.predictor, "{name}");
    }
}

#[test]
fn an_mlp_learns_what_a_linear_head_cannot() {
    // The answer is long if the two elements have the same sign.
    let features = Features::Encoder { width: 2, encoder: "e".into(), pooling: Pooling::Mean };
    let mut rng = Rng::new(4);
    let mut examples = |count: usize| -> Vec<Example> {
        let one = |_| {
            let inputs = [rng.signed(), rng.signed()];
            let tokens = if inputs[0] * inputs[1] > 0.0 { 300 } else { 40 };
            Example { inputs: (0..).zip(inputs.map(f64::from)).collect(), tokens }
        };
        (0..count).map(one).collect()
    };
    let (training, validation) = (examples(600), examples(100));
    let wrong = |trained: &Trained| {
        let is_wrong = |of: &&Example| {
            (trained.predictor.of_features(&of.inputs).mean() > 170.0) != (of.tokens > 170)
        };
        validation.iter().filter(is_wrong).count()
    };
    for objective in objectives() {
        let linear = recipe(features.clone(), objective.clone());
        let deep = Recipe { layers: 2, ..linear.clone() };
        let deep = wrong(&train(&deep, &training, &validation));
        let linear = wrong(&train(&linear, &training, &validation));
        assert!(deep < 15 && linear > 25, "{}: {deep} {linear}", objective.name());
    }
}

#[test]
fn a_scale_follows_the_lengths_and_keeps_the_order() {
    let mut rng = Rng::new(6);
    let mut pairs = |slope: f64| -> Vec<(f64, f64)> {
        let one = |at: u32| {
            let score = f64::from(at) / 100.0;
            (score, (slope * score + 10.0 + 20.0 * f64::from(rng.signed())).max(1.0))
        };
        (0..1000).map(one).collect()
    };
    let rising = scale(pairs(50.0));
    assert!(rising.scores().len() > 10);
    assert!((f64::from(rising.tokens(5.0)) - 260.0).abs() < 20.0, "{}", rising.tokens(5.0));
    // Scores that order lengths the wrong way: nothing is known of the length.
    let falling = scale(pairs(-1.0));
    assert!(falling.tokens(1.0) < falling.tokens(9.0));
    assert!((f64::from(falling.tokens(5.0)) - 10.0).abs() < 10.0, "{}", falling.tokens(5.0));
    scale(vec![(0.0, 5.0); 3]);
}
