//! The kernel's words for ours: attributes, times, types, numbers, errors.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use everbyte_fs::{
    Attr, FileType, FsError, InodeNo, MODE_PERMISSIONS, NewInode, RenameMode, SetTime,
};
use fuser::{Errno, FileAttr, INodeNo, RenameFlags, Request, TimeOrNow};

use crate::outcome::note_error;

const BLOCK: u32 = 4096;
const SECTORS_PER_BLOCK: u64 = 8;

/// The kernel's number of the root.
const ROOT: u64 = 1;

/// The kernel's number of `inode`, where `root` is the root.
pub(crate) fn number(root: InodeNo, inode: InodeNo) -> INodeNo {
    INodeNo(if inode == root { ROOT } else { inode.0 })
}

/// The inode with the kernel's number `number`.
pub(crate) fn inode(root: InodeNo, number: INodeNo) -> InodeNo {
    if number.0 == ROOT { root } else { InodeNo(number.0) }
}

/// The kernel's attributes of a file.
pub(crate) fn attributes(root: InodeNo, attr: &Attr) -> FileAttr {
    // Programs expect bytes here, and the file system counts entries.
    let size = match attr.kind {
        FileType::Directory => attr.blocks * u64::from(BLOCK),
        _ => attr.size,
    };
    FileAttr {
        ino: number(root, attr.inode),
        size,
        blocks: attr.blocks * SECTORS_PER_BLOCK,
        atime: time(attr.accessed_ns),
        mtime: time(attr.modified_ns),
        ctime: time(attr.changed_ns),
        crtime: time(attr.created_ns),
        kind: kind(attr.kind),
        perm: u16::try_from(attr.permissions).unwrap_or(0),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: u32::try_from(attr.device).unwrap_or(0),
        blksize: BLOCK,
        flags: 0,
    }
}

/// The attributes for a missing name in the kernel.
pub(crate) fn no_attributes() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

/// The attributes of an unreadable file. The kernel refuses them: it shows the name, the number and
/// the type of the entry to programs, looks nothing up, and immediately forgets the file.
pub(crate) fn refused_attributes(number: INodeNo, file: FileType) -> FileAttr {
    FileAttr { ino: number, size: u64::MAX, kind: kind(file), ..no_attributes() }
}

pub(crate) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

/// The time of an attribute, from nanoseconds since 1970 within the range of an inode.
fn time(ns: i128) -> SystemTime {
    let distance = Duration::from_nanos_u128(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// A time to be set.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(received_ns(time)),
    }
}

/// The nanoseconds since 1970 that the kernel has sent, from fuser's time. The kernel adds the
/// fraction of a second to the seconds. fuser 0.18 subtracts it before 1970.
fn received_ns(time: SystemTime) -> i128 {
    const SECOND_NS: i128 = 1_000_000_000;
    // The fraction counts upward in both cases, by the format of the kernel.
    let (seconds, fraction_ns) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (i128::from(since.as_secs()), since.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            (-i128::from(before.as_secs()), before.subsec_nanos())
        }
    };
    seconds * SECOND_NS + i128::from(fraction_ns)
}

/// A new file of a request's caller.
pub(crate) fn new_inode<'a>(
    request: &Request,
    kind: FileType,
    (mode, umask): (u32, u32),
) -> NewInode<'a> {
    let (uid, gid) = (request.uid(), request.gid());
    let permissions = mode & MODE_PERMISSIONS;
    NewInode { kind, permissions, umask, uid, gid, device: 0, target: &[] }
}

/// The rename mode of a request, if its flags are known.
pub(crate) fn rename_mode(request: &Request, flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else if flags & !RenameFlags::RENAME_NOREPLACE == RenameFlags::RENAME_WHITEOUT {
        let replaces = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        Some(RenameMode::Whiteout { uid: request.uid(), gid: request.gid(), replaces })
    } else {
        None
    }
}

/// Logs that a forgotten file could not be freed. At the end of a server this concerns each file in
/// use, removed or not, and the next opening frees the removed ones.
pub(crate) fn log_unfreed(error: &FsError) {
    if error.is_closed() {
        tracing::debug!("forgotten files are freed when the volume is opened again: {error}");
    } else {
        tracing::error!("a removed file is not freed: {error}");
    }
}

/// The error number for the kernel.
pub(crate) fn errno(error: &FsError) -> Errno {
    let errno = error.errno();
    note_error(errno, error.is_closed());
    if error.is_closed() {
        // The server is ending, and no action is required.
        tracing::debug!("{error}");
    } else if errno == libc::EIO {
        tracing::error!("{error}");
    }
    Errno::from_i32(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_number_one_in_the_kernel() {
        for root in [InodeNo(1), InodeNo(9)] {
            assert_eq!(number(root, root), INodeNo(1));
            assert_eq!(inode(root, INodeNo(1)), root);
            assert_eq!(inode(root, number(root, InodeNo(77))), InodeNo(77));
        }
    }

    #[test]
    fn time_before_1970_keeps_fraction() {
        // fuser's time for -5 s and 7 ns.
        let before = UNIX_EPOCH - Duration::new(5, 7);
        assert_eq!(set_time(TimeOrNow::SpecificTime(before)), SetTime::At(-4_999_999_993));
        assert_eq!(time(-4_999_999_993), UNIX_EPOCH - Duration::new(4, 999_999_993));
        let after = UNIX_EPOCH + Duration::new(5, 7);
        assert_eq!(set_time(TimeOrNow::SpecificTime(after)), SetTime::At(5_000_000_007));
        assert_eq!(time(5_000_000_007), after);
    }
}
