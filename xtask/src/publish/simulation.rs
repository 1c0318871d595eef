//! The tables of the hybrid cache's paper, from the rows of `everbyte sim`.
//!
//! Ratios are means of the single ratios over sizes, not ratios of sums.

use anyhow::{Result, bail};

use super::cell::{Cell, Line, heading};
use super::results::{Results, RowNo};

const OURS: &str = "hybrid";
const THEIRS: &str = "clock-migration";
const DEVICES: [&str; 3] = ["sd", "hdd", "ssd"];

/// The paper's figures: writes to its PRAM (our SCM) on average and at best, elapsed time at best,
/// in percent. Its 12.6% are of its two mobile traces together.
const PAPER: [(&str, [&str; 3]); 3] = [
    ("web", ["-11.4", "-27.0", "-12.6"]),
    ("mixed", ["-10.8", "-40.7", ""]),
    ("webserver", ["-42.6", "-92.3", "-62.0"]),
];

/// The view of a name.
///
/// # Errors
/// There is none.
pub(crate) fn view(name: &str, results: &Results) -> Result<Vec<Line>> {
    Ok(match name {
        "paper" => paper(results),
        "writes" => by_size(results, "scm_writes"),
        "bytes" => by_size(results, "scm_bytes"),
        _ => bail!("no view simulation/{name}"),
    })
}

/// Changes that `hybrid` makes at each size, with the rows that it is from.
struct Changes {
    values: Vec<f64>,
    rows: Vec<RowNo>,
}

impl Changes {
    /// In percent of the other's, or in points of the hit ratio.
    fn new(results: &Results, trace: &str, column: &str, device: &str) -> Self {
        let mut all = Self { values: Vec::new(), rows: Vec::new() };
        for size in results.words("size") {
            let find = |policy: &str| {
                let row = results.row(&format!("{trace}|{policy}|{size}|{device}"))?;
                Some((results.number(row, column)?, row))
            };
            if let (Some((ours, first)), Some((theirs, second))) = (find(OURS), find(THEIRS)) {
                all.rows.extend([first, second]);
                if column == "hit_ratio" {
                    all.values.push(100.0 * (ours - theirs));
                } else if theirs > 0.0 {
                    all.values.push(100.0 * (ours / theirs - 1.0));
                } else if ours == 0.0 {
                    all.values.push(0.0);
                }
            }
        }
        all
    }

    fn cell(&self, text: String) -> Cell {
        Cell::of("simulation", text, &self.rows)
    }

    fn least(&self) -> f64 {
        self.values.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn most(&self) -> f64 {
        self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    fn mean(&self) -> f64 {
        let count = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.iter().sum::<f64>() / f64::from(count)
    }
}

fn paper(results: &Results) -> Vec<Line> {
    let mut lines = heading(&[
        "trace",
        "SCM writes, mean",
        "(paper)",
        "best",
        "(paper)",
        "worst",
        "SCM bytes, mean",
        "worst",
        "hits, least..most",
        "elapsed, sd",
        "elapsed, hdd",
        "elapsed, ssd",
        "(paper, best)",
    ]);
    for trace in results.words("trace") {
        let of = |column, device| Changes::new(results, trace, column, device);
        let (writes, bytes) = (of("scm_writes", "sd"), of("scm_bytes", "sd"));
        let hits = of("hit_ratio", "sd");
        let found = PAPER.iter().find(|(name, _)| *name == trace);
        let published = found.map_or(["", "", ""], |(_, figures)| *figures);
        let mut cells = vec![
            Cell::plain(trace),
            writes.cell(format!("{:+.1}", writes.mean())),
            Cell::plain(published[0]),
            writes.cell(format!("{:+.1}", writes.least())),
            Cell::plain(published[1]),
            writes.cell(format!("{:+.1}", writes.most())),
            bytes.cell(format!("{:+.1}", bytes.mean())),
            bytes.cell(format!("{:+.1}", bytes.most())),
            hits.cell(format!("{:+.2}..{:+.2}", hits.least(), hits.most())),
        ];
        for device in DEVICES {
            let time = of("elapsed_ns", device);
            cells.push(time.cell(format!("{:+.1} / {:+.1}", time.least(), time.mean())));
        }
        cells.push(Cell::plain(published[2]));
        lines.push(Line::table(cells));
    }
    lines
}

fn by_size(results: &Results, column: &str) -> Vec<Line> {
    let mut lines = heading(&[&["trace"][..], &results.words("size")].concat());
    for trace in results.words("trace") {
        let all = Changes::new(results, trace, column, "sd");
        let mut cells = vec![Cell::plain(trace)];
        for (at, value) in all.values.iter().enumerate() {
            let rows = all.rows.get(2 * at..2 * at + 2).unwrap_or(&[]);
            cells.push(Cell::of("simulation", format!("{value:+.1}"), rows));
        }
        lines.push(Line::table(cells));
    }
    lines
}
