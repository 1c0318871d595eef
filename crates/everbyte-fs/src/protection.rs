//! Refusals of changes that the flags of a file forbid, as on ext4.
//!
//! Invariant: each operation that changes a file on behalf of a caller asks here, under the lock of the inode. Freeing a
//! file without a name and recovery do not ask: the flags of such a file mean nothing any more.

use crate::error::FsError;
use crate::file_flags::FileFlags;
use crate::format::{Field, InodeWords};

/// Checks that an inode may be changed, or that a directory may get an entry.
pub(crate) fn check_mutable(words: &InodeWords) -> Result<(), FsError> {
    if words.flags().has(FileFlags::IMMUTABLE) { Err(FsError::Immutable) } else { Ok(()) }
}

/// Checks that an inode may be changed in other ways than by appending, that it may lose or get a name, or that a
/// directory may lose an entry.
pub(crate) fn check_unrestricted(words: &InodeWords) -> Result<(), FsError> {
    check_mutable(words)?;
    if words.flags().has(FileFlags::APPEND_ONLY) { Err(FsError::AppendOnly) } else { Ok(()) }
}

/// Checks that a file may be written from `offset` on.
pub(crate) fn check_write(words: &InodeWords, offset: u64) -> Result<(), FsError> {
    let appends = offset >= words.get(Field::Size);
    if appends { check_mutable(words) } else { check_unrestricted(words) }
}
