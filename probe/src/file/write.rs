//! Writing the two formats of this crate.

use std::collections::{BTreeMap, HashMap};

use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::read::MODEL_CHARS;
use crate::bins::Bins;

/// Type in which a file holds the weights. Biases are `f32` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// `f32`, as they were trained.
    #[default]
    F32,
    /// bf16, rounded to nearest: half the bytes. A [`Head`](crate::Head) holds its weights so in
    /// any case.
    Bf16,
}

/// The metadata that both formats have.
pub(crate) struct Common<'a> {
    /// `trail-probe` or `trail-prompt-predictor`.
    pub(crate) format: &'a str,
    /// Version of the format.
    pub(crate) version: u32,
    /// `None` for a predictor without bins.
    pub(crate) bins: Option<Bins>,
    /// Fingerprint of the model.
    pub(crate) model: Option<&'a str>,
    /// Further keys. One that the format defines has no effect.
    pub(crate) record: &'a BTreeMap<String, String>,
}

/// A file with the metadata of `common`, `own` metadata of the format, and `tensors`
/// (name, shape, values). Panics if the fingerprint is too long.
pub(crate) fn serialize(
    common: Common<'_>,
    own: &[(&str, String)],
    tensors: &[(&str, &[usize], &[f32])],
    storage: Storage,
) -> Vec<u8> {
    let Common { format, version, bins, model, record } = common;
    let is_short = model.is_none_or(|model| model.chars().count() <= MODEL_CHARS);
    assert!(is_short, "a fingerprint of over {MODEL_CHARS} characters");
    let mut metadata: HashMap<String, String> = record.clone().into_iter().collect();
    let mut set = |key: &str, value: String| _ = metadata.insert(key.to_owned(), value);
    set("format", format.to_owned());
    set("version", version.to_string());
    if let Some(bins) = bins {
        let edges: Vec<String> = bins.edges().iter().map(f64::to_string).collect();
        set("edges", edges.join(","));
        // For other readers; this one takes the edges.
        set("max_tokens", bins.max_tokens().to_string());
        set("bins", bins.count().to_string());
    }
    own.iter().for_each(|(key, value)| set(key, value.clone()));
    model.into_iter().for_each(|model| set("model", model.to_owned()));
    let data: Vec<(Dtype, Vec<u8>)> =
        tensors.iter().map(|(_, shape, values)| stored(shape, values, storage)).collect();
    let views = tensors.iter().zip(&data).map(|((name, shape, _), (dtype, data))| {
        let view = TensorView::new(*dtype, shape.to_vec(), data);
        (*name, view.expect("a tensor has as many values as its shape says"))
    });
    safetensors::serialize(views, Some(metadata)).expect("distinct names and a small header")
}

/// Type and bytes of a tensor; a vector is a bias.
fn stored(shape: &[usize], values: &[f32], storage: Storage) -> (Dtype, Vec<u8>) {
    match storage {
        Storage::Bf16 if shape.len() > 1 => {
            let narrow = values.iter().map(|&value| bf16::from_f32(value));
            (Dtype::BF16, narrow.flat_map(bf16::to_le_bytes).collect())
        }
        _ => (Dtype::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    }
}
