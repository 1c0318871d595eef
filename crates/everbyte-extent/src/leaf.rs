//! Leaves of a map: 2 MiB of an extent each, and the parts of a request within one.

use everbyte_media::BLOCK_U64;

use crate::address::{BlockRange, DeviceOffset};
use crate::map::ENTRIES;

/// Bytes covered by a leaf of a map: 2 MiB.
pub const LEAF_BYTES: u64 = ENTRIES * BLOCK_U64;

/// A part of a request within one leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafPart {
    pub(crate) offset: DeviceOffset,
    pub(crate) len: u64,
}

impl LeafPart {
    /// The touched blocks.
    #[must_use]
    pub fn blocks(self) -> BlockRange {
        BlockRange::of_bytes(self.offset, self.len)
    }

    /// Its first byte.
    #[must_use]
    pub fn offset(self) -> DeviceOffset {
        self.offset
    }

    /// One beyond its last byte.
    #[must_use]
    pub fn end(self) -> DeviceOffset {
        self.offset.plus(self.len)
    }

    /// The part cut in two at a block boundary, unless it lies within one block.
    pub(crate) fn halves(self) -> Option<(Self, Self)> {
        let blocks = self.blocks();
        if blocks.count < 2 {
            return None;
        }
        let middle = (blocks.first.0 + blocks.count.div_ceil(2)) * BLOCK_U64;
        let len = middle - self.offset.0;
        let second = Self { offset: self.offset.plus(len), len: self.len - len };
        Some((Self { len, ..self }, second))
    }

    pub(crate) fn is_whole_leaf(self) -> bool {
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
    fn leaf_parts_halve_down_to_one_block() {
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
