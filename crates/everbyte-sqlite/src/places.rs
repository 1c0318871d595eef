//! The places of a database's pages in memory, as far as they were looked up.
//!
//! Owns a table of places, four bytes for each block of 4 KiB, in pieces made with their first kept
//! page: a page in use should cost only its part of a line. Invariants: a place is kept and found
//! only while a connection holds SHARED, and forgotten before its block is written, zeroed or cut
//! off, which takes EXCLUSIVE. So a found place is that of the present block. The atomics are for
//! concurrent readers, which keep the same places. All memory is one mapping: other places are not
//! kept. Knows neither SQLite nor the device.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use everbyte_device::MappedBytes;
use everbyte_media::{BLOCK, BLOCK_U64};

/// Blocks in a piece of the table: 2 MiB of the database, in 2 KiB.
const PIECE: usize = 512;

/// The place of an unknown block.
const UNKNOWN: u32 = 0;

/// Places of blocks: their numbers in memory and one, or [`UNKNOWN`].
type Piece = [AtomicU32; PIECE];

/// A table of places.
#[derive(Default)]
pub(crate) struct Places {
    /// Address of place 0. Never loaded from.
    base: OnceLock<AtomicPtr<u8>>,
    pieces: OnceLock<Box<[OnceLock<Box<Piece>>]>>,
}

impl Places {
    /// Finds the bytes from `offset` on, whole blocks, if the places of all of them are known and they lie in one piece.
    #[inline]
    pub(crate) fn find(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        let first = self.known(offset)?;
        for (behind, number) in (0..len).step_by(BLOCK).zip(first..).skip(1) {
            if self.known(offset.checked_add(behind as u64)?)? != number {
                return None;
            }
        }
        let place = u64::from(first - 1) * BLOCK_U64;
        let base = self.base.get()?.load(Ordering::Relaxed);
        let address = base.wrapping_add(usize::try_from(place).ok()?).cast_const();
        Some(MappedBytes { address, place, len })
    }

    /// Keeps the place of whole blocks from `offset` on, of a database with at most `capacity`
    /// bytes.
    pub(crate) fn keep(&self, offset: u64, lent: &MappedBytes, capacity: u64) {
        let Some((base, first)) = numbered(lent) else { return };
        let kept = self.base.get_or_init(|| AtomicPtr::new(base));
        if kept.load(Ordering::Relaxed) != base {
            return;
        }
        let pieces = self.pieces.get_or_init(|| {
            let count = capacity.div_ceil(BLOCK_U64 * PIECE as u64);
            (0..count).map(|_| OnceLock::new()).collect()
        });
        for (behind, number) in (0..lent.len).step_by(BLOCK).zip(first..) {
            let Some((piece, index)) = index_of(offset + behind as u64) else { return };
            let Some(piece) = pieces.get(piece) else { return };
            piece.get_or_init(new_piece)[index].store(number, Ordering::Relaxed);
        }
    }

