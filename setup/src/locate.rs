//! Location of the bundled demo model.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// The demo model's folder within the repository or an installation.
const DEMO: &str = "assets/demo";

/// The folder of the bundled demo model.
pub fn demo_model() -> Result<PathBuf, Error> {
    let found = candidates().into_iter().find(|folder| folder.join("config.json").is_file());
    found.ok_or_else(|| {
        Error::usage(
            "the bundled demo model was not found: give a model with --model PATH, or copy assets/demo next to the program",
        )
    })
}

/// Candidate locations, best first.
fn candidates() -> Vec<PathBuf> {
    // The workspace: the folder above this crate.
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let program = std::env::current_exe().ok();
    // The build's source tree comes after the program's folder: an installation has its own copy,
    // and the tree may have been changed or replaced since.
    [program.as_deref().and_then(Path::parent), sources, Some(Path::new("."))]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(DEMO))
        .collect()
}
