//! Requests to set attributes.
//!
//! Before a change of a file's bytes the kernel takes the set-user-id bit away, and the set-group-id bit if the group may
//! execute the file. It leaves the set-group-id bit of any other file to the server. It announces a write, an allocation
//! and a copy by a request to set nothing, if the caller has no privilege.
//!
//! Invariant: stores of a program through a mapping before it set a time are written before the
//! time is set.

use std::sync::Arc;

use everbyte_fs::{Attr, FileSystem, FileType, FsError, InodeNo, SetAttr};
use everbyte_media::Medium;
use fuser::{FopenFlags, ReplyAttr, Request};

use super::Operations;
use crate::caller::keeps_set_group_id;
use crate::changes::set_all;
use crate::convert::{attributes, errno};

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

impl<M: Medium> Operations<M> {
    /// Sets the size of `inode`, if there is one to set, and attributes.
    pub(super) fn set_attributes(
        &self,
        request: &Request,
        inode: InodeNo,
        (size, mut set): (Option<u64>, SetAttr),
        reply: ReplyAttr,
    ) {
        if clears_privileges(size, &set) {
            match take_set_group_id(&self.fs, inode, &set, |gid| keeps_set_group_id(request, gid)) {
                Ok(Some(permissions)) => set.permissions = Some(permissions),
                Ok(None) => {}
                Err(error) => return reply.error(errno(&error)),
            }
        }
        if size.is_none() && set.modified.is_some() && self.may_have_dirty_pages(inode) {
            return self.set_written(inode, set, reply);
        }
        match self.with_space(|| set_all(&self.fs, inode, size, &set)) {
            Ok(attr) => reply.attr(&self.lifetime, &attributes(self.root, &attr)),
            // A part may be done, and the kernel takes it that nothing is.
            Err(error) if size.is_some() => {
                self.caches.forget_after(inode, || reply.error(errno(&error)));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Returns true if the kernel may have unwritten bytes of `inode`.
    fn may_have_dirty_pages(&self, inode: InodeNo) -> bool {
        let is_cached = !self.open_flags.contains(FopenFlags::FOPEN_DIRECT_IO);
        let has_bytes = |attr: Attr| attr.kind == FileType::Regular && attr.size > 0;
        is_cached && self.fs.attr(inode).is_ok_and(has_bytes)
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

/// Returns true if a request to set this takes the set-group-id bit: it changes the bytes, the
/// permissions or the owner, or announces a change of the bytes.
fn clears_privileges(size: Option<u64>, set: &SetAttr) -> bool {
    let sets_owner = set.uid.is_some() || set.gid.is_some();
    size.is_some() || set.permissions.is_some() || sets_owner || *set == SetAttr::default()
}

/// The permissions of `inode` without its set-group-id bit, if the request takes that bit. It takes
/// the bit if the group cannot execute the file and `keeps` denies the caller a right to the bit.
/// `keeps` gets the file's group.
///
/// # Errors
/// Those of [`FileSystem::attr`].
fn take_set_group_id<M: Medium>(
    fs: &FileSystem<M>,
    inode: InodeNo,
    set: &SetAttr,
    keeps: impl FnOnce(u32) -> bool,
) -> Result<Option<u32>, FsError> {
    let attr = fs.attr(inode)?;
    let permissions = set.permissions.unwrap_or(attr.permissions);
    let is_left_to_us = permissions & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID;
    let is_taken = attr.kind == FileType::Regular && is_left_to_us && !keeps(attr.gid);
    Ok(is_taken.then_some(permissions & !SET_GROUP_ID))
}

#[cfg(test)]
mod tests {
    use everbyte_fs::SetTime;

    use super::*;
    use crate::enospc_retry::tests::with_nameless;

    #[test]
    fn set_group_id_is_taken_where_the_kernel_leaves_it() {
        let (fs, files) = with_nameless(1);
        for (before, wanted, keeps, after) in [
            (0o2666, None, false, Some(0o666)),
            (0o2666, None, true, None),
            (0o666, None, false, None),
            (0o2676, None, false, None),
            // The kernel has taken the set-user-id bit.
            (0o6666, Some(0o2666), false, Some(0o666)),
        ] {
            let set = |permissions| SetAttr { permissions, ..SetAttr::default() };
            fs.set_attr(files[0], &set(Some(before))).unwrap();
            let taken = take_set_group_id(&fs, files[0], &set(wanted), |_| keeps).unwrap();
            assert_eq!(taken, after, "{before:o} {keeps}");
        }
        let root = fs.root();
        let set = SetAttr { permissions: Some(0o2755 & !0o010), ..SetAttr::default() };
        fs.set_attr(root, &set).unwrap();
        assert_eq!(take_set_group_id(&fs, root, &set, |_| false).unwrap(), None, "a directory");
    }

    #[test]
    fn setting_times_alone_takes_no_privilege() {
        let times = SetAttr { modified: Some(SetTime::Now), ..SetAttr::default() };
        assert!(!clears_privileges(None, &times));
        assert!(clears_privileges(Some(0), &times));
        assert!(clears_privileges(None, &SetAttr::default()));
    }
}
