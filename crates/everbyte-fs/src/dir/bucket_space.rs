//! Space for entries in buckets: slots and units of the heap that nothing needs any more.

use everbyte_media::{BlockNo, Medium};
use everbyte_pool::Batch;

use super::{Dir, SAME_HASH_BITS, SAME_HASH_MAX};
use crate::error::FsError;
use crate::format::{
    Bucket, BucketHeader, FreeUnits, HEAP_UNITS, LINE_SLOTS, Place, RawEntry, SLOTS, Slot,
    SlotFilter, UNIT, first_line,
};

/// Units of a bucket's heap.
const UNITS: usize = HEAP_UNITS.end - HEAP_UNITS.start;
/// Units of a bucket's heap, and slots, that may be taken when it is written anew as a whole; with more
/// it is cut in two.
const UNITS_KEPT: usize = UNITS * 3 / 4;
const SLOTS_KEPT: usize = SLOTS * 3 / 4;
/// Longest run of units that an entry takes.
const UNITS_OF_ENTRY_MAX: usize = 35;

/// Space for an entry in a bucket.
pub(super) struct BucketSpace {
    /// A free slot: in the entry's first line, or else the next one.
    slot: Option<usize>,
    /// The first of enough free units of the heap.
    start: Option<usize>,
    /// Free units of the heap: all, or those that were known to be.
    free: FreeUnits,
    /// Which of the hashes that differ in their lowest bits alone are there.
    same_hashes: [bool; 1 << SAME_HASH_BITS],
}

impl BucketSpace {
    /// The lowest bits of a hash that no entry with the others in common has.
    pub(super) fn free_low_bits(&self) -> Option<u64> {
        self.same_hashes.iter().position(|is_taken| !is_taken).map(|low| low as u64)
    }
}

impl<M: Medium> Dir<'_, M> {
    /// Plans `entry`, whose hash may have lost its lowest bits, where there is room for it in `bucket`.
    /// Returns false if there is none.
    pub(super) fn plan_entry(
        &self,
        batch: &mut Batch<'_, '_, M>,
        bucket: &Bucket,
        space: &BucketSpace,
        entry: &RawEntry,
    ) -> bool {
        let (Some(index), Some(start)) = (space.slot, space.start) else { return false };
        let place = Place { start, units: entry.units() };
        self.note_free(bucket.head.at.block(), space.free.without(place));
        batch.stream(bucket.head.heap_at(place), &entry.encode());
        let slot = Slot::entry(place, entry.hash);
        batch.change_word(bucket.head.slot_at(index), slot.encode());
        true
    }

    /// Notes which units of a bucket are free.
    fn note_free(&self, bucket: BlockNo, free: FreeUnits) {
        if let Some(known) = self.known {
            known.note(bucket, free);
        }
    }

    /// The room for `entry` in `bucket`. Its slots are all checked where no units are known to be free that are enough.
    pub(super) fn space_in(
        &self,
        batch: &Batch<'_, '_, M>,
        bucket: &Bucket,
        entry: &RawEntry,
    ) -> Result<BucketSpace, FsError> {
        let (current, completed) = (batch.writer().epoch(), batch.volume().completed_epoch());
        let units = entry.units();
        let mut free =
            self.known.map_or(FreeUnits::NONE, |known| known.get(bucket.head.at.block()));
        let mut start = free.run(units);
        if start.is_none() {
            free = bucket.free_units(current, completed)?;
            start = free.run(units);
        }
        let slot = bucket.free_slot(first_line(entry.hash) * LINE_SLOTS, current, completed);
        let same_hashes = self.same_hashes(bucket, entry.hash)?;
        Ok(BucketSpace { slot, start, free, same_hashes })
    }

    /// Which of the hashes that have the higher bits of `hash` are in `bucket`, by their lowest bits.
    fn same_hashes(
        &self,
        bucket: &Bucket,
        hash: u64,
    ) -> Result<[bool; 1 << SAME_HASH_BITS], FsError> {
        let filter = SlotFilter::new(hash);
        let mut same_hashes = [false; 1 << SAME_HASH_BITS];
        // Without a branch for each: mostly there is none.
        if !bucket.words().iter().fold(false, |any, &word| any | filter.may_be(word)) {
            return Ok(same_hashes);
        }
        let words = bucket.words().iter().enumerate();
        for (index, &word) in words.filter(|(_, word)| filter.may_be(**word)) {
            let Some(place) = bucket.head.decode(index, word)?.place() else { continue };
            let other = bucket.head.with_entry(self.reader.medium, place, |other| other.hash)?;
            let is_same = other & !(SAME_HASH_MAX - 1) == hash;
            let low = usize::try_from(other % SAME_HASH_MAX).expect("two bits");
            same_hashes[low] |= is_same;
        }
        Ok(same_hashes)
    }

    /// Plans a bucket in a block of its own.
    pub(super) fn plan_bucket(
        &self,
        batch: &mut Batch<'_, '_, M>,
        header: BucketHeader,
        entries: &[RawEntry],
    ) -> Result<BlockNo, FsError> {
        let block = batch.take_node().ok_or(FsError::NoSpace)?;
        batch.stream(block.offset(), &Bucket::image(header, entries)[..]);
        let units: usize = entries.iter().map(RawEntry::units).sum();
        self.note_free(block, FreeUnits::behind(units));
        Ok(block)
    }

    /// The head of the first bucket of a directory.
    pub(super) fn first_header(&self) -> BucketHeader {
        BucketHeader { owner: self.owner, depth: 0, prefix: 0 }
    }
}

/// Returns true if a new bucket with `entries` has so much room that it is worth its while.
pub(super) fn fits_with_space(entries: &[RawEntry]) -> bool {
    let units: usize = entries.iter().map(RawEntry::units).sum();
    units + UNITS_OF_ENTRY_MAX <= UNITS_KEPT && entries.len() < SLOTS_KEPT
}

const _: () = assert!(UNITS_OF_ENTRY_MAX * UNIT >= 24 + 255);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry_units;

    #[test]
    fn the_longest_entry_is_as_long_as_is_said() {
        assert_eq!(entry_units(crate::dentry::file_name::NAME_BYTES_MAX), UNITS_OF_ENTRY_MAX);
    }
}
