//! ptxas: assembles PTX to a cubin, and reports the resource usage of each kernel.

use crate::elf;
use crate::manifest::{Entry, Resources};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use trail_ptx::Target;

/// Assembles `ptx` for `target`. Fails on an error, on any warning, on more registers spilled to
/// memory than the target allows, and on an array that is not in registers.
pub(crate) fn assemble(
    ptxas: &Path,
    flags: &[&str],
    target: Target,
    ptx: &Path,
    cubin: &Path,
) -> Result<BTreeMap<String, Resources>, String> {
    let name = target.name();
    let log = run(ptxas, flags, target, ptx, cubin)?;
    let mut resources = parse(&log)?;
    let code = read(cubin)?;
    for (entry, found) in &mut resources {
        if !log.contains(" barriers") {
            found.barriers = elf::barriers(&code, entry)
                .ok_or_else(|| format!("{entry}: not in the cubin for {name}"))?;
        }
        let spilled = found.spill_store_bytes.max(found.spill_load_bytes);
        let max = target.max_spilled_bytes(entry);
        if spilled > max {
            return Err(format!("{entry} spills registers on {name}: {found:?}, at most {max}"));
        }
        if found.stack_bytes > 0 && spilled == 0 {
            return Err(format!("{entry} has an array in local memory on {name}: {found:?}"));
        }
    }
    Ok(resources)
}

/// Fails if ptxas contracted a multiplication and an addition of `ptx` in `cubin`. A text that
/// drivers compile too must leave them nothing to contract, or answers would depend on the driver.
pub(crate) fn refuse_contractions(
    ptxas: &Path,
    flags: &[&str],
    target: Target,
    ptx: &Path,
    cubin: &Path,
    entries: &BTreeMap<String, Entry>,
) -> Result<(), String> {
    let path = cubin.with_extension("uncontracted");
    let flags = [flags, &["--fmad=false"]].concat();
    let uncontracted = run(ptxas, &flags, target, ptx, &path).and_then(|_| read(&path));
    let _ = std::fs::remove_file(&path);
    let (shipped, uncontracted) = (read(cubin)?, uncontracted?);
    for entry in entries.keys() {
        let [shipped, uncontracted] = [&shipped, &uncontracted].map(|file| elf::code(file, entry));
        if shipped.is_none() || shipped != uncontracted {
            return Err(format!(
                "{entry} on {}: ptxas contracts a multiplication and an addition; write \
                 __fmaf_rn, or __fmul_rn and __fadd_rn",
                target.name()
            ));
        }
    }
    Ok(())
}

/// Runs ptxas. Returns what it printed; fails on an error or a warning.
fn run(
    ptxas: &Path,
    flags: &[&str],
    target: Target,
    ptx: &Path,
    cubin: &Path,
) -> Result<String, String> {
    let output = Command::new(ptxas)
        .args(flags)
        .arg(format!("-arch={}", target.name()))
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
        return Err(format!("ptxas for {}:\n{log}", target.name()));
    }
    Ok(log)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
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
            store("barriers", |found| &mut found.barriers);
        }
    }
    match all.iter().find(|(_, found)| found.registers == 0) {
        Some((name, _)) => Err(format!("ptxas did not report the registers of {name}:\n{log}")),
        None => Ok(all),
    }
}
