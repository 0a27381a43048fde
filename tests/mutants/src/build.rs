//! The test binaries of the scratch copy.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

use crate::list::{Mutant, Test};

/// A built test binary.
pub(crate) struct Binary {
    /// The program.
    pub(crate) path: PathBuf,
    /// The folder it runs in: its package's.
    pub(crate) folder: PathBuf,
    /// Held during a run of tests that write files, to the same folders in each process.
    pub(crate) files: Option<Mutex<()>>,
}

/// Built test binaries by package and target.
pub(crate) struct Binaries(BTreeMap<(String, String), Binary>);

impl Binaries {
    /// The binary of `test`.
    pub(crate) fn of(&self, test: &Test) -> &Binary {
        &self.0[&(test.package.clone(), test.target.clone())]
    }
}

/// Builds the tests that `mutants` name in `tree`; cargo's output is kept in `target`.
pub(crate) fn build(tree: &Path, target: &Path, mutants: &[&Mutant]) -> Result<Binaries, String> {
    let wanted: BTreeSet<(String, String)> = mutants
        .iter()
        .map(|mutant| (mutant.test.package.clone(), mutant.test.target.clone()))
        .collect();
    let mut arguments = BTreeSet::new();
    for (package, target) in &wanted {
        arguments.insert(format!("--package={package}"));
        arguments.insert(match target.as_str() {
            "lib" => "--lib".to_owned(),
            name => format!("--test={name}"),
        });
    }
    let output = Command::new("cargo")
        .args(["test", "--no-run", "--message-format=json"])
        .args(&arguments)
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> =
        messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let errors: String = messages.iter().filter_map(error).collect();
        return Err(format!("{errors}the tree with the planted bugs does not compile"));
    }
    let binaries: BTreeMap<_, _> = messages.iter().filter_map(binary).collect();
    match wanted.iter().find(|name| !binaries.contains_key(name)) {
        Some((package, target)) => Err(format!("{package} has no test target {target}")),
        None => Ok(Binaries(binaries)),
    }
}

/// The text of a compiler error; warnings, as of the conditions' parentheses, are left out.
fn error(message: &Value) -> Option<&str> {
    let message = &message["message"];
    message["rendered"].as_str().filter(|_| message["level"] == "error")
}

/// The test binary that a message of cargo names, if any.
fn binary(message: &Value) -> Option<((String, String), Binary)> {
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let package = message["package_id"].as_str()?.rsplit('#').next()?.split('@').next()?;
    let target = match message["target"]["kind"][0].as_str()? {
        "test" => message["target"]["name"].as_str()?,
        kind => kind,
    };
    let writes_files = message["target"]["kind"][0] == "test" && target != "cuda";
    let files = writes_files.then(Mutex::default);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    Some(((package.to_owned(), target.to_owned()), Binary { path, folder, files }))
}
