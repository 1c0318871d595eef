//! IOzone-like writes, appends and metadata on every scheme and on ext4, and the ratios of their
//! times to rollback recovery's.

use anyhow::{Result, anyhow};
use everbyte_media::Technology;

use super::library::{LibraryTarget, MountHere};
use super::run::{self, Bench, Durability, Load, Sample, Workload};
use super::target::{FileTarget, SchemeTarget, Target};
use super::task::{Access, Task};
use super::{DEVICE_BYTES, EXT4, MEDIA, MOUNT, NONE, OURS, OURS_PUBLISHED, Settings, words};
use crate::baselines::Kind;
use crate::driver::{Cell, Grid, Rows};
use crate::rows::{Row, exact, metric, timed};
use crate::stats::{as_f64, summarise};
use crate::subject::Counts;
use crate::subjects::ext4;

/// Bytes of every scheme's log.
const LOG_BYTES: u64 = 32 << 20;
/// Bytes of the image with ext4.
const IMAGE_BYTES: u64 = 512 << 20;

/// References: the best of ours and the published form, with the names of the ratios. The last three are least, mean
/// and most over all IOzone-like writes.
const BASES: [(&str, [&str; 4]); 2] = [
    (
        OURS,
        [
            "time_to_rollback",
            "time_to_rollback_min",
            "time_to_rollback_mean",
            "time_to_rollback_max",
        ],
    ),
    (
        OURS_PUBLISHED,
        [
            "time_to_rollback_published",
            "time_to_rollback_published_min",
            "time_to_rollback_published_mean",
            "time_to_rollback_published_max",
        ],
    ),
];

/// Every workload of the matrix.
fn workloads(quick: bool) -> Vec<Workload> {
    let mut all = Vec::new();
    let mut tasks = Task::iozone();
    if quick {
        tasks.retain(|task| matches!(task, Task::Iozone { record: 4096, file: 1_048_576, .. }));
    }
    tasks.extend([Task::Append, Task::Metadata]);
    for durability in [Durability::Checkpoint, Durability::Request] {
        all.extend(tasks.iter().map(|&task| Workload::new(task, durability)));
    }
    let synced = |task: &&Task| {
        matches!(task, Task::Iozone { access: Access::Random, file: 4_194_304, .. })
            || matches!(task, Task::Append | Task::Metadata)
    };
    let durability = Durability::SyncEvery(16);
    all.extend(tasks.iter().filter(synced).map(|&task| Workload::new(task, durability)));
    // The redo schemes have one lock for readers and writers. These rows show its cost.
    let shared =
        |task: &Task, load| Workload { load, ..Workload::new(*task, Durability::Checkpoint) };
    let random = |task: &&Task| {
        matches!(task, Task::Iozone { access: Access::Random, record: 4096 | 16_384 | 102_400, file }
            if *file == if quick { 1_048_576 } else { 4_194_304 })
    };
    all.extend(tasks.iter().filter(random).map(|task| shared(task, Load::TwoWriters)));
    let read = tasks.iter().filter(random).max_by_key(|task| task.to_string().contains("16K"));
    all.extend(read.map(|task| shared(task, Load::WriterAndReader)));
    all
}

/// Measures the matrix on each medium.
///
/// # Errors
/// No memory; the user interrupted the run.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let workloads = workloads(settings.quick);
    let mut rows = Vec::new();
    for medium in MEDIA {
        settings.progress.set_message(format!("making the schemes' devices on {medium}"));
        let scheme = |kind| SchemeTarget::new(kind, medium, DEVICE_BYTES, LOG_BYTES);
        let schemes = Kind::ALL.into_iter().map(scheme).collect::<Result<Vec<_>>>()?;
        let library = LibraryTarget::new(medium, DEVICE_BYTES, LOG_BYTES)?;
        // The kernel supports no emulated medium.
        let (mount, files) = match medium {
            Technology::Dram => kernel_files(settings, &mut rows),
            _ => (None, Vec::new()),
        };
        let targets = schemes.iter().map(|scheme| scheme as &dyn Target);
        let targets = targets.chain([&library as &dyn Target]);
        let targets = targets.chain(files.iter().map(|file| file as &dyn Target));
        let benches: Vec<Bench<'_>> = targets.map(Bench::new).collect();
        let names: Vec<&str> = benches.iter().map(|bench| bench.target.name()).collect();
        let titles = workloads.iter().map(|workload| format!("{medium}: {workload}"));
        let is_base = |subject: usize| [NONE, OURS, OURS_PUBLISHED].contains(&names[subject]);
        let mut grid =
            Grid::new(names.iter().copied(), titles).select(settings, is_base, |_, _| true);
        run::run(&mut grid, &benches, &workloads, settings)?;
        rows.extend(grid.rows(|cell, rows| {
            rows_of(&grid, cell, workloads[cell.workload].task, rows);
        }));
        for base in BASES {
            rows.extend(summary(medium, base, &workloads, &grid));
        }
        // A mount with open files does not end.
        drop(files);
        drop(mount);
    }
    rows.extend(words::rows(&rows));
    Ok(rows)
}

