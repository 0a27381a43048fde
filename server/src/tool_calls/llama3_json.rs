//! Llama 3: the answer is `{"name": "f", "parameters": {"a": 1}}`, several with `;` between, or
//! they follow `<|python_tag|>`.

use super::{Call, Cursor, Found, Place, Stop};

const TAG: &str = "<|python_tag|>";

/// The beginning of the text at `cursor`.
pub(super) fn find(mut cursor: Cursor, place: Place) -> Found {
    let text = cursor.rest();
    cursor.space();
    let has_tag = cursor.rest().starts_with(TAG);
    let opens = match place {
        Place::Start => cursor.rest().starts_with('{') || cursor.rest().is_empty(),
        Place::Text => false,
        Place::Call => cursor.rest().starts_with([';', '{']) || cursor.rest().is_empty(),
    };
    if !has_tag && !opens {
        // Within `text`, so that white space before a tag is content.
        return Found::before(text, TAG, cursor.is_ended()).unwrap_or(Found::Text(1));
    }
    let no_call = cursor.at() + cursor.rest().chars().next().map_or(0, char::len_utf8);
    let call = read(&mut cursor, place);
    Found::new(call, &mut cursor, no_call)
}

fn read(cursor: &mut Cursor, place: Place) -> Result<Vec<Call>, Stop> {
    if place == Place::Call && cursor.rest().starts_with(';') {
        cursor.literal(";")?;
        cursor.space();
    }
    if cursor.rest().starts_with(TAG) {
        cursor.literal(TAG)?;
        cursor.space();
    }
    Ok(vec![cursor.object(&["parameters", "arguments"], &["}"])?])
}
