//! The report: one page that needs nothing else, with figures and every row. Subjects that lose are
//! drawn and listed like those that win.

pub(crate) mod block;
pub(crate) mod figure;

use everbyte_report::{Cell, Page, Provenance, Table, short};

use crate::environment::Environment;
use crate::rows::{Results, Row};
use figure::Figure;

/// Renders the page, with `figures` of `results`; a figure without results is left out.
pub(crate) fn page(title: &str, results: &Results, figures: &[Figure]) -> String {
    let mut page = Page::new(title);
    page.paragraph(&conditions(&results.environment));
    if let Some(warning) = results.environment.warning() {
        page.warning(warning);
    }
    // A subject looks the same in all figures of a page.
    let mut subjects: Vec<&str> = Vec::new();
    for subject in figures.iter().flat_map(|figure| &figure.subjects) {
        if !subjects.contains(&subject.as_str()) {
            subjects.push(subject);
        }
    }
    let look = |name: &str| subjects.iter().position(|known| *known == name).unwrap_or(0);
    for figure in figures {
        figure.write(&mut page, results, &look);
    }
    page.heading(2, "All results");
    page.paragraph(
        "Medians, with the first and third quartile in brackets; exact counts have none.",
    );
    page.table(&table(&results.rows));
    page.footer(&provenance(results));
    page.finish()
}

fn conditions(environment: &Environment) -> String {
    format!(
        "{}, {} cores, Linux {}. Medium: {}. Devices of {} MiB in {}, huge pages {}. Medians of {} \
         rounds of {} s; load {} when it began.",
        environment.cpu,
        environment.cores,
        environment.kernel,
        environment.medium,
        environment.size_bytes >> 20,
        environment.folder,
        environment.huge_pages,
        environment.rounds,
        environment.slice_s,
        environment.load
    )
}

fn provenance(results: &Results) -> Provenance {
    Provenance {
        unix_s: results.environment.started_unix_s,
        version: format!("everbyte-bench {}", env!("CARGO_PKG_VERSION")),
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        facts: vec![("Suite".to_owned(), results.suite.to_owned())],
    }
}

fn table(rows: &[Row]) -> Table {
    let words = |text: &str| Cell::words(text);
    let head = vec![
        words("workload"),
        words("subject"),
        words("metric"),
        Cell::number("value"),
        Cell::number("spread"),
        words("unit"),
        words("note"),
    ];
    let rows = rows.iter().map(|row| {
        let spread = row.spread.map_or_else(String::new, |spread| {
            format!("[{}, {}]", short(spread.q1), short(spread.q3))
        });
        vec![
            words(&row.workload),
            words(&row.subject),
            words(row.metric),
            Cell::number(row.value.map_or_else(|| "-".to_owned(), short)),
            Cell::number(spread),
            words(row.unit),
            words(row.note.as_deref().unwrap_or("")),
        ]
    });
    Table { head, rows: rows.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(quick: bool, rows: Vec<Row>) -> String {
        let mut environment = Environment::new("/dev/shm".as_ref(), 0, 1, 0.0);
        (environment.debug_build, environment.quick) = (false, quick);
        page("wear", &Results { suite: "wear", environment, rows }, &[])
    }

    #[test]
    fn a_page_warns_of_smoke_tests_and_not_of_counts_of_one_round() {
        let warns = |quick| page_of(quick, Vec::new()).contains("the figures mean nothing");
        assert_eq!([false, true].map(warns), [false, true]);
    }

    #[test]
    fn hostile_names_stay_text() {
        let why = "<script>alert(1)</script>".to_owned();
        let page = page_of(false, vec![Row::skipped("<b>", "a&b", why)]);
        assert!(!page.contains("<script") && !page.contains("<b>") && page.contains("a&amp;b"));
        assert!(page.contains("<footer>") && page.contains("everbyte-bench 0."), "{page}");
    }
}
