//! The suite of block devices: subjects and workloads, their order, and rows.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use everbyte_block::Delta;

use crate::driver::{Cell, Common, Findings, Grid, Pace, Rounds, Rows, Run, Suite};
use crate::measure::{Sample, measure};
use crate::rows::{Row, exact, metric};
use crate::stats::as_f64;
use crate::subject::Subject;
use crate::subjects::ext4;
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
        Ok(findings)
    }
}

/// The reference of other subjects, and the metric of the ratio.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    pub(crate) subject: &'static str,
    pub(crate) metric: &'static str,
    /// The figure of the ratio.
    pub(crate) of: fn(&Sample) -> f64,
}

/// Raw memory: the reference of subjects in process.
const FLOOR: [Reference; 2] = [
    Reference { subject: "floor", metric: metric::TO_FLOOR, of: Sample::ns_per_request },
    Reference { subject: "floor", metric: metric::CPU_TO_FLOOR, of: Sample::cpu_ns_per_request },
];
/// Our server without a device: the reference of subjects over NBD.
const NULL: [Reference; 1] =
    [Reference { subject: "nbd-null", metric: "rate_to_null", of: Sample::per_second }];
/// The subject whose blocks `places` reads, and its reference.
const READ_THERE: (&str, &str) = ("everbyte-auto", "places");

/// Measures `workloads` on `subjects` and returns a row for each figure.
///
/// # Errors
/// The user interrupted the run. A failure of a subject is a row.
fn run(
    subjects: &[&dyn Subject],
    workloads: &[Workload],
    references: &[Reference],
    settings: &Rounds,
    size_bytes: u64,
) -> Result<Vec<Row>> {
    let names = subjects.iter().map(|subject| subject.name());
    let is_reference =
        |at: usize| references.iter().any(|other| other.subject == subjects[at].name());
    let mut grid = Grid::new(names, workloads).select(settings, is_reference, |_, _| true);
    // A refusal is known before the first round and leaves a row with the reason.
    for cell in &mut grid.cells {
        cell.failed = subjects[cell.subject].refuses(&workloads[cell.workload]);
    }
    grid.measure(settings, |subject, workload, round| {
        let (subject, workload) = (subjects[subject], &workloads[workload]);
        // Every round starts from the same contents.
        subject.prepare(workload)?;
        let sample = measure(subject, workload, size_bytes, settings.slice, round)?;
        ensure!(sample.requests > 0, "not one request was done");
        Ok(sample)
    })?;
    Ok(grid.rows(|cell, rows| rows_of(&grid, cell, workloads, references, rows)))
}

fn rows_of(
    grid: &Grid<Sample>,
    cell: &Cell<Sample>,
    workloads: &[Workload],
    references: &[Reference],
    rows: &mut Rows<'_>,
) {
    let (own, workload) = (&cell.samples[..], &workloads[cell.workload]);
    rows.timed(metric::RATE, "1/s", own.iter().map(Sample::per_second));
    rows.timed(metric::TIME, "ns", own.iter().map(Sample::ns_per_request));
    rows.timed(metric::CPU, "ns", own.iter().map(Sample::cpu_ns_per_request));
    for reference in references {
        let base = grid.base(cell, reference.subject);
        rows.ratio(reference.metric, own, base, reference.of);
    }
    if rows.subject == READ_THERE.0 {
        rows.ratio("time_to_places", own, grid.base(cell, READ_THERE.1), Sample::ns_per_request);
    }
    // The same workload with one thread is the base of the scaling.
    let alone = workload.threads(1);
    let alone = workloads.iter().position(|other| workload.threads > 1 && *other == alone);
    let alone = alone.and_then(|at| grid.samples(rows.subject, at));
    rows.ratio(metric::SCALING, own, alone, Sample::per_second);
    let cpu = own.iter().filter_map(Sample::server_cpu_per_request);
    rows.timed(metric::SERVER_CPU, "ns", cpu);
    counted(own, workload, rows);
}

/// Adds the means of the counts over all rounds.
fn counted(samples: &[Sample], workload: &Workload, rows: &mut Rows<'_>) {
    let counts = samples.iter().filter_map(|sample| sample.counts);
    let Some(sum) = counts.reduce(|sum, more| sum.plus(&more)).filter(|_| workload.writes()) else {
        return;
    };
    // Rounds have different numbers of requests, so the mean is of sums and not of rounds.
    let requests: u64 = samples.iter().map(|sample| sample.requests).sum();
    let asked = as_f64(requests) * as_f64(workload.bytes as u64);
    let stored = (metric::MEDIA_BYTES, "ratio", as_f64(sum.bytes_stored) / asked);
    for (metric, unit, value) in [stored].into_iter().chain(sum.means(requests)) {
        let note = sum.modelled.then(|| "follows from the format; not counted".to_owned());
        rows.all.push(Row { note, ..exact(rows.subject, rows.workload, metric, unit, value) });
    }
}

/// Subjects that a machine may lack, and rows with the reasons for the missing subjects.
pub(crate) struct Subjects<'a> {
    settings: &'a Rounds,
    workloads: &'a [Workload],
    made: Vec<Box<dyn Subject>>,
    absent: Vec<Row>,
}

