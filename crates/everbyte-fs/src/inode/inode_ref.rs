//! Detection of inode-number reuse between lookup and use.
//!
//! Invariant: a freed inode number is not reused before the epoch of the free is durable. So a number in use
//! in an epoch names the same file, or no file, until that epoch is durable.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::Corrupt;

use crate::dentry::cache::Dentry;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::format::{Field, InodeWords};
use crate::fs::FileSystem;

/// A reference to a file by its inode number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InodeRef {
    /// Its number.
    pub(crate) inode: InodeNo,
    /// The open epoch at the start of the search. The file had its number and name in this epoch or a later
    /// one.
    epoch: u64,
    /// Its generation, if known.
    generation: Option<u64>,
}

impl InodeRef {
    /// The file that has the number, without a check.
    pub(crate) fn any(inode: InodeNo) -> Self {
        Self { inode, epoch: u64::MAX, generation: None }
    }

    /// The file with this number and generation.
    pub(crate) fn made_in(inode: InodeNo, generation: u64) -> Self {
        Self { inode, epoch: 0, generation: Some(generation) }
    }
}

impl<M: Medium> FileSystem<M> {
    /// Reads the inode of `found`. The caller holds its lock.
    ///
    /// # Errors
    /// `Stale` if there is no such file, or if the number may be reused; a damaged inode.
    pub(crate) fn load_ref(&self, found: InodeRef) -> Result<(PoolOffset, InodeWords), FsError> {
        let loaded = self.load_inode(found.inode);
        if self.volume().completed_epoch() < found.epoch {
            return loaded;
        }
        let (at, words) = loaded?;
        let is_it = found.generation == Some(words.get(Field::Generation));
        if is_it { Ok((at, words)) } else { Err(FsError::Stale(found.inode)) }
    }

    /// Calls `act` with the file found by `find` in a directory; `None` if `find` finds none. Repeats both if
    /// the file has disappeared, or if inode numbers may have been reused, including numbers of directories
    /// in the path.
    ///
    /// # Errors
    /// The errors of both without `Stale` of `act`; a name that leads to no file.
    pub(crate) fn find_and<R>(
        &self,
        find: impl Fn() -> Result<Option<(InodeNo, Dentry)>, FsError>,
        act: impl Fn(FileType, InodeRef) -> Result<R, FsError>,
    ) -> Result<Option<R>, FsError> {
        let mut before = None;
        loop {
            let epoch = self.volume().current_epoch();
            let found = find();
            if self.volume().completed_epoch() >= epoch {
                // An epoch became durable during the search, so its numbers may be reused.
                continue;
            }
            let Some((parent, Dentry { inode, kind })) = found? else { return Ok(None) };
            let found = InodeRef { inode, epoch, generation: None };
            match act(kind, found) {
                // The file was removed after the search, so a new file may have the name. The same file twice
                // in an epoch was not removed.
                Err(FsError::Stale(_)) if before == Some(found) => {
                    let what = format!("a name leads to {inode}, which is no file");
                    let directory = format!("directory of {parent}");
                    return Err(Corrupt::new(directory, self.find_inode(parent)?, what).into());
                }
                Err(FsError::Stale(_)) => before = Some(found),
                acted => return acted.map(Some),
            }
        }
    }
}
