//! TPC-C on SQLite, on every scheme and on files of tmpfs and ext4.
//!
//! Invariants: all places begin with copies of one database. A round runs every mode once on every place, in direct
//! succession, so ratios compare the same seconds, and spreads cover minutes. A measurement includes a final checkpoint.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use everbyte_device::AtomicWrites;
use everbyte_extent::Delta;
use everbyte_media::Technology;
use everbyte_sqlite::{Durability, volume_bytes};
use rusqlite::Connection;

use super::library::MountHere;
use super::matrix::EXT4;
use super::target::{SchemeTarget, Target};
use super::{MEDIA, MOUNT, NONE, OURS, OURS_PUBLISHED, Settings};
use crate::baselines::Kind;
use crate::measure::thread_cpu;
use crate::rows::{Row, exact, timed};
use crate::stats::as_f64;
use crate::subject::Counts;
use crate::subjects::ext4::{mount_image, unmount};
use crate::subjects::mount_ns::enter_mount_ns;
use crate::tpcc::place::{JournalMode, Place, Setting, database_bytes, new_source};
use crate::tpcc::{self, Outcome, Scale, Until};

const SEED: u64 = 1;
const LOG_BYTES: u64 = 64 << 20;
/// Bytes that a database may grow by, beyond a quarter of its size.
const GROWTH_BYTES: u64 = 128 << 20;
/// SQLite's page cache.
const CACHE_MIB: u32 = 64;
/// The references of the others, and the names of the ratios of time and of processor time.
const BASES: [(&str, &str, &str); 3] = [
    (NONE, "tpmc_to_none", "tpmc_of_cpu_to_none"),
    (OURS, "tpmc_to_rollback", ""),
    (OURS_PUBLISHED, "tpmc_to_rollback_published", ""),
];
/// Subjects with a file system.
const FILES: [&str; 4] = ["tmpfs", EXT4[0].0, EXT4[1].0, MOUNT];
/// Divisor of the database's size in a smoke test.
const QUICK_SHRINK: u32 = 100;

/// SQLite's way to commit, with the schemes that are measured so.
struct Mode {
    journal: JournalMode,
    durability: Durability,
    /// Only without consistency and with ours: SQLite brings its own.
    few: bool,
}

const MODES: [Mode; 6] = [
    Mode { journal: JournalMode::Batch, durability: Durability::AtCheckpoint, few: false },
    Mode { journal: JournalMode::Batch, durability: Durability::AtCommit, few: false },
    Mode { journal: JournalMode::Delete, durability: Durability::AtCheckpoint, few: true },
    Mode { journal: JournalMode::Delete, durability: Durability::AtCommit, few: true },
    Mode { journal: JournalMode::Wal, durability: Durability::AtCheckpoint, few: true },
    Mode { journal: JournalMode::Wal, durability: Durability::AtCommit, few: true },
];

impl Mode {
    /// Returns true if the subject `name` is to be measured in it.
    fn is_wanted(
        &self,
        name: &str,
        medium: Technology,
        scale: &Scale,
        settings: &Settings,
    ) -> bool {
        let title = title(medium, scale.warehouses, self.journal, self.durability);
        settings.filter.wants(&format!("{name} {title}"))
    }
}

/// Schemes whose databases are in memory at the same time: not all, for it would take too much. The
/// ratios to having no consistency are of the same round in each group, and so are
/// those of what was published to what was published, and of the best to the best.
const GROUPS: [&[Kind]; 3] = [
    &[Kind::None, Kind::Rollback, Kind::RedoImproved, Kind::JournalOrdered],
    &[Kind::None, Kind::RollbackPublished, Kind::RedoPublished, Kind::JournalData],
    &[Kind::None, Kind::Ramfs, Kind::Shadow],
];

/// A place, and its medium if it has one of its own.
struct Bed {
    name: String,
    place: Place,
    target: Option<SchemeTarget>,
}

impl Bed {
    /// Makes everything durable, and does the work that a log defers.
    fn settle(&self) -> Result<()> {
        self.place.settle()?;
        self.target.as_ref().map_or(Ok(()), Target::checkpoint)
    }
}

/// One slice.
struct Sample {
    outcome: Outcome,
    sums: Option<Counts>,
}

/// The slices of all rounds.
#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn tpmc(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.outcome.tpmc()).collect()
    }

    fn tpmc_of_cpu(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.outcome.tpmc_of_cpu()).collect()
    }
}

/// The workload's name in the results.
pub(super) fn title(
    medium: Technology,
    warehouses: u32,
    journal: JournalMode,
    durability: Durability,
) -> String {
    let journal = match journal {
        JournalMode::Batch => "atomic batches",
        JournalMode::Delete => "journal",
        JournalMode::Wal => "WAL",
    };
    let durability = match durability {
        Durability::AtCommit => "commit",
        Durability::AtCheckpoint => "checkpoint",
    };
    let noun = if warehouses == 1 { "warehouse" } else { "warehouses" };
    format!("{medium}: TPC-C, {warehouses} {noun}, {journal}, {durability}")
}

