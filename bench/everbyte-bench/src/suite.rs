//! The suite: the subjects and workloads, their order, and the rows of results.
//!
//! Invariants: a round runs every workload once on every subject, one subject right after the
//! other, so that noise which lasts longer than a slice meets all alike; ratios are of the same
//! workload in the same round. A measurement that is impossible leaves a row with the reason.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use everbyte_block::Delta;
use indicatif::ProgressBar;

use crate::filter::Filter;
use crate::measure::{Sample, measure};
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;
use crate::subject::Subject;
use crate::subjects::ext4::{self, Ext4Files};
use crate::subjects::file::FileSubject;
use crate::subjects::floor::{Floor, MediumFloor};
use crate::subjects::nbd::{Server, ServerKind};
use crate::subjects::places::Places;
use crate::subjects::pmemblk::Pmemblk;
use crate::subjects::volume::{BenchPool, VolumeSubject};
use crate::workload::Workload;

/// Settings of a run.
pub(crate) struct Settings<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) size_bytes: u64,
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// Which workloads and subjects are measured.
    pub(crate) filter: Filter,
    pub(crate) quick: bool,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a ProgressBar,
}

impl Settings<'_> {
    fn wants(&self, subject: &str, workload: &Workload) -> bool {
        self.filter.wants(&format!("{subject} {workload}"))
    }

    fn wants_subject(&self, subject: &str, workloads: &[Workload]) -> bool {
        workloads.iter().any(|workload| self.wants(subject, workload))
    }
}

/// The subject that is the reference of the others, and the metric of the ratio.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    subject: &'static str,
    metric: &'static str,
    /// True if times are compared, and not rates.
    by_time: bool,
}

/// Raw memory, the reference of subjects in process.
pub(crate) const FLOOR: Reference =
    Reference { subject: "floor", metric: metric::TO_FLOOR, by_time: true };
/// The memory that reads of a volume are of, wherever its blocks lie.
const PLACES: Reference = Reference { subject: "places", metric: metric::TO_PLACES, by_time: true };
/// Subjects that `PLACES` is the reference of.
const READ_THERE: &str = "everbyte-auto";
/// Our server without a device, the reference of subjects over NBD.
pub(crate) const NULL: Reference =
    Reference { subject: "nbd-null", metric: metric::TO_NULL, by_time: false };

/// One subject at one workload.
struct Cell {
    subject: usize,
    workload: usize,
    samples: Vec<Sample>,
    failed: Option<String>,
}

/// Measures `workloads` on `subjects` and returns a row for each figure.
///
/// # Errors
/// Only if it is to stop: a failure is a row.
pub(crate) fn run(
    subjects: &[&dyn Subject],
    workloads: &[Workload],
    reference: Reference,
    settings: &Settings<'_>,
) -> Result<Vec<Row>> {
    let mut cells = Vec::new();
    for (workload_index, workload) in workloads.iter().enumerate() {
        let wants = |subject: &&dyn Subject| settings.wants(subject.name(), workload);
        if !subjects.iter().any(&wants) {
            continue;
        }
        for (subject_index, subject) in subjects.iter().enumerate() {
            // Without the reference there is nothing to hold the others against.
            if wants(subject) || subject.name() == reference.subject {
                cells.push(Cell {
                    subject: subject_index,
                    workload: workload_index,
                    samples: Vec::new(),
                    failed: subject.refuses(workload),
                });
            }
        }
    }
    settings.progress.inc_length((cells.len() * settings.rounds) as u64);
    for round in 0..settings.rounds {
        for cell in &mut cells {
            if settings.stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            let (subject, workload) = (subjects[cell.subject], &workloads[cell.workload]);
            settings.progress.set_message(format!("{}: {workload}", subject.name()));
            if cell.failed.is_none() {
                match sample(subject, workload, settings, round) {
                    Ok(sample) => cell.samples.push(sample),
                    Err(error) => cell.failed = Some(format!("{error:#}")),
                }
            }
            settings.progress.inc(1);
        }
    }
    Ok(cells
        .iter()
        .flat_map(|cell| rows_of(cell, &cells, subjects, workloads, reference))
        .collect())
}

