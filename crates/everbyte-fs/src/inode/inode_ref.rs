//! Files that are found by their names, and used by their numbers a moment later: when a file has gone meanwhile, and
//! another has got the number.
//!
//! Invariant: an inode that is freed is no other file's before the epoch of that is durable. So a number that was in use
//! in an epoch is the same file's, or nobody's, while that epoch is not durable.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::Corrupt;

use crate::dentry::cache::Dentry;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::format::{Field, InodeWords};
use crate::fs::FileSystem;

/// A file that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InodeRef {
    /// Its number.
    pub(crate) inode: InodeNo,
    /// The epoch that took writes when the search began. It had its number and its name in that, or later.
    epoch: u64,
    /// Its generation, if it is known.
    generation: Option<u64>,
}

impl InodeRef {
    /// Whichever file has the number.
    pub(crate) fn any(inode: InodeNo) -> Self {
        Self { inode, epoch: u64::MAX, generation: None }
    }

    /// The file that has or had that number, and this generation.
    pub(crate) fn made_in(inode: InodeNo, generation: u64) -> Self {
        Self { inode, epoch: 0, generation: Some(generation) }
    }
}

impl<M: Medium> FileSystem<M> {
    /// Reads the inode of the file that was `found`. The caller holds its lock.
    ///
    /// # Errors
    /// `Stale` if there is no such file, or its number may be another's by now; or the inode cannot be right.
    pub(crate) fn load_ref(&self, found: InodeRef) -> Result<(PoolOffset, InodeWords), FsError> {
        let loaded = self.load_inode(found.inode);
        if self.volume().completed_epoch() < found.epoch {
            return loaded;
        }
        let (at, words) = loaded?;
        let is_it = found.generation == Some(words.get(Field::Generation));
        if is_it { Ok((at, words)) } else { Err(FsError::Stale(found.inode)) }
    }

    /// Does something with the file that `find` finds in a directory; `None` if that finds none. Both are done again if
    /// the file has gone in between, or numbers may be other files' by now, those of directories on the way too.
    ///
    /// # Errors
    /// Those of both, but `Stale` of `act`; or a name leads to no file.
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
                continue;
            }
            let Some((parent, Dentry { inode, kind })) = found? else { return Ok(None) };
            let found = InodeRef { inode, epoch, generation: None };
            match act(kind, found) {
                // It was removed in between: perhaps there is another one. The same one twice in an epoch was not.
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
