//! Names in a directory of each shape, by how many there are: making, finding, listing and taking them
//! away, and the workloads on file systems with such directories.
//!
//! Invariants: every shape gets the same names in the same order, in a directory that is made once; a
//! round measures all shapes one after the other, and leaves each directory with the names that it had.
//! What is made or taken away is durable before what follows begins; those checkpoints are not
//! measured.

use anyhow::{Context, Result, ensure};
use everbyte_fs::{
    DirectoryKind, FileSystem, FileType, FsError, IndexKind, InodeNo, Name, NewInode,
};
use everbyte_media::{BLOCK_U64, Mapped};

use super::cases::{Case, make_library, measure as measure_case};
use super::collected::Collected;
use super::cost::Cost;
use super::file_set::FileSet;
use super::place::Setting;
use super::{Settings, title};
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;

/// Operations of each sort in a round.
const OPERATIONS: u32 = 1000;
/// Names of a pass are at most this part of those that are there.
const SHARE: u32 = 10;
/// Bytes of memory beside the inodes.
const OTHER_BYTES: u64 = 512 << 20;
/// Bytes of a pool for each name: inode, entry, and what a half empty bucket wastes.
const NAME_BYTES: u64 = 1024;
/// The shape that others are compared with.
const REFERENCE: DirectoryKind = DirectoryKind::Hashed;
/// Name of the metric that compares with it.
pub(super) const TO_REFERENCE: &str = "time_to_hashed";
/// Subject of rows that say which shape is best.
const BEST: &str = "best shape of directories";

/// Something that is done to names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Makes files.
    Create,
    /// Finds names.
    Lookup,
    /// Looks for names that are not there.
    Missing,
    /// Takes the files away.
    Unlink,
    /// Lists the directory; for each name.
    List,
}

impl Operation {
    pub(super) const ALL: [Self; 5] =
        [Self::Create, Self::Lookup, Self::Missing, Self::Unlink, Self::List];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Lookup => "lookup",
            Self::Missing => "lookup of none",
            Self::Unlink => "unlink",
            Self::List => "readdir",
        }
    }
}

/// The subject of rows about a shape of directories.
pub(super) fn subject(kind: DirectoryKind) -> String {
    format!("{} directories", kind.name())
}

/// The name of an operation in a directory of so many names.
pub(super) fn names_title(operation: Operation, names: u32) -> String {
    format!("{}, {names} names", operation.name())
}

/// A directory of one shape, and what was measured in it.
struct Subject {
    kind: DirectoryKind,
    fs: FileSystem<Mapped>,
    names: u32,
    /// Of each round, in the order of [`Operation::ALL`].
    rounds: Vec<[Cost; 5]>,
}

/// The name with a number: no two have the same, and those of numbers that follow each other are far
/// apart.
fn name_of(number: u32) -> String {
    format!("{:08x}.dat", number.wrapping_mul(0x9e37_79b1))
}

/// An empty file.
pub(super) const FILE: NewInode<'_> = NewInode {
    kind: FileType::Regular,
    permissions: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    device: 0,
    target: &[],
};

impl Subject {
    /// Makes a directory with so many names.
    fn new(kind: DirectoryKind, names: u32) -> Result<Self> {
        let setting = Setting { directories: kind, ..Setting::of(IndexKind::default()) };
        let files = u64::from(names) + u64::from(OPERATIONS) + 64;
        let bytes = (files * NAME_BYTES).next_multiple_of(BLOCK_U64) + OTHER_BYTES;
        let fs = setting.file_system(files, bytes)?;
        let subject = Self { kind, fs, names, rounds: Vec::new() };
        (0..names).try_for_each(|number| subject.create(number))?;
        subject.fs.sync()?;
        Ok(subject)
    }

    fn directory(&self) -> InodeNo {
        self.fs.root()
    }

    fn create(&self, number: u32) -> Result<()> {
        let name = name_of(number);
        self.fs.create_inode(self.directory(), Name::new(name.as_bytes())?, &FILE)?;
        Ok(())
    }

