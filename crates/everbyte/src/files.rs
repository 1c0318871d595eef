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
use crate::error::Error;
use crate::shared::{Handle, Shared};

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
pub struct FileSystem(pub(crate) Arc<Handle<Arc<EngineFs>>>);

impl FileSystem {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        size_bytes: u64,
        options: &FsOptions,
    ) -> Result<Self, Error> {
        shared.check_writable()?;
        let made = EngineFs::create(&shared.engine, name, size_bytes, &options.engine);
        Ok(Self(Handle::new(Arc::new(made.map_err(Error::volume(name))?), shared)))
    }

    pub(crate) fn open(shared: &Arc<Shared>, name: &str) -> Result<Self, Error> {
        shared.check_open()?;
        let fs = EngineFs::open(&shared.engine, name).map_err(Error::volume(name))?;
        if shared.read_only {
            // The kernel lets changes through after a remount, and a private copy would take them and lose them.
            fs.volume().refuse_changes("the pool is open for reading only");
        }
        Ok(Self(Handle::new(Arc::new(fs), shared)))
    }

    /// Its name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        self.engine().volume().name()
    }

    /// The engine's file system, for operations too slow or not available by path.
    #[must_use]
    pub fn engine(&self) -> &Arc<EngineFs> {
        &self.0.volume
    }

    /// Makes the file system `size_bytes` large, a positive multiple of 512, while it is in use. Durable
    /// when it returns.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Volume`] if the size is invalid, less than the space in use,
    /// or more than the pool has free. On an error, the volume keeps its old size.
    pub fn resize(&self, size_bytes: u64) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.engine().resize(size_bytes).map_err(Error::volume(self.name()))
    }

    /// How full it is.
    #[must_use]
    pub fn status(&self) -> FsStatus {
        self.engine().status()
    }

    /// The attributes of the file at `path`.
    ///
    /// # Errors
    /// [`Error::File`] if the file does not exist.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr, Error> {
        self.at_path(path.as_ref(), |path| self.locate(path)?.file.ok_or(FsError::NotFound))
    }

    /// The bytes of the regular file at `path`, of one moment.
    ///
    /// # Errors
    /// [`Error::File`] if the file does not exist, cannot be read, or memory for its bytes is
    /// missing.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        self.with(path.as_ref(), |file| {
            // Room for one more byte shows a complete read.
            let mut room = file.size.saturating_add(1);
            loop {
                let mut bytes = zeroes(room)?;
                let len = self.engine().read(file.inode, 0, &mut bytes)?;
                if (len as u64) < room {
                    bytes.truncate(len);
                    return Ok(bytes);
                }
                // It has grown a moment ago.
                room = room.saturating_mul(2);
            }
        })
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
        self.change(path.as_ref(), |path| {
            let file = self.open_or_make(path)?;
            let done = self.replace(&file, bytes);
            self.engine().close_inode(file.inode)?;
            done
        })
    }

    /// Makes a directory with permissions 0755.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the name exists, its directory is missing, or the
    /// space is used up.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.change(path.as_ref(), |path| {
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
        self.with(path.as_ref(), |directory| {
            let mut all = Vec::new();
            loop {
                let place = all.last().map_or(0, |last: &DirEntry| last.next);
                let entries = self.engine().list(directory.inode, place)?;
                if entries.is_empty() {
                    return Ok(all);
                }
                all.extend(entries);
            }
        })
    }

    /// Renames the file at `from` to `to` atomically. The previous file at `to` loses this name.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`], as `rename` of the system.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        let to = to.as_ref().as_os_str().as_bytes();
        self.change(from.as_ref(), |from| {
            self.at_place(from, false, |parent, name| {
                self.at_place(to, false, |new_parent, new_name| {
                    let (old, new) = ((parent, name), (new_parent, new_name));
                    self.engine().rename(old, new, RenameMode::Replace)
                })
            })
        })
    }

    /// Removes the name at `path` of a file other than a directory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the file does not exist, or it is a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.change(path.as_ref(), |path| {
            self.at_place(path, false, |parent, name| self.engine().unlink(parent, name))
        })
    }

    /// Removes the empty directory at `path`.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::File`]: the directory does not exist, or it has entries.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.change(path.as_ref(), |path| {
            // A slash may follow its name, as where it is made.
            let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
            self.at_place(&path[..end], false, |parent, name| {
                self.engine().remove_directory(parent, name)
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
        self.at_path(path.as_ref(), |path| {
            let attr = match self.0.shared.read_only {
                true => self.engine().open_at(self.engine().root(), path)?,
                false => self.open_or_make(path)?,
            };
            // Before the checks: its drop closes the inode of a refused file.
            let file = File { inode: attr.inode, fs: self.clone() };
            match attr.kind {
                FileType::Regular => Ok(file),
                FileType::Directory => Err(FsError::IsDirectory),
                _ => Err(FsError::Invalid { what: "it is not a regular file" }),
            }
        })
    }

    /// Makes all earlier operations durable.
    ///
    /// # Errors
    /// [`Error::File`] if the pool's memory fails: earlier operations not yet durable may be
    /// durable or not.
    pub fn sync(&self) -> Result<(), Error> {
        self.at_path(Path::new("/"), |_| self.engine().sync())
    }

    /// Does `what` to the file at `path`, unless nothing may be changed.
    fn change(
        &self,
        path: &Path,
        what: impl FnOnce(&[u8]) -> Result<(), FsError>,
    ) -> Result<(), Error> {
        self.0.shared.check_writable()?;
        self.at_path(path, what)
    }

    /// Calls `what` with the bytes of `path`. An error names the path.
    fn at_path<T>(
        &self,
        path: &Path,
        what: impl FnOnce(&[u8]) -> Result<T, FsError>,
    ) -> Result<T, Error> {
        let path = path.as_os_str().as_bytes();
        what(path).map_err(|source| {
            // Escaped, because a name may have control characters for the reader's terminal.
            let (volume, path) = (self.name().to_owned(), path.escape_ascii().to_string());
            Error::File { volume, path, source }
        })
    }

    fn locate(&self, path: &[u8]) -> Result<PathTarget, FsError> {
        self.engine().locate(self.engine().root(), path, true)
    }

    /// Calls `what` with the file at `path` and holds the file during the call: even if the file is
    /// removed, its number is not reused.
    fn with<T>(
        &self,
        path: &Path,
        what: impl FnOnce(&Attr) -> Result<T, FsError>,
    ) -> Result<T, Error> {
        self.at_path(path, |path| {
            let fs = self.engine();
            let file = fs.open_at(fs.root(), path)?;
            let done = what(&file);
            // In each case: an open inode would keep the space of a removed file.
            fs.close_inode(file.inode)?;
            done
        })
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
        self.engine().close_inode(parent)?;
        done
    }

    /// Finds the directory and the last name of `path`, and opens the directory.
    fn hold_place(&self, path: &[u8], follow: bool) -> Result<(InodeNo, Vec<u8>), FsError> {
        loop {
            let (found, _) = self.place(path, follow)?;
            match self.engine().open_inode(found) {
                Err(FsError::Stale(_)) => continue,
                opened => opened?,
            };
            // Before it was held, another one could have got its number.
            match self.place(path, follow) {
                Ok((held, name)) if held == found => return Ok((held, name)),
                Ok(_) => self.engine().close_inode(found)?,
                Err(error) => {
                    self.engine().close_inode(found)?;
                    return Err(error);
                }
            }
        }
    }

    fn place(&self, path: &[u8], follow: bool) -> Result<(InodeNo, Vec<u8>), FsError> {
        let located = self.engine().locate(self.engine().root(), path, follow)?;
        located.place.ok_or(FsError::InvalidName)
    }

    /// Opens the file at `path`. Creates a regular file if the path does not exist.
    fn open_or_make(&self, path: &[u8]) -> Result<Attr, FsError> {
        let fs = self.engine();
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
            self.engine().truncate(file.inode, 0)?;
        }
        self.engine().write_all(file.inode, 0, bytes)
    }

    fn make(&self, path: &[u8], kind: FileType, permissions: u32) -> Result<Attr, FsError> {
        self.at_place(path, true, |parent, name| {
            // The embedding program may act for any user: a new file gets the owner of its
            // directory.
            let Attr { uid, gid, .. } = self.engine().attr(parent)?;
            let new = NewInode { kind, permissions, umask: 0, uid, gid, device: 0, target: &[] };
            self.engine().create_inode(parent, name, &new)
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
        Ok(self.fs.engine().attr(self.inode)?.size)
    }

    /// Reads bytes from `offset` on, and returns how many: fewer than asked for at the end of the file.
    ///
    /// # Errors
    /// [`Error::Fs`] if the bytes cannot be read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        Ok(self.fs.engine().read(self.inode, offset, out)?)
    }

    /// Writes all of `data` at `offset`. The write is atomic under a crash in parts of at most 2
    /// MiB.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Fs`] if the space is used up. The call may have written a
    /// first part.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.fs.0.shared.check_writable()?;
        Ok(self.fs.engine().write_all(self.inode, offset, data)?)
    }

    /// Makes the file `size_bytes` long. New bytes read as zeroes.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn set_len(&self, size_bytes: u64) -> Result<(), Error> {
        self.fs.0.shared.check_writable()?;
        Ok(self.fs.engine().truncate(self.inode, size_bytes).map(drop)?)
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// [`Error::Fs`] if the medium fails.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.fs.engine().sync_inode(self.inode)?)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.fs.engine().close_inode(self.inode) {
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
