//! Limits on schemas beyond those of llguidance, whose compilation would take seconds without them,
//! or whose answers would fail.

use serde_json::{Deserializer, Value};

use crate::GrammarError;

/// Largest `multipleOf`, as an integer without its decimal point: its lexer has a state for each
/// remainder, and all are visited (1,000,000 took 10 s and 600 MB).
const MAX_MULTIPLE: u64 = 10_000;
/// Most properties of an object that may be absent: each can follow any before it. Answers to 150
/// are within the limits of a mask with the vocabularies tried (8 to 151 thousand tokens).
const MAX_OPTIONAL: usize = 128;

/// Refuses a schema beyond the limits, by the JSON pointer of the place.
pub(crate) fn check(schema: &Value) -> Result<(), GrammarError> {
    check_below(schema, &mut String::new())
}

/// Checks the schemas within a grammar in Lark.
pub(crate) fn check_lark(text: &str) -> Result<(), GrammarError> {
    for rest in text.split("%json").skip(1) {
        // Text that is no JSON is refused with the grammar.
        if let Some(Ok(schema)) = Deserializer::from_str(rest).into_iter::<Value>().next() {
            check(&schema)?;
        }
    }
    Ok(())
}

fn check_below(value: &Value, path: &mut String) -> Result<(), GrammarError> {
    let length = path.len();
    let mut below = |part: &str, value: &Value| {
        path.push('/');
        path.push_str(&part.replace('~', "~0").replace('/', "~1"));
        let result = check_below(value, path);
        path.truncate(length);
        result
    };
    match value {
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(at, item)| below(&at.to_string(), item))
        }
        Value::Object(members) => {
            members.iter().try_for_each(|(name, value)| below(name, value))?;
            let refuse = |why: String| {
                let place = if path.is_empty() { "the top" } else { path };
                Err(GrammarError(format!("the JSON schema: {why} (at {place})")))
            };
            if let Some(Value::Number(number)) = members.get("multipleOf")
                && !is_small(&number.to_string())
            {
                return refuse(format!("multipleOf {number} is above {MAX_MULTIPLE} steps"));
            }
            let count = |name: &str| match members.get(name) {
                Some(Value::Object(members)) => members.len(),
                Some(Value::Array(items)) => items.len(),
                _ => 0,
            };
            if count("properties") > count("required") + MAX_OPTIONAL {
                return refuse(format!("more than {MAX_OPTIONAL} properties are optional"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// True if a number has at most [`MAX_MULTIPLE`] steps of its last digit.
fn is_small(number: &str) -> bool {
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    let is_plain = !number.contains(['e', 'E']);
    is_plain && digits.parse::<u64>().is_ok_and(|steps| steps <= MAX_MULTIPLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_beyond_the_limits_are_named_by_place() {
        for (multiple, is_refused) in [
            (json!(5), false),
            (json!(0.01), false),
            (json!(10_000), false),
            (json!(10_001), true),
            (json!(1.00001), true),
            (json!(1e-30), true),
        ] {
            let schema = json!({"properties": {"a": {"multipleOf": multiple}}});
            let error = check(&schema).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), is_refused, "{error:?}");
            assert!(error.is_none_or(|error| error.contains("(at /properties/a)")));
            assert_eq!(check_lark(&format!("start: %json {schema} \"x\"")).is_err(), is_refused);
        }
        let names: Vec<String> = (0..500).map(|at| format!("p{at}")).collect();
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!({}))).collect();
        assert!(check(&json!({"properties": properties})).is_err());
        assert!(check(&json!({"properties": properties, "required": names})).is_ok());
        assert!(check_lark("start: %json {").is_ok() && check_lark("start: \"a\"").is_ok());
    }
}
