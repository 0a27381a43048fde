//! Prompts of a collection with the lengths of their answers.

use std::path::PathBuf;

use trail_cli::{Error, Setup, fingerprint};
use trail_training::Shard;

use crate::commands::probe::collections::Collections;

/// Opens the collections in `data`, of the model of `setup`.
pub fn open(data: &[PathBuf], setup: &Setup) -> Result<Collections, Error> {
    let collections = Collections::open(data)?;
    match collections.settings().fingerprint == fingerprint(&setup.model) {
        true => Ok(collections),
        false => Err(Error::usage(format!(
            "{} was collected from {}, and --model is another model: give the same",
            data[0].display(),
            collections.settings().model
        ))),
    }
}

/// The shards of `collections`, whose token ids are below `vocab`.
pub fn read(collections: &Collections, vocab: usize) -> Result<Vec<Shard>, Error> {
    let shards = collections.read_all()?;
    for shard in &shards {
        let ids = shard.answers().iter().flat_map(|answer| &answer.prompt);
        if ids.into_iter().any(|&id| id as usize >= vocab) {
            return Err(Error::failed(format!(
                "{} has a token id that the model has not: collect it again",
                shard.name()
            )));
        }
    }
    Ok(shards)
}
