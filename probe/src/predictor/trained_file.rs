//! The file of a trained predictor, `predictor.safetensors`.
//!
//! Tensors: `weight` `[outputs, inputs]` and `bias` `[outputs]` of a linear head, or
//! `layers.I.weight` and `layers.I.bias` of several layers, I from 0; `f32` or bf16. Metadata:
//! `format` = `trail-prompt-predictor`, and else that of a probe ([`file`](mod@crate::file)) but
//! for `layer` and `hidden_size`;
//! * `features`: `bag-of-tokens` (the default) with `vocab_size`, `prompt-length`, or `encoder`
//!   with `hidden_size`, `encoder` (its fingerprint) and `pooling` (`cls` or `mean`);
//! * `output`: `bins` (the default) with `edges`, `tokens`, or `score` with the tensors `scores`
//!   and `lengths` of its scale.

use std::path::Path;

use super::layers::Layer;
use super::rank_scale::{POINTS, RankScale};
use super::trained::{Features, Output, Pooling, Predictor};
use crate::error::Error;
use crate::file::{Common, Reader, Storage, read_file, serialize};

/// `format` of a predictor file.
const FORMAT: &str = "trail-prompt-predictor";

/// Newest version of the format.
const VERSION: u32 = 2;

/// Most layers of a head; ELIS's has 8.
const MAX_LAYERS: usize = 32;

/// Names of the outputs, in `output`.
const OUTPUTS: [&str; 3] = ["bins", "tokens", "score"];

/// Names of the features, in `features`.
const FEATURES: [&str; 3] = ["bag-of-tokens", "prompt-length", "encoder"];

impl Predictor {
    /// Reads the predictor file at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Predictor, Error> {
        let (bytes, name) = read_file(path.as_ref())?;
        Predictor::from_bytes(&bytes, &name)
    }

    /// Parses `bytes`, the contents of a predictor file; errors name the file `name`.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Predictor, Error> {
        let mut reader = Reader::new(bytes, name, FORMAT, VERSION)?;
        let features = read_features(&mut reader)?;
        let output = read_output(&mut reader)?;
        let layers = read_layers(&reader, features.width(), output.count())?;
        let model = reader.model()?;
        let record = reader.into_record();
        Ok(Predictor { model, record, ..Predictor::new(features, output, layers) })
    }

    /// The contents of a predictor file, of version 2. Keys of the record that the format defines
    /// are left out. Panics if the fingerprint has more than 128 characters.
    pub fn to_bytes(&self, storage: Storage) -> Vec<u8> {
        let mut own = vec![("features", self.features.name().to_owned())];
        match &self.features {
            Features::BagOfTokens { vocab } => own.push(("vocab_size", vocab.to_string())),
            Features::PromptLength => {}
            Features::Encoder { width, encoder, pooling } => own.extend([
                ("hidden_size", width.to_string()),
                ("encoder", encoder.clone()),
                ("pooling", pooling.name().to_owned()),
            ]),
        }
        let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let name = |part| layer_tensor(at, self.layers.len(), part);
            tensors.push((name("weight"), vec![layer.outputs, layer.inputs()], layer.rows()));
            tensors.push((name("bias"), vec![layer.outputs], layer.bias.clone()));
        }
        let (name, bins) = match &self.output {
            Output::Bins(bins) => (OUTPUTS[0], Some(**bins)),
            Output::Tokens => (OUTPUTS[1], None),
            Output::Score(scale) => {
                for (name, values) in [("scores", scale.scores()), ("lengths", scale.lengths())] {
                    tensors.push((name.into(), vec![values.len()], values.to_vec()));
                }
                (OUTPUTS[2], None)
            }
        };
        own.push(("output", name.to_owned()));
        let views: Vec<(&str, &[usize], &[f32])> =
            tensors.iter().map(|(name, shape, values)| (&**name, &**shape, &**values)).collect();
        let (model, record) = (self.model.as_deref(), &self.record);
        serialize(
            Common { format: FORMAT, version: VERSION, bins, model, record },
            &own,
            &views,
            storage,
        )
    }
}

/// Name of tensor `part` of layer `at` of `layers`.
fn layer_tensor(at: usize, layers: usize, part: &str) -> String {
    match layers {
        1 => part.to_owned(),
        _ => format!("layers.{at}.{part}"),
    }
}

fn read_features(reader: &mut Reader<'_>) -> Result<Features, Error> {
    Ok(match reader.one_of("features", &FEATURES)? {
        0 => Features::BagOfTokens { vocab: reader.integer("vocab_size", 1..=1 << 28)? as usize },
        1 => Features::PromptLength,
        _ => Features::Encoder {
            width: reader.integer("hidden_size", 1..=1 << 20)? as usize,
            encoder: reader.fingerprint("encoder")?,
            pooling: Pooling::ALL[reader.one_of("pooling", &Pooling::ALL.map(Pooling::name))?],
        },
    })
}

fn read_output(reader: &mut Reader<'_>) -> Result<Output, Error> {
    Ok(match reader.one_of("output", &OUTPUTS)? {
        0 => Output::Bins(Box::new(reader.bins()?)),
        1 => Output::Tokens,
        _ => {
            let points = reader.first_dimension("scores")?.min(*POINTS.end() + 1);
            let scores = reader.tensor("scores", &[points])?;
            let scale = RankScale::new(scores, reader.tensor("lengths", &[points])?);
            Output::Score(scale.map_err(|why| reader.refuse("scores", "a scale", why))?)
        }
    })
}

/// The layers from `inputs` to `outputs`.
fn read_layers(reader: &Reader<'_>, inputs: usize, outputs: usize) -> Result<Vec<Layer>, Error> {
    let is_layer = |at: &usize| reader.has(&layer_tensor(*at, 2, "weight"));
    let count = (0..MAX_LAYERS).take_while(is_layer).count().max(1);
    let mut width = inputs;
    (0..count)
        .map(|at| {
            let name = |part| layer_tensor(at, count, part);
            let rows = match at + 1 == count {
                true => outputs,
                false => reader.first_dimension(&name("weight"))?,
            };
            let weight = reader.tensor(&name("weight"), &[rows, width])?;
            let layer = Layer::new(&weight, &reader.tensor(&name("bias"), &[rows])?);
            width = rows;
            Ok(layer)
        })
        .collect()
}
