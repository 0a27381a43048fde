//! Length of Rust functions.

use crate::lengths::Long;
use crate::source;
use crate::tree::{self, File};

/// Lines of a function, from `fn` to its closing brace.
pub const LIMIT: usize = 70;

/// Functions over [`LIMIT`]: `path::name` and lines.
pub const RATCHET: &[(&str, usize)] = &[
    ("tests/emulator/src/exec/ops/float.rs::single", 95),
    ("tests/emulator/src/exec/ops/integer.rs::product", 76),
    ("tests/emulator/src/ptx/inline.rs::call", 78),
    ("tests/emulator/tests/emulator/arithmetic.rs::arithmetic_reference", 71),
    ("runtime/tests/cuda_backend/backend/play.rs::play", 90),
    ("runtime/tests/cuda/gemm/epilogues.rs::qkv", 73),
];

/// Functions over [`LIMIT`] in all Rust files.
pub fn over_long(files: &[File]) -> Vec<Long> {
    let rust = files.iter().filter(|file| tree::extension(&file.path) == "rs");
    let all = rust.flat_map(|file| functions(&file.path, &file.text));
    all.filter(|function| function.length > LIMIT).collect()
}

/// All functions with a body.
fn functions(path: &str, text: &str) -> Vec<Long> {
    let lines = source::lines(path, text);
    let code: Vec<(usize, char)> = lines
        .iter()
        .enumerate()
        .flat_map(|(at, line)| line.code.chars().chain(['\n']).map(move |c| (at + 1, c)))
        .collect();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for at in 0..code.len() {
        let is_word = code[at].1 == 'f' && code.get(at + 1).is_some_and(|next| next.1 == 'n');
        let begins = at == 0 || !is_name(code[at - 1].1);
        if !is_word || !begins || code.get(at + 2).is_none_or(|next| !next.1.is_whitespace()) {
            continue;
        }
        let rest = code[at + 2..].iter().skip_while(|next| next.1.is_whitespace());
        let name: String = rest.map(|next| next.1).take_while(|&c| is_name(c)).collect();
        if let (false, Some(last)) = (name.is_empty(), body_end(&code[at..])) {
            let line = code[at].0;
            found.push(Long { name: format!("{path}::{name}"), line, length: last - line + 1 });
        }
    }
    found
}

/// Line of the brace that closes the body; none for a declaration without one.
fn body_end(code: &[(usize, char)]) -> Option<usize> {
    let (mut braces, mut parentheses) = (0, 0);
    for &(line, c) in code {
        match c {
            '(' | '[' => parentheses += 1,
            ')' | ']' => parentheses -= 1,
            ';' if braces == 0 && parentheses == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(line);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{File, LIMIT, functions, over_long};

    #[test]
    fn a_long_function_is_found() {
        let body =
            |lines| format!("    let text = \"}}\";\n{}", "    call('{');\n".repeat(lines - 3));
        let text = format!(
            "trait T {{\n    fn declared(&self) -> [u8; 4];\n}}\n\nfn long() {{\n{}}}\n\nfn fits() {{\n{}}}\n",
            body(LIMIT + 1),
            body(LIMIT)
        );
        let files = [File { path: "a.rs".to_owned(), text }];
        let found: Vec<(String, usize)> =
            over_long(&files).into_iter().map(|long| (long.name, long.length)).collect();
        assert_eq!(found, [("a.rs::long".to_owned(), LIMIT + 1)]);
    }

    #[test]
    fn types_and_names_that_look_like_functions_are_none() {
        let text = "let f: fn (u32) = g;\nlet my_fn = 1;\nfn one(f: impl Fn()) { f() }\n";
        let names: Vec<String> = functions("a.rs", text).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["a.rs::one"]);
    }
}
