//! Messages of the parser of options, as one line.

/// Returns clap's message without its usage text and its own `error:`, and its tip, in a line each.
pub fn message_and_tip(message: &str) -> (String, Option<String>) {
    let text = message.strip_prefix("error: ").unwrap_or(message);
    let is_message = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more");
    let lines = text.lines().map(str::trim).take_while(is_message).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.collect();
    let tip = lines.iter().position(|line| line.starts_with("tip: ")).unwrap_or(lines.len());
    let (message, tip) = (lines[..tip].join(" "), lines[tip..].join(" "));
    (message, Some(tip).filter(|tip| !tip.is_empty()))
}
