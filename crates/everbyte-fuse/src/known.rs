//! The files that the kernel knows: it may ask about them after they were removed, because a program has
//! them open, works in them, or has a path to them, of which nothing is said here.
//!
//! The kernel opens no file of a mount, so its memory of a number is all that says that somebody uses it.
//! Invariant: a file is open in the file system exactly as long as the kernel was told of it more often
//! than it has forgotten it.

use std::collections::HashMap;

use everbyte_fs::{FileSystem, FsError, InodeNo};
use everbyte_media::Medium;
use parking_lot::Mutex;

const SHARDS: usize = 64;

/// How often the kernel was told of each file of a shard.
type Shard = Mutex<HashMap<InodeNo, u64>>;

/// The files, without the root.
#[derive(Debug)]
pub(crate) struct KnownFiles {
    shards: Box<[Shard]>,
}

impl Default for KnownFiles {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl KnownFiles {
    fn shard(&self, inode: InodeNo) -> &Shard {
        &self.shards[usize::try_from(inode.0 % SHARDS as u64).unwrap_or(0)]
    }

    /// Counts that the kernel is being told of `inode`.
    ///
    /// # Errors
    /// `Stale`: it was removed meanwhile, so the kernel must not be told of it.
    pub(crate) fn tell<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        inode: InodeNo,
    ) -> Result<(), FsError> {
        let mut lookups = self.shard(inode).lock();
        if let Some(count) = lookups.get_mut(&inode) {
            *count += 1;
            return Ok(());
        }
        fs.open_inode(inode)?;
        lookups.insert(inode, 1);
        Ok(())
    }

    /// Counts that the kernel has forgotten `times` of what it was told of `inode`. One that was removed is
    /// gone with the last.
    ///
    /// # Errors
    /// The volume's: a removed file is freed when the file system is opened then.
    pub(crate) fn forget<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        inode: InodeNo,
        times: u64,
    ) -> Result<(), FsError> {
        let mut lookups = self.shard(inode).lock();
        let Some(count) = lookups.get_mut(&inode) else { return Ok(()) };
        *count = count.saturating_sub(times);
        if *count > 0 {
            return Ok(());
        }
        lookups.remove(&inode);
        // Still under the lock: who is told of the file now opens it after it was closed.
        fs.close_inode(inode)
    }

    /// The files.
    pub(crate) fn all(&self) -> Vec<InodeNo> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    /// Counts that the kernel has forgotten everything.
    ///
    /// # Errors
    /// The first of the volume's; see [`KnownFiles::forget`].
    pub(crate) fn forget_all<M: Medium>(&self, fs: &FileSystem<M>) -> Result<(), FsError> {
        let mut ended = Ok(());
        for shard in &self.shards {
            let known: Vec<_> = shard.lock().drain().collect();
            for (inode, _) in known {
                ended = ended.and(fs.close_inode(inode));
            }
        }
        ended
    }
}
