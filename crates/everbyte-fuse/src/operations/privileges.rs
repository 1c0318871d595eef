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

use everbyte_fs::{Attr, FileType, FsError, InodeNo, SET_ID_BITS, SetAttr};
use everbyte_media::Medium;
use fuser::Request;
use parking_lot::Mutex;

use super::Operations;
use crate::caller::{is_in_group, keeps_privileges, owns_files_of};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

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
    /// them. `keeps_bits` returns true if the caller has `CAP_FSETID`. Only a file with a bit to
    /// lose needs it.
    ///
    /// # Errors
    /// Those of [`everbyte_fs::FileSystem::drop_privileges`].
    pub(super) fn drop_privileges(
        &self,
        request: &Request,
        inode: InodeNo,
        keeps_bits: impl Fn() -> bool,
    ) -> Result<(), FsError> {
        let lost = |attr: &Attr| {
            let is_member = || is_in_group(request, attr.gid);
            bits_lost(attr.kind, attr.permissions, &keeps_bits, is_member)
        };
        if self.with_space(|| self.fs.drop_privileges(inode, lost))? {
            // The answer to a write carries no mode, so the kernel would keep the old one.
            self.caches.forget_attributes(inode);
        }
        Ok(())
    }

    /// As [`Self::drop_privileges`], for a request without the caller's rights.
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

    /// Sets attributes of `inode` without the bits that a request to set `set`, without a size, takes.
    ///
    /// # Errors
    /// Those of [`everbyte_fs::FileSystem::set_attr`].
    pub(super) fn set_without_lost(
        &self,
        request: &Request,
        inode: InodeNo,
        set: &SetAttr,
    ) -> Result<Attr, FsError> {
        let sets_owner = set.uid.is_some() || set.gid.is_some();
        let is_announcement = *set == SetAttr::default();
        // The kernel sends an empty request before a change of the bytes, and for a change of the
        // owner to the same one. The former needs nothing: the change itself drops the bits. It is
        // surely the former if the kernel has just removed capabilities, or if the caller may not
        // change the owner.
        let may_set_owner = is_announcement && !self.last_removal.take(request, inode);
        let lost = |attr: &Attr| {
            let permissions = set.permissions.unwrap_or(attr.permissions);
            let is_member = || is_in_group(request, attr.gid) || keeps_privileges(request);
            if sets_owner || may_set_owner && owns_files_of(request, attr.uid) {
                return bits_lost(attr.kind, permissions, || false, is_member);
            }
            // Older kernels clear the other bits themselves, by setting permissions.
            let is_left_to_us = set.permissions.is_some()
                && attr.kind == FileType::Regular
                && permissions & (SET_GROUP_ID | GROUP_EXECUTE) == SET_GROUP_ID;
            if is_left_to_us && !is_member() { SET_GROUP_ID } else { 0 }
        };
        // One change sets the owner and clears the bits, so no crash gives them to the owner.
        self.with_space(|| self.fs.set_attr_without(inode, set, lost))
    }
}

/// The bits of `permissions` lost by a change of a file of type `kind`. A caller with `keeps_bits`
/// keeps all. A caller with `is_member` keeps the set-group-id bit of a file that its group cannot
/// execute.
fn bits_lost(
    kind: FileType,
    permissions: u32,
    keeps_bits: impl Fn() -> bool,
    is_member: impl Fn() -> bool,
) -> u32 {
    let has_bits = permissions & SET_ID_BITS != 0;
    if kind == FileType::Directory || !has_bits || keeps_bits() {
        return 0;
    }
    let keeps_group =
        permissions & SET_GROUP_ID == 0 || permissions & GROUP_EXECUTE == 0 && is_member();
    permissions & if keeps_group { SET_USER_ID } else { SET_ID_BITS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_as_the_kernel_rules() {
        for (permissions, keeps, is_member, lost) in [
            (0o6755, true, false, 0),
            (0o6755, false, true, 0o6000),
            (0o4755, false, false, 0o4000),
            (0o2666, false, true, 0),
            (0o2666, false, false, 0o2000),
            (0o6666, false, true, 0o4000),
            (0o1777, false, false, 0),
        ] {
            let found = bits_lost(FileType::Regular, permissions, || keeps, || is_member);
            assert_eq!(found, lost, "{permissions:o} {keeps} {is_member}");
        }
        assert_eq!(bits_lost(FileType::Directory, 0o6755, || false, || false), 0);
    }
}
