//! Slot trees: the free slots among `capacity` equal slots, and the choice of the next one.
//!
//! A slot is a number in `0..capacity`; its meaning (a block of a pool, a page of a swap region)
//! belongs to the caller. The trees find, take and free a slot in O(log n). A linear search of a
//! nearly full map takes O(n):
//!
//! - [`SlotTree`] has order 64, one word per node, lock-free for many threads;
//! - [`RunTree`] adds aligned runs, found without a search;
//! - `ByteTree` (feature `paper-tree`) has order 8, one byte per node, for one thread: the tree of the
//!   paper, for comparisons.
//!
//! [`FreeRanges`] lists free ranges, for a few pieces of any length.
//!
//! Invariants of all: a slot is either free or used; a new tree has only used slots, so freeing
//! adds slots; a set bit means *free*. Trees are volatile, and have no files, media or volumes.
//!
//! The concurrent protocol is model-checked with loom (a tree of order 2, two and three threads):
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p everbyte-slots --release --lib
//! ```
//!
//! # Example
//! ```
//! use everbyte_slots::SlotTree;
//!
//! let tree = SlotTree::new(1000);
//! tree.free_run(100, 300)?;
//! assert_eq!(tree.alloc(150), Some(150));
//! assert_eq!(tree.alloc_run(200, 0), Some(151));
//! tree.free(150)?;
//! assert!(tree.free(150).is_err());
//! # Ok::<(), everbyte_slots::SlotError>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "paper-tree"))]
mod byte_tree;
mod ranges;
mod run;
mod run_tree;
mod slot_tree;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(any(test, feature = "paper-tree"))]
pub use byte_tree::ByteTree;
pub use ranges::FreeRanges;
pub use run_tree::{AlignedTree, RunTree};
pub use slot_tree::{SlotTree, WordTree};

/// A refused change of a slot's owner. Each variant means a wrong view of the owner by the caller;
/// a lack of free slots is `None`, not an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// The slot to be freed was free: it was freed twice, or never handed out.
    #[error("slot {slot} is already free")]
    AlreadyFree {
        /// The lowest such slot.
        slot: u64,
    },
    /// The slot to be taken was used: it has, or would have, two owners.
    #[error("slot {slot} is already used")]
    AlreadyUsed {
        /// The lowest such slot.
        slot: u64,
    },
    /// The slots do not all lie in the tree.
    #[error("slots {start}+{len} leave the tree of {capacity} slots")]
    OutOfRange {
        /// The first slot named.
        start: u64,
        /// Slots named.
        len: u64,
        /// Slots in the tree.
        capacity: u64,
    },
    /// A saved state has the wrong length for this tree.
    #[error("the saved state has {found} words, the tree {expected}")]
    WordCount {
        /// Leaf words of the tree.
        expected: u64,
        /// Words of the state; of a longer one, only `expected + 1` are looked at.
        found: u64,
    },
}
