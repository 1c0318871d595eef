//! Flags of files: the ioctls of `chattr` and `lsattr`, and openings forbidden by the flags.
//!
//! Since version 5.13 Linux checks the caller before it sends these ioctls. Older kernels check nothing. The kernel does not
//! know the flags, so the file system refuses forbidden changes.
//!
//! Invariant: no descriptor for writing leads to an immutable file, because a store through a mapping fails too late.

use std::sync::Arc;

use everbyte_fs::{Attr, FileFlags, FsError, InodeNo};
use everbyte_media::Medium;
use fuser::{Errno, FopenFlags, OpenFlags, ReplyIoctl, Request};

use super::Operations;
use crate::caller::{changes_flags, owns_files_of};
use crate::convert::errno;

/// Commands of `linux/fs.h`. The first two name the size of a `long`. The kernel sends 32 bits.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// Bytes of the flags of the first two commands, and of a `struct fsxattr`.
const FLAGS_BYTES: usize = 4;
const XATTR_BYTES: usize = 28;

/// Flags and their bits in the first word of a `struct fsxattr`.
const XFLAGS: [(FileFlags, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x08),
    (FileFlags::APPEND_ONLY, 0x10),
    (FileFlags::NO_ATIME, 0x40),
    (FileFlags::NO_DUMP, 0x80),
];

impl<M: Medium> Operations<M> {
    /// Answers an ioctl with `data` by `out_bytes` bytes.
    pub(super) fn answer_ioctl(
        &self,
        request: &Request,
        inode: InodeNo,
        (command, data, out_bytes): (u32, &[u8], u32),
        reply: ReplyIoctl,
    ) {
        let wanted = match command {
            _ if SET_FLAGS.contains(&command) => flags_of(data),
            SET_XATTR => flags_of_xattr(data),
            _ if GET_FLAGS.contains(&command) || command == GET_XATTR => {
                let answer = |attr: Attr| match command {
                    GET_XATTR => xattr_of(attr.flags).to_vec(),
                    _ => attr.flags.bits().to_le_bytes().to_vec(),
                };
                return match self.fs.attr(inode).map(answer) {
                    Ok(answer) => reply_bytes(answer, out_bytes, reply),
                    Err(error) => reply.error(errno(&error)),
                };
            }
            _ => return reply.error(Errno::ENOTTY),
        };
        match wanted.and_then(|wanted| self.check_caller(request, inode, wanted)) {
            Ok(wanted) => self.set_flags(inode, wanted, reply),
            Err(errno) => reply.error(errno),
        }
    }

    /// Checks that the caller may set these flags, as the kernel does, and returns them.
    fn check_caller(
        &self,
        request: &Request,
        inode: InodeNo,
        wanted: FileFlags,
    ) -> Result<FileFlags, Errno> {
        let attr = self.fs.attr(inode).map_err(|error| errno(&error))?;
        let is_privileged = attr.flags.difference(wanted).has(FileFlags::PRIVILEGED);
        let may = owns_files_of(request, attr.uid) && (!is_privileged || changes_flags(request));
        if may { Ok(wanted) } else { Err(Errno::EPERM) }
    }

