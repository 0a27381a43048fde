//! Figures in README and results are those of their records.
//!
//! A table with numbers stands below a comment, either `<!-- no record: REASON -->` or
//!
//! ```text
//! <!-- record: benches/records/FILE
//! | model | points[model=$1].ours.median, points[model=$1].ours.min | ... |
//! -->
//! ```
//!
//! whose row has a cell for each column: a list of expressions (`expression.rs`) for the numbers of
//! the column's cells, in order. `$1` is the text of the row's first cell, or its first code span.
//! A cell of the comment without an expression is a label and compares nothing.

mod expression;

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Violation;
use crate::tree::File;

/// Documents whose tables are checked.
const CHECKED: [&str; 3] = ["README.md", "docs/one-answer.md", "docs/results.md"];

/// Compares the tables of [`CHECKED`] with the records that they name.
pub fn check(files: &[File]) -> Vec<Violation> {
    let checked = files.iter().filter(|file| CHECKED.contains(&file.path.as_str()));
    checked.flat_map(|file| compare(&file.path, &file.text, &read)).collect()
}

/// The JSON value of a file, or the list of values of a `.jsonl` file.
fn read(path: &str) -> Result<Value, String> {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(full).map_err(|error| format!("{path}: {error}"))?;
    let parse = |text: &str| serde_json::from_str(text).map_err(|error| format!("{path}: {error}"));
    if path.ends_with(".jsonl") { text.lines().map(parse).collect() } else { parse(&text) }
}

/// Violations in the tables of one document.
fn compare(path: &str, text: &str, read: &dyn Fn(&str) -> Result<Value, String>) -> Vec<Violation> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let end = at + lines[at..].iter().take_while(|line| line.starts_with('|')).count();
        let is_table = end > at + 2 && lines[at + 1].starts_with("|--");
        if is_table && lines[at + 2..end].iter().any(|row| has_figures(row)) {
            let messages = match comment(&lines[..at]) {
                Some(Comment::Record(file, columns)) => match read(&file) {
                    Ok(record) => differences(&record, &columns, &lines[at + 2..end]),
                    Err(error) => vec![(0, error)],
                },
                Some(Comment::NoRecord) => Vec::new(),
                None => vec![(0, "a table of figures needs `<!-- record: ... -->`".to_owned())],
            };
            let violation = |(row, message)| Violation::new(path, at + 3 + row, message);
            found.extend(messages.into_iter().map(violation));
        }
        at = end.max(at + 1);
    }
    found
}

/// The comment directly above a table.
enum Comment {
    /// The file and the cells of the comment's row.
    Record(String, Vec<String>),
    NoRecord,
}

fn comment(above: &[&str]) -> Option<Comment> {
    if !above.last()?.ends_with("-->") {
        return None;
    }
    let start = above.iter().rposition(|line| line.starts_with("<!--"))?;
    let first = above[start].trim_start_matches("<!--").trim();
    if let Some(reason) = first.strip_prefix("no record:") {
        let reason = reason.trim_end_matches("-->").trim();
        return (!reason.is_empty()).then_some(Comment::NoRecord);
    }
    let file = first.strip_prefix("record:")?.trim();
    Some(Comment::Record(file.to_owned(), cells(above.get(start + 1)?)))
}

/// Row and message of each cell that is not as the record has it.
fn differences(record: &Value, columns: &[String], rows: &[&str]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let row = cells(row);
        if row.len() != columns.len() {
            found.push((at, format!("{} cells, the comment has {}", row.len(), columns.len())));
            continue;
        }
        let labels: Vec<String> = row.iter().map(|cell| label(cell)).collect();
        for (cell, column) in row.iter().zip(columns).filter(|(_, column)| is_expression(column)) {
            let found_in_cell = cell_difference(record, column, cell, &labels);
            found.extend(found_in_cell.map(|message| (at, format!("\"{cell}\": {message}"))));
        }
    }
    found
}

