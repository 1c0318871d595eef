//! Access control lists of files: how they are set, follow the mode, and are inherited.
//!
//! Invariant: the permissions of a file with an access list are those that the list tells.

use everbyte_media::Medium;
use everbyte_pool::{Batch, Corrupt};

use crate::attributes::acl::format::{ACL_ACCESS, ACL_DEFAULT, Acl};
use crate::attributes::xattr_block::Xattrs;
use crate::error::FsError;
use crate::format::Field;
use crate::format::number::{FileType, SET_GROUP_ID};
use crate::format::reader::Reader;
use crate::fs::now;
use crate::inode::edits::Edit;
use crate::inode::tables::reader_of;

/// Bits of a mode for which a list has entries.
const LISTED: u32 = 0o777;

/// Plans that the inode in `edit` has `acl` as its list `name`, or none.
///
/// # Errors
/// `Unsupported`, `NoDefaultAcl`, `AttributesFull`, `NoSpace`, or the attributes cannot be right.
pub(crate) fn plan_acl<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    edit: &mut Edit,
    name: &[u8],
    acl: Option<&Acl>,
    clears_set_group_id: bool,
) -> Result<(), FsError> {
    let kind = edit.words.file_type();
    if kind == FileType::Symlink {
        return Err(FsError::Unsupported);
    }
    if name == ACL_DEFAULT && kind != FileType::Directory {
        return if acl.is_some() { Err(FsError::NoDefaultAcl) } else { Ok(()) };
    }
    let mut kept = acl;
    if let (Some(acl), true) = (acl, name == ACL_ACCESS) {
        kept = Some(acl).filter(|acl| !acl.is_mode());
        let cleared = if clears_set_group_id { SET_GROUP_ID } else { 0 };
        edit.words.set_permissions(edit.words.mode() & !LISTED & !cleared | acl.permissions());
    }
    edit.words.set(Field::Changed, now());
    let mut all = load(reader_of(batch.volume()), edit)?;
    let is_changed = match kept {
        Some(acl) => {
            all.set(name, acl.encode());
            true
        }
        None => all.remove(name),
    };
    if is_changed { all.plan_replace(batch, edit) } else { Ok(()) }
}

/// Plans that the inode in `edit` has these permissions, and its access list, if it has one, as well.
///
/// # Errors
/// `NoSpace`, or the attributes cannot be right.
pub(crate) fn plan_permissions<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    edit: &mut Edit,
    permissions: u32,
) -> Result<(), FsError> {
    edit.words.set_permissions(permissions);
    let mut all = load(reader_of(batch.volume()), edit)?;
    let Some(mut acl) = stored(edit, &all, ACL_ACCESS)? else { return Ok(()) };
    if acl.permissions() == permissions & LISTED {
        return Ok(());
    }
    acl.set_permissions(permissions);
    all.set(ACL_ACCESS, acl.encode());
    all.plan_replace(batch, edit)
}

/// The permissions and lists that a new file gets from its directory.
pub(crate) struct InheritedAttributes {
    pub(crate) permissions: u32,
    pub(crate) attributes: Xattrs,
}

/// The permissions and lists of a file of type `kind` that is made in the directory in `parent`: they
/// begin as its default list if it has one, and else `umask` restricts them.
///
/// # Errors
/// The directory's attributes cannot be right.
pub(crate) fn inherited<M: Medium>(
    reader: Reader<'_, M>,
    parent: &Edit,
    (kind, permissions, umask): (FileType, u32, u32),
) -> Result<InheritedAttributes, FsError> {
    let mut attributes = Xattrs::default();
    if kind == FileType::Symlink {
        return Ok(InheritedAttributes { permissions, attributes });
    }
    let Some(default) = stored(parent, &load(reader, parent)?, ACL_DEFAULT)? else {
        return Ok(InheritedAttributes {
            permissions: permissions & !(umask & LISTED),
            attributes,
        });
    };
    let mut access = default.clone();
    access.restrict(permissions);
    if !access.is_mode() {
        attributes.set(ACL_ACCESS, access.encode());
    }
    if kind == FileType::Directory {
        attributes.set(ACL_DEFAULT, default.encode());
    }
    Ok(InheritedAttributes {
        permissions: permissions & !LISTED | access.permissions(),
        attributes,
    })
}

fn load<M: Medium>(reader: Reader<'_, M>, edit: &Edit) -> Result<Xattrs, Corrupt> {
    Xattrs::load(reader, edit.at, edit.words.get(Field::Attributes))
}

/// The list `name` among the attributes of the inode in `edit`.
fn stored(edit: &Edit, all: &Xattrs, name: &[u8]) -> Result<Option<Acl>, FsError> {
    let parsed = all.get(name).map_or(Ok(None), Acl::parse);
    parsed.map_err(|_| {
        let what = "an access control list among them is none";
        Corrupt::new(format!("extended attributes of {}", edit.number), edit.at, what).into()
    })
}
