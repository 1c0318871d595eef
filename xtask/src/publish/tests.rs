//! The pages of this checkout: every number of theirs is its row's, and leads to that row, its
//! command and its commit.

use std::path::Path;

use super::results::Results;
use super::{FOLDER, pages, read, whence};

/// Numbers whose way back is gone, evenly over the pages: each fills all pages anew.
const TRIED: usize = 20;

/// Divisors of numbers before they are shown: none, that of bytes in KiB, that of rates in millions.
const SCALES: [f64; 3] = [1.0, 1024.0, 1e6];

#[test]
fn twenty_numbers_of_the_pages_lead_to_their_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let site = read(root).unwrap();
    let mut figures = Vec::new();
    for (_, text) in &site.pages {
        figures.extend(pages::fill(text, &site.published).unwrap().figures);
    }
    figures.retain(|(_, cell)| whence::numbers(&cell.text).next().is_some());
    assert!(figures.len() > TRIED, "{} figures", figures.len());
    for (line, cell) in figures.iter().step_by(figures.len() / TRIED) {
        let results = &site.published[&cell.suite];
        let path = format!("{FOLDER}{}.json", cell.suite);
        let file = std::fs::read_to_string(root.join(&path)).unwrap();
        let row = Results::line(cell.rows[0]);
        let text = file.lines().nth(row - 1).unwrap().trim_end_matches(',');
        let values: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(values, results.rows[cell.rows[0]], "line {line}: {}", cell.text);
        assert!(file.contains(&format!("\"commit\": \"{}\"", results.commit)));
        let shown = whence::numbers(&cell.text).last().unwrap();
        let told = whence::tell(&site, shown).unwrap();
        let wanted = [format!("{path}:{row}: "), results.commit.clone(), results.command.clone()];
        for words in wanted {
            assert!(told.contains(&words), "{shown} does not lead to {words}:\n{told}");
        }
    }
}

#[test]
fn a_number_with_one_row_is_that_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let site = read(root).unwrap();
    let mut compared = 0;
    for (path, text) in &site.pages {
        for (line, cell) in pages::fill(text, &site.published).unwrap().figures {
            if let [row] = cell.rows[..]
                && let Some(shown) = whence::numbers(&cell.text).next()
                && let Some(value) = site.published[&cell.suite].number(row, "value")
            {
                assert!(shows(shown, value), "{path}:{line}: {} is not {value}", cell.text);
                compared += 1;
            }
        }
    }
    assert!(compared > TRIED, "{compared} figures");
}

/// Returns true for a number that is `value`, rounded as it is shown.
fn shows(shown: &str, value: f64) -> bool {
    let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    SCALES.iter().any(|scale| shown == format!("{:.decimals$}", value / scale))
}

#[test]
fn a_number_of_no_page_leads_nowhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let error = whence::tell(&read(root).unwrap(), "77777777").unwrap_err();
    assert_eq!(error.to_string(), "no figure of the pages has 77777777 in it");
}