fn sample(
    subject: &dyn Subject,
    workload: &Workload,
    settings: &Settings<'_>,
    round: usize,
) -> Result<Sample> {
    subject.prepare(workload)?;
    let sample = measure(subject, workload, settings.size_bytes, settings.slice, round)?;
    if sample.requests == 0 {
        bail!("not one request was done");
    }
    Ok(sample)
}

fn rows_of(
    cell: &Cell,
    cells: &[Cell],
    subjects: &[&dyn Subject],
    workloads: &[Workload],
    reference: Reference,
) -> Vec<Row> {
    let (subject, workload) = (subjects[cell.subject], &workloads[cell.workload]);
    if let Some(why) = &cell.failed {
        return vec![Row::skipped(subject.name(), &workload.to_string(), why.clone())];
    }
    let mut rows = Rows { subject: subject.name(), workload: workload.to_string(), all: vec![] };
    rows.timed(metric::RATE, "1/s", cell.samples.iter().map(Sample::per_second));
    rows.timed(metric::TIME, "ns", cell.samples.iter().map(Sample::ns_per_request));
    rows.timed(metric::CPU, "ns", cell.samples.iter().map(Sample::cpu_ns_per_request));
    let base_by = |reference: &Reference| {
        cells.iter().find(|other| {
            other.workload == cell.workload && subjects[other.subject].name() == reference.subject
        })
    };
    if let Some(base) = base_by(&reference).filter(|base| !std::ptr::eq(*base, cell)) {
        let pairs = cell.samples.iter().zip(&base.samples);
        let ratios = pairs.map(|(ours, base)| match reference.by_time {
            true => ours.ns_per_request() / base.ns_per_request(),
            false => ours.per_second() / base.per_second(),
        });
        rows.timed(reference.metric, "ratio", ratios);
        if reference.by_time {
            let pairs = cell.samples.iter().zip(&base.samples);
            let ratios =
                pairs.map(|(own, base)| own.cpu_ns_per_request() / base.cpu_ns_per_request());
            rows.timed(metric::CPU_TO_FLOOR, "ratio", ratios);
        }
    }
    if let Some(base) = base_by(&PLACES).filter(|_| subject.name() == READ_THERE) {
        let pairs = cell.samples.iter().zip(&base.samples);
        let ratios = pairs.map(|(ours, base)| ours.ns_per_request() / base.ns_per_request());
        rows.timed(PLACES.metric, "ratio", ratios);
    }
    let alone = workload.threads(1);
    let single = cells.iter().find(|other| {
        workload.threads > 1 && other.subject == cell.subject && workloads[other.workload] == alone
    });
    if let Some(single) = single {
        let pairs = cell.samples.iter().zip(&single.samples);
        let ratios = pairs.map(|(both, one)| both.per_second() / one.per_second());
        rows.timed(metric::SCALING, "ratio", ratios);
    }
    let cpu = cell
        .samples
        .iter()
        .filter_map(|sample| Some(as_f64(sample.server_cpu_ns?) / as_f64(sample.requests)));
    rows.timed(metric::SERVER_CPU, "ns", cpu);
    rows.counted(&cell.samples, workload);
    rows.all
}

/// The rows of one cell.
struct Rows<'a> {
    subject: &'a str,
    workload: String,
    all: Vec<Row>,
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

    /// Means over all rounds of what was counted.
    fn counted(&mut self, samples: &[Sample], workload: &Workload) {
        let counts = samples.iter().filter_map(|sample| sample.counts);
        let Some(sum) = counts.reduce(|sum, more| sum.plus(&more)) else { return };
        if !workload.writes() {
            return;
        }
        let requests: u64 = samples.iter().map(|sample| sample.requests).sum();
        let asked = as_f64(requests) * as_f64(workload.bytes as u64);
        let stored = (metric::MEDIA_BYTES, "ratio", as_f64(sum.bytes_stored) / asked);
        for (metric, unit, value) in [stored].into_iter().chain(sum.means(requests)) {
            self.all.push(Row {
                note: sum.modelled.then(|| "follows from the format; not counted".to_owned()),
                ..exact(self.subject, &self.workload, metric, unit, value)
            });
        }
    }
}

