//! Files in use: the extent and the number of opens of each.
//!
//! Invariants:
//! - An inode has at most one entry. The holder of the inode's lock finds or makes it.
//! - An entry ends with its inode. A closed file's entry may end earlier to save DRAM.
//! - Only the holder of the inode's lock for writing changes the map of the extent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use everbyte_extent::{BlockLocks, Delta, DeviceOffset, Extent, ExtentSettings, FirstEntries};
use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::sync::Mutex;
use everbyte_pool::{THRESHOLD_LINES_DEFAULT, Volume};
use hashbrown::HashMap;

use crate::error::FsError;
use crate::format::number::InodeNo;
use crate::format::{FIRST_ENTRIES, Field, INODE_AREA_AT, InodeWords};
use crate::inode::locks::stripe_of;

const SHARDS: usize = 64;
/// Minimum size of a shard at which entries of closed files are dropped.
const IDLE_MAX: usize = 1024;

/// A file in use.
pub(crate) struct FileState<M: Medium> {
    /// Its bytes.
    pub(crate) extent: Extent<M>,
    opens: AtomicU64,
    /// The sequence of the inode's lock at the last verified read of the inode, which also set the size of
    /// the extent. [`NEVER`] if the inode is unverified.
    verified: AtomicU64,
    /// True if the file has not had a name yet, and may get one.
    may_be_named: AtomicBool,
    /// True if the file is counted as an open file without a name.
    is_nameless: AtomicBool,
}

/// A sequence that no reader notes.
const NEVER: u64 = 1;

impl<M: Medium> FileState<M> {
    /// Notes a verified read of the inode at sequence `noted`. The caller holds the inode's lock.
    pub(crate) fn note_verified(&self, noted: Option<u64>) {
        // The size of the extent was set before, and readers load this word first.
        self.verified.store(noted.unwrap_or(NEVER), Ordering::Release);
    }

    /// Returns true if the inode was verified since the last writer of its lock. The caller noted the
    /// sequence `noted`.
    #[inline]
    pub(crate) fn is_verified_at(&self, noted: u64) -> bool {
        self.verified.load(Ordering::Acquire) == noted
    }

    /// Reads bytes from `offset` on. Returns the number of bytes. The caller holds the inode's lock, and the
    /// extent has the inode's size.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        let left = self.extent.size_bytes().saturating_sub(offset);
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if len > 0 {
            self.extent.read(DeviceOffset(offset), &mut out[..len])?;
        }
        Ok(len)
    }

    /// Returns true if the file is open.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }
}

/// One part of the files in use.
struct Shard<M: Medium> {
    files: HashMap<InodeNo, Arc<FileState<M>>>,
    /// Number of entries that starts the next removal of idle entries.
    full_at: usize,
}

impl<M: Medium> Shard<M> {
    fn new() -> Self {
        Self { files: HashMap::new(), full_at: IDLE_MAX }
    }

    fn make_room(&mut self) {
        if self.files.len() < self.full_at {
            return;
        }
        // An entry with another reference is used under the lock of its inode, so it must stay the only
        // entry.
        self.files.retain(|_, file| file.is_open() || Arc::strong_count(file) > 1);
        // A shard is scanned only after it has doubled, so files that stay open cost nothing.
        self.full_at = IDLE_MAX.max(2 * self.files.len());
    }
}

/// The files in use.
pub(crate) struct OpenFiles<M: Medium> {
    volume: Arc<Volume<M>>,
    block_locks: BlockLocks,
    shards: Box<[Mutex<Shard<M>>]>,
    /// Number of open files without a name.
    nameless: AtomicU64,
}

impl<M: Medium> OpenFiles<M> {
    pub(crate) fn new(volume: Arc<Volume<M>>) -> Self {
        Self {
            volume,
            block_locks: BlockLocks::new(),
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect(),
            nameless: AtomicU64::new(0),
        }
    }

    fn shard(&self, inode: InodeNo) -> &Mutex<Shard<M>> {
        &self.shards[stripe_of(inode) % SHARDS]
    }

