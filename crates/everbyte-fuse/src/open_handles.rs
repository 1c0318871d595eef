//! Open handles that decide the use of the kernel's pages of a file.
//!
//! A *mappable* handle is open for reading and writing. Stores through a shared mapping need one, and
//! the kernel writes such pages before it releases the handle. Invariant: a file without mappable
//! handles has no unwritten bytes in the kernel.
//!
//! A *direct* handle writes past the kernel's pages. A program gets it with a new file, if it opens
//! the file only for writing. A write through it costs one request; a write through the kernel's
//! pages costs one more for each incomplete page, and a search for capabilities before the first.

use std::collections::HashMap;

use everbyte_fs::InodeNo;
use fuser::FileHandle;
use parking_lot::Mutex;

/// The handle of a file without influence on its pages.
const PLAIN: FileHandle = FileHandle(0);
const MAPPABLE: FileHandle = FileHandle(1);
const DIRECT: FileHandle = FileHandle(2);

/// The mappable and direct handles of a file.
#[derive(Debug, Default)]
struct FileHandles {
    mappable: u64,
    direct: u64,
    /// Since the oldest direct handle another one was opened, so the kernel may have pages.
    is_shared: bool,
}

/// The mappable and direct handles of a mount, by file. A request for the end of a handle follows the
/// answer that gave it.
#[derive(Debug, Default)]
pub(crate) struct OpenHandles(Mutex<HashMap<InodeNo, FileHandles>>);

impl OpenHandles {
    /// The handle of a file opened with `flags`.
    pub(crate) fn open(&self, inode: InodeNo, flags: i32) -> FileHandle {
        let mut files = self.0.lock();
        if flags & libc::O_ACCMODE == libc::O_RDWR {
            let handles = files.entry(inode).or_default();
            handles.mappable += 1;
            handles.is_shared |= handles.direct > 0;
            return MAPPABLE;
        }
        if let Some(handles) = files.get_mut(&inode) {
            handles.is_shared |= handles.direct > 0;
        }
        PLAIN
    }

    /// The direct handle of a new file.
    pub(crate) fn create_direct(&self, inode: InodeNo) -> FileHandle {
        self.0.lock().entry(inode).or_default().direct += 1;
        DIRECT
    }

    /// Ends a handle.
    pub(crate) fn close(&self, inode: InodeNo, handle: FileHandle) {
        if handle == PLAIN {
            return;
        }
        let mut files = self.0.lock();
        let Some(handles) = files.get_mut(&inode) else { return };
        let count = if handle == DIRECT { &mut handles.direct } else { &mut handles.mappable };
        *count = count.saturating_sub(1);
        handles.is_shared &= handles.direct > 0;
        if handles.mappable == 0 && handles.direct == 0 {
            files.remove(&inode);
        }
    }

    /// Returns true if the kernel may have unwritten bytes of the file.
    pub(crate) fn may_have_dirty_pages(&self, inode: InodeNo) -> bool {
        self.0.lock().get(&inode).is_some_and(|handles| handles.mappable > 0)
    }

    /// Returns true after a write through `handle` if the kernel may have pages from before it. The
    /// answer holds for a write that is done: a later opening sees its bytes.
    pub(crate) fn may_have_stale_pages(&self, inode: InodeNo, handle: FileHandle) -> bool {
        handle == DIRECT && self.0.lock().get(&inode).is_some_and(|handles| handles.is_shared)
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

    #[test]
    fn opening_makes_pages_of_direct_writes_stale() {
        for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR] {
            let handles = OpenHandles::default();
            let earlier = handles.open(FILE, libc::O_RDWR);
            let direct = handles.create_direct(FILE);
            assert!(!handles.may_have_stale_pages(FILE, direct), "{flags}");
            let other = handles.open(FILE, flags);
            assert!(handles.may_have_stale_pages(FILE, direct), "{flags}");
            assert!(!handles.may_have_stale_pages(FILE, other), "{flags}");
            handles.close(FILE, other);
            assert!(handles.may_have_stale_pages(FILE, direct), "its pages stay, {flags}");
            handles.close(FILE, direct);
            handles.close(FILE, earlier);
            assert!(handles.0.lock().is_empty());
        }
    }
}
