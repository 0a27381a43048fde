//! Line width.

use crate::source;
use crate::{Violation, tree};

/// Columns of a line, in code, comments and documents.
pub const LIMIT: usize = 100;

/// Lines over [`LIMIT`]. Exempt: tables, links, and code that is too wide only by its literals.
pub fn check(path: &str, text: &str) -> Vec<Violation> {
    let lines = source::lines(path, text);
    let wide = text.lines().enumerate().filter(|(_, line)| columns(line) > LIMIT);
    wide.filter(|&(at, line)| {
        !is_table(path, line) && !is_link(line) && !is_literal(path, &lines, at)
    })
    .map(|(at, line)| {
        let message = format!("{} columns: at most {LIMIT}", columns(line));
        Violation::new(path, at + 1, message)
    })
    .collect()
}

fn columns(line: &str) -> usize {
    line.chars().count()
}

/// A table's row, in a document or a comment.
fn is_table(path: &str, line: &str) -> bool {
    let text = line.trim_start_matches(['/', '!', ' ']);
    text.starts_with('|') && (tree::extension(path) == "md" || line.trim_start().starts_with("//"))
}

/// A line that would fit without its longest URL or Markdown link.
fn is_link(line: &str) -> bool {
    let links = line.split_whitespace().filter(|word| word.contains("://") || word.contains("]("));
    links.map(columns).max().is_some_and(|link| columns(line) - link <= LIMIT)
}

/// A line that would fit without the content of its string literals. A shell's quotes are no
/// excuse: a command can be broken between arguments.
fn is_literal(path: &str, lines: &[source::Line], at: usize) -> bool {
    let breakable = matches!(tree::extension(path), "md" | "sh" | "ci");
    !breakable && columns(&lines[at].code) + columns(&lines[at].comment) <= LIMIT
}

#[cfg(test)]
mod tests {
    use super::check;

    fn wide(path: &str, line: &str) -> bool {
        !check(path, &format!("first\n{line}\n")).is_empty()
    }

    #[test]
    fn wide_lines_are_found() {
        let words = "word ".repeat(20);
        assert!(wide("a.rs", &format!("// {words}")));
        assert!(wide("a.rs", &format!("let x = \"{words}\"; // {words}")));
        assert!(wide("a.sh", &format!("echo \"{words}\"")));
        assert!(wide("a.md", &format!("{words} word [link](docs/results.md)")));
        assert!(wide("a.py", &format!("    \"\"\"{words}")));
        assert_eq!(check("a.rs", &format!("x\n//{}", "y".repeat(99)))[0].line, 2);
    }

    #[test]
    fn legal_neighbours_pass() {
        let words = "word ".repeat(20);
        assert!(!wide("a.rs", &format!("// {}", "é".repeat(97))));
        assert!(!wide("a.rs", &format!("println!(\"{words}\");")));
        assert!(!wide("a.rs", &format!("/// | {words} |")));
        assert!(!wide("a.md", &format!("| {words} |")));
        assert!(!wide("a.md", &format!("See https://example.org/{}.", "x".repeat(90))));
    }
}
