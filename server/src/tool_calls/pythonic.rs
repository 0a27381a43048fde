//! Llama 3.2 and 4: the answer is a list of calls in Python, `[f(a=1, b="x"), g()]`.

use super::{Call, Cursor, Found, Place, Stop};

/// The beginning of the text at `cursor`. The list counts as a whole, or is content.
pub(super) fn find(mut cursor: Cursor, place: Place) -> Found {
    let text = cursor.rest();
    cursor.space();
    if place != Place::Start || !(cursor.rest().is_empty() || cursor.rest().starts_with('[')) {
        return Found::Text(text.len());
    }
    let no_call = text.len().min(cursor.at() + 1);
    let calls = read(&mut cursor);
    Found::new(calls, &mut cursor, no_call)
}

fn read(cursor: &mut Cursor) -> Result<Vec<Call>, Stop> {
    cursor.literal("[")?;
    let mut calls = Vec::new();
    loop {
        cursor.space();
        let name = cursor.name()?;
        cursor.literal("(")?;
        calls.push(Call { name, arguments: cursor.keyword_arguments()? });
        cursor.space();
        match cursor.next()? {
            ',' => {}
            ']' => return Ok(calls),
            _ => return Err(Stop::No),
        }
    }
}