    fn find(&self, number: u32, is_there: bool) -> Result<()> {
        let name = name_of(number);
        let found = match self.fs.lookup(self.directory(), Name::new(name.as_bytes())?) {
            Ok(_) => true,
            Err(FsError::NotFound) => false,
            Err(error) => return Err(error.into()),
        };
        ensure!(found == is_there, "a look-up of {name} is wrong");
        Ok(())
    }

    fn unlink(&self, number: u32) -> Result<()> {
        Ok(self.fs.unlink(self.directory(), Name::new(name_of(number).as_bytes())?)?)
    }

    fn list(&self) -> Result<u64> {
        let (mut count, mut place) = (0, 0);
        loop {
            let entries = self.fs.list(self.directory(), place)?;
            let Some(last) = entries.last() else { return Ok(count) };
            place = last.next;
            count += entries.len() as u64;
        }
    }

    /// The cost of so many operations.
    fn cost(&self, operations: u64, act: impl FnOnce() -> Result<()>) -> Result<Cost> {
        Cost::of(&self.fs, operations, act)
    }

    /// Measures every operation.
    fn round(&mut self, settings: &Settings<'_>) -> Result<()> {
        let batch = (self.names / SHARE).clamp(1, OPERATIONS);
        let new = || self.names..self.names + batch;
        let [mut create, mut lookup, mut missing, mut unlink, mut list] = [Cost::default(); 5];
        for pass in 0..OPERATIONS / batch {
            settings.check_stop()?;
            // Those that are there, from one end to the other.
            let old = (0..batch).map(|step| (pass * batch + step).wrapping_mul(7919) % self.names);
            let count = u64::from(batch);
            missing += self.cost(count, || new().try_for_each(|n| self.find(n, false)))?;
            create += self.cost(count, || new().try_for_each(|n| self.create(n)))?;
            // Else what was made now would need no record to go.
            self.fs.sync()?;
            lookup += self.cost(count, || old.clone().try_for_each(|n| self.find(n, true)))?;
            unlink += self.cost(count, || new().try_for_each(|n| self.unlink(n)))?;
            self.fs.sync()?;
        }
        let mut listed = 0;
        while listed < u64::from(OPERATIONS) {
            let names = u64::from(self.names);
            let mut seen = 0;
            list += self.cost(names, || {
                seen = self.list()?;
                Ok(())
            })?;
            ensure!(seen == names, "{seen} of {names} names are listed");
            listed += names;
        }
        self.rounds.push([create, lookup, missing, unlink, list]);
        Ok(())
    }

    /// Bytes of the directory for each name.
    fn bytes_of_name(&self) -> Result<f64> {
        let blocks = self.fs.attr(self.directory())?.blocks;
        Ok(as_f64(blocks * BLOCK_U64) / f64::from(self.names))
    }

    /// The rows, with ratios to the same rounds of `reference`.
    fn rows(&self, reference: &Self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            let (subject, workload) = (subject(self.kind), names_title(operation, self.names));
            let times = self.rounds.iter().map(|round| round[place].ns()).collect::<Vec<_>>();
            let others = reference.rounds.iter().map(|round| round[place].ns());
            let ratios = times.iter().zip(others).map(|(own, other)| own / other);
            let ratios = ratios.collect::<Vec<_>>();
            for (metric, unit, figures) in
                [(metric::TIME, "ns", &times), (TO_REFERENCE, "ratio", &ratios)]
            {
                let row = timed(&subject, &workload, metric, unit, figures);
                rows.push(row.context("no round was measured")?);
            }
            let mut push = |metric, unit, value| {
                rows.push(exact(&subject, &workload, metric, unit, value));
            };
            let mut sum = Cost::default();
            self.rounds.iter().for_each(|round| sum += round[place]);
            if operation == Operation::List {
                push("directory_bytes", "B/name", self.bytes_of_name()?);
            }
            for (metric, unit, count) in sum.counts() {
                push(metric, unit, count);
            }
        }
        Ok(rows)
    }
}

