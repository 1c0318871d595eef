//! The pool: one medium, its superblock, its volumes, its free blocks.
//!
//! Owns opening and closing, and the list of open volumes. The order of opening: superblock, every
//! volume's recovery, then the allocator, then the durable loss of the clean mark, and only then
//! the first allocation. Knows volumes' maps only through [`Kinds`].

mod deletion;
mod descriptors;
mod media_errors;
mod open;
mod timer;
mod volumes;

pub use deletion::DeletedVolume;
pub(crate) use descriptors::read_descriptor;
pub use open::OpenOptions;
pub(crate) use open::{load_saved, read_superblock_copy};
pub use timer::CheckpointTimer;
pub use volumes::{LANES_DEFAULT, NewRoot, THRESHOLD_LINES_DEFAULT, VolumeSpec};

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use everbyte_media::{BLOCK_U64, BlockNo, MediaError, Medium};

use crate::alloc::{Allocator, BlockRun};
use crate::format::{Corrupt, Superblock, VolumeKind};
use crate::kind::{Kinds, VolumeView};
use crate::persist::InFlight;
use crate::shared::{Shared, write_superblock};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::volume::{Volume, VolumeHandle, WriteError};

/// Smallest pool with [`VOLUMES_MAX_LARGE`] volume headers by default.
const LARGE_POOL_BYTES: u64 = 1 << 30;
/// Default number of volume headers in a new pool of 1 GiB or more: a header for each of many clones, in
/// 4 MiB.
const VOLUMES_MAX_LARGE: u64 = 1024;
/// Default number of volume headers in a smaller pool.
const VOLUMES_MAX_SMALL: u64 = 64;

/// Returns the default number of volume headers in a new pool of `len_bytes`.
#[must_use]
pub fn volumes_max_default(len_bytes: u64) -> u64 {
    if len_bytes < LARGE_POOL_BYTES { VOLUMES_MAX_SMALL } else { VOLUMES_MAX_LARGE }
}

/// Errors of operations on a pool.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// Something on the medium cannot be right.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A volume cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The pool must not be written.
    #[error("the pool is read-only: {0}")]
    ReadOnly(String),
    /// No volume has this name.
    #[error("there is no volume named {name:?}")]
    NoSuchVolume {
        /// The name asked for.
        name: String,
    },
    /// A volume has this name already.
    #[error("a volume named {name:?} exists already")]
    VolumeExists {
        /// The name asked for.
        name: String,
    },
    /// Unflushed writes to a volume could not be made durable.
    #[error("writes to volume {volume} since its last flush may be lost: {source}")]
    NotFlushed {
        /// The volume's name.
        volume: String,
        /// The error of the checkpoint.
        source: WriteError,
    },
    /// The volume is open already.
    #[error("volume {name:?} is in use already")]
    InUse {
        /// The name asked for.
        name: String,
    },
    /// The volume is damaged.
    #[error("volume {volume} is damaged: {reason}")]
    Damaged {
        /// The volume's name.
        volume: String,
        /// The damage.
        reason: String,
    },
    /// An argument is out of range.
    #[error("{0}")]
    Invalid(String),
    /// The pool is too full.
    #[error(
        "no room for {what}: {needed_blocks} adjacent blocks are needed, {free_blocks} blocks are free; grow the pool, trim or delete volumes"
    )]
    NoSpace {
        /// Purpose of the blocks.
        what: &'static str,
        /// Number of needed blocks.
        needed_blocks: u64,
        /// Number of free blocks.
        free_blocks: u64,
    },
}

/// An open pool: a medium with its superblock, its volumes and its free blocks.
///
/// It is recovered when [`Pool::open`] returns. Without a [`CheckpointTimer`](crate::CheckpointTimer), only a
/// flush, a durable write, or a full log makes data durable. A drop without [`Pool::close`] is as safe as a
/// crash, and the next opening recovers from it as from a crash.
pub struct Pool<M: Medium> {
    shared: Arc<Shared<M>>,
    kinds: Kinds<M>,
    volumes: RwLock<BTreeMap<String, Arc<Volume<M>>>>,
    /// Held while volumes are created, resized or deleted, the pool grown, checked or closed.
    admin: Mutex<()>,
    recovered: RecoverySummary,
    /// True if the medium is a private copy: the damage repaired by opening is still in the pool.
    on_copy: bool,
    /// Outcome of closing, once the pool was closed.
    closed: OnceLock<Result<(), PoolError>>,
}

