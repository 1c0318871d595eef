//! Adding entries to a directory, and the cutting of buckets that are full.

use everbyte_media::{BLOCK, BlockNo, Medium};
use everbyte_plant::planted;
use everbyte_pool::{Batch, Corrupt};

use super::walk::{Way, bucket_word, node_word};
use super::{Dir, NODE_BITS, NODE_WORDS, SAME_HASH_BITS, SAME_HASH_MAX, hash_of};
use crate::error::FsError;
use crate::format::{
    Bucket, BucketHeader, HASH_BITS, HEAP_UNITS, LINE_SLOTS, Place, RawEntry, SLOTS, Slot,
    SlotFilter, UNIT, first_line,
};
use crate::name::Name;
use crate::number::{FileType, InodeNo};
use crate::plant::Bug;

/// Words of a node that are changed one by one; more make a new node.
const WORDS_ONE_BY_ONE: u64 = 16;
/// Units of a bucket's heap, and slots, that may be taken when it is written anew as a whole; with more
/// it is cut in two.
const UNITS_KEPT: usize = (HEAP_UNITS.end - HEAP_UNITS.start) * 3 / 4;
const SLOTS_KEPT: usize = SLOTS * 3 / 4;
/// Longest run of units that an entry takes.
const UNITS_OF_ENTRY_MAX: usize = 35;

/// Room for an entry in a bucket.
struct Room {
    /// A free slot: in the entry's first line, or else the next one.
    slot: Option<usize>,
    /// The first of enough free units of the heap.
    start: Option<usize>,
    /// Which of the hashes that differ in their lowest bits alone are there.
    same_hashes: [bool; 1 << SAME_HASH_BITS],
}

