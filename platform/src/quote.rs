//! Text of untrusted files within messages of one line.

use crate::printable::printable_line;

/// Most characters that [`quote`] returns of a text.
const MAX_QUOTED: usize = 160;

/// Returns `text` without line breaks and at most one line long.
pub fn quote(text: &str) -> String {
    let mut chars = text.chars();
    let mut line = escape(&chars.by_ref().take(MAX_QUOTED).collect::<String>());
    if chars.next().is_some() {
        line.push_str("...");
    }
    line
}

/// Returns `text` on one line; see [`printable_line`].
pub fn escape(text: &str) -> String {
    printable_line(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_texts_are_cut() {
        assert_eq!(escape("a\nb\u{1b}[2Jä\u{202e}"), "a\\nb\\u{1b}[2Jä\\u{202e}");
        assert_eq!(quote(&"x".repeat(MAX_QUOTED)), "x".repeat(MAX_QUOTED));
        assert_eq!(quote(&"ä".repeat(MAX_QUOTED + 1)), "ä".repeat(MAX_QUOTED) + "...");
    }
}
