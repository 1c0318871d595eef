//! A name's file without opening its contents: kind, identity, target of a link.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::fs::{AtFlags, readlinkat, utimensat};
use rustix::io::Errno;

use crate::attributes::{Attributes, set_owner};

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// The type in metadata.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let kind: FileType = metadata.file_type();
        let kinds = [
            (kind.is_file(), Self::File),
            (kind.is_dir(), Self::Directory),
            (kind.is_symlink(), Self::Symlink),
            (kind.is_fifo(), Self::Fifo),
            (kind.is_char_device(), Self::CharDevice),
            (kind.is_block_device(), Self::BlockDevice),
        ];
        // Linux has seven types, and the six others have been excluded.
        kinds.into_iter().find(|(is, _)| *is).map_or(Self::Socket, |(_, kind)| kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "regular file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        })
    }
}

/// Device and inode of a file. Two descriptors with the same identity have the same file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// The device of the inode.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

impl Identity {
    /// The identity in metadata.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// A file found by its name, held by an `O_PATH` descriptor: its contents are not open. A symbolic
/// link is not followed.
#[derive(Debug)]
pub struct Entry {
    file: File,
    metadata: Metadata,
}

impl Entry {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        // Of the descriptor, so type and identity belong to the same file as later calls.
        let metadata = file.metadata()?;
        Ok(Self { file, metadata })
    }

    /// Its type.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::of(&self.metadata)
    }

    /// Its identity.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::of(&self.metadata)
    }

    /// Its metadata when the name was looked up.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The system's; it is not a symbolic link.
    pub fn link_target(&self) -> io::Result<OsString> {
        let target = readlinkat(&self.file, "", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// Sets owner and times of a symbolic link. A link has no permissions.
    ///
    /// # Errors
    /// The system's.
    pub fn set_link_attributes(&self, attributes: &Attributes) -> io::Result<()> {
        set_owner(&self.file, attributes, AtFlags::EMPTY_PATH)?;
        let Some(times) = &attributes.times else { return Ok(()) };
        match utimensat(&self.file, "", times, AtFlags::EMPTY_PATH) {
            // Kernels before 5.8 set times of a link by its name only. A name can lead to another file.
            Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            done => Ok(done?),
        }
    }
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
