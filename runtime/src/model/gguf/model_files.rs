//! The GGUF file of a model, or the several files into which it was split.

use std::path::{Path, PathBuf};

use super::config;
use super::file::GgufFile;
use super::metadata::{Metadata, Value};
use super::part::GgufPart;
use crate::model::rope_file::FACTORS;
use crate::model::size_limits::MAX_CONTEXT;
use crate::model::{Archive, LoadError, LongRope, Model, ModelConfig, RopeScaling, Storage, files};

/// Divisors of the rotary frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The same of LongRoPE: for contexts up to the original one, and beyond.
const LONG_ROPE_FACTORS: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
const DOWNLOAD_AGAIN: &str = "download all files of the model again, from one revision";

/// The mapped GGUF file(s) of one model.
pub struct GgufModel {
    /// The only file, or all parts in order.
    parts: Vec<GgufFile>,
}

impl GgufModel {
    /// Maps `file`, and if that is `NAME-00001-of-0000N.gguf`, all N parts beside it.
    pub fn open(file: &Path) -> Result<Self, LoadError> {
        let Some(part) = GgufPart::of(file) else {
            return Self::from_storage(file, files::map(file)?);
        };
        let paths = (1..=part.count).map(|index| part.path(file, index));
        let open = |path: PathBuf| GgufFile::read(&path, files::map(&path)?);
        let parts = paths.map(open).collect::<Result<Vec<_>, _>>()?;
        let tensors: usize = parts.iter().map(|part| part.tensors.len()).sum();
        for (index, file) in parts.iter().enumerate() {
            require(&file.metadata, "split.no", index)?;
            require(&file.metadata, "split.count", part.count)?;
        }
        for file in &parts {
            require(&file.metadata, "split.tensors.count", tensors)?;
        }
        Ok(GgufModel { parts })
    }

    /// Reads the one file whose content is `storage`.
    pub fn from_storage(file: &Path, storage: Storage) -> Result<Self, LoadError> {
        let only = GgufFile::read(file, storage)?;
        if only.metadata.get("split.count").is_some() {
            require(&only.metadata, "split.count", 1)?;
        }
        Ok(GgufModel { parts: vec![only] })
    }

    /// The metadata: of the first part, which has that of the model.
    pub fn metadata(&self) -> &Metadata {
        &self.parts[0].metadata
    }

    /// The only file, or all parts in order.
    pub(in crate::model) fn parts(&self) -> &[GgufFile] {
        &self.parts
    }

    /// The configuration, without the divisors of the rotary frequencies, which are a tensor.
    pub fn config(&self) -> Result<ModelConfig, LoadError> {
        let names = self.parts.iter().flat_map(|part| &part.tensors);
        let tied = names.into_iter().all(|tensor| tensor.name != "output.weight");
        config::read(self.metadata(), tied)
    }

    /// The model. Its matrices are the mapped ones.
    pub fn model(&self) -> Result<Model, LoadError> {
        let mut config = self.config()?;
        let mut archive = Archive::from_gguf(config.architecture, &self.parts)?;
        if archive.contains(ROPE_FACTORS) {
            config.rope_factors = Some(self.factors(&mut archive, &config, ROPE_FACTORS)?);
        }
        if let RopeScaling::LongRope { .. } = config.rope.scaling {
            let [short, long] =
                LONG_ROPE_FACTORS.map(|name| self.factors(&mut archive, &config, name));
            let original_context = self.original_context(&config)? as f64;
            config.long_rope = Some(LongRope { original_context, short: short?, long: long? });
        }
        Model::from_archive(config, archive)
    }

    /// Divisors of the rotary frequencies: the tensor `name`.
    fn factors(
        &self,
        archive: &mut Archive,
        config: &ModelConfig,
        name: &str,
    ) -> Result<Vec<f32>, LoadError> {
        let factors = archive.vector(name, config.rotary_dim() / 2)?;
        match factors.iter().find(|factor| !FACTORS.contains(factor)) {
            None => Ok(factors),
            Some(wrong) => {
                let expected = "factors from 1e-6 to 1e6";
                let (file, found) = (self.metadata().file(), wrong.to_string());
                Err(LoadError::new(file, name, expected, found, DOWNLOAD_AGAIN))
            }
        }
    }

    /// Context of the original training, tokens (LongRoPE).
    fn original_context(&self, config: &ModelConfig) -> Result<usize, LoadError> {
        let (name, _) = config::architecture(self.metadata())?;
        let key = format!("{name}.rope.scaling.original_context_length");
        let original = self.metadata().optional_size(&key, MAX_CONTEXT)?;
        Ok(original.unwrap_or(config.max_context))
    }
}

/// Fails unless the value of `key` is `expected`.
fn require(metadata: &Metadata, key: &str, expected: usize) -> Result<(), LoadError> {
    match metadata.get(key) {
        Some(Value::Int(found)) if usize::try_from(*found) == Ok(expected) => Ok(()),
        _ => Err(metadata.refuse(key, &expected.to_string(), DOWNLOAD_AGAIN)),
    }
}
