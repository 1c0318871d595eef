//! Measurement of an operation on a file system.
//!
//! Invariants: operations are timed in batches, because a clock read costs as much as a small operation. The preparation of
//! a batch is untimed and durable. A directory has the same names before and after a batch.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::allocations::allocations_of_this_thread;
use super::load;
use super::operation::{DIRECTORY, Operation, Paths, READ_BYTES, WHOLE_BYTES};
use crate::index::target::Target;
use crate::measure::thread_cpu;
use crate::stats::as_f64;
use crate::subject::Counts;
use crate::workload::Payload;

/// Operations of a batch.
pub(super) const BATCH: usize = 250;
/// Most time of a measurement in slices. The preparation of a batch can take longer than the batch.
const SLICES_MAX: u32 = 20;
/// Name of the file for reads.
const READ_FILE: &str = "read";

/// Counts and times of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    /// Processor time of the thread. Other load lengthens it less than the elapsed time.
    pub(super) cpu: Duration,
    /// Time of the syncs after the batches.
    sync: Duration,
    pub(super) allocations: u64,
    /// Work on the medium without the syncs.
    pub(super) counts: Option<Counts>,
}

impl Sample {
    fn ns_each(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e9 / as_f64(self.operations)
    }

    /// Nanoseconds per operation.
    pub(super) fn ns(&self) -> f64 {
        self.ns_each(self.elapsed)
    }

    /// Nanoseconds of processor time per operation.
    pub(super) fn cpu_ns(&self) -> f64 {
        self.ns_each(self.cpu)
    }

    /// Nanoseconds per operation with an equal share of the syncs.
    pub(super) fn durable_ns(&self) -> f64 {
        self.ns_each(self.elapsed + self.sync)
    }

    /// Adds the times of `act` on each of `all`.
    pub(super) fn time<I>(
        &mut self,
        all: impl ExactSizeIterator<Item = I>,
        act: impl FnMut(I) -> Result<()>,
    ) -> Result<()> {
        let mut all = all;
        self.operations += all.len() as u64;
        let (start, cpu_start) = (Instant::now(), thread_cpu());
        all.try_for_each(act)?;
        self.elapsed += start.elapsed();
        self.cpu += thread_cpu().saturating_sub(cpu_start);
        Ok(())
    }
}

/// A file system with its files.
pub(super) struct Files<T> {
    pub(super) target: T,
    counts: fn(&T) -> Option<Counts>,
    paths: Paths,
    file_bytes: u64,
    payload: RefCell<Payload>,
}

impl<T: Target> Files<T> {
    /// Creates the files in an empty file system.
    ///
    /// # Errors
    /// The target's.
    pub(super) fn new(
        target: T,
        counts: fn(&T) -> Option<Counts>,
        (names, file_bytes): (usize, u64),
    ) -> Result<Self> {
        const PART: usize = 64 << 10;
        let paths = Paths::new(names, BATCH.min(names));
        target.make_directory(DIRECTORY)?;
        // The order of the operations differs from the order of creation.
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
        Ok(Self { target, counts, paths, file_bytes, payload: RefCell::new(payload) })
    }

    /// Times batches of `operation` for about `slice`.
    ///
    /// # Errors
    /// The target's.
    pub(super) fn run(
        &self,
        operation: Operation,
        slice: Duration,
        round: usize,
    ) -> Result<Sample> {
        let (mut sample, mut turn, start) = (Sample::default(), round, Instant::now());
        while sample.elapsed.is_zero()
            || sample.elapsed < slice && start.elapsed() < slice * SLICES_MAX
        {
            turn += 1;
            self.batch(operation, turn, &mut sample)?;
        }
        Ok(sample)
    }

