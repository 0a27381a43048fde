//! Expressions over a record: `PATH`, or atoms with `/` and `*` between them, left to right.
//!
//! An atom is a number or a path of names separated by dots, `points[model=$1].ratio.median`. A
//! filter in brackets keeps the elements of a list whose members have these values (numbers compare
//! as numbers; `a/b=` is the first member that is there). `[...]` at the beginning filters the
//! record itself. A path with several values is their mean, a quotient of two such paths the median
//! of the pairs' quotients.

use serde_json::Value;

/// The expressions of a comment's cell, which commas separate outside brackets.
pub fn split(cell: &str) -> Vec<&str> {
    outside_brackets(cell, ',').into_iter().map(str::trim).collect()
}

/// The value of `expression`; `$1` in a path is the first of `labels`.
pub fn evaluate(record: &Value, expression: &str, labels: &[String]) -> Result<f64, String> {
    let words = outside_brackets(expression, ' ');
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut values = atom(record, words.next().unwrap_or_default(), labels)?;
    while let (Some(operator), Some(word)) = (words.next(), words.next()) {
        let right = atom(record, word, labels)?;
        values = match operator {
            "*" => vec![mean(&values) * mean(&right)],
            "/" if values.len() == right.len() => {
                vec![median(values.iter().zip(&right).map(|(a, b)| a / b).collect())]
            }
            "/" => vec![mean(&values) / mean(&right)],
            _ => return Err(format!("no operator: {operator}")),
        };
    }
    Ok(mean(&values))
}

/// The values of a number or a path, never none.
fn atom(record: &Value, word: &str, labels: &[String]) -> Result<Vec<f64>, String> {
    if let Ok(number) = word.parse() {
        return Ok(vec![number]);
    }
    let mut path = word.to_owned();
    for (at, label) in labels.iter().enumerate().rev() {
        path = path.replace(&format!("${}", at + 1), label);
    }
    let mut values = vec![record];
    for segment in outside_brackets(&path, '.') {
        let (name, filter) = segment.split_once('[').unwrap_or((segment, ""));
        values.retain_mut(|value| {
            let member = if name.is_empty() { Some(*value) } else { value.get(name) };
            member.map(|member| *value = member).is_some()
        });
        if let Some(filter) = filter.strip_suffix(']') {
            let elements = values.into_iter().filter_map(Value::as_array).flatten();
            values = elements.filter(|element| passes(element, filter)).collect();
        }
    }
    let numbers: Vec<f64> = values.into_iter().filter_map(Value::as_f64).collect();
    if numbers.is_empty() { Err(format!("no entry {path}")) } else { Ok(numbers) }
}

/// True if `element` has all members of `filter`, `name=value,name/other=value`.
fn passes(element: &Value, filter: &str) -> bool {
    filter.split(',').all(|condition| {
        let Some((names, wanted)) = condition.split_once('=') else { return false };
        let found = match names.split('/').find_map(|name| element.get(name)) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => return false,
        };
        let number = |text: &str| text.parse::<f64>().ok();
        found == wanted || number(&found).is_some_and(|found| number(wanted) == Some(found))
    })
}

/// Splits `text` at `separator` outside brackets.
fn outside_brackets(text: &str, separator: char) -> Vec<&str> {
    let mut depth = 0;
    text.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        depth == 0 && c == separator
    })
    .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { mean(&values[middle - 1..=middle]) }
}

#[cfg(test)]
mod tests {
    use super::{evaluate, split};
    use serde_json::json;

    #[test]
    fn expressions_have_their_value() {
        let record = json!({
            "points": [{"model": "a.b", "batch": 1, "rate": {"median": 3.0}}, {"model": "c"}],
            "mae": {"raw": 0.5},
        });
        let labels = ["a.b".to_owned(), "1".to_owned(), "raw".to_owned()];
        let value = |expression| evaluate(&record, expression, &labels);
        assert_eq!(value("points[model=$1,batch=$2].rate.median"), Ok(3.0));
        assert_eq!(value("mae.$3 * 100"), Ok(50.0));
        assert_eq!(value("points[model=$1].rate.median / mae.$3"), Ok(6.0));
        assert!(value("points[model=d].rate.median").is_err());
        assert_eq!(value("points[batch/tokens=1].rate.median"), Ok(3.0));
        assert!(value("mae.$3 + 1").is_err());
    }

    #[test]
    fn commas_in_brackets_do_not_separate() {
        assert_eq!(split("a[x=1,y=2].b, c"), ["a[x=1,y=2].b", "c"]);
    }
}
