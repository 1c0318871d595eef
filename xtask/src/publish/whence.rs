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

/// Numbers in a cell, with their signs. Of a range, which has two dots or a minus between its ends, both.
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
