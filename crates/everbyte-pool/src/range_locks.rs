//! Locks of ranges of a pool's file: a program has memory on loan there.
//!
//! They belong to an open file description, not to a process: each copy of its descriptor, and each mapping
//! made through it, holds them. The kernel ends them with the last of those, however that process ends. POSIX
//! locks are unsuitable, since any `close` of the file drops them.

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_UNLCK, F_WRLCK, SEEK_SET, c_int, c_short, flock};

/// Locks bytes of `file` for its description. Returns false if another description has some.
///
/// # Errors
/// The system's.
pub fn lock_range(file: &File, bytes: &Range<u64>) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole(bytes)?)) {
        Ok(_) => Ok(true),
        // POSIX allows either number for a range locked by another.
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if a description other than `file`'s has some of the bytes.
///
/// # Errors
/// The system's.
pub fn is_range_locked(file: &File, bytes: &Range<u64>) -> io::Result<bool> {
    let mut found = whole(bytes)?;
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(c_int::from(found.l_type) != F_UNLCK)
}

/// A lock for writing of all these bytes.
fn whole(bytes: &Range<u64>) -> io::Result<flock> {
    let too_far = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let short = |value: c_int| c_short::try_from(value).expect("a small constant of the system");
    Ok(flock {
        l_type: short(F_WRLCK),
        l_whence: short(SEEK_SET),
        l_start: bytes.start.try_into().map_err(too_far)?,
        l_len: (bytes.end - bytes.start).try_into().map_err(too_far)?,
        // The kernel refuses any other value for locks of a description.
        l_pid: 0,
    })
}
