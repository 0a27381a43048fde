//! Reports of the benchmarks: one JSON object, or the same as text.

use serde_json::{Map, Value};
use trail_cli::Table;

/// A column of the printed table: heading, JSON pointer within a row, decimals of its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Column(pub &'static str, pub &'static str, pub usize);

/// A group of columns: title, columns.
#[derive(Clone, Copy, Debug)]
pub struct Group(pub &'static str, pub &'static [Column]);

/// A benchmark's result in both forms.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// The object printed with `--json`.
    pub json: Value,
    /// The text printed without it.
    pub text: String,
}

impl BenchReport {
    /// The report of `json`. Its text has a line for each figure outside of arrays, then a table of
    /// the first array of objects. Columns that no row has are left out.
    pub fn new(json: Value, columns: &[Group]) -> BenchReport {
        let text = text(&json, columns);
        BenchReport { json, text }
    }
}

fn text(json: &Value, columns: &[Group]) -> String {
    let empty = Map::new();
    let object = json.as_object().unwrap_or(&empty);
    let mut figures = Vec::new();
    for (key, value) in object {
        flatten(key, value, &mut figures);
    }
    let width = figures.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let lines: Vec<String> =
        figures.iter().map(|(key, value)| format!("{key:<width$}  {value}\n")).collect();
    let head = lines.concat();
    match object.values().find_map(Value::as_array) {
        None => head,
        Some(rows) if head.is_empty() => table(rows, columns),
        Some(rows) => format!("{head}\n{}", table(rows, columns)),
    }
}

/// Appends `value`, or each figure of an object, with its keys in words.
fn flatten(key: &str, value: &Value, figures: &mut Vec<(String, String)>) {
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(inner, value)| {
                flatten(&format!("{key} {inner}"), value, figures);
            });
        }
        Value::Array(_) => {}
        value => figures.push((key.replace('_', " "), cell(value, 4))),
    }
}

fn table(rows: &[Value], columns: &[Group]) -> String {
    let has = |column: &&Column| rows.iter().any(|row| row.pointer(column.1).is_some());
    let mut table = Table::default();
    let mut shown = Vec::new();
    for Group(title, columns) in columns {
        let columns: Vec<&Column> = columns.iter().filter(has).collect();
        if !columns.is_empty() {
            let headings: Vec<&str> = columns.iter().map(|column| column.0).collect();
            table = table.group(title, &headings);
            shown.extend(columns);
        }
    }
    for row in rows {
        let value =
            |column: &&Column| cell(row.pointer(column.1).unwrap_or(&Value::Null), column.2);
        table.row(shown.iter().map(value));
    }
    table.to_string()
}

/// A value as text; numbers that are not whole with so many decimals.
fn cell(value: &Value, decimals: usize) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            values.iter().map(|value| cell(value, decimals)).collect::<Vec<_>>().join(" ")
        }
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => format!("{float:.decimals$}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_come_first_then_the_rows_without_absent_columns() {
        let columns = [
            Group("", &[Column("batch", "/batch", 0), Column("floor", "/floor_us", 1)]),
            Group("step, us", &[Column("median", "/step_us/median", 1)]),
        ];
        let json = json!({
            "model": "demo",
            "limits": { "read_gb_per_s": 12.34567 },
            "rows": [{ "batch": 1, "step_us": { "median": 10.25 } }, { "batch": 8 }],
        });
        let expected = "\
model                 demo
limits read gb per s  12.3457

      | step, us
batch |   median
------+---------
    1 |     10.2
    8 |        -
";
        assert_eq!(BenchReport::new(json, &columns).text, expected);
    }
}
