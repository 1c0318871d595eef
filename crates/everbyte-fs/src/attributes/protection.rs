//! Changes forbidden by the flags of a file, as on ext4.
//!
//! Invariant: each change of a file for a caller is checked here, under the lock of the inode. Recovery, and freeing a file
//! without a name, ignore the flags.

use crate::error::FsError;
use crate::format::file_flags::FileFlags;
use crate::format::{Field, InodeWords};

/// Checks for a change of an inode, or a new entry of a directory.
pub(crate) fn check_mutable(words: &InodeWords) -> Result<(), FsError> {
    if words.flags().has(FileFlags::IMMUTABLE) { Err(FsError::Immutable) } else { Ok(()) }
}

/// Checks for any change of an inode but an append, for a new or removed name of a file, and for a removed entry of a
/// directory.
pub(crate) fn check_unrestricted(words: &InodeWords) -> Result<(), FsError> {
    check_mutable(words)?;
    if words.flags().has(FileFlags::APPEND_ONLY) { Err(FsError::AppendOnly) } else { Ok(()) }
}

/// Checks for a write of a file at `offset`.
pub(crate) fn check_write(words: &InodeWords, offset: u64) -> Result<(), FsError> {
    let appends = offset >= words.get(Field::Size);
    if appends { check_mutable(words) } else { check_unrestricted(words) }
}
