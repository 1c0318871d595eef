//! The units the whole stack speaks: blocks of 4 KiB, lines of 64 bytes, and masks of lines.
//!
//! Invariants: a `LineMask` describes the 64 lines of exactly one block, bit `i` standing for
//! bytes `64 * i .. 64 * (i + 1)`. Addresses are byte offsets from the start of a medium and are
//! never negative, never absolute pointers.

/// Bytes in a block, the unit of allocation.
pub const BLOCK: usize = 4096;
/// Bytes in a cache line, the unit of flushing.
pub const LINE: usize = 64;

/// `BLOCK` as a `u64`, for address arithmetic.
pub const BLOCK_U64: u64 = BLOCK as u64;
/// `BLOCK` as a `u32`, for fields of that size.
pub const BLOCK_U32: u32 = 4096;
const _: () = assert!(BLOCK_U32 as usize == BLOCK);
/// `LINE` as a `u64`, for address arithmetic.
pub const LINE_U64: u64 = LINE as u64;

/// A byte offset from the start of a medium.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PoolOffset(pub u64);

impl PoolOffset {
    /// The offset `bytes` further on. Panics on overflow in debug builds.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// The block this offset lies in.
    #[inline]
    #[must_use]
    pub fn block(self) -> BlockNo {
        BlockNo(self.0 / BLOCK_U64)
    }

    /// Bytes between the start of this offset's block and the offset: `0..4096`.
    #[inline]
    #[must_use]
    pub fn in_block(self) -> usize {
        (self.0 % BLOCK_U64) as usize
    }
}

impl std::fmt::Display for PoolOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The number of a 4 KiB block of a medium, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// Returns the offset of the block's first byte.
    #[inline]
    #[must_use]
    pub fn offset(self) -> PoolOffset {
        PoolOffset(self.0 * BLOCK_U64)
    }
}

impl std::fmt::Display for BlockNo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// A set of the 64 lines of one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LineMask(pub u64);

impl LineMask {
    /// No line.
    pub const EMPTY: Self = Self(0);
    /// Every line of the block.
    pub const FULL: Self = Self(u64::MAX);

    /// The lines touched by bytes `start .. start + len` of a block.
    ///
    /// Panics if the range leaves the block. An empty range touches no line.
    #[inline]
    #[must_use]
    pub fn covering(start: usize, len: usize) -> Self {
        assert!(start <= BLOCK && len <= BLOCK - start, "range {start}+{len} leaves the block");
        if len == 0 {
            return Self::EMPTY;
        }
        let first = start / LINE;
        let last = (start + len - 1) / LINE;
        Self((u64::MAX >> (63 - (last - first))) << first)
    }

    /// Lines in the set.
    #[inline]
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if the set is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Lines in both sets.
    #[inline]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Lines in either set.
    #[inline]
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Lines of this set outside `other`.
    #[inline]
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Maximal runs of adjacent lines, ascending, as byte ranges `(start, len)` of the block.
    pub fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let first = rest.trailing_zeros() as usize;
            let lines = (rest >> first).trailing_ones() as usize;
            rest &= if first + lines == 64 { 0 } else { u64::MAX << (first + lines) };
            Some((first * LINE, lines * LINE))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_counts_partial_lines() {
        assert_eq!(LineMask::covering(0, 0), LineMask::EMPTY);
        assert_eq!(LineMask::covering(0, 1), LineMask(1));
        assert_eq!(LineMask::covering(63, 2), LineMask(3));
        assert_eq!(LineMask::covering(64, 64), LineMask(2));
        assert_eq!(LineMask::covering(0, BLOCK), LineMask::FULL);
        assert_eq!(LineMask::covering(4095, 1), LineMask(1 << 63));
        assert_eq!(LineMask::covering(4096, 0), LineMask::EMPTY);
    }

    #[test]
    fn runs_rebuild_the_mask() {
        for mask in [0, 1, 1 << 63, u64::MAX, 0x00ff_f00f_0001_8000, 0xaaaa_aaaa_aaaa_aaaa] {
            let mut seen = LineMask::EMPTY;
            for (start, len) in LineMask(mask).runs() {
                assert!(seen.and(LineMask::covering(start, len)).is_empty());
                seen = seen.or(LineMask::covering(start, len));
            }
            assert_eq!(seen.0, mask);
        }
    }
}
