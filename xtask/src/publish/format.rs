//! Cells with the rows of results behind them, and templates of their texts.

use std::collections::BTreeMap;

use super::results::{Results, RowNo};

/// Results by suite.
pub(crate) type Published = BTreeMap<String, Results>;

/// Text with the rows behind it.
#[derive(Clone, Default, Debug)]
pub(crate) struct Cell {
    pub(crate) text: String,
    /// Rows; none for text without a figure.
    pub(crate) rows: Vec<RowNo>,
}

impl Cell {
    /// Text without a figure.
    pub(crate) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), rows: Vec::new() }
    }
}

/// A table: its heading, and its rows of cells.
#[derive(Debug)]
pub(crate) struct CellTable {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A ratio in two decimals, or in none from 10 on.
pub(crate) fn ratio(value: f64) -> String {
    if value.abs() < 9.995 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// Fills a template. `{NAME}` is a ratio, `{NAME:2}` a number with two decimals, `{NAME:+2}` the same with its sign,
/// and `{NAME/1000:0}` is divided before. `value` finds the value and its rows. A part in brackets is left out if one
/// of its values is missing; without any other value the cell is empty.
pub(crate) fn fill(template: &str, value: impl Fn(&str) -> Option<(f64, Vec<RowNo>)>) -> Cell {
    let mut cell = Cell::default();
    for (at, part) in template.split(['[', ']']).enumerate() {
        // Brackets do not nest, so each second part stands within brackets.
        let is_optional = at % 2 == 1;
        match fill_part(part, &value) {
            Some(filled) => {
                cell.text += &filled.text;
                cell.rows.extend(filled.rows);
            }
            None if is_optional => {}
            // A text with a missing value would look like a figure.
            None => return Cell::default(),
        }
    }
    cell
}

fn fill_part(part: &str, value: impl Fn(&str) -> Option<(f64, Vec<RowNo>)>) -> Option<Cell> {
    let (mut cell, mut rest) = (Cell::default(), part);
    while let Some((before, inside)) = rest.split_once('{') {
        let (name, after) = inside.split_once('}')?;
        let (name, form) = name.split_once(':').unwrap_or((name, ""));
        let (name, divisor) = name.split_once('/').unwrap_or((name, "1"));
        let (number, rows) = value(name)?;
        let number = number / divisor.parse::<f64>().ok()?;
        let decimals = form.trim_start_matches('+').parse().unwrap_or(0);
        cell.text += before;
        cell.text += &match (form, form.starts_with('+')) {
            ("", _) => ratio(number),
            (_, true) => format!("{number:+.decimals$}"),
            (_, false) => format!("{number:.decimals$}"),
        };
        cell.rows.extend(rows);
        rest = after;
    }
    cell.text += rest;
    Some(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_round_divide_and_leave_out() {
        let value = |name: &str| match name {
            "a" => Some((1234.5, vec![1])),
            "b" => Some((0.25, vec![2])),
            _ => None,
        };
        let text = |template: &str| fill(template, value).text;
        assert_eq!(text("{a:0} ns, {b}x"), "1234 ns, 0.25x");
        assert_eq!(text("{a/1000:1}k {b:+3}"), "1.2k +0.250");
        assert_eq!(text("{b}[, {c}x][, {a:0}]"), "0.25, 1234");
        assert_eq!(text("{c}, {b}"), "");
        assert_eq!(fill("{a}[ {c}] {b}", value).rows, [1, 2]);
    }
}
