//! The subjects, and one measurement of an operation.
//!
//! Invariants: operations are timed in batches, because a clock read costs as much as a small operation. The preparation of
//! a batch is untimed and durable. A directory has the same names before and after a batch.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use everbyte_device::{BlockDevice, Fua};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::allocations::allocations_of_this_thread;
use super::load::{self, LoadSample};
use super::operation::{Operation, Paths, READ_BYTES, WHOLE_BYTES};
use crate::index::target::Target;
use crate::measure::thread_cpu;
use crate::subject::Counts;
use crate::subjects::raw_memory::RawMemory;
use crate::workload::Payload;

/// Operations of a batch.
pub(super) const BATCH: usize = 250;
/// Most time that a measurement takes, in slices: making batches possible takes more than they do.
const SLICES_MAX: u32 = 20;
/// Bytes of a metadata operation's floor.
const FLOOR_BYTES: usize = 64;
/// The file that is read.
pub(super) const READ_FILE: &str = "read";

/// Counts and times of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    /// Processor time of the thread, which others on the machine lengthen less.
    pub(super) cpu: Duration,
    /// The time that it took to make all of them durable afterwards.
    pub(super) sync: Duration,
    pub(super) allocations: u64,
    /// Work on the medium, without that of making durable.
    pub(super) counts: Option<Counts>,
}

impl Sample {
    /// Nanoseconds of an operation.
    pub(super) fn ns(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e9 / crate::stats::as_f64(self.operations)
    }

    /// Nanoseconds of processor time of an operation.
    pub(super) fn cpu_ns(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / crate::stats::as_f64(self.operations)
    }

    /// Nanoseconds of an operation with an equal share of making all of them durable.
    pub(super) fn durable_ns(&self) -> f64 {
        (self.elapsed + self.sync).as_secs_f64() * 1e9 / crate::stats::as_f64(self.operations)
    }
}

/// A subject.
pub(super) trait Place {
    /// Its name in the results.
    fn name(&self) -> &str;

    /// Returns true if others are compared with it.
    fn is_reference(&self) -> bool;

    /// Returns true if it can do `operation`.
    fn does(&self, operation: Operation) -> bool;

    /// Measures `operation` for about `slice`.
    ///
    /// # Errors
    /// The subject's.
    fn run(&self, operation: Operation, slice: Duration, round: usize) -> Result<Sample>;

    /// Returns true if it can do appends beside load.
    fn bears_load(&self) -> bool {
        false
    }

    /// Measures appends with `fsync` beside load.
    ///
    /// # Errors
    /// The subject's; it has no files.
    fn load(&self, _slice: Duration) -> Result<LoadSample> {
        bail!("{} has no files", self.name())
    }
}

/// A file system with its files.
pub(super) struct Files<T> {
    name: &'static str,
    target: T,
    counts: fn(&T) -> Option<Counts>,
    paths: Paths,
    file_bytes: u64,
    payload: Mutex<Payload>,
}

/// One measurement on a file system.
struct Batches<'a, T> {
    files: &'a Files<T>,
    sample: Sample,
}

impl<T: Target> Files<T> {
    /// Makes the files in an empty file system.
    ///
    /// # Errors
    /// The target's.
    pub(super) fn new(
        name: &'static str,
        target: T,
        counts: fn(&T) -> Option<Counts>,
        (names, file_bytes): (usize, u64),
    ) -> Result<Self> {
        const PART: usize = 64 << 10;
        let paths = Paths::new(names, BATCH.min(names));
        target.make_directory(Paths::directory())?;
        // In the order of their names, as the list's is made to differ from.
        let mut ascending: Vec<&String> = paths.present.iter().collect();
        ascending.sort_unstable();
        ascending.into_iter().try_for_each(|path| target.make_file(path))?;
        let mut payload = Payload::unedited();
        let file = target.create(READ_FILE)?;
        for part in 0..file_bytes / PART as u64 {
            target.write(&file, part * PART as u64, payload.next(PART))?;
        }
        target.close(file)?;
        load::make(&target)?;
        target.sync()?;
        let payload = Mutex::new(payload);
        Ok(Self { name, target, counts, paths, file_bytes, payload })
    }

    /// Times batches of `operation` until they have taken a slice.
    fn batches(&self, operation: Operation, slice: Duration, round: usize) -> Result<Sample> {
        let mut batches = Batches { files: self, sample: Sample::default() };
        let mut turn = round;
        let start = Instant::now();
        while batches.sample.elapsed < slice && start.elapsed() < slice * SLICES_MAX {
            turn += 1;
            match operation {
                Operation::Create => batches.create()?,
                Operation::Unlink => batches.unlink()?,
                Operation::Rename => batches.rename()?,
                Operation::Chmod => batches.chmod(turn)?,
                Operation::Stat => batches.stat()?,
                Operation::Open => batches.open()?,
                Operation::CreateWhole => batches.create_whole()?,
                Operation::Read => batches.read(turn)?,
            }
        }
        Ok(batches.sample)
    }

