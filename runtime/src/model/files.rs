//! Locating, mapping and reading the files of a model.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::LoadError;
use super::gguf::GgufPart;
use super::mapped_file::MappedFile;
use super::weights::Storage;

/// Largest JSON file read, bytes. The index of a 400 B model is under 1 MiB.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// The file(s) that hold the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightFiles {
    /// One safetensors file.
    Single(PathBuf),
    /// An index that maps each tensor to one of several files.
    Sharded(PathBuf),
    /// A GGUF file, or the first one of several parts.
    Gguf(PathBuf),
}

/// Folder of the model that `path` names: `path` itself, or the folder of the file `path`.
pub fn model_folder(path: &Path) -> PathBuf {
    match path.parent() {
        _ if path.is_dir() => path.to_path_buf(),
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Finds the weights of the model that `path` names: a safetensors or GGUF file, or a folder with
/// one.
pub fn find_weights(path: &Path) -> Result<WeightFiles, LoadError> {
    if path.is_dir() {
        return find_in_folder(path);
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.ends_with(".safetensors.index.json") {
        return Ok(WeightFiles::Sharded(path.to_path_buf()));
    }
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        return Ok(WeightFiles::Single(path.to_path_buf()));
    }
    if is_gguf(path) {
        return Ok(WeightFiles::Gguf(path.to_path_buf()));
    }
    let found = if path.exists() { "a file of another kind" } else { "nothing" };
    Err(LoadError::new(
        path,
        "model path",
        "a .safetensors or .gguf file or a folder with model.safetensors",
        found,
        "pass the folder a Hugging Face model was downloaded to, or a GGUF file",
    ))
}

fn find_in_folder(folder: &Path) -> Result<WeightFiles, LoadError> {
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(WeightFiles::Single(single));
    }
    let index = folder.join("model.safetensors.index.json");
    if index.is_file() {
        return Ok(WeightFiles::Sharded(index));
    }
    let files = gguf_files(folder)?;
    if let [file] = &files[..] {
        return Ok(WeightFiles::Gguf(file.clone()));
    }
    let found = match files.len() {
        0 => "none of these".to_string(),
        count => format!("{count} GGUF files"),
    };
    Err(LoadError::new(
        folder,
        "weights",
        "model.safetensors, model.safetensors.index.json or one GGUF file",
        found,
        "pass the .safetensors or .gguf file by name, or convert the weights to safetensors",
    ))
}

/// The GGUF files in `folder`; of several parts of one model only the first.
fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_model =
        |path: &PathBuf| is_gguf(path) && GgufPart::of(path).is_none_or(|part| part.index == 1);
    Ok(paths.filter(is_model).filter(|path| path.is_file()).collect())
}

/// Returns true if `path` is named like a GGUF file.
fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// Maps `file` into memory, read-only. The first map sets a handler of SIGBUS, which names a mapped
/// file that was cut, and leaves the rest to the action that there was.
pub fn map(file: &Path) -> Result<Storage, LoadError> {
    match MappedFile::map(&open(file)?, file) {
        Ok(map) => Ok(std::sync::Arc::new(map)),
        Err(error) => Err(unreadable(file, error)),
    }
}

/// Reads a JSON file whole; `None` if there is no such file.
pub(crate) fn read_json_if_present(file: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    if fs::exists(file).unwrap_or(true) { read_json(file).map(Some) } else { Ok(None) }
}

/// Reads a JSON file whole.
pub(crate) fn read_json(file: &Path) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    let mut limited = open(file)?.take(MAX_JSON_BYTES + 1);
    limited.read_to_end(&mut bytes).map_err(|error| unreadable(file, error))?;
    if bytes.len() as u64 > MAX_JSON_BYTES {
        let expected = format!("at most {MAX_JSON_BYTES} bytes");
        let remedy = "check that the file is what its name says";
        return Err(LoadError::new(file, "file size", expected, "more", remedy));
    }
    Ok(bytes)
}

/// Opens a regular file; a pipe or a device could block or be endless.
fn open(file: &Path) -> Result<File, LoadError> {
    let regular = fs::metadata(file).map_err(|error| unreadable(file, error))?.is_file();
    if !regular {
        let remedy = "pass the file itself";
        return Err(LoadError::new(file, "file", "a regular file", "another kind", remedy));
    }
    File::open(file).map_err(|error| unreadable(file, error))
}

fn unreadable(file: &Path, error: std::io::Error) -> LoadError {
    LoadError::new(
        file,
        "file",
        "a readable file",
        error.to_string(),
        "a model folder needs config.json, tokenizer.json and its .safetensors file(s), or a GGUF file",
    )
}
