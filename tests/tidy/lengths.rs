//! Length ratchets: what is over its limit is listed with its length, and may only shrink.

use crate::Violation;
use crate::tree::{self, File};

/// Lines of a Rust file.
pub const LIMIT: usize = 400;

/// Rust files over [`LIMIT`]: path and lines.
pub const RATCHET: &[(&str, usize)] = &[];

/// Something over its limit.
pub struct Long {
    /// Path, or `path::function`.
    pub name: String,
    /// First line.
    pub line: usize,
    /// Lines.
    pub length: usize,
}

/// Rust files over [`LIMIT`].
pub fn over_long(files: &[File]) -> Vec<Long> {
    let rust = files.iter().filter(|file| tree::extension(&file.path) == "rs");
    let all = rust.map(|file| Long {
        name: file.path.clone(),
        line: 1,
        length: file.text.lines().count(),
    });
    all.filter(|long| long.length > LIMIT).collect()
}

/// Compares `found` with the `listed` exceptions: neither more nor longer, and no stale entry.
pub fn ratchet(found: &[Long], limit: usize, listed: &[(&str, usize)]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for long in found {
        let entry = listed.iter().find(|(name, _)| *name == long.name);
        let message = match entry {
            None => format!("{}: {} lines, at most {limit}: split it", long.name, long.length),
            Some((_, max)) if long.length > *max => {
                format!("{}: {} lines, was {max}: it may only shrink", long.name, long.length)
            }
            Some((_, max)) if long.length < *max => {
                format!("{}: {} lines, was {max}: lower the ratchet", long.name, long.length)
            }
            Some(_) => continue,
        };
        let path = long.name.split("::").next().unwrap();
        violations.push(Violation::new(path, long.line, message));
    }
    let stale = listed.iter().filter(|(name, _)| found.iter().all(|long| long.name != *name));
    violations.extend(stale.map(|(name, _)| {
        let path = name.split("::").next().unwrap();
        Violation::new(path, 1, format!("{name} is no longer over {limit} lines: unlist it"))
    }));
    violations
}

#[cfg(test)]
mod tests {
    use super::{File, LIMIT, Long, over_long, ratchet};

    #[test]
    fn the_ratchet_only_turns_one_way() {
        let found = |length| [Long { name: "a.rs::f".to_owned(), line: 3, length }];
        let message = |length, listed| {
            ratchet(&found(length), 70, listed).pop().map(|found| found.message).unwrap_or_default()
        };
        assert!(message(71, &[]).contains("split it"));
        assert!(message(81, &[("a.rs::f", 80)]).contains("may only shrink"));
        assert!(message(79, &[("a.rs::f", 80)]).contains("lower the ratchet"));
        assert!(message(80, &[("a.rs::f", 80), ("b.rs::g", 90)]).contains("unlist it"));
        assert_eq!(message(80, &[("a.rs::f", 80)]), "");
    }

    #[test]
    fn a_long_file_is_found() {
        let file = |path: &str, lines| File { path: path.to_owned(), text: "x\n".repeat(lines) };
        let files = [file("long.rs", LIMIT + 1), file("fits.rs", LIMIT), file("long.md", 900)];
        let names: Vec<String> = over_long(&files).into_iter().map(|long| long.name).collect();
        assert_eq!(names, ["long.rs"]);
    }
}
