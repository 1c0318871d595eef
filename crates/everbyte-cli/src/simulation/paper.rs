//! A group of results compared with the hybrid cache's paper: its policy and its baseline, over sizes.
//!
//! The figures are from Kang and Eom, "A Buffer Cache Replacement Algorithm for Considering both Hybrid Main Memory
//! and Storage" (2015). The paper has three traces, DRAM:PRAM 1:3, sizes of 10% to 100% of the footprint, and an SD
//! card. Changes are means, least and most of the single sizes' changes.

use everbyte_policy::sim::Kind;
use everbyte_report::{Cell, Page, Table};

use super::results::{Row, as_f64, baseline_of};

/// The paper's traces, in the order of [`PUBLISHED`].
const TRACES: [&str; 3] = ["web", "mixed", "webserver"];

/// A line of the table, with the paper's numbers for its three traces; empty without a number.
struct PublishedLine {
    what: &'static str,
    summary: Summary,
    unit: &'static str,
    change: fn(&Row, &Row) -> Option<f64>,
    figures: [&'static str; 3],
}

/// One figure over all sizes.
#[derive(Clone, Copy)]
enum Summary {
    Mean,
    Least,
    Most,
}

/// Elapsed time at best is -12.6% on the two mobile traces, without the name of the trace.
const PUBLISHED: [PublishedLine; 8] = [
    PublishedLine {
        what: "SCM writes, mean",
        summary: Summary::Mean,
        unit: "%",
        change: writes,
        figures: ["-11.4%", "-10.8%", "-42.6%"],
    },
    PublishedLine {
        what: "SCM writes, best",
        summary: Summary::Least,
        unit: "%",
        change: writes,
        figures: ["-27.0%", "-40.7%", "-92.3%"],
    },
    PublishedLine {
        what: "SCM writes, worst",
        summary: Summary::Most,
        unit: "%",
        change: writes,
        figures: ["", "above 0 at some small sizes", ""],
    },
    PublishedLine {
        what: "SCM bytes, worst",
        summary: Summary::Most,
        unit: "%",
        change: |own, base| percent(own.outcome.scm.bytes, base.outcome.scm.bytes),
        figures: ["below 0", "below 0", "below 0"],
    },
    PublishedLine {
        what: "hits in points, least",
        summary: Summary::Least,
        unit: "",
        change: hits,
        figures: ["about 0", "about 0", "about 0"],
    },
    PublishedLine {
        what: "hits in points, most",
        summary: Summary::Most,
        unit: "",
        change: hits,
        figures: ["about 0", "about 0", "above 0 below half"],
    },
    PublishedLine {
        what: "elapsed time, best",
        summary: Summary::Least,
        unit: "%",
        change: time,
        figures: ["-12.6% or less", "-12.6% or less", "-62.0%"],
    },
    PublishedLine {
        what: "elapsed time, mean",
        summary: Summary::Mean,
        unit: "%",
        change: time,
        figures: ["", "", ""],
    },
];

/// The change from `base` to `own` in percent, if `base` is not zero.
fn percent(own: u64, base: u64) -> Option<f64> {
    (base > 0).then(|| 100.0 * (as_f64(own) / as_f64(base) - 1.0))
}

fn writes(own: &Row, base: &Row) -> Option<f64> {
    percent(own.outcome.scm.writes, base.outcome.scm.writes)
}

fn hits(own: &Row, base: &Row) -> Option<f64> {
    Some(100.0 * (own.outcome.hit_ratio() - base.outcome.hit_ratio()))
}

fn time(own: &Row, base: &Row) -> Option<f64> {
    (base.seconds() > 0.0).then(|| 100.0 * (own.seconds() / base.seconds() - 1.0))
}

impl Summary {
    fn of(self, changes: &[f64]) -> f64 {
        match self {
            Self::Mean => changes.iter().sum::<f64>() / as_f64(changes.len() as u64),
            Self::Least => changes.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Most => changes.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Writes the table of one group of rows, if it has the paper's policy and baseline at some size.
pub(super) fn table(page: &mut Page, rows: &[Row]) {
    let pairs: Vec<(&Row, &Row)> = rows
        .iter()
        .filter(|row| row.setting.policy == Kind::Hybrid)
        .filter_map(|row| Some((row, baseline_of(row, rows)?)))
        .collect();
    if pairs.is_empty() {
        return;
    }
    page.heading(3, "Beside the paper");
    page.paragraph(&format!(
        "Changes from CLOCK with migration to hybrid over {} sizes, and the figures of its paper for \
         its own traces on an SD card.",
        pairs.len()
    ));
    let papers = TRACES.map(|trace| Cell::number(format!("paper: {trace}")));
    let head = [Cell::words("figure"), Cell::number("this trace")].into_iter().chain(papers);
    let mut table = Table { head: head.collect(), rows: Vec::new() };
    for line in &PUBLISHED {
        let change = |(own, base): &(&Row, &Row)| (line.change)(own, base);
        let changes: Vec<f64> = pairs.iter().filter_map(change).collect();
        if changes.is_empty() {
            continue;
        }
        let value = line.summary.of(&changes);
        let figures = line.figures.map(|figure| if figure.is_empty() { "-" } else { figure });
        let cells = [Cell::words(line.what), Cell::number(format!("{value:+.1}{}", line.unit))];
        table.rows.push(cells.into_iter().chain(figures.map(Cell::number)).collect());
    }
    page.table(&table);
}
