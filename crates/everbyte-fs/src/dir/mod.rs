//! Directories: entries by name, in buckets of a block each, below a trie over the bits of the names' hashes
//! (extendible hashing, Fagin et al., 1979, with the directory of buckets as a tree).
//!
//! The word at the directory's root names a bucket or a node. A node is a block of 512 words and takes the
//! next nine bits of a hash. Each word names a bucket or a node. A bucket stands in each word of a node
//! whose hashes begin with the bits of the bucket.
//!
//! Invariants: the caller holds the lock of the directory. Entries and new blocks are filled before the
//! fence, where nothing durable reads; the words that make them reachable are logged. The place of an entry
//! in a listing is its hash, so it never changes.

mod bucket_space;
mod free_units_cache;
mod insert;
mod listing;
mod walk;

use std::hash::Hasher;

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Corrupt};
use siphasher::sip::SipHasher13;

use crate::dentry::cache::Dentry;
use crate::dentry::file_name::Name;
use crate::format::number::{FileType, InodeNo};
use crate::format::reader::Reader;
use crate::format::{
    Bucket, BucketHead, HASH_BITS, HEAP_UNITS, LINE_SLOTS, RawEntry, Slot, SlotFilter, first_line,
};

pub(crate) use free_units_cache::FreeUnitsCache;

/// Words of a block.
const BLOCK_WORDS: u64 = BLOCK as u64 / 8;
/// Bits that a node takes.
const NODE_BITS: u32 = BLOCK_WORDS.trailing_zeros();
const _: () = assert!(NODE_BITS < HASH_BITS);
/// Lowest bits of a hash. They distinguish entries with equal other bits.
const SAME_HASH_BITS: u32 = 2;
/// Limit of such entries.
const SAME_HASH_MAX: u64 = 1 << SAME_HASH_BITS;

/// The hash of a name, with the lowest two bits 0.
pub(crate) fn hash_of(key: [u64; 2], name: Name<'_>) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
    hasher.write(name.bytes());
    hasher.finish() >> (64 - HASH_BITS) & !(SAME_HASH_MAX - 1)
}

/// Receives each block of a directory, and the address of a word that names it.
pub(crate) type OnBlock<'a> = dyn FnMut(PoolOffset, BlockNo) -> Result<(), Corrupt> + 'a;

/// A directory of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'m, M: Medium> {
    reader: Reader<'m, M>,
    /// Its inode.
    owner: InodeNo,
    /// The address of the word that names its top.
    root_at: PoolOffset,
    /// Key of the hash of names.
    hash_key: [u64; 2],
    /// Cached free units of its buckets, for a directory that can change.
    known: Option<&'m FreeUnitsCache>,
}

/// A found entry.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) inode: InodeNo,
    pub(crate) kind: FileType,
    slot_at: PoolOffset,
    slot: Slot,
}

/// An entry of a listing.
#[derive(Clone, Debug)]
pub(crate) struct ListedEntry {
    /// Its place in the listing.
    pub(crate) place: u64,
    pub(crate) entry: RawEntry,
}

impl FoundEntry {
    /// The file of the name.
    pub(crate) fn dentry(&self) -> Dentry {
        Dentry { inode: self.inode, kind: self.kind }
    }
}

impl<'m, M: Medium> Dir<'m, M> {
    pub(crate) fn new(
        reader: Reader<'m, M>,
        owner: InodeNo,
        root_at: PoolOffset,
        hash_key: [u64; 2],
    ) -> Self {
        Self { reader, owner, root_at, hash_key, known: None }
    }

    /// The directory for a change, with a cache of free units.
    pub(crate) fn knowing(self, known: &'m FreeUnitsCache) -> Self {
        Self { known: Some(known), ..self }
    }

    /// The entry with this name.
    ///
    /// # Errors
    /// A damaged directory.
    pub(crate) fn find(&self, name: Name<'_>) -> Result<Option<FoundEntry>, Corrupt> {
        let hash = hash_of(self.hash_key, name);
        let Some((_, head)) = self.head_of(None, hash)? else { return Ok(None) };
        self.find_in(head, name, hash)
    }

    /// Plans the removal of an entry found in the same plan.
    pub(crate) fn plan_remove(&self, batch: &mut Batch<'_, '_, M>, found: &FoundEntry) {
        if let Slot::Entry { place, .. } = found.slot {
            // The epoch on the medium keeps slot and units from being reused before the removal is
            // durable.
            let removed = Slot::removed(place, batch.writer().epoch());
            batch.change_word(found.slot_at, removed.encode());
        }
    }

