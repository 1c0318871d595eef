//! The library from the view of an embedding program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod block;
mod cache;
mod errors;
mod exports;
mod files;
mod maintenance;
mod readme;

use std::path::PathBuf;

use everbyte::Pool;

const POOL_BYTES: u64 = 32 << 20;

/// A folder for one test, and the path of a pool in it.
struct Place {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        Self::over(tempfile::tempdir().unwrap())
    }

    /// In DRAM, where a flush costs nothing.
    fn in_memory() -> Self {
        Self::over(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn over(folder: tempfile::TempDir) -> Self {
        let path = folder.path().join("pool");
        Self { folder, path }
    }

    /// A new pool.
    fn with_pool() -> (Self, Pool) {
        let place = Self::new();
        let pool = Pool::create(&place.path, POOL_BYTES).unwrap();
        (place, pool)
    }

    /// A new file of so many bytes of ones.
    fn file(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, vec![1; bytes]).unwrap();
        path
    }

    /// Opens the pool after a clean close.
    fn reopened(&self) -> Pool {
        let pool = Pool::open(&self.path).unwrap();
        assert!(pool.recovery().was_clean, "{:?}", pool.recovery());
        pool
    }
}

fn is_a_handle<T: Send + Sync + Clone + 'static>() {}

#[test]
fn handles_go_to_any_thread() {
    is_a_handle::<Pool>();
    is_a_handle::<everbyte::BlockVolume>();
    is_a_handle::<everbyte::CacheVolume>();
    is_a_handle::<everbyte::FileSystem>();
    fn is_an_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_an_error::<everbyte::Error>();
}
