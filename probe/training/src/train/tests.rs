use std::sync::Arc;

use trail_probe::Inputs;
use trail_probe::reference::{self, Row};

use super::*;
use crate::matrix::Matrix;
use crate::shard::{Answer, Collected, Shard};
use crate::state::{restore, state_bytes};

/// Answers of 20 to 99 tokens; the first value of an activation says how many remain.
fn shards() -> Vec<Shard> {
    let mut rng = Rng::new(9);
    let shard = |first: u32, rng: &mut Rng| {
        let mut collected = Collected::new(&[1, 2], 4);
        for index in first..first + 40 {
            let tokens = 20 + rng.below(80) as u32;
            let answer =
                Answer { index, prompt: vec![1, 2], tokens: (0..tokens).collect(), stopped: true };
            let rows: Vec<u32> = (1..tokens).step_by(4).collect();
            collected.push(answer);
            collected.push_rows(&rows);
            for layer in 0..2 {
                for &row in &rows {
                    let signal = (tokens - row) as f32 * layer as f32;
                    collected.extend(layer, &[signal, rng.signed(), 3.0, rng.signed()]);
                }
                collected.mean(layer, &[tokens as f32, 0.0, 3.0, 0.0]);
            }
        }
        Shard::parse(Arc::new(collected.to_bytes(&[])), "shard").expect("a shard")
    };
    vec![shard(0, &mut rng), shard(40, &mut rng)]
}

fn recipe() -> Recipe {
    let bins = Bins::equal(5, 100);
    let dropout = [0.1, 0.1];
    Recipe { bins, hidden: 16, epochs: 6, batch: 16, rate: 0.01, dropout, ..Recipe::default() }
}

#[test]
fn the_layer_that_says_it_is_learned_and_the_other_is_not() {
    let shards = shards();
    let loss = |layer| {
        let data = Dataset::new(&shards, &[layer], 1).expect("data");
        let mut trainer = Trainer::new(data, recipe());
        while !trainer.is_done() {
            trainer.run_epoch().expect("finite");
        }
        trainer.best_epoch().expect("an epoch").mae
    };
    let (without, with) = (loss(1), loss(2));
    assert!(with < 8.0 && without > 15.0, "{with} {without}");
}

#[test]
fn the_weights_are_for_activations_as_they_are() {
    let shards = shards();
    for inputs in Inputs::ALL {
        let data = Dataset::new(&shards, &[1, 2], 1).expect("data").with_inputs(inputs);
        let mut trainer = Trainer::new(data.clone(), recipe());
        trainer.run_epoch().expect("finite");
        let weights = trainer.weights();
        assert_eq!((weights.d, weights.inputs()), (8, inputs));
        // A prompt, and a row of each of two classes of age.
        for at in [0, 20, 25] {
            let example = &data.validation[at..at + 1];
            let mut standardized = Array2::zeros((0, 0));
            trainer.gather(example, &mut standardized);
            let log_p = trainer.mlp.log_probabilities(standardized.view());
            let p = reference::forward(&weights, row(&data, &example[0], &mut [0.0; 16]));
            for (p, log_p) in p.probabilities.iter().zip(&log_p) {
                assert!((p - f64::from(*log_p).exp()).abs() < 1e-4);
            }
        }
    }
}

/// The inputs of `example`; `values` hold its activation and the mean over its prompt.
fn row<'a>(data: &Dataset<'_>, example: &Example, values: &'a mut [f32; 16]) -> Row<'a> {
    let (activation, mean) = values.split_at_mut(8);
    data.activation(example, activation);
    data.activation(&Example { place: Place::Prompt(data.request(example)), ..*example }, mean);
    let prompt = Some((&*mean, data.prompt_tokens(example)));
    Row { activation, generated: example.generated, prompt }
}

#[test]
fn a_training_that_was_stopped_ends_with_the_same_weights() {
    let shards = shards();
    let begin = || Trainer::new(Dataset::new(&shards, &[2], 1).expect("data"), recipe());
    let resume = |trainer: &mut Trainer<'_>, state: &[u8], key| {
        restore(&mut [("2".to_owned(), trainer)], state, key)
    };
    let mut whole = begin();
    let mut states = Vec::new();
    while !whole.is_done() {
        states.push(state_bytes(&[("2".to_owned(), &whole)], "key"));
        whole.run_epoch().expect("finite");
    }
    assert!(states.len() > 2);
    for state in &states {
        let mut resumed = begin();
        resume(&mut resumed, state, "key").expect("its own state");
        while !resumed.is_done() {
            resumed.run_epoch().expect("finite");
        }
        assert_eq!(resumed.weights(), whole.weights());
        assert_eq!(resumed.epochs(), whole.epochs());
    }
    let mut other = begin();
    let error = resume(&mut other, &states[1], "other").expect_err("another training");
    assert!(error.contains("other"), "{error}");
    let cut = &states[1][..states[1].len() - 1];
    assert!(resume(&mut other, cut, "key").expect_err("refused").starts_with("damaged"));
    assert_eq!(other.epochs(), []);
}

