//! Banned words in comments, documents, names and string literals: home-made nouns and phrases for
//! which the field has a term.

use crate::source::{self, Line};
use crate::{Violation, tree};

mod banned;

use banned::{BANNED, Place};

/// First words that make a comment a question or a riddle instead of a statement.
const OPENINGS: [&str; 5] = ["who", "what", "whose", "how many", "whether"];

/// Documents and folders that record history, and keep the words of their day.
const EXEMPT: [&str; 3] = ["CHANGELOG.md", "docs/decisions/", "docs/lab/"];

/// Path prefixes of string literals that are no text of this project, with the reason.
const FOREIGN_LITERALS: [(&str, &str); 1] = [("tests/tidy/words", "the banned words themselves")];

/// One word of a text.
struct Word {
    text: String,
    line: usize,
    /// True if punctuation follows, which ends a phrase.
    ends: bool,
}

/// Violations in one file.
pub fn check(path: &str, text: &str) -> Vec<Violation> {
    if EXEMPT.iter().any(|exempt| path.starts_with(exempt)) {
        return Vec::new();
    }
    if tree::extension(path) == "md" {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        return banned_in_prose(path, &prose(lines));
    }
    let lines = source::lines(path, text);
    let comments = || {
        let numbered = lines.iter().enumerate();
        numbered.filter(|(_, line)| !line.comment.is_empty())
    };
    let mut found =
        banned_in_prose(path, &prose(comments().map(|(at, line)| (at + 1, line.comment.as_str()))));
    found
        .extend(lines.iter().enumerate().flat_map(|(at, line)| banned_in_code(path, at + 1, line)));
    let is_foreign = FOREIGN_LITERALS.iter().any(|(foreign, _)| path.starts_with(foreign));
    if !is_foreign {
        let literals = lines.iter().enumerate().map(|(at, line)| (at + 1, line.literals.as_str()));
        found.extend(banned_in_prose(path, &prose(literals)));
    }
    found.extend(openings(path, &lines));
    found
}

/// Comments that begin with one of [`OPENINGS`].
fn openings(path: &str, lines: &[Line]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut previous = "";
    for (at, line) in lines.iter().enumerate() {
        let (marker, text) = unmarked(&line.comment);
        let goes_on = line.code.trim().is_empty() && marker == previous;
        previous = if line.code.trim().is_empty() { marker } else { "" };
        if goes_on || line.comment.is_empty() {
            continue;
        }
        let first = prose([(at + 1, text)].into_iter());
        let opening = OPENINGS.iter().find(|opening| starts_with(&first, opening));
        found.extend(opening.map(|opening| {
            let message = format!(
                "comment begins with \"{opening}\": write a noun phrase or a third-person verb \
                 (\"Number of ...\", \"Returns ...\")"
            );
            Violation::new(path, at + 1, message)
        }));
    }
    found
}

/// Splits a comment into marker and text; the marker of a docstring's line is empty.
fn unmarked(comment: &str) -> (&'static str, &str) {
    let markers = ["///", "//!", "//", "/*", "#!", "#"];
    let marker = markers.into_iter().find(|marker| comment.starts_with(marker)).unwrap_or("");
    (marker, comment[marker.len()..].trim_start())
}

fn banned_in_prose(path: &str, words: &[Word]) -> Vec<Violation> {
    let mut found = Vec::new();
    for at in 0..words.len() {
        let rules = BANNED.iter().filter(|rule| rule.place == Place::Everywhere);
        found.extend(
            rules
                .filter(|rule| starts_with(&words[at..], rule.word) && !rule.allows(path))
                .map(|rule| rule.violation(path, words[at].line)),
        );
    }
    found
}

fn banned_in_code(path: &str, number: usize, line: &Line) -> Vec<Violation> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let names = line.code.split(|c| !is_name(c)).filter(|name| !name.is_empty());
    let words: Vec<String> = names.flat_map(name_words).collect();
    let rules = BANNED.iter().filter(|rule| words.iter().any(|word| word == rule.word));
    rules.filter(|rule| !rule.allows(path)).map(|rule| rule.violation(path, number)).collect()
}

