//! The threshold study: the share of a block from which on it should be replaced and its pointer
//! logged, instead of its old bytes. The paper fixes 50% and leaves the best value open.
//!
//! To log `k` of 64 lines and change them in place reads `k` lines and writes `2k`; to replace the
//! block reads `64 - k` and writes 64. Whatever a read and a write cost, the two are equal at `k =
//! 32`; costs that a model of lines leaves out move the best value.

use anyhow::Result;
use everbyte_block::{BlockOptions, Delta};
use everbyte_media::Technology;

use super::run::{self, Bench, Durability, Sample, Workload};
use super::target::{Target, VolumeTarget};
use super::task::Task;
use super::{DEVICE_BYTES, Settings};
use crate::driver::Grid;
use crate::rows::{Row, exact, metric, timed};
use crate::stats::{as_f64, summarise};

const LOG_BYTES: u64 = 32 << 20;

/// Thresholds in percent.
pub(super) const THRESHOLDS: [u32; 11] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
/// The paper's.
const PUBLISHED: u32 = 50;

/// Bytes changed in a block of 4096.
const PARTS: [u64; 8] = [256, 640, 1024, 1536, 2048, 2560, 3072, 3584];

/// Returns the tasks, each with a share of changed bytes.
pub(super) fn tasks() -> Vec<Task> {
    let parts = PARTS.into_iter().map(|bytes| Task::Part { bytes });
    parts.chain([Task::Append, Task::Metadata]).collect()
}

/// The workload's name in the results.
pub(super) fn title(medium: Technology, threshold: u32) -> String {
    format!("{medium}: threshold {threshold}%")
}

/// Measures every threshold on every medium.
///
/// # Errors
/// No memory, or it is to stop.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let mut tasks = tasks();
    if settings.quick {
        tasks.truncate(2);
    }
    let workloads: Vec<Workload> =
        tasks.iter().map(|&task| Workload { task, durability: Durability::Checkpoint }).collect();
    let mut rows = Vec::new();
    for medium in Technology::ALL {
        let targets: Vec<VolumeTarget> = THRESHOLDS
            .into_iter()
            .map(|threshold_percent| {
                let options = BlockOptions {
                    threshold_percent,
                    delta: Delta::Off,
                    log_bytes: Some(LOG_BYTES),
                    lanes: 1,
                    ..BlockOptions::default()
                };
                let title = title(medium, threshold_percent);
                VolumeTarget::new(title, medium, DEVICE_BYTES, &options)
            })
            .collect::<Result<_>>()?;
        let benches: Vec<Bench<'_>> = targets.iter().map(|t| Bench::new(t)).collect();
        let mut grid = Grid::new(targets.iter().map(Target::name), &tasks).select(
            settings,
            |_| true,
            |_, _| true,
        );
        run::run(&mut grid, &benches, &workloads, settings)?;
        for (at, task) in tasks.iter().enumerate() {
            let subject = task.to_string();
            for cell in grid.cells.iter().filter(|cell| cell.workload == at) {
                let title = &grid.subjects[cell.subject];
                match &cell.failed {
                    None => rows.extend(rows_of(&subject, title, &cell.samples)),
                    Some(why) => rows.push(Row::skipped(&subject, title, why.clone())),
                }
            }
            rows.extend(best(&subject, medium, at, &grid));
        }
    }
    Ok(rows)
}

fn rows_of(subject: &str, title: &str, samples: &[Sample]) -> Vec<Row> {
    let times: Vec<f64> = samples.iter().map(Sample::ns_per_request).collect();
    let mut rows: Vec<Row> =
        timed(subject, title, metric::TIME, "ns", &times).into_iter().collect();
    let sums: Vec<_> = samples.iter().filter_map(|sample| sample.sums).collect();
    let requests = as_f64(samples.iter().map(|sample| sample.requests).sum());
    let asked = as_f64(samples.iter().map(|sample| sample.bytes).sum());
    let stored = as_f64(sums.iter().map(|s| s.bytes_stored).sum());
    let modelled = as_f64(sums.iter().map(|s| s.modelled_ns).sum());
    rows.push(exact(subject, title, metric::MEDIA_BYTES, "ratio", stored / asked));
    rows.push(exact(subject, title, "modelled_time", "ns", modelled / requests));
    rows
}

/// Returns rows of the threshold that takes the least time, and of the paper's time relative to it.
fn best(subject: &str, medium: Technology, task: usize, grid: &Grid<Sample>) -> Vec<Row> {
    let median = |threshold: u32| {
        let samples = grid.samples(&title(medium, threshold), task)?;
        let times: Vec<f64> = samples.iter().map(Sample::ns_per_request).collect();
        Some((threshold, summarise(&times)?.0))
    };
    let medians: Vec<(u32, f64)> = THRESHOLDS.into_iter().filter_map(median).collect();
    let fastest = medians.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let published = medians.iter().find(|(threshold, _)| *threshold == PUBLISHED);
    let Some((fastest, published)) = fastest.zip(published) else { return Vec::new() };
    let title = format!("{medium}: best threshold");
    vec![
        exact(subject, &title, "best_threshold", "%", f64::from(fastest.0)),
        exact(subject, &title, "time_at_50_to_best", "ratio", published.1 / fastest.1),
    ]
}