    /// The regular file `inode` at `at` with `size_bytes`. The caller holds its lock.
    pub(crate) fn get(&self, inode: InodeNo, at: PoolOffset, size_bytes: u64) -> Arc<FileState<M>> {
        let shard = &mut *self.shard(inode).lock();
        if let Some(file) = shard.files.get(&inode) {
            // The entry outlives changes of the inode, so each use under the lock renews the size.
            file.extent.set_size_bytes(size_bytes);
            return Arc::clone(file);
        }
        // Before the insertion, so that the new entry is not dropped.
        shard.make_room();
        let settings = ExtentSettings {
            root_at: Field::Root.at(at),
            checksum_root_at: None,
            delta: Delta::default(),
            threshold_lines: THRESHOLD_LINES_DEFAULT,
            size_bytes,
        };
        let first = FirstEntries { at: at.plus(INODE_AREA_AT), count: FIRST_ENTRIES };
        // Files share block locks. The offset spreads the first blocks of neighbours.
        let locks = self.block_locks.shared(inode.0.wrapping_mul(FIRST_ENTRIES));
        let volume = Arc::clone(&self.volume);
        let extent = Extent::with_locks(volume, &settings, locks, Some(first));
        let (may_be_named, is_nameless) = (AtomicBool::new(false), AtomicBool::new(false));
        let (opens, verified) = (AtomicU64::new(0), AtomicU64::new(NEVER));
        let file = FileState { extent, opens, verified, may_be_named, is_nameless };
        let file = Arc::new(file);
        // Under the shard's lock, so an inode has one extent with one set of locks.
        shard.files.insert(inode, Arc::clone(&file));
        file
    }

    /// The regular file `inode`, if its entry is verified at sequence `noted`. The caller holds the inode's
    /// lock.
    pub(crate) fn verified(&self, inode: InodeNo, noted: u64) -> Option<Arc<FileState<M>>> {
        let shard = self.shard(inode).lock();
        shard.files.get(&inode).filter(|file| file.is_verified_at(noted)).map(Arc::clone)
    }

    /// Counts an open of `inode`, which has these words. The caller holds its lock.
    pub(crate) fn open(
        &self,
        inode: InodeNo,
        at: PoolOffset,
        words: &InodeWords,
    ) -> Arc<FileState<M>> {
        let file = self.get(inode, at, words.get(Field::Size));
        // Opens share the lock for reading, so two can be concurrent. One of them is the first.
        let is_first = file.opens.fetch_add(1, Ordering::AcqRel) == 0;
        // A damaged orphan stays in use and can be opened. The last close decrements the count.
        if is_first && words.links() == 0 {
            self.count_nameless(&file);
        }
        file
    }

    /// Opens `inode`, a new file without a name. No other thread knows it yet.
    pub(crate) fn open_unnamed(&self, inode: InodeNo, at: PoolOffset) {
        let file = self.get(inode, at, 0);
        file.may_be_named.store(true, Ordering::Release);
        file.opens.fetch_add(1, Ordering::AcqRel);
        self.count_nameless(&file);
    }

    fn count_nameless(&self, file: &FileState<M>) {
        // A file is counted once, although several threads may note it.
        if !file.is_nameless.swap(true, Ordering::AcqRel) {
            self.nameless.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Ends the count of `file` as an open file without a name, because it got a name or was closed.
    pub(crate) fn count_off(&self, file: &FileState<M>) {
        if file.is_nameless.swap(false, Ordering::AcqRel) {
            self.nameless.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Counts the open file `inode` after the removal of its last name. The caller holds its lock for
    /// writing.
    pub(crate) fn note_nameless(&self, inode: InodeNo) {
        if let Some(file) = self.shard(inode).lock().files.get(&inode) {
            self.count_nameless(file);
        }
    }

    /// Number of open files without a name.
    pub(crate) fn nameless(&self) -> u64 {
        self.nameless.load(Ordering::Acquire)
    }

    /// Returns true if `inode` was made without a name and has not got a name. The caller holds its lock.
    pub(crate) fn may_be_named(&self, inode: InodeNo) -> bool {
        let shard = self.shard(inode).lock();
        shard.files.get(&inode).is_some_and(|file| file.may_be_named.load(Ordering::Acquire))
    }

    /// Notes that `inode` has a name. The caller holds its lock for writing.
    pub(crate) fn note_named(&self, inode: InodeNo) {
        if let Some(file) = self.shard(inode).lock().files.get(&inode)
            && file.may_be_named.swap(false, Ordering::AcqRel)
        {
            self.count_off(file);
        }
    }

    /// Counts a close, and returns the file if this was the last one. The caller holds the lock for writing.
    pub(crate) fn close(&self, inode: InodeNo) -> Option<Arc<FileState<M>>> {
        let shard = &mut *self.shard(inode).lock();
        let file = shard.files.get(&inode)?;
        let before = file
            .opens
            // A close without an open must not wrap the count.
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |opens| opens.checked_sub(1));
        (before == Ok(1)).then(|| Arc::clone(file))
    }

    /// Returns true if `inode` is open. The caller holds its lock.
    pub(crate) fn is_open(&self, inode: InodeNo) -> bool {
        self.shard(inode).lock().files.get(&inode).is_some_and(|file| file.is_open())
    }

    /// Removes and returns the entry of the free inode `inode`. The caller holds its lock for writing.
    pub(crate) fn forget(&self, inode: InodeNo) -> Option<Arc<FileState<M>>> {
        self.shard(inode).lock().files.remove(&inode)
    }
}
