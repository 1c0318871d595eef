//! The runs of a swap volume, and how their number changes.
//!
//! Invariants: a run belongs to the volume before a table with the run becomes reachable. It belongs to
//! the volume until after a table without the run is durable. A crash therefore leaves each run with
//! one owner. If the durable table is unknown, the volume keeps the runs of both tables until the pool
//! is opened again.

use std::collections::HashSet;
use std::sync::Arc;

use everbyte_media::{BLOCK, BlockNo, Medium};
use everbyte_plant::planted;
use everbyte_pool::{
    BlockRun, NewRoot, Pool, PoolError, Volume, VolumeHandle, VolumeSpec, WriteError,
};
use parking_lot::Mutex;

use crate::error::SwapError;
use crate::plant::Bug;
use crate::table::{RUN_BLOCKS, RUN_BYTES, SWAP, Table};

/// Settings of a new swap volume.
#[derive(Clone, Copy, Default, Debug)]
pub struct SwapOptions {
    /// No run is lent or freed before it is wiped.
    pub wipes: bool,
}

/// A swap volume.
pub struct SwapVolume<M: Medium> {
    pool: Arc<Pool<M>>,
    handle: VolumeHandle<M>,
    state: Mutex<State>,
}

struct State {
    table: Table,
    /// Blocks of the table.
    at: BlockRun,
    /// True if the outcome of a table replacement is unknown.
    is_unknown: bool,
}

impl<M: Medium> SwapVolume<M> {
    /// Creates a swap volume and allocates its space immediately.
    ///
    /// # Errors
    /// The size is not a positive multiple of 2 MiB; the pool has too few free runs; as
    /// [`Pool::create_volume`].
    pub fn create(
        pool: &Arc<Pool<M>>,
        name: &str,
        size_bytes: u64,
        options: SwapOptions,
    ) -> Result<Self, SwapError> {
        let runs = take_runs(pool, runs_of(size_bytes)?)?;
        let table = Table { runs, wipes: options.wipes };
        let spec = VolumeSpec::new(name, SWAP, size_bytes);
        let volume = match pool.create_volume(&spec, NewRoot::Blocks(&table.image())) {
            Ok(volume) => volume,
            Err(error) => {
                // The volume was not created, so its runs are free again.
                return_runs(pool, &table.runs);
                return Err(error.into());
            }
        };
        table.runs.iter().for_each(|&start| volume.adopt_run(run_at(start)));
        // A volume can be opened only once at a time.
        drop(volume);
        Self::open(pool, name)
    }

    /// Opens the swap volume `name` of `pool`. It can be opened again once this is dropped.
    ///
    /// # Errors
    /// The volume does not exist, is of another kind, is already open, or cannot be read.
    pub fn open(pool: &Arc<Pool<M>>, name: &str) -> Result<Self, SwapError> {
        let handle = pool.open_volume(name, SWAP)?;
        let volume = handle.volume();
        let (medium, data) = (volume.medium(), volume.data_area());
        let (table, at) = Table::load(medium, data, volume.root_at(), &mut |_, _| Ok(()))?;
        let size_bytes = table.runs.len() as u64 * RUN_BYTES;
        if volume.size_bytes()? != size_bytes && volume.read_only_reason().is_none() {
            // A crash came between the two words of a change.
            volume.correct_size(size_bytes)?;
        }
        let state = Mutex::new(State { table, at, is_unknown: false });
        Ok(Self { pool: Arc::clone(pool), handle, state })
    }

    /// The pool's view of the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        self.handle.volume()
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool<M>> {
        &self.pool
    }

    /// Returns true if no run is lent or freed before it is wiped.
    #[must_use]
    pub fn wipes(&self) -> bool {
        self.state.lock().table.wipes
    }

    /// First blocks of its runs, in their order.
    #[must_use]
    pub fn runs(&self) -> Vec<BlockNo> {
        self.state.lock().table.runs.clone()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.state.lock().table.runs.len() as u64 * RUN_BYTES
    }

