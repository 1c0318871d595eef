//! The way back from a number of a page to its rows.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::cell::Cell;
use super::results::Results;
use super::{FOLDER, Site, pages};

/// Rows that are told of one figure; means over many have hundreds.
const TOLD: usize = 4;

/// Every figure of the pages that has `number` in it, with lines of results, commit and command.
///
/// # Errors
/// There is none.
pub(super) fn tell(site: &Site, number: &str) -> Result<String> {
    let mut told = String::new();
    for (path, text) in &site.pages {
        for (line, cell) in pages::fill(text, &site.published)?.figures {
            if numbers(&cell.text).any(|found| found == number)
                && let Some(results) = site.published.get(&cell.suite)
            {
                let _ = writeln!(told, "{path}:{line}: {}", cell.text);
                told += &rows(&cell, results);
                let _ = writeln!(told, "  commit {}", results.commit);
                let _ = writeln!(told, "  cargo run --release {}", results.command);
            }
        }
    }
    if told.is_empty() {
        bail!("no figure of the pages has {number} in it");
    }
    Ok(told)
}

fn rows(cell: &Cell, results: &Results) -> String {
    let mut told = String::new();
    for &row in cell.rows.iter().take(TOLD) {
        let line = Results::line(row);
        let values = serde_json::Value::from(results.rows[row].clone());
        let _ = writeln!(told, "  {FOLDER}{}.json:{line}: {values}", cell.suite);
    }
    if cell.rows.len() > TOLD {
        let _ = writeln!(told, "  and {} rows more", cell.rows.len() - TOLD);
    }
    told
}

/// Numbers in a cell, with their signs.
pub(super) fn numbers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_digit() && !".+".contains(letter))
        .map(|word| word.trim_matches('.'))
        .filter(|word| word.contains(|letter: char| letter.is_ascii_digit()))
}