    /// Addresses of unreadable slots, and of slots with unreadable entries, that can belong to `name`.
    /// Unreadable buckets contribute none.
    pub(crate) fn lost_slots(&self, name: Name<'_>) -> Vec<PoolOffset> {
        let hash = hash_of(self.hash_key, name);
        let filter = SlotFilter::new(hash);
        let mut lost = Vec::new();
        // A damaged node hides the entries below it.
        let _partly = self.each_block(&mut |_, block| {
            let Ok(head) = self.head(block) else { return Ok(()) };
            if !head.header.covers(hash) {
                return Ok(());
            }
            let mut bucket = Bucket::unread(head);
            if bucket.read(self.reader.medium).is_err() {
                return Ok(());
            }
            for (place, &word) in bucket.words().iter().enumerate() {
                let is_lost = match head.decode(place, word) {
                    Err(_) => true,
                    Ok(Slot::Entry { place, .. }) => {
                        filter.may_be(word) && head.entry(self.reader.medium, place).is_err()
                    }
                    Ok(_) => false,
                };
                if is_lost {
                    lost.push(head.slot_at(place));
                }
            }
            Ok(())
        });
        lost
    }

    /// Plans that a slot of [`Dir::lost_slots`] is empty.
    pub(crate) fn plan_empty(&self, batch: &mut Batch<'_, '_, M>, slot_at: PoolOffset) {
        // Empty, not removed: a damaged slot names no units that could be waited for.
        batch.change_word(slot_at, Slot::Empty.encode());
    }

    /// The entry of `name` with this hash in the bucket with this head.
    fn find_in(
        &self,
        head: BucketHead,
        name: Name<'_>,
        hash: u64,
    ) -> Result<Option<FoundEntry>, Corrupt> {
        let (line, filter) = (first_line(hash), SlotFilter::new(hash));
        // Most entries are in the first line of their hash, so a lookup usually reads one line of
        // slots.
        let words = head.line(self.reader.medium, line)?;
        if let Some(found) = self.entry_among(&head, (line * LINE_SLOTS, &words), filter, name)? {
            return Ok(Some(found));
        }
        let mut bucket = Bucket::unread(head);
        bucket.read(self.reader.medium)?;
        let found = self.entry_among(&head, (0, bucket.words()), filter, name)?;
        if found.is_none() {
            // The damaged slot could belong to the entry.
            bucket.check()?;
        }
        Ok(found)
    }

    /// The word at `at`; with a batch, its planned value.
    fn word(&self, batch: Option<&Batch<'_, '_, M>>, at: PoolOffset) -> u64 {
        batch.map_or_else(|| self.reader.medium.load_word(at), |batch| batch.word(at))
    }

    /// The head of one of its buckets.
    fn head(&self, bucket: BlockNo) -> Result<BucketHead, Corrupt> {
        BucketHead::load(self.reader.medium, bucket.offset(), self.owner)
    }

    /// Reads the slots of `bucket` with the planned changes of `batch`.
    fn read_for(&self, batch: &Batch<'_, '_, M>, bucket: &mut Bucket) -> Result<(), Corrupt> {
        bucket.read(self.reader.medium)?;
        let (at, words) = bucket.words_mut();
        batch.overlay_pending(at, words);
        Ok(())
    }

    /// The entry with this name among the slots `words` from place `first` on.
    fn entry_among(
        &self,
        head: &BucketHead,
        (first, words): (usize, &[u64]),
        filter: SlotFilter,
        name: Name<'_>,
    ) -> Result<Option<FoundEntry>, Corrupt> {
        for (place, &word) in words.iter().enumerate() {
            if filter.may_be(word) {
                let found = self.entry_in(head, (first + place, word), name)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// The entry in slot `word` at `place`, if it has this name.
    fn entry_in(
        &self,
        head: &BucketHead,
        (place, word): (usize, u64),
        name: Name<'_>,
    ) -> Result<Option<FoundEntry>, Corrupt> {
        let slot = head.decode(place, word)?;
        let Slot::Entry { place: heap, .. } = slot else { return Ok(None) };
        head.with_entry(self.reader.medium, heap, |entry| {
            let (inode, kind, slot_at) = (entry.inode, entry.kind, head.slot_at(place));
            (entry.name == name.bytes()).then_some(FoundEntry { inode, kind, slot_at, slot })
        })
    }

    /// The entries of a bucket, in no order.
    fn entries_of(&self, bucket: &Bucket) -> Result<Vec<RawEntry>, Corrupt> {
        let mut entries = Vec::new();
        for slot in bucket.slots() {
            if let (_, Slot::Entry { place, .. }) = slot? {
                entries.push(bucket.head.entry(self.reader.medium, place)?);
            }
        }
        // The caller copies the entries to new buckets, and these have no space for more.
        if entries.iter().map(RawEntry::units).sum::<usize>() > HEAP_UNITS.len() {
            let what = "its entries take more than there is, so some of them overlap";
            return Err(Corrupt::new("directory bucket", bucket.head.at, what));
        }
        Ok(entries)
    }
}
