//! The suite of block devices: subjects and workloads, their order, and rows.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use everbyte_block::Delta;

use crate::driver::{Cell, Common, Findings, Grid, Pace, Rounds, Rows, Run, Suite};
use crate::measure::{Sample, measure};
use crate::replay;
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;
use crate::subject::Subject;
use crate::subjects::ext4::{self, Ext4Files};
use crate::subjects::file::FileSubject;
use crate::subjects::floor::{Floor, MediumFloor};
use crate::subjects::nbd::{Server, ServerKind};
use crate::subjects::places::Places;
use crate::subjects::pmemblk::Pmemblk;
use crate::subjects::volume::{BenchPool, VolumeSubject};
use crate::workload::{self, Workload};

/// Measures the block volume, in process and over NBD.
#[derive(clap::Args, Clone)]
pub(crate) struct BlockArgs {
    #[command(flatten)]
    common: Common,
    /// Bytes of each device, in MiB. The suite needs free memory for about twelve devices.
    #[arg(long, default_value_t = 512, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(16..=65536))]
    size: u64,
    /// Parts to leave out.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    skip: Vec<Part>,
}

/// The parts of the suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Calls in process.
    Calls,
    /// Servers over NBD.
    Nbd,
    /// ext4's own traffic.
    Replay,
}

impl BlockArgs {
    fn size_bytes(&self) -> u64 {
        self.size << 20
    }
}

type Settings = Run<BlockArgs>;

impl Suite for BlockArgs {
    const NAME: &'static str = "block";
    const PACE: Pace = Pace { rounds: 5, slice_s: 0.2 };
    const QUICK: Pace = Pace { rounds: 2, slice_s: 0.02 };

    fn common(&self) -> &Common {
        &self.common
    }

    fn shorten(&mut self) {
        self.size = 16;
    }

    fn measure(settings: &Run<Self>) -> Result<Findings> {
        let mut findings = Findings::new(Vec::new(), String::new(), settings.own.size_bytes());
        let (here, nbd) = match settings.quick {
            true => workload::smoke(),
            false => (workload::in_process(), workload::over_nbd()),
        };
        let wants = |part| !settings.own.skip.contains(&part);
        if wants(Part::Calls) {
            (findings.rows, findings.medium) = in_process(&here, settings)?;
        }
        if wants(Part::Nbd) {
            findings.rows.extend(over_nbd(&nbd, settings)?);
        }
        if wants(Part::Replay) && !settings.quick {
            findings.rows.extend(replay::run(settings)?);
        }
        Ok(findings)
    }
}

/// Returns true if the filter selects a subject at one of `workloads`.
fn wants_subject(settings: &Settings, subject: &str, workloads: &[Workload]) -> bool {
    workloads.iter().any(|workload| settings.wants(subject, &workload.to_string()))
}

/// The subject that is the reference of the others, and the metric of the ratio.
#[derive(Clone, Copy)]
struct Reference {
    subject: &'static str,
    metric: &'static str,
    /// True if times are compared, and not rates.
    by_time: bool,
}

/// Raw memory, the reference of subjects in process.
const FLOOR: Reference = Reference { subject: "floor", metric: metric::TO_FLOOR, by_time: true };
/// The memory that reads of a volume are of, wherever its blocks lie.
const PLACES: Reference = Reference { subject: "places", metric: metric::TO_PLACES, by_time: true };
/// Subjects that `PLACES` is the reference of.
const READ_THERE: &str = "everbyte-auto";
/// Our server without a device, the reference of subjects over NBD.
const NULL: Reference = Reference { subject: "nbd-null", metric: metric::TO_NULL, by_time: false };

/// Measures `workloads` on `subjects` and returns a row for each figure.
///
/// # Errors
/// The user interrupted the run. A failure of a subject is a row.
fn run(
    subjects: &[&dyn Subject],
    workloads: &[Workload],
    reference: Reference,
    settings: &Settings,
) -> Result<Vec<Row>> {
    let names = subjects.iter().map(|subject| subject.name());
    let is_reference = |subject: usize| subjects[subject].name() == reference.subject;
    let mut grid = Grid::new(names, workloads).select(settings, is_reference, |_, _| true);
    for cell in &mut grid.cells {
        cell.failed = subjects[cell.subject].refuses(&workloads[cell.workload]);
    }
    let size_bytes = settings.own.size_bytes();
    grid.measure(settings, |subject, workload, round| {
        sample((subjects[subject], &workloads[workload]), size_bytes, settings, round)
    })?;
    Ok(grid.rows(|cell, rows| rows_of(&grid, cell, workloads, reference, rows)))
}

fn sample(
    (subject, workload): (&dyn Subject, &Workload),
    size_bytes: u64,
    rounds: &Rounds,
    round: usize,
) -> Result<Sample> {
    subject.prepare(workload)?;
    let sample = measure(subject, workload, size_bytes, rounds.slice, round)?;
    ensure!(sample.requests > 0, "not one request was done");
    Ok(sample)
}

