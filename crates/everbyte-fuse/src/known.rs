//! The directories that the kernel knows: it may ask about them after they were removed.
//!
//! A working directory is not open to the kernel, so nothing but its memory of the number says that
//! somebody is in it. Invariant: a directory is open in the file system exactly as long as the kernel
//! was told of it more often than it has forgotten it.

use std::collections::HashMap;

use everbyte_fs::{FileSystem, FsError, InodeNo};
use everbyte_media::Medium;
use parking_lot::Mutex;

/// How often the kernel was told of each directory, without the root.
#[derive(Default)]
pub(crate) struct KnownDirectories {
    lookups: Mutex<HashMap<InodeNo, u64>>,
}

impl KnownDirectories {
    /// Counts that the kernel is being told of `directory`.
    ///
    /// # Errors
    /// `Stale`: it was removed meanwhile, so the kernel must not be told of it.
    pub(crate) fn tell<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        directory: InodeNo,
    ) -> Result<(), FsError> {
        let mut lookups = self.lookups.lock();
        if let Some(count) = lookups.get_mut(&directory) {
            *count += 1;
            return Ok(());
        }
        fs.open_inode(directory)?;
        lookups.insert(directory, 1);
        Ok(())
    }

    /// Counts that the kernel has forgotten `times` of what it was told of `inode`, which may be any
    /// file. One that was removed is gone with the last.
    ///
    /// # Errors
    /// The volume's: a removed directory is freed when the file system is opened then.
    pub(crate) fn forget<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        inode: InodeNo,
        times: u64,
    ) -> Result<(), FsError> {
        let mut lookups = self.lookups.lock();
        let Some(count) = lookups.get_mut(&inode) else { return Ok(()) };
        *count = count.saturating_sub(times);
        if *count > 0 {
            return Ok(());
        }
        lookups.remove(&inode);
        fs.close_inode(inode)
    }

    /// Counts that the kernel has forgotten everything.
    ///
    /// # Errors
    /// The first of the volume's; see [`KnownDirectories::forget`].
    pub(crate) fn forget_all<M: Medium>(&self, fs: &FileSystem<M>) -> Result<(), FsError> {
        let known: Vec<_> = self.lookups.lock().drain().collect();
        let mut ended = Ok(());
        for (inode, _) in known {
            ended = ended.and(fs.close_inode(inode));
        }
        ended
    }
}
