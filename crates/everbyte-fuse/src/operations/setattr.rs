//! Requests to set attributes.
//!
//! Invariant: stores of a program through a mapping before it set a time are written before the
//! time is set.

use std::sync::Arc;

use everbyte_fs::{InodeNo, SetAttr};
use everbyte_media::Medium;
use fuser::{FopenFlags, ReplyAttr, Request};

use super::Operations;
use crate::changes::set_all;
use crate::convert::{attributes, errno};

impl<M: Medium> Operations<M> {
    /// Sets the size of `inode`, if there is one to set, and attributes.
    pub(super) fn set_attributes(
        &self,
        request: &Request,
        inode: InodeNo,
        (size, set): (Option<u64>, SetAttr),
        reply: ReplyAttr,
    ) {
        let Some(size) = size else { return self.set_without_size(request, inode, set, reply) };
        let done = self
            .drop_privileges_of_caller(request, inode)
            .and_then(|()| self.with_space(|| set_all(&self.fs, inode, size, &set)));
        match done {
            Ok(attr) => reply.attr(&self.lifetime, &attributes(self.root, &attr)),
            // A part may be done, and the kernel takes it that nothing is.
            Err(error) => self.caches.forget_after(inode, || reply.error(errno(&error))),
        }
    }

    fn set_without_size(&self, request: &Request, inode: InodeNo, set: SetAttr, reply: ReplyAttr) {
        if set.modified.is_some() && self.may_have_dirty_pages(inode) {
            let rights = SetAttr { accessed: None, modified: None, ..set };
            let times = SetAttr { permissions: None, uid: None, gid: None, ..set };
            // The kernel's NFS server sets both at once; programs cannot.
            let done = match rights == SetAttr::default() {
                true => Ok(()),
                false => set
                    .check()
                    .and_then(|()| self.set_without_lost(request, inode, &rights).map(drop)),
            };
            return match done {
                Ok(()) => self.set_written(inode, times, reply),
                Err(error) => reply.error(errno(&error)),
            };
        }
        match self.set_without_lost(request, inode, &set) {
            Ok(attr) => reply.attr(&self.lifetime, &attributes(self.root, &attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Returns true if the kernel may have unwritten bytes of `inode`.
    pub(super) fn may_have_dirty_pages(&self, inode: InodeNo) -> bool {
        let is_cached = !self.open_flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        is_cached && self.handles.may_have_dirty_pages(inode)
    }

    /// Sets attributes of `inode` after the kernel has written its bytes of the file. A later write
    /// of these bytes would set the change time again.
    fn set_written(&self, inode: InodeNo, set: SetAttr, reply: ReplyAttr) {
        let (fs, space) = (Arc::clone(&self.fs), Arc::clone(&self.space));
        let (lifetime, root) = (self.lifetime, self.root);
        self.caches.forget_then(inode, move || {
            match space.find(&fs, || fs.set_attr(inode, &set)) {
                Ok(attr) => reply.attr(&lifetime, &attributes(root, &attr)),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}
