//! The suite of scaling: rates that 1 to 64 threads would reach, and what they would use up first.
//!
//! Measured: requests of one thread and of two; the time to hand a line from one processor to another. Counted: stores
//! of a request to lines that other threads' requests store to as well (`tests/e2e/request-counts.json`), and bytes
//! that it stores. From these follows, for each number of threads, the least of four bounds, see [`Bound`]. It is an upper bound itself:
//! it has a processor for each thread, and knows nothing of caches that are shared, of sockets, or of the
//! moments in which a checkpoint holds all lanes.

pub(crate) mod command;
mod line;
mod model;
mod report;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use everbyte_block::{Delta, MapKind};
use everbyte_pool::LANES_DEFAULT;
use serde::Deserialize;

use crate::rows::{Row, exact, metric, timed};
use crate::stats::{Spread, as_f64};
use crate::subject::Subject;
use crate::subjects::floor::Floor;
use crate::subjects::volume::BenchPool;
use crate::suite::{self, FLOOR, Settings};
use crate::workload::{Action, Durability, Workload};

use model::{Bound, Request};

/// The volume that requests are made to.
const VOLUME: &str = "everbyte-auto";
/// The subject of what the machine does.
const MACHINE: &str = "machine";
/// The subjects of predictions, by the memory's bound on bytes.
const PREDICTED: &str = "predicted";
const PREDICTED_OPTANE: &str = "predicted, optane";
const PREDICTED_LANES: &str = "predicted, 64 lanes";

/// Threads of the predictions.
const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Bytes a second that six interleaved Optane DIMMs take and give at most: Yang and others, "An Empirical Guide to the
/// Behavior and Use of Scalable Persistent Memory" (FAST 2020).
const OPTANE_STORED: f64 = 13.9e9;
const OPTANE_LOADED: f64 = 39.4e9;

