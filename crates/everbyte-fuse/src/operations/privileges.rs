//! Privileges that a file loses with a change: its set-user-id bit, its set-group-id bit and its
//! capabilities.
//!
//! With `FUSE_HANDLE_KILLPRIV_V2` the kernel leaves the bits to the server and asks for no
//! capabilities before a write. A write carries a flag if its caller lacks `CAP_FSETID`. For other
//! changes this module looks the caller up. The rules are those of the kernel for ext4:
//!
//! - A write, a truncation, an allocation or a copy by a caller without `CAP_FSETID` clears both
//!   bits. The set-group-id bit of a file that its group cannot execute stays for a member.
//! - A change of the owner clears both bits for every caller, and the set-group-id bit of a file
//!   that its group cannot execute for a stranger without `CAP_FSETID`.
//! - Each of these changes removes the capabilities, whoever makes it.
//!
//! Invariant: privileges go before the bytes change, so no crash leaves new bytes with old
//! privileges.

use everbyte_fs::{Attr, FileType, FsError, InodeNo, SetAttr};
use everbyte_media::Medium;
use fuser::Request;
use parking_lot::Mutex;

use super::Operations;
use crate::caller::{is_in_group, keeps_privileges, owns_files_of};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// The attribute with the capabilities of a program.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The process and the file of the last successful removal of capabilities by the kernel.
#[derive(Debug, Default)]
pub(super) struct LastRemoval(Mutex<Option<(u32, InodeNo)>>);

impl LastRemoval {
    /// Notes that the kernel has removed the capabilities of `inode` for the process of `request`.
    pub(super) fn note(&self, request: &Request, inode: InodeNo) {
        *self.0.lock() = Some((request.pid(), inode));
    }

    /// Returns true once after such a removal.
    fn take(&self, request: &Request, inode: InodeNo) -> bool {
        self.0.lock().take_if(|removal| *removal == (request.pid(), inode)).is_some()
    }
}

impl<M: Medium> Operations<M> {
    /// Removes the privileges of `inode` that its bytes lose when the caller of `request` changes
    /// them. `keeps_bits` tells whether the caller has `CAP_FSETID`; it is asked only about a file
    /// with a bit to lose.
    ///
    /// # Errors
    /// Those of [`everbyte_fs::FileSystem::set_attr`].
    pub(super) fn drop_privileges(
        &self,
        request: &Request,
        inode: InodeNo,
        keeps_bits: impl FnOnce() -> bool,
    ) -> Result<(), FsError> {
        let attr = self.fs.attr(inode)?;
        let left = bits_after_change(&attr, attr.permissions, keeps_bits, || {
            is_in_group(request, attr.gid)
        });
        let loses_capability = attr.has_attributes && self.fs.attribute(inode, CAPABILITY).is_ok();
        if left.is_none() && !loses_capability {
            return Ok(());
        }
        if let Some(permissions) = left {
            let set = SetAttr { permissions: Some(permissions), ..SetAttr::default() };
            self.with_space(|| self.fs.set_attr(inode, &set))?;
        }
        let removed = match loses_capability {
            true => self.with_space(|| self.fs.remove_attribute(inode, CAPABILITY)),
            false => Ok(()),
        };
        // The answer to a write carries no mode, so the kernel would keep the old one. The bits are
        // cleared even if the removal has failed.
        self.caches.forget_attributes(inode);
        match removed {
            // Another change has removed it in the time between.
            Err(FsError::NoAttribute) => Ok(()),
            removed => removed,
        }
    }

    /// As [`Self::drop_privileges`], for a change whose request does not tell the caller's rights.
    ///
    /// # Errors
    /// The same.
    pub(super) fn drop_privileges_of_caller(
        &self,
        request: &Request,
        inode: InodeNo,
    ) -> Result<(), FsError> {
        self.drop_privileges(request, inode, || keeps_privileges(request))
    }

    /// The permissions that `inode` gets with a request to set `set` without a size, if they differ
    /// from the requested ones.
    ///
    /// # Errors
    /// Those of [`everbyte_fs::FileSystem::attr`].
    pub(super) fn permissions_after(
        &self,
        request: &Request,
        inode: InodeNo,
        set: &SetAttr,
    ) -> Result<Option<u32>, FsError> {
        let sets_owner = set.uid.is_some() || set.gid.is_some();
        let is_announcement = *set == SetAttr::default();
        if !sets_owner && !is_announcement && set.permissions.is_none() {
            return Ok(None);
        }
        let attr = self.fs.attr(inode)?;
        let permissions = set.permissions.unwrap_or(attr.permissions);
        let is_member = || is_in_group(request, attr.gid) || keeps_privileges(request);
        // The kernel sends an empty request before a change of the bytes, and for a change of the
        // owner to the same one. The former needs nothing: the change itself drops the bits. It is
        // surely the former if the kernel has just removed capabilities, or if the caller may not
        // change the owner.
        let sets_same_owner = is_announcement
            && !self.last_removal.take(request, inode)
            && owns_files_of(request, attr.uid);
        if sets_owner || sets_same_owner {
            return Ok(bits_after_change(&attr, permissions, || false, is_member));
        }
        if is_announcement {
            return Ok(None);
        }
        // Older kernels clear the other bits themselves, by setting permissions.
        let is_left_to_us = permissions & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID;
        let is_taken = attr.kind == FileType::Regular && is_left_to_us && !is_member();
        Ok(is_taken.then_some(permissions & !SET_GROUP_ID))
    }
}

/// `permissions` without the bits that a change takes from a file, if it takes one. `keeps_bits`
/// tells whether the caller keeps them all, and `is_member` whether it keeps the set-group-id bit of
/// a file that its group cannot execute.
fn bits_after_change(
    attr: &Attr,
    permissions: u32,
    keeps_bits: impl FnOnce() -> bool,
    is_member: impl FnOnce() -> bool,
) -> Option<u32> {
    let has_bits = permissions & (SET_USER_ID | SET_GROUP_ID) != 0;
    if attr.kind == FileType::Directory || !has_bits || keeps_bits() {
        return None;
    }
    let mut left = permissions & !SET_USER_ID;
    if permissions & SET_GROUP_ID != 0 && (permissions & GROUP_EXECUTE != 0 || !is_member()) {
        left &= !SET_GROUP_ID;
    }
    (left != permissions).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enospc_retry::tests::with_nameless;

    #[test]
    fn bits_go_as_the_kernel_rules() {
        let (fs, files) = with_nameless(1);
        let attr = fs.attr(files[0]).unwrap();
        for (permissions, keeps, is_member, left) in [
            (0o6755, true, false, None),
            (0o6755, false, true, Some(0o755)),
            (0o2666, false, true, None),
            (0o2666, false, false, Some(0o666)),
            (0o6666, false, true, Some(0o2666)),
            (0o1777, false, false, None),
        ] {
            let found = bits_after_change(&attr, permissions, || keeps, || is_member);
            assert_eq!(found, left, "{permissions:o} {keeps} {is_member}");
        }
        let directory = fs.attr(fs.root()).unwrap();
        assert_eq!(bits_after_change(&directory, 0o6755, || false, || false), None);
    }
}
