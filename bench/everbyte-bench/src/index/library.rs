//! Our file system in process, through the library.
//!
//! Invariants: every path is walked from the root. If the data exceed memory, reserved bytes replace written bytes.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use everbyte_fs::{
    Allocation, Attr, FileSystem, FileType, InodeNo, Name, NewInode, OpenFile, RenameMode, SetAttr,
};
use everbyte_media::Mapped;
use parking_lot::Mutex;

use super::target::Target;

/// The fate of bytes that are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    /// They are stored.
    Stored,
    /// Blocks are taken and mapped for them, and read as zeroes: no memory is touched.
    Reserved,
}

/// A file system of ours.
pub(crate) struct Library {
    pub(crate) fs: FileSystem<Mapped>,
    bytes: Bytes,
    is_recording: AtomicBool,
    /// The inodes that were walked over while that was recorded.
    walked: Mutex<Vec<InodeNo>>,
    /// Memory that no other pool may get meanwhile.
    _held: Option<Arc<File>>,
}

impl Library {
    pub(crate) fn new(fs: FileSystem<Mapped>, bytes: Bytes) -> Self {
        let is_recording = AtomicBool::new(false);
        Self { fs, bytes, is_recording, walked: Mutex::default(), _held: None }
    }

    /// The same, in memory that is kept for other pools.
    pub(super) fn holding(self, memory: Arc<File>) -> Self {
        Self { _held: Some(memory), ..self }
    }

    /// The fate of bytes.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Records which inodes paths lead over while `act` runs, which the caller's threads alone do.
    ///
    /// # Errors
    /// Those of `act`.
    pub(crate) fn recording<R>(
        &self,
        act: impl FnOnce() -> Result<R>,
    ) -> Result<(R, Vec<InodeNo>)> {
        self.is_recording.store(true, Ordering::Relaxed);
        let result = act();
        self.is_recording.store(false, Ordering::Relaxed);
        let walked = std::mem::take(&mut *self.walked.lock());
        Ok((result?, walked))
    }

    fn note(&self, inode: InodeNo) {
        if self.is_recording.load(Ordering::Relaxed) {
            self.walked.lock().push(inode);
        }
    }

    /// Notes the inodes that `path` leads over, if that is recorded.
    fn note_walk(&self, path: &str) -> Result<()> {
        if !self.is_recording.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.note(self.fs.root());
        path.split('/').filter(|name| !name.is_empty()).try_fold(self.fs.root(), |at, name| {
            let inode = self.fs.lookup(at, Name::new(name.as_bytes())?)?.inode;
            self.note(inode);
            anyhow::Ok(inode)
        })?;
        Ok(())
    }

    /// The attributes of what is at `path`.
    fn find(&self, path: &str) -> Result<Attr> {
        self.note_walk(path)?;
        Ok(self.fs.attr_at(self.fs.root(), path.as_bytes(), true)?)
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(InodeNo, Name<'p>)> {
        self.note_walk(path.rsplit_once('/').map_or("", |(parent, _)| parent))?;
        Ok(self.fs.place_at(self.fs.root(), path.as_bytes())?)
    }

    fn make(&self, path: &str, kind: FileType) -> Result<InodeNo> {
        let (parent, name) = self.parent(path)?;
        let permissions = if kind == FileType::Directory { 0o755 } else { 0o644 };
        let new = NewInode { kind, permissions, uid: 0, gid: 0, device: 0, umask: 0, target: &[] };
        let inode = self.fs.create_inode(parent, name, &new)?.inode;
        self.note(inode);
        Ok(inode)
    }
}

impl Target for Library {
    type File = OpenFile<Mapped>;

    fn unit_bytes(&self) -> usize {
        1
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
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        Ok(self.fs.rename(from, to, RenameMode::Replace)?)
    }

    fn set_permissions(&self, path: &str, permissions: u32) -> Result<()> {
        let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
        self.fs.set_attr(self.find(path)?.inode, &set)?;
        Ok(())
    }

    fn open(&self, path: &str) -> Result<Self::File> {
        self.note_walk(path)?;
        Ok(self.fs.open_file_at(self.fs.root(), path.as_bytes())?)
    }

    fn stat(&self, path: &str) -> Result<u64> {
        Ok(self.find(path)?.size)
    }

    fn delete(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
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

    fn lookups(&self) -> u64 {
        everbyte_fs::lookups_of_this_thread()
    }
}
