//! A pool in a file, with a swap volume to lend from.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{OpenOptions, Pool};
use everbyte_swap_volume::{Lender, RUN_BYTES, SwapOptions, SwapVolume, kinds};

pub(crate) const POOL_BYTES: u64 = 8 * RUN_BYTES;
pub(crate) const RUNS: u64 = 4;

/// Held by a test while it starts a process, and while it relies on the immediate end of locks: a process
/// has copies of all descriptors until it executes its program.
static FORK_LOCK: Mutex<()> = Mutex::new(());

/// Keeps the tests of this process from starting others, as long as the result lives.
pub(crate) fn block_forks() -> MutexGuard<'static, ()> {
    FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops a holder of locks in this process. Afterwards its locks are free.
pub(crate) fn end<T>(held: T) {
    // Under this lock, every process started earlier executes its program and has closed its copies.
    let _no_copies = block_forks();
    drop(held);
}

/// A pool in a file, with a swap volume.
pub(crate) struct TestPool {
    pub(crate) file: tempfile::NamedTempFile,
}

impl TestPool {
    pub(crate) fn new(wipes: bool) -> Self {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(POOL_BYTES).unwrap();
        let test_pool = Self { file };
        Pool::format(&test_pool.medium(), 2, [1; 16]).unwrap();
        let pool = test_pool.pool();
        SwapVolume::create(&pool, "s", RUNS * RUN_BYTES, SwapOptions { wipes }).unwrap();
        pool.close().unwrap();
        test_pool
    }

    pub(crate) fn medium(&self) -> Mapped {
        Mapped::open(self.file.path(), &MediaOptions::new()).unwrap()
    }

    pub(crate) fn pool(&self) -> Arc<Pool<Mapped>> {
        let pool = Pool::open(Arc::new(self.medium()), kinds(), &OpenOptions::default());
        Arc::new(pool.unwrap())
    }

    /// Starts the lending part of a server.
    pub(crate) fn lender(&self) -> Lender {
        Lender::new(SwapVolume::open(&self.pool(), "s").unwrap()).unwrap()
    }
}

/// First bytes of the runs in these ranges.
pub(crate) fn runs_of(ranges: &[Range<u64>]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|bytes| (bytes.start..bytes.end).step_by(2 << 20)).collect()
}
