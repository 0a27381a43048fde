//! Messages of several lines: a line that ends with a backslash continues, and `"""` begins and
//! ends a message.

/// Beginning and end of a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Returns true if `typed` is a whole message, and false if another line follows.
pub fn is_complete(typed: &str) -> bool {
    match typed.trim_start().strip_prefix(QUOTES) {
        Some(quoted) => quoted.trim_end().ends_with(QUOTES),
        None => !typed.ends_with('\\'),
    }
}

/// The message that `typed` spells. A message that ends with the input needs no end mark.
pub fn message(typed: &str) -> String {
    let Some(quoted) = typed.trim_start().strip_prefix(QUOTES) else {
        let lines = typed.strip_suffix('\\').unwrap_or(typed);
        return lines.replace("\\\n", "\n").trim().to_owned();
    };
    let quoted = quoted.trim_end();
    quoted.strip_suffix(QUOTES).unwrap_or(quoted).trim_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backslash_or_quotes_continue_a_message() {
        for (typed, complete, expected) in [
            ("one", true, "one"),
            ("  one  ", true, "one"),
            ("one\\", false, "one"),
            ("one\\\ntwo", true, "one\ntwo"),
            ("one\\\ntwo\\", false, "one\ntwo"),
            // Pasted lines.
            ("one\ntwo", true, "one\ntwo"),
            ("\"\"\"", false, ""),
            ("\"\"\"one", false, "one"),
            ("\"\"\"\n  one\\\n\ntwo\n\"\"\"", true, "  one\\\n\ntwo"),
            ("\"\"\"one\"\"\" ", true, "one"),
            ("\"\"\"\"\"\"", true, ""),
        ] {
            assert_eq!(is_complete(typed), complete, "{typed:?}");
            assert_eq!(message(typed), expected, "{typed:?}");
        }
    }
}
