//! Access times of files that programs read.

use everbyte_fs::{AccessTimes, InodeNo};
use everbyte_media::Medium;
use fuser::{FopenFlags, InitFlags, KernelConfig};

use super::Operations;

impl<M: Medium> Operations<M> {
    /// Notes a read of `inode`, before the answer: the kernel requests the time again after it. The
    /// bytes are valid, so the answer does not depend on the success of this note.
    pub(super) fn note_access(&self, inode: InodeNo) {
        if let Err(error) = self.fs.note_access(inode, self.access_times) {
            tracing::debug!("the time of an access to {inode} was not noted: {error}");
        }
    }

    /// Notes a copy of `copied` bytes from `inode`: the kernel does not know that the access time
    /// changes.
    pub(super) fn note_copy(&self, inode: InodeNo, copied: u64) {
        if copied > 0 && self.access_times != AccessTimes::Never {
            self.note_access(inode);
            self.caches.forget_attributes(inode);
        }
    }

    /// Lets the kernel request each read, so that each is counted. A file opened only for reading
    /// has no cached bytes, if the kernel allows mappings of such files. A link has no cached
    /// target.
    pub(super) fn count_all_reads(&mut self, config: &mut KernelConfig) {
        let direct = InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if config.capabilities().contains(direct) && config.add_capabilities(direct).is_ok() {
            self.read_flags = FopenFlags::FOPEN_DIRECT_IO;
        }
    }
}
