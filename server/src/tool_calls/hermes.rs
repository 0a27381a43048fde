//! Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`. The closing tag
//! may be missing at the answer's end.

use super::{Call, Cursor, Found, Stop};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What the text at `cursor` begins with.
pub(super) fn find(mut cursor: Cursor) -> Found {
    if let Some(text) = Found::before(cursor.rest(), OPEN, cursor.is_ended()) {
        return text;
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
