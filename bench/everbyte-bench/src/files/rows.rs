//! The rows of results.

use super::Outcome;
use super::load::LoadSample;
use super::names::{EXT4, FLOOR, LIBRARY, TMPFS, VOLUME};
use super::operation::Operation;
use super::places::Sample;
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;

/// Names of metrics.
pub(super) const DURABLE_TIME: &str = "durable_time";
pub(super) const TO_TMPFS: &str = "rate_to_tmpfs";
pub(super) const TO_VOLUME: &str = "time_to_volume";
const CPU_TO_TMPFS: &str = "cpu_rate_to_tmpfs";
const CPU_TO_VOLUME: &str = "cpu_to_volume";
pub(super) const P99_TO_EXT4: &str = "p99_to_ext4";

/// One subject at one operation.
pub(super) struct Cell {
    /// The subject's place among all.
    pub(super) place: usize,
    pub(super) operation: Operation,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) failed: Option<String>,
}

/// The rows of one cell.
struct Rows<'a> {
    subject: &'a str,
    workload: String,
    all: Vec<Row>,
}

impl Cell {
    pub(super) fn new(place: usize, operation: Operation) -> Self {
        Self { place, operation, outcomes: Vec::new(), failed: None }
    }

    fn samples(&self) -> Vec<Sample> {
        let sample = |outcome: &Outcome| match outcome {
            Outcome::Operation(sample) => Some(*sample),
            Outcome::Load(_) => None,
        };
        self.outcomes.iter().filter_map(sample).collect()
    }

    fn loads(&self) -> Vec<&LoadSample> {
        let sample = |outcome| match outcome {
            &Outcome::Operation(_) => None,
            Outcome::Load(sample) => Some(sample),
        };
        self.outcomes.iter().filter_map(sample).collect()
    }
}

/// The rows of `cells`, of subjects with these names, in a directory of so many names.
pub(super) fn rows(cells: &[Cell], subjects: &[&str], names: usize) -> Vec<Row> {
    let of_cell = |cell: &Cell| {
        let (subject, workload) = (subjects[cell.place], cell.operation.title(names));
        if let Some(why) = &cell.failed {
            return vec![Row::skipped(subject, &workload, why.clone())];
        }
        let mut rows = Rows { subject, workload, all: Vec::new() };
        let other = |name| {
            let is_it =
                |other: &&Cell| other.operation == cell.operation && subjects[other.place] == name;
            cells.iter().find(is_it).filter(|other| !std::ptr::eq(*other, cell))
        };
        match cell.operation {
            Operation::FsyncBesideLoad => rows.load(&cell.loads(), other(EXT4).map(Cell::loads)),
            operation => {
                let samples = cell.samples();
                rows.times(&samples, operation);
                let (floor, tmpfs, volume) = (other(FLOOR), other(TMPFS), other(VOLUME));
                rows.ratio([metric::TO_FLOOR, metric::CPU_TO_FLOOR], &samples, floor, false);
                rows.ratio([TO_TMPFS, CPU_TO_TMPFS], &samples, tmpfs, true);
                rows.ratio([TO_VOLUME, CPU_TO_VOLUME], &samples, volume, false);
                if subject == LIBRARY {
                    rows.counted(&samples, operation);
                }
            }
        }
        rows.all
    };
    cells.iter().flat_map(of_cell).collect()
}

impl Rows<'_> {
    fn timed(
        &mut self,
        metric: &'static str,
        unit: &'static str,
        figures: impl Iterator<Item = f64>,
    ) {
        let figures: Vec<f64> = figures.collect();
        self.all.extend(timed(self.subject, &self.workload, metric, unit, &figures));
    }

    fn times(&mut self, samples: &[Sample], operation: Operation) {
        self.timed(metric::RATE, "1/s", samples.iter().map(|sample| 1e9 / sample.ns()));
        self.timed(metric::TIME, "ns", samples.iter().map(Sample::ns));
        self.timed(metric::CPU, "ns", samples.iter().map(Sample::cpu_ns));
        if operation.writes() && self.subject != FLOOR {
            self.timed(DURABLE_TIME, "ns", samples.iter().map(Sample::durable_ns));
        }
    }

    /// Ratios to another subject in the same rounds, of time and of processor time; of their rates if
    /// `by_rate` says so.
    fn ratio(
        &mut self,
        metrics: [&'static str; 2],
        own: &[Sample],
        base: Option<&Cell>,
        by_rate: bool,
    ) {
        let base = base.map(Cell::samples).unwrap_or_default();
        for (metric, ns) in metrics.into_iter().zip([Sample::ns, Sample::cpu_ns]) {
            let ratio = |(own, base): (&Sample, &Sample)| match by_rate {
                true => ns(base) / ns(own),
                false => ns(own) / ns(base),
            };
            self.timed(metric, "ratio", own.iter().zip(&base).map(ratio));
        }
    }

    /// Means over all rounds of what was counted.
    fn counted(&mut self, samples: &[Sample], operation: Operation) {
        let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
        let allocations: u64 = samples.iter().map(|sample| sample.allocations).sum();
        let mean = as_f64(allocations) / as_f64(operations);
        self.all.push(exact(self.subject, &self.workload, "allocations", "1/request", mean));
        let counts = samples.iter().filter_map(|sample| sample.counts);
        let sum = counts.reduce(|sum, more| sum.plus(&more)).filter(|_| operation.writes());
        for (metric, unit, mean) in sum.iter().flat_map(|sum| sum.means(operations)) {
            self.all.push(exact(self.subject, &self.workload, metric, unit, mean));
        }
    }

    fn load(&mut self, own: &[&LoadSample], base: Option<Vec<&LoadSample>>) {
        for (metric, percent) in [("p50", 50.0), ("p99", 99.0)] {
            self.timed(metric, "us", own.iter().map(|sample| sample.latency_us(percent)));
        }
        let base = base.unwrap_or_default();
        let pairs = own.iter().zip(&base);
        let ratio = |(own, base): (&&LoadSample, &&LoadSample)| {
            own.latency_us(99.0) / base.latency_us(99.0)
        };
        self.timed(P99_TO_EXT4, "ratio", pairs.map(ratio));
        let per_second =
            |count: u64, sample: &LoadSample| as_f64(count) / sample.elapsed.as_secs_f64();
        let rate = |of: fn(&LoadSample) -> u64| own.iter().map(move |s| per_second(of(s), s));
        self.timed("appends", "1/s", rate(LoadSample::appends));
        self.timed("streamed", "MB/s", rate(|sample| sample.streamed_bytes).map(|rate| rate / 1e6));
        self.timed("files_made", "1/s", rate(|sample| sample.files_made));
    }
}
