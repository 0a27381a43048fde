//! Text tables with grouped columns.

use std::fmt;

/// A table of text cells under two lines of headings: titles of groups of columns, then the
/// columns.
///
/// Columns whose cells are all numbers are aligned right, the others left.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Title and column headings of each group.
    groups: Vec<(String, Vec<String>)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds a group of columns at the right.
    pub fn group(mut self, title: &str, columns: &[&str]) -> Table {
        self.groups.push((title.into(), columns.iter().map(|&column| column.into()).collect()));
        self
    }

    /// Adds a row at the bottom: one cell for each column of all groups.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The columns: heading, width in characters, and whether cells are aligned right.
    fn columns(&self) -> Vec<(&str, usize, bool)> {
        let headings = self.groups.iter().flat_map(|(_, columns)| columns);
        let mut columns: Vec<_> = headings
            .enumerate()
            .map(|(index, heading)| {
                let cells = || self.rows.iter().filter_map(move |row| row.get(index));
                let widest = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
                let right = cells().all(|cell| is_number(cell));
                (heading.as_str(), widest.max(heading.chars().count()), right)
            })
            .collect();
        // A title wider than its columns widens the first one.
        let mut first = 0;
        for (title, headings) in &self.groups {
            let end = first + headings.len();
            let width = width(&columns[first..end]);
            if let Some(column) = columns.get_mut(first) {
                column.1 += title.chars().count().saturating_sub(width);
            }
            first = end;
        }
        columns
    }
}

/// Width of neighbouring columns, two spaces apart.
fn width(columns: &[(&str, usize, bool)]) -> usize {
    columns.iter().map(|(_, width, _)| width + 2).sum::<usize>().saturating_sub(2)
}

/// Numbers begin with a digit or a minus sign; a lone minus sign is a missing number.
fn is_number(cell: &str) -> bool {
    cell.starts_with(|first: char| first.is_ascii_digit() || first == '-')
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.columns();
        let line = |cell: &dyn Fn(usize) -> String| {
            let mut first = 0;
            let groups = self.groups.iter().map(|(_, headings)| {
                let cells: Vec<String> = (first..first + headings.len()).map(cell).collect();
                first += headings.len();
                cells.join("  ")
            });
            groups.collect::<Vec<_>>().join(" | ")
        };
        let padded = |index: usize, text: &str| {
            let (_, width, right) = columns[index];
            if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
        };
        if self.groups.iter().any(|(title, _)| !title.is_empty()) {
            let mut first = 0;
            let titles = self.groups.iter().map(|(title, headings)| {
                let width = width(&columns[first..first + headings.len()]);
                first += headings.len();
                format!("{title:^width$}")
            });
            writeln!(f, "{}", titles.collect::<Vec<_>>().join(" | ").trim_end())?;
        }
        writeln!(f, "{}", line(&|index| padded(index, columns[index].0)).trim_end())?;
        let rule = line(&|index| "-".repeat(columns[index].1));
        writeln!(f, "{}", rule.replace(" | ", "-+-").replace(' ', "-"))?;
        for row in &self.rows {
            let cell = |index: usize| padded(index, row.get(index).map_or("", String::as_str));
            writeln!(f, "{}", line(&cell).trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right_and_titles_are_above_their_columns() {
        let mut table =
            Table::default().group("", &["policy"]).group("latency, s", &["p50", "p99"]);
        table.row(["fcfs", "1.25", "10.00"].map(String::from));
        table.row(["trail", "-", "9.50"].map(String::from));
        let expected = [
            "       | latency, s",
            "policy |  p50    p99",
            "-------+------------",
            "fcfs   | 1.25  10.00",
            "trail  |    -   9.50",
        ];
        assert_eq!(table.to_string().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_long_title_widens_its_first_column_and_no_title_leaves_no_line() {
        let mut table = Table::default().group("remaining", &["a"]).group("", &["b"]);
        table.row(["1", "2"].map(String::from));
        assert_eq!(table.to_string(), "remaining |\n        a | b\n----------+--\n        1 | 2\n");
        let mut table = Table::default().group("", &["a"]);
        table.row(["x"].map(String::from));
        assert_eq!(table.to_string(), "a\n-\nx\n");
    }
}
