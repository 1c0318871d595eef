//! Open files with lock-free reads.
//!
//! A read notes the sequence of the inode's lock, copies the bytes, and compares the sequence. An unchanged
//! sequence proves that no writer held the lock. It also proves that the inode is unchanged since its last
//! verified read.
//!
//! Invariant: a read draws no conclusion from its copy before the comparison (argued in docs/crash-model.md).

use std::sync::Arc;

use everbyte_extent::DeviceOffset;
use everbyte_media::Medium;

use crate::error::FsError;
use crate::file::data::check_regular;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;
use crate::inode::inode_ref::InodeRef;
use crate::inode::open_files::FileState;

/// Failed copies before a reader takes the lock.
const ATTEMPTS: u32 = 3;

/// An open regular file for frequent reads. While the file does not change, a read takes no lock and does not
/// load the inode. [`FileSystem::close_file`] closes it. A dropped one stays open until the file system is
/// closed.
pub struct OpenFile<M: Medium> {
    inode: InodeNo,
    state: Arc<FileState<M>>,
}

impl<M: Medium> OpenFile<M> {
    /// The file.
    #[must_use]
    pub fn inode(&self) -> InodeNo {
        self.inode
    }
}

impl<M: Medium> std::fmt::Debug for OpenFile<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenFile").field("inode", &self.inode).finish_non_exhaustive()
    }
}

/// Outcome of an attempt without the lock.
enum CopyOutcome {
    /// A snapshot of so many bytes.
    Done(usize),
    /// A writer held the lock. Another attempt can succeed.
    Moved,
    /// A writer holds the lock, the inode is unverified, or the read needs the lock for another reason.
    Ineligible,
}

impl<M: Medium> FileSystem<M> {
    /// Opens a regular file as [`FileSystem::open_inode`] does, for [`FileSystem::read_file`].
    ///
    /// # Errors
    /// `Stale`, a file that is not regular, or a damaged inode.
    pub fn open_file(&self, inode: InodeNo) -> Result<OpenFile<M>, FsError> {
        self.open_found_file(InodeRef::any(inode))
    }

    /// As [`FileSystem::open_file`], for a file that was `found`.
    fn open_found_file(&self, found: InodeRef) -> Result<OpenFile<M>, FsError> {
        let inode = found.inode;
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_ref(found)?;
        check_regular(&words)?;
        let state = self.files.open(inode, at, &words);
        // Under the lock for reading no writer exists, so the number is even and belongs to these
        // words.
        state.note_verified(self.locks.note(inode));
        Ok(OpenFile { inode, state })
    }

    /// Opens the regular file at `path`. Follows symbolic links.
    ///
    /// # Errors
    /// As [`FileSystem::attr_at`] and [`FileSystem::open_file`].
    pub fn open_file_at(&self, from: InodeNo, path: &[u8]) -> Result<OpenFile<M>, FsError> {
        let open = |kind, found| match kind {
            FileType::Symlink => Ok(None),
            _ => self.open_found_file(found).map(Some),
        };
        if let Some(opened) = self.at_plain_place(from, path, open)?.flatten() {
            return Ok(opened);
        }
        self.at_located(from, path, |found| self.open_found_file(found))
    }

    /// Closes a file opened by [`FileSystem::open_file`], as [`FileSystem::close_inode`] does.
    ///
    /// # Errors
    /// As [`FileSystem::close_inode`]; `Invalid` for a file of another file system, which stays open there.
    pub fn close_file(&self, file: OpenFile<M>) -> Result<(), FsError> {
        self.check_own(&file)?;
        self.close_inode(file.inode)
    }

    /// Checks that a file is open in this file system: in another one the number names another file.
    fn check_own(&self, file: &OpenFile<M>) -> Result<(), FsError> {
        if Arc::ptr_eq(file.state.extent.volume(), self.volume()) {
            return Ok(());
        }
        Err(FsError::Invalid { what: "the file is open in another file system" })
    }

    /// Reads as [`FileSystem::read`] does. While the file does not change, this takes no lock and does not
    /// load the inode. Damage of the inode is found at the next opening or change.
    ///
    /// # Errors
    /// Bytes cannot be read; `Stale` if the file was closed and freed; `Invalid` for a file of another file
    /// system.
    pub fn read_file(
        &self,
        file: &OpenFile<M>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, FsError> {
        for _ in 0..ATTEMPTS {
            match self.read_unlocked(file, offset, out) {
                CopyOutcome::Done(len) => return Ok(len),
                CopyOutcome::Moved => {}
                CopyOutcome::Ineligible => break,
            }
        }
        self.read_in_lock(file, offset, out)
    }

    #[inline]
    fn read_unlocked(&self, file: &OpenFile<M>, offset: u64, out: &mut [u8]) -> CopyOutcome {
        let extent = &file.state.extent;
        // A writer is inside, and its batch can last longer than three attempts.
        let Some(noted) = self.locks.note(file.inode) else { return CopyOutcome::Ineligible };
        let is_own = Arc::ptr_eq(extent.volume(), self.volume());
        // After the sequence is noted: a deletion of the volume is seen here, or moves the sequence.
        if !is_own || !file.state.is_verified_at(noted) || self.volume().is_gone() {
            return CopyOutcome::Ineligible;
        }
        // The size may change at this moment. The comparison after the copy detects it.
        let left = extent.size_bytes().saturating_sub(offset);
        let len = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let copied = extent.copy_beside_writers(DeviceOffset(offset), &mut out[..len]);
        if !self.locks.is_as_noted(file.inode, noted) {
            return CopyOutcome::Moved;
        }
        // An error of the copy counts only under the lock: without it the map could be a reused
        // block.
        if copied == Ok(true) { CopyOutcome::Done(len) } else { CopyOutcome::Ineligible }
    }

    /// Reads under the inode's lock.
    #[cold]
    fn read_in_lock(
        &self,
        file: &OpenFile<M>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, FsError> {
        self.check_own(file)?;
        let _lock = self.locks.read(file.inode);
        let read = self.file_to_read(file.inode).and_then(|state| {
            // Otherwise the file was closed and the number reused.
            let is_it = Arc::ptr_eq(&state, &file.state);
            if is_it { state.read(offset, out) } else { Err(FsError::Stale(file.inode)) }
        });
        // A discarded copy can contain bytes of another volume.
        out[read.as_ref().map_or(0, |&len| len)..].fill(0);
        read
    }
}
