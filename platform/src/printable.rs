//! Text from outside, for terminals and logs.

use std::borrow::Cow;

/// Returns `text` with what a terminal would obey, or a reader would not see, as `\u{..}`: control
/// characters but tab and newline, other line ends, and marks that change the order of the text.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match is_hidden(c) {
            true => shown.extend(c.escape_unicode()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

fn is_hidden(c: char) -> bool {
    match c {
        '\t' | '\n' => false,
        '\u{2028}' | '\u{2029}' => true,
        '\u{61C}' | '\u{200E}' | '\u{200F}' => true,
        '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' => true,
        // C0, DEL and C1.
        c => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_escaped() {
        assert!(matches!(printable("a\tb\nä"), Cow::Borrowed("a\tb\nä")));
        assert_eq!(printable("\u{1b}[2J\r\u{7f}\u{9b}"), "\\u{1b}[2J\\u{d}\\u{7f}\\u{9b}");
        assert_eq!(printable("\u{85}\u{2028}\u{202e}x"), "\\u{85}\\u{2028}\\u{202e}x");
        assert_eq!(printable("\u{61c}\u{200e}\u{2066}"), "\\u{61c}\\u{200e}\\u{2066}");
    }
}
