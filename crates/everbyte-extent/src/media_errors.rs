//! Media errors under an extent's data: their reports, and the writes that are still possible.
//!
//! Invariants: no byte of a poisoned range reaches a client or another block. A request that needs such a byte
//! fails. Concurrent requests do not fail. A poisoned range stays poisoned until the pool is opened
//! again, even if it becomes readable.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, MediaError, Medium, Piece, PoolOffset};

use crate::address::{BlockPiece, DeviceOffset};
use crate::error::BlockReadError;
use crate::extent::Extent;

impl<M: Medium> Extent<M> {
    /// Returns true if `block` overlaps a known poisoned range.
    pub(crate) fn is_poisoned(&self, block: BlockNo) -> bool {
        self.medium().check_range(block.offset(), BLOCK_U64).is_err()
    }

    /// Probes the bytes of `piece` before it overwrites them in place, and returns true if `block` is poisoned. An
    /// undo record of zeroes in place of unreadable bytes would be worse than no record.
    pub(crate) fn became_poisoned(&self, block: BlockNo, piece: BlockPiece<'_>) -> bool {
        let at = block.offset().plus(piece.start as u64);
        // The system reports bad memory only after an access.
        self.medium().probe(at, piece.data.len() as u64);
        self.is_poisoned(block)
    }

    /// Checks that `piece` covers the whole of `block`, or that the block is readable.
    pub(crate) fn check_replaceable(
        &self,
        block: BlockNo,
        piece: BlockPiece<'_>,
    ) -> Result<(), BlockReadError> {
        // A whole block keeps no old byte, so the old ones need not be readable.
        if piece.data.len() == BLOCK {
            return Ok(());
        }
        self.medium().probe(block.offset(), BLOCK_U64);
        let sound = self.medium().check_range(block.offset(), BLOCK_U64);
        self.told(sound, piece.block.offset(), block.offset())
    }

    /// Checks bytes read from `at .. at + len`, the place of the extent's bytes from `offset` on.
    #[inline]
    pub(crate) fn check_data(
        &self,
        at: PoolOffset,
        len: usize,
        offset: DeviceOffset,
    ) -> Result<(), BlockReadError> {
        let sound = self.medium().check_range(at, len as u64);
        if sound.is_ok() { Ok(()) } else { self.told(sound, offset, at) }
    }

    /// Probes and verifies the stored ranges in `pieces` before they are sent. The first `prefix_len` bytes of the
    /// pieces are a prefix. The extent's bytes from `offset` on follow.
    ///
    /// # Errors
    /// The first unreadable or corrupt range.
    pub fn check_pieces(
        &self,
        pieces: &[Piece<'_>],
        prefix_len: usize,
        offset: DeviceOffset,
    ) -> Result<(), BlockReadError> {
        let mut passed = 0;
        for piece in pieces {
            if let Piece::Stored { at, len } = *piece {
                // The prefix is not a part of the extent.
                let offset = offset.plus((passed - prefix_len) as u64);
                // Before the bytes are sent: zeroes in their place could not be taken back.
                self.medium().probe(at, len as u64);
                self.check_data(at, len, offset)?;
                if self.has_checksums() {
                    self.verify_all(at, len, offset)?;
                }
            }
            passed += piece.len();
        }
        Ok(())
    }

    /// Verifies every block touched by `at .. at + len`, the place of the extent's bytes from `offset` on.
    fn verify_all(
        &self,
        at: PoolOffset,
        len: usize,
        offset: DeviceOffset,
    ) -> Result<(), BlockReadError> {
        let mut bytes = [0; BLOCK];
        let first = at.block().0;
        for block in first..at.plus(len as u64).0.div_ceil(BLOCK_U64) {
            let offset =
                DeviceOffset(offset.0 - at.in_block() as u64 + (block - first) * BLOCK_U64);
            self.read_verified(BlockNo(block), offset, &mut bytes)?;
        }
        Ok(())
    }

    /// Reports a media error under the extent's bytes from `offset` on, at the place from `start` on.
    fn told(
        &self,
        sound: Result<(), MediaError>,
        offset: DeviceOffset,
        start: PoolOffset,
    ) -> Result<(), BlockReadError> {
        if let Err(MediaError::Poisoned { at }) = sound {
            self.volume().report_bad(offset.0 + (at.0 - start.0), at);
        }
        Ok(sound?)
    }
}
