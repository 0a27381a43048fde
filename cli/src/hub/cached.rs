//! The hub's cache on disk, as all its tools lay it out:
//!
//! ```text
//! models--OWNER--NAME/blobs/ETAG                  content; ETAG.part while it is downloaded
//!                     snapshots/COMMIT/FILE       a link to its blob
//!                     refs/main                   the commit
//! ```
//!
//! This program's own are `blobs/ETAG.unverified`: the checksum of that blob is still to be
//! compared; and `trail-default`: the commit whose only model was fetched without naming its file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::reference::{HubReference, is_file};
use super::selection::Selection;

/// Deepest folder of a repository that is looked into.
const MAX_DEPTH: usize = 4;

/// Largest index of a sharded model, bytes: as when it is loaded.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The newest complete snapshot of a repository.
pub(super) struct Snapshot {
    folder: PathBuf,
    /// The repository has one model alone, and it was fetched.
    has_default: bool,
    /// Verified files.
    files: Vec<String>,
}

impl Snapshot {
    /// The snapshot of `main`, if it is in `cache`.
    pub(super) fn main(cache: &Cache, repository: &str) -> Option<Snapshot> {
        let repo = Repo::new(repository.into(), RepoType::Model);
        let main = cache.path().join(repo.folder_name()).join("refs").join("main");
        let commit = fs::read_to_string(main).ok()?;
        let commit = Some(commit.trim()).filter(|commit| is_digest(commit))?;
        let default = fs::read_to_string(default_note(cache, &repo));
        let has_default = default.is_ok_and(|noted| noted == commit);
        let folder = cache.repo(repo).pointer_path(commit);
        let mut files = Vec::new();
        add_files(&folder, "", MAX_DEPTH, &mut files);
        Some(Snapshot { folder, has_default, files })
    }

    /// Path of `model` if all of its files are here.
    pub(super) fn path(&self, model: &HubReference) -> Option<PathBuf> {
        let selection = Selection::of(model, &self.files).ok()?;
        let loads = |name| !selection.is_safetensors() || selection.has(name);
        if !["config.json", "tokenizer.json"].iter().all(|name| loads(name)) {
            return None;
        }
        if let Some(index) = selection.index() {
            let shards = shards(&self.folder.join(index)).ok()?;
            let folder = index.rfind('/').map_or("", |end| &index[..=end]);
            shards
                .iter()
                .all(|shard| self.files.contains(&format!("{folder}{shard}")))
                .then_some(())?;
        }
        path(&self.folder, &selection)
    }

    /// True if the choice of the model does not depend on files that are not here: one was named,
    /// the repository's only one was fetched, or there are safetensors, which come first.
    pub(super) fn decides(&self, model: &HubReference) -> bool {
        let selection = Selection::of(model, &self.files);
        let is_safetensors = || selection.is_ok_and(|selection| selection.is_safetensors());
        model.file.is_some() || self.has_default || is_safetensors()
    }
}

/// Notes that the model that `commit` has without a FILE was fetched.
pub(super) fn note_default(cache: &Cache, repository: &str, commit: &str) -> io::Result<()> {
    fs::write(default_note(cache, &Repo::new(repository.into(), RepoType::Model)), commit)
}

fn default_note(cache: &Cache, repo: &Repo) -> PathBuf {
    cache.path().join(repo.folder_name()).join("trail-default")
}

/// Path of the model in `folder` that consists of `selection`.
pub(super) fn path(folder: &Path, selection: &Selection) -> Option<PathBuf> {
    Some(match selection.opened()? {
        "model.safetensors" | "model.safetensors.index.json" => folder.to_path_buf(),
        file => folder.join(file),
    })
}

/// Names of the shards that an index lists, sorted.
pub(super) fn shards(index: &Path) -> Result<Vec<String>, String> {
    let name = index.display();
    let size = fs::metadata(index).map_err(|error| format!("cannot read {name}: {error}"))?.len();
    let read = || fs::read(index).ok().filter(|_| size <= MAX_INDEX_BYTES);
    let json: Option<Value> = read().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let map = json.as_ref().and_then(|json| json.get("weight_map")).and_then(Value::as_object);
    let is_beside = |file: &&str| is_file(file) && !file.contains('/');
    let shard = |file: &Value| file.as_str().filter(is_beside).map(str::to_owned);
    let shards: Option<Vec<String>> = map.and_then(|map| map.values().map(shard).collect());
    let mut shards = shards.ok_or_else(|| {
        format!("{name}: expected a weight_map of files beside it; choose another repository")
    })?;
    shards.sort_unstable();
    shards.dedup();
    Ok(shards)
}

