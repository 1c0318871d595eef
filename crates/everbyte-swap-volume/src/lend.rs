//! Lending: the assignment of runs to programs, and its duration.
//!
//! A borrower copies pages in and out through its mapping. It has its runs while the locks of their
//! bytes live. The locks belong to an open file description made for this borrower alone: the
//! lender locks it first, then passes it on, then closes its copy. The program's mapping keeps the
//! description open. A program therefore reports nothing when it ends. A restarted server finds its
//! predecessor's loans in the locks.
//!
//! Invariants:
//! - The lender lends a run only under a lock taken for this run, and so never twice.
//! - The lender queries the lock of each run not known to be free before it lends, wipes or removes
//!   the run. It does this under the one mutex: no two callers find the same run free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use everbyte_media::{BLOCK_U64, BlockNo, Mapped};
use everbyte_plant::planted;
use everbyte_pool::{is_range_locked, lock_range};
use parking_lot::Mutex;

use crate::error::{Borrowers, SwapError};
use crate::lease::Lease;
use crate::plant::Bug;
use crate::scratch::ScratchDevice;
use crate::table::RUN_BYTES;
use crate::volume::SwapVolume;

/// Lends the runs of one swap volume.
pub struct Lender {
    volume: SwapVolume<Mapped>,
    /// A file description without locks, to query the locks of other descriptions. `None` if the pool
    /// lies in memory private to this process.
    file: Option<File>,
    lending: Mutex<Lending>,
}

struct Lending {
    /// Free runs, the longest unused first. This order spreads wear.
    free: VecDeque<FreeRun>,
    /// Runs possibly in use, each with its borrower's process if known.
    lent: BTreeMap<BlockNo, Option<u32>>,
    /// The volume is about to be deleted.
    is_closed: bool,
}

#[derive(Clone, Copy)]
struct FreeRun {
    start: BlockNo,
    is_wiped: bool,
}

/// The lent share of a swap volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LenderStatus {
    /// The volume's runs of 2 MiB.
    pub runs: u64,
    /// Runs in use by programs.
    pub lent: u64,
    /// The borrowers' processes, for the loans of this lender alone.
    pub pids: Vec<u32>,
}

