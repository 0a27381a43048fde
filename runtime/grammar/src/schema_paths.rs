//! Where in a schema a message's names are.

use serde_json::Value;

/// `message` with the JSON pointer of the first key or text of `schema` that it quotes.
pub(crate) fn locate(schema: &Value, message: &str) -> String {
    let mut quoted = message.split(['"', '\'', '`']).skip(1).step_by(2);
    match quoted.find_map(|word| find(schema, word, &mut String::new())) {
        Some(path) if !message.contains(&path) => format!("{message} (at {path})"),
        _ => message.to_owned(),
    }
}

/// The pointer of the first key or text that is `word`, below `path`.
fn find(value: &Value, word: &str, path: &mut String) -> Option<String> {
    let length = path.len();
    let mut descend = |part: &str, value: &Value, is_key: bool| {
        path.push('/');
        path.push_str(&part.replace('~', "~0").replace('/', "~1"));
        let found =
            if is_key && part == word { Some(path.clone()) } else { find(value, word, path) };
        path.truncate(length);
        found
    };
    match value {
        Value::Object(map) => map.iter().find_map(|(key, value)| descend(key, value, true)),
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(at, value)| descend(&at.to_string(), value, false))
        }
        Value::String(text) if text == word && !word.is_empty() => Some(path.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_found_where_they_are() {
        let schema = json!({"properties": {"a/b": {"items": [{"not": {}}, {"format": "x"}]}}});
        assert_eq!(
            locate(&schema, "Unimplemented keys: [\"not\"]"),
            "Unimplemented keys: [\"not\"] (at /properties/a~1b/items/0/not)"
        );
        assert_eq!(
            locate(&schema, "Unknown format: 'x'"),
            "Unknown format: 'x' (at /properties/a~1b/items/1/format)"
        );
        for message in ["no quotes", "\"other\" name", "\"\"", "an odd \" quote"] {
            assert_eq!(locate(&schema, message), message);
        }
    }
}
