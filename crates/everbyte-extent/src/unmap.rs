//! Unmaps and zeroing, with or without reserved space.
//!
//! Each part of a request in one leaf of 2 MiB is atomic, unless the log is too small for its partly touched
//! blocks. One word of the parent unlinks a whole leaf. A smaller part changes the entries one by one, all
//! logged in one record. Partly touched blocks are overwritten with zeroes.

use everbyte_media::{BLOCK_U64, Medium};

use crate::address::DeviceOffset;
use crate::error::{BlockReadError, ExtentError};
use crate::extent::Extent;
use crate::leaf::{LEAF_BYTES, LeafPart};
use crate::map;
use crate::plan::Planner;

impl<M: Medium> Extent<M> {
    /// Zeroes one part. With `reserve` its blocks keep their space. The caller is in the volume's quiesce lock and
    /// holds the locks of the blocks. Returns the part's epoch.
    ///
    /// # Errors
    /// The pool is full, the map is corrupt, or the volume is read-only. A part that does not fit in the log is
    /// halved: if the first half was zeroed and the second fails for space or write permission, the error
    /// is `InPart`.
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
            // Each half needs about half of the log.
            (Err(ExtentError::TooLarge), Some((first, second))) => {
                self.zero(first, reserve)?;
                // The first half is done, so the error must not claim the opposite.
                self.zero(second, reserve).map_err(ExtentError::after_part)
            }
            (zeroed, _) => zeroed,
        }
    }

    /// Unmaps the range from the extent's end to the end of its map. The caller excludes all other users of the
    /// extent.
    ///
    /// # Errors
    /// As [`Extent::zero`]. Unreadable bytes stay mapped: they are unreadable now and after a
    /// growth.
    pub fn trim_tail(&self) -> Result<(), ExtentError> {
        let size_bytes = self.size_bytes();
        let partial = size_bytes.next_multiple_of(BLOCK_U64) - size_bytes;
        // The last block stays mapped. Its bytes behind the end must read as zeroes after a growth.
        if partial > 0 {
            self.zero_tail(LeafPart { offset: DeviceOffset(size_bytes), len: partial })?;
        }
        let mut from = self.size_blocks();
        // The entries next to the root word are in no leaf.
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
