//! Open handles of files that programs can map for stores.
//!
//! A *mappable* handle is open for reading and writing. Stores through a shared mapping need one, and
//! the kernel writes the stored bytes before it releases the handle. Invariant: a file without
//! mappable handles has no unwritten bytes in the kernel.

use std::collections::HashMap;

use everbyte_fs::InodeNo;
use fuser::FileHandle;
use parking_lot::Mutex;

const PLAIN: FileHandle = FileHandle(0);
const MAPPABLE: FileHandle = FileHandle(1);

/// The numbers of mappable handles of a mount, by file. A request for the end of a handle follows the
/// answer with the handle.
#[derive(Debug, Default)]
pub(crate) struct OpenHandles(Mutex<HashMap<InodeNo, u64>>);

impl OpenHandles {
    /// The handle of a file opened with `flags`. Must precede the answer, because a program can map
    /// the file from then on.
    pub(crate) fn open(&self, inode: InodeNo, flags: i32) -> FileHandle {
        if flags & libc::O_ACCMODE != libc::O_RDWR {
            return PLAIN;
        }
        *self.0.lock().entry(inode).or_default() += 1;
        MAPPABLE
    }

    /// Ends a handle.
    pub(crate) fn close(&self, inode: InodeNo, handle: FileHandle) {
        if handle != MAPPABLE {
            return;
        }
        let mut files = self.0.lock();
        let Some(count) = files.get_mut(&inode) else { return };
        *count -= 1;
        if *count == 0 {
            files.remove(&inode);
        }
    }

    /// Returns true if the kernel may have unwritten bytes of the file.
    pub(crate) fn may_have_dirty_pages(&self, inode: InodeNo) -> bool {
        self.0.lock().contains_key(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNo = InodeNo(7);

    #[test]
    fn mappable_handles_are_counted() {
        let handles = OpenHandles::default();
        let [first, second] = [libc::O_RDWR; 2].map(|flags| handles.open(FILE, flags));
        let other = handles.open(InodeNo(8), libc::O_WRONLY);
        handles.close(FILE, first);
        assert!(handles.may_have_dirty_pages(FILE) && !handles.may_have_dirty_pages(InodeNo(8)));
        handles.close(FILE, handles.open(FILE, libc::O_RDONLY));
        handles.close(InodeNo(8), other);
        assert!(handles.may_have_dirty_pages(FILE));
        handles.close(FILE, second);
        assert!(!handles.may_have_dirty_pages(FILE));
        assert!(handles.0.lock().is_empty());
    }
}
