//! An inode table: a run of blocks with slots of 256 bytes. The first slots are its head: a word with the
//! table's number, and two bits for each slot, used and orphaned (in use without a name).
//!
//! An inode's number is the table's number times the slots of a table, plus the slot.

use everbyte_media::{BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::{Corrupt, check_readable};

use super::INODE_BYTES;
use crate::format::number::InodeNo;

/// Tag in the first word of a table.
const TAG: u64 = 0x5441;
const TAG_SHIFT: u32 = 32;
const BITS_AT: u64 = 64;

/// The geometry of a file system's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableGeometry {
    /// Blocks of a table: 1, or 512 for 2 MiB.
    blocks: u64,
    /// Slots of a table, as the exponent of a power of two.
    slot_bits: u32,
    /// Slots of its head.
    head_slots: u64,
    /// Bytes of one bitmap of the slots, in whole lines.
    bytes_of_bits: u64,
}

/// The place of a slot's bit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bit {
    /// The address of its word.
    pub(crate) at: PoolOffset,
    /// Its mask in the word.
    pub(crate) mask: u64,
}

impl TableGeometry {
    /// The geometry of tables with so many blocks; `None` for an invalid number.
    pub(crate) fn new(blocks: u64) -> Option<Self> {
        if !matches!(blocks, 1 | 512) {
            return None;
        }
        let slots = blocks * BLOCK_U64 / INODE_BYTES;
        let bytes_of_bits = (slots / 8).next_multiple_of(64);
        let head_slots = (BITS_AT + 2 * bytes_of_bits).div_ceil(INODE_BYTES);
        Some(Self { blocks, slot_bits: slots.ilog2(), head_slots, bytes_of_bits })
    }

    pub(crate) fn blocks(self) -> u64 {
        self.blocks
    }

    /// Slots of a table, including the head.
    pub(crate) fn slots(self) -> u64 {
        1 << self.slot_bits
    }

    /// Slots of its head.
    pub(crate) fn head_slots(self) -> u64 {
        self.head_slots
    }

    /// Returns true if `word` can be the first word of a table.
    #[cfg(feature = "testkit")]
    pub(crate) fn is_head(word: u64) -> bool {
        word >> TAG_SHIFT & 0xffff == TAG
    }

    /// Bytes of the head with the first part of both bitmaps, up to the end of one block.
    pub(crate) fn head_bytes_first(self) -> usize {
        usize::try_from((BITS_AT + self.bytes_of_bits + 8).min(INODE_BYTES)).expect("a head")
    }

    /// Slots for inodes.
    pub(crate) fn usable(self) -> u64 {
        self.slots() - self.head_slots()
    }

    /// The inode of the root directory.
    pub(crate) fn root(self) -> InodeNo {
        InodeNo(self.head_slots())
    }

    pub(crate) fn table_of(self, inode: InodeNo) -> u64 {
        inode.0 >> self.slot_bits
    }

    fn slot_of(self, inode: InodeNo) -> u64 {
        inode.0 & (self.slots() - 1)
    }

    /// The inode in `slot` of `table`.
    pub(crate) fn inode(self, table: u64, slot: u64) -> InodeNo {
        InodeNo(table * self.slots() + slot)
    }

    /// Returns true if the slot of `inode` is outside of the head.
    pub(crate) fn is_inode(self, inode: InodeNo) -> bool {
        self.slot_of(inode) >= self.head_slots()
    }

    /// The address of `inode` in its table at `table_at`.
    pub(crate) fn inode_at(self, table_at: PoolOffset, inode: InodeNo) -> PoolOffset {
        table_at.plus(self.slot_of(inode) * INODE_BYTES)
    }

    /// The used bit of `inode`.
    pub(crate) fn used(self, table_at: PoolOffset, inode: InodeNo) -> Bit {
        self.bit(table_at.plus(BITS_AT), inode)
    }

    /// The orphan bit of `inode`: in use without a name.
    pub(crate) fn orphan(self, table_at: PoolOffset, inode: InodeNo) -> Bit {
        self.bit(table_at.plus(BITS_AT + self.bytes_of_bits), inode)
    }

    fn bit(self, bits_at: PoolOffset, inode: InodeNo) -> Bit {
        let slot = self.slot_of(inode);
        Bit { at: bits_at.plus(slot / 64 * 8), mask: 1 << (slot % 64) }
    }

    /// The head of table number `table` with the used inodes `used`.
    pub(crate) fn head(self, table: u64, used: &[InodeNo]) -> Vec<u8> {
        let mut head = vec![0; usize::try_from(self.head_slots() * INODE_BYTES).expect("blocks")];
        let mut put = |at: u64, word: u64| {
            let at = usize::try_from(at).expect("a place in the head");
            let old = u64::from_le_bytes(*head[at..].first_chunk().expect("a word of the head"));
            head[at..at + 8].copy_from_slice(&(old | word).to_le_bytes());
        };
        put(0, encode_word(TAG << TAG_SHIFT | table));
        for &inode in used {
            let bit = self.used(PoolOffset(0), inode);
            put(bit.at.0, bit.mask);
        }
        head
    }

    /// Checks the head of table number `table` at `at`.
    ///
    /// # Errors
    /// It cannot be read, or is another table's.
    pub(crate) fn check<M: Medium>(
        self,
        medium: &M,
        at: PoolOffset,
        table: u64,
    ) -> Result<(), Corrupt> {
        let word = medium.load_word(at);
        check_readable(medium, "inode table", at, self.head_slots() * INODE_BYTES)?;
        if decode_word(word) == Some(TAG << TAG_SHIFT | table) {
            return Ok(());
        }
        Err(Corrupt::new("inode table", at, format!("it does not say that it is table {table}")))
    }
}

/// Limit of tables, by the range of a table's first word.
pub(crate) const TABLES_MAX: u64 = 1 << TAG_SHIFT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_bits_fit_and_do_not_overlap() {
        for blocks in [1, 512] {
            let geometry = TableGeometry::new(blocks).unwrap();
            let start = PoolOffset(1 << 21);
            let last = geometry.inode(3, geometry.slots() - 1);
            let first = geometry.inode(3, geometry.head_slots());
            let inodes = geometry.inode_at(start, first);
            assert!(geometry.used(start, last).at < geometry.orphan(start, first).at);
            assert!(geometry.orphan(start, last).at.plus(8).0 <= inodes.0);
            assert_eq!(geometry.table_of(last), 3);
            assert_eq!(geometry.inode_at(start, last).0 + 256, start.0 + blocks * 4096);
        }
        assert_eq!(TableGeometry::new(1).unwrap().root(), InodeNo(1));
        for blocks in [0, 2, 511, 1 << 52, u64::MAX] {
            assert_eq!(TableGeometry::new(blocks), None, "{blocks}");
        }
    }
}
