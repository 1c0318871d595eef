//! TPC-C on SQLite, on each scheme and on files of tmpfs, ext4 and our mount.
//!
//! Invariants: each place begins with a copy of one database. A round runs a mode on all places in direct succession,
//! so ratios compare the same seconds, and spreads cover minutes. A measurement includes a final checkpoint.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use everbyte_device::AtomicWrites;
use everbyte_media::Technology;
use everbyte_sqlite::{Durability, volume_bytes};
use rusqlite::Connection;

use super::library::MountHere;
use super::target::{SchemeTarget, Target};
use super::{EXT4, MEDIA, MOUNT, NONE, OURS, OURS_PUBLISHED, Settings};
use crate::baselines::Kind;
use crate::driver::{Cell, Grid, Rows};
use crate::measure::thread_cpu;
use crate::rows::Row;
use crate::stats::as_f64;
use crate::subject::Counts;
use crate::subjects::ext4::{mount_image, unmount};
use crate::subjects::mount_ns::enter_mount_ns;
use crate::tpcc::place::{JournalMode, Place, Setting, database_bytes, new_source};
use crate::tpcc::{self, Outcome, Scale, Until, consistency};

const SEED: u64 = 1;
const LOG_BYTES: u64 = 64 << 20;
/// Growth of a database in bytes, in addition to a quarter of its size.
const GROWTH_BYTES: u64 = 128 << 20;
/// SQLite's page cache.
const CACHE_MIB: u32 = 64;
/// Subjects with a file system.
const FILES: [&str; 4] = ["tmpfs", EXT4[0].0, EXT4[1].0, MOUNT];
/// Divisor of the size of the database in a smoke test.
const QUICK_SHRINK: u32 = 100;

/// Journal mode and durability of SQLite.
type Mode = (JournalMode, Durability);
/// Modes of all schemes.
const BATCHES: [Mode; 2] =
    [(JournalMode::Batch, Durability::AtCheckpoint), (JournalMode::Batch, Durability::AtCommit)];
/// Modes of files. Only `none` and our scheme are measured in these modes, because SQLite brings its own consistency.
const JOURNALS: [Mode; 4] = [
    (JournalMode::Delete, Durability::AtCheckpoint),
    (JournalMode::Delete, Durability::AtCommit),
    (JournalMode::Wal, Durability::AtCheckpoint),
    (JournalMode::Wal, Durability::AtCommit),
];

/// Schemes with databases in memory at the same time. All of them together would need too much memory. Each group has
/// `none`, so ratios to it are ratios of the same round. Published schemes share a group, and improved schemes too.
const GROUPS: [&[Kind]; 3] = [
    &[Kind::None, Kind::Rollback, Kind::RedoImproved, Kind::JournalOrdered],
    &[Kind::None, Kind::RollbackPublished, Kind::RedoPublished, Kind::JournalData],
    &[Kind::None, Kind::Ramfs, Kind::Shadow],
];

/// A place, and its scheme if it is not a directory.
struct Bed {
    place: Place,
    target: Option<SchemeTarget>,
}

impl Bed {
    fn of_scheme(kind: Kind, medium: Technology, loaded: &Loaded) -> Result<Self> {
        let target = SchemeTarget::new(kind, medium, volume_bytes(loaded.bytes), LOG_BYTES)?;
        let device: Arc<dyn AtomicWrites> = Arc::clone(target.scheme()) as _;
        let place = Place::Device(device);
        place.fill(&loaded.source)?;
        Ok(Self { place, target: Some(target) })
    }

    fn of_files(folder: PathBuf, loaded: &Loaded) -> Result<Self> {
        let place = Place::Directory(folder);
        place.fill(&loaded.source)?;
        Ok(Self { place, target: None })
    }

    /// Makes all writes durable, and does the deferred work of a log.
    fn settle(&self) -> Result<()> {
        self.place.settle()?;
        self.target.as_ref().map_or(Ok(()), Target::checkpoint)
    }
}

/// The database before its copies, and the bytes of a place.
struct Loaded {
    source: Connection,
    scale: Scale,
    bytes: u64,
}

/// One slice.
struct Sample {
    outcome: Outcome,
    sums: Option<Counts>,
}

