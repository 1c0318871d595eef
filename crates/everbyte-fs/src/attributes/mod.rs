//! Attributes of files: stat, access times, flags, privileges, access control lists and extended attributes.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod flags;
pub(crate) mod privileges;
pub(crate) mod protection;
pub(crate) mod stat;
pub(crate) mod xattr;
pub(crate) mod xattr_block;
