//! A bucket of a directory: a block with the entries below one prefix of the hash.
//!
//! A bucket has a head, 120 slots of a word each in 15 lines, and a heap of entries. A slot makes an entry
//! valid. An entry's slot can be any one, but the writer prefers the line of the entry's hash and then the
//! next lines, so a lookup that starts there finds it soon. The bytes of an entry never change.
//!
//! Invariant: the slot of a removed entry keeps the entry's place in the heap until the epoch of the removal
//! is durable, because a crash can restore the entry.

use crc32c::{crc32c, crc32c_append};
use everbyte_media::{BLOCK, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::{Corrupt, check_readable};
use zerocopy::IntoBytes;

use super::heap::{FreeUnits, HEAP_UNITS, Place, TakenUnits, UNIT};
use crate::format::number::{FileType, InodeNo};
use crate::plant::Bug;

/// Bits of a hash.
pub(crate) const HASH_BITS: u32 = 62;
/// Slots of a bucket.
pub(crate) const SLOTS: usize = 120;
/// Slots in a line of the medium.
pub(crate) const LINE_SLOTS: usize = 8;
/// Lines of slots.
const SLOT_LINES: usize = SLOTS / LINE_SLOTS;
/// Offset of the slots.
pub(crate) const SLOTS_AT: u64 = 64;

/// Shifts in a slot's word: of the nine bits of the first unit, of the higher two of these bits, and of the
/// number of units.
const START_SHIFT: u32 = 2;
const START_HIGH_SHIFT: u32 = START_SHIFT + 7;
const UNITS_SHIFT: u32 = START_SHIFT + 9;
const _: () = assert!(HEAP_UNITS.start == 1 << 7 && HEAP_UNITS.end == 1 << 9);
const _: () = assert!(ENTRY_STATE == 1 && REMOVED_STATE == 2);

const _: () = assert!(SLOTS_AT + SLOTS as u64 * 8 == (HEAP_UNITS.start * UNIT) as u64);
const _: () = assert!(SLOT_LINES * LINE_SLOTS == SLOTS);

const STRUCTURE: &str = "directory bucket";
const MAGIC: u64 = 0x4255_434b_4554;
const ENTRY_HEAD: usize = 24;
const TAG_BITS: u32 = 27;
const EPOCH_BITS: u32 = 31;
/// Longest place in bytes.
const PLACE_BYTES: usize = 64 * UNIT;
/// Bound of a short entry in bytes.
const SHORT_ENTRY: usize = 8 * UNIT;
const STATE_MASK: u64 = 3;
const ENTRY_STATE: u64 = 1;
const REMOVED_STATE: u64 = 2;
const REST_SHIFT: u32 = 17;
/// The bits of a slot's word for its state and tag.
const TAG_MASK: u64 = STATE_MASK | ((1 << TAG_BITS) - 1) << REST_SHIFT;

/// A slot of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// Never used.
    Empty,
    /// An entry, with some bits of its hash.
    Entry { place: Place, tag: u64 },
    /// An entry removed in an epoch with these low bits.
    Removed { place: Place, epoch: u64 },
}

/// The tag of `hash` in a slot. It has no bits of the lowest two, which distinguish entries with otherwise
/// equal hashes.
fn tag_of(hash: u64) -> u64 {
    hash >> 2 & ((1 << TAG_BITS) - 1)
}

/// The line of slots in which the search for `hash` starts.
pub(crate) fn first_line(hash: u64) -> usize {
    usize::try_from(tag_of(hash) % SLOT_LINES as u64).expect("less than there are lines")
}

/// Filters slot words by the bits that a hash determines.
#[derive(Clone, Copy)]
pub(crate) struct SlotFilter(u64);

impl SlotFilter {
    pub(crate) fn new(hash: u64) -> Self {
        Self(ENTRY_STATE | tag_of(hash) << REST_SHIFT)
    }

    /// Returns false if `word` is not the slot of an entry with the hash.
    #[inline]
    pub(crate) fn may_be(self, word: u64) -> bool {
        word & TAG_MASK == self.0
    }
}

impl Slot {
    /// The slot of an entry.
    pub(crate) fn entry(place: Place, hash: u64) -> Self {
        Self::Entry { place, tag: tag_of(hash) }
    }

    /// The slot of an entry removed in `epoch`.
    pub(crate) fn removed(place: Place, epoch: u64) -> Self {
        Self::Removed { place, epoch: epoch & ((1 << EPOCH_BITS) - 1) }
    }

