//! Reading without locks.
//!
//! A reader notes the sequences of the blocks' stripes, copies the bytes, and checks the sequences again. If
//! no sequence has moved, no writer had one of the blocks in between, and the copy equals a copy under the
//! locks. Else the copy is invalid, and is discarded.
//!
//! Invariants: loads here may return anything until that second check. They are copied bytes, or an address
//! checked before its use; nothing is concluded from them, reported, remembered or changed before. All rare
//! or long cases go to the locks: an entry that would need a walk (also holes without a leaf), checksums, a
//! poisoned range anywhere, ends of extents and of volumes. docs/crash-model.md argues it.

use everbyte_media::{BLOCK, Medium};
use everbyte_plant::planted;
use everbyte_pool::Corrupt;
use everbyte_pool::plant::Bug;

use crate::address::{BlockRange, DeviceOffset};
use crate::extent::Extent;
use crate::locks::Noted;
use crate::read::ByteRange;

/// Failed copies of a reader before it takes the locks.
const ATTEMPTS: u32 = 3;

/// Blocks of the longest read without locks. A writer of any stripe of a longer one would come by too often,
/// and to copy twice takes longer than its locks.
const BLOCKS_MAX: usize = 16;
/// The same as a count of blocks.
const BLOCKS_COUNT_MAX: u64 = BLOCKS_MAX as u64;

/// Outcome of an attempt.
enum CopyOutcome {
    /// The bytes are those of one moment.
    Done,
    /// A writer came by; the next attempt may do.
    Moved,
    /// A writer is present, or this case is not for readers without locks.
    Ineligible,
}

impl<M: Medium> Extent<M> {
    /// Reads the bytes of `range` into `out` without a lock. Returns false if the read needs the locks; `out`
    /// is then undefined.
    ///
    /// # Errors
    /// The map is corrupt.
    #[inline]
    pub(crate) fn read_unlocked(&self, range: ByteRange, out: &mut [u8]) -> Result<bool, Corrupt> {
        // The verification costs far more than a lock.
        if self.has_checksums() {
            return Ok(false);
        }
        let blocks = range.blocks();
        match blocks.count {
            // Most reads. That it is one is known when this is compiled, so that nothing loops.
            1 => self.read_noting::<1>(BlockRange { count: 1, ..blocks }, range, out),
            2..=BLOCKS_COUNT_MAX => self.read_noting::<BLOCKS_MAX>(blocks, range, out),
            _ => Ok(false),
        }
    }

    /// The same of `blocks`, at most `N`.
    #[inline]
    fn read_noting<const N: usize>(
        &self,
        blocks: BlockRange,
        range: ByteRange,
        out: &mut [u8],
    ) -> Result<bool, Corrupt> {
        let mut noted = Noted::<N>::default();
        for _ in 0..ATTEMPTS {
            match self.attempt(blocks, range, out, &mut noted)? {
                CopyOutcome::Done => return Ok(true),
                CopyOutcome::Moved => {}
                // Another attempt would meet the same writer, or the same case for the locks.
                CopyOutcome::Ineligible => break,
            }
        }
        Ok(false)
    }

    #[inline]
    fn attempt<const N: usize>(
        &self,
        blocks: BlockRange,
        range: ByteRange,
        out: &mut [u8],
        noted: &mut Noted<N>,
    ) -> Result<CopyOutcome, Corrupt> {
        if !self.locks().note(blocks, noted) {
            return Ok(CopyOutcome::Ineligible);
        }
        // After the first check: a resize or deletion is either seen here or moves a sequence.
        if self.check_range(range.offset.0, range.len as u64).is_err() {
            return Ok(CopyOutcome::Ineligible);
        }
        let copied = if N == 1 {
            self.copy_piece_unlocked(range.offset, out)
        } else {
            self.copy_unlocked(range, out)
        };
        // After the copy: zeroes may stand for unreadable bytes.
        if self.medium().has_poison() {
            return Ok(CopyOutcome::Ineligible);
        }
        if !self.locks().are_as_noted(blocks, noted) && !planted(Bug::ReaderLooksOnce) {
            return Ok(CopyOutcome::Moved);
        }
        // An invalid entry is reported only now: with unchanged sequences the map does contain it.
        Ok(if copied? { CopyOutcome::Done } else { CopyOutcome::Ineligible })
    }

    /// Copies the bytes from `offset` on, with concurrent writers. The caller has its own sequence, moved by
    /// every change of the extent. It notes the sequence before, checks the range, and believes neither bytes
    /// nor an error if the sequence has moved afterwards. Returns false if this case is not for readers
    /// without locks; `out` is then undefined.
    ///
    /// # Errors
    /// The map is corrupt, or was being changed.
    #[inline]
    pub fn copy_beside_writers(
        &self,
        offset: DeviceOffset,
        out: &mut [u8],
    ) -> Result<bool, Corrupt> {
        let range = ByteRange { offset, len: out.len() };
        if self.has_checksums() || range.blocks().count > BLOCKS_COUNT_MAX {
            return Ok(false);
        }
        let copied = self.copy_unlocked(range, out)?;
        Ok(copied && !self.medium().has_poison())
    }

    /// Copies the targets of the blocks' entries. Returns false if an entry would need a search.
    #[inline]
    fn copy_unlocked(&self, range: ByteRange, out: &mut [u8]) -> Result<bool, Corrupt> {
        let mut done = 0;
        while done < out.len() {
            let at = range.offset.plus(done as u64);
            let len = (BLOCK - at.in_block()).min(out.len() - done);
            if !self.copy_piece_unlocked(at, &mut out[done..done + len])? {
                return Ok(false);
            }
            done += len;
        }
        Ok(true)
    }

    /// The same of bytes in one block, from `at` on.
    #[inline]
    fn copy_piece_unlocked(&self, at: DeviceOffset, piece: &mut [u8]) -> Result<bool, Corrupt> {
        // Without a walk: a reader without locks could re-add a leaf that a writer has just
        // dropped.
        let Some(entry_at) = self.known_entry(at.block()) else { return Ok(false) };
        // The word may be of a former leaf, so it is checked before its block is read.
        let entry = self.entries().decode(self.medium().peek_word(entry_at), entry_at)?;
        match entry {
            Some(entry) if !entry.flags.zero => {
                self.medium().peek(entry.block.offset().plus(at.in_block() as u64), piece);
            }
            _ => piece.fill(0),
        }
        Ok(true)
    }
}