#[test]
fn prompts_and_rows_of_a_request_are_on_one_side() {
    let shards = shards();
    let data = Dataset::new(&shards, &[1], 7).expect("data");
    let requests = |examples: &[Example]| -> std::collections::BTreeSet<(u32, u32)> {
        let request = |of: &Example| match of.place {
            Place::Row(row) => (of.shard, shards[of.shard as usize].rows()[row as usize].request),
            Place::Prompt(request) => (of.shard, request),
        };
        examples.iter().map(request).collect()
    };
    let (training, validation) = (requests(&data.training), requests(&data.validation));
    assert!(training.is_disjoint(&validation));
    assert_eq!(training.len() + validation.len(), 80);
    let other = Dataset::new(&shards, &[1], 8).expect("data");
    assert_ne!(requests(&other.validation), validation);
}

#[test]
fn data_that_cannot_be_trained_on_are_refused() {
    let shards = shards();
    let error = Dataset::new(&shards, &[3], 1).err().expect("no such layer");
    assert_eq!(error.to_string(), "shard has no layer 3: it has 1, 2");
    assert!(Dataset::new(&[], &[1], 1).err().expect("nothing").0.contains("collect more"));
    let mut broken = Collected::new(&[1], 1);
    let tokens = vec![1, 2];
    broken.push(Answer { index: 0, prompt: vec![1], tokens, stopped: true });
    broken.push_rows(&[1]);
    broken.extend(0, &[f32::INFINITY]);
    broken.mean(0, &[1.0]);
    let broken = [Shard::parse(Arc::new(broken.to_bytes(&[])), "a.shard").expect("a shard")];
    let error = Dataset::new(&broken, &[1], 1).err().expect("not finite");
    assert!(error.0.starts_with("a.shard: rows.1 has NaN or infinity"), "{error}");
}

/// Rows of 200 answers in memory, whose first value says how many tokens remain.
fn matrix(rng: &mut Rng) -> (Vec<f32>, Vec<u32>, Vec<u32>) {
    let (mut values, mut remaining, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for answer in 0..200 {
        for _ in 0..4 {
            let left = rng.below(100) as u32;
            values.extend([left as f32, rng.signed(), 3.0, rng.signed()]);
            remaining.push(left);
            answers.push(answer);
        }
    }
    (values, remaining, answers)
}

#[test]
fn rows_in_memory_are_learned_and_those_of_an_answer_are_on_one_side() {
    let (values, remaining, answers) = matrix(&mut Rng::new(3));
    let matrix = Matrix::new(&values, 4, &remaining, &answers).expect("a matrix");
    let data = Dataset::of_matrix(matrix, 1).expect("data");
    assert_eq!(data.d(), 4);
    let with_more = std::panic::AssertUnwindSafe(|| data.clone().with_inputs(Inputs::ALL[3]));
    assert!(std::panic::catch_unwind(with_more).is_err(), "a matrix has the activation alone");
    let of = |examples: &[Example]| -> std::collections::BTreeSet<u32> {
        examples.iter().map(|example| data.request(example)).collect()
    };
    let (training, validation) = (of(&data.training), of(&data.validation));
    assert!(training.is_disjoint(&validation));
    assert_eq!(training.len() + validation.len(), 200);
    assert_eq!(data.training_answers(), training.len());
    assert!(data.training.iter().all(|example| example.share == 0.25));
    let mut trainer = Trainer::new(data, Recipe { epochs: 12, ..recipe() });
    while !trainer.is_done() {
        trainer.run_epoch().expect("finite");
    }
    let mae = trainer.best_epoch().expect("an epoch").mae;
    assert!(mae < 12.0, "{mae}");
}

#[test]
fn a_matrix_that_does_not_fit_its_labels_is_refused() {
    let why = |values: &[f32], width, remaining: &[u32], answers: &[u32]| {
        Matrix::new(values, width, remaining, answers).expect_err("refused").0
    };
    assert!(why(&[1.0; 6], 4, &[1, 2], &[]).contains("one length for each row"));
    assert!(why(&[1.0; 8], 4, &[1, 2], &[1]).contains("numbers of answers"));
    assert!(why(&[1.0, f32::NAN], 1, &[1, 2], &[]).contains("row 1 has NaN"));
    let matrix = Matrix::new(&[1.0; 8], 4, &[1, 2], &[]).expect("a matrix");
    assert!(Dataset::of_matrix(matrix, 1).err().expect("too few").0.contains("collect more"));
}
