//! The heap of a bucket: units, places of entries, and a bitmap of free units.

use std::ops::Range;

use everbyte_media::BLOCK;

/// Bytes of a unit of the heap.
pub(crate) const UNIT: usize = 8;
/// Units of a block that belong to the heap.
pub(crate) const HEAP_UNITS: Range<usize> = 128..BLOCK / UNIT;

/// Units of a word.
const WORD: usize = u64::BITS as usize;
/// Words of a heap.
const WORDS: usize = (HEAP_UNITS.end - HEAP_UNITS.start) / WORD;
/// Index of the first word of the heap in a bitmap of the block.
const FIRST_WORD: usize = HEAP_UNITS.start / WORD;
const _: () = assert!(HEAP_UNITS.start.is_multiple_of(WORD) && HEAP_UNITS.end.is_multiple_of(WORD));

/// The place of an entry in a heap, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) units: usize,
}

/// Units of a heap that are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeUnits([u64; WORDS]);

impl FreeUnits {
    /// An empty set.
    pub(crate) const NONE: Self = Self([0; WORDS]);

    /// All units after the first `units` of the heap.
    pub(crate) fn behind(units: usize) -> Self {
        Self(std::array::from_fn(|word| match units.saturating_sub(word * WORD) {
            taken @ 0..WORD => u64::MAX << taken,
            _ => 0,
        }))
    }

    /// The first run of `units` adjacent units, 1 to 63.
    pub(crate) fn run(&self, units: usize) -> Option<usize> {
        // Bit i stays set while a run of `len` units starts at unit i.
        let (mut firsts, mut len) = (self.0, 1);
        while len < units {
            let step = len.min(units - len);
            for word in 0..WORDS {
                let next = firsts.get(word + 1).map_or(0, |next| next << (WORD - step));
                firsts[word] &= firsts[word] >> step | next;
            }
            len += step;
        }
        let word = firsts.iter().position(|&word| word != 0)?;
        Some(HEAP_UNITS.start + word * WORD + firsts[word].trailing_zeros() as usize)
    }

    /// The set without the units of `place`.
    pub(crate) fn without(self, place: Place) -> Self {
        let mut taken = TakenUnits::NONE;
        taken.add(place);
        let others = taken.others();
        Self(std::array::from_fn(|word| self.0[word] & others.0[word]))
    }
}

/// Bitmap of the taken units of a block.
pub(super) struct TakenUnits([u64; FIRST_WORD + WORDS + 1]);

impl TakenUnits {
    pub(super) const NONE: Self = Self([0; FIRST_WORD + WORDS + 1]);

    /// Adds the units of `place`, which begins in the block and has fewer than 64 units. Units beyond the
    /// block are left out.
    #[inline]
    pub(super) fn add(&mut self, place: Place) {
        let (word, bit) = (place.start / WORD % (FIRST_WORD + WORDS), place.start % WORD);
        let bits = (1_u64 << (place.units % WORD)) - 1;
        self.0[word] |= bits << bit;
        // Two shifts, because a shift by 64 is undefined for a word.
        self.0[word + 1] |= bits >> 1 >> (WORD - 1 - bit);
    }

    /// The other units of the heap.
    pub(super) fn others(&self) -> FreeUnits {
        FreeUnits(std::array::from_fn(|word| !self.0[FIRST_WORD + word]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_long_enough_run_is_found() {
        let heap = HEAP_UNITS.end - HEAP_UNITS.start;
        for units in 1..64 {
            assert_eq!(FreeUnits::behind(0).run(units), Some(HEAP_UNITS.start));
            let fits = FreeUnits::behind(heap - units);
            assert_eq!(fits.run(units), Some(HEAP_UNITS.end - units));
            assert_eq!(
                fits.without(Place { start: HEAP_UNITS.end - 1, units: 1 }).run(units),
                None
            );
            assert_eq!(FreeUnits::NONE.run(units), None);
            // A hole of each length before the last one, across the end of a word.
            let hole = Place { start: 190, units };
            let around = FreeUnits::behind(0)
                .without(Place { start: HEAP_UNITS.start, units: 62 })
                .without(Place { start: hole.start + units, units: 63 });
            for wanted in 1..64 {
                let expected = if wanted <= units { 190 } else { 190 + units + 63 };
                assert_eq!(around.run(wanted), Some(expected), "{wanted} of {units}");
            }
        }
    }

    #[test]
    fn taken_units_are_not_free() {
        for start in HEAP_UNITS {
            for units in 0..64.min(HEAP_UNITS.end - start + 1) {
                let left = FreeUnits::behind(0).without(Place { start, units });
                let is_left =
                    |unit: usize| left.0[unit / WORD - FIRST_WORD] >> (unit % WORD) & 1 == 1;
                for unit in HEAP_UNITS {
                    assert_eq!(is_left(unit), !(start..start + units).contains(&unit));
                }
            }
        }
    }
}
