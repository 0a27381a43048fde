//! Loading an adapter: its configuration, then the factors of each projection by their names.

use std::path::Path;
use std::sync::Arc;

use super::config::AdapterConfig;
use super::{ADAPTER_FILES, Adapter, LowRank, Projection};
use crate::model::archive::Archive;
use crate::model::error::LoadError;
use crate::model::files::{self, WeightFiles};
use crate::model::{ModelConfig, Tensor};

const OTHER_BASE: &str = "pass an adapter that was trained on this model";

impl Adapter {
    /// Loads the adapter in `folder`, in PEFT's format, for models of `model`.
    pub fn load(folder: &Path, model: &ModelConfig) -> Result<Adapter, LoadError> {
        let [config, weights] = ADAPTER_FILES.map(|name| folder.join(name));
        let json = files::read_json(&config).map_err(missing)?;
        let archive = Archive::open(&WeightFiles::Single(weights)).map_err(missing)?;
        Adapter::from_archive(&config, &json, archive, model)
    }

    /// Builds the adapter from `json`, the content of `config`, and the tensors of `archive`.
    pub fn from_archive(
        config: &Path,
        json: &[u8],
        mut archive: Archive,
        model: &ModelConfig,
    ) -> Result<Adapter, LoadError> {
        if model.delta_net.is_some() {
            let (expected, found) = ("a base model without gated delta nets", "one with some");
            return Err(LoadError::new(config, "base model", expected, found, OTHER_BASE));
        }
        let parsed = AdapterConfig::parse(config, json)?;
        let mut found = [false; Projection::ALL.len()];
        let mut layers = Vec::with_capacity(model.num_layers);
        for layer in 0..model.num_layers {
            let mut factors = [const { None }; Projection::ALL.len()];
            for (projection, factors) in Projection::ALL.into_iter().zip(&mut factors) {
                *factors = load(&parsed, &mut archive, model, (layer, projection))?;
                found[projection as usize] |= factors.is_some();
            }
            layers.push(factors);
        }
        refuse_rest(&archive, model)?;
        let lacks = |projection: &&Projection| !found[**projection as usize];
        if let Some(lacking) = parsed.targets.iter().find(lacks) {
            let expected = format!("weights of {}", lacking.module());
            let remedy = "download the adapter again";
            return Err(LoadError::new(config, "target_modules", expected, "none", remedy));
        }
        if !found.contains(&true) {
            let expected = "weights of a projection";
            return Err(LoadError::new(archive.file(), "tensors", expected, "none", OTHER_BASE));
        }
        Ok(Adapter::new(model, layers))
    }
}

/// An adapter's file that cannot be read.
fn missing(error: LoadError) -> LoadError {
    let remedy = "pass the folder that PEFT's save_pretrained wrote: it has adapter_config.json \
                  and adapter_model.safetensors";
    LoadError { remedy: remedy.into(), ..error }
}

/// Takes the factors of a projection, if the adapter changes it.
fn load(
    config: &AdapterConfig,
    archive: &mut Archive,
    model: &ModelConfig,
    (layer, projection): (usize, Projection),
) -> Result<Option<LowRank>, LoadError> {
    let module = format!("model.layers.{layer}.{}", projection.module());
    let [a, b] = ["A", "B"].map(|part| format!("base_model.model.{module}.lora_{part}.weight"));
    let is_there = archive.contains(&a) || archive.contains(&b);
    if !is_there || !projection.is_in(layer, model) {
        return Ok(None);
    }
    let (rank, scale) = config.of(&module);
    let (outputs, inputs) = projection.shape(model);
    let mut take = |name: &str, rows, cols| {
        archive.matrix(name, rows, cols).map_err(|error| LoadError {
            remedy: format!("{OTHER_BASE}, with its own adapter_config.json"),
            ..error
        })
    };
    let a = copied(&take(&a, rank, inputs)?);
    let b = transposed(&take(&b, outputs, rank)?, |index| projection.original_output(index, model));
    Ok(Some(LowRank { a, b, scale }))
}

/// A copy of the matrix.
fn copied(tensor: &Tensor) -> Tensor {
    let bytes = Arc::new(tensor.bytes().to_vec());
    Tensor::new(tensor.dtype, tensor.rows, tensor.cols, bytes, 0).expect("the bytes of a matrix")
}

/// The transposed matrix, whose column `i` is row `row_of(i)`.
fn transposed(tensor: &Tensor, row_of: impl Fn(usize) -> usize) -> Tensor {
    let (bytes, size) = (tensor.bytes(), tensor.dtype.block_bytes());
    let mut out = Vec::with_capacity(bytes.len());
    for col in 0..tensor.cols {
        for row in 0..tensor.rows {
            out.extend_from_slice(&bytes[(row_of(row) * tensor.cols + col) * size..][..size]);
        }
    }
    Tensor::new(tensor.dtype, tensor.cols, tensor.rows, Arc::new(out), 0)
        .expect("the bytes of a matrix")
}

/// Refuses tensors that the forward pass would not use.
fn refuse_rest(archive: &Archive, model: &ModelConfig) -> Result<(), LoadError> {
    let Some(&name) = archive.rest().first() else { return Ok(()) };
    let expected = format!("lora_A and lora_B of projections of {} layers", model.num_layers);
    let remedy = format!(
        "{OTHER_BASE}; embeddings, heads, norms, biases and experts are not \
                          supported"
    );
    Err(LoadError::new(archive.file(), name, expected, "this tensor as well", remedy))
}