fn rows_of(
    grid: &Grid<Sample>,
    cell: &Cell<Sample>,
    workloads: &[Workload],
    reference: Reference,
    rows: &mut Rows<'_>,
) {
    let (own, workload) = (&cell.samples[..], &workloads[cell.workload]);
    rows.timed(metric::RATE, "1/s", own.iter().map(Sample::per_second));
    rows.timed(metric::TIME, "ns", own.iter().map(Sample::ns_per_request));
    rows.timed(metric::CPU, "ns", own.iter().map(Sample::cpu_ns_per_request));
    let base = grid.base(cell, reference.subject);
    if reference.by_time {
        rows.ratio(reference.metric, own, base, Sample::ns_per_request);
        rows.ratio(metric::CPU_TO_FLOOR, own, base, Sample::cpu_ns_per_request);
    } else {
        rows.ratio(reference.metric, own, base, Sample::per_second);
    }
    if rows.subject == READ_THERE {
        let places = grid.base(cell, PLACES.subject);
        rows.ratio(PLACES.metric, own, places, Sample::ns_per_request);
    }
    let alone = workload.threads(1);
    let alone = workloads.iter().position(|other| workload.threads > 1 && *other == alone);
    let alone = alone.and_then(|at| grid.samples(rows.subject, at));
    rows.ratio(metric::SCALING, own, alone, Sample::per_second);
    let cpu = |sample: &Sample| Some(as_f64(sample.server_cpu_ns?) / as_f64(sample.requests));
    rows.timed(metric::SERVER_CPU, "ns", own.iter().filter_map(cpu));
    counted(own, workload, rows);
}

/// Means over all rounds of the counts.
fn counted(samples: &[Sample], workload: &Workload, rows: &mut Rows<'_>) {
    let counts = samples.iter().filter_map(|sample| sample.counts);
    let Some(sum) = counts.reduce(|sum, more| sum.plus(&more)).filter(|_| workload.writes()) else {
        return;
    };
    let requests: u64 = samples.iter().map(|sample| sample.requests).sum();
    let asked = as_f64(requests) * as_f64(workload.bytes as u64);
    let stored = (metric::MEDIA_BYTES, "ratio", as_f64(sum.bytes_stored) / asked);
    for (metric, unit, value) in [stored].into_iter().chain(sum.means(requests)) {
        let note = sum.modelled.then(|| "follows from the format; not counted".to_owned());
        rows.all.push(Row { note, ..exact(rows.subject, rows.workload, metric, unit, value) });
    }
}

/// Measures in process; returns the rows and the medium's description.
///
/// # Errors
/// Our own subjects cannot be made, or it is to stop.
fn in_process(workloads: &[Workload], settings: &Settings) -> Result<(Vec<Row>, String)> {
    let (folder, size) = (settings.folder(), settings.own.size_bytes());
    settings.progress.set_message("filling the devices");
    let mut absent = Vec::new();
    let floor = Floor::new(folder, size)?;
    let medium = MediumFloor::new(folder, size)?;
    let configurations =
        [("everbyte-auto", Delta::Auto), ("everbyte-on", Delta::On), ("everbyte-off", Delta::Off)];
    let wanted: Vec<_> =
        configurations.into_iter().filter(|c| wants_subject(settings, c.0, workloads)).collect();
    let pool = BenchPool::new(folder, size, wanted.len() as u64)?;
    let volumes: Vec<VolumeSubject> = wanted
        .into_iter()
        .map(|(name, delta)| pool.volume(name, size, delta))
        .collect::<Result<_>>()?;
    let mut pools = Vec::new();
    for (name, block_bytes) in [("pmemblk-4096", 4096), ("pmemblk-512", 512)] {
        if wants_subject(settings, name, workloads) {
            let made = Pmemblk::new(folder, size, block_bytes);
            keep(made, name, workloads, settings, &mut absent)
                .into_iter()
                .for_each(|p| pools.push(p));
        }
    }
    let tmpfs = wants_subject(settings, "tmpfs", workloads).then(|| {
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
    settings: &Settings,
    absent: &mut Vec<Row>,
) -> Option<Ext4Files> {
    let names = ["ext4-direct", "ext4-buffered"];
    if settings.quick || !names.iter().any(|name| wants_subject(settings, name, workloads)) {
        return None;
    }
    let made = ext4::mount(settings.folder(), settings.own.size_bytes());
    keep(made, "ext4", workloads, settings, absent)
}

/// The subject, or a row for each workload that it should have met.
fn keep<S>(
    made: Result<S>,
    name: &str,
    workloads: &[Workload],
    settings: &Settings,
    absent: &mut Vec<Row>,
) -> Option<S> {
    match made {
        Ok(subject) => Some(subject),
        Err(error) => {
            let wanted =
                workloads.iter().filter(|workload| settings.wants(name, &workload.to_string()));
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
fn over_nbd(workloads: &[Workload], settings: &Settings) -> Result<Vec<Row>> {
    let mut absent = Vec::new();
    let mut servers = Vec::new();
    for kind in ServerKind::ALL {
        let ours = kind.is_ours();
        let wanted = wants_subject(settings, kind.name(), workloads);
        if (settings.quick && !ours) || !(wanted || kind == ServerKind::OurNull) {
            continue;
        }
        settings.progress.set_message(format!("starting {}", kind.name()));
        let started = Server::start(kind, settings.folder(), settings.own.size_bytes());
        servers.extend(keep(started, kind.name(), workloads, settings, &mut absent));
    }
    let subjects: Vec<&dyn Subject> = servers.iter().map(|s| s as &dyn Subject).collect();
    let mut rows = run(&subjects, workloads, NULL, settings)?;
    rows.extend(absent);
    Ok(rows)
}
