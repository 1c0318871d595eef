//! Opening of files named by a user: the type is checked first, and again on the open descriptor.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::entry::{Entry, Identity, Kind};

/// The use of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    fn flags(self) -> OFlags {
        let access = match self {
            Self::Read => OFlags::RDONLY,
            Self::Write => OFlags::WRONLY,
            Self::ReadWrite => OFlags::RDWR,
        };
        // A named pipe, a device without a medium and a terminal never block the opening.
        access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC
    }
}

/// The error if a file is of another type than wanted. The source of an [`io::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongKind {
    /// The type of the file.
    pub found: Kind,
}

impl fmt::Display for WrongKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is a {}", self.found)
    }
}

impl std::error::Error for WrongKind {}

impl WrongKind {
    /// The error in an [`io::Error`] of this crate, if it has one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    fn error(found: Kind) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, Self { found })
    }
}

/// Looks up the file at `path` without opening it. Links are followed, as the kernel follows them.
///
/// # Errors
/// The system's.
pub fn look(path: &Path) -> io::Result<Entry> {
    Entry::new(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// The same for a link at the end of `path`, without following it.
///
/// # Errors
/// The system's.
pub fn look_at_link(path: &Path) -> io::Result<Entry> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Entry::new(openat(CWD, path, flags, Mode::empty())?.into())
}

/// Opens the file at `path` if it is of one of `kinds`. Links are followed, as the kernel follows them.
/// Never waits: the opened file blocks as usual.
///
/// # Errors
/// The system's; [`WrongKind`]; a named pipe for writing has no reader.
pub fn open(path: &Path, access: Access, kinds: &[Kind]) -> io::Result<(File, Metadata)> {
    let found = look(path)?;
    open_checked(&found, access, kinds, |flags| openat(CWD, path, flags, Mode::empty()))
}

/// Opens the file at `path` as [`open`] does, with additional flags.
///
/// # Errors
/// As [`open`].
pub fn open_at(
    path: &Path,
    access: Access,
    flags: OFlags,
    kinds: &[Kind],
) -> io::Result<(File, Metadata)> {
    let found = look(path)?;
    let open = |all: OFlags| openat(CWD, path, all | flags, Mode::empty());
    open_checked(&found, access, kinds, open)
}

/// The bytes of a regular file of at most `bytes_max` bytes. Links are followed.
///
/// # Errors
/// As [`open`]; the file is larger.
pub fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path, Access::Read, &[Kind::File])?;
    read_bounded(file, bytes_max)
}

/// As [`read_file`], for a file that decides about the rights of the process.
///
/// # Errors
/// As [`read_file`]. A user other than root and the user of the process owns the file or can write it.
pub fn read_trusted_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let (file, metadata) = open(path, Access::Read, &[Kind::File])?;
    let refused = |what: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != geteuid().as_raw() {
        return refused(format!("user {owner} owns it: give it to root by chown"));
    }
    // A user's own group may write: users with a group of their own have such files.
    let writers = if metadata.gid() == getegid().as_raw() { 0o002 } else { 0o022 };
    if mode & writers != 0 {
        return refused(format!("its mode {mode:o} lets other users write it: run chmod go-w"));
    }
    read_bounded(file, bytes_max)
}

fn read_bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed shows a file that is larger or grows during the read.
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let what = format!("it has more than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Opens a looked-up file. Opening a device can have effects: `found` prevents it for a wrong type.
pub(crate) fn open_checked<E>(
    found: &Entry,
    access: Access,
    kinds: &[Kind],
    open: impl FnOnce(OFlags) -> Result<rustix::fd::OwnedFd, E>,
) -> io::Result<(File, Metadata)>
where
    io::Error: From<E>,
{
    if !kinds.contains(&found.kind()) {
        return Err(WrongKind::error(found.kind()));
    }
    let opened = open(access.flags()).map_err(io::Error::from);
    let file = File::from(opened.map_err(|error| match error.raw_os_error() {
        Some(number) if number == Errno::NXIO.raw_os_error() && found.kind() == Kind::Fifo => {
            io::Error::new(error.kind(), "it is a named pipe, and no program reads it")
        }
        _ => error,
    })?);
    let metadata = file.metadata()?;
    // The name was resolved twice, and another process may have replaced it in between.
    if Identity::of(&metadata) != found.identity() {
        // It is another file now, and is not opened by chance.
        if !kinds.contains(&Kind::of(&metadata)) {
            return Err(WrongKind::error(Kind::of(&metadata)));
        }
        return Err(io::Error::other("another process replaced it"));
    }
    let flags = fcntl_getfl(&file)?;
    // Needed only for the opening. Callers expect blocking reads.
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok((file, metadata))
}