impl<'a> Subjects<'a> {
    pub(crate) fn new(settings: &'a Rounds, workloads: &'a [Workload]) -> Self {
        Self { settings, workloads, made: Vec::new(), absent: Vec::new() }
    }

    /// The workloads that the filter selects for a subject.
    fn selected(&self, subject: &str) -> impl Iterator<Item = String> {
        let titles = self.workloads.iter().map(ToString::to_string);
        titles.filter(move |workload| self.settings.wants(subject, workload))
    }

    /// Makes the subjects of `names` if the filter selects one of them, or `is_needed`.
    pub(crate) fn add(
        &mut self,
        names: &[&str],
        is_needed: bool,
        make: impl FnOnce() -> Result<Vec<Box<dyn Subject>>>,
    ) {
        if !is_needed && names.iter().all(|name| self.selected(name).next().is_none()) {
            return;
        }
        match make() {
            Ok(made) => self.made.extend(made),
            Err(error) => {
                let skipped = |name| {
                    let why = format!("{error:#}");
                    self.selected(name).map(move |title| Row::skipped(name, &title, why.clone()))
                };
                let absent: Vec<Row> = names.iter().copied().flat_map(skipped).collect();
                self.absent.extend(absent);
            }
        }
    }

    /// Measures `first` and then the made subjects.
    ///
    /// # Errors
    /// The user interrupted the run. A failure of a subject is a row.
    pub(crate) fn run(
        self,
        first: &[&dyn Subject],
        references: &[Reference],
        size_bytes: u64,
    ) -> Result<Vec<Row>> {
        let made = self.made.iter().map(|subject| &**subject);
        let all: Vec<&dyn Subject> = first.iter().copied().chain(made).collect();
        let mut rows = run(&all, self.workloads, references, self.settings, size_bytes)?;
        rows.extend(self.absent);
        Ok(rows)
    }
}

/// Measures in process. Returns the rows and the medium's description.
///
/// # Errors
/// One of our own subjects cannot be made; the user interrupted the run.
fn in_process(workloads: &[Workload], settings: &Settings) -> Result<(Vec<Row>, String)> {
    let (folder, size) = (settings.folder(), settings.own.size_bytes());
    settings.progress.set_message("filling the devices");
    let mut rivals = Subjects::new(settings, workloads);
    let floor = Floor::new(folder, size)?;
    let medium = MediumFloor::new(folder, size)?;
    let configurations =
        [(READ_THERE.0, Delta::Auto), ("everbyte-on", Delta::On), ("everbyte-off", Delta::Off)];
    let is_wanted = |(name, _): &(&str, Delta)| rivals.selected(name).next().is_some();
    let wanted: Vec<_> = configurations.into_iter().filter(is_wanted).collect();
    // Volumes of one pool share the room for replaced blocks, because one volume works at a time.
    let pool = BenchPool::new(folder, size, wanted.len() as u64)?;
    let volumes = wanted.into_iter().map(|(name, delta)| pool.volume(name, size, delta));
    let volumes = volumes.collect::<Result<Vec<VolumeSubject>>>()?;
    let read_there = volumes.iter().find(|volume| volume.name() == READ_THERE.0);
    let places = read_there.map(|volume| Places::new(volume, size));
    for (name, block_bytes) in [("pmemblk-4096", 4096), ("pmemblk-512", 512)] {
        rivals.add(&[name], false, || Ok(vec![Box::new(Pmemblk::new(folder, size, block_bytes)?)]));
    }
    rivals.add(&["tmpfs"], false, || Ok(vec![Box::new(FileSubject::on_tmpfs(folder, size)?)]));
    if !settings.quick {
        rivals.add(&["ext4-direct", "ext4-buffered"], false, || {
            // Both files lie on one file system, so one mount serves two subjects.
            Ok(ext4::mount(folder, size)?.map(|file| Box::new(file) as Box<dyn Subject>).into())
        });
    }
    let mut own: Vec<&dyn Subject> = vec![&floor, &medium];
    own.extend(volumes.iter().map(|subject| subject as &dyn Subject));
    own.extend(places.iter().map(|subject| subject as &dyn Subject));
    Ok((rivals.run(&own, &FLOOR, size)?, pool.describe()))
}

/// Measures servers over NBD.
///
/// # Errors
/// The user interrupted the run.
fn over_nbd(workloads: &[Workload], settings: &Settings) -> Result<Vec<Row>> {
    let mut servers = Subjects::new(settings, workloads);
    // A smoke test needs no foreign server.
    for kind in ServerKind::ALL.into_iter().filter(|kind| kind.is_ours() || !settings.quick) {
        settings.progress.set_message(format!("starting {}", kind.name()));
        // All others are compared with the server without a device.
        servers.add(&[kind.name()], kind == ServerKind::OurNull, || {
            let server = Server::start(kind, settings.folder(), settings.own.size_bytes())?;
            Ok(vec![Box::new(server)])
        });
    }
    servers.run(&[], &NULL, settings.own.size_bytes())
}
