//! Files of the repository: what a person edits, without build outputs, assets and golden files.

use std::fs;
use std::path::Path;

/// One text file.
pub struct File {
    /// Path from the repository's root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// Folders that hold no hand-written text: outputs, downloads, data.
const SKIPPED_FOLDERS: [&str; 8] =
    ["target", ".git", "assets", "golden", "records", "out", "shared", "__pycache__"];

/// Generated sources. They are exempt from every rule.
const GENERATED: [&str; 2] = ["ptx/src/params.rs", "ptx/src/table.rs"];

/// File name extensions that are read; `.ci/` holds shell scripts without one.
const EXTENSIONS: [&str; 9] = ["rs", "cu", "cuh", "h", "sh", "py", "md", "toml", "ci"];

/// All files below `root`, sorted by path.
pub fn files(root: &Path) -> Vec<File> {
    let mut found = Vec::new();
    walk(root, "", &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(folder: &Path, prefix: &str, found: &mut Vec<File>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            let hidden = name.starts_with('.') && name != ".ci";
            // `runtime/tests/golden/make` holds the scripts that write the golden files.
            let skipped = SKIPPED_FOLDERS.contains(&name.as_str()) && path != "runtime/tests/golden/make";
            if !hidden && !skipped {
                walk(&entry.path(), &format!("{path}/"), found);
            }
        } else if EXTENSIONS.contains(&extension(&path)) && !GENERATED.contains(&path.as_str()) {
            found.push(File { text: fs::read_to_string(entry.path()).unwrap(), path });
        }
    }
}

/// The extension of `path`; "ci" for the scripts in `.ci/`, "" without one.
pub fn extension(path: &str) -> &str {
    if path.starts_with(".ci/") {
        return "ci";
    }
    let name = path.rsplit('/').next().unwrap();
    name.rsplit_once('.').map_or("", |(_, extension)| extension)
}

#[test]
fn extensions_are_of_the_last_component() {
    assert_eq!(extension("kernels/common/ptx.cuh"), "cuh");
    assert_eq!(extension(".ci/run"), "ci");
    assert_eq!(extension("a.b/LICENSE"), "");
}
