//! Redo logging of differences: Shortcut-JFS, as published and improved.
//!
//! Source: Lee, Yoo, Bahn, "Shortcut-JFS: a write efficient journaling file system for phase change
//! memory", MSST 2012. The journal gets only the changed bytes of a block. If more than half of the
//! block changes, the journal gets the whole new block. The checkpoint makes it the data block by a
//! swap of a pointer, without a copy.
//!
//! [`published`] follows the papers, [`improved`] has the same idea with fewer fences and bytes.
//! Both keep logged lines in the page cache of `overlay` for reads.

mod improved;
mod published;

pub(super) use improved::{CODE as IMPROVED_CODE, Improved};
pub(super) use published::{CODE as PUBLISHED_CODE, Published};