/// Work done by opening.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoverySummary {
    /// True if the pool had been shut down cleanly.
    pub was_clean: bool,
    /// Undo records put back, over all volumes.
    pub records_undone: u64,
    /// Repaired or unusable structures, one description each.
    pub remarks: Vec<String>,
    /// Damaged copies of structures stored twice.
    pub(crate) damaged_copies: Vec<Corrupt>,
}

impl RecoverySummary {
    /// Notes a damaged copy of a structure with another, whole copy.
    fn note_copy(&mut self, bad: Corrupt) {
        self.remarks.push(format!("{bad}; the other copy stands for it"));
        self.damaged_copies.push(bad);
    }
}

/// A pool in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolInfo {
    /// Identity, 32 hexadecimal digits.
    pub uid: String,
    /// Bytes of the whole pool.
    pub size_bytes: u64,
    /// Bytes that volumes may use.
    pub data_bytes: u64,
    /// Free bytes, deferred frees included: a volume in need of them gets them.
    pub free_bytes: u64,
    /// True if less than a tenth is free.
    pub low_on_space: bool,
    /// Bytes that volumes may grow to: the sum of their sizes.
    pub provisioned_bytes: u64,
    /// Volumes there are.
    pub volumes: usize,
    /// Volumes there can be.
    pub volumes_max: u64,
    /// The persistence domain: `power`, `process` or `nothing`.
    pub survives: String,
    /// The reason if the pool is read-only.
    pub read_only: Option<String>,
    /// Work done by opening.
    pub recovery: RecoverySummary,
}

/// A volume in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Identity within the pool.
    pub uid: u64,
    /// Bytes it promises.
    pub size_bytes: u64,
    /// Bytes of data, maps and the like in use, without the log; `None` if the map cannot be read.
    pub used_bytes: Option<u64>,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Last durable epoch.
    pub completed_epoch: u64,
    /// The reason if the volume is read-only.
    pub read_only: Option<String>,
}

/// Checks that `len_bytes` are enough for a pool with room for `volumes_max` volumes.
///
/// # Errors
/// `Invalid`, if they are not.
pub(crate) fn check_len(len_bytes: u64, volumes_max: u64) -> Result<(), PoolError> {
    // Two superblocks, the headers, and at least one block of data.
    let needed = volumes_max.saturating_add(2 + 1);
    if volumes_max == 0 || len_bytes / BLOCK_U64 < needed {
        return Err(PoolError::Invalid(format!(
            "a pool for {volumes_max} volumes needs at least {} bytes; this has {len_bytes}",
            needed.saturating_mul(BLOCK_U64)
        )));
    }
    Ok(())
}

impl<M: Medium> Pool<M> {
    /// Makes `medium` an empty pool with room for `volumes_max` volumes. Its old contents are lost.
    ///
    /// # Errors
    /// The medium is too small or fails.
    pub fn format(medium: &M, volumes_max: u64, pool_uid: [u8; 16]) -> Result<(), PoolError> {
        check_len(medium.len(), volumes_max)?;
        let sb = Superblock::new(medium.len() / BLOCK_U64, volumes_max, pool_uid);
        let zeroes = vec![0; everbyte_media::BLOCK];
        for block in 1..sb.data_start {
            medium.stream(BlockNo(block).offset(), &zeroes);
        }
        // One fence for all streams: no superblock may lead to headers of an older pool.
        InFlight::stream(medium, BlockNo(0).offset(), &zeroes).fence(medium)?;
        write_superblock(medium, &sb)?;
        Ok(())
    }

    /// The medium.
    #[must_use]
    pub fn medium(&self) -> &Arc<M> {
        &self.shared.medium
    }

