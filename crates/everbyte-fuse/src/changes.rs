//! Changes that the kernel asks for as one, and that are several of the file system's.

use everbyte_fs::{Attr, FileSystem, FsError, InodeNo, SetAttr};
use everbyte_media::Medium;
use fuser::OpenFlags;

/// Sets the size first, and then the other attributes.
///
/// # Errors
/// The file system's. The size may be set then, and where a file is cut a part of it may be gone.
pub(crate) fn set_all<M: Medium>(
    fs: &FileSystem<M>,
    inode: InodeNo,
    size: Option<u64>,
    set: &SetAttr,
) -> Result<Attr, FsError> {
    match size {
        Some(size) if *set == SetAttr::default() => fs.truncate(inode, size),
        Some(size) => {
            fs.truncate(inode, size)?;
            fs.set_attr(inode, set)
        }
        None => fs.set_attr(inode, set),
    }
}

/// Writes as durably as the flags of the open file ask.
///
/// # Errors
/// The file system's.
pub(crate) fn write_as<M: Medium>(
    fs: &FileSystem<M>,
    inode: InodeNo,
    (offset, data): (u64, &[u8]),
    flags: OpenFlags,
) -> Result<usize, FsError> {
    // O_SYNC has the bit of O_DSYNC and one more.
    if flags.0 & libc::O_SYNC == libc::O_SYNC {
        let written = fs.write(inode, offset, data)?;
        fs.sync_inode(inode)?;
        Ok(written)
    } else if flags.0 & libc::O_DSYNC != 0 {
        fs.write_durably(inode, offset, data)
    } else {
        fs.write(inode, offset, data)
    }
}
