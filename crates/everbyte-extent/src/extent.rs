//! An extent: bytes below a root word, with everything needed to read and to write them.
//!
//! Owns the state shared by its parts: the map's shape, the locks, the settings. Lookup of words is in `map`,
//! writing in `plan`, `fast_path`, `direct` and `fua`, reading in `read`, `unlocked` and `view`, unmapping in `unmap`,
//! resizing in `resize`, scrubbing in `scrub`. Locks are taken in this order: the volume's quiesce lock,
//! block locks, a lane, the structure lock.
//!
//! Does not know the purpose of the extent (a device, a file, a table), nor its permitted users.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::sync::Mutex;
use everbyte_pool::{Volume, WriteError};

use crate::delta::{Delta, DeltaState};
use crate::error::ExtentError;
use crate::locks::BlockLocks;
use crate::map::{FirstEntries, Leaves};
use crate::threshold::Threshold;

/// The place and the settings of an extent.
#[derive(Clone, Copy, Debug)]
pub struct ExtentSettings {
    /// Address of the root word of its map.
    pub root_at: PoolOffset,
    /// Address of the root word of the checksums of its volume's blocks; `None` if it has none.
    pub checksum_root_at: Option<PoolOffset>,
    /// Change detection: comparison of writes with the stored bytes.
    pub delta: Delta,
    /// Lines of a block from which on a change replaces the block: 0 always, 65 and more never.
    pub threshold_lines: u32,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Bytes below a root word: the contents of a block volume or of a file.
///
/// Its methods take the block locks they need, unless they say that the caller holds them.
pub struct Extent<M: Medium> {
    volume: Arc<Volume<M>>,
    root_at: PoolOffset,
    checksum_root_at: Option<PoolOffset>,
    delta: DeltaState,
    threshold: Threshold,
    locks: BlockLocks,
    pub(crate) leaves: Leaves,
    structure: Mutex<()>,
    size_bytes: AtomicU64,
    first_entries: Option<FirstEntries>,
}

impl<M: Medium> Extent<M> {
    /// The extent with `settings`, in a recovered volume. The caller makes one at a time, as the volume's
    /// [handle](everbyte_pool::VolumeHandle) is one at a time: an extent has its own locks.
    #[must_use]
    pub fn new(volume: Arc<Volume<M>>, settings: &ExtentSettings) -> Self {
        Self::with_locks(volume, settings, BlockLocks::new(), None)
    }

    /// The same for one of many small extents with shared `locks`, and with `first_entries` of its radix map
    /// next to its root word.
    #[must_use]
    pub fn with_locks(
        volume: Arc<Volume<M>>,
        settings: &ExtentSettings,
        locks: BlockLocks,
        first_entries: Option<FirstEntries>,
    ) -> Self {
        let (read_ns, write_ns) = volume.medium().line_cost_ns();
        let blocks = settings.size_bytes.div_ceil(BLOCK_U64);
        Self {
            volume,
            root_at: settings.root_at,
            checksum_root_at: settings.checksum_root_at,
            delta: DeltaState::new(settings.delta, read_ns, write_ns),
            threshold: Threshold::new(settings.threshold_lines),
            locks,
            // Places of more leaves are made as these are found: of a sparse file there may be none.
            leaves: Leaves::new(if first_entries.is_some() { 0 } else { blocks }),
            structure: Mutex::new(()),
            size_bytes: AtomicU64::new(settings.size_bytes),
            first_entries,
        }
    }

    /// The volume of the extent.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume<M>> {
        &self.volume
    }

    /// The medium below.
    #[must_use]
    pub fn medium(&self) -> &M {
        self.volume.medium()
    }

    /// The locks of its blocks.
    #[must_use]
    pub fn locks(&self) -> &BlockLocks {
        &self.locks
    }

    /// Address of the root word of its map.
    #[must_use]
    pub fn root_at(&self) -> PoolOffset {
        self.root_at
    }