fn rows_of(grid: &Grid<Sample>, cell: &Cell<Sample>, task: Task, rows: &mut Rows<'_>) {
    let own = &cell.samples[..];
    rows.timed(metric::TIME, "ns", own.iter().map(Sample::ns_per_request));
    let mebibytes = own.iter().map(|sample| sample.bytes_per_s() / f64::from(1 << 20));
    rows.timed("throughput", "MiB/s", mebibytes);
    let bases = BASES.map(|(base, [ratio, ..])| (base, ratio));
    for (base, metric) in [(NONE, "time_to_none")].into_iter().chain(bases) {
        rows.ratio(metric, own, grid.base(cell, base), Sample::ns_per_request);
    }
    rows.all.extend(counted(rows.subject, rows.workload, task, own));
}

/// Times of one as multiples of the other's, round by round.
fn ratios(own: &[Sample], base: &[Sample]) -> Vec<f64> {
    let pairs = own.iter().zip(base);
    pairs.map(|(own, base)| own.ns_per_request() / base.ns_per_request()).collect()
}

/// Rows of all counts: means over all rounds, with the spread of rounds without a full last pass.
fn counted(name: &str, title: &str, task: Task, samples: &[Sample]) -> Vec<Row> {
    let rounds: Vec<_> = samples.iter().map(|sample| counts(task, &[*sample])).collect();
    let rows = counts(task, samples).into_iter().enumerate().map(|(at, (metric, unit, mean))| {
        let of_rounds: Vec<f64> =
            rounds.iter().filter_map(|round| round.get(at)).map(|count| count.2).collect();
        let spread = summarise(&of_rounds).map(|(_, spread)| spread);
        let spread = spread.filter(|spread| spread.min.total_cmp(&spread.max).is_ne());
        Row { spread, ..exact(name, title, metric, unit, mean) }
    });
    rows.collect()
}

/// Metric, unit and mean of each count in some slices.
fn counts(task: Task, samples: &[Sample]) -> Vec<(&'static str, &'static str, f64)> {
    let all: Vec<_> = samples.iter().filter_map(|sample| sample.sums).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let requests = as_f64(samples.iter().map(|sample| sample.requests).sum());
    let asked = as_f64(samples.iter().map(|sample| sample.bytes).sum());
    let sum = |of: fn(&Counts) -> u64| as_f64(all.iter().map(of).sum());
    let log_share = sum(|s| s.log_bytes) / asked;
    let mut counts = Vec::new();
    if let Task::Iozone { record, file, .. } = task {
        // Records that do not fit are not written.
        let written = as_f64(file / record * record);
        counts.push(("log_bytes_of_pass", "B", log_share * written));
    }
    counts.extend([
        (metric::MEDIA_BYTES, "ratio", sum(|s| s.bytes_stored) / asked),
        ("log_bytes", "B/request", sum(|s| s.log_bytes) / requests),
        ("log_bytes_per_byte", "ratio", log_share),
        ("lines_stored", "1/request", sum(|s| s.lines_stored) / requests),
        ("lines_flushed", "1/request", sum(|s| s.lines_flushed) / requests),
        ("fences", "1/request", sum(|s| s.fences) / requests),
        ("modelled_time", "ns", sum(|s| s.modelled_ns) / requests),
    ]);
    counts
}