    fn make_all(&self) -> Result<()> {
        self.paths.made.iter().try_for_each(|path| self.target.make_file(path))
    }

    fn delete_all(&self) -> Result<()> {
        self.paths.made.iter().try_for_each(|path| self.target.delete(path))
    }
}

impl<T: Target> Batches<'_, T> {
    /// Times `act` on each of `all`, and making everything durable.
    fn time<I>(
        &mut self,
        all: impl ExactSizeIterator<Item = I>,
        mut act: impl FnMut(I) -> Result<()>,
    ) -> Result<()> {
        let count = all.len() as u64;
        let before = (self.files.counts)(&self.files.target);
        let allocated = allocations_of_this_thread();
        let (start, cpu_start) = (Instant::now(), thread_cpu());
        for one in all {
            act(one)?;
        }
        self.sample.elapsed += start.elapsed();
        self.sample.cpu += thread_cpu().saturating_sub(cpu_start);
        self.sample.allocations += allocations_of_this_thread() - allocated;
        self.sample.operations += count;
        let after = (self.files.counts)(&self.files.target);
        if let Some((before, after)) = before.zip(after) {
            let sum = self.sample.counts.unwrap_or_default();
            self.sample.counts = Some(sum.plus(&after.since(&before)));
        }
        let start = Instant::now();
        self.files.target.sync()?;
        self.sample.sync += start.elapsed();
        Ok(())
    }

    /// Does what is not measured.
    fn untimed(&self, act: impl FnOnce() -> Result<()>) -> Result<()> {
        act()?;
        self.files.target.sync()
    }

    fn create(&mut self) -> Result<()> {
        let files = self.files;
        self.time(files.paths.made.iter(), |path| files.target.make_file(path))?;
        self.untimed(|| files.delete_all())
    }

    fn unlink(&mut self) -> Result<()> {
        let files = self.files;
        self.untimed(|| files.make_all())?;
        self.time(files.paths.made.iter(), |path| files.target.delete(path))
    }

    fn rename(&mut self) -> Result<()> {
        let Files { target, paths, .. } = self.files;
        let pairs = || paths.present.iter().zip(&paths.renamed);
        self.time(pairs(), |(from, to)| target.rename(from, to))?;
        self.time(pairs(), |(from, to)| target.rename(to, from))
    }

    fn chmod(&mut self, turn: usize) -> Result<()> {
        let Files { target, paths, .. } = self.files;
        let mode = if turn.is_multiple_of(2) { 0o600 } else { 0o640 };
        self.time(paths.present.iter(), |path| target.set_permissions(path, mode))
    }

    fn stat(&mut self) -> Result<()> {
        let Files { target, paths, .. } = self.files;
        self.time(paths.present.iter(), |path| target.stat(path).map(drop))
    }

    fn open(&mut self) -> Result<()> {
        let Files { target, paths, .. } = self.files;
        let mut open = Vec::with_capacity(BATCH);
        self.time(paths.present.iter().take(BATCH), |path| {
            open.push(target.open(path)?);
            Ok(())
        })?;
        self.untimed(|| open.into_iter().try_for_each(|file| target.close(file)))
    }

    fn create_whole(&mut self) -> Result<()> {
        let files = self.files;
        let payload = &mut *files.payload.lock().unwrap_or_else(PoisonError::into_inner);
        self.time(files.paths.made.iter(), |path| {
            let file = files.target.create(path)?;
            files.target.write(&file, 0, payload.next(WHOLE_BYTES))?;
            files.target.close(file)
        })?;
        self.untimed(|| files.delete_all())
    }

    fn read(&mut self, turn: usize) -> Result<()> {
        let target = &self.files.target;
        let file = target.open(READ_FILE)?;
        let offsets = offsets(self.files.file_bytes, turn);
        let mut room = [0; READ_BYTES];
        self.time(offsets.iter(), |&offset| {
            let done = target.read(&file, offset, &mut room)?;
            ensure!(done == READ_BYTES, "{done} of {READ_BYTES} bytes were read");
            Ok(())
        })?;
        target.close(file)
    }
}

/// The places of a batch of reads, the same on every subject.
fn offsets(file_bytes: u64, turn: usize) -> Vec<u64> {
    let mut rng = SmallRng::seed_from_u64(turn as u64);
    let blocks = file_bytes / READ_BYTES as u64;
    (0..4 * BATCH).map(|_| rng.random_range(0..blocks) * READ_BYTES as u64).collect()
}

