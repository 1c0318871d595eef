//! Inodes: their tables, locks, edits, blocks, and inodes without a name.

pub(crate) mod blocks;
pub(crate) mod edits;
pub(crate) mod inode_ref;
pub(crate) mod locks;
pub(crate) mod open_files;
pub(crate) mod orphan;
pub(crate) mod tables;
