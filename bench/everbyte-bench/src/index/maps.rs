//! Files with block maps of each shape, by how many blocks they have: appending, reading, overwriting and
//! cutting them, their maps' space, and the workloads on file systems with such maps.
//!
//! Invariants: every shape gets the same writes in the same order; a round measures all shapes one after
//! the other. Files of a size have as many blocks together as those of another. Checkpoints that make
//! durable what was done are not measured.

use anyhow::{Context, Result, ensure};
use everbyte_fs::{BlockMapKind, FileSystem, IndexKind, InodeNo, Name};
use everbyte_media::{BLOCK, BLOCK_U64, Mapped};

use super::Settings;
use super::cost::Cost;
use super::names::{FILE, workloads_by_shape};
use super::place::Setting;
use crate::rows::{Row, exact, metric, timed};
use crate::stats::as_f64;

/// Blocks of all files of a size together, at least.
const BLOCKS: u32 = 32_768;
/// The same in a smoke test.
const QUICK_BLOCKS: u32 = 1024;
/// Blocks of an append.
const APPEND_BLOCKS: u32 = 4;
/// Operations at random places.
const OPERATIONS: u32 = 4096;
/// Overwrites between checkpoints.
const OVERWRITES_AT_ONCE: u32 = 512;
/// Bytes of a sequential read.
const READ_BYTES: usize = 128 << 10;
/// Bytes of memory beside the files.
const OTHER_BYTES: u64 = 256 << 20;
/// The shape that others are compared with.
const REFERENCE: BlockMapKind = BlockMapKind::Radix;
/// Name of the metric that compares with it.
pub(super) const TO_REFERENCE: &str = "time_to_radix";

/// Something that is done to files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    /// Makes files longer by 16 KiB.
    Append,
    /// Reads 8 bytes of any block of a file that was only appended to.
    LookUp,
    /// Reads 128 KiB after the others.
    Read,
    /// Overwrites any block, whole.
    Overwrite,
    /// Reads 8 bytes of any block of a file whose blocks were overwritten.
    LookUpScattered,
    /// Cuts files to half of their blocks.
    Cut,
    /// Cuts what is left to nothing.
    Empty,
}

impl Operation {
    pub(super) const ALL: [Self; 7] = [
        Self::Append,
        Self::LookUp,
        Self::Read,
        Self::Overwrite,
        Self::LookUpScattered,
        Self::Cut,
        Self::Empty,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Append => "append of 16 KiB",
            Self::LookUp => "look-up",
            Self::Read => "read of 128 KiB",
            Self::Overwrite => "overwrite of a block",
            Self::LookUpScattered => "look-up after overwrites",
            Self::Cut => "cut to half",
            Self::Empty => "cut to nothing",
        }
    }
}

/// The subject of rows about a shape of block maps.
pub(super) fn subject(kind: BlockMapKind) -> String {
    format!("{} maps", kind.name())
}

/// The name of an operation on files of so many blocks.
pub(super) fn files_title(operation: Operation, blocks: u32) -> String {
    format!("{}, files of {blocks} blocks", operation.name())
}

/// Files of one shape, and what was measured of them.
struct Subject {
    kind: BlockMapKind,
    fs: FileSystem<Mapped>,
    files: Vec<InodeNo>,
    blocks: u32,
    /// Of each round, in the order of [`Operation::ALL`].
    rounds: Vec<[Cost; Operation::ALL.len()]>,
    /// Bytes of maps for each block: of files that were only appended to, and of those that were overwritten.
    map_bytes: [f64; 2],
}

impl Subject {
    /// Makes empty files that are to have so many blocks each.
    fn new(settings: &Settings<'_>, kind: BlockMapKind, blocks: u32) -> Result<Self> {
        let all = if settings.quick { QUICK_BLOCKS } else { BLOCKS };
        let count = (all / blocks).max(1);
        let setting = Setting { block_map: kind, ..Setting::of(IndexKind::default()) };
        // Each block is there twice until a checkpoint.
        let bytes = 2 * u64::from(count) * u64::from(blocks) * BLOCK_U64 + OTHER_BYTES;
        let fs = setting.file_system(u64::from(count) + 64, bytes)?;
        let files = (0..count).map(|number| {
            let name = format!("{number}");
            Ok(fs.create_inode(fs.root(), Name::new(name.as_bytes())?, &FILE)?.inode)
        });
        let files = files.collect::<Result<Vec<_>>>()?;
        fs.sync()?;
        Ok(Self { kind, fs, files, blocks, rounds: Vec::new(), map_bytes: [0.0; 2] })
    }

    /// Blocks of all files together.
    fn all_blocks(&self) -> u64 {
        self.files.len() as u64 * u64::from(self.blocks)
    }

    /// A file and a block of it, any of them: of each step another one.
    fn place(&self, step: u32) -> (InodeNo, u64) {
        let any = u64::from(step).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let block = any % self.all_blocks();
        let file = usize::try_from(block / u64::from(self.blocks)).expect("one of the files");
        (self.files[file], block % u64::from(self.blocks))
    }

    /// Appends to the files in turn, as threads that share a file system do.
    fn append(&self, fill: u8) -> Result<Cost> {
        let data = vec![fill; BLOCK * APPEND_BLOCKS as usize];
        let steps = self.blocks.div_ceil(APPEND_BLOCKS);
        let mut cost = Cost::default();
        for step in 0..steps {
            let at = u64::from(step * APPEND_BLOCKS) * BLOCK_U64;
            let left = u64::from(self.blocks) * BLOCK_U64 - at;
            let data = &data[..data.len().min(usize::try_from(left)?)];
            cost += Cost::of(&self.fs, self.files.len() as u64, || {
                self.files.iter().try_for_each(|&file| {
                    ensure!(self.fs.write(file, at, data)? == data.len(), "a write is cut short");
                    Ok(())
                })
            })?;
        }
        self.fs.sync()?;
        Ok(cost)
    }

