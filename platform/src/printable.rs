//! Text of others for a terminal or a log: characters that act instead of being shown are escaped.

use std::borrow::Cow;

/// Returns `text` with control characters but tab and line feed, line and paragraph separators and
/// controls of the text's direction escaped, such as ESC as `\u{1b}`. Written raw, they can set a
/// terminal's title and clipboard, break a log's line in two or reorder what a person reads.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape_if(text, |c| is_active(c) && !matches!(c, '\t' | '\n'))
}

/// Returns `text` like [`printable`], on one line: a line feed is `\n`, a tab `\t`.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escape_if(text, is_active)
}

fn escape_if(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&is_escaped) else { return text.into() };
    let mut escaped = String::with_capacity(text.len() + 16);
    escaped.push_str(&text[..first]);
    for c in text[first..].chars() {
        match is_escaped(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    escaped.into()
}

/// Returns true for C0, DEL and C1, line and paragraph separators, and bidirectional controls.
pub fn is_active(c: char) -> bool {
    let separates_or_directs = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || separates_or_directs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_escaped_and_the_rest_is_borrowed() {
        let plain = "one\ttwo\nthree äß 日本 \u{a0}\u{200d}\u{2027}\u{2065}\u{206a}";
        assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        let active = "\0\u{7}\u{1b}\r\u{7f}\u{80}\u{9b}\u{9f}\u{61c}\u{200e}\u{200f}\
            \u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}";
        for c in active.chars() {
            let text = format!("a{c}ä");
            let escape = c.escape_default().to_string();
            assert!(escape.starts_with('\\'));
            assert_eq!(printable(&text), format!("a{escape}ä"));
            assert_eq!(printable_line(&text), format!("a{escape}ä"));
        }
        assert_eq!(printable("\u{1b}]0;x\u{7}\n"), "\\u{1b}]0;x\\u{7}\n");
    }

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(printable_line("a\tb\r\nc"), "a\\tb\\r\\nc");
    }
}
