//! The folder of a collection: its settings, and its shards.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trail_cli::Error;
use trail_cli::output_file::{GENERATOR, generator, private};
use trail_platform::read::read_text;
use trail_runtime::model::files;
use trail_training::{Collected, Shard};

/// Name of the file with the settings.
const SETTINGS: &str = "collection.json";

/// Largest file of settings, MiB.
const MAX_SETTINGS_MIB: u64 = 1;

/// Settings that determine the content of a collection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Name of the model.
    pub model: String,
    /// Fingerprint of its weights.
    pub fingerprint: String,
    /// Layers whose output is kept.
    pub layers: Vec<usize>,
    /// File of the prompts.
    pub prompts: String,
    /// First prompt.
    pub first: usize,
    /// Prompts.
    pub requests: usize,
    /// Rows of an answer; 0 for all.
    pub rows: usize,
    /// Most output tokens.
    pub max_tokens: u32,
    /// Temperature of the answers.
    pub temperature: f32,
    /// Seed.
    pub seed: u64,
    /// Answers of a shard.
    pub shard: usize,
}

/// A collection on disk.
pub struct Collection {
    path: PathBuf,
    settings: Settings,
}

impl Collection {
    /// Makes the folder, or goes on with one of the same settings.
    pub fn claim(path: &Path, settings: Settings) -> Result<Collection, Error> {
        let collection = Collection { path: path.to_path_buf(), settings };
        let file = path.join(SETTINGS);
        if file.exists() {
            let Collection { settings, .. } = Collection::open(path)?;
            return match settings == collection.settings {
                true => Ok(collection),
                false => Err(Error::usage(format!(
                    "{} was collected with other options: give the same, or another --out",
                    path.display()
                ))),
            };
        }
        let mut text = serde_json::to_value(&collection.settings).expect("plain values");
        text[GENERATOR] = generator("probe collect").into();
        fs::create_dir_all(path)
            .and_then(|()| fs::write(&file, format!("{text:#}\n")))
            .map_err(|error| unwritable(&file, &error))?;
        Ok(collection)
    }

    /// Opens a collection.
    pub fn open(path: &Path) -> Result<Collection, Error> {
        let file = path.join(SETTINGS);
        let text = read_text(&file, MAX_SETTINGS_MIB).map_err(|error| {
            Error::usage(format!(
                "{}: {error}; give a folder that trail-rt probe collect made",
                file.display()
            ))
        })?;
        let settings = serde_json::from_str(&text).map_err(|error| {
            Error::failed(format!("{}: {error}; collect into another folder", file.display()))
        })?;
        Ok(Collection { path: path.to_path_buf(), settings })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of shards of the whole collection.
    pub fn shards(&self) -> usize {
        self.settings.requests.div_ceil(self.settings.shard)
    }

    /// The shards that are not there yet.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.shards()).filter(|&shard| !self.file(shard).exists()).collect()
    }

    /// Writes a shard, whole or not at all.
    pub fn write(&self, shard: usize, collected: &Collected) -> Result<(), Error> {
        let (file, part) = (self.file(shard), self.path.join("shard.part"));
        let bytes = collected.to_bytes(&[("fingerprint", self.settings.fingerprint.clone())]);
        // Prompts and answers: a `.part` of an earlier run may have other permissions.
        let mut options = private();
        let written = fs::remove_file(&part).or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        });
        written
            .and_then(|()| options.write(true).create_new(true).open(&part))
            .and_then(|mut file| file.write_all(&bytes))
            .and_then(|()| fs::rename(&part, &file))
            .map_err(|error| unwritable(&file, &error))
    }

    /// Reads all shards; fails if some are missing.
    pub fn read_all(&self) -> Result<Vec<Shard>, Error> {
        match self.missing().len() {
            0 => (0..self.shards()).map(|shard| self.read(shard)).collect(),
            missing => Err(Error::failed(format!(
                "{} lacks {missing} of {} shards: run trail-rt probe collect with the same options \
                 again",
                self.path.display(),
                self.shards()
            ))),
        }
    }

    /// Reads a shard, which stays mapped.
    fn read(&self, shard: usize) -> Result<Shard, Error> {
        let file = self.file(shard);
        let name = file.display().to_string();
        let shard = Shard::parse(files::map(&file)?, &name);
        let shard = shard.map_err(|error| Error::failed(error.to_string()))?;
        match shard.metadata("fingerprint") == Some(&self.settings.fingerprint) {
            true => Ok(shard),
            false => Err(Error::failed(format!(
                "{name} is of another model than {SETTINGS} beside it: collect it again"
            ))),
        }
    }

    /// Rows, answers, output tokens, and answers that ended by themselves.
    pub fn totals(&self) -> Result<(usize, usize, usize, usize), Error> {
        let mut totals = (0, 0, 0, 0);
        for shard in self.read_all()? {
            totals.0 += shard.rows().len();
            totals.1 += shard.answers().len();
            totals.2 += shard.answers().iter().map(|answer| answer.tokens.len()).sum::<usize>();
            totals.3 += shard.answers().iter().filter(|answer| answer.stopped).count();
        }
        Ok(totals)
    }

    fn file(&self, shard: usize) -> PathBuf {
        self.path.join(format!("shard-{shard:05}.safetensors"))
    }
}

fn unwritable(file: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("cannot write {}: {error}; choose another --out", file.display()))
}
