//! Data checksums: CRC-32C of every mapped block, by its place in the pool.
//!
//! Owns the checksums' tree (a radix tree like the map's, from a separate root, with checksums instead of
//! entries in its lowest level) and the handling of a block with a mismatch.
//!
//! Invariants: while a block's lock is free, the checksum in its slot is that of all its 4096 bytes. If no
//! durable word names a block, it may get its checksum unlogged, before the commit that makes it reachable:
//! undo does not rely on the slot either. A block changed in place has its old checksum in the log, so undo
//! restores both. Nodes of the tree are never unlinked. No byte leaves a block, for a client or into another
//! block, before the block was verified as a whole.

use everbyte_media::{BLOCK, BlockNo, LineMask, Medium, PoolOffset};
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::{Corrupt, check_readable};

use crate::address::{BlockPiece, DeviceOffset};
use crate::error::{BlockReadError, Expected};
use crate::extent::Extent;
use crate::map::MapSlot;

/// Checksum of every data block; it detects blocks with other bytes than were stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// Nothing.
    #[default]
    None,
    /// CRC-32C (Castagnoli).
    Crc32c,
}

impl Checksum {
    /// The number in a volume's descriptor.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Crc32c => 1,
        }
    }

    /// The setting with this number.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::None, Self::Crc32c].into_iter().find(|checksum| checksum.code() == code)
    }
}

/// Set in every slot with a checksum: no checksum is the word 0.
const PRESENT: u64 = 1 << 32;

/// The word for the slot of a block with checksum `crc`.
pub(crate) fn encode(crc: u32) -> u64 {
    encode_word(PRESENT | u64::from(crc))
}

fn decode(word: u64, at: PoolOffset) -> Result<Option<u32>, Corrupt> {
    let wrong = |what| Err(Corrupt::new(SLOT, at, what));
    match decode_word(word) {
        Some(0) => Ok(None),
        // Without the mark of presence, or with further bits, the result exceeds 32 bits.
        Some(value) => match u32::try_from(value ^ PRESENT) {
            Ok(crc) => Ok(Some(crc)),
            Err(_) => wrong("it is no checksum"),
        },
        None => wrong("its check bits are wrong"),
    }
}

const SLOT: &str = "checksum slot";

impl<M: Medium> Extent<M> {
    /// The slot of `block` below `root_at` if it may be stored to without a record, durably: no
    /// node on the way could be undone.
    pub(crate) fn settled_slot(
        &self,
        root_at: PoolOffset,
        block: BlockNo,
    ) -> Result<Option<PoolOffset>, Corrupt> {
        let mut settled = true;
        let volume = self.volume();
        // Each node on the way counts: undo of a fresh node would remove the slot of a durable
        // block.
        let path = self.look_up_slot(root_at, block, |node| settled &= volume.is_settled(node))?;
        match path {
            MapSlot::At(at) if settled => {
                self.check_slot(at)?;
                Ok(Some(at))
            }
            _ => Ok(None),
        }
    }

    /// Checks that the slot at `at` can be stored to: a checksum in a poisoned range would be lost.
    pub(crate) fn check_slot(&self, at: PoolOffset) -> Result<(), Corrupt> {
        // The system reports bad memory only after an access.
        self.medium().probe(at, 8);
        check_readable(self.medium(), SLOT, at, 8)
    }

    /// Compares `bytes`, the read contents of all of `block`, with its checksum, if it has one.
    pub(crate) fn verify(&self, block: BlockNo, bytes: &[u8]) -> Result<(), BlockReadError> {
        let Some(root_at) = self.checksum_root_at() else { return Ok(()) };
        let expected = match self.look_up_slot(root_at, block, |_| {})? {
            MapSlot::Missing(_) => None,
            MapSlot::At(at) => {
                let word = self.medium().load_word(at);
                // After the load: a poisoned word reads as 0, which means no checksum.
                check_readable(self.medium(), SLOT, at, 8)?;
                decode(word, at)?
            }
        };
        let found = crc32c::crc32c(bytes);
        // A mapped block without a checksum is damage as well.
        if expected == Some(found) {
            return Ok(());
        }
        Err(BlockReadError::Checksum { at: block.offset(), expected: Expected(expected), found })
    }

    /// Reads all of `block`, the extent's bytes from `offset` on, and verifies it.
    pub(crate) fn read_verified(
        &self,
        block: BlockNo,
        offset: DeviceOffset,
        bytes: &mut [u8; BLOCK],
    ) -> Result<(), BlockReadError> {
        self.medium().read(block.offset(), bytes);
        // Before the verification: zeroes of bad memory would count as a mismatch.
        self.check_data(block.offset(), BLOCK, offset)?;
        self.verify(block, bytes).inspect_err(|unreadable| self.report(unreadable, offset))
    }

    /// Returns true if `block` has the bytes that were stored there.
    fn is_verified(&self, block: BlockNo) -> bool {
        let mut bytes = [0; BLOCK];
        self.medium().read(block.offset(), &mut bytes);
        self.verify(block, &bytes).is_ok()
    }

    /// The checksum of a block with `piece` written over the contents of `around`, or over zeroes.
    pub(crate) fn checksum_over(
        &self,
        around: Option<BlockNo>,
        piece: BlockPiece<'_>,
    ) -> Result<u32, BlockReadError> {
        // No old byte stays in the block, so a mismatch of it is healed.
        if piece.data.len() == BLOCK {
            return Ok(crc32c::crc32c(piece.data));
        }
        let mut image = [0; BLOCK];
        if let Some(block) = around {
            // No wrong byte may get a right checksum.
            self.read_verified(block, piece.block.offset(), &mut image)?;
        }
        image[piece.start..piece.start + piece.data.len()].copy_from_slice(piece.data);
        Ok(crc32c::crc32c(&image))
    }

    /// Lines to treat as changed by a write of `changed`: all of them if a whole block is written over a
    /// mismatching one, so that it is sound afterwards.
    pub(crate) fn changed_or_unreadable(
        &self,
        changed: LineMask,
        block: BlockNo,
        piece: BlockPiece<'_>,
    ) -> LineMask {
        let heals = self.has_checksums() && changed.is_empty() && piece.data.len() == BLOCK;
        if heals && !self.is_verified(block) { LineMask::FULL } else { changed }
    }

    fn report(&self, unreadable: &BlockReadError, offset: DeviceOffset) {
        if let BlockReadError::Checksum { at, expected, found } = unreadable {
            self.volume().report_mismatch(offset.0, *at, expected, *found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_slot_decodes_valid_words_only() {
        let at = PoolOffset(64);
        for crc in [0, 1, u32::MAX, 0x1234_5678] {
            assert_eq!(decode(encode(crc), at), Ok(Some(crc)));
            assert!(decode(encode(crc) ^ 4, at).is_err());
        }
        assert_eq!(decode(0, at), Ok(None));
        assert!(decode(encode_word(5), at).is_err(), "an entry is no checksum");
    }
}