/// Names of the workloads of `modes`.
fn titles(medium: Technology, warehouses: u32, modes: &[Mode]) -> Vec<String> {
    let noun = if warehouses == 1 { "warehouse" } else { "warehouses" };
    let title = |&(journal, durability): &Mode| {
        let journal = match journal {
            JournalMode::Batch => "atomic batches",
            JournalMode::Delete => "journal",
            JournalMode::Wal => "WAL",
        };
        let is_commit = durability == Durability::AtCommit;
        let durability = if is_commit { "commit" } else { "checkpoint" };
        format!("{medium}: TPC-C, {warehouses} {noun}, {journal}, {durability}")
    };
    modes.iter().map(title).collect()
}

/// Measures the modes on schemes and media, and on files.
///
/// # Errors
/// No memory; an error of SQLite; the user interrupted the run.
pub(super) fn run(settings: &Settings) -> Result<Vec<Row>> {
    let shrink = if settings.quick { QUICK_SHRINK } else { 1 };
    let scale = Scale { warehouses: settings.own.warehouses, shrink };
    settings.progress.set_message(format!("loading {} warehouses", scale.warehouses));
    let source = new_source()?;
    tpcc::load(&source, scale, SEED)?;
    let bytes = database_bytes(&source)?;
    let loaded = Loaded { source, scale, bytes: bytes + bytes / 4 + GROWTH_BYTES };
    let mut rows = Vec::new();
    for medium in MEDIA {
        for (number, group) in GROUPS.iter().enumerate() {
            let is_first = number == 0;
            let found = schemes(group, is_first, medium, &loaded, settings)?;
            // Later groups measure the reference again. Its rows are the first group's.
            rows.extend(found.into_iter().filter(|row| is_first || row.subject != NONE));
        }
    }
    if !settings.quick {
        rows.extend(files(&loaded, settings)?);
    }
    Ok(rows)
}

fn schemes(
    group: &[Kind],
    is_first: bool,
    medium: Technology,
    loaded: &Loaded,
    settings: &Settings,
) -> Result<Vec<Row>> {
    let modes = if is_first { [&BATCHES[..], &JOURNALS].concat() } else { BATCHES.to_vec() };
    let names = group.iter().map(|kind| kind.name());
    let is_reference = |subject: usize| group[subject] == Kind::None;
    let mut grid = Grid::new(names, titles(medium, loaded.scale.warehouses, &modes)).select(
        settings,
        is_reference,
        |subject, mode| {
            mode < BATCHES.len() || matches!(group[subject], Kind::None | Kind::Rollback)
        },
    );
    if !is_first && grid.cells.iter().all(|cell| is_reference(cell.subject)) {
        return Ok(Vec::new());
    }
    settings.progress.set_message(format!("copying the database to schemes on {medium}"));
    let is_selected = |subject| grid.cells.iter().any(|cell| cell.subject == subject);
    let bed = |(subject, &kind)| {
        is_selected(subject).then(|| Bed::of_scheme(kind, medium, loaded)).transpose()
    };
    let beds = group.iter().enumerate().map(bed).collect::<Result<Vec<_>>>()?;
    measure(&mut grid, &beds, &modes, loaded.scale, settings)
}

/// Files of tmpfs, of ext4 with and without a journal of data, and of our mount, through SQLite's VFS.
fn files(loaded: &Loaded, settings: &Settings) -> Result<Vec<Row>> {
    let titles = titles(Technology::Dram, loaded.scale.warehouses, &JOURNALS);
    let mut grid = Grid::new(FILES, titles).select(settings, |_| false, |_, _| true);
    if grid.cells.is_empty() {
        return Ok(Vec::new());
    }
    let tmpfs = settings.folder().join("sqlite");
    let ext4 = |named| {
        enter_mount_ns()?;
        mount_image(settings.folder(), named, 2 * loaded.bytes + (256 << 20))
    };
    let mount = MountHere::new(settings, 2 * loaded.bytes + (512 << 20));
    let folders = [
        fs::create_dir(&tmpfs).map(|()| tmpfs).map_err(Into::into),
        ext4(EXT4[0]),
        ext4(EXT4[1]),
        mount.as_ref().map(|mount| mount.server.dir.clone()).map_err(|error| anyhow!("{error:#}")),
    ];
    let mounted: Vec<PathBuf> = folders[1..3].iter().flatten().cloned().collect();
    let beds = folders.map(|folder| folder.and_then(|folder| Bed::of_files(folder, loaded)));
    for cell in &mut grid.cells {
        cell.failed = beds[cell.subject].as_ref().err().map(|error| format!("{error:#}"));
    }
    let beds = beds.map(Result::ok);
    let rows = measure(&mut grid, &beds, &JOURNALS, loaded.scale, settings);
    drop(mount);
    // The images have no names, so an unmount frees their memory for the next suite.
    mounted.iter().try_for_each(|at| unmount(at))?;
    rows
}

