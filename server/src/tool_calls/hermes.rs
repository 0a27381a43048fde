//! Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`. The closing tag
//! may be missing at the answer's end. As in llama.cpp, an answer may begin with such objects
//! without tags, alone or as a block of Markdown: Qwen2.5-Coder writes most of its calls so.

use super::{Call, Cursor, Found, Place, Stop};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Ends of a block of Markdown.
const FENCE: &str = "```";
const BLOCK: &str = "```json";

/// The beginning of the text at `cursor`.
pub(super) fn find(mut cursor: Cursor, place: Place) -> Found {
    let text = cursor.rest();
    if place != Place::Text {
        cursor.space();
        let (rest, is_ended) = (cursor.rest(), cursor.is_ended());
        let begins = if place == Place::Start { BLOCK } else { FENCE };
        let is_open = !is_ended && (OPEN.starts_with(rest) || begins.starts_with(rest));
        if is_open && rest.len() < begins.len() {
            return Found::Open(None);
        }
        if place == Place::Call && rest.starts_with(FENCE) {
            return Found::Separator(cursor.at() + FENCE.len());
        }
        if rest.starts_with('{') || (place == Place::Start && rest.starts_with(BLOCK)) {
            let no_call = cursor.at() + 1;
            let call = read_bare(&mut cursor);
            return Found::new(call, &mut cursor, no_call);
        }
        cursor = cursor.back();
    }
    if let Some(found) = Found::before(text, OPEN, cursor.is_ended()) {
        return found;
    }
    let call = read(&mut cursor);
    Found::new(call, &mut cursor, 1)
}

fn read(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    cursor.literal(OPEN)?;
    cursor.space();
    let call = cursor.object(&["arguments"], &["}", CLOSE])?;
    cursor.space();
    if !(cursor.is_ended() && cursor.rest().is_empty()) {
        cursor.literal(CLOSE)?;
    }
    Ok(vec![call])
}

fn read_bare(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    if cursor.rest().starts_with(BLOCK) {
        cursor.literal(BLOCK)?;
        cursor.space();
    }
    Ok(vec![cursor.object(&["arguments"], &["}"])?])
}
