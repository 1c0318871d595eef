//! The file system in this process, called through the library.
//!
//! Invariants: every path is walked from the root. If the data exceed memory, writes reserve blocks without bytes.

use anyhow::{Result, ensure};
use everbyte_fs::{
    Allocation, FileSystem, FileType, InodeNo, Name, NewInode, OpenFile, RenameMode, SetAttr,
};
use everbyte_media::Mapped;

use super::target::Target;

/// Effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    /// Stores the bytes.
    Stored,
    /// Allocates and maps blocks that read as zeroes. Touches no memory of the data.
    Reserved,
}

/// The file system.
pub(crate) struct Library {
    pub(crate) fs: FileSystem<Mapped>,
    pub(crate) bytes: Bytes,
}

impl Library {
    fn place<'p>(&self, path: &'p str) -> Result<(InodeNo, Name<'p>)> {
        Ok(self.fs.place_at(self.fs.root(), path.as_bytes())?)
    }

    fn make(&self, path: &str, kind: FileType) -> Result<InodeNo> {
        let (parent, name) = self.place(path)?;
        let permissions = if kind == FileType::Directory { 0o755 } else { 0o644 };
        let new = NewInode { kind, permissions, uid: 0, gid: 0, device: 0, umask: 0, target: &[] };
        Ok(self.fs.create_inode(parent, name, &new)?.inode)
    }
}

impl Target for Library {
    type File = OpenFile<Mapped>;

    fn unit_bytes(&self) -> usize {
        1
    }

    fn note(&self) -> Option<&'static str> {
        (self.bytes == Bytes::Reserved).then_some(
            "data exceed memory: blocks are reserved and not stored, and reading one fills 4 KiB with zeroes",
        )
    }

    fn make_directory(&self, path: &str) -> Result<()> {
        self.make(path, FileType::Directory).map(drop)
    }

    fn create(&self, path: &str) -> Result<Self::File> {
        Ok(self.fs.open_file(self.make(path, FileType::Regular)?)?)
    }

    fn make_file(&self, path: &str) -> Result<()> {
        self.make(path, FileType::Regular).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        Ok(self.fs.rename(from, to, RenameMode::Replace)?)
    }

    fn set_permissions(&self, path: &str, permissions: u32) -> Result<()> {
        let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
        let inode = self.fs.attr_at(self.fs.root(), path.as_bytes(), true)?.inode;
        self.fs.set_attr(inode, &set)?;
        Ok(())
    }

    fn open(&self, path: &str) -> Result<Self::File> {
        Ok(self.fs.open_file_at(self.fs.root(), path.as_bytes())?)
    }

    fn stat(&self, path: &str) -> Result<u64> {
        Ok(self.fs.attr_at(self.fs.root(), path.as_bytes(), true)?.size)
    }

    fn delete(&self, path: &str) -> Result<()> {
        let (parent, name) = self.place(path)?;
        Ok(self.fs.unlink(parent, name)?)
    }

    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize> {
        Ok(self.fs.read_file(file, offset, into)?)
    }

    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()> {
        match self.bytes {
            Bytes::Stored => {
                let done = self.fs.write(file.inode(), offset, data)?;
                ensure!(done == data.len(), "{done} of {} bytes were written", data.len());
            }
            Bytes::Reserved => {
                let range = (offset, data.len() as u64);
                self.fs.allocate(file.inode(), range, Allocation::Reserve, false)?;
            }
        }
        Ok(())
    }

    fn append(&self, file: &Self::File, data: &[u8]) -> Result<()> {
        self.write(file, self.fs.attr(file.inode())?.size, data)
    }

    fn truncate(&self, file: &Self::File) -> Result<()> {
        self.fs.truncate(file.inode(), 0)?;
        Ok(())
    }

    fn fsync(&self, file: &Self::File) -> Result<()> {
        Ok(self.fs.sync_inode(file.inode())?)
    }

    fn close(&self, file: Self::File) -> Result<()> {
        Ok(self.fs.close_file(file)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }
}
