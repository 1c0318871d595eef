//! Addresses within an extent, distinct from addresses in the pool.

use everbyte_media::{BLOCK, BLOCK_U64};

/// A byte of an extent: of a device or a file, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceOffset(pub u64);

/// A block of an extent: its bytes `4096 * n .. 4096 * (n + 1)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogicalBlock(pub u64);

impl DeviceOffset {
    /// The block of the byte.
    #[must_use]
    pub const fn block(self) -> LogicalBlock {
        LogicalBlock(self.0 / BLOCK_U64)
    }

    /// Its place in that block, below 4096.
    #[must_use]
    pub const fn in_block(self) -> usize {
        (self.0 % BLOCK_U64) as usize
    }

    /// The byte `bytes` further on. The caller has checked that it lies in the extent.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl LogicalBlock {
    /// Its first byte.
    #[must_use]
    pub const fn offset(self) -> DeviceOffset {
        DeviceOffset(self.0 * BLOCK_U64)
    }
}

impl std::fmt::Display for LogicalBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "logical block {}", self.0)
    }
}

/// Blocks `first .. first + count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// The first block.
    pub first: LogicalBlock,
    /// Number of blocks.
    pub count: u64,
}

impl BlockRange {
    /// The blocks touched by bytes `offset .. offset + len`. The range may be unchecked.
    #[must_use]
    pub fn of_bytes(offset: DeviceOffset, len: u64) -> Self {
        if len == 0 {
            return Self { first: LogicalBlock(0), count: 0 };
        }
        let first = offset.block();
        // The range may be unchecked, so its end may overflow.
        let last = DeviceOffset(offset.0.saturating_add(len - 1)).block();
        Self { first, count: last.0 - first.0 + 1 }
    }

    /// The block beyond the last.
    #[must_use]
    pub const fn end(&self) -> LogicalBlock {
        LogicalBlock(self.first.0 + self.count)
    }

    /// Returns true if the two share a block.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.first.0 < other.end().0 && other.first.0 < self.end().0
    }
}

/// A part of a write within one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockPiece<'d> {
    /// The block.
    pub block: LogicalBlock,
    /// First byte in the block, below 4096.
    pub start: usize,
    /// The new bytes.
    pub data: &'d [u8],
}

/// Splits a write into its blocks.
pub fn pieces(offset: DeviceOffset, data: &[u8]) -> impl Iterator<Item = BlockPiece<'_>> {
    let mut at = offset;
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let start = at.in_block();
        let (now, later) = rest.split_at(rest.len().min(BLOCK - start));
        let piece = BlockPiece { block: at.block(), start, data: now };
        at = at.plus(now.len() as u64);
        rest = later;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_ranges_become_block_ranges() {
        let blocks = |offset, len| {
            let range = BlockRange::of_bytes(DeviceOffset(offset), len);
            (range.first.0, range.count)
        };
        assert_eq!(blocks(0, 1), (0, 1));
        assert_eq!(blocks(4095, 2), (0, 2));
        assert_eq!(blocks(4096, 4096), (1, 1));
        assert_eq!(blocks(9, 0), (0, 0));
    }

    #[test]
    fn writes_are_cut_at_blocks() {
        let data = [7; 5000];
        let cut = |offset, len: usize| -> Vec<(u64, usize, usize)> {
            let pieces = pieces(DeviceOffset(offset), &data[..len]);
            pieces.map(|piece| (piece.block.0, piece.start, piece.data.len())).collect()
        };
        assert_eq!(cut(4090, 5000), [(0, 4090, 6), (1, 0, 4096), (2, 0, 898)]);
        assert_eq!(cut(8192, 4096), [(2, 0, 4096)]);
        assert_eq!(cut(8192, 0), []);
    }

    #[test]
    fn ranges_overlap_if_one_begins_in_other() {
        let range = |first, count| BlockRange { first: LogicalBlock(first), count };
        for (other, shares) in [((0, 4), false), ((0, 5), true), ((6, 1), true), ((7, 9), false)] {
            let (one, other) = (range(4, 3), range(other.0, other.1));
            assert_eq!((one.overlaps(&other), other.overlaps(&one)), (shares, shares), "{other:?}");
        }
        assert!(!range(4, 3).overlaps(&range(9, 0)));
    }

    #[test]
    fn huge_range_ends_at_last_block() {
        let range = BlockRange::of_bytes(DeviceOffset(u64::MAX - 10), 100);
        assert_eq!((range.first, range.count), (DeviceOffset(u64::MAX).block(), 1));
    }

    #[test]
    fn byte_offset_splits_into_block_and_place() {
        for at in [0, 1, 4095, 4096, 12_345] {
            let at = DeviceOffset(at);
            assert_eq!(at.block().offset().plus(at.in_block() as u64), at);
        }
    }
}
