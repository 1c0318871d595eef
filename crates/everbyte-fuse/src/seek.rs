//! Search for data and holes of a file. The kernel may have more bytes than the file system.
//!
//! Stores through a mapping are only in the kernel's cache until the kernel writes them, and it
//! does not write them before a search for data. Invariant: no byte stored before the request is
//! reported as a hole.

use std::ops::Range;

use everbyte_fs::{FileSystem, FsError, InodeNo, Seek};
use everbyte_media::Medium;

use crate::invalidation::KernelCaches;

/// Finds the first data or hole of a file from a position on, after the kernel has written its
/// bytes of the hole `found` before. Runs in a thread that no request of the kernel waits for.
///
/// # Errors
/// Those of [`FileSystem::seek`].
pub(crate) fn seek_written<M: Medium>(
    (fs, caches): (&FileSystem<M>, &KernelCaches),
    inode: InodeNo,
    (offset, what): (u64, Seek),
    found: &Range<u64>,
) -> Result<u64, FsError> {
    // The kernel writes its dirty bytes of the range before it forgets them, and they become data
    // here.
    caches.forget_range(inode, found);
    let again = fs.seek(inode, offset, what);
    match hole(fs, inode, (offset, what), &again) {
        Some(other) if other.start < found.start || other.end > found.end => {
            // The hole was filled, or another one was made. After this there is none that is not known.
            caches.forget_range(inode, &(offset..u64::MAX));
            fs.seek(inode, offset, what)
        }
        _ => again,
    }
}

/// The bytes of an answer's hole that may contain unwritten data; `None` if it has none.
pub(crate) fn hole<M: Medium>(
    fs: &FileSystem<M>,
    inode: InodeNo,
    (offset, what): (u64, Seek),
    found: &Result<u64, FsError>,
) -> Option<Range<u64>> {
    let hole = match (what, found) {
        (Seek::Data, Ok(data)) => offset..*data,
        (Seek::Data, Err(FsError::NoData)) => offset..fs.attr(inode).ok()?.size,
        (Seek::Hole, Ok(hole)) if *hole < fs.attr(inode).ok()?.size => {
            *hole..fs.seek(inode, *hole, Seek::Data).unwrap_or(u64::MAX)
        }
        _ => return None,
    };
    (hole.start < hole.end).then_some(hole)
}
