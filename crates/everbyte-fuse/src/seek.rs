//! Looking for data and holes of a file, of which the kernel may have more than we do.
//!
//! What a program has stored through a mapping is in the kernel's cache alone until that is written, and the kernel does
//! not write it before it asks where data are. Invariant: no byte that was stored before the kernel asked is called a hole.

use std::ops::Range;

use everbyte_fs::{FileSystem, FsError, InodeNo, Seek};
use everbyte_media::Medium;

use crate::caches::KernelCaches;

/// Finds the first data or hole of a file from a place on, after the kernel has written what it has of the hole that was
/// `found` before. In a thread that no request of the kernel waits for.
///
/// # Errors
/// Those of [`FileSystem::seek`].
pub(crate) fn seek_written<M: Medium>(
    (fs, caches): (&FileSystem<M>, &KernelCaches),
    inode: InodeNo,
    (offset, what): (u64, Seek),
    found: &Range<u64>,
) -> Result<u64, FsError> {
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

/// The bytes of a file that an answer says are a hole, as far as there can be others; `None` if none are.
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
