//! File systems: files and directories in the pool. See [`FileSystem`].

use std::fmt;
use std::sync::Arc;

use everbyte_media::Mapped;

pub use everbyte_fs::{
    Attr, DirEntry, FileType, FsError, FsOptions, FsStatus, IndexKind, InodeNo, Name, NewInode,
    SetAttr, SetTime,
};
use everbyte_fs::{Located, RenameMode};

use crate::error::Error;
use crate::shared::{Engine, Shared};

/// The engine's file system, with the operations that a kernel asks for: by inode and name, and more than
/// the handle has.
pub type EngineFs = everbyte_fs::FileSystem<Mapped>;

/// An open file system in the pool.
///
/// A handle is `Send`, `Sync` and cheap to clone; all clones are one open file system, and every method
/// may be called from any number of threads. It can be opened again once the last clone is dropped. A
/// handle keeps its pool open.
///
/// Paths begin at the root, with or without a slash; `..` and symbolic links are followed. Permissions are
/// kept and not checked. Every operation is there as a whole or not at all after a crash, in the order in
/// which operations returned; reading and writing of more than 1 MiB are atomic in parts. What was
/// done before a [`sync`](FileSystem::sync) began is durable once that returned, everything else after
/// at most the pool's [checkpoint interval](crate::PoolBuilder::checkpoint_interval).
#[derive(Clone)]
pub struct FileSystem(Arc<Inner>);

/// Dropped in this order: the volume first, because dropping the last handle of the pool closes it.
struct Inner {
    fs: EngineFs,
    shared: Arc<Shared>,
}