/// Adds the verified files of `folder` and of the folders in it.
fn add_files(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str().map(|name| format!("{prefix}{name}")) else { continue };
        if path.is_dir() {
            if depth > 1 {
                add_files(&path, &format!("{name}/"), depth - 1, files);
            }
        } else if fs::canonicalize(&path).is_ok_and(|blob| Blob::new(blob).is_verified()) {
            files.push(name);
        }
    }
}

/// Removes the link at `pointer` if its blob is gone, which a new link cannot replace.
pub(super) fn remove_dangling(pointer: &Path) -> io::Result<()> {
    match fs::symlink_metadata(pointer) {
        Ok(_) if !pointer.exists() => fs::remove_file(pointer),
        _ => Ok(()),
    }
}

/// True for the name of a commit or blob, which becomes a part of a path. A weak ETag begins with
/// `W/`.
pub(super) fn is_digest(text: &str) -> bool {
    let text = text.strip_prefix("W/").unwrap_or(text);
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (1..=128).contains(&text.len()) && text.chars().all(is_valid)
}

/// Content of a file.
pub(super) struct Blob {
    path: PathBuf,
}

impl Blob {
    /// The blob at `path`.
    pub(super) fn new(path: PathBuf) -> Blob {
        Blob { path }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its size, bytes, if it is there.
    pub(super) fn size(&self) -> Option<u64> {
        fs::metadata(&self.path).ok().map(|metadata| metadata.len())
    }

    /// True if it is there and its checksum was compared, if this program downloaded it.
    pub(super) fn is_verified(&self) -> bool {
        self.path.is_file() && !self.path.with_extension("unverified").exists()
    }

    /// Notes that the checksum is still to be compared.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(self.path.with_extension("unverified"), "")
    }

    /// Notes that the checksum is right.
    pub(super) fn verified(&self) -> io::Result<()> {
        or_gone(fs::remove_file(self.path.with_extension("unverified")))
    }

    /// Takes a `.part` of all `size` bytes, and removes one of more.
    pub(super) fn take_part(&self, size: u64) -> io::Result<()> {
        let part = self.path.with_extension("part");
        match fs::metadata(&part).map(|metadata| metadata.len()) {
            Ok(bytes) if bytes == size => or_gone(fs::rename(part, &self.path)),
            Ok(bytes) if bytes > size => or_gone(fs::remove_file(part)),
            _ => Ok(()),
        }
    }

    /// Removes the content.
    pub(super) fn remove(&self) -> io::Result<()> {
        or_gone(fs::remove_file(&self.path))
    }

    /// Links the file `name` of the snapshot in `folder` to this blob of the same repository.
    pub(super) fn link(&self, folder: &Path, name: &str) -> io::Result<()> {
        let pointer = folder.join(name);
        if pointer.exists() {
            return Ok(());
        }
        pointer.parent().map_or(Ok(()), fs::create_dir_all)?;
        // `snapshots/COMMIT` is two folders below the repository's.
        let repository = folder.ancestors().nth(2).unwrap_or(folder);
        let blob = self.path.strip_prefix(repository).unwrap_or(&self.path);
        match link(&Path::new(&"../".repeat(name.split('/').count() + 1)).join(blob), &pointer) {
            Err(_) if pointer.exists() => Ok(()),
            linked => linked,
        }
    }
}

/// A file that is gone was moved or removed by another program that fetches the same.
fn or_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(unix)]
fn link(blob: &Path, pointer: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(blob, pointer)
}

#[cfg(not(unix))]
fn link(blob: &Path, pointer: &Path) -> io::Result<()> {
    fs::hard_link(pointer.with_file_name("").join(blob), pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_program_moved_or_removed_is_no_error() {
        let folder = std::env::temp_dir().join(format!("trail-blob-{}", std::process::id()));
        let blob = Blob::new(folder.join("0a"));
        blob.begin().expect("a folder of the test's own");
        assert!(!blob.is_verified());
        blob.verified().expect("removed");
        blob.verified().expect("gone");
        blob.remove().expect("gone");
        fs::remove_dir_all(folder).expect("the test's own folder");
    }
}