/// Measures every mode on every scheme and medium, and on files.
///
/// # Errors
/// No memory; SQLite's; or it is to stop.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let shrink = if settings.quick { QUICK_SHRINK } else { 1 };
    let scale = Scale { warehouses: settings.own.warehouses, shrink };
    settings.progress.set_message(format!("loading {} warehouses", scale.warehouses));
    let source = new_source(None)?;
    tpcc::load(&source, &scale, SEED)?;
    let bytes = database_bytes(&source)?;
    let bytes = bytes + bytes / 4 + GROWTH_BYTES;
    let mut rows = Vec::new();
    for medium in MEDIA {
        for (number, group) in GROUPS.iter().enumerate() {
            let modes: Vec<&Mode> = MODES.iter().filter(|mode| number == 0 || !mode.few).collect();
            let is_wanted = |kind: &Kind| {
                modes.iter().any(|mode| mode.is_wanted(kind.name(), medium, &scale, settings))
            };
            let wanted: Vec<Kind> = group.iter().copied().filter(is_wanted).collect();
            if wanted.is_empty() || number > 0 && wanted == [Kind::None] {
                continue;
            }
            settings.progress.set_message(format!("copying the database to schemes on {medium}"));
            // The others are held against the reference.
            let beds: Vec<Bed> = group
                .iter()
                .filter(|kind| **kind == Kind::None || wanted.contains(kind))
                .map(|&kind| scheme_bed(kind, medium, bytes, &source, settings.own.delta.setting()))
                .collect::<Result<_>>()?;
            let mut courses = Vec::new();
            for mode in modes {
                let is_wanted = |bed: &&Bed| mode.is_wanted(&bed.name, medium, &scale, settings);
                if !beds.iter().any(|bed| is_wanted(&bed)) {
                    continue;
                }
                let is_meant = |bed: &&Bed| {
                    bed.name == NONE || is_wanted(bed) && (!mode.few || bed.name == OURS)
                };
                courses.push(Course::new(mode, medium, beds.iter().filter(is_meant).collect()));
            }
            let measured = measure(courses, &scale, settings)?;
            // Later groups begin with the reference, which has its rows already.
            let is_new = |row: &Row| number == 0 || row.subject != NONE;
            rows.extend(measured.into_iter().filter(is_new));
        }
    }
    if !settings.quick {
        rows.extend(files(&source, bytes, &scale, settings)?);
    }
    Ok(rows)
}

fn scheme_bed(
    kind: Kind,
    medium: Technology,
    bytes: u64,
    source: &Connection,
    delta: Delta,
) -> Result<Bed> {
    let target = SchemeTarget::new(kind, medium, volume_bytes(bytes), LOG_BYTES, delta)?;
    let device: Arc<dyn AtomicWrites> = Arc::clone(target.scheme()) as _;
    let place = Place::Device(device);
    place.fill(source)?;
    Ok(Bed { name: target.name().to_owned(), place, target: Some(target) })
}

/// Files of tmpfs and of ext4 with and without a journal of data, through SQLite's own file system.
fn files(source: &Connection, bytes: u64, scale: &Scale, settings: &Settings) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let modes = MODES.iter().filter(|mode| mode.journal != JournalMode::Batch);
    let is_wanted = |name: &str| {
        modes.clone().any(|mode| mode.is_wanted(name, Technology::Dram, scale, settings))
    };
    if !FILES.into_iter().any(is_wanted) {
        return Ok(rows);
    }
    let on_tmpfs = settings.folder().join("sqlite");
    fs::create_dir(&on_tmpfs)?;
    let mut folders = vec![("tmpfs", on_tmpfs)];
    let mut mounted = Vec::new();
    for (name, options) in EXT4 {
        let made = enter_mount_ns().and_then(|()| {
            mount_image(settings.folder(), (name, options), 2 * bytes + (256 << 20))
        });
        match made {
            Ok(at) => {
                mounted.push(at.clone());
                folders.push((name, at));
            }
            Err(error) => rows.push(Row::skipped(name, "TPC-C", format!("{error:#}"))),
        }
    }
    let mount = match MountHere::new(settings, 2 * bytes + (512 << 20)) {
        Ok(mount) => {
            folders.push((MOUNT, mount.server.dir.clone()));
            Some(mount)
        }
        Err(error) => {
            rows.push(Row::skipped(MOUNT, "TPC-C", format!("{error:#}")));
            None
        }
    };
    let measured = (|| {
        let mut beds = Vec::new();
        for (name, folder) in folders {
            let place = Place::Directory(folder);
            place.fill(source)?;
            beds.push(Bed { name: name.to_owned(), place, target: None });
        }
        let courses = modes.map(|mode| {
            let is_wanted =
                |bed: &&Bed| mode.is_wanted(&bed.name, Technology::Dram, scale, settings);
            Course::new(mode, Technology::Dram, beds.iter().filter(is_wanted).collect())
        });
        measure(courses.collect(), scale, settings)
    })();
    drop(mount);
    for at in &mounted {
        unmount(at)?;
    }
    measured.map(|measured: Vec<Row>| rows.into_iter().chain(measured).collect())
}

