//! A model with its tokenizer and chat template: of a folder in the Hugging Face layout, or of one
//! GGUF file.

use std::path::Path;

use trail_runtime::model::gguf::GgufModel;
use trail_runtime::model::{LoadError, Model, WeightFiles};
use trail_runtime::text::{ChatTemplate, Tokenizer};

use crate::notice::notice;

/// A model and its text parts.
pub(crate) struct LoadedModel {
    pub(crate) model: Model,
    /// `None` if the model has none: token ids can still be served.
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) template: ChatTemplate,
}

impl LoadedModel {
    /// Loads the model at `path`, whose weights are `weights`.
    pub(crate) fn load(path: &Path, weights: &WeightFiles) -> Result<LoadedModel, LoadError> {
        let WeightFiles::Gguf(file) = weights else {
            return LoadedModel::with_files_beside(path, Model::load(path)?);
        };
        let files = GgufModel::open(file)?;
        let (model, metadata) = (files.model()?, files.metadata());
        if !Tokenizer::is_in_gguf(metadata) {
            return LoadedModel::with_files_beside(file, model);
        }
        let vocab_size = model.config.vocab_size;
        let tokenizer = Some(Tokenizer::from_gguf(metadata, vocab_size)?);
        // A template inside of a GGUF file cannot be corrected: the model is served without it.
        let template = ChatTemplate::from_gguf(metadata, vocab_size).unwrap_or_else(|error| {
            notice(format_args!("warning: no chat template: {error}"));
            ChatTemplate::broken(error.to_string())
        });
        Ok(LoadedModel { model, tokenizer, template })
    }

    /// `model` with the text parts in the folder of `path`.
    fn with_files_beside(path: &Path, model: Model) -> Result<LoadedModel, LoadError> {
        let folder = trail_runtime::model::files::model_folder(path);
        let is_present = folder.join("tokenizer.json").is_file();
        let load = || Tokenizer::load(&folder, model.config.vocab_size);
        let tokenizer = is_present.then(load).transpose()?;
        Ok(LoadedModel { template: ChatTemplate::load(&folder)?, tokenizer, model })
    }
}
