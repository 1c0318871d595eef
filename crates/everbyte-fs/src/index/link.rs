//! Words that name the nodes of a tree, and inode tables.
//!
//! A link has a level: 0 for a table, 1 for the lowest nodes. Levels fall on every path, so damage cannot
//! make a cycle.

use everbyte_media::{BLOCK_U64, BlockNo, LINE_U64, Medium, PoolOffset};
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::{Corrupt, check_readable};

use crate::error::FsError;
use crate::format::reader::Reader;

/// Bits of an address in lines of 64 bytes: 1 PiB.
const ADDRESS_BITS: u32 = 44;
/// Highest level.
pub(super) const LEVEL_MAX: u32 = 15;

/// A node or a table, and its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) at: PoolOffset,
    pub(super) level: u32,
}

impl Link {
    /// A link to `at`, a multiple of 64 bytes.
    ///
    /// # Errors
    /// The address or the level exceeds its limit.
    pub(super) fn new(at: PoolOffset, level: u32) -> Result<Self, FsError> {
        if (at.0 / LINE_U64) >> ADDRESS_BITS != 0 {
            return Err(FsError::Invalid { what: "an index cannot name what lies beyond 1 PiB" });
        }
        if level > LEVEL_MAX {
            return Err(FsError::Invalid { what: "an index has at most 15 levels" });
        }
        Ok(Self { at, level })
    }

    /// A link to the table at `block`.
    ///
    /// # Errors
    /// As [`Link::new`].
    pub(super) fn table(block: BlockNo) -> Result<Self, FsError> {
        Self::new(block.offset(), 0)
    }

    /// The word. Never 0.
    pub(super) fn encode(self) -> u64 {
        encode_word((self.at.0 / LINE_U64) | (u64::from(self.level) << ADDRESS_BITS))
    }

    /// The link in the word at `at`, part of `structure`. `None` for the word 0.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or leads outside the pool's data.
    #[inline]
    pub(super) fn load<M: Medium>(
        structure: &str,
        reader: Reader<'_, M>,
        at: PoolOffset,
    ) -> Result<Option<Self>, Corrupt> {
        let word = reader.medium.load_word(at);
        check_readable(reader.medium, structure, at, 8)?;
        if word == 0 {
            return Ok(None);
        }
        let wrong = |what: &str| Corrupt::new(structure, at, what);
        let value = decode_word(word).ok_or_else(|| wrong("its check bits are wrong"))?;
        let named = PoolOffset((value & ((1 << ADDRESS_BITS) - 1)) * LINE_U64);
        let level = u32::try_from(value >> ADDRESS_BITS).expect("four bits");
        if !reader.data.contains(named.block()) {
            return Err(wrong("it leads outside the pool's data"));
        }
        if level == 0 && !named.0.is_multiple_of(BLOCK_U64) {
            return Err(wrong("no inode table can begin where it leads"));
        }
        Ok(Some(Self { at: named, level }))
    }
}

#[cfg(test)]
mod tests {
    use everbyte_crash::SimMedium;
    use everbyte_pool::DataArea;

    use super::*;

    #[test]
    fn link_round_trips_and_stays_in_bounds() {
        let (medium, data) = (SimMedium::new(1 << 16), DataArea::new(3..10));
        let reader = Reader::new(&medium, &data);
        let load = |word| {
            medium.store_word(PoolOffset(0), word);
            Link::load("index", reader, PoolOffset(0)).map_err(|corrupt| corrupt.what)
        };
        let link = Link::new(PoolOffset(3 * BLOCK_U64 + 64), LEVEL_MAX).unwrap();
        assert_eq!(load(link.encode()), Ok(Some(link)));
        assert_eq!(load(0), Ok(None));
        for (at, level) in [(10 * BLOCK_U64, 1), (BLOCK_U64, 0), (3 * BLOCK_U64 + 64, 0)] {
            let link = Link::new(PoolOffset(at), level).unwrap();
            assert!(load(link.encode()).is_err(), "{link:?}");
        }
        assert!(load(link.encode() ^ 1).is_err());
        assert!(Link::new(PoolOffset(1 << 50), 1).is_err());
        assert!(Link::new(PoolOffset(1 << 14), LEVEL_MAX + 1).is_err());
    }
}
