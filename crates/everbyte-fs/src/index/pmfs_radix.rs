//! The index of PMFS, called a B-tree there: a radix tree of 4 KiB nodes with 512 slots. Each level takes
//! nine bits of a table's number.
//!
//! PMFS keeps height and root in adjacent words of an inode, and changes both under a lock. Here one word
//! holds the root and its level, so both change atomically.
//!
//! Source: Dulloor and others, System Software for Persistent Memory, EuroSys 2014.

use everbyte_media::PoolOffset;

use super::radix::RadixIndex;
use crate::format::FsSuperblock;

/// Default bytes of a node.
pub(super) const NODE_BYTES: u32 = 4096;

/// The index of the file system with its superblock at `at`.
pub(super) fn new(superblock: &FsSuperblock, at: PoolOffset) -> RadixIndex {
    RadixIndex::new("PMFS radix index", superblock, at)
}
