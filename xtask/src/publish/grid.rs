//! Tables with a line for each workload and a column for each subject.

use super::cell::{Cell, Line, heading};
use super::results::Results;

/// Metrics of a grid's cells, and how they are written.
pub(super) struct Grid {
    pub(super) first: &'static str,
    pub(super) subjects: &'static [&'static str],
    pub(super) metrics: &'static [&'static str],
    pub(super) write: fn(&[f64]) -> String,
    /// True if the first metric is written whole, with its least and most, before the others.
    pub(super) has_spread: bool,
}

/// A line for each workload, a column for each subject. Subjects without any figure have none.
pub(super) fn grid(results: &Results, grid: &Grid, wanted: impl Fn(&str) -> bool) -> Vec<Line> {
    let all = results.words("workload");
    let places: Vec<&str> = all.into_iter().filter(|place| wanted(place)).collect();
    let cell = |subject: &str, place: &str| {
        let rows: Vec<usize> = grid
            .metrics
            .iter()
            .map_while(|metric| results.row(&format!("{subject}|{place}|{metric}")))
            .collect();
        let values: Vec<f64> = rows.iter().map_while(|&row| results.number(row, "value")).collect();
        let mut text = (grid.write)(&values);
        if let (true, Some(&row), Some(value)) = (grid.has_spread, rows.first(), values.first())
            && let (Some(least), Some(most)) =
                (results.number(row, "least"), results.number(row, "most"))
        {
            text = format!("{value:.0} ({least:.0}-{most:.0}){text}");
        }
        Cell::of(&results.suite, text, &rows)
    };
    let has_any = |subject: &&str| places.iter().any(|place| !cell(subject, place).text.is_empty());
    let subjects: Vec<&str> = grid.subjects.iter().copied().filter(has_any).collect();
    if subjects.is_empty() {
        let missing = format!(
            "*The published run has no such rows yet; `cargo xtask publish --suite {}` measures them.*",
            results.suite
        );
        return vec![Line::prose(vec![Cell::plain(missing)])];
    }
    let mut names = vec![grid.first];
    names.extend(&subjects);
    let mut lines = heading(&names);
    for place in places {
        let cells: Vec<Cell> = subjects.iter().map(|subject| cell(subject, place)).collect();
        if cells.iter().any(|cell| !cell.text.is_empty()) {
            lines.push(Line::table([vec![Cell::plain(place)], cells].concat()));
        }
    }
    lines
}