    /// Grows the volume to `size_bytes`, durably, and returns the new runs.
    ///
    /// # Errors
    /// The size is not a multiple of 2 MiB, or is less than the present size; the pool has too few free
    /// runs; an error of the medium. The volume is then unchanged, as far as the outcome is known.
    pub fn grow(&self, size_bytes: u64) -> Result<Vec<BlockNo>, SwapError> {
        let state = &mut *self.state.lock();
        let wanted = runs_of(size_bytes)?;
        let more = wanted.checked_sub(state.table.runs.len() as u64);
        let fresh = take_runs(&self.pool, more.ok_or(SwapError::Size { bytes: size_bytes })?)?;
        let runs = [&state.table.runs[..], &fresh].concat();
        if let Err(error) = self.replace(state, runs) {
            // If the outcome is unknown, the durable table may name the new runs: they stay
            // allocated until the pool is opened again.
            if !state.is_unknown {
                return_runs(&self.pool, &fresh);
            }
            return Err(error);
        }
        fresh.iter().for_each(|&start| self.volume().adopt_run(run_at(start)));
        Ok(fresh)
    }

    /// Removes the runs `gone` from the volume, durably, and frees them. Requires: the runs are not in use.
    ///
    /// # Errors
    /// The pool is full; an error of the medium. The volume is then unchanged, as far as the outcome is known.
    pub fn remove(&self, gone: &[BlockNo]) -> Result<(), SwapError> {
        let state = &mut *self.state.lock();
        let set: HashSet<BlockNo> = gone.iter().copied().collect();
        let kept = state.table.runs.iter().copied().filter(|run| !set.contains(run)).collect();
        self.replace(state, kept)?;
        // After the new table is durable: a crash must not leave a free run in a table.
        gone.iter().for_each(|&start| self.volume().disown_run(run_at(start)));
        return_runs(&self.pool, gone);
        Ok(())
    }

    /// Replaces the volume's table with a table of `runs`.
    fn replace(&self, state: &mut State, runs: Vec<BlockNo>) -> Result<(), SwapError> {
        if state.is_unknown {
            return Err(SwapError::Unknown);
        }
        let table = Table { runs, wipes: state.table.wipes };
        let count = table.runs.len() as u64;
        let at = match planted(Bug::TableInPlace) {
            true => state.at,
            false => self.pool.take_run("the volume's table", Table::blocks(count))?,
        };
        match self.volume().replace_root(at, &table.image(), count * RUN_BYTES) {
            Ok(()) => {}
            Err(error @ WriteError::Media(_)) => {
                // Either root word may be durable, so the runs and blocks of both tables stay
                // allocated.
                state.is_unknown = true;
                return Err(error.into());
            }
            Err(error) => {
                // The root word is unchanged, and no durable word names the new table.
                self.pool.return_run(at);
                return Err(error.into());
            }
        }
        // The new root word is durable, so the old table may be freed.
        self.volume().adopt_run(at);
        self.volume().disown_run(state.at);
        self.pool.return_run(state.at);
        (state.table, state.at) = (table, at);
        Ok(())
    }

    /// Overwrites a run with zeroes, durably.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn wipe(&self, start: BlockNo) -> Result<(), SwapError> {
        let medium = self.volume().medium();
        run_at(start).blocks().for_each(|block| medium.stream(block.offset(), &[0; BLOCK]));
        // The caller lends or frees the run immediately afterwards, so the zeroes must be durable
        // now.
        medium.fence().map_err(|error| SwapError::Table(error.into()))
    }
}

/// The run of 2 MiB that begins with `start`.
fn run_at(start: BlockNo) -> BlockRun {
    BlockRun { start, len: RUN_BLOCKS }
}

/// Runs of a volume of that size.
fn runs_of(size_bytes: u64) -> Result<u64, SwapError> {
    let is_size = size_bytes > 0 && size_bytes.is_multiple_of(RUN_BYTES);
    is_size.then_some(size_bytes / RUN_BYTES).ok_or(SwapError::Size { bytes: size_bytes })
}

/// Allocates `count` runs from the pool, or fails without an allocation.
fn take_runs<M: Medium>(pool: &Pool<M>, count: u64) -> Result<Vec<BlockNo>, SwapError> {
    let mut runs = Vec::new();
    for _ in 0..count {
        match pool.take_aligned_run("the volume's runs of 2 MiB", RUN_BLOCKS) {
            Ok(run) => runs.push(run.start),
            Err(error) => {
                return_runs(pool, &runs);
                let free_runs = runs.len() as u64;
                return Err(match error {
                    PoolError::NoSpace { .. } => SwapError::NoRoom { runs: count, free_runs },
                    error => error.into(),
                });
            }
        }
    }
    Ok(runs)
}

fn return_runs<M: Medium>(pool: &Pool<M>, runs: &[BlockNo]) {
    runs.iter().for_each(|&start| pool.return_run(run_at(start)));
}