    pub(crate) fn encode(self) -> u64 {
        let packed = |state: u64, place: Place, rest: u64| {
            let place = (place.start as u64) << START_SHIFT | (place.units as u64) << UNITS_SHIFT;
            encode_word(state | place | rest << REST_SHIFT)
        };
        match self {
            Self::Empty => 0,
            Self::Entry { place, tag } => packed(ENTRY_STATE, place, tag),
            Self::Removed { place, epoch } => packed(REMOVED_STATE, place, epoch),
        }
    }

    /// Decodes a slot; `None` if `word` is invalid.
    #[inline]
    pub(crate) fn decode(word: u64) -> Option<Self> {
        if word == 0 {
            return Some(Self::Empty);
        }
        let value = decode_word(word)?;
        let place = place_in(value);
        let fits = HEAP_UNITS.contains(&place.start) && place.start + place.units <= HEAP_UNITS.end;
        match value & STATE_MASK {
            ENTRY_STATE => fits.then_some(Self::Entry { place, tag: value >> REST_SHIFT }),
            REMOVED_STATE => fits.then_some(Self::Removed { place, epoch: value >> REST_SHIFT }),
            _ => None,
        }
    }

    /// Returns true if `word` passes the checks of [`Slot::decode`], except for the end of its place. Free of
    /// branches, for checks of many words.
    #[inline]
    fn can_begin(word: u64) -> bool {
        // Exactly one of two state bits is set. A place in the heap has one of the highest two bits of a
        // unit.
        let has_state = (word ^ word >> 1) & 1;
        let begins_in_heap = (word >> START_HIGH_SHIFT | word >> (START_HIGH_SHIFT + 1)) & 1;
        ((word == 0) | (has_state & begins_in_heap != 0)) & decode_word(word).is_some()
    }

    /// The place in the heap that it keeps.
    pub(crate) fn place(self) -> Option<Place> {
        match self {
            Self::Empty => None,
            Self::Entry { place, .. } | Self::Removed { place, .. } => Some(place),
        }
    }

    /// Returns true if the slot and its place in the heap are free: they were unused in every epoch after
    /// `completed`. `current` is the newest epoch.
    pub(crate) fn is_free(self, current: u64, completed: u64) -> bool {
        match self {
            Self::Empty => true,
            Self::Entry { .. } => false,
            Self::Removed { .. } if planted(Bug::EntryReusedEarly) => true,
            Self::Removed { epoch, .. } => {
                // Takes the newest epoch with these bits. If the removal was older, the slot waits longer
                // than needed.
                let back = current.wrapping_sub(epoch) & ((1 << EPOCH_BITS) - 1);
                current.saturating_sub(back) <= completed
            }
        }
    }
}

/// The place in a slot's word. The check bits lie elsewhere.
#[inline]
fn place_in(word: u64) -> Place {
    Place {
        start: (word >> START_SHIFT & 511) as usize,
        units: (word >> UNITS_SHIFT & 63) as usize,
    }
}

/// Returns true if `word` is a free slot, as by [`Slot::is_free`]; false for an invalid word.
#[inline]
fn is_free(word: u64, current: u64, completed: u64) -> bool {
    // Most slots hold an entry.
    word & STATE_MASK != ENTRY_STATE
        && Slot::decode(word).is_some_and(|slot| slot.is_free(current, completed))
}

/// Units of the heap that an entry takes.
pub(crate) fn entry_units(name_bytes: usize) -> usize {
    (ENTRY_HEAD + name_bytes).div_ceil(UNIT)
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RawEntry {
    pub(crate) hash: u64,
    pub(crate) inode: InodeNo,
    pub(crate) kind: FileType,
    pub(crate) name: smallvec::SmallVec<[u8; 32]>,
}

/// A decoded entry that borrows its name.
#[derive(Clone, Copy)]
pub(crate) struct EntryView<'b> {
    pub(crate) hash: u64,
    pub(crate) inode: InodeNo,
    pub(crate) kind: FileType,
    pub(crate) name: &'b [u8],
}

impl RawEntry {
    pub(crate) fn units(&self) -> usize {
        entry_units(self.name.len())
    }

