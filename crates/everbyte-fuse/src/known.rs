//! The files that programs use without the kernel opening them here: it may ask about them after they
//! were removed.
//!
//! A working directory is not open to us, nor is a FIFO, socket or device that a program has open, or
//! a link that it has a path to; nothing but the kernel's memory of the number says that somebody uses
//! it. Invariant: such a file is open in the file system exactly as long as the kernel was told of it
//! more often than it has forgotten it.

use std::collections::HashMap;

use everbyte_fs::{FileSystem, FsError, InodeNo};
use everbyte_media::Medium;
use parking_lot::Mutex;

/// How often the kernel was told of each file that is not regular, without the root.
#[derive(Default)]
pub(crate) struct KnownFiles {
    lookups: Mutex<HashMap<InodeNo, u64>>,
}

impl KnownFiles {
    /// Counts that the kernel is being told of `inode`, which is no regular file.
    ///
    /// # Errors
    /// `Stale`: it was removed meanwhile, so the kernel must not be told of it.
    pub(crate) fn tell<M: Medium>(
        &self,
        fs: &FileSystem<M>,
        inode: InodeNo,
    ) -> Result<(), FsError> {
        let mut lookups = self.lookups.lock();
        if let Some(count) = lookups.get_mut(&inode) {
            *count += 1;
            return Ok(());
        }
        fs.open_inode(inode)?;
        lookups.insert(inode, 1);
        Ok(())
    }

    /// Counts that the kernel has forgotten `times` of what it was told of `inode`, which may be any
    /// file. One that was removed is gone with the last.
    ///
    /// # Errors
    /// The volume's: a removed file is freed when the file system is opened then.
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
    /// The first of the volume's; see [`KnownFiles::forget`].
    pub(crate) fn forget_all<M: Medium>(&self, fs: &FileSystem<M>) -> Result<(), FsError> {
        let known: Vec<_> = self.lookups.lock().drain().collect();
        let mut ended = Ok(());
        for (inode, _) in known {
            ended = ended.and(fs.close_inode(inode));
        }
        ended
    }
}