    /// Forgets the places of the blocks of `range`.
    pub(crate) fn forget(&self, range: Range<u64>) {
        let Some(pieces) = self.pieces.get().filter(|_| !range.is_empty()) else { return };
        let (from, to) = (range.start / BLOCK_U64, range.end.div_ceil(BLOCK_U64));
        for (number, piece) in pieces.iter().enumerate() {
            let Some(piece) = piece.get() else { continue };
            let start = (number * PIECE) as u64;
            let within = |block: u64| block.clamp(start, start + PIECE as u64) - start;
            let Ok(from) = usize::try_from(within(from)) else { continue };
            let Ok(to) = usize::try_from(within(to)) else { continue };
            for place in &piece[from..to] {
                place.store(UNKNOWN, Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of the block at `offset`, if it is known.
    #[inline]
    fn known(&self, offset: u64) -> Option<u32> {
        let (piece, index) = index_of(offset)?;
        let number = self.pieces.get()?.get(piece)?.get()?[index].load(Ordering::Relaxed);
        (number != UNKNOWN).then_some(number)
    }
}

/// The address of place 0 and the number of the first block, if all numbers can be kept.
fn numbered(lent: &MappedBytes) -> Option<(*mut u8, u32)> {
    let first = u32::try_from(lent.place / BLOCK_U64).ok()?.checked_add(1)?;
    first.checked_add(u32::try_from(lent.len.div_ceil(BLOCK)).ok()?)?;
    let base = lent.address.wrapping_sub(usize::try_from(lent.place).ok()?);
    lent.place.is_multiple_of(BLOCK_U64).then_some((base.cast_mut(), first))
}

/// The piece of the block at `offset`, and its index there.
fn index_of(offset: u64) -> Option<(usize, usize)> {
    let block = usize::try_from(offset / BLOCK_U64).ok()?;
    Some((block / PIECE, block % PIECE))
}

fn new_piece() -> Box<Piece> {
    Box::new([const { AtomicU32::new(UNKNOWN) }; PIECE])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 8 << 20;

    fn lent(place: usize, len: usize) -> MappedBytes {
        let address = std::ptr::without_provenance(0x10_0000 + place);
        MappedBytes { address, place: place as u64, len }
    }

    #[test]
    fn kept_place_is_found_until_a_block_is_forgotten() {
        let places = Places::default();
        assert_eq!(places.find(8192, BLOCK), None);
        let four = lent(40960, 4 * BLOCK);
        places.keep(8192, &four, CAPACITY);
        assert_eq!(places.find(8192, 4 * BLOCK), Some(four));
        assert_eq!(places.find(12288, BLOCK), Some(lent(45056, BLOCK)));
        assert_eq!(places.find(8192, 5 * BLOCK), None, "the fifth was not looked up");
        assert_eq!(places.find(4096, BLOCK), None);

        places.forget(12287..12290);
        assert_eq!(places.find(8192, BLOCK), None, "its last byte is forgotten");
        assert_eq!(places.find(12288, BLOCK), None);
        assert_eq!(places.find(16384, 2 * BLOCK), Some(lent(49152, 2 * BLOCK)));
    }

    #[test]
    fn separate_blocks_are_not_found_as_one() {
        let places = Places::default();
        places.keep(0, &lent(0, BLOCK), CAPACITY);
        places.keep(4096, &lent(3 * 4096, BLOCK), CAPACITY);
        assert_eq!(places.find(0, 2 * BLOCK), None);
        assert_eq!(places.find(4096, BLOCK), Some(lent(3 * 4096, BLOCK)));
    }

    #[test]
    fn forgotten_range_may_span_pieces() {
        let places = Places::default();
        places.forget(0..u64::MAX);
        let end = (PIECE * BLOCK) as u64;
        places.keep(end - 4096, &lent(4096, 3 * BLOCK), CAPACITY);
        places.forget(end..end);
        assert_eq!(places.find(end - 4096, 3 * BLOCK), Some(lent(4096, 3 * BLOCK)));
        places.forget(end - 1..end + 1);
        assert_eq!(places.find(end - 4096, BLOCK), None);
        assert_eq!(places.find(end, BLOCK), None);
        assert_eq!(places.find(end + 4096, BLOCK), Some(lent(12288, BLOCK)));
        places.forget(0..u64::MAX);
        assert_eq!(places.find(end + 4096, BLOCK), None);
    }

    #[test]
    fn places_that_have_no_number_are_not_kept() {
        let places = Places::default();
        let elsewhere = MappedBytes { place: 1 << 20, ..lent(4096, BLOCK) };
        let far = u64::from(u32::MAX) * BLOCK_U64;
        let far = MappedBytes { place: far, ..lent(usize::try_from(far).unwrap(), BLOCK) };
        places.keep(0, &lent(0, BLOCK), CAPACITY);
        for other in [elsewhere, far, lent(64, BLOCK)] {
            places.keep(4096, &other, CAPACITY);
            assert_eq!(places.find(4096, BLOCK), None, "{other:?}");
        }
        let last = far.place - 2 * BLOCK_U64;
        let last = lent(usize::try_from(last).unwrap(), BLOCK);
        places.keep(4096, &last, CAPACITY);
        assert_eq!(places.find(4096, BLOCK), Some(last));
    }

    #[test]
    fn places_beyond_the_capacity_are_not_kept() {
        let places = Places::default();
        places.keep(CAPACITY, &lent(0, BLOCK), CAPACITY);
        assert_eq!(places.find(CAPACITY, BLOCK), None);
        assert_eq!(places.find(u64::MAX - 4095, BLOCK), None);
    }
}
