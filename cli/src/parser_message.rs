//! Messages of the parser of options, as one line.

/// Returns clap's message without its usage text and its own `error:`, and its tip, in a line each.
pub fn message_and_tip(message: &str) -> (String, Option<String>) {
    let text = message.strip_prefix("error: ").unwrap_or(message);
    let is_message = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more");
    let lines = text.lines().map(str::trim).take_while(is_message).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.collect();
    let tip = lines.iter().position(|line| line.starts_with("tip: ")).unwrap_or(lines.len());
    let (message, tip) = (lines[..tip].join(" "), lines[tip..].join(" "));
    (advised(message), Some(tip).filter(|tip| !tip.is_empty()))
}

/// The standard library's words for what is no number, as what to give.
const NUMBERS: [(&str, &str); 5] = [
    (": invalid digit found in string", ": give a whole number"),
    (": cannot parse integer from empty string", ": give a whole number"),
    (": invalid float literal", ": give a number"),
    (": cannot parse float from empty string", ": give a number"),
    (": number too large to fit in target type", ": it is too large"),
];

fn advised(message: String) -> String {
    let found = NUMBERS.iter().find_map(|(words, advice)| {
        message.strip_suffix(words).map(|before| format!("{before}{advice}"))
    });
    found.unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_none_says_what_to_give() {
        let of = |message| message_and_tip(message).0;
        let text = "error: invalid value 'x' for '--seed <N>': invalid digit found in string\n\n\
                    For more information, try '--help'.";
        assert_eq!(of(text), "invalid value 'x' for '--seed <N>': give a whole number");
        let text = "error: invalid value '-1' for '--seconds <S>': -1 is not in 0..=9";
        assert_eq!(of(text), "invalid value '-1' for '--seconds <S>': -1 is not in 0..=9");
    }
}
