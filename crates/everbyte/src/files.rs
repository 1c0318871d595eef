//! File systems: files and directories in the pool. See [`FileSystem`].

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use everbyte_media::Mapped;

use everbyte_fs::PathTarget;
pub use everbyte_fs::{
    AccessTimes, Allocation, Attr, DirEntry, FileFlags, FilePlace, FileType, FsError, FsStatus,
    IndexKind, InodeNo, Leak, MODE_PERMISSIONS, Name, NewInode, OpenFile as EngineFile, PinLimits,
    ReadableEntries, RenameMode, Seek, SetAttr, SetAttribute, SetGroupId, SetTime, View,
};

use crate::builder::setters;
use crate::engine::Engine;
use crate::error::Error;
use crate::shared::Shared;

/// The engine's file system, with the operations of a kernel: by inode and name. It has more
/// operations than the handle.
pub type EngineFs = everbyte_fs::FileSystem<Mapped>;

/// Settings of a new file system.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct FsOptions {
    engine: everbyte_fs::FsOptions,
}

impl FsOptions {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }
}

setters! { FsOptions:
    /// The index over inode tables.
    index(index: IndexKind) => engine.index = index;

    /// Bytes of a node of the index: a power of two from 64 to 4096. Default: the kind of index decides.
    index_node_bytes(bytes: u32) => engine.index_node_bytes = Some(bytes);

    /// Most inodes. Default: an inode for each 16 KiB of the volume.
    inodes_max(inodes: u64) => engine.inodes_max = Some(inodes);

    /// Makes inode tables of 2 MiB instead of 4 KiB.
    large_tables(large: bool) => engine.large_tables = large;

    /// The owner of the root directory. Default: root.
    root_uid(uid: u32) => engine.root_uid = uid;

    /// The group of the root directory. Default: root.
    root_gid(gid: u32) => engine.root_gid = gid;

    /// Bytes of log over all lanes. Default: 1/32 of the size, from 2.5 to 128 MiB.
    log_bytes(bytes: u64) => engine.log_bytes = Some(bytes);

    /// Lanes of the log: the number of threads able to write concurrently. Default: 8.
    lanes(lanes: u32) => engine.lanes = lanes;

    /// Dirty 64-byte lines at which a background checkpoint begins, at least 1. Default: 65,536.
    checkpoint_lines(lines: u32) => engine.checkpoint_lines = lines.max(1);
}

/// Contents of at most so many bytes are written in one change, unless the log has no room for it.
const WHOLE_BYTES_MAX: usize = 1 << 20;

/// An open file system in the pool.
///
/// A handle is `Send`, `Sync` and cheap to clone; all clones are one open file system, and every method
/// may be called from any number of threads. It can be opened again once the last clone is dropped. A
/// handle keeps its pool open.
///
/// Paths begin at the root, with or without a slash. The handle follows `..` and symbolic links. It
/// stores permissions and does not check them. Every operation is atomic under a crash, except
/// [`write`](FileSystem::write): its documentation lists the cases with several changes. A crash
/// keeps operations in the order of their return. Everything done before the start of a
/// [`sync`](FileSystem::sync) is durable once the sync has returned. Everything else is durable
/// after at most the pool's [checkpoint interval](crate::PoolBuilder::checkpoint_interval).
#[derive(Clone)]
pub struct FileSystem(Arc<Inner>);