impl FileSystem {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        size_bytes: u64,
        options: &FsOptions,
    ) -> Result<Self, Error> {
        shared.check_writable()?;
        let made = EngineFs::create(&shared.engine, name, size_bytes, options);
        Ok(Self::new(made.map_err(Error::volume(name))?, shared))
    }

    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        shared.check_open()?;
        Ok(Self::new(open_engine(&shared.engine, name)?, shared))
    }

    fn new(fs: EngineFs, shared: &Arc<Shared>) -> Self {
        Self(Arc::new(Inner { fs, shared: Arc::clone(shared) }))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.fs.volume().name()
    }

    /// The engine's file system, for everything that paths are too slow or too little for.
    #[must_use]
    pub fn engine(&self) -> &EngineFs {
        &self.0.fs
    }

    /// Makes the file system `size_bytes` large, a positive multiple of 512, while it is in use. Durable
    /// when it returns.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Volume`] if the size cannot be, is less than what is in use, or more
    /// than the pool has free. It has its old size then.
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.0.fs.resize(size_bytes).map_err(Error::volume(self.name()))
    }

    /// How full it is.
    #[must_use]
    pub fn status(&self) -> FsStatus {
        self.0.fs.status()
    }

    /// The attributes of the file at `path`.
    ///
    /// # Errors
    /// [`Error::File`] if there is none.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attr, Error> {
        let path = path.as_ref();
        self.existing(path).map_err(self.failed(path))
    }

    /// The bytes of the regular file at `path`.
    ///
    /// # Errors
    /// [`Error::File`] if there is none, or it cannot be read.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref();
        let read = || {
            let attr = self.existing(path)?;
            let mut bytes = vec![0; usize::try_from(attr.size).map_err(|_| FsError::TooLarge)?];
            let len = self.0.fs.read(attr.inode, 0, &mut bytes)?;
            bytes.truncate(len);
            Ok(bytes)
        };
        read().map_err(self.failed(path))
    }

    /// Makes `bytes` the contents of the regular file at `path`, which is made if there is none, with
    /// permissions 0644.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the directory is missing, there is no room. Some of the bytes
    /// may have been written then.
    pub fn write(&self, path: impl AsRef<[u8]>, bytes: &[u8]) -> Result<(), Error> {
        let path = path.as_ref();
        self.change(path, || {
            let inode = match self.locate(path)? {
                Located { file: Some(file), .. } => file.inode,
                located => self.make(located, FileType::Regular, 0o644)?.inode,
            };
            self.0.fs.truncate(inode, 0)?;
            let mut done = 0;
            while done < bytes.len() {
                done += self.0.fs.write(inode, done as u64, &bytes[done..])?;
            }
            Ok(())
        })
    }

    /// Makes a directory with permissions 0755.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the name exists, its directory is missing, there is no room.
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.change(path, || {
            let located = self.locate(path)?;
            if located.file.is_some() {
                return Err(FsError::Exists);
            }
            self.make(located, FileType::Directory, 0o755).map(drop)
        })
    }

    /// The entries of the directory at `path`, in no order, without `.` and `..`.
    ///
    /// # Errors
    /// [`Error::File`] if there is none.
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>, Error> {
        let path = path.as_ref();
        let list = || {
            let (directory, mut all) = (self.existing(path)?.inode, Vec::new());
            loop {
                let place = all.last().map_or(0, |last: &DirEntry| last.next);
                let entries = self.0.fs.list(directory, place)?;
                if entries.is_empty() {
                    return Ok(all);
                }
                all.extend(entries);
            }
        };
        list().map_err(self.failed(path))
    }

    /// Gives the file at `from` the name `to` instead, at once. What has that name loses it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`], as `rename` of the system.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<(), Error> {
        let (from, to) = (from.as_ref(), to.as_ref());
        self.change(from, || {
            let (parent, name) = self.place(from)?;
            let (new_parent, new_name) = self.place(to)?;
            let (name, new_name) = (Name::new(&name)?, Name::new(&new_name)?);
            self.0.fs.rename((parent, name), (new_parent, new_name), RenameMode::Replace)
        })
    }

    /// Takes the name at `path` away, of a file that is no directory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: there is none, it is a directory.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.change(path, || {
            let (parent, name) = self.place(path)?;
            self.0.fs.unlink(parent, Name::new(&name)?)
        })
    }

    /// Removes the directory at `path`, which is empty.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: there is none, or it has entries.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = path.as_ref();
        self.change(path, || {
            let (parent, name) = self.place(path)?;
            self.0.fs.remove_directory(parent, Name::new(&name)?)
        })
    }

    /// Makes everything durable that was done before.
    ///
    /// # Errors
    /// [`Error::File`] if the pool's memory fails: what was not durable before may be or not.
    pub fn sync(&self) -> Result<(), Error> {
        self.0.fs.sync().map_err(self.failed(b"/"))
    }

    /// Does `what` to the file at `path`, unless nothing may be changed.
    fn change(&self, path: &[u8], what: impl FnOnce() -> Result<(), FsError>) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        what().map_err(self.failed(path))
    }

    fn failed(&self, path: &[u8]) -> impl FnOnce(FsError) -> Error {
        let (volume, path) = (self.name().to_owned(), path.escape_ascii().to_string());
        move |source| Error::File { volume, path, source }
    }

    fn locate(&self, path: &[u8]) -> Result<Located, FsError> {
        self.0.fs.locate(self.0.fs.root(), path, true)
    }

    fn existing(&self, path: &[u8]) -> Result<Attr, FsError> {
        self.locate(path)?.file.ok_or(FsError::NotFound)
    }

    /// The name at the end of `path`, whatever it names, and its directory.
    fn place(&self, path: &[u8]) -> Result<(InodeNo, Vec<u8>), FsError> {
        let located = self.0.fs.locate(self.0.fs.root(), path, false)?;
        located.place.ok_or(FsError::InvalidName)
    }

    fn make(&self, at: Located, kind: FileType, permissions: u32) -> Result<Attr, FsError> {
        let (parent, name) = at.place.ok_or(FsError::InvalidName)?;
        // A program that embeds this may act for anybody: what is new belongs to whoever has the directory.
        let Attr { uid, gid, .. } = self.0.fs.attr(parent)?;
        let new = NewInode { kind, permissions, umask: 0, uid, gid, device: 0, target: &[] };
        self.0.fs.create_inode(parent, Name::new(&name)?, &new)
    }
}

/// Opens the file system of this name.
pub(crate) fn open_engine(engine: &Arc<Engine>, name: &str) -> Result<EngineFs, Error> {
    EngineFs::open(engine, name).map_err(Error::volume(name))
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem").field("name", &self.name()).finish_non_exhaustive()
    }
}