    /// Sets flags. Before, the kernel writes the dirty pages of the file: it could not write them later.
    fn set_flags(&self, inode: InodeNo, wanted: FileFlags, reply: ReplyIoctl) {
        let fs = Arc::clone(&self.fs);
        self.caches.answer_apart(move |caches| {
            if let Some(caches) = caches {
                caches.forget_inode(inode);
            }
            let set = fs.set_flags(inode, wanted);
            // The time of the change is another one.
            if let Some(caches) = caches {
                caches.forget_attributes(inode);
            }
            match set {
                Ok(_) => reply.ioctl(0, &[]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    /// Checks an opening of `inode` against its flags, and returns flags for the kernel.
    pub(super) fn check_open(
        &self,
        inode: InodeNo,
        flags: OpenFlags,
    ) -> Result<FopenFlags, FsError> {
        if flags.0 & libc::O_ACCMODE == libc::O_RDONLY {
            return Ok(self.read_flags);
        }
        let has = self.fs.attr(inode)?.flags;
        if has.has(FileFlags::IMMUTABLE) {
            Err(FsError::Immutable)
        } else if !has.has(FileFlags::APPEND_ONLY) {
            Ok(self.open_flags)
        } else if flags.0 & libc::O_APPEND == 0 {
            Err(FsError::AppendOnly)
        } else {
            // Without cached pages no shared mapping can be made, whose stores would not be appended.
            Ok(FopenFlags::FOPEN_DIRECT_IO)
        }
    }
}

/// Answers with `bytes`, and zeroes behind them if the answer has more.
fn reply_bytes(mut bytes: Vec<u8>, out_bytes: u32, reply: ReplyIoctl) {
    match usize::try_from(out_bytes) {
        Ok(len) if (bytes.len()..=XATTR_BYTES).contains(&len) => {
            bytes.resize(len, 0);
            reply.ioctl(0, &bytes);
        }
        _ => reply.error(Errno::EINVAL),
    }
}

/// The flags in a request.
///
/// # Errors
/// `EOPNOTSUPP` for unsupported flags, `EINVAL` for too few bytes.
fn flags_of(data: &[u8]) -> Result<FileFlags, Errno> {
    let bits = data.first_chunk::<FLAGS_BYTES>().ok_or(Errno::EINVAL)?;
    FileFlags::from_bits(u32::from_le_bytes(*bits)).ok_or(Errno::EOPNOTSUPP)
}

/// The same in a `struct fsxattr`: flags, an extent size, a number of extents, a project, another extent size, padding.
fn flags_of_xattr(data: &[u8]) -> Result<FileFlags, Errno> {
    let data = data.first_chunk::<XATTR_BYTES>().ok_or(Errno::EINVAL)?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| data[4 * at + byte]));
    let known = XFLAGS.iter().fold(0, |known, (_, bit)| known | bit);
    if word(0) & !known != 0 || [1, 3, 4].map(word) != [0; 3] {
        return Err(Errno::EOPNOTSUPP);
    }
    let chosen = XFLAGS.iter().filter(|(_, bit)| word(0) & bit != 0);
    Ok(chosen.fold(FileFlags::NONE, |flags, (flag, _)| flags.with(*flag)))
}

fn xattr_of(flags: FileFlags) -> [u8; XATTR_BYTES] {
    let chosen = XFLAGS.iter().filter(|(flag, _)| flags.has(*flag));
    let mut data = [0; XATTR_BYTES];
    data[..4].copy_from_slice(&chosen.fold(0, |bits, (_, bit)| bits | bit).to_le_bytes());
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_pass_both_forms() {
        for bits in (0..=0xf0).step_by(0x10) {
            let flags = FileFlags::from_bits(bits).unwrap();
            assert_eq!(flags_of(&bits.to_le_bytes()).ok(), Some(flags));
            assert_eq!(flags_of(&u64::from(bits).to_le_bytes()).ok(), Some(flags));
            assert_eq!(flags_of_xattr(&xattr_of(flags)).ok(), Some(flags));
        }
    }

    #[test]
    fn other_flags_are_not_supported() {
        let code = |refused: Result<FileFlags, Errno>| refused.unwrap_err().code();
        for bits in [1_u32, 0x8, 0x8_0000, 0x100, 1 << 31] {
            assert_eq!(code(flags_of(&bits.to_le_bytes())), libc::EOPNOTSUPP, "{bits:#x}");
        }
        for (at, value) in [(0, 0x20), (0, 0x1), (3, 0x80), (4, 1), (12, 1), (16, 1)] {
            let mut data = [0; XATTR_BYTES];
            data[at] = value;
            assert_eq!(code(flags_of_xattr(&data)), libc::EOPNOTSUPP, "byte {at}");
        }
        assert_eq!(code(flags_of(&[0; 3])), libc::EINVAL);
        assert_eq!(code(flags_of_xattr(&[0; 27])), libc::EINVAL);
    }
}