/// Returns true if `words` begins with `phrase`, with no punctuation inside.
fn starts_with(words: &[Word], phrase: &str) -> bool {
    phrase.split(' ').enumerate().all(|(at, part)| {
        let unbroken = at == 0 || !words[at - 1].ends;
        unbroken && words.get(at).is_some_and(|word| word.text == part)
    })
}

/// The words of numbered lines of prose, in lower case; names are split into their words.
fn prose<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Word> {
    let mut words = Vec::new();
    for (line, text) in lines {
        for chunk in unmarked(text).1.split_whitespace() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '\'';
            let ends = chunk.ends_with(|c| !is_name(c) && c != '`');
            for name in chunk.split(|c| !is_name(c)).filter(|name| !name.is_empty()) {
                words.extend(name_words(name).map(|text| Word { text, line, ends: false }));
            }
            if let Some(last) = words.last_mut() {
                last.ends |= ends;
            }
        }
    }
    words
}

/// Splits a name into lower-case words: `BlockTable`, `block_table` and `BLOCK_TABLE` alike.
fn name_words(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && after_lower) {
            words.push(String::new());
        }
        after_lower = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            words.last_mut().unwrap().extend(c.to_lowercase());
        }
    }
    words.into_iter().filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::check;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text).iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_banned_word_is_found_in_comments_documents_and_names() {
        assert_eq!(lines("a.rs", "// fine\n/// The request's seat.\nlet x = 1;"), [2]);
        assert_eq!(
            lines("a.rs", "struct BatchSeats;\nfn seat_of() {}\nconst SEAT: u8 = 0;"),
            [1, 2, 3]
        );
        assert_eq!(lines("a.cu", "int marks[4]; // fine\nmark_rows();"), [1, 2]);
        assert_eq!(
            lines("a.py", "def f():\n    \"\"\"Computed anew.\"\"\"\n    # lest it fail\n"),
            [2, 3]
        );
        assert_eq!(lines("a.md", "Computed\nanew, `Doors` too."), [2, 2]);
        assert_eq!(
            lines("a.rs", "/// The probe, if there is one, lies in\n/// the host's memory."),
            [1, 1, 2]
        );
        assert_eq!(lines("a.rs", "const MOST_ROWS: u8 = 1;\nlet took = said;"), [1, 2, 2]);
        assert_eq!(lines("scheduler/src/a.rs", "let slot = 1;\nfree(slots);"), [1, 2]);
        assert_eq!(lines("runtime/src/cuda/a.rs", "let slot = 1;\nfree(slots);"), [0; 0]);
    }

    #[test]
    fn a_phrase_is_found_across_lines_but_not_across_punctuation() {
        assert_eq!(lines("a.rs", "// It runs for\n// ever after."), [1]);
        assert_eq!(lines("a.rs", "// What follows is the one of, them as well."), [1]);
        assert_eq!(lines("a.rs", "// It is what it is for. Ever after."), [0; 0]);
    }

    #[test]
    fn a_comment_begins_with_a_statement() {
        assert_eq!(
            lines("a.rs", "/// Who runs.\nfn a() {}\nlet b = 1; // how many there are"),
            [1, 3]
        );
        assert_eq!(lines("a.rs", "//! A noun.\n//! What goes on is fine.\n\n// Whose?"), [4]);
        assert_eq!(lines("a.rs", "/// Whatever is left.\n// However."), [0; 0]);
    }

    #[test]
    fn a_banned_word_is_found_in_literals() {
        assert_eq!(lines("a.rs", "panic!(\n    \"a step is under \\\n     way\");"), [2]);
        assert_eq!(lines("a.py", "help='every seat'"), [1]);
        assert_eq!(lines("a.rs", "f(\"under\", \"way\", \"under\\nway.\");"), [1]);
        assert_eq!(lines("a.rs", "let under = \"way\"; // under\nlet r = \"way\";"), [0; 0]);
        assert_eq!(lines("tests/tidy/words.rs", "(\"anew\", \"again\")"), [0; 0]);
    }

    #[test]
    fn legal_neighbours_pass() {
        assert_eq!(lines("a.rs", "// The outdoor theatre, seated; -1 marks padding.\n"), [0; 0]);
        assert_eq!(lines("a.rs", "let remark = \"a theatre's outdoor chair\";"), [0; 0]);
        assert_eq!(lines("docs/decisions/cpu.md", "Doors were renamed."), [0; 0]);
    }
}
