//! The radix tree in which Linux keeps the pages of a file: 2 KiB nodes with 256 slots.
//!
//! The kernel's nodes also have a count, a parent and tags: for taking pages out, and for finding those
//! with a tag. Tables are never taken out, so nothing of that is here, and the tree differs from that of
//! PMFS by the size of its nodes alone: smaller ones waste less where there are few tables.
//!
//! Source: Linux, lib/radix-tree.c.

use everbyte_media::PoolOffset;

use super::radix::RadixIndex;
use crate::format::FsSuperblock;

/// Bytes of a node unless told otherwise.
pub(super) const NODE_BYTES: u32 = 2048;

/// The index of the file system whose superblock is at `at`.
pub(super) fn new(superblock: &FsSuperblock, at: PoolOffset) -> RadixIndex {
    RadixIndex::new("page-cache radix index", superblock, at)
}
