//! ptxas: assembles PTX to a cubin, and reports the resource usage of each kernel.

use crate::elf;
use crate::manifest::Resources;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Assembles `ptx` for `target`. Fails on an error, on any warning, on a register spilled to
/// memory, and on an array that is not in registers.
pub(crate) fn assemble(
    ptxas: &Path,
    flags: &[&str],
    target: &str,
    ptx: &Path,
    cubin: &Path,
) -> Result<BTreeMap<String, Resources>, String> {
    let output = Command::new(ptxas)
        .args(flags)
        .arg(format!("-arch={target}"))
        .arg(ptx)
        .arg("-o")
        .arg(cubin)
        .output()
        .map_err(|error| format!("{}: {error}", ptxas.display()))?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    // C75xx are remarks, but mean that an instruction was ignored or that wgmma was serialised.
    let bad = ["warning", "(c75", "performance loss"];
    if !output.status.success() || bad.iter().any(|word| log.to_lowercase().contains(word)) {
        return Err(format!("ptxas for {target}:\n{log}"));
    }
    let mut resources = parse(&log)?;
    let code = std::fs::read(cubin).map_err(|error| format!("{}: {error}", cubin.display()))?;
    for (entry, found) in &mut resources {
        found.barriers = elf::barriers(&code, entry)
            .ok_or_else(|| format!("{entry}: not in the cubin for {target}"))?;
        if found.spill_store_bytes + found.spill_load_bytes > 0 {
            return Err(format!("{entry} spills registers on {target}: {found:?}"));
        }
        if found.stack_bytes > 0 {
            return Err(format!("{entry} has an array in local memory on {target}: {found:?}"));
        }
    }
    Ok(resources)
}

/// Reads the report of `ptxas -v`.
fn parse(log: &str) -> Result<BTreeMap<String, Resources>, String> {
    let mut all = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in log.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, rest)| rest) {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            all.insert(name.clone(), Resources::default());
            current = Some(name);
            continue;
        }
        let Some(found) = current.as_ref().and_then(|name| all.get_mut(name)) else { continue };
        for part in line.split(&[',', ':'][..]) {
            let part = part.trim();
            let number = |words: &str| {
                let digits = part.trim_start_matches("Used ").trim_start_matches("used ");
                digits.strip_suffix(words)?.trim().parse::<u32>().ok()
            };
            let mut store = |words: &str, place: fn(&mut Resources) -> &mut u32| {
                if let Some(value) = number(words) {
                    *place(found) = value;
                }
            };
            store("bytes stack frame", |found| &mut found.stack_bytes);
            store("bytes spill stores", |found| &mut found.spill_store_bytes);
            store("bytes spill loads", |found| &mut found.spill_load_bytes);
            store("registers", |found| &mut found.registers);
            store("bytes smem", |found| &mut found.shared_bytes);
        }
    }
    match all.iter().find(|(_, found)| found.registers == 0) {
        Some((name, _)) => Err(format!("ptxas did not report the registers of {name}:\n{log}")),
        None => Ok(all),
    }
}
