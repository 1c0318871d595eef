//! Directory iteration.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::Corrupt;

use crate::dentry::file_name::Name;
use crate::dir::ListedEntry;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// The file.
    pub inode: InodeNo,
    /// The file's type.
    pub kind: FileType,
    /// Position of the next entry. It stays valid through changes of the directory.
    pub next: u64,
}

/// A part of a directory, read past damage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadableEntries {
    /// The readable entries.
    pub entries: Vec<DirEntry>,
    /// Unreadable parts. Their names are lost.
    pub damage: Vec<Corrupt>,
    /// Position of the next part; `None` at the end.
    pub next: Option<u64>,
}

impl<M: Medium> FileSystem<M> {
    /// As [`FileSystem::list`], but reports the damaged parts of the directory and continues after them. An
    /// answer without entries can precede others.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`, or a damaged inode of the directory.
    pub fn list_readable(&self, inode: InodeNo, place: u64) -> Result<ReadableEntries, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        let mut read = ReadableEntries { entries: Vec::new(), damage: Vec::new(), next: None };
        let dir = match self.dir(inode, at, &words) {
            // A removed directory is empty.
            Err(FsError::NotFound) => return Ok(read),
            dir => dir?,
        };
        let (entries, next) = dir.salvage_from(place, &mut read.damage);
        // A damaged bucket may name an earlier range, and the listing would repeat without end.
        read.next = next.filter(|&next| next > place);
        for listed in entries {
            match entry_of(inode, at, &listed) {
                Ok(entry) => read.entries.push(entry),
                Err(corrupt) => read.damage.push(corrupt),
            }
        }
        Ok(read)
    }

    /// Entries of a directory from a position on, in the order of positions. The first position is 0; others
    /// are [`DirEntry::next`] of an earlier listing. Empty at the end. `.` and `..` are left out. A listing
    /// has each entry once if it stays during the listing.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`, or a damaged directory.
    pub fn list(&self, inode: InodeNo, place: u64) -> Result<Vec<DirEntry>, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        let dir = match self.dir(inode, at, &words) {
            // A removed directory is empty.
            Err(FsError::NotFound) => return Ok(Vec::new()),
            dir => dir?,
        };
        let (entries, _) = dir.entries_from(place)?;
        entries.iter().map(|listed| Ok(entry_of(inode, at, listed)?)).collect()
    }
}

/// An entry of the directory `inode` at `at`, for a listing.
fn entry_of(inode: InodeNo, at: PoolOffset, listed: &ListedEntry) -> Result<DirEntry, Corrupt> {
    // Checked, because copies of trees join names to paths.
    Name::new(&listed.entry.name).map_err(|_| {
        Corrupt::new(format!("a name in directory {inode}"), at, "no directory can have it")
    })?;
    Ok(DirEntry {
        name: listed.entry.name.to_vec(),
        inode: listed.entry.inode,
        kind: listed.entry.kind,
        // A place is a hash. Two entries of a directory never have the same one.
        next: listed.place + 1,
    })
}