impl<M: Medium> Dir<'_, M> {
    /// Plans an entry of a name that the directory does not have.
    ///
    /// # Errors
    /// `NoSpace`, or the directory cannot be right.
    pub(crate) fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        name: Name<'_>,
        inode: InodeNo,
        kind: FileType,
    ) -> Result<(), FsError> {
        let hash = hash_of(self.hash_key, name);
        let mut entry = RawEntry { hash, inode, kind, name: name.bytes().into() };
        // Each round halves what is in the way, down to a bucket for one hash.
        for _ in 0..=HASH_BITS {
            let Some((way, bucket)) = self.bucket_of(Some(batch), hash)? else {
                return self.plan_first(batch, &entry);
            };
            let room = self.room_in(batch, &bucket, &entry)?;
            entry.hash = hash
                + room.same_hashes.iter().position(|is_taken| !is_taken).ok_or(FsError::NoSpace)?
                    as u64;
            if let (Some(index), Some(start)) = (room.slot, room.start) {
                let place = Place { start, units: entry.units() };
                batch.stream(bucket.head.heap_at(place), &entry.encode());
                let slot = Slot::entry(place, entry.hash);
                batch.change_word(bucket.head.slot_at(index), slot.encode());
                return Ok(());
            }
            entry.hash = hash;
            self.plan_room(batch, &way, &bucket)?;
        }
        Err(FsError::NoSpace)
    }

    /// Plans the first bucket.
    fn plan_first(&self, batch: &mut Batch<'_, '_, M>, entry: &RawEntry) -> Result<(), FsError> {
        let block = batch.take_node().ok_or(FsError::NoSpace)?;
        let header = BucketHeader { owner: self.owner, depth: 0, prefix: 0 };
        batch.stream(block.offset(), &Bucket::image(header, std::slice::from_ref(entry))[..]);
        batch.change_word(self.root_at, bucket_word(block));
        Ok(())
    }

    /// The room for `entry` in `bucket`, in one pass over its slots.
    fn room_in(
        &self,
        batch: &Batch<'_, '_, M>,
        bucket: &Bucket,
        entry: &RawEntry,
    ) -> Result<Room, FsError> {
        let (current, completed) = (batch.writer().epoch(), batch.volume().completed_epoch());
        let (first, filter) = (first_line(entry.hash) * LINE_SLOTS, SlotFilter::new(entry.hash));
        let (mut before, mut from, mut end) = (None, None, HEAP_UNITS.start);
        let mut same_hashes = [false; 1 << SAME_HASH_BITS];
        for (index, &word) in bucket.words().iter().enumerate() {
            let slot = bucket.head.decode(index, word)?;
            if slot.is_free(current, completed) {
                let free = if index < first { &mut before } else { &mut from };
                *free = free.or(Some(index));
            } else if let Some(place) = slot.place() {
                end = end.max(place.start + place.units);
                if filter.may_be(word) {
                    let medium = self.reader.medium;
                    let other = bucket.head.with_entry(medium, place, |other| other.hash)?;
                    let is_same = other & !(SAME_HASH_MAX - 1) == entry.hash;
                    let low = usize::try_from(other % SAME_HASH_MAX).expect("two bits");
                    same_hashes[low] |= is_same;
                }
            }
        }
        let units = entry.units();
        let start = match end + units <= HEAP_UNITS.end {
            true => Some(end),
            false => hole(bucket, units, |slot| slot.is_free(current, completed))?,
        };
        Ok(Room { slot: from.or(before), start, same_hashes })
    }

    /// Plans room in the bucket at the end of `way`: a new one without what was removed, or two.
    fn plan_room(
        &self,
        batch: &mut Batch<'_, '_, M>,
        way: &Way,
        bucket: &Bucket,
    ) -> Result<(), FsError> {
        let entries = self.entries_of(bucket)?;
        let units: usize = entries.iter().map(RawEntry::units).sum();
        let fits = units + UNITS_OF_ENTRY_MAX <= UNITS_KEPT && entries.len() < SLOTS_KEPT;
        let header = bucket.head.header;
        let (new, last) = if fits {
            let block = self.plan_bucket(batch, header, &entries)?;
            (block, block)
        } else {
            let depth = header.depth + 1;
            if depth >= HASH_BITS {
                return Err(FsError::NoSpace);
            }
            let half = |prefix| BucketHeader { depth, prefix, ..header };
            let (low, high) = (half(header.prefix << 1), half(header.prefix << 1 | 1));
            let (lower, upper): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| low.covers(entry.hash));
            (self.plan_bucket(batch, low, &lower)?, self.plan_bucket(batch, high, &upper)?)
        };
        self.plan_words(batch, way, header, [new, last])?;
        batch.give(way.bucket);
        Ok(())
    }

    fn plan_bucket(
        &self,
        batch: &mut Batch<'_, '_, M>,
        header: BucketHeader,
        entries: &[RawEntry],
    ) -> Result<BlockNo, FsError> {
        let block = batch.take_node().ok_or(FsError::NoSpace)?;
        batch.stream(block.offset(), &Bucket::image(header, entries)[..]);
        Ok(block)
    }

    /// Plans that the words which name the bucket with `header` name the two `halves` instead, which
    /// may be one.
    fn plan_words(
        &self,
        batch: &mut Batch<'_, '_, M>,
        way: &Way,
        header: BucketHeader,
        halves: [BlockNo; 2],
    ) -> Result<(), FsError> {
        let [low, high] = halves;
        let is_one_word = header.depth == way.bits;
        if is_one_word && low == high {
            batch.change_word(way.named_at, bucket_word(low));
            return Ok(());
        }
        if is_one_word {
            let node = batch.take_node().ok_or(FsError::NoSpace)?;
            let half = NODE_WORDS / 2;
            let image = node_image((0..NODE_WORDS).map(|i| if i < half { low } else { high }));
            batch.stream(node.offset(), &image[..]);
            if planted(Bug::SplitUnlogged) {
                batch.stream(way.named_at, &node_word(node).to_le_bytes());
                return Ok(());
            }
            batch.change_word(way.named_at, node_word(node));
            return Ok(());
        }
        let (node, node_named_at) = way.node.expect("a bucket beside others is in a node");
        let words = 1 << (way.bits - header.depth);
        let first = (header.prefix << (way.bits - header.depth)) % NODE_WORDS;
        let word_of = |index: u64| bucket_word(if index < first + words / 2 { low } else { high });
        if words <= WORDS_ONE_BY_ONE {
            for index in first..first + words {
                batch.change_word(node.offset().plus(8 * index), word_of(index));
            }
            return Ok(());
        }
        let new = batch.take_node().ok_or(FsError::NoSpace)?;
        let mut image = Box::new([0; BLOCK]);
        for index in 0..NODE_WORDS {
            let is_changed = (first..first + words).contains(&index);
            let old = batch.word(node.offset().plus(8 * index));
            let word = if is_changed { word_of(index) } else { old };
            put_word(&mut image, index, word);
        }
        batch.stream(new.offset(), &image[..]);
        batch.change_word(node_named_at, node_word(new));
        batch.give(node);
        Ok(())
    }
}

/// The first of `units` free units between those in use of a bucket's heap.
fn hole(
    bucket: &Bucket,
    units: usize,
    is_free: impl Fn(&Slot) -> bool,
) -> Result<Option<usize>, Corrupt> {
    let mut is_taken = [false; BLOCK / UNIT];
    for slot in bucket.slots() {
        let (_, slot) = slot?;
        if let Some(place) = slot.place().filter(|_| !is_free(&slot)) {
            is_taken[place.start..place.start + place.units].fill(true);
        }
    }
    let mut start = HEAP_UNITS.start;
    while start + units <= HEAP_UNITS.end {
        match is_taken[start..start + units].iter().rposition(|&is_taken| is_taken) {
            Some(last) => start += last + 1,
            None => return Ok(Some(start)),
        }
    }
    Ok(None)
}

fn node_image(buckets: impl Iterator<Item = BlockNo>) -> Box<[u8; BLOCK]> {
    let mut image = Box::new([0; BLOCK]);
    for (index, bucket) in buckets.enumerate() {
        put_word(&mut image, index as u64, bucket_word(bucket));
    }
    image
}

fn put_word(image: &mut [u8; BLOCK], index: u64, word: u64) {
    let at = usize::try_from(8 * index).expect("a place in a block");
    image[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

const _: () = assert!(NODE_BITS < HASH_BITS && UNITS_OF_ENTRY_MAX * UNIT >= 24 + 255);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry_units;

    #[test]
    fn the_longest_entry_is_as_long_as_is_said() {
        assert_eq!(entry_units(crate::name::NAME_BYTES_MAX), UNITS_OF_ENTRY_MAX);
    }
}
