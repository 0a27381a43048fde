//! gpt-oss: `<|channel|>commentary to=functions.NAME<|message|>{"a": 1}`, as the parser of
//! reasoning passes it on.

use super::{Call, Cursor, Found, Place, Stop};
use crate::harmony::CALL;

/// The beginning of the text at `cursor`.
pub(super) fn find(mut cursor: Cursor, _place: Place) -> Found {
    if let Some(text) = Found::before(cursor.rest(), CALL, cursor.is_ended()) {
        return text;
    }
    let call = read(&mut cursor);
    Found::new(call, &mut cursor, 1)
}

fn read(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    cursor.literal(CALL)?;
    let name = cursor.name()?;
    cursor.literal("<|message|>")?;
    cursor.space();
    let arguments = cursor.arguments(&name, &[])?;
    Ok(vec![Call { name, arguments }])
}