    /// Its bytes in a heap.
    pub(crate) fn encode(&self) -> smallvec::SmallVec<[u8; 64]> {
        let mut bytes: smallvec::SmallVec<[u8; 64]> = smallvec::smallvec![0; self.units() * UNIT];
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.0.to_le_bytes());
        bytes[20] = u8::try_from(self.name.len()).expect("a name has at most 255 bytes");
        bytes[21] = u8::try_from(self.kind.mode_bits() >> 12).expect("four bits");
        bytes[ENTRY_HEAD..ENTRY_HEAD + self.name.len()].copy_from_slice(&self.name);
        let crc = crc_of(&bytes);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

impl<'b> EntryView<'b> {
    /// Decodes an entry; `None` if `bytes` are invalid.
    fn decode(bytes: &'b [u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let crc = u32::from_le_bytes(*bytes.get(16..)?.first_chunk()?);
        let name_bytes = usize::from(*bytes.get(20)?);
        let name = bytes.get(ENTRY_HEAD..ENTRY_HEAD + name_bytes)?;
        let kind = FileType::from_mode(u32::from(bytes[21]) << 12)?;
        let entry = Self { hash: word(0)?, inode: InodeNo(word(8)?), kind, name };
        let is_right = crc == crc_of(bytes) && entry.hash >> HASH_BITS == 0;
        (is_right && entry_units(name_bytes) * UNIT == bytes.len()).then_some(entry)
    }

    /// The entry with an owned name.
    pub(crate) fn to_raw(self) -> RawEntry {
        RawEntry { hash: self.hash, inode: self.inode, kind: self.kind, name: self.name.into() }
    }
}

fn crc_of(entry: &[u8]) -> u32 {
    crc32c_append(crc32c(&entry[..16]), &entry[20..])
}

/// The head of a bucket, which never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BucketHeader {
    /// The directory.
    pub(crate) owner: InodeNo,
    /// Number of common bits of the hashes of its entries.
    pub(crate) depth: u32,
    /// The common bits.
    pub(crate) prefix: u64,
}

impl BucketHeader {
    fn words(self) -> [u64; 4] {
        sealed([MAGIC, self.owner.0, self.prefix, u64::from(self.depth)])
    }

    /// Returns true if the bucket covers `hash`. The trie can contradict the bucket.
    pub(crate) fn covers(self, hash: u64) -> bool {
        self.depth == 0 || hash >> (HASH_BITS - self.depth) == self.prefix
    }

    /// Returns true for a valid depth and prefix.
    fn can_be(self) -> bool {
        self.depth < HASH_BITS && self.prefix >> self.depth == 0
    }
}

/// The words of a head with their checksum.
fn sealed(words: [u64; 4]) -> [u64; 4] {
    let crc = crc32c(words.map(u64::to_le).as_bytes());
    [words[0], words[1], words[2], words[3] | u64::from(crc) << 32]
}

/// Returns true if `word` is the first word of a bucket.
#[cfg(feature = "testkit")]
pub(crate) fn is_bucket(word: u64) -> bool {
    word == MAGIC
}

