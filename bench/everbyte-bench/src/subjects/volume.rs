//! Block volumes in process, all in one pool.
//!
//! Invariants: the pool's file has no name, so it ends with the process. The creation touches its memory. Its blocks suffice
//! for a whole map of every volume and one replacement.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use everbyte_block::{BlockOptions, BlockVolume, Delta, kinds};
use everbyte_device::{BlockDevice, Fua};
use everbyte_media::{Mapped, MediaOptions};
use everbyte_pool::{CheckpointTimer, OpenOptions, Pool};

use super::floor::{medium_counts, nameless_file, touch};
use crate::subject::{self, Counts, Session, Subject};
use crate::workload::{AGAIN_BYTES, Action, Workload};

/// Interval of checkpoints in the background, the server's default.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes of a request of a fill.
const FILL_BYTES: usize = 64 << 10;

/// Contents of a volume: holes, any bytes, or unedited bytes.
const EMPTY: u8 = 0;
const FILLED: u8 = 1;
const UNEDITED: u8 = 2;

/// A pool with its background thread.
pub(crate) struct BenchPool {
    pool: Arc<Pool<Mapped>>,
    _timer: CheckpointTimer,
}

impl BenchPool {
    /// Makes a pool with room for `volumes` volumes of `size_bytes` in a new file in `folder`.
    ///
    /// # Errors
    /// The pool's; the system's.
    pub(crate) fn new(folder: &Path, size_bytes: u64, volumes: u64) -> Result<Self> {
        // Twice the working volume, and the data, maps and logs of the others.
        let len = size_bytes * (volumes + 1) + volumes * (96 << 20) + (64 << 20);
        let file = nameless_file(folder, len)?;
        let medium = Mapped::from_file(&file, &MediaOptions::new().force_flush(true))?;
        touch(&medium, 0, len)?;
        Pool::format(&medium, 16, [7; 16])?;
        let pool = Pool::open(Arc::new(medium), kinds(), &OpenOptions::default())?;
        let pool = Arc::new(pool);
        let timer = pool.start_timer(CHECKPOINT_INTERVAL).context("no checkpoint thread")?;
        Ok(Self { pool, _timer: timer })
    }

    /// Description of the medium.
    pub(crate) fn describe(&self) -> String {
        self.pool.medium().describe().to_string()
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// The pool's.
    pub(crate) fn volume(
        &self,
        name: &str,
        size_bytes: u64,
        delta: Delta,
    ) -> Result<VolumeSubject> {
        let options = BlockOptions { delta, ..BlockOptions::default() };
        let volume = BlockVolume::create(&self.pool, name, size_bytes, &options)?;
        Ok(VolumeSubject { name: name.to_owned(), volume, size_bytes, holds: AtomicU8::new(EMPTY) })
    }
}

/// One volume.
pub(crate) struct VolumeSubject {
    name: String,
    volume: BlockVolume<Mapped>,
    size_bytes: u64,
    holds: AtomicU8,
}

impl VolumeSubject {
    /// The device.
    pub(crate) fn device(&self) -> &BlockVolume<Mapped> {
        &self.volume
    }

    /// The device alone.
    pub(crate) fn into_device(self) -> BlockVolume<Mapped> {
        self.volume
    }
}

impl Subject for VolumeSubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&self, workload: &Workload) -> Result<()> {
        let holds = self.holds.load(Ordering::Relaxed);
        match workload.action {
            Action::First => {
                // First writes need holes, also in later rounds.
                self.volume.discard(0, self.size_bytes, Fua::No)?;
                self.volume.flush()?;
                self.holds.store(EMPTY, Ordering::Relaxed);
            }
            Action::Read | Action::Rewrite | Action::Again if holds == EMPTY => {
                fill(&self.volume, self.size_bytes, FILL_BYTES)?;
                self.holds.store(FILLED, Ordering::Relaxed);
            }
            Action::Edit if holds != UNEDITED => {
                fill(&self.volume, self.size_bytes, workload.bytes)?;
                self.holds.store(UNEDITED, Ordering::Relaxed);
            }
            Action::Read | Action::Edit => {}
            Action::Rewrite | Action::Again => self.holds.store(FILLED, Ordering::Relaxed),
        }
        self.volume.flush()?;
        // These writes follow the flush: the next ones meet blocks of the same epoch.
        if workload.action == Action::Again {
            fill(&self.volume, self.size_bytes.min(AGAIN_BYTES), FILL_BYTES)?;
        }
        Ok(())
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(&self.volume))
    }

    fn counts(&self) -> Option<Counts> {
        Some(medium_counts(&**self.volume.pool().medium(), self.volume.volume().log_bytes()))
    }
}

/// Writes the unedited bytes to a whole device, in requests of `bytes`.
///
/// # Errors
/// The device's.
pub(crate) fn fill(mut device: &dyn BlockDevice, size_bytes: u64, bytes: usize) -> Result<()> {
    subject::fill(&mut device, size_bytes, bytes)
}
