//! Files in use: the extent of each, and how many have it open.
//!
//! Invariants: an inode has at most one entry here, found or made by who holds its lock; it goes with
//! the inode, or when nobody has the file open and there are too many. Nobody but the holder of its lock
//! for writing changes what the map of its extent is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use everbyte_extent::{BlockLocks, Delta, Extent, ExtentSettings, FirstEntries, MapKind};
use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::sync::Mutex;
use everbyte_pool::{THRESHOLD_LINES_DEFAULT, Volume};
use hashbrown::HashMap;

use crate::format::{FIRST_ENTRIES, Field, INODE_AREA_AT};
use crate::locks::stripe_of;
use crate::number::InodeNo;

const SHARDS: usize = 64;
/// Entries of a shard from which on those that nobody has open are dropped.
const IDLE_MAX: usize = 1024;

/// A file in use.
pub(crate) struct FileState<M: Medium> {
    /// Its bytes.
    pub(crate) extent: Extent<M>,
    opens: AtomicU64,
    /// It was made without a name, and may still get one.
    may_be_named: AtomicBool,
}

impl<M: Medium> FileState<M> {
    /// Returns true if somebody has it open.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }
}

/// One part of the files in use.
type Shard<M> = Mutex<HashMap<InodeNo, Arc<FileState<M>>>>;

/// The files in use.
pub(crate) struct Files<M: Medium> {
    volume: Arc<Volume<M>>,
    block_locks: BlockLocks,
    shards: Box<[Shard<M>]>,
}

impl<M: Medium> Files<M> {
    pub(crate) fn new(volume: Arc<Volume<M>>) -> Self {
        Self {
            volume,
            block_locks: BlockLocks::new(),
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
        }
    }

    fn shard(&self, inode: InodeNo) -> &Shard<M> {
        &self.shards[stripe_of(inode) % SHARDS]
    }

    /// The regular file `inode` at `at`, which has `size_bytes`. The caller holds its lock.
    pub(crate) fn get(&self, inode: InodeNo, at: PoolOffset, size_bytes: u64) -> Arc<FileState<M>> {
        let shard = &mut *self.shard(inode).lock();
        if let Some(file) = shard.get(&inode) {
            file.extent.set_size_bytes(size_bytes);
            return Arc::clone(file);
        }
        if shard.len() >= IDLE_MAX {
            // Those that a thread holds in its hand are used under their lock, so they stay the only ones.
            shard.retain(|_, file| file.is_open() || Arc::strong_count(file) > 1);
        }
        let settings = ExtentSettings {
            root_at: Field::Root.at(at),
            checksum_root_at: None,
            map: MapKind::Radix,
            delta: Delta::default(),
            threshold_lines: THRESHOLD_LINES_DEFAULT,
            size_bytes,
        };
        let first = FirstEntries { at: at.plus(INODE_AREA_AT), count: FIRST_ENTRIES };
        let locks = self.block_locks.shared(inode.0.wrapping_mul(FIRST_ENTRIES));
        let volume = Arc::clone(&self.volume);
        let extent = Extent::with_locks(volume, &settings, locks, Some(first));
        let may_be_named = AtomicBool::new(false);
        let file = Arc::new(FileState { extent, opens: AtomicU64::new(0), may_be_named });
        shard.insert(inode, Arc::clone(&file));
        file
    }

    /// Counts one more who has `inode` open. The caller holds its lock.
    pub(crate) fn open(&self, inode: InodeNo, at: PoolOffset, size_bytes: u64) {
        self.get(inode, at, size_bytes).opens.fetch_add(1, Ordering::AcqRel);
    }

    /// Opens `inode` for whoever made it without a name. Nobody else knows it yet.
    pub(crate) fn open_unnamed(&self, inode: InodeNo, at: PoolOffset) {
        let file = self.get(inode, at, 0);
        file.may_be_named.store(true, Ordering::Release);
        file.opens.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns true if `inode` was made without a name and has not got one since. The caller holds its
    /// lock.
    pub(crate) fn may_be_named(&self, inode: InodeNo) -> bool {
        let shard = self.shard(inode).lock();
        shard.get(&inode).is_some_and(|file| file.may_be_named.load(Ordering::Acquire))
    }

    /// Notes that `inode` has a name. The caller holds its lock for writing.
    pub(crate) fn note_named(&self, inode: InodeNo) {
        if let Some(file) = self.shard(inode).lock().get(&inode) {
            file.may_be_named.store(false, Ordering::Release);
        }
    }

    /// Counts one less; true if that was the last one. The caller holds the lock for writing.
    pub(crate) fn close(&self, inode: InodeNo) -> bool {
        let shard = &mut *self.shard(inode).lock();
        let Some(file) = shard.get(&inode) else { return false };
        let before = file
            .opens
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |opens| opens.checked_sub(1));
        before == Ok(1)
    }

    /// Returns true if somebody has `inode` open. The caller holds its lock.
    pub(crate) fn is_open(&self, inode: InodeNo) -> bool {
        self.shard(inode).lock().get(&inode).is_some_and(|file| file.is_open())
    }

    /// Forgets `inode`, which is free. The caller holds its lock for writing.
    pub(crate) fn forget(&self, inode: InodeNo) {
        self.shard(inode).lock().remove(&inode);
    }
}