/// Corrects the checksums of the head and of each entry with a slot.
#[cfg(feature = "testkit")]
pub(crate) fn reseal_bucket(bytes: &mut [u8; BLOCK]) {
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(*bytes[at..].first_chunk().expect("a word of the bucket"))
    };
    let shape = word(bytes, 24) & u64::from(u32::MAX);
    let head = sealed([MAGIC, word(bytes, 8), word(bytes, 16), shape]);
    bytes[..32].copy_from_slice(head.map(u64::to_le).as_bytes());
    for place in 0..SLOTS {
        let at = usize::try_from(SLOTS_AT).expect("a place in a block") + 8 * place;
        let Some(Slot::Entry { place, .. }) = Slot::decode(word(bytes, at)) else { continue };
        let entry = &mut bytes[place.start * UNIT..(place.start + place.units) * UNIT];
        if entry.len() >= ENTRY_HEAD {
            let crc = crc_of(entry);
            entry[16..20].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// The head of a bucket, as read.
#[derive(Clone, Copy)]
pub(crate) struct BucketHead {
    pub(crate) at: PoolOffset,
    pub(crate) header: BucketHeader,
}

/// A bucket, as read: its head and all slots.
pub(crate) struct Bucket {
    pub(crate) head: BucketHead,
    slots: [u64; SLOTS],
}

impl BucketHead {
    /// Reads the head of the bucket at `at`.
    ///
    /// # Errors
    /// It cannot be read, or is not a bucket of the directory `owner`.
    pub(crate) fn load<M: Medium>(
        medium: &M,
        at: PoolOffset,
        owner: InodeNo,
    ) -> Result<Self, Corrupt> {
        let mut head = [0_u64; 4];
        medium.read(at, head.as_mut_bytes());
        check_readable(medium, STRUCTURE, at, SLOTS_AT)?;
        let head = head.map(u64::from_le);
        let depth = u32::try_from(head[3] & 0xff).expect("a byte");
        let header = BucketHeader { owner: InodeNo(head[1]), depth, prefix: head[2] };
        if head != header.words() || header.owner != owner {
            let what = format!("it is not a bucket of the directory {owner}");
            return Err(Corrupt::new(STRUCTURE, at, what));
        }
        if !header.can_be() {
            let what = format!("no bucket of {depth} bits can be for {:#x}", header.prefix);
            return Err(Corrupt::new(STRUCTURE, at, what));
        }
        Ok(Self { at, header })
    }

    /// Reads one line of slots.
    ///
    /// # Errors
    /// It cannot be read.
    #[inline]
    pub(crate) fn line<M: Medium>(
        &self,
        medium: &M,
        line: usize,
    ) -> Result<[u64; LINE_SLOTS], Corrupt> {
        let mut words = [0_u64; LINE_SLOTS];
        let at = self.slot_at(line * LINE_SLOTS);
        medium.read(at, words.as_mut_bytes());
        check_readable(medium, STRUCTURE, at, 8 * LINE_SLOTS as u64)?;
        words.iter_mut().for_each(|word| *word = u64::from_le(*word));
        Ok(words)
    }

    /// Decodes the slot in `word`, read at place `place`.
    ///
    /// # Errors
    /// An invalid word.
    #[inline]
    pub(crate) fn decode(&self, place: usize, word: u64) -> Result<Slot, Corrupt> {
        Slot::decode(word).ok_or_else(|| self.wrong_slot(place))
    }

    #[cold]
    fn wrong_slot(&self, place: usize) -> Corrupt {
        Corrupt::new("slot of a directory bucket", self.slot_at(place), "no slot can be so")
    }

    /// The address of a slot.
    pub(crate) fn slot_at(&self, place: usize) -> PoolOffset {
        self.at.plus(SLOTS_AT + 8 * place as u64)
    }

    /// The address of a place in the heap.
    pub(crate) fn heap_at(&self, place: Place) -> PoolOffset {
        self.at.plus((place.start * UNIT) as u64)
    }

    /// The entry at `place` of the heap.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub(crate) fn entry<M: Medium>(&self, medium: &M, place: Place) -> Result<RawEntry, Corrupt> {
        self.with_entry(medium, place, |entry| entry.to_raw())
    }

    /// The result of `look` at the entry at `place` of the heap.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub(crate) fn with_entry<M: Medium, R>(
        &self,
        medium: &M,
        place: Place,
        look: impl FnOnce(EntryView<'_>) -> R,
    ) -> Result<R, Corrupt> {
        let (at, len) = (self.heap_at(place), place.units * UNIT);
        // Most names are short. Clearing a buffer for the longest name would cost more than the look.
        let (mut short, mut long);
        let bytes = if len <= SHORT_ENTRY {
            short = [0; SHORT_ENTRY];
            &mut short[..len]
        } else {
            long = [0; PLACE_BYTES];
            &mut long[..len]
        };
        medium.read(at, bytes);
        check_readable(medium, "directory entry", at, len as u64)?;
        let entry = EntryView::decode(bytes).filter(|entry| self.header.covers(entry.hash));
        entry.map(look).ok_or_else(|| self.wrong_entry(at))
    }

    #[cold]
    fn wrong_entry(&self, at: PoolOffset) -> Corrupt {
        let what = format!("no entry of the directory of {} can be so", self.header.owner);
        Corrupt::new("directory entry", at, what)
    }
}

impl Bucket {
    /// A bucket with this head and unread slots.
    pub(crate) fn unread(head: BucketHead) -> Self {
        Self { head, slots: [0; SLOTS] }
    }

    /// Reads the slots in place: a move costs as much as a look.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn read<M: Medium>(&mut self, medium: &M) -> Result<(), Corrupt> {
        let at = self.head.slot_at(0);
        medium.read(at, self.slots.as_mut_bytes());
        check_readable(medium, STRUCTURE, at, 8 * SLOTS as u64)?;
        self.slots.iter_mut().for_each(|slot| *slot = u64::from_le(*slot));
        Ok(())
    }

    /// Reads the slots of the bucket with this head.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn load<M: Medium>(medium: &M, head: BucketHead) -> Result<Self, Corrupt> {
        let mut bucket = Self::unread(head);
        bucket.read(medium)?;
        Ok(bucket)
    }

    /// The words of the slots, for replacement, and the address of the first one.
    pub(crate) fn words_mut(&mut self) -> (PoolOffset, &mut [u64]) {
        (self.head.slot_at(0), &mut self.slots)
    }

    /// Checks the check bits of every slot. Decoding finds other damage.
    ///
    /// # Errors
    /// The first word with wrong check bits.
    pub(crate) fn check(&self) -> Result<(), Corrupt> {
        // Free of branches, because the bits of almost every bucket are right.
        let is_damaged = self
            .slots
            .iter()
            .fold(false, |is_damaged, &word| is_damaged | decode_word(word).is_none());
        if is_damaged {
            self.slots().try_for_each(|slot| slot.map(drop))?;
        }
        Ok(())
    }

    /// Checks every slot. Returns the units of the heap that were unused in every epoch after `completed`.
    /// `current` is the newest epoch.
    ///
    /// # Errors
    /// The first invalid word.
    pub(crate) fn free_units(&self, current: u64, completed: u64) -> Result<FreeUnits, Corrupt> {
        let (mut is_right, mut taken) = (true, TakenUnits::NONE);
        for &word in &self.slots {
            let place = place_in(word);
            is_right &= Slot::can_begin(word) & (place.start + place.units <= HEAP_UNITS.end);
            if !is_free(word, current, completed) {
                taken.add(place);
            }
        }
        if !is_right {
            self.slots().try_for_each(|slot| slot.map(drop))?;
        }
        Ok(taken.others())
    }

    /// The first free slot from place `first` on, and then from the start.
    pub(crate) fn free_slot(&self, first: usize, current: u64, completed: u64) -> Option<usize> {
        let is_free = |place: &usize| is_free(self.slots[*place], current, completed);
        (first..SLOTS).chain(0..first).find(is_free)
    }

    /// The words of the slots.
    pub(crate) fn words(&self) -> &[u64; SLOTS] {
        &self.slots
    }

    /// All slots in order.
    ///
    /// # Errors
    /// The first invalid word.
    #[inline]
    pub(crate) fn slots(&self) -> impl Iterator<Item = Result<(usize, Slot), Corrupt>> + '_ {
        let slots = self.slots.iter().enumerate();
        slots.map(|(place, &word)| Ok((place, self.head.decode(place, word)?)))
    }

    /// The block of a new bucket with `entries`. They must fit.
    pub(crate) fn image(header: BucketHeader, entries: &[RawEntry]) -> Box<[u8; BLOCK]> {
        let mut image = Box::new([0; BLOCK]);
        image[..32].copy_from_slice(header.words().map(u64::to_le).as_bytes());
        let mut start = HEAP_UNITS.start;
        let mut is_taken = [false; SLOTS];
        for entry in entries {
            let place = Place { start, units: entry.units() };
            start += place.units;
            image[place.start * UNIT..start * UNIT].copy_from_slice(&entry.encode());
            let first = first_line(entry.hash) * LINE_SLOTS;
            let index = (first..SLOTS).chain(0..first).find(|&index| !is_taken[index]);
            let index = index.expect("the entries fit");
            is_taken[index] = true;
            let slot_at = 64 + 8 * index;
            let word = Slot::entry(place, entry.hash).encode();
            image[slot_at..slot_at + 8].copy_from_slice(&word.to_le_bytes());
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_encoding_round_trips() {
        let place = Place { start: 511, units: 1 };
        let removed = Slot::removed(place, u64::MAX);
        for slot in [Slot::Empty, Slot::entry(place, u64::MAX >> 2), removed] {
            assert_eq!(Slot::decode(slot.encode()), Some(slot));
        }
        let beyond = Slot::entry(Place { start: 511, units: 2 }, 0);
        assert_eq!(Slot::decode(beyond.encode()), None);
        assert_eq!(Slot::decode(removed.encode() ^ 1 << 5), None);
    }

    #[test]
    fn free_units_match_the_single_slots() {
        let header = BucketHeader { owner: InodeNo(1), depth: 0, prefix: 0 };
        let head = BucketHead { at: PoolOffset(4096), header };
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        for round in 0..300 {
            let slots = std::array::from_fn(|_| {
                let start = HEAP_UNITS.start + next(384);
                let place = Place { start, units: next(HEAP_UNITS.end - start + 1).min(35) };
                let slots = [
                    Slot::Empty,
                    Slot::entry(place, next(1 << 30) as u64),
                    Slot::removed(place, 5 + next(4) as u64),
                ];
                slots[next(3).min(round % 4)].encode()
            });
            let mut bucket = Bucket { head, slots };
            let all: Vec<Slot> = bucket.slots().map(|slot| slot.unwrap().1).collect();
            let is_free = |slot: &Slot| slot.is_free(8, 6);
            let first = next(SLOTS);
            let expected = (first..SLOTS).chain(0..first).find(|&place| is_free(&all[place]));
            assert_eq!(bucket.free_slot(first, 8, 6), expected);
            let units = 1 + next(35);
            let is_taken = |unit: usize| {
                let places =
                    all.iter().filter(|slot| !is_free(slot)).filter_map(|slot| slot.place());
                places.into_iter().any(|at| (at.start..at.start + at.units).contains(&unit))
            };
            let taken: Vec<bool> = (0..HEAP_UNITS.end).map(is_taken).collect();
            let fits = |start: &usize| !taken[*start..*start + units].contains(&true);
            let hole = (HEAP_UNITS.start..=HEAP_UNITS.end - units).find(fits);
            assert_eq!(bucket.free_units(8, 6).unwrap().run(units), hole, "round {round}");
            bucket.slots[next(SLOTS)] ^= 1 << next(64);
            assert!(bucket.free_units(8, 6).is_err(), "round {round}");
        }
        let can_be = |state: u64, start: u64, units: u64| {
            let word = encode_word(state | start << 2 | units << 11);
            let mut bucket = Bucket { head, slots: [0; SLOTS] };
            bucket.slots[7] = word;
            let can_be = Slot::decode(word).is_some();
            assert_eq!(bucket.free_units(8, 6).is_ok(), can_be, "{state} {start} {units}");
        };
        for state in 0..4 {
            for start in [0, 127, 128, 500, 511] {
                [0, 1, 12, 13, 63].iter().for_each(|&units| can_be(state, start, units));
            }
        }
    }

    #[test]
    fn new_bucket_puts_entries_in_their_lines() {
        let entry = |hash: u64| {
            let (inode, kind, name) = (InodeNo(hash), FileType::Regular, b"n"[..].into());
            RawEntry { hash, inode, kind, name }
        };
        // One entry for each line, and enough for one line to overflow it and the end of the bucket.
        let last_line = (0..).map(|n| n << 2).filter(|&hash| first_line(hash) == SLOT_LINES - 1);
        let entries: Vec<RawEntry> =
            (0..15).map(|n| n << 2).chain(last_line.skip(1).take(9)).map(entry).collect();
        let header = BucketHeader { owner: InodeNo(1), depth: 0, prefix: 0 };
        let image = Bucket::image(header, &entries);
        let word = |slot: usize| u64::from_le_bytes(*image[64 + 8 * slot..].first_chunk().unwrap());
        for (number, entry) in entries.iter().enumerate() {
            let filter = SlotFilter::new(entry.hash);
            let slot = (0..SLOTS).find(|&slot| filter.may_be(word(slot))).unwrap();
            let is_full = number >= 15 + LINE_SLOTS - 1;
            let expected = if is_full { 0 } else { first_line(entry.hash) };
            assert_eq!(slot / LINE_SLOTS, expected, "entry {number}");
        }
        assert_eq!((0..SLOTS).filter(|&slot| word(slot) != 0).count(), entries.len());
    }

    #[test]
    fn place_is_free_after_durable_removal() {
        let removed = |epoch| Slot::removed(Place { start: 200, units: 4 }, epoch);
        let high = 5 << EPOCH_BITS;
        for base in [0, high] {
            assert!(!removed(base + 7).is_free(base + 7, base + 5));
            assert!(!removed(base + 7).is_free(base + 8, base + 6));
            assert!(removed(base + 7).is_free(base + 8, base + 7));
        }
        // The epoch's low bits occur again: the slot waits until that newer epoch is durable.
        assert!(!removed(7).is_free(high + 7, high + 6));
        assert!(removed(7).is_free(high + 8, high + 7));
    }

    #[test]
    fn changed_entry_is_rejected() {
        let entry = RawEntry {
            hash: 12345,
            inode: InodeNo(99),
            kind: FileType::Fifo,
            name: b"a name"[..].into(),
        };
        let bytes = entry.encode();
        assert_eq!(EntryView::decode(&bytes).map(EntryView::to_raw), Some(entry));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 16;
            assert!(EntryView::decode(&wrong).is_none(), "byte {at}");
        }
    }
}
