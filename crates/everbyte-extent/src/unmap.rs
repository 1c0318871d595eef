//! Unmapping: bytes that are to read as zeroes, with or without space of their own.
//!
//! Each part of a request that lies in one 2 MiB leaf is atomic, unless its partly touched blocks
//! must be logged whole and the log is too small for that. A whole leaf of the radix tree
//! is unlinked by its parent's one word; anything less changes the entries one by one, all logged
//! in one record. Bytes of blocks that are only touched partly are overwritten with zeroes.

use everbyte_media::{BLOCK_U64, Medium};

use crate::address::{BlockRange, DeviceOffset};
use crate::error::{ExtentError, Unsound};
use crate::extent::Extent;
use crate::map::{self, MapKind};
use crate::plan::{LEAF_BYTES, Planner};

/// A part of a request within one leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafPart {
    offset: DeviceOffset,
    len: u64,
}

impl LeafPart {
    /// The blocks that it touches.
    #[must_use]
    pub fn blocks(self) -> BlockRange {
        BlockRange::of_bytes(self.offset, self.len)
    }

    fn end(self) -> DeviceOffset {
        self.offset.plus(self.len)
    }

    /// The part cut in two at a block boundary, unless it lies within one block.
    fn halves(self) -> Option<(Self, Self)> {
        let blocks = self.blocks();
        if blocks.count < 2 {
            return None;
        }
        let middle = (blocks.first.0 + blocks.count.div_ceil(2)) * BLOCK_U64;
        let len = middle - self.offset.0;
        let second = Self { offset: self.offset.plus(len), len: self.len - len };
        Some((Self { len, ..self }, second))
    }

    fn is_whole_leaf(self) -> bool {
        self.offset.0.is_multiple_of(LEAF_BYTES) && self.len == LEAF_BYTES
    }
}

/// Cuts a range at leaf boundaries.
pub fn leaf_parts(offset: DeviceOffset, len: u64) -> impl Iterator<Item = LeafPart> {
    let end = offset.0 + len;
    let mut at = offset.0;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let to = ((at / LEAF_BYTES + 1) * LEAF_BYTES).min(end);
        let part = LeafPart { offset: DeviceOffset(at), len: to - at };
        at = to;
        Some(part)
    })
}

impl<M: Medium> Extent<M> {
    /// Zeroes one part, with `reserve` in space that stays its own. The caller is in the volume's
    /// gate and holds the locks of the blocks. Returns the part's epoch.
    ///
    /// # Errors
    /// The pool is full, the map corrupt, or the volume cannot be written. A part that the log has
    /// no room for is cut, and its first half may have been zeroed then.
    pub fn zero(&self, part: LeafPart, reserve: bool) -> Result<u64, ExtentError> {
        let unlinks = part.is_whole_leaf() && !reserve && self.map_kind() == MapKind::Radix;
        let zeroed = self.volume().change(|batch, circumstances| {
            let mut planner = Planner::new(self, batch, circumstances);
            if unlinks {
                planner.unlink_leaf(part.offset.block())
            } else {
                planner.zero(part.offset, part.end(), reserve)
            }
        });
        match (zeroed, part.halves()) {
            (Err(ExtentError::TooLarge), Some((first, second))) => {
                self.zero(first, reserve)?;
                self.zero(second, reserve)
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
        while self.map_kind() == MapKind::Radix {
            let leaf = map::first_leaf_from(&self.entries(), self.root_at(), from)?;
            let Some(leaf) = leaf else { break };
            let offset = leaf.max(from) * BLOCK_U64;
            let len = LEAF_BYTES - offset % LEAF_BYTES;
            self.zero_tail(LeafPart { offset: DeviceOffset(offset), len })?;
            from = (offset + len) / BLOCK_U64;
        }
        Ok(())
    }

    fn zero_tail(&self, part: LeafPart) -> Result<(), ExtentError> {
        match self.zero(part, false) {
            Ok(_) => Ok(()),
            Err(ExtentError::Unsound(Unsound::Map(corrupt))) => Err(corrupt.into()),
            Err(ExtentError::Unsound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: u64 = LEAF_BYTES;

    #[test]
    fn ranges_are_cut_at_leaves() {
        let parts = |offset, len| -> Vec<(u64, u64)> {
            let parts = leaf_parts(DeviceOffset(offset), len);
            parts.map(|part| (part.offset.0, part.len)).collect()
        };
        assert_eq!(parts(0, 0), []);
        assert_eq!(parts(5, 10), [(5, 10)]);
        assert_eq!(parts(LEAF - 1, LEAF + 2), [(LEAF - 1, 1), (LEAF, LEAF), (2 * LEAF, 1)]);
    }

    #[test]
    fn parts_are_halved_down_to_a_block_and_no_further() {
        let part = |offset, len| LeafPart { offset: DeviceOffset(offset), len };
        assert!(part(100, 200).halves().is_none());
        let (first, second) = part(100, 3 * BLOCK_U64).halves().unwrap();
        assert_eq!(
            (first.offset.0, first.end(), second.end().0),
            (100, second.offset, 100 + 3 * 4096)
        );
        assert_eq!(first.end().0, 2 * BLOCK_U64);
    }
}
