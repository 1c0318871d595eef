//! The rows, commit and command behind a number of the documentation.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::format::Cell;
use super::results::Results;
use super::{FOLDER, Site, html, pages};

/// Rows listed for one figure; means over many places have hundreds.
const ROWS_MAX: usize = 4;

/// Lists each figure of pages and tables with the number, with its rows, commit and command.
///
/// # Errors
/// No figure has the number.
pub(super) fn describe(site: &Site, number: &str) -> Result<String> {
    let mut text = String::new();
    for (place, suite, cell) in figures(site)? {
        if numbers(&cell.text).any(|found| found == number)
            && let Some(results) = site.published.get(&suite)
        {
            let _ = writeln!(text, "{place}: {}", cell.text);
            text += &rows(&suite, &cell, results);
            let _ = writeln!(text, "  commit {}", results.commit);
            let _ = writeln!(text, "  cargo run --release {}", results.command);
        }
    }
    // A typing error must not look like a number without rows.
    if text.is_empty() {
        bail!("no figure of the documentation has {number}");
    }
    Ok(text)
}

/// All figures: the place of each, its suite and its cell.
pub(super) fn figures(site: &Site) -> Result<Vec<(String, String, Cell)>> {
    let mut found = Vec::new();
    for (path, text) in &site.pages {
        for figure in pages::fill(text, &site.published)?.1 {
            found.push((format!("{path}:{}", figure.line), figure.suite, figure.cell));
        }
    }
    for suite in site.suites.iter() {
        let Some(results) = site.published.get(&suite.name) else { continue };
        for (at, table) in suite.tables.iter().enumerate() {
            let place = format!("{FOLDER}{}.html, {}", suite.name, table.title);
            let cells = html::cells(suite, at, results).rows.into_iter().flatten();
            // Cells without rows are names, not figures.
            let figures = cells.filter(|cell| !cell.rows.is_empty());
            found.extend(figures.map(|cell| (place.clone(), suite.name.clone(), cell)));
        }
    }
    Ok(found)
}

fn rows(suite: &str, cell: &Cell, results: &Results) -> String {
    let mut text = String::new();
    for &row in cell.rows.iter().take(ROWS_MAX) {
        let line = Results::line(row);
        let values = serde_json::Value::from(results.rows[row].clone());
        let _ = writeln!(text, "  {FOLDER}{suite}.json:{line}: {values}");
    }
    if cell.rows.len() > ROWS_MAX {
        let _ = writeln!(text, "  and {} rows more", cell.rows.len() - ROWS_MAX);
    }
    text
}

/// Numbers in a cell, with their signs. A range has two dots or a minus between its ends; both ends count.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_digit() || ".+-".contains(letter);
    text.split("..")
        .flat_map(move |part| part.split(move |letter: char| !is_part(letter)))
        .flat_map(|word| match word.rfind('-') {
            Some(at) if at > 0 => [&word[..at], &word[at + 1..]],
            _ => [word, ""],
        })
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.contains(|letter: char| letter.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_signs_and_ranges_both_ends() {
        let found = |text| numbers(text).collect::<Vec<_>>();
        assert_eq!(found("578 (431-622), 1.51x"), ["578", "431", "622", "1.51"]);
        assert_eq!(found("-57.7 / +34.9"), ["-57.7", "+34.9"]);
        assert_eq!(found("-0.85..+0.01"), ["-0.85", "+0.01"]);
        assert_eq!(found("3.2 to 4."), ["3.2", "4"]);
        assert_eq!(found("- and -"), [""; 0]);
    }
}
