//! Files of our file system as targets: in process on emulated memory, and on a mount through the kernel.
//!
//! Invariant: the library has one file. Its writes are atomic per request, as on the mount.

use std::fs::{self, OpenOptions as FileOptions};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use everbyte_device::Fua;
use everbyte_fs::{FileSystem, FileType, FsOptions, InodeNo, Name, NewInode, kinds};
use everbyte_media::{BLOCK_U64, Mapped, Technology};
use everbyte_pool::{OpenOptions, Pool};

use super::target::{FileTarget, Target, memory};
use super::{LIBRARY, MOUNT, Settings};
use crate::mount::room::Room;
use crate::mount::server::Server;
use crate::subject::Counts;
use crate::subjects::floor::medium_counts;

/// A file of the library.
pub(super) struct LibraryTarget {
    fs: FileSystem<Mapped>,
    file: InodeNo,
    medium: Arc<Mapped>,
}

impl LibraryTarget {
    /// A file of up to `file_bytes`, in a file system on `technology` with a log of `log_bytes`.
    ///
    /// # Errors
    /// No memory; an error of the library.
    pub(super) fn new(technology: Technology, file_bytes: u64, log_bytes: u64) -> Result<Self> {
        let len = 2 * file_bytes + log_bytes + (32 << 20);
        let medium = memory(len, technology)?;
        Pool::format(&*medium, 1, [6; 16])?;
        let open = OpenOptions { capacity_blocks: len / BLOCK_U64 };
        let pool = Arc::new(Pool::open(Arc::clone(&medium), kinds(), &open)?);
        let options = FsOptions { log_bytes: Some(log_bytes), lanes: 2, ..FsOptions::default() };
        let fs = FileSystem::create(&pool, "files", len, &options)?;
        let new = NewInode {
            kind: FileType::Regular,
            permissions: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            device: 0,
            target: &[],
        };
        let file = fs.create_inode(fs.root(), Name::new(b"file")?, &new)?.inode;
        fs.open_inode(file)?;
        Ok(Self { fs, file, medium })
    }
}

impl Target for LibraryTarget {
    fn name(&self) -> &str {
        LIBRARY
    }

    fn clear(&self, bytes: u64) -> Result<()> {
        self.fs.truncate(self.file, 0)?;
        self.fs.truncate(self.file, bytes)?;
        self.sync()
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<()> {
        let written = match fua {
            Fua::Yes => self.fs.write_durably(self.file, offset, data)?,
            Fua::No => self.fs.write(self.file, offset, data)?,
        };
        ensure!(written == data.len(), "{written} of {} bytes were written", data.len());
        Ok(())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let read = self.fs.read(self.file, offset, out)?;
        ensure!(read == out.len(), "{read} of {} bytes were read", out.len());
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }

    fn counts(&self) -> Option<Counts> {
        Some(medium_counts(&*self.medium, self.fs.volume().log_bytes()))
    }
}

/// A mount of ours. It ends before its room.
pub(super) struct MountHere {
    pub(super) server: Server,
    _room: Room,
}

impl MountHere {
    /// A mount in the folder of `settings` with a pool of `bytes`.
    ///
    /// # Errors
    /// The user is not root; FUSE is absent; the server does not start.
    pub(super) fn new(settings: &Settings, bytes: u64) -> Result<Self> {
        let covered = settings.folder().join("mounts");
        fs::create_dir_all(&covered)?;
        let room = Room::new(&covered)?;
        Ok(Self { server: Server::ours(&room, bytes)?, _room: room })
    }

    /// A new file on the mount.
    ///
    /// # Errors
    /// An error of the system.
    pub(super) fn file(&self) -> Result<FileTarget> {
        let path = self.server.dir.join("file");
        let file = FileOptions::new().read(true).write(true).create_new(true).open(&path);
        Ok(FileTarget::new(MOUNT, file.with_context(|| format!("cannot make {}", path.display()))?))
    }
}