/// The first number of `cell` that is not its expression's value, as a message.
fn cell_difference(record: &Value, column: &str, cell: &str, labels: &[String]) -> Option<String> {
    let expressions = expression::split(column);
    let numbers = numbers(cell);
    if numbers.is_empty() && cell.chars().all(|c| c == '-') {
        return None;
    }
    if numbers.len() != expressions.len() {
        return Some(format!("{} numbers, the comment has {}", numbers.len(), expressions.len()));
    }
    expressions.iter().zip(&numbers).find_map(|(expression, number)| {
        match expression::evaluate(record, expression, labels) {
            Err(error) => Some(error),
            Ok(value) => {
                let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
                let recorded = format!("{value:.decimals$}");
                (recorded != *number).then(|| format!("the record has {recorded}"))
            }
        }
    })
}

/// True if the cell of a comment is an expression and no label.
fn is_expression(column: &str) -> bool {
    column.contains(['[', '.'])
}

/// The trimmed cells of a table's row.
fn cells(row: &str) -> Vec<String> {
    let inside = row.trim().trim_start_matches('|').trim_end_matches('|');
    inside.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// A cell's first code span, or its text.
fn label(cell: &str) -> String {
    cell.split('`').nth(1).unwrap_or(cell).to_owned()
}

/// True if a cell beside the first begins with a digit.
fn has_figures(row: &str) -> bool {
    let is_figure =
        |cell: &String| cell.trim_start_matches('*').starts_with(|c: char| c.is_ascii_digit());
    cells(row).iter().skip(1).any(is_figure)
}

/// The numbers of a cell, without separators of thousands.
fn numbers(cell: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let parts = cell.split(|c| !is_part(c));
    parts
        .map(|part| part.trim_matches(['.', ',']).replace(',', ""))
        .filter(|number| !number.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::compare;
    use serde_json::{Value, json};

    const ROWS: &str = "| load | s: fcfs | trail | gain |\n|---|---|---|---|\n";
    const COMMENT: &str = "<!-- record: r.jsonl\n| load | [load=$1,policy=fcfs].s | \
         [load=$1,policy=trail].s, [load=$1,policy=trail].max | \
         [load=$1,policy=fcfs].s / [load=$1,policy=trail].s |\n-->\n";

    fn found(text: &str) -> Vec<(usize, String)> {
        let record = json!([
            {"load": "0.90", "policy": "fcfs", "s": 0.5},
            {"load": "0.90", "policy": "fcfs", "s": 0.7},
            {"load": "0.90", "policy": "trail", "s": 0.25, "max": 1200},
            {"load": "0.90", "policy": "trail", "s": 0.5, "max": 1200},
        ]);
        let read = |path: &str| match path {
            "r.jsonl" => Ok::<Value, String>(record.clone()),
            _ => Err(format!("no {path}")),
        };
        let found = compare("README.md", text, &read);
        found.into_iter().map(|found| (found.line, found.message)).collect()
    }

    #[test]
    fn a_stale_figure_is_found() {
        let table = |row: &str| format!("{COMMENT}{ROWS}{row}\n");
        assert_eq!(found(&table("| 0.9 | 0.6 | 0.38 (1,200) | 1.70x |")), []);
        assert_eq!(
            found(&table("| 0.9 | 0.5 | 0.37 (1,200) | 1.7x |")),
            [
                (6, "\"0.5\": the record has 0.6".to_owned()),
                (6, "\"0.37 (1,200)\": the record has 0.38".to_owned())
            ]
        );
        assert!(found(&table("| 0.8 | 0.5 | 0.4 (1,200) | 1.7x |"))[0].1.contains("no entry"));
        assert!(found(&table("| 0.9 | 0.6 | 0.4 | 1.7x |"))[0].1.contains("1 numbers"));
        assert!(found(&table("| 0.9 | 0.6 | 0.38 (1,200) |"))[0].1.contains("3 cells"));
    }

    #[test]
    fn a_table_of_figures_has_a_record_or_a_reason() {
        let table = format!("{ROWS}| 0.9 | 0.5 | 0.4 | 1.5x |\n");
        assert!(found(&table)[0].1.contains("needs"));
        assert!(found(&format!("<!-- no record: -->\n{table}"))[0].1.contains("needs"));
        assert_eq!(found(&format!("<!-- no record: printed by a run -->\n{table}")), []);
        assert!(
            found(&COMMENT.replace("r.j", "gone.j").replace("-->\n", &format!("-->\n{table}")))[0]
                .1
                .contains("no gone")
        );
        assert_eq!(found("| I want to | |\n|---|---|\n| 9 lives | see 1 |\n"), []);
    }
}
