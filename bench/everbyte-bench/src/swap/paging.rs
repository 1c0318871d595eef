//! The cost of a page in and out, by access pattern.
//!
//! Subjects take turns within a round, so other activity of the machine affects all.

use std::time::Duration;

use anyhow::Result;

use super::Settings;
use super::access::Pattern;
use super::child::Load;
use super::flash;
use super::kernel::KernelSwap;
use super::measure::{Work, measure};
use super::meter::Costs;
use super::subjects::Subject;
use crate::rows::{Row, metric, timed};
use crate::stats::as_f64;

const THREADS: [usize; 2] = [1, 2];
/// The most that a measurement may take.
const LIMIT: Duration = Duration::from_mins(10);

/// Names of metrics.
pub(super) const CPU_PER_PAGE: &str = "cpu_per_page_in";
const PROCESS_CPU_PER_PAGE: &str = "process_cpu_per_page_in";
const PAGES_IN: &str = "pages_in_per_access";
const PAGES_OUT: &str = "pages_out_per_access";
const FAULTS: &str = "faults_per_access";
const REGION_FAULTS: &str = "region_faults_per_access";
pub(super) const LIFETIME: &str = "flash_lifetime";

/// Sizes of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) bytes: u64,
    pub(super) dram_bytes: u64,
    pub(super) accesses: u64,
}

pub(super) fn title(pattern: Pattern, stores: bool, threads: usize) -> String {
    let access = if stores { "stores" } else { "loads" };
    format!("paging: {} {access}, t{threads}", pattern.name())
}

/// Measures every subject with every pattern.
///
/// # Errors
/// Contents are wrong, a child fails, or it is to stop.
pub(super) fn run(settings: &Settings<'_>, sizes: Sizes) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for pattern in Pattern::ALL {
        for (stores, threads) in [true, false].into_iter().flat_map(|s| THREADS.map(|t| (s, t))) {
            rows.extend(run_one(settings, sizes, pattern, stores, threads)?);
        }
    }
    Ok(rows)
}

fn run_one(
    settings: &Settings<'_>,
    sizes: Sizes,
    pattern: Pattern,
    stores: bool,
    threads: usize,
) -> Result<Vec<Row>> {
    let workload = title(pattern, stores, threads);
    if !settings.wants(&workload) {
        return Ok(Vec::new());
    }
    let Sizes { bytes, dram_bytes, accesses } = sizes;
    let load = Load::Touch { pattern, stores, bytes, warm: accesses / 4, count: accesses };
    let mut subjects = settings.and_kernel(&Subject::PAGING, &KernelSwap::SOME);
    // The paper's question: what a slow medium costs without locality, and with it.
    if stores && matches!(pattern, Pattern::Random | Pattern::Sequential) {
        subjects.push(Subject::Flash);
    }
    let subjects = settings.wanted(subjects, &workload);
    let mut samples: Vec<(Subject, Vec<Costs>)> =
        subjects.into_iter().map(|subject| (subject, Vec::new())).collect();
    let work = Work { load, threads, dram_bytes, limit: LIMIT };
    for _ in 0..settings.rounds {
        for (subject, samples) in &mut samples {
            settings.progress.set_message(format!("{}, {workload}", subject.name()));
            let outcome = measure(settings, *subject, work)?;
            samples.extend(outcome.map(|outcome| outcome.total()));
        }
    }
    let rows = samples
        .iter()
        .flat_map(|(subject, samples)| rows_of(*subject, &workload, samples, accesses));
    Ok(rows.collect())
}

/// The rows of one subject, whose samples made so many accesses each.
pub(super) fn rows_of(
    subject: Subject,
    workload: &str,
    samples: &[Costs],
    accesses: u64,
) -> Vec<Row> {
    Own { subject, workload }.rows(samples, as_f64(accesses))
}

/// The rows of one subject at one workload.
struct Own<'a> {
    subject: Subject,
    workload: &'a str,
}

impl Own<'_> {
    fn rows(&self, samples: &[Costs], accesses: f64) -> Vec<Row> {
        if samples.is_empty() {
            let why =
                format!("no round ended within {} s, or the kernel killed it", LIMIT.as_secs());
            return vec![Row::skipped(self.subject.name(), self.workload, why)];
        }
        let per_access = |count: fn(&Costs) -> u64| {
            samples.iter().map(|costs| as_f64(count(costs)) / accesses).collect::<Vec<f64>>()
        };
        let mut rows = vec![
            self.row(metric::TIME, "ns", &per_access(|costs| costs.wall_ns)),
            self.row(metric::CPU, "ns", &per_access(|costs| costs.cpu_ns())),
            self.row(FAULTS, "", &per_access(|costs| costs.faults)),
        ];
        if self.subject.pages() {
            rows.push(self.row(PAGES_IN, "", &per_access(|costs| costs.pages_in)));
            rows.push(self.row(PAGES_OUT, "", &per_access(|costs| costs.pages_out)));
        }
        if self.subject.is_region() {
            rows.push(self.row(REGION_FAULTS, "", &per_access(|costs| costs.region_faults)));
        }
        if self.subject == Subject::Flash {
            let years =
                samples.iter().filter_map(|c| flash::lifetime_years(c.pages_out, c.wall_ns));
            rows.push(self.row(LIFETIME, "years", &years.collect::<Vec<f64>>()));
        }
        if self.subject.pages_on_access() {
            let per_page = |cpu_ns: fn(&Costs) -> u64| {
                let paged = samples.iter().filter(|costs| costs.pages_in > 0);
                paged
                    .map(|costs| as_f64(cpu_ns(costs)) / as_f64(costs.pages_in))
                    .collect::<Vec<f64>>()
            };
            rows.push(self.row(CPU_PER_PAGE, "ns", &per_page(|costs| costs.cpu_ns())));
            rows.push(self.row(PROCESS_CPU_PER_PAGE, "ns", &per_page(|costs| costs.process_ns)));
        }
        rows
    }

    fn row(&self, metric: &'static str, unit: &'static str, figures: &[f64]) -> Row {
        let (name, why) = (self.subject.name(), "no page was brought in".to_owned());
        timed(name, self.workload, metric, unit, figures).unwrap_or_else(|| Row {
            metric,
            unit,
            ..Row::skipped(name, self.workload, why)
        })
    }
}