    fn look_up(&self) -> Result<Cost> {
        let mut seen = [0; 8];
        Cost::of(&self.fs, u64::from(OPERATIONS), || {
            (0..OPERATIONS).try_for_each(|step| {
                let (file, block) = self.place(step);
                ensure!(self.fs.read(file, block * BLOCK_U64, &mut seen)? == 8, "a read is short");
                ensure!(seen != [0; 8], "a block of {file} has no bytes");
                Ok(())
            })
        })
    }

    fn read(&self) -> Result<Cost> {
        let mut buffer = vec![0; READ_BYTES];
        let mut cost = Cost::default();
        for &file in &self.files {
            let end = u64::from(self.blocks) * BLOCK_U64;
            let reads = end.div_ceil(READ_BYTES as u64);
            cost += Cost::of(&self.fs, reads, || {
                (0..reads).try_for_each(|read| {
                    self.fs.read(file, read * READ_BYTES as u64, &mut buffer)?;
                    Ok(())
                })
            })?;
        }
        Ok(cost)
    }

    fn overwrite(&self, fill: u8) -> Result<Cost> {
        let data = [fill; BLOCK];
        let mut cost = Cost::default();
        for pass in 0..OPERATIONS / OVERWRITES_AT_ONCE {
            let first = pass * OVERWRITES_AT_ONCE;
            cost += Cost::of(&self.fs, u64::from(OVERWRITES_AT_ONCE), || {
                (first..first + OVERWRITES_AT_ONCE).try_for_each(|step| {
                    let (file, block) = self.place(step);
                    self.fs.write(file, block * BLOCK_U64, &data)?;
                    Ok(())
                })
            })?;
            self.fs.sync()?;
        }
        Ok(cost)
    }

    fn cut(&self, blocks: u64) -> Result<Cost> {
        let cost = Cost::of(&self.fs, self.files.len() as u64, || {
            self.files.iter().try_for_each(|&file| {
                self.fs.truncate(file, blocks * BLOCK_U64)?;
                Ok(())
            })
        })?;
        self.fs.sync()?;
        Ok(cost)
    }

    fn used_blocks(&self) -> Result<u64> {
        let report = self.fs.pool().check()?;
        ensure!(report.is_clean(), "the pool is damaged: {:?}", report.problems);
        Ok(report.used_blocks)
    }

    /// Measures every operation.
    fn round(&mut self, settings: &Settings<'_>) -> Result<()> {
        let fill = u8::try_from(self.rounds.len() % 100).expect("less than 100") + 1;
        let empty = self.used_blocks()?;
        let all = self.all_blocks();
        let map_bytes = |used: u64| as_f64((used - empty - all) * BLOCK_U64) / as_f64(all);
        let append = self.append(fill)?;
        settings.check_stop()?;
        let appended = map_bytes(self.used_blocks()?);
        let (look_up, read) = (self.look_up()?, self.read()?);
        let overwrite = self.overwrite(fill + 100)?;
        settings.check_stop()?;
        self.map_bytes = [appended, map_bytes(self.used_blocks()?)];
        let scattered = self.look_up()?;
        let cut = self.cut(u64::from(self.blocks / 2))?;
        let emptied = self.cut(0)?;
        ensure!(self.used_blocks()? == empty, "empty files have space");
        self.rounds.push([append, look_up, read, overwrite, scattered, cut, emptied]);
        Ok(())
    }

    /// The rows, with ratios to the same rounds of `reference`.
    fn rows(&self, reference: &Self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            let (subject, workload) = (subject(self.kind), files_title(operation, self.blocks));
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
            match operation {
                Operation::Append => push("map_bytes", "B/block", self.map_bytes[0]),
                Operation::Overwrite => push("map_bytes", "B/block", self.map_bytes[1]),
                _ => {}
            }
            let mut sum = Cost::default();
            self.rounds.iter().for_each(|round| sum += round[place]);
            for (metric, unit, count) in sum.counts() {
                push(metric, unit, count);
            }
        }
        Ok(rows)
    }
}

/// Measures files with maps of every shape, and of every size.
///
/// # Errors
/// The first failure, or it is to stop.
pub(super) fn files(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let steps = settings.map_blocks.len() * BlockMapKind::ALL.len() * settings.rounds;
    settings.progress.inc_length(steps as u64);
    for &blocks in &settings.map_blocks {
        let mut subjects = Vec::new();
        for kind in BlockMapKind::ALL {
            subjects.push(Subject::new(settings, kind, blocks)?);
        }
        for _ in 0..settings.rounds {
            for own in &mut subjects {
                let what = format!("files of {blocks} blocks with {}", subject(own.kind));
                settings.progress.set_message(what.clone());
                own.round(settings).context(what)?;
                settings.progress.inc(1);
            }
        }
        let reference = subjects.iter().find(|own| own.kind == REFERENCE).expect("it is a shape");
        for subject in &subjects {
            rows.extend(subject.rows(reference)?);
        }
    }
    Ok(rows)
}

/// The name of a workload on a file system whose block maps are compared.
pub(super) fn workload_title(workload: &str) -> String {
    format!("{workload}, by block maps")
}

/// Every workload with the fewest files, on maps of every shape.
///
/// # Errors
/// It is to stop.
pub(super) fn workloads(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let shapes = BlockMapKind::ALL.map(|kind| {
        let setting = Setting { block_map: kind, ..Setting::of(IndexKind::default()) };
        (subject(kind), setting)
    });
    workloads_by_shape(settings, &shapes, workload_title)
}
