//! The examples of a training: rows of shards with the tokens that remained, split by request.

use std::collections::{HashMap, HashSet};
use std::fmt;

use ndarray::ArrayViewMut2;
use trail_platform::rng::mix;
use trail_probe::{AGES, Inputs, age_class};

use crate::matrix::Matrix;
use crate::shard::{Row, Shard};

/// One of so many requests is kept for validation.
const VALIDATION: u64 = 8;

/// Place of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A row of the shard: an activation of an output token.
    Row(u32),
    /// A request of the shard: the mean over its prompt.
    Prompt(u32),
}

/// An input and its label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Example {
    /// Shard, by its place.
    pub shard: u32,
    /// Place of the input in the shard.
    pub place: Place,
    /// Output tokens fed so far; 0 for a prompt.
    pub generated: u32,
    /// Output tokens that remain; of an answer that was cut, at least.
    pub remaining: u32,
    /// True if the answer was cut.
    pub is_cut: bool,
    /// Steps of the answer that it represents: more than one where rows were left out.
    pub weight: f32,
    /// Share of its answer: the steps that it represents by their age, so that each doubling of
    /// the age counts the same. Those of an answer's rows add to 1.
    pub share: f32,
}

/// Shards that cannot be trained on: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataError(pub String);

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DataError {}

/// Where the activations are.
#[derive(Clone, Copy)]
enum Source<'a> {
    Shards(&'a [Shard]),
    Matrix(Matrix<'a>),
}

/// The examples of some shards or of a matrix. An input is the outputs of some layers side by side,
/// then those that [`Inputs`] names: the same of the mean over the prompt and the logarithm of its
/// length; the class of age as five numbers, one for its class and zeros.
#[derive(Clone)]
pub struct Dataset<'a> {
    source: Source<'a>,
    layers: Vec<usize>,
    inputs: Inputs,
    width: usize,
    /// Examples of the requests that are trained on.
    pub training: Vec<Example>,
    /// Examples of the others.
    pub validation: Vec<Example>,
}

/// Seed of the split of `trail-rt probe train` and `predictor train`: a predictor that had seen the
/// answers on which a probe is judged would look too good beside it.
pub const SPLIT_SEED: u64 = 1;

/// True if the request of prompt `index` is kept for validation, in the split of `seed`.
pub fn is_validation(index: u32, seed: u64) -> bool {
    mix(seed ^ mix(u64::from(index))).is_multiple_of(VALIDATION)
}

impl<'a> Dataset<'a> {
    /// The examples of `shards` with activations alone, split by request: the same split for the
    /// same `seed`. Fails if a shard lacks a layer or has values that are not finite, or if there
    /// is nothing to train on.
    pub fn new(shards: &'a [Shard], layers: &[usize], seed: u64) -> Result<Dataset<'a>, DataError> {
        let width = shards.first().map_or(0, Shard::hidden);
        let mut data = Dataset {
            source: Source::Shards(shards),
            layers: layers.to_vec(),
            inputs: Inputs::default(),
            width,
            training: Vec::new(),
            validation: Vec::new(),
        };
        for (place, shard) in shards.iter().enumerate() {
            data.check(shard, shards)?;
            data.add(place as u32, shard, seed);
        }
        data.divided()
    }

    /// The examples of `matrix` with activations alone, split by answer: the same split for the
    /// same `seed`. Fails if there is nothing to train on.
    pub fn of_matrix(matrix: Matrix<'a>, seed: u64) -> Result<Dataset<'a>, DataError> {
        let mut rows: HashMap<u32, u32> = HashMap::new();
        let answers = || (0..matrix.remaining().len()).map(|row| matrix.answer(row));
        answers().for_each(|answer| *rows.entry(answer).or_default() += 1);
        let examples = answers().zip(matrix.remaining()).enumerate();
        let examples = examples.map(|(row, (answer, &remaining))| Example {
            shard: 0,
            place: Place::Row(row as u32),
            generated: 1,
            remaining,
            is_cut: false,
            weight: 1.0,
            share: 1.0 / rows[&answer] as f32,
        });
        let is_validated = |of: &Example| match of.place {
            Place::Row(row) => is_validation(matrix.answer(row as usize), seed),
            Place::Prompt(_) => false,
        };
        let (validation, training) = examples.partition(is_validated);
        let (source, width) = (Source::Matrix(matrix), matrix.width());
        let layers = vec![0];
        let inputs = Inputs::default();
        Dataset { source, layers, inputs, width, training, validation }.divided()
    }

    /// An error where a side of the split is empty.
    fn divided(self) -> Result<Dataset<'a>, DataError> {
        match self.training.is_empty() || self.validation.is_empty() {
            true => Err(DataError(format!(
                "{} rows to train on, {} to validate: collect more answers",
                self.training.len(),
                self.validation.len()
            ))),
            false => Ok(self),
        }
    }

    /// The same examples with these inputs.
    ///
    /// # Panics
    /// If there are any and the examples are of a matrix, which has the activation alone.
    pub fn with_inputs(self, inputs: Inputs) -> Dataset<'a> {
        let has_them = matches!(self.source, Source::Shards(_)) || inputs == Inputs::default();
        assert!(has_them, "a matrix has no inputs beside the activation");
        Dataset { inputs, ..self }
    }

    /// The inputs beside the activation.
    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    /// Width of an activation: of all layers together.
    pub fn activation_width(&self) -> usize {
        self.width * self.layers.len()
    }

