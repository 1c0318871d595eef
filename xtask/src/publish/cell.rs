//! Cells of tables that know the rows of results they are from.

use std::collections::BTreeMap;

use super::results::{Results, RowNo};

/// Results by suite.
pub(crate) type Published = BTreeMap<String, Results>;

/// Text of a page, with the rows that it was made from.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) suite: String,
    /// Rows; none for text that is no figure.
    pub(crate) rows: Vec<RowNo>,
}

/// A line of a page: cells of a table, or one of prose.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) cells: Vec<Cell>,
    is_table: bool,
}

impl Cell {
    pub(crate) fn of(suite: &str, text: String, rows: &[RowNo]) -> Self {
        Self { text, suite: suite.to_owned(), rows: rows.to_vec() }
    }

    /// Text that is no figure.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), suite: String::new(), rows: Vec::new() }
    }
}

impl Line {
    pub(crate) fn table(cells: Vec<Cell>) -> Self {
        Self { cells, is_table: true }
    }

    pub(crate) fn prose(cells: Vec<Cell>) -> Self {
        Self { cells, is_table: false }
    }

    pub(crate) fn join(&self, texts: &[&str]) -> String {
        match self.is_table {
            true => format!("| {} |", texts.join(" | ")),
            false => texts.concat(),
        }
    }
}

/// A table: its heading, and a rule below that.
pub(crate) fn heading(names: &[&str]) -> Vec<Line> {
    let cells = |texts: &mut dyn Iterator<Item = &str>| texts.map(Cell::plain).collect();
    let rule: Vec<&str> = names.iter().map(|_| "---").collect();
    vec![
        Line::table(cells(&mut names.iter().copied())),
        Line::table(cells(&mut rule.iter().copied())),
    ]
}

/// A ratio in two decimals, or in none from 10 on.
pub(crate) fn ratio(value: f64) -> String {
    if value.abs() < 9.995 { format!("{value:.2}") } else { format!("{value:.0}") }
}
