//! Pages with marked places: filling them, and finding figures outside of them.
//!
//! A place is `<!-- figure: SUITE | KEY | COLUMN | FORMAT -->` up to `<!-- end -->` in a line, for one number; or
//! `<!-- given: setting -->` up to `<!-- end -->`, for settings and figures of papers; nothing fills them. Fences of
//! code are settings as well.

use anyhow::{Context, Result, bail};

use super::format::{Cell, Published, fill as fill_template};

pub(super) const NUMBER: &str = "<!-- figure: ";
const GIVEN: [&str; 2] = ["<!-- given: setting -->", "<!-- given: paper -->"];
const CLOSE: &str = " -->";
const END: &str = "<!-- end -->";
/// Units of figures, refused outside of marked places.
const UNITS: [&str; 9] = ["ns", "us", "ms", "x", "%", "/s", "times", "k/s", "points"];

/// A figure with its line and its suite.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) line: usize,
    pub(crate) suite: String,
    pub(crate) cell: Cell,
}

/// Fills every marked place of a page.
///
/// # Errors
/// A place has no end, or names an unknown row or format.
pub(crate) fn fill(text: &str, published: &Published) -> Result<(String, Vec<Figure>)> {
    let (mut page, mut figures) = (String::with_capacity(text.len()), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once(NUMBER) {
            let place = || format!("line {}", at + 1);
            let (mark, after) =
                after.split_once(CLOSE).context("a mark is not closed").with_context(place)?;
            let (_, after) =
                after.split_once(END).context("a figure has no end").with_context(place)?;
            let (suite, cell) = number(mark, published).with_context(place)?;
            // The mark stays, so the page can be filled again.
            page += &format!("{before}{NUMBER}{mark}{CLOSE}{}{END}", cell.text);
            figures.push(Figure { line: at + 1, suite, cell });
            rest = after;
        }
        page += rest;
        page.push('\n');
    }
    Ok((page, figures))
}

/// The number of a mark, and its suite.
fn number(mark: &str, published: &Published) -> Result<(String, Cell)> {
    let parts: Vec<&str> = mark.split(" | ").collect();
    let [suite, key @ .., column, format] = parts.as_slice() else { bail!("{mark} has few parts") };
    let key = key.join("|");
    let results = published.get(*suite).with_context(|| format!("no results of {suite}"))?;
    let row = results.row(&key).with_context(|| format!("{suite} has no row {key}"))?;
    let value = results.number(row, column);
    let value = value.with_context(|| format!("{suite}, {key}: no number {column}"))?;
    // Pages choose among three forms, so equal figures look equal.
    let template = match *format {
        "ratio" => "{value}",
        "whole" => "{value:0}",
        "percent" => "{value:1}%",
        _ => bail!("no format {format}"),
    };
    Ok(((*suite).to_owned(), fill_template(template, |_| Some((value, vec![row])))))
}

/// Digits with a unit outside of marked places: line and word.
pub(crate) fn unmarked(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_code) = (Vec::new(), false);
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            found.extend(measured(&outside(line)).into_iter().map(|word| (at + 1, word)));
        }
    }
    found
}

/// A line without its marked places.
fn outside(line: &str) -> String {
    let mut rest = line.to_owned();
    for mark in [NUMBER, GIVEN[0], GIVEN[1]] {
        while let Some(from) = rest.find(mark) {
            match rest[from..].find(END) {
                Some(len) => rest.replace_range(from..from + len + END.len(), ""),
                // `fill` reports the missing end.
                None => break,
            }
        }
    }
    rest
}

/// Numbers with a unit in a line.
fn measured(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut previous = ' ';
    for (at, letter) in line.char_indices() {
        // Digits within names such as x86, versions and ranges are not figures.
        let starts = letter.is_ascii_digit()
            && !(previous.is_alphanumeric() || matches!(previous, '.' | ',' | '-' | '_' | '/'));
        previous = letter;
        if starts {
            let rest = &line[at..];
            let digits = rest.find(|next: char| !next.is_ascii_digit() && !".,".contains(next));
            let (number, after) = rest.split_at(digits.unwrap_or(rest.len()));
            let unit = after.strip_prefix(' ').unwrap_or(after);
            let end = unit.find(|next: char| !next.is_ascii_alphabetic() && !"/%".contains(next));
            let unit = &unit[..end.unwrap_or(unit.len())];
            let unit = if unit.starts_with('%') { "%" } else { unit };
            if UNITS.contains(&unit) || unit.starts_with("/s") {
                found.push(format!("{number} {unit}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::results::Results;
    use super::*;

    fn published() -> Published {
        let head = ["subject", "workload", "metric", "value", "unit", "least", "most"];
        let row = |metric: &str, value: f64| {
            let mut cells: Vec<serde_json::Value> =
                ["ours", "read", metric].map(serde_json::Value::from).to_vec();
            cells.extend([value.into(), "ns".into(), 1.0.into(), 2.0.into()]);
            cells
        };
        let run = ["abc", "cargo run", "machine", "remarks"].map(str::to_owned);
        let rows = vec![row("time", 123.0), row("time_to_floor", 1.5)];
        let columns = head.map(str::to_owned).to_vec();
        let results = Results::new("block", run, columns, rows).unwrap();
        Published::from([("block".to_owned(), results)])
    }

    #[test]
    fn filling_is_idempotent() {
        let text = "It takes <!-- figure: block | ours | read | time_to_floor | value | ratio -->9\
                    <!-- end --> of it.\n";
        let (page, figures) = fill(text, &published()).unwrap();
        assert!(page.contains("-->1.50<!-- end --> of it."), "{page}");
        assert_eq!((figures[0].line, figures[0].cell.rows.as_slice()), (1, &[1][..]));
        assert_eq!(fill(&page, &published()).unwrap().0, page);
    }

    #[test]
    fn missing_rows_and_ends_are_named() {
        let text = "<!-- figure: block | ours | write | time | value | ratio -->9<!-- end -->\n";
        let error = fill(text, &published()).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 1: block has no row ours|write|time");
        let text = "<!-- figure: block | ours | read | time | value | ratio -->9\n";
        let error = fill(text, &published()).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 1: a figure has no end");
    }

    #[test]
    fn unmarked_figures_have_digits_and_unit() {
        for text in ["takes 12 ns", "1.5x faster", "by 7%.", "90k 3.2 us", "5/s", "2 times"] {
            assert_eq!(unmarked(text).len(), 1, "{text}");
        }
        let marked =
            "<!-- given: setting -->10%<!-- end --> of it, at 4 KiB, 0.5 shares, x86, 64-bit";
        assert_eq!(unmarked(marked), []);
        assert_eq!(unmarked("```\nsleep 5 ms\n```\n4 ms"), [(4, "4 ms".to_owned())]);
    }
}