/// Measures all of `courses`, round by round.
fn measure(mut courses: Vec<Course<'_>>, scale: &Scale, settings: &Settings) -> Result<Vec<Row>> {
    let slices: usize = courses.iter().map(|course| course.beds.len()).sum();
    settings.progress.inc_length((settings.rounds * slices) as u64);
    for round in 0..settings.rounds {
        for course in &mut courses {
            course.run(scale, settings, round as u64)?;
        }
    }
    Ok(courses.iter().flat_map(|course| course.rows(scale)).collect())
}

/// One mode on its places.
struct Course<'b> {
    mode: &'static Mode,
    medium: Technology,
    beds: Vec<&'b Bed>,
    /// Of each place.
    samples: Vec<Samples>,
}

impl<'b> Course<'b> {
    fn new(mode: &'static Mode, medium: Technology, beds: Vec<&'b Bed>) -> Self {
        let samples = beds.iter().map(|_| Samples::default()).collect();
        Self { mode, medium, beds, samples }
    }

    fn title(&self, scale: &Scale) -> String {
        title(self.medium, scale.warehouses, self.mode.journal, self.mode.durability)
    }

    /// One round.
    fn run(&mut self, scale: &Scale, settings: &Settings, round: u64) -> Result<()> {
        let Mode { journal, durability, .. } = *self.mode;
        let setting = Setting { journal, durability, cache_mib: CACHE_MIB };
        let title = self.title(scale);
        for (bed, samples) in self.beds.iter().zip(&mut self.samples) {
            settings.check_stop()?;
            settings.progress.set_message(format!("{}: {title}", bed.name));
            samples.0.push(sample(bed, &setting, scale, settings, round)?);
            settings.progress.inc(1);
        }
        Ok(())
    }

    fn rows(&self, scale: &Scale) -> Vec<Row> {
        let (title, beds) = (self.title(scale), &self.beds);
        let mut rows = Vec::new();
        for (bed, own) in beds.iter().zip(&self.samples) {
            let (name, elapsed, cpu) = (&bed.name, own.tpmc(), own.tpmc_of_cpu());
            rows.extend(timed(name, &title, "tpmc", "1/min", &elapsed));
            rows.extend(timed(name, &title, "tpmc_of_cpu", "1/min of CPU", &cpu));
            for (base, of_elapsed, of_cpu) in BASES {
                let is_base = |other: &&Bed| other.name == base && *name != base;
                let Some(at) = beds.iter().position(is_base) else { continue };
                let ratios = |own: &[f64], base: &[f64]| -> Vec<f64> {
                    own.iter().zip(base).map(|(own, base)| own / base).collect()
                };
                let base = &self.samples[at];
                let elapsed = ratios(&elapsed, &base.tpmc());
                rows.extend(timed(name, &title, of_elapsed, "ratio", &elapsed));
                if !of_cpu.is_empty() {
                    let cpu = ratios(&cpu, &base.tpmc_of_cpu());
                    rows.extend(timed(name, &title, of_cpu, "ratio", &cpu));
                }
            }
            rows.extend(counted(name, &title, own));
        }
        rows
    }
}

fn sample(
    bed: &Bed,
    setting: &Setting,
    scale: &Scale,
    settings: &Settings,
    round: u64,
) -> Result<Sample> {
    let mut opened = bed.place.open(setting)?;
    let seed = SEED + 2 * round;
    tpcc::run(&mut opened.db, scale, seed + 1, Until::Duration(settings.own.tpcc_seconds / 5))?;
    bed.settle()?;
    let before = bed.target.as_ref().and_then(Target::counts);
    let mut outcome =
        tpcc::run(&mut opened.db, scale, seed + 2, Until::Duration(settings.own.tpcc_seconds))?;
    let (settling, cpu_before) = (Instant::now(), thread_cpu());
    bed.settle()?;
    let as_ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    outcome.elapsed_ns += as_ns(settling.elapsed());
    outcome.cpu_ns += as_ns(thread_cpu().saturating_sub(cpu_before));
    let after = bed.target.as_ref().and_then(Target::counts);
    Ok(Sample { outcome, sums: before.zip(after).map(|(before, after)| after.since(&before)) })
}

/// Means over all rounds of what was counted for a transaction.
fn counted(name: &str, title: &str, Samples(samples): &Samples) -> Vec<Row> {
    let sums: Vec<Counts> = samples.iter().filter_map(|sample| sample.sums).collect();
    if sums.is_empty() {
        return Vec::new();
    }
    let transactions = as_f64(samples.iter().map(|sample| sample.outcome.transactions).sum());
    let mean = |of: fn(&Counts) -> u64| as_f64(sums.iter().map(of).sum()) / transactions;
    [
        ("bytes_stored", "B/transaction", mean(|s| s.bytes_stored)),
        ("log_bytes", "B/transaction", mean(|s| s.log_bytes)),
        ("lines_flushed", "1/transaction", mean(|s| s.lines_flushed)),
        ("fences", "1/transaction", mean(|s| s.fences)),
        ("modelled_time", "ns", mean(|s| s.modelled_ns)),
    ]
    .map(|(metric, unit, value)| exact(name, title, metric, unit, value))
    .to_vec()
}
