//! FT in too little memory: time, faults and pages, in total and by part of the work.

use std::time::Duration;

use anyhow::Result;

use super::Settings;
use super::child::{Load, Outcome};
use super::flash;
use super::ft::Class;
use super::kernel::KernelSwap;
use super::measure::{Work, measure};
use super::meter::Costs;
use super::paging::LIFETIME;
use super::place::PAGE;
use super::subjects::Subject;
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;

const THREADS: [usize; 2] = [1, 2];
/// DRAM of FT.B in the paper.
const PAPER_BYTES: u64 = 1000 << 20;

/// Names of metrics.
pub(super) const SECONDS: &str = "seconds";
const PAGES_IN: &str = "pages_in";
const PAGES_OUT: &str = "pages_out";
const FAULTS: &str = "faults";
const SLOT_VISITS: &str = "slot_visits_per_page_out";

/// The DRAM that a class may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dram {
    All,
    Percent(u64),
    Bytes(u64),
}

impl Dram {
    fn bytes(self, footprint: u64) -> u64 {
        match self {
            Self::All => footprint,
            Self::Percent(percent) => (footprint * percent / 100).next_multiple_of(PAGE),
            Self::Bytes(bytes) => bytes,
        }
    }

    fn limits(class: Class) -> Vec<Self> {
        let mut limits = vec![Self::Percent(70), Self::Percent(50)];
        if class == Class::B {
            limits.push(Self::Bytes(PAPER_BYTES));
        }
        limits
    }
}

impl std::fmt::Display for Dram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => write!(f, "all in DRAM"),
            Self::Percent(percent) => write!(f, "{percent}% in DRAM"),
            Self::Bytes(bytes) => write!(f, "{} MiB in DRAM", bytes >> 20),
        }
    }
}

/// The name of a workload.
pub(super) fn title(class: Class, dram: Dram, threads: usize) -> String {
    format!("FT.{class}, {dram}, t{threads}")
}

/// The paper's Figure 2, as rows beside ours.
fn published() -> [Row; 2] {
    let workload = title(Class::B, Dram::Bytes(PAPER_BYTES), 1);
    [("paper-stock-swap", 1029.0), ("paper-slot-tree", 813.0)].map(|(subject, seconds)| Row {
        note: Some("as published: Xeon E5630, Linux 3.14.3, a DRAM-based SSD".to_owned()),
        ..exact(subject, &workload, SECONDS, "s", seconds)
    })
}

/// Solves every class in every way; each measurement takes `limit` at most.
///
/// # Errors
/// A checksum is wrong, a child fails, or it is to stop.
pub(super) fn run(settings: &Settings<'_>, classes: &[Class], limit: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &class in classes {
        for threads in THREADS {
            rows.extend(run_one(settings, class, Dram::All, threads, vec![Subject::Dram], limit)?);
            for dram in Dram::limits(class) {
                // Settings are changed one by one on class A, as in the paper.
                let is_tuned = (class, dram, threads) == (Class::A, Dram::Percent(70), 1);
                let kernel = if is_tuned { &KernelSwap::ALL[..] } else { &KernelSwap::SOME };
                let mut subjects = settings.and_kernel(&Subject::LIMITED, kernel);
                if class != Class::B && (dram, threads) == (Dram::Percent(70), 1) {
                    subjects.extend(Subject::CROWDED);
                }
                rows.extend(run_one(settings, class, dram, threads, subjects, limit)?);
            }
        }
    }
    if classes.contains(&Class::B) {
        rows.extend(published());
    }
    Ok(rows)
}

fn run_one(
    settings: &Settings<'_>,
    class: Class,
    dram: Dram,
    threads: usize,
    subjects: Vec<Subject>,
    limit: Duration,
) -> Result<Vec<Row>> {
    let workload = title(class, dram, threads);
    if !settings.wants(&workload) {
        return Ok(Vec::new());
    }
    let load = Load::Ft(class);
    let work = Work { load, threads, dram_bytes: dram.bytes(load.bytes()), limit };
    let subjects = settings.wanted(subjects, &workload);
    let mut samples: Vec<(Subject, Vec<Outcome>)> =
        subjects.into_iter().map(|subject| (subject, Vec::new())).collect();
    for _ in 0..settings.rounds {
        for (subject, samples) in &mut samples {
            settings.progress.set_message(format!("{}, {workload}", subject.name()));
            samples.extend(measure(settings, *subject, work)?);
        }
    }
    let rows = samples.iter().flat_map(|(subject, outcomes)| {
        if outcomes.is_empty() {
            let why =
                format!("no round ended within {} s, or the kernel killed it", limit.as_secs());
            return vec![Row::skipped(subject.name(), &workload, why)];
        }
        rows_of(*subject, &workload, outcomes)
    });
    Ok(rows.collect())
}

/// The rows of one subject: in all, and by part.
fn rows_of(subject: Subject, workload: &str, outcomes: &[Outcome]) -> Vec<Row> {
    let totals: Vec<Costs> = outcomes.iter().map(Outcome::total).collect();
    let mut rows = costs_rows(subject, workload, &totals);
    if subject == Subject::Flash {
        let years = totals.iter().filter_map(|c| flash::lifetime_years(c.pages_out, c.wall_ns));
        let years: Vec<f64> = years.collect();
        rows.extend(timed(subject.name(), workload, LIFETIME, "years", &years));
    }
    let parts = outcomes.first().map_or(&[][..], |outcome| &outcome.parts);
    for (nth, (part, _)) in parts.iter().enumerate() {
        let of_part: Vec<Costs> = outcomes.iter().map(|outcome| outcome.parts[nth].1).collect();
        rows.extend(costs_rows(subject, &format!("{workload}: {part}"), &of_part));
    }
    rows
}

fn costs_rows(subject: Subject, workload: &str, costs: &[Costs]) -> Vec<Row> {
    let each = |figure: fn(&Costs) -> f64| costs.iter().map(figure).collect::<Vec<f64>>();
    let mut rows = Vec::new();
    let mut add = |metric, unit, figures: Vec<f64>| {
        rows.extend(timed(subject.name(), workload, metric, unit, &figures));
    };
    add(SECONDS, "s", each(|costs| as_f64(costs.wall_ns) / 1e9));
    add(metric::CPU, "s", each(|costs| as_f64(costs.cpu_ns()) / 1e9));
    add(FAULTS, "", each(|costs| as_f64(costs.faults + costs.region_faults)));
    if subject.pages() {
        add(PAGES_IN, "", each(|costs| as_f64(costs.pages_in)));
        add(PAGES_OUT, "", each(|costs| as_f64(costs.pages_out)));
    }
    if subject.counts_visits() {
        let out = costs.iter().filter(|costs| costs.pages_out > 0);
        let visits = out.map(|costs| as_f64(costs.slot_visits) / as_f64(costs.pages_out));
        add(SLOT_VISITS, "", visits.collect());
    }
    rows
}