/// Measures the cells of `grid` on `beds` in `modes`.
fn measure(
    grid: &mut Grid<Sample>,
    beds: &[Option<Bed>],
    modes: &[Mode],
    scale: Scale,
    settings: &Settings,
) -> Result<Vec<Row>> {
    grid.measure(settings, |subject, mode, round| {
        let bed = beds[subject].as_ref().context("no place")?;
        sample(bed, modes[mode], scale, settings, round as u64)
    })?;
    Ok(grid.rows(|cell, rows| rows_of(grid, cell, rows)))
}

fn sample(
    bed: &Bed,
    (journal, durability): Mode,
    scale: Scale,
    settings: &Settings,
    round: u64,
) -> Result<Sample> {
    let opened = bed.place.open(&Setting { journal, durability, cache_mib: CACHE_MIB })?;
    let (db, seconds) = (&opened.db, settings.own.tpcc_seconds);
    let seed = SEED + 2 * round;
    tpcc::run(db, scale, seed + 1, Until::Duration(seconds / 5))?;
    // The slice starts with an empty log, so it pays for its own checkpoints only.
    bed.settle()?;
    let before = bed.target.as_ref().and_then(Target::counts);
    let mut outcome = tpcc::run(db, scale, seed + 2, Until::Duration(seconds))?;
    let (settling, cpu_before) = (Instant::now(), thread_cpu());
    bed.settle()?;
    outcome.elapsed += settling.elapsed();
    outcome.cpu += thread_cpu().saturating_sub(cpu_before);
    let after = bed.target.as_ref().and_then(Target::counts);
    if settings.quick {
        consistency::check(db)?;
    }
    Ok(Sample { outcome, sums: before.zip(after).map(|(before, after)| after.since(&before)) })
}

fn rows_of(grid: &Grid<Sample>, cell: &Cell<Sample>, rows: &mut Rows<'_>) {
    let own = &cell.samples[..];
    let tpmc = |sample: &Sample| sample.outcome.tpmc();
    let tpmc_of_cpu = |sample: &Sample| sample.outcome.tpmc_of_cpu();
    rows.timed("tpmc", "1/min", own.iter().map(tpmc));
    rows.timed("tpmc_of_cpu", "1/min of CPU", own.iter().map(tpmc_of_cpu));
    rows.ratio("tpmc_to_none", own, grid.base(cell, NONE), tpmc);
    rows.ratio("tpmc_of_cpu_to_none", own, grid.base(cell, NONE), tpmc_of_cpu);
    rows.ratio("tpmc_to_rollback", own, grid.base(cell, OURS), tpmc);
    rows.ratio("tpmc_to_rollback_published", own, grid.base(cell, OURS_PUBLISHED), tpmc);
    let sums = own.iter().filter_map(|sample| sample.sums).reduce(|sum, more| sum.plus(&more));
    let Some(sums) = sums else { return };
    let transactions = as_f64(own.iter().map(|sample| sample.outcome.transactions).sum());
    let mut mean = |metric, unit, sum| rows.exact(metric, unit, as_f64(sum) / transactions);
    mean("bytes_stored", "B/transaction", sums.bytes_stored);
    mean("log_bytes", "B/transaction", sums.log_bytes);
    mean("lines_flushed", "1/transaction", sums.lines_flushed);
    mean("fences", "1/transaction", sums.fences);
    mean("modelled_time", "ns", sums.modelled_ns);
}
