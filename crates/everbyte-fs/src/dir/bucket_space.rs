//! Space for entries in buckets: free slots and free units of the heap.

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
/// Limits for a rewrite of a bucket as a whole: units of the heap and slots in use. Above them the bucket is
/// split.
const UNITS_KEPT: usize = UNITS * 3 / 4;
const SLOTS_KEPT: usize = SLOTS * 3 / 4;
/// Longest run of units for an entry.
const UNITS_OF_ENTRY_MAX: usize = 35;

/// Space for an entry in a bucket.
pub(super) struct BucketSpace {
    /// A free slot: in the entry's first line, or the next one.
    slot: Option<usize>,
    /// The start of enough free units of the heap.
    start: Option<usize>,
    /// Free units of the heap: all, or the cached ones.
    free: FreeUnits,
    /// For each value of the lowest bits, true if an entry has the same higher bits.
    same_hashes: [bool; 1 << SAME_HASH_BITS],
}

impl BucketSpace {
    /// Unused lowest bits among the entries with the same higher bits.
    pub(super) fn free_low_bits(&self) -> Option<u64> {
        self.same_hashes.iter().position(|is_taken| !is_taken).map(|low| low as u64)
    }
}

impl<M: Medium> Dir<'_, M> {
    /// Plans `entry` in the free space of `bucket`. The hash may already have other lowest bits. Returns
    /// false without space.
    pub(super) fn plan_entry(
        &self,
        batch: &mut Batch<'_, '_, M>,
        bucket: &Bucket,
        space: &BucketSpace,
        entry: &RawEntry,
    ) -> bool {
        let (Some(index), Some(start)) = (space.slot, space.start) else { return false };
        let place = Place { start, units: entry.units() };
        // Also if the batch fails later: a missing unit costs a check, a wrongly free one an entry.
        self.note_free(bucket.head.at.block(), space.free.without(place));
        // Unlogged: no durable slot names these units. The slot's word is logged and published
        // after the fence.
        batch.stream(bucket.head.heap_at(place), &entry.encode());
        let slot = Slot::entry(place, entry.hash);
        batch.change_word(bucket.head.slot_at(index), slot.encode());
        true
    }

    /// Caches the free units of a bucket.
    fn note_free(&self, bucket: BlockNo, free: FreeUnits) {
        if let Some(known) = self.known {
            known.note(bucket, free);
        }
    }

    /// The space for `entry` in `bucket`. Checks all slots if the cached free units are too few.
    pub(super) fn space_in(
        &self,
        batch: &Batch<'_, '_, M>,
        bucket: &Bucket,
        entry: &RawEntry,
    ) -> Result<BucketSpace, FsError> {
        // Undo can restore an entry removed in an open epoch, so its slot and its units are not
        // free.
        let (current, completed) = (batch.writer().epoch(), batch.volume().completed_epoch());
        let units = entry.units();
        let mut free =
            self.known.map_or(FreeUnits::NONE, |known| known.get(bucket.head.at.block()));
        let mut start = free.run(units);
        // A cached unit is certainly free. Only a lack of them requires the check of all slots.
        if start.is_none() {
            free = bucket.free_units(current, completed)?;
            start = free.run(units);
        }
        let slot = bucket.free_slot(first_line(entry.hash) * LINE_SLOTS, current, completed);
        let same_hashes = self.same_hashes(bucket, entry.hash)?;
        Ok(BucketSpace { slot, start, free, same_hashes })
    }

    /// The lowest bits of the entries in `bucket` with the higher bits of `hash`.
    fn same_hashes(
        &self,
        bucket: &Bucket,
        hash: u64,
    ) -> Result<[bool; 1 << SAME_HASH_BITS], FsError> {
        let filter = SlotFilter::new(hash);
        let mut same_hashes = [false; 1 << SAME_HASH_BITS];
        // Free of branches, because most buckets have no such entry.
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

    /// Plans a bucket in a new block.
    pub(super) fn plan_bucket(
        &self,
        batch: &mut Batch<'_, '_, M>,
        header: BucketHeader,
        entries: &[RawEntry],
    ) -> Result<BlockNo, FsError> {
        // A new block for every rewrite: undo restores the word that names the old bucket.
        let block = batch.alloc_node().ok_or(FsError::NoSpace)?;
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

/// Returns true if a rewritten bucket with `entries` has enough free space to be worth the rewrite.
pub(super) fn fits_with_space(entries: &[RawEntry]) -> bool {
    let units: usize = entries.iter().map(RawEntry::units).sum();
    // Otherwise a nearly full bucket would be rewritten for each new entry.
    units + UNITS_OF_ENTRY_MAX <= UNITS_KEPT && entries.len() < SLOTS_KEPT
}

const _: () = assert!(UNITS_OF_ENTRY_MAX * UNIT >= 24 + 255);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry_units;

    #[test]
    fn longest_entry_matches_its_constant() {
        assert_eq!(entry_units(crate::dentry::file_name::NAME_BYTES_MAX), UNITS_OF_ENTRY_MAX);
    }
}