/// The rows of a base's summaries over all IOzone-like writes.
fn summary(
    medium: Technology,
    (base, [_, names @ ..]): (&str, [&'static str; 4]),
    workloads: &[Workload],
    grid: &Grid<Sample>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for durability in [Durability::Checkpoint, Durability::Request] {
        let title = format!("{medium}: all IOzone-like writes, {durability}");
        for (subject, name) in grid.subjects.iter().enumerate() {
            let is_counted = |cell: &&Cell<Sample>| {
                let Workload { task, durability: own, load } = workloads[cell.workload];
                let is_own = cell.subject == subject && cell.failed.is_none();
                let is_alike = own == durability && load == Load::Writer;
                is_own && is_alike && matches!(task, Task::Iozone { .. })
            };
            let writes = grid.cells.iter().filter(is_counted).filter_map(|cell| {
                let ratios = ratios(&cell.samples, grid.base(cell, base)?);
                Some((workloads[cell.workload].task, ratios))
            });
            rows.extend(over_all(name, &title, names, &writes.collect::<Vec<_>>()));
        }
    }
    rows
}

/// Rows of the least, the mean and the most of the figures of every round of each task.
fn over_all(
    name: &str,
    title: &str,
    [least, mean, most]: [&'static str; 3],
    tasks: &[(Task, Vec<f64>)],
) -> Vec<Row> {
    let median = |rounds: &[f64]| summarise(rounds).map_or(f64::NAN, |(median, _)| median);
    let by_median =
        |a: &&(Task, Vec<f64>), b: &&(Task, Vec<f64>)| median(&a.1).total_cmp(&median(&b.1));
    let of_task = |metric, (task, rounds): &(Task, Vec<f64>)| {
        let row = timed(name, title, metric, "ratio", rounds)?;
        Some(Row { note: Some(task.to_string()), ..row })
    };
    let rounds = tasks.iter().map(|(_, rounds)| rounds.len()).min().unwrap_or(0);
    let mean_of = |round: usize| {
        tasks.iter().map(|(_, rounds)| rounds[round]).sum::<f64>() / as_f64(tasks.len() as u64)
    };
    let means: Vec<f64> = (0..rounds).map(mean_of).collect();
    let rows = [
        tasks.iter().min_by(by_median).and_then(|task| of_task(least, task)),
        timed(name, title, mean, "ratio", &means),
        tasks.iter().max_by(by_median).and_then(|task| of_task(most, task)),
    ];
    rows.into_iter().flatten().collect()
}

/// Our mount, a file on it, and files on ext4 except in a smoke test. Adds rows with the reasons for absent files.
fn kernel_files(
    settings: &Settings,
    absent: &mut Vec<Row>,
) -> (Option<MountHere>, Vec<FileTarget>) {
    let mut files = Vec::new();
    let mut keep = |name, made: Result<FileTarget>| match made {
        Ok(file) => files.push(file),
        Err(error) => absent.push(Row::skipped(name, "all of them", format!("{error:#}"))),
    };
    for named in EXT4.into_iter().filter(|_| !settings.quick) {
        let file = ext4::mount_file(settings.folder(), named, IMAGE_BYTES);
        keep(named.0, file.map(|file| FileTarget::new(named.0, file)));
    }
    let mount = MountHere::new(settings, IMAGE_BYTES);
    keep(MOUNT, mount.as_ref().map_or_else(|error| Err(anyhow!("{error:#}")), MountHere::file));
    (mount.ok(), files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_have_the_spread_of_their_rounds() {
        let tasks = [(Task::Append, vec![1.0, 3.0, 2.0]), (Task::Metadata, vec![5.0, 4.0, 9.0])];
        let rows = over_all("it", "all", ["least", "mean", "most"], &tasks);
        let figures: Vec<_> = rows
            .iter()
            .map(|row| (row.metric, row.value, row.spread.map(|spread| [spread.min, spread.max])))
            .collect();
        let expected = [
            ("least", Some(2.0), Some([1.0, 3.0])),
            ("mean", Some(3.5), Some([3.0, 5.5])),
            ("most", Some(5.0), Some([4.0, 9.0])),
        ];
        assert_eq!(figures, expected);
        assert_eq!(rows[2].note, Some(Task::Metadata.to_string()));
        assert!(over_all("it", "all", ["least", "mean", "most"], &[]).is_empty());
    }

    #[test]
    fn counts_of_short_passes_have_a_spread() {
        let sample = |requests: u64, bytes_stored: u64| {
            let sums = Counts { bytes_stored, fences: requests, ..Counts::default() };
            let (bytes, sums) = (requests * 100, Some(sums));
            Sample { requests, bytes, sums, ..Sample::default() }
        };
        let rows = counted("it", "all", Task::Append, &[sample(1, 100), sample(3, 600)]);
        let row = |metric: &str| rows.iter().find(|row| row.metric == metric).unwrap();
        let stored = row(metric::MEDIA_BYTES);
        let spread = stored.spread.map(|spread| [spread.min, spread.max]);
        assert_eq!((stored.value, spread), (Some(1.75), Some([1.0, 2.0])));
        assert_eq!((row("fences").value, row("fences").spread), (Some(1.0), None));
    }
}
