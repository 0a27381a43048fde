//! The hash that detects stale output: FNV-1a, 64 bit. It detects mistakes, not manipulation.

use std::collections::BTreeSet;
use std::path::Path;

/// Continues FNV-1a from `state` over `bytes`.
pub fn fnv1a(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Initial state of FNV-1a.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Hash of one text.
pub fn of_text(text: &str) -> u64 {
    fnv1a(START, text.as_bytes())
}

/// Files that `text` includes by `#include "..."`, directly or not, as paths under `root`, sorted.
pub fn includes(root: &Path, text: &str) -> std::io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut pending = direct(text);
    while let Some(name) = pending.pop() {
        let path = root.join(&name);
        let included = std::fs::read_to_string(&path)
            .map_err(|error| std::io::Error::other(format!("{}: {error}", path.display())))?;
        if found.insert(name) {
            pending.extend(direct(&included));
        }
    }
    Ok(found)
}

/// Hash of the source at `path` under `root` and of all it includes, in the order of their names.
pub fn of_source(root: &Path, path: &str) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(root.join(path))?;
    let mut hash = of_text(&text);
    for name in includes(root, &text)? {
        hash = fnv1a(hash, name.as_bytes());
        hash = fnv1a(hash, &std::fs::read(root.join(&name))?);
    }
    Ok(hash)
}

fn direct(text: &str) -> Vec<String> {
    let quoted = |line: &str| {
        let rest = line.trim_start().strip_prefix("#include")?.trim_start();
        Some(rest.strip_prefix('"')?.split('"').next()?.to_owned())
    };
    text.lines().filter_map(quoted).collect()
}