/// A kind of request: its name among the counts, and how it is measured.
pub(super) fn kinds() -> [(&'static str, Workload); 5] {
    let rewrite = |bytes| Workload::new(Action::Rewrite, bytes);
    [
        ("read", Workload::new(Action::Read, 4096)),
        ("rewrite", rewrite(4096)),
        ("part", rewrite(512)),
        ("rewrite-fua", rewrite(4096).durable(Durability::Request)),
        ("part-fua", rewrite(512).durable(Durability::Request)),
    ]
}

/// Counts of a request, as `tests/e2e/request-counts.py` finds them.
#[derive(Deserialize)]
struct Counted {
    shared_stores: f64,
}

fn counted() -> Result<BTreeMap<String, Counted>> {
    let text = include_str!("../../../../tests/e2e/request-counts.json");
    serde_json::from_str(text).context("tests/e2e/request-counts.json")
}

/// The workload's name for a number of threads, of which there may be more than can be measured.
pub(super) fn title(kind: &str, threads: u32) -> String {
    format!("{kind}, {threads} threads")
}

/// Measures, and predicts from that. Returns the rows and the medium's description.
///
/// # Errors
/// The subjects cannot be made, counts are missing, or it is to stop.
pub(crate) fn run(settings: &Settings<'_>) -> Result<(Vec<Row>, String)> {
    let (folder, size) = (settings.folder, settings.size_bytes);
    let floor = Floor::new(folder, size)?;
    let pool = BenchPool::new(folder, size, 1)?;
    let volume = pool.volume(VOLUME, size, Delta::Auto, MapKind::Radix)?;
    let subjects: [&dyn Subject; 2] = [&floor, &volume];
    let workloads: Vec<Workload> =
        kinds().into_iter().flat_map(|(_, one)| [one, one.threads(2)]).collect();
    let mut rows = suite::run(&subjects, &workloads, FLOOR, settings)?;
    settings.progress.set_message("handing a line over");
    let handed = line::times(settings)?;
    rows.extend(timed(MACHINE, "a line handed over", metric::TIME, "ns", &handed));
    let predictions = predictions(&rows)?;
    rows.extend(predictions);
    Ok((rows, pool.describe()))
}

/// Something measured: its median, and least, quartiles and most.
#[derive(Clone, Copy)]
struct Figure {
    median: f64,
    spread: Spread,
}

impl Figure {
    fn of(row: &Row) -> Option<Self> {
        Some(Self { median: row.value?, spread: row.spread? })
    }

    fn ordered(&self) -> [f64; 4] {
        let Spread { min, q1, q3, max, .. } = self.spread;
        [min, q1, q3, max]
    }
}

/// The rows that follow from what was measured.
fn predictions(measured: &[Row]) -> Result<Vec<Row>> {
    let row = |subject: &str, workload: &str, metric: &str| {
        let mut fitting = measured.iter().filter(|row| row.metric == metric);
        fitting.find(|row| row.subject == subject && row.workload == workload)
    };
    let counted = counted()?;
    let line = row(MACHINE, "a line handed over", metric::TIME).and_then(Figure::of);
    let mut rows = Vec::new();
    for (kind, workload) in kinds() {
        let place = workload.to_string();
        let Some(time) = row(VOLUME, &place, metric::TIME).and_then(Figure::of) else { continue };
        let shared = counted.get(kind).with_context(|| format!("no counts of a {kind}"))?;
        let writes = workload.writes();
        let stored = row(VOLUME, &place, "bytes_stored").and_then(|row| row.value);
        let bytes = stored.unwrap_or(as_f64(workload.bytes as u64));
        let bandwidth = if writes { OPTANE_STORED } else { OPTANE_LOADED };
        let optane_ns = bytes / bandwidth * 1e9;
        let variants = [
            (PREDICTED, LANES_DEFAULT, None),
            (PREDICTED_LANES, 64, None),
            (PREDICTED_OPTANE, 64, Some(optane_ns)),
        ];
        for (subject, lanes, medium_ns) in variants {
            let request = |time_ns, line_ns: Option<f64>| Request {
                time_ns,
                lanes: writes.then_some(lanes),
                line_ns: line_ns.map(|ns| ns * shared.shared_stores),
                medium_ns,
            };
            rows.extend(rows_of(subject, kind, (&time, line.as_ref()), &request));
        }
    }
    Ok(rows)
}

/// Rates by threads, and the numbers of threads from which on each bound is the least. Spreads go from requests and lines
/// that are slow to those that are quick; of numbers of threads, from quick requests beside slow lines to the reverse.
fn rows_of(
    subject: &str,
    kind: &str,
    (time, line): (&Figure, Option<&Figure>),
    request: &dyn Fn(f64, Option<f64>) -> Request,
) -> Vec<Row> {
    let median = request(time.median, line.map(|line| line.median));
    let (times, lines) = (time.ordered(), line.map(Figure::ordered));
    let with = |at: usize, line_at: usize| request(times[at], lines.map(|lines| lines[line_at]));
    let spread = |figures: [f64; 4]| {
        let [min, q1, q3, max] = figures;
        Some(Spread { min, q1, q3, max, rounds: time.spread.rounds })
    };
    let rates = THREADS.map(|threads| {
        let (bound, rate) = median.rate(threads);
        let mut row = exact(subject, &title(kind, threads), metric::RATE, "1/s", rate);
        row.spread = spread([3, 2, 1, 0].map(|at| with(at, at).rate(threads).1));
        row.note = Some(bound.to_string());
        row
    });
    let limits = Bound::SHARED.into_iter().filter_map(|bound| {
        let mut row = exact(subject, kind, bound.metric(), "threads", median.threads_at(bound)?);
        let at = |at: usize| with(at, 3 - at).threads_at(bound).unwrap_or(f64::NAN);
        row.spread = spread([0, 1, 2, 3].map(at));
        Some(row)
    });
    rates.into_iter().chain(limits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_go_from_slow_requests_and_lines_to_quick_ones() {
        let figure = |median: f64| {
            let spread =
                Spread { min: median / 2.0, q1: median, q3: median, max: median * 2.0, rounds: 3 };
            Figure { median, spread }
        };
        let request = |time_ns, line_ns| Request { time_ns, lanes: None, line_ns, medium_ns: None };
        let rows = rows_of("s", "k", (&figure(400.0), Some(&figure(100.0))), &request);
        let found = |workload: &str| {
            let row = rows.iter().find(|row| row.workload == workload).unwrap();
            let spread = row.spread.unwrap();
            [row.value.unwrap(), spread.min, spread.max].map(f64::round)
        };
        // Of one thread by its request, of many by the line.
        assert_eq!(found("k, 1 threads"), [2.5e6, 1.25e6, 5e6]);
        assert_eq!(found("k, 64 threads"), [1e7, 5e6, 2e7]);
        // Threads from which on the line counts: a quick request beside a slow line, and the reverse.
        assert_eq!(found("k"), [4.0, 1.0, 16.0]);
    }
}
