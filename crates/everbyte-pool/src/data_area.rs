//! The blocks that maps may name in a pool. Knows neither maps nor owners.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::BlockNo;

/// The blocks that maps may name in a pool: all but the superblocks, the volume table, and the unused part of
/// the medium. Grows while the pool is open, and never shrinks.
///
/// If a thread found a block in a map or allocated it, a later query of this area by the thread includes the
/// block.
#[derive(Debug)]
pub struct DataArea {
    start: u64,
    len: AtomicU64,
}

impl DataArea {
    /// The area of `blocks`.
    #[must_use]
    pub fn new(blocks: Range<u64>) -> Self {
        let len = blocks.end.saturating_sub(blocks.start);
        Self { start: blocks.start, len: AtomicU64::new(len) }
    }

    /// Its blocks at this moment.
    #[must_use]
    pub fn blocks(&self) -> Range<u64> {
        self.start..self.start + self.len.load(Ordering::Acquire)
    }

    /// Returns true if `block` lies in the area. One comparison does, since a block below the start
    /// wraps around.
    #[must_use]
    #[inline]
    pub fn contains(&self, block: BlockNo) -> bool {
        block.0.wrapping_sub(self.start) < self.len.load(Ordering::Acquire)
    }

    /// Makes it end before block `end`. The caller adds the new blocks to the allocator afterwards.
    pub(crate) fn extend_to(&self, end: u64) {
        self.len.fetch_max(end - self.start, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_area_grows_only() {
        let area = DataArea::new(10..20);
        let inside = || (0..40).filter(|&block| area.contains(BlockNo(block))).collect::<Vec<_>>();
        assert_eq!(inside(), (10..20).collect::<Vec<_>>());
        assert!(!area.contains(BlockNo(u64::MAX)));
        area.extend_to(25);
        area.extend_to(22);
        assert_eq!(inside(), (10..25).collect::<Vec<_>>());
        assert_eq!(area.blocks(), 10..25);
    }

    #[test]
    fn inverted_data_area_is_empty() {
        let area = DataArea::new(Range { start: 10, end: 3 });
        assert!((0..20).all(|block| !area.contains(BlockNo(block))));
    }
}
