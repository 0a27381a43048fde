//! The scratch copy of the repository, with every planted bug behind the switch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::list::Mutant;

/// The switch itself.
const SWITCH: &str = include_str!("../switch.rs");

/// Edits that plant the switch: file, text, replacement. The second is where the runtime gives the
/// text of a module to the driver, the third where the emulator finds the text of a cubin.
const HOOKS: [[&str; 3]; 3] = [
    ["platform/src/lib.rs", "\npub mod rng;", "\npub mod mutant;\npub mod rng;"],
    [
        "runtime/src/cuda/device.rs",
        "self.context.compile(module.name, text)?",
        "self.context.compile(module.name, &trail_platform::mutant::edit(module.name, text))?",
    ],
    [
        "tests/emulator/src/driver/cubin.rs",
        "    let text = found.with_extension(\"ptx\");\n",
        "    let text = found.with_extension(\"ptx\");
    let edited = std::env::var_os(\"TRAIL_MUTANT_PTX\").map(PathBuf::from);
    let edited = edited.filter(|path| path.file_name() == text.file_name());
    let text = edited.unwrap_or(text);\n",
    ],
];

/// Copies the files of `root` that git lists or would add to `tree`, with the bugs planted. A file
/// whose content stays is not written, so that cargo does not build it again.
pub(crate) fn plant(root: &Path, tree: &Path, mutants: &[Mutant]) -> Result<(), String> {
    let text_of = |file: &str| std::fs::read_to_string(root.join(file)).map_err(|e| e.to_string());
    let damaged = damaged(mutants, text_of);
    if !damaged.is_empty() {
        return Err(damaged.join("\n"));
    }
    let mut changed = planted(mutants, text_of)?;
    changed.insert("platform/src/mutant.rs".into(), SWITCH.to_owned());
    for [file, find, with] in HOOKS {
        let text = changed.get(file).cloned().map_or_else(|| text_of(file), Ok)?;
        changed.insert(file.to_owned(), text.replacen(find, with, 1));
    }
    let listed = listed(root)?;
    for file in listed.iter().filter(|file| !changed.contains_key(*file)) {
        let bytes = std::fs::read(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
        write(&tree.join(file), &bytes)?;
    }
    for (file, text) in &changed {
        write(&tree.join(file), text.as_bytes())?;
    }
    let stale = files_below(tree, tree).into_iter();
    for file in stale.filter(|file| !listed.contains(file) && !changed.contains_key(file)) {
        std::fs::remove_file(tree.join(&file)).map_err(|e| format!("{file}: {e}"))?;
    }
    Ok(())
}

/// One line for each place of the switch that is gone, and for each entry with a text that is not
/// exactly once in its file (PTX: that is not in it), or that overlaps another.
pub(crate) fn damaged(
    mutants: &[Mutant],
    text_of: impl Fn(&str) -> Result<String, String>,
) -> Vec<String> {
    let mut taken: BTreeMap<&str, Vec<(Range<usize>, u32)>> = BTreeMap::new();
    let mut damaged = Vec::new();
    for [file, find, _] in HOOKS {
        if text_of(file).map_or(0, |text| text.matches(find).count()) != 1 {
            let why = "the switch goes where this is, which is not there once";
            damaged.push(format!("{file}: {find:?}: {why}"));
        }
    }
    for mutant in mutants {
        let (number, file) = (mutant.number, &mutant.file);
        let text = match text_of(file) {
            Ok(text) => text,
            Err(why) => {
                damaged.push(format!("{number}: {file}: {why}"));
                continue;
            }
        };
        for (find, _) in &mutant.edits {
            let found: Vec<usize> = text.match_indices(find).map(|(at, _)| at).collect();
            if found.is_empty() || (found.len() > 1 && !mutant.is_ptx()) {
                damaged.push(format!("{number}: the text is {} times in {file}", found.len()));
                continue;
            }
            let range = found[0]..found[0] + find.len();
            let ranges = taken.entry(file).or_default();
            let overlaps = |(other, _): &&(Range<usize>, u32)| {
                other.start < range.end && range.start < other.end
            };
            if let (Some((_, other)), false) = (ranges.iter().find(overlaps), mutant.is_ptx()) {
                damaged.push(format!("{number}: the text overlaps that of {other} in {file}"));
            }
            ranges.push((range, number));
        }
    }
    damaged
}

/// The sources with planted bugs.
fn planted(
    mutants: &[Mutant],
    text_of: impl Fn(&str) -> Result<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut by_file: BTreeMap<&str, Vec<(usize, usize, String)>> = BTreeMap::new();
    for mutant in mutants.iter().filter(|mutant| !mutant.is_ptx()) {
        let text = text_of(&mutant.file)?;
        let switch = format!("(trail_platform::mutant::is_on({}))", mutant.number);
        for (find, with) in &mutant.edits {
            let (at, with) = (text.find(find).unwrap_or(0), with.replace("MUTANT", &switch));
            by_file.entry(&mutant.file).or_default().push((at, find.len(), with));
        }
    }
    let mut changed = BTreeMap::new();
    for (file, mut places) in by_file {
        let mut text = text_of(file)?;
        // From the end on: the places before stay where they are.
        places.sort_by_key(|&(at, ..)| std::cmp::Reverse(at));
        for (at, length, with) in places {
            text.replace_range(at..at + length, &with);
        }
        changed.insert(file.to_owned(), text);
    }
    Ok(changed)
}

/// Writes the PTX file of `mutant` with its bug below `folder`; none if its bug is in a source.
pub(crate) fn edited_ptx(
    tree: &Path,
    folder: &Path,
    mutant: &Mutant,
) -> Result<Option<PathBuf>, String> {
    let Mutant { number, file, edits, .. } = mutant;
    let Some(name) = Path::new(file).file_name().filter(|_| mutant.is_ptx()) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(tree.join(file)).map_err(|e| format!("{file}: {e}"))?;
    let text = edits.iter().fold(text, |text, (find, with)| text.replace(find, with));
    let path = folder.join(number.to_string()).join(name);
    write(&path, text.as_bytes())?;
    Ok(Some(path))
}

/// Files that git tracks or would add, from `root`.
fn listed(root: &Path) -> Result<BTreeSet<String>, String> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let output = output.map_err(|e| format!("git ls-files: {e}"))?;
    let text = String::from_utf8(output.stdout).map_err(|e| format!("git ls-files: {e}"))?;
    let exists = |file: &&str| !file.is_empty() && root.join(file).is_file();
    Ok(text.split('\0').filter(exists).map(str::to_owned).collect())
}

/// Files below `folder`, from `root`.
fn files_below(root: &Path, folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let below = |path: &PathBuf| match path.is_dir() {
        true => files_below(root, path),
        false => {
            path.strip_prefix(root).map(|path| path.display().to_string()).into_iter().collect()
        }
    };
    paths.iter().flat_map(below).collect()
}

/// Writes `bytes` to `path` unless the file has them already.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(fail)?;
    std::fs::write(path, bytes).map_err(fail)
}
