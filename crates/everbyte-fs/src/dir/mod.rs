//! A directory: a trie over the bits of names' hashes, with buckets of entries at its ends.
//!
//! The word at the directory's root names a bucket, or a node: a block of 512 words, each of which names
//! a bucket or a node in turn. A node takes the next nine bits of a hash. A bucket stands in every word
//! of a node whose hashes begin with its bits, so it can have fewer bits than the node takes; when it is
//! full it is cut in two by its next bit. Names are listed in the order of their hashes, so a place in
//! the list stays where it is whatever comes and goes: extendible hashing (Fagin et al., 1979) with the
//! directory of buckets as a tree.
//!
//! Invariants: the caller holds the lock of the directory. Entries and new blocks are filled before the
//! fence, where nothing durable reads; the words that make them reachable are logged.

mod insert;
mod walk;

use std::hash::Hasher;

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::{Batch, Corrupt};
use siphasher::sip::SipHasher13;

use crate::format::{
    Bucket, BucketHead, HASH_BITS, LINE_SLOTS, RawEntry, Slot, SlotFilter, first_line,
};
use crate::name::Name;
use crate::number::{FileType, InodeNo};
use crate::reader::Reader;

/// Bits that a node takes.
const NODE_BITS: u32 = 9;
/// Words of a node.
const NODE_WORDS: u64 = 1 << NODE_BITS;
/// Lowest bits of a hash, which tell entries apart that have the other bits in common.
const SAME_HASH_BITS: u32 = 2;
/// Such entries at most.
const SAME_HASH_MAX: u64 = 1 << SAME_HASH_BITS;

/// The hash of a name, with the lowest two bits 0.
pub(crate) fn hash_of(key: [u64; 2], name: Name<'_>) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
    hasher.write(name.bytes());
    hasher.finish() >> (64 - HASH_BITS) & !(SAME_HASH_MAX - 1)
}

/// A directory that is looked at or changed.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'m, M: Medium> {
    reader: Reader<'m, M>,
    /// Its inode.
    owner: InodeNo,
    /// The address of the word that names its top.
    root_at: PoolOffset,
    hash_key: [u64; 2],
}

/// An entry that was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) inode: InodeNo,
    pub(crate) kind: FileType,
    slot_at: PoolOffset,
    slot: Slot,
}

impl<'m, M: Medium> Dir<'m, M> {
    pub(crate) fn new(
        reader: Reader<'m, M>,
        owner: InodeNo,
        root_at: PoolOffset,
        hash_key: [u64; 2],
    ) -> Self {
        Self { reader, owner, root_at, hash_key }
    }

    /// The entry of this name.
    ///
    /// # Errors
    /// The directory cannot be right.
    pub(crate) fn find(&self, name: Name<'_>) -> Result<Option<FoundEntry>, Corrupt> {
        let hash = hash_of(self.hash_key, name);
        let Some((_, head)) = self.head_of(None, hash)? else { return Ok(None) };
        let (line, filter) = (first_line(hash), SlotFilter::new(hash));
        let words = head.line(self.reader.medium, line)?;
        if let Some(found) = self.entry_among(&head, (line * LINE_SLOTS, &words), filter, name)? {
            return Ok(Some(found));
        }
        let bucket = Bucket::load(self.reader.medium, head)?;
        let found = self.entry_among(&head, (0, bucket.words()), filter, name)?;
        if found.is_none() {
            // A slot that is damaged may have been that of the entry.
            bucket.check()?;
        }
        Ok(found)
    }

    /// The entry with this name in the slots that are `words` from place `first` on.
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

    /// The entry of the slot that is `word` at `place`, if it has this name.
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

    /// Plans that an entry that was found in the same plan is not there any more.
    pub(crate) fn plan_remove(&self, batch: &mut Batch<'_, '_, M>, found: &FoundEntry) {
        if let Slot::Entry { place, .. } = found.slot {
            let removed = Slot::removed(place, batch.writer().epoch());
            batch.change_word(found.slot_at, removed.encode());
        }
    }

    /// The entries with hashes from `from` on of the first bucket that has any, in the order of their
    /// hashes, and the first hash beyond that bucket, if there can be more.
    ///
    /// # Errors
    /// The directory cannot be right.
    pub(crate) fn entries_from(&self, from: u64) -> Result<(Vec<RawEntry>, Option<u64>), Corrupt> {
        let mut from = Some(from);
        while let Some(hash) = from {
            let Some((_, bucket)) = self.bucket_of(None, hash)? else { break };
            let mut entries = self.entries_of(&bucket)?;
            entries.retain(|entry| entry.hash >= hash);
            entries.sort_unstable_by_key(|entry| entry.hash);
            from = beyond(&bucket);
            if !entries.is_empty() {
                return Ok((entries, from));
            }
        }
        Ok((Vec::new(), None))
    }

    /// The entries of a bucket, in no order.
    fn entries_of(&self, bucket: &Bucket) -> Result<Vec<RawEntry>, Corrupt> {
        let mut entries = Vec::new();
        for slot in bucket.slots() {
            if let (_, Slot::Entry { place, .. }) = slot? {
                entries.push(bucket.head.entry(self.reader.medium, place)?);
            }
        }
        Ok(entries)
    }
}

/// The first hash beyond those of `bucket`, if there are such.
fn beyond(bucket: &Bucket) -> Option<u64> {
    let header = bucket.head.header;
    let next = header.prefix + 1;
    (next >> header.depth == 0).then(|| next << (HASH_BITS - header.depth))
}
