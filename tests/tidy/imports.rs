//! Direction of imports inside the runtime: the engine stands on the backends, not they on it.

use crate::Violation;
use crate::source;
use crate::tree;

/// Folder, and the modules of its crate that it must not name.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("runtime/src/backend/", &["engine", "cpu", "cuda"]),
    ("runtime/src/cpu/", &["engine", "cuda"]),
    ("runtime/src/cuda/", &["engine", "cpu"]),
    ("runtime/src/model/", &["engine", "cpu", "cuda", "backend"]),
    ("runtime/src/sampling/", &["engine"]),
];

/// Imports upward or sideways in one file.
pub fn check(path: &str, text: &str) -> Vec<Violation> {
    let rules = FORBIDDEN.iter().filter(|(folder, _)| path.starts_with(folder));
    let modules: Vec<&str> = rules.flat_map(|(_, modules)| modules.iter().copied()).collect();
    if modules.is_empty() || tree::extension(path) != "rs" {
        return Vec::new();
    }
    named(path, text)
        .into_iter()
        .filter(|(module, _)| modules.contains(&module.as_str()))
        .map(|(module, line)| {
            let message =
                format!("`crate::{module}` from here: move what both need into `backend`");
            Violation::new(path, line, message)
        })
        .collect()
}

/// The top-level modules that the code names by `crate::`, also in a group, with their lines.
fn named(path: &str, text: &str) -> Vec<(String, usize)> {
    let lines = source::lines(path, text);
    let code: Vec<(usize, char)> = lines
        .iter()
        .enumerate()
        .flat_map(|(at, line)| {
            line.code.chars().filter(|c| !c.is_whitespace()).map(move |c| (at + 1, c))
        })
        .collect();
    let text: String = code.iter().map(|(_, c)| *c).collect();
    let mut found = Vec::new();
    for (at, prefix) in text.match_indices("crate::") {
        let start = text[..at + prefix.len()].chars().count();
        found.extend(heads(&code[start..]));
    }
    found
}

/// First names of a path, or of each path of a `{...}` group.
fn heads(code: &[(usize, char)]) -> Vec<(String, usize)> {
    let grouped = code.first().is_some_and(|first| first.1 == '{');
    let (mut depth, mut at_head) = (0, true);
    let mut found: Vec<(String, usize)> = Vec::new();
    for &(line, c) in code {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if c.is_alphanumeric() || c == '_' => {
                if at_head && depth == i32::from(grouped) {
                    match found.last_mut().filter(|(head, _)| !head.ends_with(' ')) {
                        Some((head, _)) => head.push(c),
                        None => found.push((c.to_string(), line)),
                    }
                }
                continue;
            }
            _ => {}
        }
        // A separator ends the head; a blank at its end says so.
        if let Some((head, _)) = found.last_mut().filter(|(head, _)| !head.ends_with(' ')) {
            head.push(' ');
        }
        at_head = c == '{' || c == ',';
        if depth == 0 {
            break;
        }
    }
    found.into_iter().map(|(head, line)| (head.trim_end().to_owned(), line)).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, named};

    #[test]
    fn an_import_upward_is_found() {
        let direct = "use std::fmt;\nuse crate::engine::Fault;\n";
        let grouped =
            "use crate::{\n    model::{Config, engine},\n    engine::{Fault, Step},\n};\n";
        assert_eq!(check("runtime/src/cuda/a.rs", direct)[0].line, 2);
        assert_eq!(check("runtime/src/cpu/b.rs", grouped)[0].line, 3);
        assert_eq!(check("runtime/src/cpu/c.rs", "fn f(e: &crate::engine::Engine) {}").len(), 1);
    }

    #[test]
    fn an_import_downward_passes() {
        assert_eq!(check("runtime/src/engine/a.rs", "use crate::cuda::Device;"), []);
        assert_eq!(
            check("runtime/src/cuda/a.rs", "// crate::engine\nuse crate::backend::{Step, engine};"),
            []
        );
        assert_eq!(check("runtime/src/cuda/a.rs", "use crate::engineering::Step;"), []);
    }

    #[test]
    fn names_of_a_group_are_its_heads() {
        let heads = named("a.rs", "use crate::{a::b, c::{d, e}, f};\nuse crate::g::h;");
        let names: Vec<&str> = heads.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "c", "f", "g"]);
    }
}
