//! Redo logging of differences: Shortcut-JFS, as published and improved.
//!
//! Source: Lee, Yoo, Bahn, "Shortcut-JFS: a write efficient journaling file system for phase change
//! memory", MSST 2012. The journal gets only the bytes of a block that change; if they are more
//! than half of it, it gets the whole new block, and at the checkpoint that block becomes the
//! data block: a pointer is swapped, nothing is copied.
//!
//! [`published`] follows the papers, [`improved`] has the same idea with fewer fences and bytes.
//! Both keep logged lines in the page cache of `overlay` for reads.

mod improved;
mod published;

pub(super) use improved::{CODE as IMPROVED_CODE, Improved};
pub(super) use published::{CODE as PUBLISHED_CODE, Published};
