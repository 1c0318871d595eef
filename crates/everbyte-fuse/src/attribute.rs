//! Names of extended attributes, and the ways to set one, as Linux checks them.
//!
//! The kernel passes every name to a FUSE server; for other file systems it refuses the wrong ones itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use everbyte_fs::{ACL_ACCESS, ACL_DEFAULT, SetAttribute};
use fuser::Errno;

/// Name spaces with arbitrary non-empty names.
const SPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];
/// The name space visible only to administrators of the system.
const TRUSTED: &[u8] = b"trusted.";

/// The bytes of a name, if it is a possible attribute name.
///
/// # Errors
/// `EOPNOTSUPP`: the name is outside the name spaces, or names an unknown attribute of the system.
/// `EINVAL`: the name ends after the name space.
pub(crate) fn attribute_name(name: &OsStr) -> Result<&[u8], Errno> {
    let name = name.as_bytes();
    if SPACES.contains(&name) {
        return Err(Errno::EINVAL);
    }
    if [ACL_ACCESS, ACL_DEFAULT].contains(&name)
        || SPACES.iter().any(|space| name.starts_with(space))
    {
        return Ok(name);
    }
    Err(Errno::EOPNOTSUPP)
}

/// The mode of `setxattr` by its flags. Both flags together cannot be satisfied: for an existing
/// attribute they are `Create`, for a missing one `Replace`.
///
/// # Errors
/// `EINVAL`: an unknown flag.
pub(crate) fn way_to_set(flags: i32, is_there: impl Fn() -> bool) -> Result<SetAttribute, Errno> {
    const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
    match flags {
        0 => Ok(SetAttribute::Any),
        libc::XATTR_CREATE => Ok(SetAttribute::Create),
        libc::XATTR_REPLACE => Ok(SetAttribute::Replace),
        // Linux checks both conditions, so one of them fails: the error is of the failing one.
        BOTH if is_there() => Ok(SetAttribute::Create),
        BOTH => Ok(SetAttribute::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// The list of names for `listxattr`, each with a final zero. Administrators of the system see more
/// names.
pub(crate) fn name_list(names: Vec<Vec<u8>>, is_administrator: impl Fn() -> bool) -> Vec<u8> {
    let seen = names.into_iter().filter(|name| !name.starts_with(TRUSTED) || is_administrator());
    seen.flat_map(|name| name.into_iter().chain([0])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xattr_name_extends_its_namespace() {
        for name in ["user.x", "trusted.a.b", "security.capability", "system.posix_acl_access"] {
            assert_eq!(attribute_name(OsStr::new(name)).unwrap(), name.as_bytes());
        }
        for name in ["user.", "trusted.", "security."] {
            assert_eq!(attribute_name(OsStr::new(name)).unwrap_err().code(), libc::EINVAL);
        }
        for name in ["", "x", "user", "users.x", "system.x"] {
            assert_eq!(attribute_name(OsStr::new(name)).unwrap_err().code(), libc::EOPNOTSUPP);
        }
    }

    #[test]
    fn create_and_replace_flags_exclude_each_other() {
        let both = libc::XATTR_CREATE | libc::XATTR_REPLACE;
        assert_eq!(way_to_set(both, || true).unwrap(), SetAttribute::Create);
        assert_eq!(way_to_set(both, || false).unwrap(), SetAttribute::Replace);
        assert_eq!(way_to_set(8, || false).unwrap_err().code(), libc::EINVAL);
    }

    #[test]
    fn listxattr_lists_only_visible_names() {
        let names = || ["user.a", "trusted.b", "security.c"].map(|name| name.as_bytes().to_vec());
        let seen = |is_administrator| name_list(names().into(), || is_administrator);
        assert_eq!(seen(true), b"user.a\0trusted.b\0security.c\0");
        assert_eq!(seen(false), b"user.a\0security.c\0");
    }
}
