//! Access control lists of files: setting, agreement with the mode, inheritance.
//!
//! Invariant: the permissions of a file with an access list are the permissions of that list.

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

/// Bits of a mode with entries in a list.
const LISTED: u32 = 0o777;

/// Plans `acl` as the list `name` of the inode in `edit`; `None` removes the list.
///
/// # Errors
/// `Unsupported`, `NoDefaultAcl`, `AttributesFull`, `NoSpace`, or damaged attributes.
pub(crate) fn plan_acl<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    edit: &mut Edit,
    name: &[u8],
    acl: Option<&Acl>,
    clears_set_group_id: bool,
) -> Result<(), FsError> {
    let kind = edit.words.file_type();
    // Linux keeps no access lists for symbolic links.
    if kind == FileType::Symlink {
        return Err(FsError::Unsupported);
    }
    // As on Linux, the removal of an absent default list succeeds on any file.
    if name == ACL_DEFAULT && kind != FileType::Directory {
        return if acl.is_some() { Err(FsError::NoDefaultAcl) } else { Ok(()) };
    }
    let mut kept = acl;
    if let (Some(acl), true) = (acl, name == ACL_ACCESS) {
        // A list equal to the mode is redundant.
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
    // An unchanged block is kept: a replacement costs a block write.
    if is_changed { all.plan_replace(batch, edit) } else { Ok(()) }
}

/// Plans these permissions for the inode in `edit`, and for its access list if it has one.
///
/// # Errors
/// `NoSpace`, or damaged attributes.
pub(crate) fn plan_permissions<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    edit: &mut Edit,
    permissions: u32,
) -> Result<(), FsError> {
    edit.words.set_permissions(permissions);
    let mut all = load(reader_of(batch.volume()), edit)?;
    let Some(mut acl) = stored(edit, &all, ACL_ACCESS)? else { return Ok(()) };
    // The list already agrees with the mode.
    if acl.permissions() == permissions & LISTED {
        return Ok(());
    }
    acl.set_permissions(permissions);
    all.set(ACL_ACCESS, acl.encode());
    all.plan_replace(batch, edit)
}

/// The permissions and attributes that a new file inherits.
pub(crate) struct InheritedAttributes {
    pub(crate) permissions: u32,
    pub(crate) attributes: Xattrs,
}

/// The permissions and lists of a new file of type `kind` in the directory in `parent`. They start as the
/// directory's default list. Without a default list, `umask` restricts the permissions.
///
/// # Errors
/// Damaged attributes of the directory.
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
    // POSIX.1e: with a default list the umask is ignored.
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