impl<T: Target> Place for Files<T> {
    fn name(&self) -> &str {
        self.name
    }

    fn is_reference(&self) -> bool {
        matches!(self.name, super::names::TMPFS | super::names::EXT4)
    }

    fn does(&self, _operation: Operation) -> bool {
        true
    }

    fn bears_load(&self) -> bool {
        // Nothing on tmpfs is durable, so an fsync has nothing to wait for.
        self.name != super::names::TMPFS
    }

    fn run(&self, operation: Operation, slice: Duration, round: usize) -> Result<Sample> {
        self.batches(operation, slice, round)
    }

    fn load(&self, slice: Duration) -> Result<LoadSample> {
        load::measure(&self.target, slice)
    }
}

/// Raw memory: for a change of metadata 64 bytes that are streamed and fenced, for a read a copy.
pub(super) struct Floor {
    memory: RawMemory,
    bytes: u64,
}

impl Floor {
    pub(super) fn new(memory: RawMemory, bytes: u64) -> Self {
        Self { memory, bytes }
    }
}

/// Times batches of `act` on the places of reads.
fn time_offsets(
    (bytes, slice, round): (u64, Duration, usize),
    mut act: impl FnMut(u64) -> Result<()>,
) -> Result<Sample> {
    let (mut sample, mut turn) = (Sample::default(), round);
    while sample.elapsed < slice {
        turn += 1;
        let offsets = offsets(bytes, turn);
        let (start, cpu_start) = (Instant::now(), thread_cpu());
        offsets.iter().try_for_each(|&offset| act(offset))?;
        sample.elapsed += start.elapsed();
        sample.cpu += thread_cpu().saturating_sub(cpu_start);
        sample.operations += offsets.len() as u64;
    }
    Ok(sample)
}

impl Place for Floor {
    fn name(&self) -> &str {
        super::names::FLOOR
    }

    fn is_reference(&self) -> bool {
        true
    }

    fn does(&self, operation: Operation) -> bool {
        operation.changes_metadata() || operation == Operation::Read
    }

    fn run(&self, operation: Operation, slice: Duration, round: usize) -> Result<Sample> {
        let timing = (self.bytes, slice, round);
        let mut room = [0; READ_BYTES];
        time_offsets(timing, |offset| {
            match operation {
                Operation::Read => self.memory.load(offset, &mut room),
                _ => self.memory.store_durably(offset, &room[..FLOOR_BYTES]),
            }
            Ok(())
        })
    }
}

/// A block volume, which is read.
pub(super) struct Volume<D> {
    device: D,
    bytes: u64,
}

impl<D: BlockDevice> Volume<D> {
    /// Fills the first `bytes` of `device`.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn new(device: D, bytes: u64) -> Result<Self> {
        const PART: usize = 64 << 10;
        let mut payload = Payload::unedited();
        for part in 0..bytes / PART as u64 {
            device.write(part * PART as u64, payload.next(PART), Fua::No)?;
        }
        device.flush()?;
        Ok(Self { device, bytes })
    }
}

impl<D: BlockDevice> Place for Volume<D> {
    fn name(&self) -> &str {
        super::names::VOLUME
    }

    fn is_reference(&self) -> bool {
        true
    }

    fn does(&self, operation: Operation) -> bool {
        operation == Operation::Read
    }

    fn run(&self, _operation: Operation, slice: Duration, round: usize) -> Result<Sample> {
        let mut room = [0; READ_BYTES];
        time_offsets((self.bytes, slice, round), |offset| {
            Ok(self.device.read(offset, &mut room)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use everbyte_fs::IndexKind;

    use super::*;
    use crate::index::library::{Bytes, Library};
    use crate::index::place::Setting;

    #[test]
    fn file_operations_allocate_nothing() {
        use Operation::{Chmod, Create, Open, Read, Stat, Unlink};
        let fs = Setting::of(IndexKind::Direct).file_system(2000, 256 << 20).unwrap();
        let library = Library::new(fs, Bytes::Stored);
        let files = Files::new("everbyte", library, |_| None, (100, 1 << 20)).unwrap();
        for operation in [Stat, Open, Read, Create, Unlink, Chmod] {
            // Lists of what an epoch did grow until they have held as much as they ever do.
            let slice = Duration::from_millis(5);
            files.batches(operation, slice, 0).unwrap();
            let sample = files.batches(operation, slice, 1).unwrap();
            assert!(sample.operations > 0);
            assert!(
                sample.allocations * 100 <= sample.operations,
                "{operation:?}: {} allocations in {} operations",
                sample.allocations,
                sample.operations
            );
        }
    }
}
