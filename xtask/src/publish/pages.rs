//! Pages with marked places: filling them, and finding figures that stand outside of them.
//!
//! A place is `<!-- figures: VIEW -->` up to `<!-- end -->` on lines of their own, for a table;
//! `<!-- figure: SUITE | KEY | COLUMN | FORMAT -->` up to `<!-- end -->` in a line, for one number; or
//! `<!-- given: setting -->` up to `<!-- end -->`, for settings and figures of papers, which nothing
//! fills. Fences of code are settings as well.

use anyhow::{Context, Result, bail};

use super::cell::{Cell, Published, ratio};

const TABLE: &str = "<!-- figures: ";
const NUMBER: &str = "<!-- figure: ";
const GIVEN: [&str; 2] = ["<!-- given: setting -->", "<!-- given: paper -->"];
const CLOSE: &str = " -->";
const END: &str = "<!-- end -->";
/// Units that digits may not have outside of marked places.
const UNITS: [&str; 9] = ["ns", "us", "ms", "x", "%", "/s", "times", "k/s", "points"];

/// A filled page: its text, and each figure with its line in the page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) text: String,
    pub(crate) figures: Vec<(usize, Cell)>,
}

/// Fills every marked place of a page.
///
/// # Errors
/// A place has no end, or names a view, a row or a format that is not there.
pub(crate) fn fill(text: &str, published: &Published) -> Result<Page> {
    let mut page = Page { text: String::with_capacity(text.len()), figures: Vec::new() };
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let place = || format!("line {}", at + 1);
        if let Some(view) = line.strip_prefix(TABLE) {
            let view = view.strip_suffix(CLOSE).with_context(place)?;
            if !lines.any(|(_, line)| line == END) {
                bail!("{}: {view} has no end", place());
            }
            page.push(line);
            for row in super::views::render(view, published).with_context(place)? {
                let number = page.text.lines().count() + 1;
                let text: Vec<&str> = row.cells.iter().map(|cell| cell.text.as_str()).collect();
                page.push(&row.join(&text));
                let known = row.cells.into_iter().filter(|cell| !cell.rows.is_empty());
                page.figures.extend(known.map(|cell| (number, cell)));
            }
            page.push(END);
        } else {
            let number = page.text.lines().count() + 1;
            let (line, cells) = fill_line(line, published).with_context(place)?;
            page.figures.extend(cells.into_iter().map(|cell| (number, cell)));
            page.push(&line);
        }
    }
    Ok(page)
}

impl Page {
    fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
}

fn fill_line(line: &str, published: &Published) -> Result<(String, Vec<Cell>)> {
    let (mut done, mut rest, mut cells) = (String::new(), line, Vec::new());
    while let Some((before, after)) = rest.split_once(NUMBER) {
        let (what, after) = after.split_once(CLOSE).context("a mark is not closed")?;
        let (_, after) = after.split_once(END).context("a figure has no end")?;
        let cell = number(what, published)?;
        done += &format!("{before}{NUMBER}{what}{CLOSE}{}{END}", cell.text);
        cells.push(cell);
        rest = after;
    }
    Ok((done + rest, cells))
}

/// The number that a mark asks for.
fn number(what: &str, published: &Published) -> Result<Cell> {
    let parts: Vec<&str> = what.split(" | ").collect();
    let [suite, key @ .., column, format] = parts.as_slice() else { bail!("{what} has few parts") };
    let key = key.join("|");
    let results = published.get(*suite).with_context(|| format!("no results of {suite}"))?;
    let row = results.row(&key).with_context(|| format!("{suite} has no row {key}"))?;
    let value = results.number(row, column);
    let value = value.with_context(|| format!("{suite}, {key}: no number {column}"))?;
    let text = match *format {
        "ratio" => ratio(value),
        "whole" => format!("{value:.0}"),
        "percent" => format!("{value:.1}%"),
        _ => bail!("no format {format}"),
    };
    Ok(Cell::of(suite, text, &[row]))
}

/// Digits with a unit outside of marked places: line and word.
pub(crate) fn unmarked(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut in_place, mut in_code) = (Vec::new(), false, false);
    for (at, line) in text.lines().enumerate() {
        match line {
            END => in_place = false,
            _ if line.starts_with(TABLE) => in_place = true,
            _ if line.starts_with("```") => in_code = !in_code,
            _ if in_place || in_code => {}
            _ => found.extend(measured(&outside(line)).into_iter().map(|word| (at + 1, word))),
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
                None => break,
            }
        }
    }
    rest
}

/// Numbers in a line that have a unit, or decimals before `of`.
fn measured(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut previous = ' ';
    for (at, letter) in line.char_indices() {
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
    fn places_are_filled_and_filling_again_changes_nothing() {
        let text = "It takes <!-- figure: block | ours | read | time_to_floor | value | ratio -->9\
                    <!-- end --> of it.\n<!-- figures: block/heading -->\nold\n<!-- end -->\n";
        let page = fill(text, &published()).unwrap();
        assert!(page.text.contains("-->1.50<!-- end --> of it."), "{}", page.text);
        assert!(page.text.contains("abc") && !page.text.contains("old"), "{}", page.text);
        assert_eq!(page.figures[0].0, 1);
        assert_eq!(fill(&page.text, &published()).unwrap().text, page.text);
    }

    #[test]
    fn rows_that_are_not_there_are_named() {
        let text = "<!-- figure: block | ours | write | time | value | ratio -->9<!-- end -->\n";
        let error = fill(text, &published()).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 1: block has no row ours|write|time");
        let error = fill("<!-- figures: block/calls -->\nx\n", &published()).unwrap_err();
        assert_eq!(format!("{error:#}"), "line 1: block/calls has no end");
    }

    #[test]
    fn digits_with_units_are_found_outside_of_places_alone() {
        for text in ["takes 12 ns", "1.5x faster", "by 7%.", "90k 3.2 us", "5/s", "2 times"] {
            assert_eq!(unmarked(text).len(), 1, "{text}");
        }
        let marked =
            "<!-- given: setting -->10%<!-- end --> of it, at 4 KiB, 0.5 shares, x86, 64-bit";
        assert_eq!(unmarked(marked), []);
        assert_eq!(unmarked("```\nsleep 5 ms\n```\n4 ms"), [(4, "4 ms".to_owned())]);
        assert_eq!(unmarked("<!-- figures: block/calls -->\n| 5 ns |\n<!-- end -->\n"), []);
    }
}