    /// Width of an input.
    pub fn d(&self) -> usize {
        let prompt = if self.inputs.prompt { self.activation_width() + 1 } else { 0 };
        let age = if self.inputs.age { AGES } else { 0 };
        self.activation_width() + prompt + age
    }

    /// Writes the inputs of `examples` to the rows of `out` `[examples, d]`.
    pub fn gather(&self, examples: &[Example], out: &mut ArrayViewMut2<'_, f32>) {
        for (example, mut row) in examples.iter().zip(out.rows_mut()) {
            let row = row.as_slice_mut().expect("rows in standard order");
            let (activation, mut rest) = row.split_at_mut(self.activation_width());
            self.activation(example, activation);
            if self.inputs.prompt {
                let (mean, after) = rest.split_at_mut(self.activation_width());
                let request = self.request(example);
                self.activation(&Example { place: Place::Prompt(request), ..*example }, mean);
                after[0] = (self.prompt_tokens(example) as f32).ln();
                rest = &mut after[1..];
            }
            rest.fill(0.0);
            rest.iter_mut().skip(age_class(example.generated)).take(1).for_each(|of| *of = 1.0);
        }
    }

    /// Writes the activation of `example` to `out`.
    pub fn activation(&self, example: &Example, out: &mut [f32]) {
        let shard = match (self.source, example.place) {
            (Source::Shards(shards), _) => &shards[example.shard as usize],
            (Source::Matrix(matrix), Place::Row(row)) => {
                return out.copy_from_slice(matrix.activation(row as usize));
            }
            (Source::Matrix(_), Place::Prompt(_)) => unreachable!("a matrix has no prompts"),
        };
        for (&layer, out) in self.layers.iter().zip(out.chunks_exact_mut(self.width)) {
            match example.place {
                Place::Row(row) => shard.activation(layer, row as usize, out),
                Place::Prompt(request) => shard.mean(layer, request as usize, out),
            }
        }
    }

    /// Answers that are trained on.
    pub fn training_answers(&self) -> usize {
        let answers = self.training.iter().map(|of| (of.shard, self.request(of)));
        answers.collect::<HashSet<_>>().len()
    }

    /// The request of `example`, by its place in the shard; the answer of a matrix's row.
    pub fn request(&self, example: &Example) -> u32 {
        match (self.source, example.place) {
            (_, Place::Prompt(request)) => request,
            (Source::Matrix(matrix), Place::Row(row)) => matrix.answer(row as usize),
            (Source::Shards(shards), Place::Row(row)) => {
                shards[example.shard as usize].rows()[row as usize].request
            }
        }
    }

    /// Prompt tokens of the request of `example`, at least 1: of a matrix's row unknown.
    pub fn prompt_tokens(&self, example: &Example) -> u32 {
        let Source::Shards(shards) = self.source else { return 1 };
        let answers = shards[example.shard as usize].answers();
        answers[self.request(example) as usize].prompt.len().max(1) as u32
    }

    fn check(&self, shard: &Shard, shards: &[Shard]) -> Result<(), DataError> {
        let name = shard.name();
        if shard.hidden() != self.width {
            return Err(DataError(format!(
                "{name} has activations of width {}, {} of width {}: train on one collection",
                shard.hidden(),
                shards[0].name(),
                self.width
            )));
        }
        for &layer in &self.layers {
            if !shard.layers().any(|of| of == layer) {
                let has: Vec<String> = shard.layers().map(|layer| layer.to_string()).collect();
                return Err(DataError(format!(
                    "{name} has no layer {layer}: it has {}",
                    has.join(", ")
                )));
            }
            if let Some(what) = shard.non_finite(layer) {
                return Err(DataError(format!("{name}: {what}; collect it again")));
            }
        }
        Ok(())
    }

    fn add(&mut self, place: u32, shard: &Shard, seed: u64) {
        let mut push = |request: u32, in_shard: Place, generated: u32, weight: f32, share: f32| {
            let answer = &shard.answers()[request as usize];
            let example = Example {
                shard: place,
                place: in_shard,
                generated,
                remaining: answer.remaining(generated),
                is_cut: !answer.stopped,
                weight,
                share,
            };
            match is_validation(answer.index, seed) {
                true => self.validation.push(example),
                false => self.training.push(example),
            }
        };
        for request in 0..shard.answers().len() as u32 {
            push(request, Place::Prompt(request), 0, 1.0, 1.0);
        }
        let mut at = 0;
        for rows in shard.rows().chunk_by(|a, b| a.request == b.request) {
            let fed = shard.answers()[rows[0].request as usize].tokens.len() as u32 - 1;
            let steps = steps(rows, fed);
            let by_age = || steps.iter().zip(rows).map(|(of, row)| of / row.generated as f32);
            let sum: f32 = by_age().sum();
            for ((row, &weight), share) in rows.iter().zip(&steps).zip(by_age()) {
                push(row.request, Place::Row(at), row.generated, weight, share / sum);
                at += 1;
            }
        }
    }
}

/// The steps, of `fed`, that each of the `rows` of an answer represents: those that are nearest.
fn steps(rows: &[Row], fed: u32) -> Vec<f32> {
    let middle = |pair: &[Row]| 0.5 * (pair[0].generated + pair[1].generated) as f32;
    let inner = rows.windows(2).map(middle);
    let edges: Vec<f32> = [0.5].into_iter().chain(inner).chain([fed as f32 + 0.5]).collect();
    edges.windows(2).map(|edge| edge[1] - edge[0]).collect()
}
