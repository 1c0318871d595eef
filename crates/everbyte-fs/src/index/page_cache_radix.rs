//! The radix tree of Linux's page cache: 2 KiB nodes with 256 slots.
//!
//! The kernel's nodes also have a count, a parent and tags, for the removal of pages and the search by tag.
//! Tables are never removed, so these parts are left out. The tree differs from PMFS's by its node size only:
//! smaller nodes waste less if tables are few.
//!
//! Source: Linux, lib/radix-tree.c.

use everbyte_media::PoolOffset;

use super::radix::RadixIndex;
use crate::format::FsSuperblock;

/// Default bytes of a node.
pub(super) const NODE_BYTES: u32 = 2048;

/// The index of the file system with its superblock at `at`.
pub(super) fn new(superblock: &FsSuperblock, at: PoolOffset) -> RadixIndex {
    RadixIndex::new("page-cache radix index", superblock, at)
}