/// Measures in process; returns the rows and the medium's description.
///
/// # Errors
/// Our own subjects cannot be made, or it is to stop.
pub(crate) fn in_process(
    workloads: &[Workload],
    settings: &Settings<'_>,
) -> Result<(Vec<Row>, String)> {
    let (folder, size) = (settings.folder, settings.size_bytes);
    settings.progress.set_message("filling the devices");
    let mut absent = Vec::new();
    let floor = Floor::new(folder, size)?;
    let medium = MediumFloor::new(folder, size)?;
    let configurations =
        [("everbyte-auto", Delta::Auto), ("everbyte-on", Delta::On), ("everbyte-off", Delta::Off)];
    let wanted: Vec<_> =
        configurations.into_iter().filter(|c| settings.wants_subject(c.0, workloads)).collect();
    let pool = BenchPool::new(folder, size, wanted.len() as u64)?;
    let volumes: Vec<VolumeSubject> = wanted
        .into_iter()
        .map(|(name, delta)| pool.volume(name, size, delta))
        .collect::<Result<_>>()?;
    let mut pools = Vec::new();
    for (name, block_bytes) in [("pmemblk-4096", 4096), ("pmemblk-512", 512)] {
        if settings.wants_subject(name, workloads) {
            let made = Pmemblk::new(folder, size, block_bytes);
            keep(made, name, workloads, settings, &mut absent)
                .into_iter()
                .for_each(|p| pools.push(p));
        }
    }
    let tmpfs = settings.wants_subject("tmpfs", workloads).then(|| {
        keep(FileSubject::on_tmpfs(folder, size), "tmpfs", workloads, settings, &mut absent)
    });
    let tmpfs = tmpfs.flatten();
    let ext4 = mount_ext4(workloads, settings, &mut absent);
    let mut subjects: Vec<&dyn Subject> = vec![&floor, &medium];
    subjects.extend(volumes.iter().map(|subject| subject as &dyn Subject));
    let read_there = volumes.iter().find(|volume| volume.name() == READ_THERE);
    let places = read_there.map(|volume| Places::new(volume, size));
    subjects.extend(places.iter().map(|subject| subject as &dyn Subject));
    subjects.extend(pools.iter().map(|subject| subject as &dyn Subject));
    subjects.extend(tmpfs.iter().map(|subject| subject as &dyn Subject));
    if let Some(files) = &ext4 {
        subjects.extend([&files.direct as &dyn Subject, &files.buffered]);
    }
    let mut rows = run(&subjects, workloads, FLOOR, settings)?;
    rows.extend(absent);
    Ok((rows, pool.describe()))
}

fn mount_ext4(
    workloads: &[Workload],
    settings: &Settings<'_>,
    absent: &mut Vec<Row>,
) -> Option<Ext4Files> {
    let names = ["ext4-direct", "ext4-buffered"];
    if settings.quick || !names.iter().any(|name| settings.wants_subject(name, workloads)) {
        return None;
    }
    let made = ext4::mount(settings.folder, settings.size_bytes);
    keep(made, "ext4", workloads, settings, absent)
}

/// The subject, or a row for each workload that it should have met.
fn keep<S>(
    made: Result<S>,
    name: &str,
    workloads: &[Workload],
    settings: &Settings<'_>,
    absent: &mut Vec<Row>,
) -> Option<S> {
    match made {
        Ok(subject) => Some(subject),
        Err(error) => {
            let wanted = workloads.iter().filter(|workload| settings.wants(name, workload));
            let why = format!("{error:#}");
            absent.extend(wanted.map(|w| Row::skipped(name, &w.to_string(), why.clone())));
            None
        }
    }
}

/// Measures servers over NBD.
///
/// # Errors
/// It is to stop.
pub(crate) fn over_nbd(workloads: &[Workload], settings: &Settings<'_>) -> Result<Vec<Row>> {
    let mut absent = Vec::new();
    let mut servers = Vec::new();
    for kind in ServerKind::ALL {
        let ours = kind.is_ours();
        let wanted = settings.wants_subject(kind.name(), workloads);
        if (settings.quick && !ours) || !(wanted || kind == ServerKind::OurNull) {
            continue;
        }
        settings.progress.set_message(format!("starting {}", kind.name()));
        let started = Server::start(kind, settings.folder, settings.size_bytes);
        servers.extend(keep(started, kind.name(), workloads, settings, &mut absent));
    }
    let subjects: Vec<&dyn Subject> = servers.iter().map(|s| s as &dyn Subject).collect();
    let mut rows = run(&subjects, workloads, NULL, settings)?;
    rows.extend(absent);
    Ok(rows)
}
