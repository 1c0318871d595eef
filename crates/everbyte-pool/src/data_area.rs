//! The blocks of a pool that maps may name. Knows neither maps nor owners.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::BlockNo;

/// The blocks of a pool that maps may name: all but the superblocks, the volume table, and what of
/// the medium the pool does not use yet. Grows while the pool is open, and never shrinks.
///
/// Whoever asks about a block after having found it in a map, or after having allocated it, is told
/// that it is in here.
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

    /// Makes it end before block `end`. Whoever allocates is to get the new blocks afterwards.
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
