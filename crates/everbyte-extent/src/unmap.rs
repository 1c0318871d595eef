//! Unmapping: bytes that are to read as zeroes, with or without space of their own.
//!
//! Each part of a request that lies in one 2 MiB leaf is atomic, unless its partly touched blocks
//! must be logged whole and the log is too small for that. A whole leaf of the radix tree
//! is unlinked by its parent's one word; anything less changes the entries one by one, all logged
//! in one record. Bytes of blocks that are only touched partly are overwritten with zeroes.

use everbyte_media::{BLOCK_U64, Medium};

use crate::address::DeviceOffset;
use crate::error::{BlockReadError, ExtentError};
use crate::extent::Extent;
use crate::leaf::{LEAF_BYTES, LeafPart};
use crate::map;
use crate::plan::Planner;

impl<M: Medium> Extent<M> {
    /// Zeroes one part, with `reserve` in space that stays its own. The caller is in the volume's
    /// gate and holds the locks of the blocks. Returns the part's epoch.
    ///
    /// # Errors
    /// The pool is full, the map corrupt, or the volume cannot be written. A part that the log has
    /// no room for is cut: if its first half was zeroed and no space or no right to write was left for the
    /// second, the error is `InPart`.
    pub fn zero(&self, part: LeafPart, reserve: bool) -> Result<u64, ExtentError> {
        let unlinks = part.is_whole_leaf() && !reserve;
        let zeroed = self.volume().change(|batch, constraints| {
            let mut planner = Planner::new(self, batch, constraints);
            if unlinks {
                planner.unlink_leaf(part.offset.block())
            } else {
                planner.zero(part.offset, part.end(), reserve)
            }
        });
        match (zeroed, part.halves()) {
            (Err(ExtentError::TooLarge), Some((first, second))) => {
                self.zero(first, reserve)?;
                self.zero(second, reserve).map_err(ExtentError::after_part)
            }
            (zeroed, _) => zeroed,
        }
    }

    /// Unmaps everything from the first byte beyond the extent's end to where its map ends. The
    /// caller keeps everyone else out of the extent.
    ///
    /// # Errors
    /// As [`Extent::zero`]. Bytes that cannot be read are left: nothing can be read there, now or
    /// after a growth.
    pub fn trim_tail(&self) -> Result<(), ExtentError> {
        let size_bytes = self.size_bytes();
        let partial = size_bytes.next_multiple_of(BLOCK_U64) - size_bytes;
        if partial > 0 {
            self.zero_tail(LeafPart { offset: DeviceOffset(size_bytes), len: partial })?;
        }
        let mut from = self.size_blocks();
        let first = self.first_entries().map_or(0, |first| first.count);
        if from < first {
            let len = (first - from) * BLOCK_U64;
            self.zero_tail(LeafPart { offset: DeviceOffset(from * BLOCK_U64), len })?;
            from = first;
        }
        loop {
            let next = map::first_leaf_from(&self.entries(), self.root_at(), from);
            let Some(next) = next.map_err(|interrupted| interrupted.corrupt)? else { break };
            let offset = next.max(from) * BLOCK_U64;
            let len = LEAF_BYTES - offset % LEAF_BYTES;
            self.zero_tail(LeafPart { offset: DeviceOffset(offset), len })?;
            from = (offset + len) / BLOCK_U64;
        }
        Ok(())
    }

    fn zero_tail(&self, part: LeafPart) -> Result<(), ExtentError> {
        match self.zero(part, false) {
            Ok(_) => Ok(()),
            Err(ExtentError::BlockReadError(BlockReadError::Map(corrupt))) => Err(corrupt.into()),
            Err(ExtentError::BlockReadError(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
