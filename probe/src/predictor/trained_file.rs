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
//!
//! A linear head over a bag of tokens may have a further tensor `tokens` `[n]`, from version 3 on:
//! the ascending ids whose weights are in `weight`, which then is `[outputs, n]`. All other weights
//! are 0: of a vocabulary of 150,000 a training sees some thousands.

use std::path::Path;

use super::layers::Layer;
use super::rank_scale::{POINTS, RankScale};
use super::trained::{Features, Output, Pooling, Predictor};
use crate::error::Error;
use crate::file::{Common, Reader, Storage, read_file, serialize};

/// `format` of a predictor file.
const FORMAT: &str = "trail-prompt-predictor";

/// Newest version of the format.
const VERSION: u32 = 3;

/// Newest version without `tokens`.
const DENSE_VERSION: u32 = 2;

/// Largest vocabulary of a file with `tokens`, twice the largest known: a small file makes a layer
/// of so many inputs. Its ids are exact in `f32`.
const MAX_IDS: usize = 1 << 19;

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
        let tokens = read_tokens(&reader, &features)?;
        let layers = read_layers(&reader, &features, tokens.as_deref(), output.count())?;
        let model = reader.model()?;
        let record = reader.into_record();
        Ok(Predictor { model, record, ..Predictor::new(features, output, layers) })
    }

    /// The contents of a predictor file. Keys of the record that the format defines are left out.
    /// Panics if the fingerprint has more than 128 characters.
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
        let tokens = self.weighted_tokens();
        for (at, layer) in self.layers.iter().enumerate() {
            let name = |part| layer_tensor(at, self.layers.len(), part);
            let narrow = tokens.as_ref().map(|tokens| layer.narrowed(tokens));
            let layer = narrow.as_ref().unwrap_or(layer);
            tensors.push((name("weight"), vec![layer.outputs, layer.inputs()], layer.rows()));
            tensors.push((name("bias"), vec![layer.outputs], layer.bias.clone()));
        }
        if let Some(tokens) = &tokens {
            let ids = tokens.iter().map(|&id| id as f32).collect();
            tensors.push(("tokens".into(), vec![tokens.len()], ids));
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
        let version = if tokens.is_some() { VERSION } else { DENSE_VERSION };
        serialize(Common { format: FORMAT, version, bins, model, record }, &own, &views, storage)
    }

    /// The tokens with weights, if the file is smaller with these alone.
    fn weighted_tokens(&self) -> Option<Vec<usize>> {
        let Features::BagOfTokens { vocab } = self.features else { return None };
        let [layer] = &self.layers[..] else { return None };
        let weighted = layer.weighted_inputs();
        // An id takes as much as two weights in bf16.
        let is_smaller = weighted.len() * (layer.outputs + 2) < vocab * layer.outputs;
        (vocab <= MAX_IDS && !weighted.is_empty() && is_smaller).then_some(weighted)
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

/// The tokens with weights, if the file names them.
fn read_tokens(reader: &Reader<'_>, features: &Features) -> Result<Option<Vec<usize>>, Error> {
    let Features::BagOfTokens { vocab } = *features else { return Ok(None) };
    if !reader.has("tokens") {
        return Ok(None);
    }
    let count = reader.first_dimension("tokens")?;
    let values = reader.tensor("tokens", &[count])?;
    let ids: Vec<usize> = values.iter().map(|&id| id.max(0.0) as usize).collect();
    let are_ids = ids.iter().zip(&values).all(|(&id, &value)| id as f32 == value);
    let are_of_vocab = ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|&id| id < vocab);
    match are_ids && are_of_vocab && vocab <= MAX_IDS {
        true => Ok(Some(ids)),
        false => {
            let expected = format!("ascending ids of a vocabulary of up to {MAX_IDS} tokens");
            Err(reader.refuse("tokens", &expected, format!("others of {vocab} tokens")))
        }
    }
}

/// The layers from `features` to `outputs`; weights are those of `tokens`, if present.
fn read_layers(
    reader: &Reader<'_>,
    features: &Features,
    tokens: Option<&[usize]>,
    outputs: usize,
) -> Result<Vec<Layer>, Error> {
    let is_layer = |at: &usize| reader.has(&layer_tensor(*at, 2, "weight"));
    let count = (0..MAX_LAYERS).take_while(is_layer).count().max(1);
    // A layer between would be as wide as the file likes, times the vocabulary.
    if tokens.is_some() && count > 1 {
        return Err(reader.refuse("tokens", "one layer", format!("{count} layers")));
    }
    let mut width = tokens.map_or(features.width(), <[usize]>::len);
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
            Ok(match tokens {
                Some(tokens) => layer.widened(tokens, features.width()),
                None => layer,
            })
        })
        .collect()
}