impl Lender {
    /// Lends the runs of `volume`. Each run counts as used until the lender has queried its lock.
    ///
    /// # Errors
    /// The pool's file cannot be opened again.
    pub fn new(volume: SwapVolume<Mapped>) -> Result<Self, SwapError> {
        let file = reopen(volume.volume().medium())?;
        let lent = volume.runs().into_iter().map(|run| (run, None)).collect();
        let lending = Mutex::new(Lending { free: VecDeque::new(), lent, is_closed: false });
        Ok(Self { volume, file, lending })
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &SwapVolume<Mapped> {
        &self.volume
    }

    /// Lends up to `runs` runs, at least one, to process `pid`.
    ///
    /// # Errors
    /// `Full` if no run is free; the volume is being deleted; other processes cannot map the pool's
    /// memory; an error of the system.
    pub fn lend(&self, runs: u64, pid: u32) -> Result<Lease, SwapError> {
        self.lend_as(runs, pid, self.volume.wipes())
    }

    /// Lends up to `runs` runs. If `wipes` is set, the borrower sees zeroes.
    fn lend_as(&self, runs: u64, pid: u32, wipes: bool) -> Result<Lease, SwapError> {
        let lending = &mut *self.lending.lock();
        if lending.is_closed {
            return Err(self.full(lending));
        }
        // The kernel is asked only if free runs are short: each used run costs a system call.
        if (lending.free.len() as u64) < runs {
            self.take_back(lending)?;
        }
        // A new file description for each lease: its locks end with the last mapping of the program
        // (L1).
        let file = reopen(self.volume.volume().medium())?.ok_or(SwapError::NotShared)?;
        let mut got = BTreeSet::new();
        while (got.len() as u64) < runs.max(1)
            && let Some(run) = lending.free.pop_front()
        {
            // The run counts as used until the lender is certain to be able to lend it.
            lending.lent.insert(run.start, None);
            if !lock_range(&file, &bytes_of(run.start)).map_err(io("lock the pool's file"))? {
                // Another process has the lock, so the run stays counted as used (L2).
                continue;
            }
            // Under the lock, and before the descriptor is passed on (L4).
            if wipes && !run.is_wiped {
                self.volume.wipe(run.start)?;
            }
            lending.lent.insert(run.start, Some(pid));
            got.insert(run.start);
        }
        if got.is_empty() {
            return Err(self.full(lending));
        }
        Ok(Lease { file, ranges: ranges_of(&got) })
    }

    /// Lends all runs to this process as a block device. The device hides the runs' earlier contents, so the
    /// lender skips the slow wipe.
    ///
    /// # Errors
    /// `Lent` if any run is in use; as [`Lender::lend`].
    pub fn scratch(&self) -> Result<ScratchDevice, SwapError> {
        let (pid, runs) = (std::process::id(), self.volume.size_bytes() / RUN_BYTES);
        let lease = self.lend_as(runs, pid, false)?;
        let size_bytes = lease.ranges.iter().map(|range| range.end - range.start).sum();
        if size_bytes < runs * RUN_BYTES {
            // Dropped before the query: the runs of this failed lease must not count as lent.
            drop(lease);
            let lending = &mut *self.lending.lock();
            self.take_back(lending)?;
            return Err(self.lent(lending));
        }
        let medium = Arc::clone(self.volume.pool().medium());
        Ok(ScratchDevice::new(medium, lease, size_bytes))
    }

    /// Returns the present loans.
    ///
    /// # Errors
    /// An error of the system.
    pub fn status(&self) -> Result<LenderStatus, SwapError> {
        let lending = &mut *self.lending.lock();
        self.take_back(lending)?;
        let (lent, pids) = (lending.lent.len() as u64, pids_of(lending));
        Ok(LenderStatus { runs: lent + lending.free.len() as u64, lent, pids })
    }

    /// Resizes the volume to `size_bytes`, durably. It can grow while in use, and shrink by its free runs.
    ///
    /// # Errors
    /// As [`SwapVolume::grow`]; `Lent` if too few runs are free.
    pub fn resize(&self, size_bytes: u64) -> Result<(), SwapError> {
        let lending = &mut *self.lending.lock();
        let has = self.volume.size_bytes();
        if size_bytes >= has {
            // Growth needs no query of locks, because the new runs have no borrower.
            let fresh = self.volume.grow(size_bytes)?;
            let fresh = fresh.into_iter().map(|start| FreeRun { start, is_wiped: false });
            lending.free.extend(fresh);
            return Ok(());
        }
        if size_bytes == 0 || !size_bytes.is_multiple_of(RUN_BYTES) {
            return Err(SwapError::Size { bytes: size_bytes });
        }
        self.take_back(lending)?;
        let surplus = usize::try_from((has - size_bytes) / RUN_BYTES).unwrap_or(usize::MAX);
        if lending.free.len() < surplus {
            return Err(self.lent(lending));
        }
        // Before the runs leave the volume: the pool may give them to any owner afterwards (L4).
        self.wipe_first(lending, surplus)?;
        let gone: Vec<BlockNo> = lending.free.iter().take(surplus).map(|run| run.start).collect();
        self.volume.remove(&gone)?;
        // After the durable removal: on an error the volume keeps the runs and can lend them.
        lending.free.drain(..surplus);
        Ok(())
    }

    /// Ends lending before the deletion of the volume. Wipes the volume if its settings say so.
    ///
    /// # Errors
    /// `Lent` if any run is in use: lending then continues. An error of the medium.
    pub fn close(&self) -> Result<(), SwapError> {
        let lending = &mut *self.lending.lock();
        self.take_back(lending)?;
        if !lending.lent.is_empty() {
            return Err(self.lent(lending));
        }
        self.wipe_first(lending, lending.free.len())?;
        // Last, because lending continues after an error.
        lending.is_closed = true;
        Ok(())
    }

    /// Lends again after a [`close`](Self::close) without a deletion.
    pub fn reopen(&self) {
        self.lending.lock().is_closed = false;
    }

    /// Wipes the first free runs if the volume's settings say so.
    fn wipe_first(&self, lending: &mut Lending, count: usize) -> Result<(), SwapError> {
        if !self.volume.wipes() {
            return Ok(());
        }
        for run in lending.free.iter_mut().take(count).filter(|run| !run.is_wiped) {
            self.volume.wipe(run.start)?;
            run.is_wiped = true;
        }
        Ok(())
    }

    /// Detects the runs released by their borrowers.
    fn take_back(&self, lending: &mut Lending) -> Result<(), SwapError> {
        let mut ended = Vec::new();
        for &start in lending.lent.keys() {
            let bytes = bytes_of(start);
            let is_locked = match &self.file {
                Some(file) => is_range_locked(file, &bytes),
                // Private memory cannot be lent, so it has no borrower.
                None => Ok(false),
            };
            let is_locked = is_locked.map_err(io("look at the locks of the pool's file"))?;
            if !is_locked || planted(Bug::LentWithoutAsking) {
                ended.push(start);
            }
        }
        for start in ended {
            lending.lent.remove(&start);
            // The borrower may have written to the run, so an earlier wipe no longer counts.
            lending.free.push_back(FreeRun { start, is_wiped: false });
        }
        Ok(())
    }

    fn full(&self, lending: &Lending) -> SwapError {
        let runs = (lending.free.len() + lending.lent.len()) as u64;
        SwapError::Full { volume: self.name(), runs, borrowers: borrowers_of(lending) }
    }

    fn lent(&self, lending: &Lending) -> SwapError {
        let lent = lending.lent.len() as u64;
        SwapError::Lent { volume: self.name(), lent, borrowers: borrowers_of(lending) }
    }

    fn name(&self) -> String {
        self.volume.volume().name().to_owned()
    }
}

/// The processes with runs, each once.
fn pids_of(lending: &Lending) -> Vec<u32> {
    let pids: BTreeSet<u32> = lending.lent.values().copied().flatten().collect();
    pids.into_iter().collect()
}

fn borrowers_of(lending: &Lending) -> Borrowers {
    let runs_of_others = lending.lent.values().filter(|pid| pid.is_none()).count() as u64;
    Borrowers { pids: pids_of(lending), runs_of_others }
}

/// The bytes of a run in the pool's file.
fn bytes_of(start: BlockNo) -> Range<u64> {
    let first = start.0 * BLOCK_U64;
    first..first + RUN_BYTES
}

/// The bytes of these runs, neighbours as one range.
fn ranges_of(runs: &BTreeSet<BlockNo>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for bytes in runs.iter().map(|&run| bytes_of(run)) {
        match ranges.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => ranges.push(bytes),
        }
    }
    ranges
}

fn reopen(medium: &Mapped) -> Result<Option<File>, SwapError> {
    medium.reopen().map_err(io("open the pool's file again"))
}

fn io(action: &'static str) -> impl FnOnce(std::io::Error) -> SwapError {
    move |source| SwapError::Io { action, source }
}
