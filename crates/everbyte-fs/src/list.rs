//! Listing directories.

use everbyte_media::Medium;
use everbyte_pool::Corrupt;

use crate::error::FsError;
use crate::fs::FileSystem;
use crate::name::Name;
use crate::number::{FileType, InodeNo};

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

impl<M: Medium> FileSystem<M> {
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
        let entries = entries.into_iter().map(|listed| {
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
        });
        entries.collect()
    }
}
