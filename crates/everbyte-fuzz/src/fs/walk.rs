//! Looking at everything in a file system that may be damaged.

use std::collections::BTreeSet;

use everbyte_fs::{FileSystem, FileType, FsError, InodeNo, Seek};
use everbyte_media::Medium;

/// Most inodes that are looked at, and most parts of a listing.
const STEPS_MAX: usize = 600;

/// Looks at every inode that can be reached, in every way there is; errors are dropped. Returns how many
/// inodes there were.
pub(super) fn walk<M: Medium>(fs: &FileSystem<M>) -> usize {
    let mut seen = BTreeSet::new();
    let mut rest = vec![fs.root()];
    // Damaged directories may form cycles, so each inode is inspected once.
    while let Some(inode) = rest.pop().filter(|_| seen.len() < STEPS_MAX) {
        if seen.insert(inode) {
            drop(look(fs, inode, &mut rest).map_err(|error| error.to_string()));
        }
    }
    seen.len()
}

fn look<M: Medium>(
    fs: &FileSystem<M>,
    inode: InodeNo,
    rest: &mut Vec<InodeNo>,
) -> Result<(), FsError> {
    let attr = fs.attr(inode)?;
    for name in fs.attribute_names(inode).unwrap_or_default() {
        drop(fs.attribute(inode, &name));
    }
    match attr.kind {
        FileType::Regular => {
            let mut bytes = vec![0; 16 << 10];
            for offset in [0, 65_536, attr.size.saturating_sub(9)] {
                // The beginning, the middle and the end take different paths through an index.
                drop(fs.read(inode, offset, &mut bytes));
            }
            fs.seek(inode, 0, Seek::Hole)?;
            fs.seek(inode, 0, Seek::Data)?;
        }
        FileType::Symlink => drop(fs.read_link(inode)?),
        FileType::Directory => {
            let mut place = 0;
            for _ in 0..STEPS_MAX {
                let entries = fs.list(inode, place)?;
                let Some(last) = entries.last() else { break };
                // A listing that goes back would never end for its caller.
                assert!(last.next > place, "a listing of {inode} goes back");
                place = last.next;
                rest.extend(entries.iter().map(|entry| entry.inode));
            }
            fs.parent(inode)?;
        }
        _ => {}
    }
    Ok(())
}
