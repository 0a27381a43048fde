//! Location of the model: a path, a model of the hub, or the bundled demo model.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::hub::{self, HubReference};

/// Folders within the repository or an installation: the demo model, and the probes of others.
const DEMO: &str = "assets/demo";
const PROBES: &str = "assets/probes";

/// A model's file or folder.
pub(crate) struct ModelPath {
    pub(crate) path: PathBuf,
    /// Name of the model.
    pub(crate) name: String,
}

/// Locates the model that `--model` names: a path, or `hf:OWNER/NAME[:FILE]`, which is fetched if
/// the cache lacks it. The demo model by default.
pub(crate) fn model(asked: Option<&Path>) -> Result<ModelPath, Error> {
    let Some(asked) = asked else {
        return demo_model().map(|path| ModelPath { name: name_of(&path), path });
    };
    match HubReference::of_path(asked) {
        None if !asked.exists() && is_name_on_the_hub(asked) => {
            let name = asked.display();
            Err(Error::usage(format!(
                "there is no file or folder {name}: give --model hf:{name} for the model of this \
                 name on the Hugging Face hub"
            )))
        }
        None => Ok(ModelPath { path: asked.to_path_buf(), name: name_of(asked) }),
        Some(model) => {
            let model = model.map_err(Error::usage)?;
            Ok(ModelPath { path: hub::locate(&model)?, name: model.repository })
        }
    }
}

/// True for `OWNER/NAME`.
fn is_name_on_the_hub(path: &Path) -> bool {
    path.to_str().is_some_and(|name| !name.contains(':') && name.parse::<HubReference>().is_ok())
}

/// The folder of the bundled demo model.
pub fn demo_model() -> Result<PathBuf, Error> {
    let found = candidates(DEMO).into_iter().find(|folder| folder.join("config.json").is_file());
    found.ok_or_else(|| {
        Error::usage(
            "the bundled demo model was not found: give a model with --model PATH, or copy assets/demo next to the program",
        )
    })
}

/// The folders with probes of models that are not bundled, best first.
pub(crate) fn probes() -> Vec<PathBuf> {
    candidates(PROBES)
}

/// Candidate locations of a bundled `folder`, best first.
fn candidates(folder: &str) -> Vec<PathBuf> {
    // The workspace: the folder above this crate.
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::parent);
    // A package has the program in PREFIX/bin and its data in PREFIX/share.
    let share = program.map(|folder| folder.join("../share/trail-rt"));
    // The build's source tree comes after the program's folder: an installation has its own copy,
    // and the tree may have been changed or replaced since.
    [program, share.as_deref(), sources, Some(Path::new("."))]
        .into_iter()
        .flatten()
        .map(|parent| parent.join(folder))
        .collect()
}

/// Name of the model at `path`: its file's, or its folder's if the file is `model.safetensors`.
fn name_of(path: &Path) -> String {
    let resolved = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let named = match resolved.file_name().and_then(|name| name.to_str()) {
        Some(file) if file.starts_with("model.safetensors") => resolved.parent(),
        _ => Some(resolved.as_path()),
    };
    let name = match named {
        Some(file) if file.is_file() => file.file_stem(),
        folder => folder.and_then(Path::file_name),
    };
    name.map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
