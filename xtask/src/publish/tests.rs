//! The pages of this checkout: any number of theirs leads to its row, its command and its commit.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use super::results::Results;
use super::{FOLDER, pages, read, whence};

/// Numbers that are tried.
const TRIED: usize = 20;

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
    let random = RandomState::new();
    for number in 0..TRIED {
        let at = usize::try_from(random.hash_one(number) >> 32).unwrap() % figures.len();
        let (line, cell) = &figures[at];
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
        if let [row] = cell.rows[..]
            && let Some(value) = results.number(row, "value")
        {
            shows(&cell.text, value);
        }
    }
}

/// The number of a cell with one row is that row's, rounded as it is shown.
fn shows(text: &str, value: f64) {
    let shown = whence::numbers(text).next().unwrap();
    let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    assert_eq!(shown, format!("{value:.decimals$}"), "{text} is not {value}");
}

#[test]
fn a_number_of_no_page_leads_nowhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let error = whence::tell(&read(root).unwrap(), "77777777").unwrap_err();
    assert_eq!(error.to_string(), "no figure of the pages has 77777777 in it");
}
