//! The figures of this checkout: each leads to its rows, its command and its commit.

use std::path::Path;

use super::results::Results;
use super::suite::PlotValues;
use super::{FOLDER, Site, html, provenance};
use crate::tidy::Tree;

/// Numbers to look up, evenly over all figures: each look-up makes all figures again.
const TRIED: usize = 12;
/// Divisors of numbers before they are shown: none, KiB, thousands and millions.
const SCALES: [f64; 4] = [1.0, 1024.0, 1e3, 1e6];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn here() -> Site {
    Site::of(&Tree::read(root()).unwrap()).unwrap()
}

#[test]
fn numbers_lead_to_rows_command_and_commit() {
    let site = here();
    let mut figures = provenance::figures(&site).unwrap();
    figures.retain(|(_, _, cell)| provenance::numbers(&cell.text).next().is_some());
    assert!(figures.len() > TRIED, "{} figures", figures.len());
    for (place, suite, cell) in figures.iter().step_by(figures.len() / TRIED) {
        let results = &site.published[suite];
        let path = format!("{FOLDER}{suite}.json");
        let file = std::fs::read_to_string(root().join(&path)).unwrap();
        let row = Results::line(cell.rows[0]);
        let text = file.lines().nth(row - 1).unwrap().trim_end_matches(',');
        let values: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        assert_eq!(values, results.rows[cell.rows[0]], "{place}: {}", cell.text);
        assert!(file.contains(&format!("\"commit\": \"{}\"", results.commit)));
        let shown = provenance::numbers(&cell.text).last().unwrap();
        let described = provenance::describe(&site, shown).unwrap();
        let wanted = [format!("{path}:{row}: "), results.commit.clone(), results.command.clone()];
        for words in wanted {
            assert!(described.contains(&words), "{shown} does not lead to {words}:\n{described}");
        }
    }
}

#[test]
fn number_of_one_row_is_its_value() {
    let site = here();
    let mut compared = 0;
    for (place, suite, cell) in provenance::figures(&site).unwrap() {
        if let [row] = cell.rows[..]
            && let Some(shown) = provenance::numbers(&cell.text).next()
            && let Some(value) = site.published[&suite].number(row, "value")
        {
            assert!(shows(shown, value), "{place}: {} is not {value}", cell.text);
            compared += 1;
        }
    }
    assert!(compared > TRIED, "{compared} figures");
}

/// Returns true if the number is `value`, rounded to its decimals.
fn shows(shown: &str, value: f64) -> bool {
    let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    SCALES.iter().any(|scale| shown == format!("{:.decimals$}", value / scale))
}

#[test]
fn number_without_figure_is_an_error() {
    let error = provenance::describe(&here(), "77777777").unwrap_err();
    assert_eq!(error.to_string(), "no figure of the documentation has 77777777");
}

#[test]
fn plots_and_tables_of_published_suites_have_values() {
    let site = here();
    let mut faults = Vec::new();
    for suite in site.suites.iter() {
        let Some(results) = site.published.get(&suite.name) else { continue };
        for plot in &suite.plots {
            let drawn = html::chart(plot, results).series.len();
            let is_whole = match &plot.values {
                PlotValues::Metric { subjects, .. } => drawn == subjects.len(),
                PlotValues::Comparison(_) => drawn > 0,
            };
            faults.extend((!is_whole).then(|| format!("{}: {}", suite.name, plot.title)));
        }
        for (at, table) in suite.tables.iter().enumerate() {
            let is_empty = html::cells(suite, at, results).rows.is_empty();
            faults.extend(is_empty.then(|| format!("{}: {}", suite.name, table.title)));
        }
    }
    assert_eq!(faults, [""; 0]);
}
