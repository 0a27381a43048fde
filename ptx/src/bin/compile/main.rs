//! Compiles kernels/ to PTX and cubins:
//! `cargo run -p trail-ptx --bin compile [-- --all | --check] [NAME ...]`.
//!
//! Without arguments it compiles changed sources. `--all` compiles everything; `--check` does so
//! into a temporary folder and fails unless the result is byte for byte the checked-in one.
//! `--report CUBIN ...` compiles nothing: it prints the report of the machine code of each kernel
//! of these files, as in the manifest, for `trail-rt bench kernels --forecast CHIP --sass FILE`;
//! each file is in a folder named by its target.

mod build;
mod elf;
mod manifest;
mod nvrtc;
mod ptxas;
mod sass;
mod table;
mod wheels;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of every NVRTC compilation, besides the architecture.
const NVRTC_FLAGS: [&str; 1] = ["--std=c++17"];
/// Flags of every ptxas run, besides the architecture.
const PTXAS_FLAGS: [&str; 2] = ["-v", "-O3"];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("compile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (flags, names): (Vec<_>, Vec<_>) =
        arguments.into_iter().partition(|argument| argument.starts_with("--"));
    const FLAGS: [&str; 3] = ["--all", "--check", "--report"];
    if let Some(unknown) = flags.iter().find(|flag| !FLAGS.contains(&flag.as_str())) {
        return Err(format!("unknown flag {unknown}; known: {}", FLAGS.join(", ")));
    }
    match &flags[..] {
        [flag] if flag == "--report" => return report(&names),
        more if more.iter().any(|flag| flag == "--report") => {
            return Err("--report goes with no other flag".into());
        }
        _ => {}
    }
    let check = flags.iter().any(|flag| flag == "--check");
    let all = check || flags.iter().any(|flag| flag == "--all");
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
    let root = crate_root.parent().ok_or("the crate has no parent folder")?.to_owned();
    let tools = build::Tools::find()?;
    if check {
        let folder = std::env::temp_dir().join(format!("trail-ptx-{}", std::process::id()));
        let outcome = build::build(&root, &folder, &tools, true, &names)
            .and_then(|()| compare(&crate_root, &folder));
        let _ = std::fs::remove_dir_all(&folder);
        return outcome;
    }
    build::build(&root, &crate_root, &tools, all, &names)
}

/// Prints the reports of the kernels of `cubins` as one JSON object by target, the name of a
/// cubin's folder, and kernel.
fn report(cubins: &[String]) -> Result<(), String> {
    if cubins.is_empty() {
        return Err("--report needs cubins, each in a folder named by its target".into());
    }
    let tools = build::Tools::find()?;
    let mut all: BTreeMap<&str, BTreeMap<String, manifest::Sass>> = BTreeMap::new();
    for cubin in cubins {
        let folder = Path::new(cubin).parent().and_then(Path::file_name);
        let target = folder.and_then(|name| name.to_str()).filter(|name| name.starts_with("sm_"));
        let target = target.ok_or_else(|| format!("{cubin}: no folder named by a target"))?;
        let reports = sass::report(&tools.nvdisasm, Path::new(cubin))?;
        all.entry(target).or_default().extend(reports);
    }
    let text = serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?;
    println!("{text}");
    Ok(())
}

/// Fails unless both folders hold the same generated files.
fn compare(expected: &Path, built: &Path) -> Result<(), String> {
    let (mut left, mut right) = (generated(expected)?, generated(built)?);
    left.sort();
    right.sort();
    if left != right {
        let differing = left.iter().find(|name| !right.contains(name));
        let other = right.iter().find(|name| !left.contains(name));
        return Err(format!("the sets of files differ: {differing:?} against {other:?}"));
    }
    for name in &left {
        let same = std::fs::read(expected.join(name)).ok() == std::fs::read(built.join(name)).ok();
        if !same {
            return Err(format!("ptx/{} is not what the sources give", name.display()));
        }
    }
    println!("{} files are what the sources give", left.len());
    Ok(())
}

/// Paths of the generated files under a crate root.
fn generated(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![PathBuf::from("manifest.json"), PathBuf::from("src/table.rs")];
    let mut pending = vec![PathBuf::from("out")];
    while let Some(folder) = pending.pop() {
        let entries = std::fs::read_dir(root.join(&folder))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| error.to_string())?;
            let path = folder.join(entry.file_name());
            let is_folder = entry.file_type().map_err(|error| error.to_string())?.is_dir();
            if is_folder { &mut pending } else { &mut found }.push(path);
        }
    }
    Ok(found)
}
