//! Filling and writing a shard.

use std::collections::HashMap;

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::{Answer, FORMAT, Row, VERSION};

/// A shard in memory, filled request by request.
#[derive(Clone, Debug)]
pub struct Collected {
    layers: Vec<usize>,
    hidden: usize,
    answers: Vec<Answer>,
    rows: Vec<Row>,
    /// By place of the layer in `layers`: `[rows, hidden]`.
    activations: Vec<Vec<bf16>>,
    /// By place of the layer in `layers`: `[answers, hidden]`.
    means: Vec<Vec<bf16>>,
}

impl Collected {
    /// An empty shard of `layers`, whose activations are `hidden` wide.
    pub fn new(layers: &[usize], hidden: usize) -> Collected {
        let empty = vec![Vec::new(); layers.len()];
        Collected {
            layers: layers.to_vec(),
            hidden,
            answers: Vec::new(),
            rows: Vec::new(),
            activations: empty.clone(),
            means: empty,
        }
    }

    /// Appends an answer; its activations follow by [`Collected::extend`] and
    /// [`Collected::mean`].
    pub fn push(&mut self, answer: Answer) {
        self.answers.push(answer);
    }

    /// Appends positions of the last answer: tokens fed at each.
    pub fn push_rows(&mut self, generated: &[u32]) {
        let request = self.answers.len().checked_sub(1).expect("an answer") as u32;
        self.rows.extend(generated.iter().map(|&generated| Row { request, generated }));
    }

    /// Appends activations after the layer at place `layer`: `[rows, hidden]`.
    pub fn extend(&mut self, layer: usize, activations: &[f32]) {
        self.activations[layer].extend(activations.iter().map(|&x| bf16::from_f32(x)));
    }

    /// Appends the mean over the prompt after the layer at place `layer`: `[hidden]`.
    pub fn mean(&mut self, layer: usize, mean: &[f32]) {
        self.means[layer].extend(mean.iter().map(|&x| bf16::from_f32(x)));
    }

    /// Answers so far.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// The contents of the file, with further `metadata`.
    ///
    /// # Panics
    ///
    /// If a layer lacks activations of a row or of a prompt.
    pub fn to_bytes(&self, metadata: &[(&str, String)]) -> Vec<u8> {
        let (answers, rows) = (&self.answers, &self.rows);
        let words = |words: &mut dyn Iterator<Item = u32>| -> Vec<u8> {
            words.flat_map(u32::to_le_bytes).collect()
        };
        let halves = |values: &[bf16]| -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        };
        let ids = |of: fn(&Answer) -> &Vec<u32>| {
            let ends = answers.iter().scan(0, |end, answer| {
                *end += of(answer).len() as u32;
                Some(*end)
            });
            (words(&mut answers.iter().flat_map(of).copied()), words(&mut { ends }))
        };
        let (prompt_ids, prompt_ends) = ids(|answer| &answer.prompt);
        let (answer_ids, answer_ends) = ids(|answer| &answer.tokens);
        let mut tensors = vec![
            ("request.index".into(), words(&mut answers.iter().map(|answer| answer.index))),
            ("prompt.ids".into(), prompt_ids),
            ("prompt.ends".into(), prompt_ends),
            ("answer.ids".into(), answer_ids),
            ("answer.ends".into(), answer_ends),
            ("row.request".into(), words(&mut rows.iter().map(|row| row.request))),
            ("row.generated".into(), words(&mut rows.iter().map(|row| row.generated))),
        ]
        .into_iter()
        .map(|(name, data): (String, Vec<u8>)| (name, Dtype::U32, vec![data.len() / 4], data))
        .collect::<Vec<_>>();
        let stopped: Vec<u8> = answers.iter().map(|answer| answer.stopped.into()).collect();
        tensors.push(("request.stopped".into(), Dtype::U8, vec![stopped.len()], stopped));
        for (at, layer) in self.layers.iter().enumerate() {
            let parts = [
                ("rows", rows.len(), &self.activations[at]),
                ("means", answers.len(), &self.means[at]),
            ];
            for (name, count, values) in parts {
                assert_eq!(values.len(), count * self.hidden, "{name} of layer {layer}");
                let shape = vec![count, self.hidden];
                tensors.push((format!("{name}.{layer}"), Dtype::BF16, shape, halves(values)));
            }
        }
        let own = [("format", FORMAT.to_owned()), ("version", VERSION.to_owned())];
        let metadata: HashMap<String, String> = own
            .iter()
            .chain(metadata)
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect();
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            let view = TensorView::new(*dtype, shape.clone(), data);
            (name, view.expect("as many values as the shape says"))
        });
        safetensors::serialize(views, Some(metadata)).expect("distinct names and a small header")
    }
}
