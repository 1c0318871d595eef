//! Eight-byte words with their own check bits: one atomic store changes a valid word into another valid word.
//!
//! Invariants: the low 48 bits are the value, the high 16 bits a multiplicative hash of it; the
//! word 0 is valid and has value 0. A flip of any single bit is noticed.

use everbyte_media::BlockNo;

const VALUE_BITS: u32 = 48;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
/// An odd constant with well-spread bits (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

const BLOCK_BITS: u32 = 40;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// The checked word for `value`, a number below 2^48.
#[inline]
#[must_use]
pub fn encode_word(value: u64) -> u64 {
    assert!(value <= VALUE_MASK, "{value:#x} does not fit in 48 bits");
    // 0 encodes to 0, so zeroed memory holds valid words.
    value | (value.wrapping_mul(SPREAD) & !VALUE_MASK)
}

/// The value of a checked word, or `None` if its check bits are wrong.
#[inline]
#[must_use]
pub fn decode_word(word: u64) -> Option<u64> {
    let value = word & VALUE_MASK;
    (value.wrapping_mul(SPREAD) & !VALUE_MASK == word & !VALUE_MASK).then_some(value)
}

/// Flags of an entry, in addition to its block number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryFlags {
    /// The block is reserved, and reads as zeroes irrespective of its contents.
    pub zero: bool,
    /// Levels of nodes below and including the one this entry names: 0 for data and tables,
    /// 1 to 5 in the root word of a radix tree, 0 in its inner nodes.
    pub height: u8,
}

/// One word of a mapping table: nothing (a hole), or a block with flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The block.
    pub block: BlockNo,
    /// Its flags.
    pub flags: EntryFlags,
}

impl Entry {
    /// An entry without flags. Block numbers go from 1 to 2^40 - 1.
    #[inline]
    #[must_use]
    pub fn data(block: BlockNo) -> Self {
        Self { block, flags: EntryFlags::default() }
    }

    /// An entry for a reserved block, read as zeroes.
    #[inline]
    #[must_use]
    pub fn zero(block: BlockNo) -> Self {
        Self { block, flags: EntryFlags { zero: true, ..EntryFlags::default() } }
    }

    /// The entry as a word. Never 0, the word of a hole.
    #[inline]
    #[must_use]
    pub fn encode(self) -> u64 {
        assert!(self.block.0 != 0 && self.block.0 <= BLOCK_MASK, "{} is not mappable", self.block);
        assert!(self.flags.height < 8, "no tree is that high");
        encode_word(
            self.block.0 | u64::from(self.flags.zero) << 40 | u64::from(self.flags.height) << 42,
        )
    }

    /// The entry in `word`: `Ok(None)` for a hole, `Err` with the reason if it is invalid.
    ///
    /// # Errors
    /// Wrong check bits, unknown flags, or block number 0.
    #[inline]
    pub fn decode(word: u64) -> Result<Option<Self>, &'static str> {
        if word == 0 {
            return Ok(None);
        }
        let value = decode_word(word).ok_or("its check bits are wrong")?;
        // A flag of a newer program changes the meaning of the entry, so it must not be ignored.
        if value >> 45 != 0 || value >> 41 & 1 != 0 {
            return Err("it has unknown flags");
        }
        let block = BlockNo(value & BLOCK_MASK);
        // Block 0 is a superblock copy. No map may lead there.
        if block.0 == 0 {
            return Err("it names block 0");
        }
        let flags = EntryFlags {
            zero: value >> 40 & 1 == 1,
            height: u8::try_from(value >> 42 & 7).expect("three bits"),
        };
        Ok(Some(Self { block, flags }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        for block in [1, 2, 511, 1 << 20, BLOCK_MASK] {
            for (zero, height) in [(false, 0), (true, 0), (true, 5)] {
                let flags = EntryFlags { zero, height };
                let entry = Entry { block: BlockNo(block), flags };
                assert_eq!(Entry::decode(entry.encode()), Ok(Some(entry)));
            }
        }
        assert_eq!(Entry::decode(0), Ok(None));
    }

    #[test]
    fn word_detects_single_bit_flips() {
        for value in [1u64, 77, 0xffff_ffff_ffff, 0x1234_5678_9abc] {
            let word = encode_word(value);
            for bit in 0..64 {
                assert_eq!(decode_word(word ^ (1 << bit)), None, "bit {bit} of {value:#x}");
            }
        }
    }
}
