//! Fullness of a file system for `statfs`.
//!
//! Invariant: one file can get all reported free blocks as data, if no other program writes.

use everbyte_media::{BLOCK_U64, Medium};

use crate::fs::FileSystem;
use crate::index::IndexKind;

/// Reserve for directories, extended attributes and partial nodes of maps: a share of the size, as a divisor,
/// with bounds in blocks.
const RESERVE_SHARE: u64 = 256;
const RESERVE_BLOCKS_MIN: u64 = 8;
const RESERVE_BLOCKS_MAX: u64 = 64;
/// Blocks of a region of inode tables in a window index.
const REGION_BLOCKS: u64 = 512;

/// Fullness of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsStatus {
    /// Size in blocks of 4096 bytes.
    pub blocks: u64,
    /// Blocks of data for one more file: the unused part of the size (or of a smaller rest of the pool)
    /// without the map of that file and a reserve. A removal adds the file's blocks immediately.
    pub free_blocks: u64,
    /// Limit of inodes; less if the free space holds fewer inode tables.
    pub inodes: u64,
    /// Inodes for new files.
    pub free_inodes: u64,
}

impl<M: Medium> FileSystem<M> {
    /// Space and inodes: used and free.
    #[must_use]
    pub fn status(&self) -> FsStatus {
        let blocks = self.size_blocks();
        let left = self.volume().used_blocks().map_or(blocks, |used| blocks.saturating_sub(used));
        // Other volumes share the pool and may have taken the space.
        let left = left.min(self.pool().info().free_bytes / BLOCK_U64);
        let reserve = (blocks / RESERVE_SHARE).clamp(RESERVE_BLOCKS_MIN, RESERVE_BLOCKS_MAX);
        let used_inodes = self.tables.used();
        let inodes = self.tables.inodes_max().min(used_inodes + self.inodes_that_fit(left));
        // The map and the directory of a new file take blocks too, so they are subtracted.
        let for_data = left.saturating_sub(reserve + self.blocks_of_next_inode());
        FsStatus {
            blocks,
            free_blocks: for_data - map_blocks_max(for_data),
            inodes,
            free_inodes: inodes.saturating_sub(used_inodes),
        }
    }

    /// Free inodes of the existing tables.
    fn free_slots(&self) -> u64 {
        let slots = self.tables.tables() * self.superblock.geometry().usable();
        slots.saturating_sub(self.tables.used())
    }

    /// Free inodes of the existing tables, and of tables in `left` more blocks.
    fn inodes_that_fit(&self, left: u64) -> u64 {
        let geometry = self.superblock.geometry();
        self.free_slots() + left / geometry.blocks() * geometry.usable()
    }

    /// Blocks of the inode table of the next file; 0 if an existing table has a free inode.
    fn blocks_of_next_inode(&self) -> u64 {
        let table_blocks = self.superblock.geometry().blocks();
        let is_window = self.superblock.index == IndexKind::Window.code();
        match self.free_slots() {
            0 if !is_window => table_blocks,
            // A window maps regions of 2 MiB, so the first table of a region takes the whole
            // region.
            0 if self.tables.tables().is_multiple_of(REGION_BLOCKS / table_blocks) => REGION_BLOCKS,
            _ => 0,
        }
    }
}

/// Upper bound of the blocks in the map of a file that has `blocks` with its map.
fn map_blocks_max(blocks: u64) -> u64 {
    // A node names 512 blocks or nodes, and 1/512 + 1/512^2 + ... is 1/511. The reserve has a partial node of each
    // level.
    blocks.div_ceil(511)
}