/// Dropped in this order: the volume first, because dropping the last handle of the pool closes it.
struct Inner {
    fs: Arc<EngineFs>,
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
        let made = EngineFs::create(&shared.engine, name, size_bytes, &options.engine);
        Ok(Self::new(made.map_err(Error::volume(name))?, shared))
    }

    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        shared.check_open()?;
        let fs = open_engine(&shared.engine, name)?;
        if shared.read_only {
            // The kernel lets changes through after a remount, and a private copy would take them and lose them.
            fs.volume().refuse_changes("the pool is open for reading only");
        }
        Ok(Self::new(fs, shared))
    }

    fn new(fs: EngineFs, shared: &Arc<Shared>) -> Self {
        Self(Arc::new(Inner { fs: Arc::new(fs), shared: Arc::clone(shared) }))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.fs.volume().name()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The engine's file system, for operations too slow or not available by path.
    #[must_use]
    pub fn engine(&self) -> &Arc<EngineFs> {
        &self.0.fs
    }

    /// Makes the file system `size_bytes` large, a positive multiple of 512, while it is in use. Durable
    /// when it returns.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Volume`] if the size is invalid, less than the space in use,
    /// or more than the pool has free. On an error, the volume keeps its old size.
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
    /// [`Error::File`] if the file does not exist.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.existing(path).map_err(self.failed(path))
    }

    /// The bytes of the regular file at `path`, of one moment.
    ///
    /// # Errors
    /// [`Error::File`] if the file does not exist, cannot be read, or memory for its bytes is
    /// missing.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        let read = self.with(path, |file| {
            // Room for one more byte shows a complete read.
            let mut room = file.size.saturating_add(1);
            loop {
                let mut bytes = zeroes(room)?;
                let len = self.0.fs.read(file.inode, 0, &mut bytes)?;
                if (len as u64) < room {
                    bytes.truncate(len);
                    return Ok(bytes);
                }
                // It has grown a moment ago.
                room = room.saturating_mul(2);
            }
        });
        read.map_err(self.failed(path))
    }

    /// Makes `bytes` the contents of the regular file at `path`. Creates a missing file with
    /// permissions 0644.
    ///
    /// If `bytes` has up to 1 MiB and is not shorter than the file, it replaces the contents
    /// atomically: after a crash, and for concurrent readers, the file has either the old or the
    /// new contents. (The replacement happens in parts only if no block is free and the log has no
    /// room for the old bytes.) Shorter contents, or contents over 1 MiB, need several changes: the
    /// call first empties the file, then writes it. Bytes beyond 2 MiB go in parts of 2 MiB, and
    /// these are zeroes until all have gone. In between, and after a crash in between, the file is
    /// empty or has a first part of `bytes`. A new file behaves alike: the call creates it before
    /// writing it. To replace any contents atomically, write a file of another name and
    /// [`rename`](FileSystem::rename) it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the directory is missing, or the space is used up. The
    /// call may have written some of the bytes.
    pub fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.change(path, || {
            let file = self.open_or_make(path)?;
            let done = self.replace(&file, bytes);
            self.0.fs.close_inode(file.inode)?;
            done
        })
    }

    /// Makes a directory with permissions 0755.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the name exists, its directory is missing, or the
    /// space is used up.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.change(path, || {
            if self.locate(path)?.file.is_some() {
                return Err(FsError::Exists);
            }
            self.make(path, FileType::Directory, 0o755).map(drop)
        })
    }

    /// The entries of the directory at `path`, in no order, without `.` and `..`.
    ///
    /// # Errors
    /// [`Error::File`] if the directory does not exist.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<Vec<DirEntry>, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        let listed = self.with(path, |directory| {
            let mut all = Vec::new();
            loop {
                let place = all.last().map_or(0, |last: &DirEntry| last.next);
                let entries = self.0.fs.list(directory.inode, place)?;
                if entries.is_empty() {
                    return Ok(all);
                }
                all.extend(entries);
            }
        });
        listed.map_err(self.failed(path))
    }

    /// Renames the file at `from` to `to` atomically. The previous file at `to` loses this name.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`], as `rename` of the system.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let (from, to) = (from.as_ref().as_os_str(), to.as_ref().as_os_str());
        let (from, to) = (from.as_bytes(), to.as_bytes());
        self.change(from, || {
            self.at_place(from, false, |parent, name| {
                self.at_place(to, false, |new_parent, new_name| {
                    let (old, new) = ((parent, name), (new_parent, new_name));
                    self.0.fs.rename(old, new, RenameMode::Replace)
                })
            })
        })
    }

    /// Removes the name at `path` of a file other than a directory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the file does not exist, or it is a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.change(path, || {
            self.at_place(path, false, |parent, name| self.0.fs.unlink(parent, name))
        })
    }

    /// Removes the empty directory at `path`.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the directory does not exist, or it has entries.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        self.change(path, || {
            // A slash may follow its name, as where it is made.
            let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
            self.at_place(&path[..end], false, |parent, name| {
                self.0.fs.remove_directory(parent, name)
            })
        })
    }

    /// Opens the regular file at `path`. Creates a missing file with permissions 0644. The handle
    /// keeps the bytes of the file, even if the file is removed.
    ///
    /// # Errors
    /// [`Error::File`]: its directory is missing, it is a directory, or the space is used up.
    /// [`Error::ReadOnly`] if it is missing in a read-only pool.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        let path = path.as_ref().as_os_str().as_bytes();
        let opened = match self.0.shared.read_only {
            true => self.0.fs.open_at(self.0.fs.root(), path),
            false => self.open_or_make(path),
        };
        let attr = opened.map_err(self.failed(path))?;
        let file = File { inode: attr.inode, fs: self.clone() };
        match attr.kind {
            FileType::Regular => Ok(file),
            FileType::Directory => Err(self.failed(path)(FsError::IsDirectory)),
            _ => Err(self.failed(path)(FsError::Invalid { what: "it is not a regular file" })),
        }
    }

    /// Makes all earlier operations durable.
    ///
    /// # Errors
    /// [`Error::File`] if the pool's memory fails: earlier operations not yet durable may be
    /// durable or not.
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

    fn locate(&self, path: &[u8]) -> Result<PathTarget, FsError> {
        self.0.fs.locate(self.0.fs.root(), path, true)
    }

    fn existing(&self, path: &[u8]) -> Result<Attr, FsError> {
        self.locate(path)?.file.ok_or(FsError::NotFound)
    }

    /// Calls `what` with the file at `path` and holds the file during the call: even if the file is
    /// removed, its number is not reused.
    fn with<T>(
        &self,
        path: &[u8],
        what: impl FnOnce(&Attr) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let fs = &self.0.fs;
        let file = fs.open_at(fs.root(), path)?;
        let done = what(&file);
        fs.close_inode(file.inode)?;
        done
    }

    /// Calls `what` with the directory and the last name of `path`, whether or not the name exists.
    /// With `follow`, uses the target of a link at this name. Holds the directory as [`Self::with`]
    /// holds a file.
    fn at_place<T>(
        &self,
        path: &[u8],
        follow: bool,
        what: impl FnOnce(InodeNo, Name<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let (parent, name) = self.hold_place(path, follow)?;
        let done = Name::new(&name).and_then(|name| what(parent, name));
        self.0.fs.close_inode(parent)?;
        done
    }

    /// Finds the directory and the last name of `path`, and opens the directory.
    fn hold_place(&self, path: &[u8], follow: bool) -> Result<(InodeNo, Vec<u8>), FsError> {
        loop {
            let (found, _) = self.place(path, follow)?;
            match self.0.fs.open_inode(found) {
                Err(FsError::Stale(_)) => continue,
                opened => opened?,
            };
            // Before it was held, another one could have got its number.
            match self.place(path, follow) {
                Ok((held, name)) if held == found => return Ok((held, name)),
                Ok(_) => self.0.fs.close_inode(found)?,
                Err(error) => {
                    self.0.fs.close_inode(found)?;
                    return Err(error);
                }
            }
        }
    }

    fn place(&self, path: &[u8], follow: bool) -> Result<(InodeNo, Vec<u8>), FsError> {
        let located = self.0.fs.locate(self.0.fs.root(), path, follow)?;
        located.place.ok_or(FsError::InvalidName)
    }

    /// Opens the file at `path`. Creates a regular file if the path does not exist.
    fn open_or_make(&self, path: &[u8]) -> Result<Attr, FsError> {
        let fs = &self.0.fs;
        loop {
            match fs.open_at(fs.root(), path) {
                Err(FsError::NotFound) => {}
                opened => return opened,
            }
            let made = match self.make(path, FileType::Regular, 0o644) {
                // Another caller has created it a moment ago.
                Err(FsError::Exists) => continue,
                made => made?,
            };
            match fs.open_inode(made.inode) {
                Ok(opened) if opened.generation == made.generation => return Ok(opened),
                // It was removed a moment ago.
                Ok(other) => fs.close_inode(other.inode)?,
                Err(FsError::Stale(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes `bytes` the contents of a held file.
    fn replace(&self, file: &Attr, bytes: &[u8]) -> Result<(), FsError> {
        // If one change cannot replace all the old bytes, the old bytes go first: a first part of
        // the new bytes is never followed by a rest of the old ones.
        let is_whole = !bytes.is_empty() && bytes.len() <= WHOLE_BYTES_MAX;
        if !is_whole || file.size > bytes.len() as u64 {
            self.0.fs.truncate(file.inode, 0)?;
        }
        let mut done = 0;
        while done < bytes.len() {
            done += self.0.fs.write(file.inode, done as u64, &bytes[done..])?;
        }
        Ok(())
    }

    fn make(&self, path: &[u8], kind: FileType, permissions: u32) -> Result<Attr, FsError> {
        self.at_place(path, true, |parent, name| {
            // The embedding program may act for any user: a new file gets the owner of its
            // directory.
            let Attr { uid, gid, .. } = self.0.fs.attr(parent)?;
            let new = NewInode { kind, permissions, umask: 0, uid, gid, device: 0, target: &[] };
            self.0.fs.create_inode(parent, name, &new)
        })
    }
}

/// An open regular file: ranges of its bytes. [`Cursor`](crate::stream::Cursor) makes a stream of it.
pub struct File {
    fs: FileSystem,
    inode: InodeNo,
}

impl File {
    /// Size in bytes.
    ///
    /// # Errors
    /// [`Error::Fs`] if the file cannot be read.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        Ok(self.fs.0.fs.attr(self.inode)?.size)
    }

    /// Reads bytes from `offset` on, and returns how many: fewer than asked for at the end of the file.
    ///
    /// # Errors
    /// [`Error::Fs`] if the bytes cannot be read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        Ok(self.fs.0.fs.read(self.inode, offset, out)?)
    }

    /// Writes all of `data` at `offset`. The write is atomic under a crash in parts of at most 2
    /// MiB.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Fs`] if the space is used up. The call may have written a
    /// first part.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.fs.0.shared.check_writable()?;
        let mut done = 0;
        while done < data.len() {
            done += self.fs.0.fs.write(self.inode, offset + done as u64, &data[done..])?;
        }
        Ok(())
    }

    /// Makes the file `size_bytes` long. New bytes read as zeroes.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size_bytes: u64) -> Result<(), Error> {
        self.fs.0.shared.check_writable()?;
        Ok(self.fs.0.fs.truncate(self.inode, size_bytes).map(drop)?)
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// [`Error::Fs`] if the medium fails.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.fs.0.fs.sync_inode(self.inode)?)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.fs.0.fs.close_inode(self.inode) {
            tracing::warn!(volume = self.fs.name(), %error, "an open file could not be closed");
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("inode", &self.inode).finish_non_exhaustive()
    }
}

/// Returns `bytes` zeroes, if memory for them is available.
fn zeroes(bytes: u64) -> Result<Vec<u8>, FsError> {
    let failed = || FsError::NoMemory { bytes };
    let len = usize::try_from(bytes).map_err(|_| failed())?;
    let mut zeroes = Vec::new();
    zeroes.try_reserve_exact(len).map_err(|_| failed())?;
    zeroes.resize(len, 0);
    Ok(zeroes)
}

/// Opens the file system of this name.
pub(crate) fn open_engine(engine: &Arc<Engine>, name: &str) -> Result<EngineFs, Error> {
    EngineFs::open(engine, name).map_err(Error::volume(name))
}
