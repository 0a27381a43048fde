//! Options of adapters.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use trail_runtime::model::{Adapter, ModelConfig};

use crate::error::Error;

/// Options of adapters.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct LoraArgs {
    /// A LoRA adapter as PEFT saves it, with its name in requests; serve and bench take several
    #[arg(long, alias = "lora-modules", value_name = "NAME=DIR")]
    lora: Vec<NamedFolder>,
}

/// A name, and the folder that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedFolder {
    name: String,
    folder: PathBuf,
}

impl FromStr for NamedFolder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, folder)) if !name.is_empty() && !folder.is_empty() => {
                Ok(NamedFolder { name: name.to_owned(), folder: folder.into() })
            }
            _ => Err("expected NAME=DIR: a name and a folder".into()),
        }
    }
}

/// An adapter by its name.
#[derive(Clone, Debug)]
pub struct NamedAdapter {
    /// Name in requests.
    pub name: String,
    /// Folder that it was loaded from.
    pub folder: PathBuf,
    /// The adapter.
    pub adapter: Arc<Adapter>,
}

impl NamedAdapter {
    /// Loads the adapter in `folder` for models of `config`.
    pub fn load(name: &str, folder: &Path, config: &ModelConfig) -> Result<NamedAdapter, Error> {
        let adapter = Arc::new(Adapter::load(folder, config)?);
        Ok(NamedAdapter { name: name.to_owned(), folder: folder.to_owned(), adapter })
    }
}

impl LoraArgs {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.lora.is_empty()
    }

    /// These options, or `others` if there are none.
    pub fn or(self, others: LoraArgs) -> LoraArgs {
        if self.lora.is_empty() { others } else { self }
    }

    /// Loads the adapters for models of `config`.
    pub fn load(&self, config: &ModelConfig) -> Result<Vec<NamedAdapter>, Error> {
        let load = |of: &NamedFolder| NamedAdapter::load(&of.name, &of.folder, config);
        self.lora.iter().map(load).collect()
    }

    /// Loads the adapter of a command that takes one at the most.
    pub fn load_one(&self, config: &ModelConfig) -> Result<Option<Arc<Adapter>>, Error> {
        if self.lora.len() > 1 {
            return Err(Error::usage("--lora: this command takes one adapter: give one"));
        }
        Ok(self.load(config)?.pop().map(|of| of.adapter))
    }
}