    /// Returns true if its blocks have checksums.
    #[must_use]
    #[inline]
    pub fn has_checksums(&self) -> bool {
        self.checksum_root_at.is_some()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Sets the size to `size_bytes`. The caller holds the locks of all blocks.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Its size in blocks. The last block may be a part.
    #[must_use]
    pub fn size_blocks(&self) -> u64 {
        self.size_bytes().div_ceil(BLOCK_U64)
    }

    /// Forgets in DRAM where the leaves of the map lie. The caller holds the locks of all blocks.
    pub fn forget_leaves(&self) {
        self.leaves.forget_all();
    }

    /// Checks that bytes `offset .. offset + len` lie in the extent, and that its volume is present.
    ///
    /// # Errors
    /// `OutOfRange`, or `Write` with `Gone`.
    pub fn check_range(&self, offset: u64, len: u64) -> Result<(), ExtentError> {
        if self.volume.is_gone() {
            return Err(WriteError::Gone.into());
        }
        let size_bytes = self.size_bytes();
        // The range comes from a client, so its end may overflow.
        match offset.checked_add(len) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(ExtentError::OutOfRange { size_bytes }),
        }
    }

    /// The entries of its map next to the root word.
    #[inline]
    pub(crate) fn first_entries(&self) -> Option<FirstEntries> {
        self.first_entries
    }

    /// The lock of a thread that changes the shape of a tree: the map, or the checksums shared by the
    /// volume's extents. With checksums one lock serves both trees of all extents, since a write may build a
    /// branch of the one and then of the other, in either order.
    pub(crate) fn structure(&self) -> &Mutex<()> {
        if self.has_checksums() { self.volume.structure() } else { &self.structure }
    }

    pub(crate) fn delta(&self) -> &DeltaState {
        &self.delta
    }

    /// Returns true if the calling thread's next write is compared with the stored bytes, and counts that
    /// write.
    pub(crate) fn compares(&self) -> bool {
        self.delta.compares_after(self.volume.count_write())
    }

    /// Returns true if the calling thread's next write is compared, and does not count that write.
    pub(crate) fn compares_next(&self) -> bool {
        self.delta.compares_after(self.volume.counted_writes())
    }

    pub(crate) fn threshold(&self) -> &Threshold {
        &self.threshold
    }

    /// Address of the root word of the checksums of the volume's blocks, if it has any.
    pub(crate) fn checksum_root_at(&self) -> Option<PoolOffset> {
        self.checksum_root_at
    }
}

#[cfg(test)]
mod tests {
    use everbyte_crash::SimMedium;
    use everbyte_pool::format::VolumeKind;
    use everbyte_pool::{
        Claim, Corrupt, Kind, Kinds, NewRoot, OpenOptions, Pool, THRESHOLD_LINES_DEFAULT,
        VolumeSpec, VolumeView,
    };

    use super::*;

    const KIND: VolumeKind = VolumeKind(79);

    /// Volumes without reads.
    struct EmptyKind;

    impl Kind<SimMedium> for EmptyKind {
        fn kind(&self) -> VolumeKind {
            KIND
        }

        fn name(&self) -> &'static str {
            "empty"
        }

        fn visit(
            &self,
            _medium: &SimMedium,
            _view: &VolumeView<'_>,
            _claim: &mut Claim<'_>,
        ) -> Result<(), Corrupt> {
            Ok(())
        }
    }

    #[test]
    fn unknown_leaves_take_no_dram() {
        let medium = Arc::new(SimMedium::new(4 << 20));
        Pool::format(&*medium, 2, [1; 16]).unwrap();
        let kinds = Kinds::new([Arc::new(EmptyKind) as Arc<dyn Kind<SimMedium>>]);
        let pool = Arc::new(Pool::open(medium, kinds, &OpenOptions::default()).unwrap());
        let spec = VolumeSpec { log_bytes: Some(1 << 20), ..VolumeSpec::new("v", KIND, 1 << 20) };
        pool.create_volume(&spec, NewRoot::Empty).unwrap();
        let handle = pool.open_volume("v", KIND).unwrap();
        let settings = ExtentSettings {
            root_at: handle.root_at(),
            checksum_root_at: None,
            delta: Delta::default(),
            threshold_lines: THRESHOLD_LINES_DEFAULT,
            size_bytes: 256 << 30,
        };
        let places = |first_entries| {
            let (volume, locks) = (Arc::clone(handle.volume()), BlockLocks::new());
            let extent = Extent::with_locks(volume, &settings, locks, first_entries);
            extent.leaves.places().count()
        };
        assert_eq!(places(None), 1 << 17);
        assert_eq!(places(Some(FirstEntries { at: PoolOffset(1 << 16), count: 16 })), 1);
    }
}
