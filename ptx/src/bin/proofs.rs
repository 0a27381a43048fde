//! Maintains ptx/proofs.json: kernels that passed their tests, the device, and the hash of the
//! code.
//!
//!     TRAIL_PROOFS=$PWD/target/proofs cargo test -p trail-runtime
//!     TRAIL_PROOFS=$PWD/target/proofs TRAIL_EMU_CHIP=h100 cargo test -p trail-runtime
//!     cargo run -p trail-ptx --bin proofs -- target/proofs   (writes; --check: only compares)
//!
//! Each passed test has appended a line `device, target, kernel`, separated by tabs, for every
//! kernel that it launched.

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use trail_ptx::{MODULES, Target, find};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [ledger] => write(ledger),
        ["--check", ledger] => check(ledger),
        _ => Err("usage: proofs [--check] LEDGER".into()),
    };
    match result {
        Ok(summary) => println!("{summary}"),
        Err(problem) => {
            eprintln!("proofs: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Replaces the file's entries of the devices that are in the ledger.
fn write(ledger: &str) -> Result<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("proofs.json");
    let mut all: Map<String, Value> =
        serde_json::from_str(trail_ptx::PROOFS).map_err(|error| error.to_string())?;
    let proven = proven(ledger)?;
    all.extend(proven);
    let text = serde_json::to_string_pretty(&all).map_err(|error| error.to_string())? + "\n";
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(format!("{} written", path.display()))
}

/// Checks that the ledger proves all entries of the file for its devices, and every kernel of their
/// targets.
fn check(ledger: &str) -> Result<String, String> {
    let all: Map<String, Value> =
        serde_json::from_str(trail_ptx::PROOFS).map_err(|error| error.to_string())?;
    for (device, proof) in proven(ledger)? {
        if all.get(&device) != Some(&proof) {
            return Err(format!(
                "what the tests proved on {device} is not what ptx/proofs.json says: run `cargo run -p trail-ptx --bin proofs -- {ledger}`"
            ));
        }
        let target = proof["arch"].as_str().unwrap_or_default();
        let unproven: Vec<_> =
            names(target).filter(|name| proof["kernels"].get(name).is_none()).collect();
        if !unproven.is_empty() {
            return Err(format!("no test on {device} launches {}", unproven.join(", ")));
        }
    }
    Ok("every kernel of the tested targets is proven".into())
}

/// Converts the ledger's lines to the form of the file.
fn proven(ledger: &str) -> Result<Map<String, Value>, String> {
    let text = std::fs::read_to_string(ledger).map_err(|error| format!("{ledger}: {error}"))?;
    let mut devices: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for line in text.lines() {
        let [device, target, kernel] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("{ledger}: not `device, target, kernel`: {line:?}"));
        };
        devices.entry((device, target)).or_default().insert(kernel);
    }
    if devices.is_empty() {
        return Err(format!("{ledger}: empty; were the tests run with TRAIL_PROOFS={ledger}?"));
    }
    devices
        .into_iter()
        .map(|((device, target), kernels)| {
            let hashes =
                kernels.iter().map(|name| Ok((name.to_string(), hash(name, target)?.into())));
            let hashes = hashes.collect::<Result<Map<String, Value>, String>>()?;
            Ok((device.to_owned(), json!({ "arch": target, "kernels": hashes })))
        })
        .collect()
}

/// Hash of the code that a kernel has for a target.
fn hash(kernel: &str, target: &str) -> Result<String, String> {
    let (module, _) = find(kernel).ok_or_else(|| format!("there is no kernel {kernel}"))?;
    let image = module.images.iter().find(|image| image.target.name() == target);
    let image = image.ok_or_else(|| format!("{kernel} is not compiled for {target}"))?;
    Ok(format!("{:016x}", image.code_hash()))
}

/// Kernels compiled for a target.
fn names(target: &str) -> impl Iterator<Item = &'static str> {
    let target = Target::named(target);
    MODULES
        .iter()
        .filter(move |module| target.is_some_and(|target| module.image(target).is_some()))
        .flat_map(|module| module.entries.iter().map(|entry| entry.name))
}
