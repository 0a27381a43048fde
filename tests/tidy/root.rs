//! Folders of the root: a new one needs a place in this list, and the list has an end.

use std::fs;
use std::path::Path;

use crate::Violation;

/// Folders that may be in the root, beside hidden ones.
const FOLDERS: [&str; 18] = [
    "assets",
    "benches",
    "capi",
    "cli",
    "deploy",
    "docs",
    "examples",
    "kernels",
    "platform",
    "probe",
    "ptx",
    "python",
    "runtime",
    "scheduler",
    "server",
    "simulator",
    "src",
    "tests",
];

/// Outputs of builds and tools, not in the repository.
const OUTPUTS: [&str; 3] = ["target", "out", "shared"];

/// Folders of `root` that are not listed.
pub fn check(root: &Path) -> Vec<Violation> {
    let entries = fs::read_dir(root).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let names = folders.map(|entry| entry.file_name().into_string().unwrap());
    unlisted(names)
}

fn unlisted(names: impl Iterator<Item = String>) -> Vec<Violation> {
    let known = |name: &str| FOLDERS.contains(&name) || OUTPUTS.contains(&name);
    names
        .filter(|name| !name.starts_with('.') && !known(name))
        .map(|name| {
            Violation::new(&name, 1, "not a folder of the root: put it into a known folder")
        })
        .collect()
}

#[test]
fn a_new_folder_is_found() {
    let names = [".git", "target", "src", "tools"].map(str::to_owned);
    let found = unlisted(names.into_iter());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path, "tools");
}
