//! Writes past the kernel's pages, through the direct handles of new files.

use everbyte_fs::InodeNo;
use everbyte_media::Medium;
use fuser::{FileHandle, FopenFlags, ReplyWrite};

use super::Operations;

impl<M: Medium> Operations<M> {
    /// The handle of a new file opened with `flags`, and flags for the kernel.
    pub(super) fn new_handle(&self, inode: InodeNo, flags: i32) -> (FileHandle, FopenFlags) {
        // Other programs usually read the end of a file that is appended to, from the pages.
        let only_writes = flags & (libc::O_ACCMODE | libc::O_APPEND) == libc::O_WRONLY;
        if self.writes_directly && only_writes {
            (self.handles.create_direct(inode), FopenFlags::FOPEN_DIRECT_IO)
        } else {
            (self.handles.open(inode, flags), self.open_flags)
        }
    }

    /// Answers a write of `written` bytes at `offset`.
    pub(super) fn reply_written(
        &self,
        inode: InodeNo,
        handle: FileHandle,
        (offset, written): (u64, usize),
        reply: ReplyWrite,
    ) {
        let end = offset.saturating_add(written as u64);
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        // Not before the write: a program could open the file and read old bytes after a look at
        // the handles.
        if offset == end || !self.handles.may_have_stale_pages(inode, handle) {
            return reply.written(written);
        }
        // Many kernels drop pages only before such a write, and a read during the write brings old
        // bytes back.
        self.caches.answer_apart(move |caches| {
            if let Some(caches) = caches {
                caches.forget_range(inode, &(offset..end));
            }
            reply.written(written);
        });
    }
}
