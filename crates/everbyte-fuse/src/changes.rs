//! Single requests of the kernel that take several changes of the file system.

use everbyte_fs::{Attr, FileSystem, FsError, InodeNo, SetAttr};
use everbyte_media::Medium;
use fuser::OpenFlags;

use crate::enospc_retry::EnospcRetry;

/// Sets the size first, and then the other attributes.
///
/// # Errors
/// The file system's. The size may be set then, and where a file is cut a part of it may be gone.
pub(crate) fn set_all<M: Medium>(
    fs: &FileSystem<M>,
    inode: InodeNo,
    size: u64,
    set: &SetAttr,
) -> Result<Attr, FsError> {
    // Before the truncation, which cannot be taken back by a later error.
    set.check()?;
    // The size first: its change sets times, and requested times must replace them.
    let attr = fs.truncate(inode, size)?;
    if *set == SetAttr::default() { Ok(attr) } else { fs.set_attr(inode, set) }
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
        // `O_SYNC` includes the times, which `write_durably` leaves to the next checkpoint.
        fs.sync_inode(inode)?;
        Ok(written)
    } else if flags.0 & libc::O_DSYNC != 0 {
        fs.write_durably(inode, offset, data)
    } else {
        fs.write(inode, offset, data)
    }
}

/// Writes all of `data` from the kernel's cache. The kernel checks only the error of the answer,
/// not the number of written bytes, and marks the bytes clean without an error.
///
/// # Errors
/// The file system's error of the first unwritten part. The parts before it are written.
pub(crate) fn write_all<M: Medium>(
    (fs, space): (&FileSystem<M>, &EnospcRetry),
    inode: InodeNo,
    (offset, data): (u64, &[u8]),
    flags: OpenFlags,
) -> Result<usize, FsError> {
    let mut done = 0;
    while done < data.len() {
        let rest = (offset + done as u64, &data[done..]);
        // Fewer than asked for were written only if the next part fails, which says why.
        done += space.find(fs, || write_as(fs, inode, rest, flags))?;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enospc_retry::tests::with_nameless;

    #[test]
    fn kernel_cache_bytes_are_written_fully_or_fail() {
        const HALF: u64 = 512 << 10;
        let (fs, files) = with_nameless(2);
        let [filler, file] = files[..] else { panic!("{files:?}") };
        let mut filled = 0;
        while fs.write(filler, filled, &[3; 4096]).is_ok() {
            filled += 4096;
        }
        // Space for the first of two parts.
        fs.truncate(filler, filled - (600 << 10)).unwrap();
        fs.sync().unwrap();
        let (space, flags, data) = (EnospcRetry::new(2), OpenFlags(0), vec![7; 1 << 20]);
        let write = || write_all((&fs, &space), file, (HALF, &data), flags);
        assert!(matches!(write(), Err(FsError::NoSpace)));
        assert_eq!(write_as(&fs, file, (HALF, &data), flags).unwrap() as u64, HALF);
        fs.truncate(filler, filled / 2).unwrap();
        fs.sync().unwrap();
        assert_eq!(write().unwrap(), data.len());
        let mut found = vec![0; data.len()];
        assert_eq!(fs.read(file, HALF, &mut found).unwrap(), data.len());
        assert!(found == data);
    }
}
