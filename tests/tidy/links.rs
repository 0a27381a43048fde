//! Links and paths in documents lead somewhere.

use std::collections::HashSet;
use std::path::Path;

use crate::Violation;
use crate::tree::{self, File};

/// Documents whose paths in backticks must exist.
const MAPS: [&str; 3] = ["ARCHITECTURE.md", "README.md", "docs/glossary.md"];

/// Dead relative links in all documents, dead paths in [`MAPS`].
pub fn check(files: &[File]) -> Vec<Violation> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let exists = |path: &str| root.join(path).exists();
    let documents = || files.iter().filter(|file| tree::extension(&file.path) == "md");
    let anchors: HashSet<String> = documents()
        .flat_map(|file| {
            anchors(&file.text).into_iter().map(|slug| format!("{}#{slug}", file.path))
        })
        .collect();
    let mut found: Vec<Violation> = documents()
        .flat_map(|file| {
            dead_links(&file.path, &file.text, &exists, &|link| anchors.contains(link))
        })
        .collect();
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let maps = documents().filter(|file| MAPS.contains(&file.path.as_str()));
    found.extend(maps.flat_map(|file| dead_paths(&file.path, &file.text, &exists, &names)));
    found
}

/// Relative links whose file, or whose `#anchor` in a document, does not exist.
fn dead_links(
    path: &str,
    text: &str,
    exists: &dyn Fn(&str) -> bool,
    has_anchor: &dyn Fn(&str) -> bool,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in outside_fences(text) {
        for target in targets(&spans(line).0) {
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
            let dead = if !exists(&file) {
                Some(format!("dead link: {file} does not exist"))
            } else if !anchor.is_empty() && !has_anchor(&format!("{file}#{anchor}")) {
                Some(format!("dead link: {file} has no heading for #{anchor}"))
            } else {
                None
            };
            found.extend(dead.map(|message| Violation::new(path, number, message)));
        }
    }
    found
}

/// Paths in backticks that name no file. A path below the root must exist as it is; another file
/// name is taken as the end of a path, as in `step/fill.rs`.
fn dead_paths(
    path: &str,
    text: &str,
    exists: &dyn Fn(&str) -> bool,
    names: &[&str],
) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in outside_fences(text) {
        let paths =
            spans(line).1.into_iter().filter(|span| is_path(span)).flat_map(|span| braces(&span));
        for span in paths {
            let span = span.split("::").next().unwrap().trim_end_matches('/').to_owned();
            let first = span.split('/').next().unwrap();
            let rooted = span.contains('/') && exists(first);
            let is_file =
                matches!(tree::extension(&span), "rs" | "cu" | "cuh" | "h" | "py" | "sh" | "md");
            let ending = format!("/{span}");
            // A module may be named without its extension.
            let known = exists(&span)
                || exists(&format!("{span}.rs"))
                || names.iter().any(|name| name.ends_with(&ending));
            if (rooted || is_file) && !known {
                found.push(Violation::new(path, number, format!("`{span}` does not exist")));
            }
        }
    }
    found
}

/// Numbered lines outside code fences.
fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((at + 1, line))
    })
}

/// A line without its code spans, and the code spans.
fn spans(line: &str) -> (String, Vec<String>) {
    let (mut prose, mut code) = (String::new(), Vec::new());
    for (at, part) in line.split('`').enumerate() {
        if at % 2 == 0 { prose += part } else { code.push(part.to_owned()) }
    }
    (prose, code)
}

/// Targets of `[text](target)` and `[name]: target` within the repository.
fn targets(prose: &str) -> Vec<String> {
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let named = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let named = named.and_then(|(_, target)| target.split_whitespace().next());
    let all = inline.chain(named);
    all.filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(str::to_owned)
        .collect()
}

/// `target` as seen from the folder of `path`.
fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns true if a code span can be a path: no blanks, patterns, options or absolute paths.
fn is_path(span: &str) -> bool {
    !span.is_empty()
        && !span.starts_with(['/', '-', '.', '*'])
        && !span.contains("...")
        && span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-{},:".contains(c))
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn braces(span: &str) -> Vec<String> {
    let Some((before, rest)) = span.split_once('{') else { return vec![span.to_owned()] };
    let Some((inside, after)) = rest.split_once('}') else { return Vec::new() };
    inside.split(',').flat_map(|part| braces(&format!("{before}{part}{after}"))).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let headings = outside_fences(text).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{anchors, dead_links, dead_paths};

    #[test]
    fn a_dead_link_is_found() {
        let exists = |path: &str| path == "docs/a.md" || path == "README.md";
        let has_anchor = |link: &str| link == "README.md#try-it";
        let dead = |text| dead_links("docs/a.md", text, &exists, &has_anchor).len();
        assert_eq!(dead("[x](b.md)"), 1);
        assert_eq!(dead("[x](../README.md#nowhere) and [y](gone/)"), 2);
        assert_eq!(dead("[x]: gone.md"), 1);
        assert_eq!(dead("[x](../README.md#try-it) [y](a.md) [z](https://a.b/c) `[q](gone)`"), 0);
        assert_eq!(dead("```\n[x](gone.md)\n```"), 0);
    }

    #[test]
    fn a_dead_path_is_found() {
        let exists = |path: &str| ["runtime", "runtime/src", "runtime/src/a.rs"].contains(&path);
        let names = ["runtime/src/a.rs", "runtime/src/step/fill.rs"];
        let dead = |text| dead_paths("README.md", text, &exists, &names).len();
        assert_eq!(dead("`runtime/src/b.rs` and `step/gone.rs`"), 2);
        assert_eq!(dead("`runtime/src/{a,b}.rs`"), 1);
        assert_eq!(
            dead(
                "`runtime/src/`, `runtime/src/a`, `step/fill.rs`, `a.rs::main`, `/v1/models`, `a/b`"
            ),
            0
        );
        assert_eq!(dead("`*.rs`, `FILE.rs ...`, `trail-rt --probe x.rs`"), 0);
    }

    #[test]
    fn anchors_are_githubs() {
        assert_eq!(
            anchors("# Try it, now\n## The `x` path\n```\n# no\n```"),
            ["try-it-now", "the-x-path"]
        );
    }
}
