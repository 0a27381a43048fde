//! Length of the documents that a newcomer reads first.

use crate::Violation;
use crate::tree::File;

/// A limit of one document.
enum Limit {
    Lines(usize),
    Bytes(usize),
}

const LIMITS: [(&str, Limit); 3] = [
    ("README.md", Limit::Lines(130)),
    ("ARCHITECTURE.md", Limit::Bytes(16 << 10)),
    ("docs/results.md", Limit::Bytes(20 << 10)),
];

/// Documents of the first hour, which together have fewer than [`FIRST_WORDS`] words.
const FIRST: [&str; 3] = ["README.md", "ARCHITECTURE.md", "docs/README.md"];

const FIRST_WORDS: usize = 4000;

/// Documents over their limit, or missing.
pub fn check(files: &[File]) -> Vec<Violation> {
    let text = |path: &str| files.iter().find(|file| file.path == path).map(|file| &*file.text);
    let mut found = Vec::new();
    for (path, limit) in &LIMITS {
        let (length, max, unit) = match (text(path), limit) {
            (None, _) => (usize::MAX, 0, "(missing)"),
            (Some(text), Limit::Lines(max)) => (text.lines().count(), *max, "lines"),
            (Some(text), Limit::Bytes(max)) => (text.len(), *max, "bytes"),
        };
        if length > max {
            let message = format!("{length} {unit}, at most {max}: move the rest to docs/");
            found.push(Violation::new(path, 1, message));
        }
    }
    let words: usize = FIRST
        .iter()
        .filter_map(|path| text(path))
        .map(|text| text.split_whitespace().count())
        .sum();
    if words >= FIRST_WORDS {
        let message = format!("{words} words in {}, fewer than {FIRST_WORDS}", FIRST.join(", "));
        found.push(Violation::new(FIRST[0], 1, message));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{File, check};

    fn found(readme: &str, architecture: &str, results: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("README.md", readme),
            file("ARCHITECTURE.md", architecture),
            file("docs/results.md", results),
            file("docs/README.md", "two words"),
        ];
        check(&files)
            .into_iter()
            .map(|found| format!("{}: {}", found.path, found.message))
            .collect()
    }

    #[test]
    fn a_long_document_is_found() {
        let fits = ["x\n".repeat(130), "y".repeat(16 << 10), "z".repeat(20 << 10)];
        assert_eq!(found(&fits[0], &fits[1], &fits[2]), [""; 0]);
        let longer = [format!("{}x\n", fits[0]), format!("{}y", fits[1]), format!("{}z", fits[2])];
        let all = found(&longer[0], &longer[1], &longer[2]);
        let starts =
            ["README.md: 131 lines", "ARCHITECTURE.md: 16385 b", "docs/results.md: 20481 b"];
        assert_eq!(all.len(), 3);
        assert!(all.iter().zip(starts).all(|(found, start)| found.starts_with(start)), "{all:?}");
    }

    #[test]
    fn many_words_are_found() {
        assert_eq!(found("", &"w ".repeat(3997), ""), [""; 0]);
        assert!(found("", &"w ".repeat(3998), "")[0].contains("4000 words"));
    }
}
