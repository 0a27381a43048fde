//! Prompts of a collection with the lengths of their answers.

use std::path::Path;

use trail_cli::{Error, Setup, fingerprint};
use trail_training::Shard;

use crate::commands::probe::collection::Collection;

/// Opens the collection in `data`, of the model of `setup`.
pub fn open(data: &Path, setup: &Setup) -> Result<Collection, Error> {
    let collection = Collection::open(data)?;
    match collection.settings().fingerprint == fingerprint(&setup.model) {
        true => Ok(collection),
        false => Err(Error::usage(format!(
            "{} was collected from {}, and --model is another model: give the same",
            data.display(),
            collection.settings().model
        ))),
    }
}

/// The shards of `collection`, whose token ids are below `vocab`.
pub fn read(collection: &Collection, vocab: usize) -> Result<Vec<Shard>, Error> {
    let shards = collection.read_all()?;
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
