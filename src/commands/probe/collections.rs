//! Collections that a training takes as one: answers at several temperatures, or of several runs.

use std::path::PathBuf;

use trail_cli::Error;
use trail_training::Shard;

use super::collection::{Collection, Settings};

/// Collections of one model, with the same layers.
pub struct Collections {
    parts: Vec<Collection>,
    settings: Settings,
}

impl Collections {
    /// Opens the folders, one at least.
    pub fn open(folders: &[PathBuf]) -> Result<Collections, Error> {
        let parts: Vec<Collection> =
            folders.iter().map(|folder| Collection::open(folder)).collect::<Result<_, _>>()?;
        let mut settings = parts[0].settings().clone();
        for part in &parts[1..] {
            let of = part.settings();
            let differs = match of.fingerprint == settings.fingerprint {
                false => Some("of another model"),
                true => (of.layers != settings.layers).then_some("of other layers"),
            };
            if let Some(other) = differs {
                return Err(Error::usage(format!(
                    "{} is {other} than {}: collect it with the same --model and --layers",
                    part.path().display(),
                    parts[0].path().display()
                )));
            }
            settings.requests += of.requests;
            settings.max_tokens = settings.max_tokens.max(of.max_tokens);
        }
        Ok(Collections { parts, settings })
    }

    /// The settings of the first one, with the requests of all and the most output tokens.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Reads the shards of all; fails if some are missing.
    pub fn read_all(&self) -> Result<Vec<Shard>, Error> {
        let shards = self.parts.iter().map(Collection::read_all).collect::<Result<Vec<_>, _>>()?;
        Ok(shards.into_iter().flatten().collect())
    }
}
