//! Listing directories.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::Corrupt;

use crate::dentry::file_name::Name;
use crate::dir::ListedEntry;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::fs::FileSystem;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The file that it names.
    pub inode: InodeNo,
    /// The file's type.
    pub kind: FileType,
    /// The place after this entry, from which a listing goes on. It stays so whatever comes and goes
    /// in the directory.
    pub next: u64,
}

/// A part of a directory, read past damage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadableEntries {
    /// The entries that can be read.
    pub entries: Vec<DirEntry>,
    /// Parts that cannot be read: names in them are lost.
    pub damage: Vec<Corrupt>,
    /// The place to go on from; `None` at the end.
    pub next: Option<u64>,
}

impl<M: Medium> FileSystem<M> {
    /// As [`FileSystem::list`], but names parts of the directory that cannot be right and goes on behind them. An
    /// answer may have no entries although others follow.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`, or the directory's inode cannot be right.
    pub fn list_readable(&self, inode: InodeNo, place: u64) -> Result<ReadableEntries, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        let mut read = ReadableEntries { entries: Vec::new(), damage: Vec::new(), next: None };
        let dir = match self.dir(inode, at, &words) {
            // A directory that was removed is empty.
            Err(FsError::NotFound) => return Ok(read),
            dir => dir?,
        };
        let (entries, next) = dir.salvage_from(place, &mut read.damage);
        read.next = next.filter(|&next| next > place);
        for listed in entries {
            match entry_of(inode, at, &listed) {
                Ok(entry) => read.entries.push(entry),
                Err(corrupt) => read.damage.push(corrupt),
            }
        }
        Ok(read)
    }

    /// Some entries of a directory from a place on, in the order of places: 0 is the first, and others
    /// are [`DirEntry::next`] of an earlier listing. None at the end. `.` and `..` are not among them.
    /// An entry that is there all the time of a listing is listed once.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`, or the directory cannot be right.
    pub fn list(&self, inode: InodeNo, place: u64) -> Result<Vec<DirEntry>, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        let dir = match self.dir(inode, at, &words) {
            // A directory that was removed is empty.
            Err(FsError::NotFound) => return Ok(Vec::new()),
            dir => dir?,
        };
        let (entries, _) = dir.entries_from(place)?;
        entries.iter().map(|listed| Ok(entry_of(inode, at, listed)?)).collect()
    }
}

/// An entry of the directory `inode`, whose inode is at `at`, for those who list it.
fn entry_of(inode: InodeNo, at: PoolOffset, listed: &ListedEntry) -> Result<DirEntry, Corrupt> {
    // Whoever copies a tree joins names to paths.
    Name::new(&listed.entry.name).map_err(|_| {
        Corrupt::new(format!("a name in directory {inode}"), at, "no directory can have it")
    })?;
    Ok(DirEntry {
        name: listed.entry.name.to_vec(),
        inode: listed.entry.inode,
        kind: listed.entry.kind,
        next: listed.place + 1,
    })
}
