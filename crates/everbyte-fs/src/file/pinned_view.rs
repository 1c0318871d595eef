//! Views of files: pinned bytes in place.

use everbyte_extent::{DeviceOffset, View};
use everbyte_media::Medium;

use crate::error::FsError;
use crate::format::Field;
use crate::format::number::InodeNo;
use crate::fs::FileSystem;

impl<M: Medium> FileSystem<M> {
    /// Pins up to `len` bytes of a regular file from `offset` on, for use in place. The view is a snapshot: later
    /// writes, cuts and removals do not change it. It is shorter if the file ends before. A view has a time
    /// limit; [`View`] defines the limit and the counts.
    ///
    /// # Example
    /// A file goes to a socket without a copy:
    /// ```
    /// # use std::{os::{fd::AsFd, unix::net::UnixStream}, sync::Arc};
    /// # use everbyte_fs::{FileSystem, FileType, FsOptions, Name, NewInode, kinds};
    /// # use everbyte_media::{Mapped, MediaOptions};
    /// # use everbyte_pool::{OpenOptions, Pool};
    /// # let medium = Arc::new(Mapped::anonymous(8 << 20, &MediaOptions::default())?);
    /// # Pool::format(&*medium, 1, [1; 16])?;
    /// # let options = OpenOptions { capacity_blocks: 1 << 12 };
    /// # let pool = Arc::new(Pool::open(medium, kinds(), &options)?);
    /// # let fs = FileSystem::create(&pool, "files", 8 << 20, &FsOptions::default())?;
    /// # let new = NewInode { kind: FileType::Regular, permissions: 0o600, umask: 0, uid: 0, gid: 0, device: 0, target: &[] };
    /// # let inode = fs.create_inode(fs.root(), Name::new(b"file")?, &new)?.inode;
    /// # fs.write(inode, 0, &[7; 5000])?;
    /// let (socket, _peer) = UnixStream::pair()?;
    /// let view = fs.view(inode, 0, 1 << 20)?;
    /// fs.truncate(inode, 0)?;
    /// let mut sent = 0;
    /// while sent < view.len() {
    ///     match view.send(socket.as_fd(), sent)? {
    ///         0 => std::thread::yield_now(),
    ///         bytes => sent += bytes,
    ///     }
    /// }
    /// # assert_eq!(sent, 5000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The file is not regular; bytes cannot be read; `Pin` if the volume's views reach their limits.
    pub fn view(&self, inode: InodeNo, offset: u64, len: usize) -> Result<View<M>, FsError> {
        let _lock = self.locks.read(inode);
        // Under the lock for reading: no writer plans a store to a block that is not pinned yet.
        let (file, words) = self.file(inode)?;
        let size = words.get(Field::Size);
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        Ok(file.extent.view(DeviceOffset(offset.min(size)), len.min(left))?)
    }
}
