//! Models of the Hugging Face hub, fetched into its usual cache.
//!
//! The hf-hub crate names the places of the cache. Here: requests (`requests`; those of hf-hub send
//! the token to the hosts that the hub redirects to, and have no time limits), the choice of files
//! (`selection`), `HF_TOKEN` and the offline cache (`environment`, `cached`), resumed downloads
//! (`download`), checksums (`checksum`), and errors with remedies (`failure`).

mod cached;
mod checksum;
mod client;
mod download;
mod environment;
mod failure;
mod reference;
mod requests;
mod selection;

use std::path::PathBuf;

use cached::Snapshot;
use client::Client;
pub use client::FetchedFile;
use environment::Environment;
use failure::Failure;
pub use reference::HubReference;
use selection::Selection;

use crate::error::Error;
use crate::notice::notice;

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct PulledModel {
    /// Its folder, or the file that was named.
    pub path: PathBuf,
    /// Commit of the repository.
    pub commit: String,
    /// All files.
    pub files: Vec<FetchedFile>,
}

/// Fetches what the cache lacks of the newest version of `model`. `each` gets every file.
pub fn pull(model: &HubReference, each: impl FnMut(&FetchedFile)) -> Result<PulledModel, Error> {
    let environment = Environment::read()?;
    if environment.is_offline {
        return Err(Error::failed(format!("HF_HUB_OFFLINE is set: unset it to fetch {model}")));
    }
    fetch(model, &environment, each).map_err(|failure| failure.error)
}

/// Path of `model` in the cache. What the cache lacks is fetched; a complete model is taken as it
/// is, without a request.
pub fn locate(model: &HubReference) -> Result<PathBuf, Error> {
    let environment = Environment::read()?;
    let snapshot = Snapshot::main(&environment.cache, &model.repository);
    let path = snapshot.as_ref().and_then(|snapshot| snapshot.path(model));
    let decides = snapshot.is_some_and(|snapshot| snapshot.decides(model));
    match path {
        Some(path) if decides || environment.is_offline => return Ok(path),
        None if environment.is_offline => {
            let cache = environment.cache.path().display();
            return Err(Error::failed(format!(
                "{model} is not complete in {cache}, and HF_HUB_OFFLINE is set: unset it"
            )));
        }
        _ => {}
    }
    let say = |file: &FetchedFile| {
        if !file.was_cached {
            notice(file);
        }
    };
    match (fetch(model, &environment, say), path) {
        (Ok(pulled), _) => Ok(pulled.path),
        (Err(Failure { error, is_unreachable: true }), Some(path)) => {
            notice(format_args!("warning: {error}; the cached model is used"));
            Ok(path)
        }
        (Err(failure), _) => Err(failure.error),
    }
}

fn fetch(
    model: &HubReference,
    environment: &Environment,
    mut each: impl FnMut(&FetchedFile),
) -> Result<PulledModel, Failure> {
    let client = Client::new(environment);
    let repository = &model.repository;
    let info = client.list(repository)?;
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let selection = Selection::of(model, &names).map_err(Error::usage)?;
    let commit = info.sha;
    let repo = hf_hub::Repo::model(repository.clone());
    let folder = environment.cache.repo(repo).pointer_path(&commit);
    let mut files = Vec::new();
    let mut fetch = |name: &str| {
        let file = client.fetch(repository, &commit, name)?;
        each(&file);
        files.push(file);
        Ok::<_, Failure>(())
    };
    for name in selection.companions.iter().chain(&selection.weights) {
        fetch(name)?;
    }
    if let Some(index) = selection.index() {
        let beside = index.rfind('/').map_or("", |end| &index[..=end]);
        for shard in cached::shards(&folder.join(index)).map_err(Error::failed)? {
            fetch(&format!("{beside}{shard}"))?;
        }
    }
    client.finish(model, &commit)?;
    let path = cached::path(&folder, &selection).unwrap_or(folder);
    Ok(PulledModel { path, commit, files })
}
