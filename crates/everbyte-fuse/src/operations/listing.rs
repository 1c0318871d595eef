//! Listings of directories, with `.` and `..` first.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use everbyte_fs::{FileType, FsError, InodeNo};
use everbyte_media::Medium;

use super::Operations;

/// Places of `.` and `..` in a listing; entries come after them.
const FIXED_ENTRIES: u64 = 2;

/// Takes an entry of a listing: the place after it, the file, its type, its name. Returns true if it had no
/// room.
type AddEntry<'a> = dyn FnMut(u64, InodeNo, FileType, &OsStr) -> bool + 'a;

impl<M: Medium> Operations<M> {
    /// Passes the entries of a directory from place `offset` on to `add`, each with the place after
    /// it, until `add` is full.
    pub(super) fn each_entry(
        &self,
        directory: InodeNo,
        offset: u64,
        add: &mut AddEntry<'_>,
    ) -> Result<(), FsError> {
        if self.dir_access_times {
            self.note_access(directory);
        }
        let parent = self.fs.parent(directory).unwrap_or(directory);
        let fixed = [(1, directory, "."), (FIXED_ENTRIES, parent, "..")];
        for (next, inode, name) in fixed.into_iter().filter(|(next, ..)| offset < *next) {
            if add(next, inode, FileType::Directory, OsStr::new(name)) {
                return Ok(());
            }
        }
        let mut place = offset.saturating_sub(FIXED_ENTRIES);
        loop {
            let entries = self.fs.list(directory, place)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                place = entry.next;
                let name = OsStr::from_bytes(&entry.name);
                if add(place + FIXED_ENTRIES, entry.inode, entry.kind, name) {
                    return Ok(());
                }
            }
        }
    }
}
