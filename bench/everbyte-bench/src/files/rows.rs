//! The rows of results.

use super::batches::Sample;
use super::load::LoadSample;
use super::operation::Operation;
use super::subjects::{EXT4, FLOOR, LIBRARY, TMPFS, VOLUME};
use crate::driver::{Grid, Rows};
use crate::rows::{Row, metric};
use crate::stats::as_f64;

/// The rows of operations. `operations` are the workloads of the grid.
pub(super) fn operations(grid: &Grid<Sample>, operations: &[Operation]) -> Vec<Row> {
    grid.rows(|cell, rows| {
        let (own, operation) = (&cell.samples[..], operations[cell.workload]);
        rows.timed(metric::RATE, "1/s", own.iter().map(|sample| 1e9 / sample.ns()));
        rows.timed(metric::TIME, "ns", own.iter().map(Sample::ns));
        rows.timed(metric::CPU, "ns", own.iter().map(Sample::cpu_ns));
        if operation.writes() && rows.subject != FLOOR {
            rows.timed("durable_time", "ns", own.iter().map(Sample::durable_ns));
        }
        let [floor, tmpfs, volume] = [FLOOR, TMPFS, VOLUME].map(|name| grid.base(cell, name));
        rows.ratio(metric::TO_FLOOR, own, floor, Sample::ns);
        rows.ratio(metric::CPU_TO_FLOOR, own, floor, Sample::cpu_ns);
        rows.ratio("rate_to_tmpfs", own, tmpfs, |sample| 1.0 / sample.ns());
        rows.ratio("cpu_rate_to_tmpfs", own, tmpfs, |sample| 1.0 / sample.cpu_ns());
        rows.ratio("time_to_volume", own, volume, Sample::ns);
        rows.ratio("cpu_to_volume", own, volume, Sample::cpu_ns);
        if rows.subject == LIBRARY {
            counted(own, operation, rows);
        }
    })
}

/// Means of the counts over all rounds.
fn counted(samples: &[Sample], operation: Operation, rows: &mut Rows<'_>) {
    let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
    let allocations: u64 = samples.iter().map(|sample| sample.allocations).sum();
    rows.exact("allocations", "1/request", as_f64(allocations) / as_f64(operations));
    let counts = samples.iter().filter_map(|sample| sample.counts);
    let sum = counts.reduce(|sum, more| sum.plus(&more)).filter(|_| operation.writes());
    for (metric, unit, mean) in sum.iter().flat_map(|sum| sum.means(operations)) {
        rows.exact(metric, unit, mean);
    }
}

/// The rows of appends under load.
pub(super) fn loads(grid: &Grid<LoadSample>) -> Vec<Row> {
    grid.rows(|cell, rows| {
        let own = &cell.samples[..];
        for (metric, percent) in [("p50", 50.0), ("p99", 99.0)] {
            rows.timed(metric, "us", own.iter().map(|sample| sample.latency_us(percent)));
        }
        rows.ratio("p99_to_ext4", own, grid.base(cell, EXT4), |sample| sample.latency_us(99.0));
        let mut rate = |metric, unit, of: fn(&LoadSample) -> u64, scale: f64| {
            let per_second = |s: &LoadSample| as_f64(of(s)) / s.elapsed.as_secs_f64() / scale;
            rows.timed(metric, unit, own.iter().map(per_second));
        };
        rate("appends", "1/s", LoadSample::appends, 1.0);
        rate("streamed", "MB/s", |sample| sample.streamed_bytes, 1e6);
        rate("files_made", "1/s", |sample| sample.files_made, 1.0);
    })
}