    /// Returns the reason if the pool is read-only.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<&str> {
        self.shared.read_only.as_deref()
    }

    /// Returns the work done by opening.
    #[must_use]
    pub fn recovery(&self) -> &RecoverySummary {
        &self.recovered
    }

    /// The free blocks.
    #[must_use]
    pub fn allocator(&self) -> &Allocator {
        &self.shared.alloc
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// `NoSuchVolume`.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume<M>>, PoolError> {
        let found = self.volumes.read().get(name).cloned();
        found.ok_or_else(|| PoolError::NoSuchVolume { name: name.to_owned() })
    }

    /// Opens the volume of this name for `kind`, the volume's kind. A volume has one handle at a time.
    ///
    /// # Errors
    /// `NoSuchVolume`; it is of another kind; `InUse`.
    pub fn open_volume(&self, name: &str, kind: VolumeKind) -> Result<VolumeHandle<M>, PoolError> {
        let volume = self.volume(name)?;
        if volume.kind() != kind {
            return Err(PoolError::Invalid(format!(
                "volume {name} is a {} volume, not a {} one",
                self.kinds.name_of(volume.kind()),
                self.kinds.name_of(kind)
            )));
        }
        let name = name.to_owned();
        VolumeHandle::take(volume).ok_or(PoolError::InUse { name })
    }

    /// Every open volume, by name.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Volume<M>>> {
        self.volumes.read().values().cloned().collect()
    }

    /// The pool in figures.
    #[must_use]
    pub fn info(&self) -> PoolInfo {
        // A copy: the counts below wait for writers, and must not keep this lock.
        let sb = *self.shared.superblock.lock();
        let volumes = self.volumes();
        let reclaimable: u64 = volumes.iter().map(|v| v.reclaimable_blocks()).sum();
        PoolInfo {
            uid: sb.pool_uid.iter().map(|b| format!("{b:02x}")).collect(),
            size_bytes: sb.size_blocks * BLOCK_U64,
            data_bytes: (sb.size_blocks - sb.data_start) * BLOCK_U64,
            free_bytes: (self.shared.alloc.free_blocks() + reclaimable) * BLOCK_U64,
            low_on_space: self.shared.alloc.is_low(),
            provisioned_bytes: volumes.iter().filter_map(|v| v.size_bytes().ok()).sum(),
            volumes: volumes.len(),
            volumes_max: sb.table_slots,
            survives: self.shared.medium.persistence_domain().to_string(),
            read_only: self.shared.read_only.clone(),
            recovery: self.recovered.clone(),
        }
    }

    /// One volume in figures. Walks the map, as a snapshot, only if the count of used blocks is unknown: a
    /// program without counts shut the pool down, or the map could not be read.
    #[must_use]
    pub fn volume_info(&self, volume: &Volume<M>) -> VolumeInfo {
        let used = volume.used_blocks().or_else(|| self.count_used_blocks(volume).ok());
        let log_blocks = volume.descriptor().log_blocks();
        VolumeInfo {
            name: volume.name().to_owned(),
            kind: self.kinds.name_of(volume.kind()),
            uid: volume.descriptor().uid,
            size_bytes: volume.size_bytes().unwrap_or(0),
            used_bytes: used.map(|blocks| blocks * BLOCK_U64),
            log_bytes: log_blocks * BLOCK_U64,
            completed_epoch: volume.completed_epoch(),
            read_only: volume.read_only_reason().map(str::to_owned),
        }
    }

    /// Walks the volume's map for its blocks, without its log.
    fn count_used_blocks(&self, volume: &Volume<M>) -> Result<u64, Corrupt> {
        let mut blocks = 0;
        self.visit(volume, &mut |extent| {
            blocks += extent.run.len;
            Ok(())
        })?;
        // `visit` claims the log as well.
        Ok(blocks - volume.descriptor().log_blocks())
    }

    /// Problems of the volume beyond its blocks.
    pub(crate) fn judge(&self, volume: &Volume<M>) -> Vec<String> {
        let Some(kind) = self.kinds.get(volume.kind()) else { return Vec::new() };
        let judged = self.view(volume).and_then(|view| kind.judge(self.medium(), &view));
        let problems = judged.unwrap_or_else(|corrupt| vec![corrupt.to_string()]);
        let named = |problem: String| format!("volume {}: {problem}", volume.name());
        problems.into_iter().map(named).collect()
    }

    /// Returns true if this program knows the volume's kind, and so its used blocks.
    pub(crate) fn knows_kind(&self, volume: &Volume<M>) -> bool {
        self.kinds.get(volume.kind()).is_some()
    }

    fn view<'v>(&self, volume: &'v Volume<M>) -> Result<VolumeView<'v>, Corrupt> {
        let (descriptor, size_bytes) = (volume.descriptor(), volume.size_bytes()?);
        let bounds = self.shared.data_bounds();
        Ok(VolumeView::new(descriptor, volume.header_at, size_bytes, bounds))
    }

    /// Extends the pool by the growth of the medium since the pool was made or last extended. Returns the new
    /// size in bytes.
    ///
    /// # Errors
    /// The medium's; the pool is read-only; or it has not grown.
    pub fn extend(&self) -> Result<u64, PoolError> {
        let _admin = self.admin.lock();
        self.writable()?;
        let old = self.shared.superblock.lock().size_blocks;
        // The tables in DRAM have a fixed capacity.
        let new = (self.shared.medium.len() / BLOCK_U64).min(self.shared.alloc.capacity());
        if new <= old {
            return Err(PoolError::Invalid(format!(
                "the pool has {} bytes already; it can only grow, to at most {} while it is open",
                old * BLOCK_U64,
                self.shared.alloc.capacity() * BLOCK_U64
            )));
        }
        // Durable before the allocator has the blocks: no map may name one beyond the superblock's
        // size.
        self.shared.extend_to(new)?;
        let run = BlockRun { start: BlockNo(old), len: new - old };
        self.shared
            .alloc
            .add(run)
            .map_err(|error| Corrupt::new("free blocks", run.start.offset(), error.to_string()))?;
        Ok(new * BLOCK_U64)
    }

    /// Blocks of volumes, and blocks free for them.
    #[must_use]
    pub fn data_bounds(&self) -> std::ops::Range<u64> {
        self.shared.data_bounds()
    }

    /// Returns the reason if the free blocks are unknown: the blocks of some volume are unknown. Nothing is
    /// then allocated; bytes with a block can still be written.
    #[must_use]
    pub fn space_unknown(&self) -> Option<&str> {
        self.shared.space_unknown.as_deref()
    }

    /// Volume headers unreadable when the pool was opened.
    pub(crate) fn lost_headers(&self) -> &[Corrupt] {
        &self.shared.lost_headers
    }

    /// The same pool, known to be on a private copy of its medium.
    pub(crate) fn on_copy(self) -> Self {
        Self { on_copy: true, ..self }
    }

    /// Damage found by opening and present in the pool now.
    pub(crate) fn damage_when_opened(&self) -> impl Iterator<Item = &Corrupt> {
        let copies = self.on_copy.then_some(&self.recovered.damaged_copies);
        self.lost_headers().iter().chain(copies.into_iter().flatten())
    }

    /// Calls `look` with the superblock, and prevents changes during the call.
    pub(crate) fn with_superblock<R>(&self, look: impl FnOnce(&Superblock) -> R) -> R {
        look(&self.shared.superblock.lock())
    }

    /// The slot with the volume header `block`, if it is one.
    pub(crate) fn slot_of(&self, block: BlockNo) -> Option<u64> {
        let sb = self.shared.superblock.lock();
        (sb.table_start..sb.data_start).contains(&block.0).then(|| block.0 - sb.table_start)
    }

    pub(crate) fn lock_admin(&self) -> MutexGuard<'_, ()> {
        self.admin.lock()
    }

    /// Visits every block run of `volume`.
    pub(crate) fn visit(
        &self,
        volume: &Volume<M>,
        claim: &mut crate::kind::Claim<'_>,
    ) -> Result<(), Corrupt> {
        self.kinds.visit(&self.shared.medium, &self.view(volume)?, claim)
    }

    /// Returns true if the pool is read-only because two volumes own a block.
    pub(crate) fn has_clash(&self) -> bool {
        self.shared.has_clash
    }

    fn check_not_closed(&self) -> Result<(), PoolError> {
        if self.closed.get().is_some() {
            return Err(PoolError::ReadOnly("it has been closed".into()));
        }
        Ok(())
    }

    fn writable(&self) -> Result<(), PoolError> {
        self.check_not_closed()?;
        match &self.shared.read_only {
            Some(reason) => Err(PoolError::ReadOnly(reason.clone())),
            None => Ok(self.shared.medium.check()?),
        }
    }

    /// Shuts down cleanly: checkpoints every volume, saves the allocator's state, and durably marks the pool
    /// as clean. The caller has stopped all users of the volumes; later writes fail. If the checkpoint of a
    /// volume fails, the others are still checkpointed. A second call returns the same result.
    ///
    /// # Errors
    /// `NotFlushed` for the first volume, by name, with a failed checkpoint, and each such volume is logged;
    /// or the medium's. The next opening then recovers as after a crash.
    pub fn close(&self) -> Result<(), PoolError> {
        let _admin = self.admin.lock();
        self.closed.get_or_init(|| self.shut_down()).clone()
    }

    fn shut_down(&self) -> Result<(), PoolError> {
        let volumes = self.volumes();
        // All volumes first, so no write is accepted after the checkpoint of its volume.
        for volume in &volumes {
            volume.mark_gone();
        }
        // Nothing was written, and the medium must not change.
        if self.shared.read_only.is_some() {
            return Ok(());
        }
        let mut closed = Ok(());
        for volume in volumes.iter().filter(|v| v.opened_read_only().is_none()) {
            if let Err(error) = close_volume(volume) {
                tracing::error!(volume = volume.name(), %error, "the last checkpoint failed");
                let volume = volume.name().to_owned();
                closed = closed.and(Err(PoolError::NotFlushed { volume, source: error }));
            }
        }
        // Without every checkpoint the pool stays marked as in use, and the next opening recovers.
        closed?;
        self.save_allocator()
    }

    /// Writes the free map into free blocks and then marks the pool clean. The map calls those blocks free.
    /// This is true again as soon as it has been loaded.
    fn save_allocator(&self) -> Result<(), PoolError> {
        let alloc = &self.shared.alloc;
        let blocks = self.shared.superblock.lock().size_blocks;
        let words = usize::try_from(blocks.div_ceil(64)).expect("the tree of free blocks has them");
        let bytes_len = words as u64 * 8;
        // An incomplete free map must not be saved: the next opening walks the maps again.
        let place = match self.shared.space_unknown {
            Some(_) => None,
            None => self.shared.take_sound_run(|| alloc.alloc_run(bytes_len.div_ceil(BLOCK_U64))),
        };
        let mut saved = (0, 0, 0);
        if let Some(run) = place {
            alloc.free_run(run).map_err(|error| {
                Corrupt::new("free blocks", run.start.offset(), error.to_string())
            })?;
            let free = self.shared.free_words(words);
            let bytes: Vec<u8> = free.into_iter().flat_map(u64::to_le_bytes).collect();
            let medium = &*self.shared.medium;
            // Durable before the clean mark, which makes the next opening believe it.
            InFlight::stream(medium, run.start.offset(), &bytes).fence(medium)?;
            saved = (run.start.0, bytes.len() as u64, crc32c::crc32c(&bytes));
        }
        self.shared.update_superblock(|sb| {
            (sb.saved_start, sb.saved_bytes, sb.saved_crc) = saved;
            sb.clean = 1;
        })?;
        Ok(())
    }
}

/// Makes a volume's contents durable for the last time, and returns its preallocated blocks.
fn close_volume<M: Medium>(volume: &Volume<M>) -> Result<(), WriteError> {
    // Waits for operations that began before the volume was marked as gone.
    drop(volume.quiesce());
    let guard = volume.lock_checkpoint();
    volume.begin_checkpoint(&guard)?.finish()?;
    // Before the free map is saved: no map names these blocks, so they would leak.
    volume.return_preallocated();
    volume.end_all_pins();
    Ok(volume.save_used_blocks()?)
}
