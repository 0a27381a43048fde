//! Mistral: `[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, ...]`, and later models
//! `[TOOL_CALLS]f[ARGS]{"a": 1}`, with `[CALL_ID]...` before `[ARGS]` or without both.

use super::{Call, Cursor, Found, Place, Stop};

const OPEN: &str = "[TOOL_CALLS]";

/// The beginning of the text at `cursor`.
pub(super) fn find(mut cursor: Cursor, place: Place) -> Found {
    if place == Place::Call {
        cursor.space();
        match cursor.rest().as_bytes().first() {
            None if cursor.is_ended() => return Found::Text(cursor.at()),
            None => return Found::Open(None),
            Some(b']') => return Found::Separator(cursor.at() + 1),
            Some(b',') => {
                let no_call = cursor.at() + 1;
                let call = read_next(&mut cursor);
                return Found::new(call, &mut cursor, no_call);
            }
            Some(_) if cursor.at() > 0 => return Found::Text(cursor.at()),
            Some(_) => {}
        }
    }
    if let Some(text) = Found::before(cursor.rest(), OPEN, cursor.is_ended()) {
        return text;
    }
    let call = read(&mut cursor);
    Found::new(call, &mut cursor, 1)
}

fn read(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    cursor.literal(OPEN)?;
    cursor.space();
    if cursor.peek()? == b'[' {
        cursor.literal("[")?;
        cursor.space();
        return object(cursor);
    }
    let name = cursor.name()?;
    let is_bare = cursor.peek()? == b'{';
    if !is_bare {
        cursor.literal("[")?;
        match cursor.peek()? {
            b'C' => {
                cursor.literal("CALL_ID]")?;
                cursor.word(|byte| byte.is_ascii_alphanumeric())?;
                cursor.literal("[ARGS]")?;
            }
            _ => cursor.literal("ARGS]")?,
        }
    }
    cursor.space();
    let arguments = cursor.arguments(&name, &[])?;
    Ok(vec![Call { name, arguments }])
}

fn read_next(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    cursor.literal(",")?;
    cursor.space();
    object(cursor)
}

/// A call of a list.
fn object(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    Ok(vec![cursor.object(&["arguments"], &["}"])?])
}