    /// Adds `act` on each of `all` with the sync after it, the allocations, and the work on the medium.
    fn time<I>(
        &self,
        sample: &mut Sample,
        all: impl ExactSizeIterator<Item = I>,
        act: impl FnMut(I) -> Result<()>,
    ) -> Result<()> {
        let (before, allocated) = ((self.counts)(&self.target), allocations_of_this_thread());
        sample.time(all, act)?;
        sample.allocations += allocations_of_this_thread() - allocated;
        let after = (self.counts)(&self.target);
        if let Some((before, after)) = before.zip(after) {
            let sum = sample.counts.unwrap_or_default();
            sample.counts = Some(sum.plus(&after.since(&before)));
        }
        let start = Instant::now();
        self.target.sync()?;
        sample.sync += start.elapsed();
        Ok(())
    }

    fn batch(&self, operation: Operation, turn: usize, sample: &mut Sample) -> Result<()> {
        let Self { target, paths, .. } = self;
        let (present, mut made) = (paths.present.iter(), paths.made.iter());
        let delete_made = || {
            paths.made.iter().try_for_each(|path| target.delete(path))?;
            target.sync()
        };
        match operation {
            Operation::Create => {
                self.time(sample, made, |path| target.make_file(path))?;
                delete_made()
            }
            Operation::Unlink => {
                made.try_for_each(|path| target.make_file(path))?;
                target.sync()?;
                self.time(sample, paths.made.iter(), |path| target.delete(path))
            }
            Operation::Rename => {
                let pairs = present.zip(&paths.renamed);
                self.time(sample, pairs.clone(), |(from, to)| target.rename(from, to))?;
                self.time(sample, pairs, |(from, to)| target.rename(to, from))
            }
            Operation::Chmod => {
                let mode = if turn.is_multiple_of(2) { 0o600 } else { 0o640 };
                self.time(sample, present, |path| target.set_permissions(path, mode))
            }
            Operation::Stat => self.time(sample, present, |path| target.stat(path).map(drop)),
            Operation::Open => {
                let mut open = Vec::with_capacity(BATCH);
                self.time(sample, present.take(BATCH), |path| {
                    open.push(target.open(path)?);
                    Ok(())
                })?;
                open.into_iter().try_for_each(|file| target.close(file))?;
                target.sync()
            }
            Operation::CreateWhole => {
                let mut payload = self.payload.borrow_mut();
                self.time(sample, made, |path| {
                    let file = target.create(path)?;
                    target.write(&file, 0, payload.next(WHOLE_BYTES))?;
                    target.close(file)
                })?;
                delete_made()
            }
            Operation::Read => {
                let (file, mut room) = (target.open(READ_FILE)?, [0; READ_BYTES]);
                self.time(sample, offsets(self.file_bytes, turn), |offset| {
                    let done = target.read(&file, offset, &mut room)?;
                    ensure!(done == READ_BYTES, "{done} of {READ_BYTES} bytes were read");
                    Ok(())
                })?;
                target.close(file)
            }
        }
    }
}

/// The offsets of a batch of reads, equal for every subject.
pub(super) fn offsets(file_bytes: u64, turn: usize) -> std::vec::IntoIter<u64> {
    let mut rng = SmallRng::seed_from_u64(turn as u64);
    let blocks = file_bytes / READ_BYTES as u64;
    let all = (0..4 * BATCH).map(|_| rng.random_range(0..blocks) * READ_BYTES as u64);
    all.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use everbyte_fs::IndexKind;

    use super::*;
    use crate::index::place::tests::stored;

    #[test]
    fn file_operations_allocate_nothing() {
        use Operation::{Chmod, Create, Open, Read, Stat, Unlink};
        let library = stored(IndexKind::Direct, 256 << 20);
        let files = Files::new(library, |_| None, (100, 1 << 20)).unwrap();
        for operation in [Stat, Open, Read, Create, Unlink, Chmod] {
            // Lists of what an epoch did grow until they have held as much as they ever do.
            let slice = Duration::from_millis(5);
            files.run(operation, slice, 0).unwrap();
            let sample = files.run(operation, slice, 1).unwrap();
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
