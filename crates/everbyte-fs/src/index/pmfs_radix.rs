//! The index of PMFS, there called a B-tree: a radix tree of 4 KiB nodes with 512 slots, of which each level
//! takes nine bits of a table's number.
//!
//! PMFS keeps height and root in adjacent words of an inode and changes one after the other, under a
//! lock. Here the word that names the root also says its level, so that both change at once.
//!
//! Source: Dulloor and others, System Software for Persistent Memory, EuroSys 2014.

use everbyte_media::PoolOffset;

use super::radix::RadixIndex;
use crate::format::FsSuperblock;

/// Bytes of a node unless told otherwise.
pub(super) const NODE_BYTES: u32 = 4096;

/// The index of the file system whose superblock is at `at`.
pub(super) fn new(superblock: &FsSuperblock, at: PoolOffset) -> RadixIndex {
    RadixIndex::new("PMFS radix index", superblock, at)
}