/// Which of `subjects` takes the least time at each operation, and over all of them.
fn best(rows: &[Row], names: u32) -> Vec<Row> {
    let time = |kind, operation| {
        let (subject, workload) = (subject(kind), names_title(operation, names));
        let is_it = |row: &&Row| {
            row.subject == subject && row.workload == workload && row.metric == metric::TIME
        };
        rows.iter().find(is_it).and_then(|row| row.value)
    };
    let best = Operation::ALL.into_iter().filter_map(|operation| {
        let times = DirectoryKind::ALL.into_iter();
        let times = times.filter_map(|kind| Some((kind, time(kind, operation)?)));
        let (kind, least) = times.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let row = exact(BEST, &names_title(operation, names), metric::TIME, "ns", least);
        Some(Row { note: Some(kind.name().to_owned()), ..row })
    });
    best.collect()
}

/// Measures names in directories of every shape and size.
///
/// # Errors
/// The first failure, or it is to stop.
pub(super) fn entries(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let steps = settings.names.len() * DirectoryKind::ALL.len() * (settings.rounds + 1);
    settings.progress.inc_length(steps as u64);
    for &names in &settings.names {
        let mut subjects = Vec::new();
        for kind in DirectoryKind::ALL {
            settings.check_stop()?;
            settings.progress.set_message(format!("{}, {names} names", subject(kind)));
            let made = Subject::new(kind, names);
            subjects.push(made.with_context(|| format!("{names} names in {}", subject(kind)))?);
            settings.progress.inc(1);
        }
        for _ in 0..settings.rounds {
            for own in &mut subjects {
                settings.progress.set_message(format!("{}, {names} names", subject(own.kind)));
                let measured = own.round(settings);
                measured.with_context(|| format!("{names} names in {}", subject(own.kind)))?;
                settings.progress.inc(1);
            }
        }
        let reference = subjects.iter().find(|own| own.kind == REFERENCE).expect("it is a shape");
        let mut own = Vec::new();
        for subject in &subjects {
            own.extend(subject.rows(reference)?);
        }
        own.extend(best(&own, names));
        rows.extend(own);
    }
    Ok(rows)
}

/// The name of a workload on a file system whose directories are compared.
pub(super) fn workload_title(workload: &str) -> String {
    format!("{workload}, by directories")
}

/// Every workload with the fewest files, on directories of every shape.
///
/// # Errors
/// It is to stop.
pub(super) fn workloads(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let shapes = DirectoryKind::ALL.map(|kind| {
        let setting = Setting { directories: kind, ..Setting::of(IndexKind::default()) };
        (subject(kind), setting)
    });
    workloads_by_shape(settings, &shapes, workload_title)
}

/// Every workload with the fewest files, on a file system of each of these settings, which have names, under
/// titles that `title_of` makes.
///
/// # Errors
/// It is to stop.
pub(super) fn workloads_by_shape(
    settings: &Settings<'_>,
    shapes: &[(String, Setting)],
    title_of: impl Fn(&str) -> String,
) -> Result<Vec<Row>> {
    let files = settings.files_min();
    let mut collected = Collected::default();
    let steps = settings.rounds * settings.personalities.len() * shapes.len();
    settings.progress.inc_length(steps as u64);
    for _ in 0..settings.rounds {
        for &personality in &settings.personalities {
            let set = FileSet::new(personality, files);
            let case = Case { personality, set: &set, threads: vec![1] };
            for (subject, setting) in shapes {
                settings.progress.set_message(subject.clone());
                let workload = title_of(&title(personality, files, 1));
                let make = || make_library(settings, setting, &case);
                for (_, note, outcome) in measure_case(settings, &case, make) {
                    collected.push(subject, &workload, note, outcome);
                }
                settings.check_stop()?;
                settings.progress.inc(1);
            }
        }
    }
    // No index is compared here.
    Ok(collected.rows(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let mut names: Vec<String> = (0..5000).map(name_of).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 5000);
    }
}
