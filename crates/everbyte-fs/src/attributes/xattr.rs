//! Extended attributes: names with values. Access control lists are attributes that follow the mode.

use everbyte_media::Medium;
use everbyte_plant::planted;

use crate::attributes::acl::apply::plan_acl;
use crate::attributes::acl::format::{ACL_ACCESS, ACL_DEFAULT, Acl};
use crate::attributes::protection::check_unrestricted;
use crate::attributes::stat::SetAttr;
use crate::attributes::xattr_block::Xattrs;
use crate::dentry::file_name::NAME_BYTES_MAX;
use crate::error::FsError;
use crate::format::Field;
use crate::format::number::InodeNo;
use crate::fs::FileSystem;
use crate::inode::edits::Edits;
use crate::plant::Bug;

/// Longest value of an attribute in bytes, as on Linux. The block holds less.
const VALUE_BYTES_MAX: usize = 65_536;

/// A condition for setting an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetAttribute {
    /// No condition.
    Any,
    /// The attribute is absent.
    Create,
    /// The attribute exists.
    Replace,
}

/// The effect of a new access list on a file's set-group-id bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetGroupId {
    /// The bit stays.
    Keep,
    /// The bit is cleared: the caller is neither privileged nor in the file's group.
    Clear,
}

impl<M: Medium> FileSystem<M> {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `Stale`, or damage.
    pub fn attribute(&self, inode: InodeNo, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.attributes(inode)?.get(name).map(<[u8]>::to_vec).ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// `Stale`, or damage.
    pub fn attribute_names(&self, inode: InodeNo) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.attributes(inode)?.into_names())
    }

    fn attributes(&self, inode: InodeNo) -> Result<Xattrs, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        Ok(Xattrs::load(self.reader(), at, words.get(Field::Attributes))?)
    }

    /// Sets an extended attribute with a name of 1 to 255 bytes. An access control list is set as by
    /// [`FileSystem::set_acl`].
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` by `set`; `AttributeName` or `AttributeValue` for an invalid length;
    /// `AttributesFull` above [`ATTRIBUTES_BYTES_MAX`](crate::ATTRIBUTES_BYTES_MAX); `NoSpace`; the volume's.
    pub fn set_attribute(
        &self,
        inode: InodeNo,
        (name, value): (&[u8], &[u8]),
        set: SetAttribute,
    ) -> Result<(), FsError> {
        if is_acl(name) {
            return self.set_acl(inode, (name, value), SetGroupId::Keep);
        }
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(FsError::AttributeName);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::AttributeValue);
        }
        self.change_attributes(inode, |all| {
            match (all.get(name), set) {
                (Some(_), SetAttribute::Create) => return Err(FsError::Exists),
                (None, SetAttribute::Replace) => return Err(FsError::NoAttribute),
                _ => all.set(name, value.to_vec()),
            }
            Ok(())
        })
    }

    /// Removes an extended attribute. The removal of an absent access control list succeeds.
    ///
    /// # Errors
    /// `NoAttribute`, `Immutable`, `AppendOnly`, or the volume's.
    pub fn remove_attribute(&self, inode: InodeNo, name: &[u8]) -> Result<(), FsError> {
        if is_acl(name) {
            return self.set_acl(inode, (name, &[]), SetGroupId::Keep);
        }
        self.change_attributes(inode, |all| {
            if all.remove(name) { Ok(()) } else { Err(FsError::NoAttribute) }
        })
    }

    fn change_attributes(
        &self,
        inode: InodeNo,
        mut change: impl FnMut(&mut Xattrs) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            check_unrestricted(&edit.words)?;
            let word = edit.words.get(Field::Attributes);
            let mut all = Xattrs::load(self.reader(), edit.at, word)?;
            change(&mut all)?;
            all.plan_replace(batch, edit)?;
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(())
    }

    /// Sets the access control list `name`, [`ACL_ACCESS`] or [`ACL_DEFAULT`], to the value of a Linux
    /// attribute. A list without entries removes it. An access list sets the mode. An access list equal to
    /// the mode is not stored.
    ///
    /// # Errors
    /// `InvalidAcl` or `Unsupported` for an invalid value; `Unsupported` for a symbolic link; `NoDefaultAcl`
    /// for a default list of another file than a directory; `AttributesFull`, `NoSpace`, or the volume's.
    pub fn set_acl(
        &self,
        inode: InodeNo,
        (name, value): (&[u8], &[u8]),
        set_group_id: SetGroupId,
    ) -> Result<(), FsError> {
        if !is_acl(name) {
            return Err(FsError::Invalid { what: "the attribute is not an access control list" });
        }
        // Before any lock: an invalid value needs no batch.
        let acl = Acl::parse(value)?;
        if planted(Bug::AclBesideMode)
            && let Some(acl) = &acl
        {
            let set = SetAttr { permissions: Some(acl.permissions()), ..SetAttr::default() };
            self.set_attr(inode, &set)?;
            // Stands for a checkpoint between the two batches, which can occur at any time.
            self.sync()?;
        }
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            check_unrestricted(&edit.words)?;
            plan_acl(batch, edit, name, acl.as_ref(), set_group_id == SetGroupId::Clear)?;
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(())
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}
