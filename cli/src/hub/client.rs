//! Requests to the hub, and verified downloads into its cache.

use std::fmt::Display;

use hf_hub::api::RepoInfo;
use hf_hub::api::sync::ApiError;
use hf_hub::{Cache, Repo, RepoType};

use super::cached::{self, Blob, is_digest, remove_dangling};
use super::checksum::Checksum;
use super::download::download;
use super::environment::Environment;
use super::failure::{self, Failure};
use super::reference::HubReference;
use super::requests::{Metadata, Requests};
use crate::error::Error;
use crate::progress;
use crate::size::size;

/// A client of one hub.
pub(super) struct Client {
    requests: Requests,
    cache: Cache,
    endpoint: String,
}

/// A file of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFile {
    /// Name in the repository.
    pub name: String,
    /// Size.
    pub bytes: u64,
    /// True if it was in the cache before.
    pub was_cached: bool,
}

impl Client {
    /// A client for the hub that the environment names.
    pub(super) fn new(environment: &Environment) -> Client {
        let (cache, endpoint) = (environment.cache.clone(), environment.endpoint.clone());
        let requests = Requests::new(&endpoint, environment.token.as_deref(), environment.stall);
        Client { requests, cache, endpoint }
    }

    /// Files and commit of `main`.
    pub(super) fn list(&self, repository: &str) -> Result<RepoInfo, Failure> {
        let info = self.requests.list(repository);
        let info =
            info.map_err(|error| failure::of(error, &self.endpoint, repository, repository))?;
        match is_digest(&info.sha) {
            true => Ok(info),
            false => Err(self.refused(repository, "commit", &info.sha).into()),
        }
    }

    /// Brings the file `name` at `commit` into the cache, and into the snapshot of that commit.
    pub(super) fn fetch(
        &self,
        repository: &str,
        commit: &str,
        name: &str,
    ) -> Result<FetchedFile, Failure> {
        let what = format!("{repository}:{name}");
        let broken = |error: ApiError| failure::of(error, &self.endpoint, repository, &what);
        let written = |error: std::io::Error| Failure::from(failure::of_io(&error, &what));
        let repo = Repo::with_revision(repository.into(), RepoType::Model, commit.into());
        let (cached, url) = (self.cache.repo(repo), self.requests.url(repository, commit, name));
        let metadata = self.requests.metadata(&url).map_err(broken)?;
        // Both become parts of paths.
        for (header, value) in [("ETag", &metadata.etag), ("commit", &metadata.commit)] {
            if !is_digest(value) {
                return Err(self.refused(&what, header, value).into());
            }
        }
        let (blob, bytes) = (Blob::new(cached.blob_path(&metadata.etag)), metadata.bytes);
        if blob.size().is_some_and(|found| found != bytes) {
            self.remove_other_size(&blob, &metadata, &what)?;
        }
        let folder = cached.pointer_path(commit);
        remove_dangling(&folder.join(name)).map_err(written)?;
        let was_cached = blob.is_verified();
        if blob.size().is_none() {
            blob.begin().and_then(|()| blob.take_part(bytes)).map_err(written)?;
        }
        if blob.size().is_none() {
            let bar = progress::bytes(name.to_owned(), bytes);
            let done = download(&self.requests, &url, &blob, bytes, &bar);
            bar.finish_and_clear();
            done.map_err(broken)?;
        }
        if !blob.is_verified() {
            self.verify(&blob, &metadata, &what)?;
        }
        blob.link(&folder, name).map_err(written)?;
        Ok(FetchedFile { name: name.into(), bytes, was_cached })
    }

    /// Makes `commit` the newest snapshot of the repository of `model`, which was fetched.
    pub(super) fn finish(&self, model: &HubReference, commit: &str) -> Result<(), Error> {
        let repository = &model.repository;
        let main = Repo::new(repository.clone(), RepoType::Model);
        let written = self.cache.repo(main).create_ref(commit).and_then(|()| match model.file {
            None => cached::note_default(&self.cache, repository, commit),
            Some(_) => Ok(()),
        });
        written.map_err(|error| failure::of_io(&error, repository))
    }

    /// Removes a cached file whose size is not the stated one, unless its digest is.
    fn remove_other_size(&self, blob: &Blob, metadata: &Metadata, what: &str) -> Result<(), Error> {
        let written = |error: std::io::Error| failure::of_io(&error, what);
        let checksum = Checksum::of(&metadata.etag).filter(|_| blob.is_verified());
        if let Some(checksum) = checksum {
            let found = blob.size().unwrap_or(0);
            let bar = progress::bytes("checksum".into(), found);
            let digest = checksum.digest(blob.path(), &bar).map_err(written)?;
            bar.finish_and_clear();
            if digest.eq_ignore_ascii_case(&metadata.etag) {
                let (endpoint, stated) = (&self.endpoint, metadata.bytes);
                let name = checksum.name();
                return Err(Error::failed(format!(
                    "{what}: {endpoint} states {stated} bytes, and the file of the stated {name} \
                     has {found}: check HF_ENDPOINT"
                )));
            }
        }
        blob.remove().map_err(written)
    }

    /// Compares size and checksum of a download. One that differs is removed.
    fn verify(&self, blob: &Blob, metadata: &Metadata, what: &str) -> Result<(), Error> {
        let written = |error: std::io::Error| failure::of_io(&error, what);
        let (bytes, found) = (metadata.bytes, blob.size().unwrap_or(0));
        let mut fault =
            (found != bytes).then(|| format!("{found} bytes, the server states {bytes}"));
        let checksum = Checksum::of(&metadata.etag).filter(|_| fault.is_none());
        if let Some(checksum) = checksum {
            let bar = progress::bytes("checksum".into(), bytes);
            let digest = checksum.digest(blob.path(), &bar).map_err(written)?;
            bar.finish_and_clear();
            if !digest.eq_ignore_ascii_case(&metadata.etag) {
                let (name, stated) = (checksum.name(), &metadata.etag);
                fault = Some(format!("{name} {digest}, the server states {stated}"));
            }
        }
        match fault {
            None => blob.verified().map_err(written),
            Some(fault) => {
                blob.remove().map_err(written)?;
                Err(Error::failed(format!(
                    "{what}: the download is damaged: it has {fault}; it was removed: run the \
                     command again"
                )))
            }
        }
    }

    fn refused(&self, what: &str, header: &str, value: &str) -> Error {
        let endpoint = &self.endpoint;
        Error::failed(format!(
            "{what}: {endpoint} answers with {header} {value:?}, which is no digest: check HF_ENDPOINT"
        ))
    }
}

impl Display for FetchedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cached = if self.was_cached { ", in the cache" } else { "" };
        write!(f, "{}  {}{cached}", self.name, size(self.bytes))
    }
}
