//! Directories: entries by name, in buckets of a block each.
//!
//! Owns the trait of the shapes in which a directory's buckets can be found, one file each, and what they
//! have in common: buckets, the entries in them, their hashes. All directories of a file system have the
//! shape that its superblock says.
//!
//! Invariants: the caller holds the lock of the directory. Entries and new blocks are filled before the
//! fence, where nothing durable reads; the words that make them reachable are logged. A place in a list
//! stays where it is whatever comes and goes.

mod known_units;
mod list;
mod room;
mod tree;
mod trie;

use std::hash::Hasher;

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, EntryFlags};
use everbyte_pool::{Batch, Corrupt};
use siphasher::sip::SipHasher13;

use crate::dentry::cache::Dentry;
use crate::dentry::file_name::Name;
use crate::error::FsError;
use crate::format::directory_kind::DirectoryKind;
use crate::format::number::{FileType, InodeNo};
use crate::format::reader::Reader;
use crate::format::{
    Bucket, BucketHead, DirSettings, HASH_BITS, HEAP_UNITS, LINE_SLOTS, RawEntry, Slot, SlotFilter,
    first_line,
};

pub(crate) use known_units::KnownUnits;

use list::List;
use tree::Tree;
use trie::Trie;

/// Words of a block.
const BLOCK_WORDS: u64 = BLOCK as u64 / 8;
/// Words of a node that are changed one by one; more make a new node.
const WORDS_ONE_BY_ONE: u64 = 16;
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

/// Damaged parts of a directory after which a listing past damage returns.
const DAMAGE_MAX: usize = 64;

/// Takes each block of a directory, and the address of a word that names it.
pub(crate) type OnBlock<'a> = dyn FnMut(PoolOffset, BlockNo) -> Result<(), Corrupt> + 'a;

/// A shape of directories: how buckets are found from the word at a directory's root.
trait Shape<M: Medium> {
    /// The entry of `name`, whose hash that is.
    ///
    /// # Errors
    /// The directory cannot be right.
    fn find(dir: &Dir<'_, M>, name: Name<'_>, hash: u64) -> Result<Option<FoundEntry>, Corrupt>;

    /// Plans an entry that the directory does not have.
    ///
    /// # Errors
    /// `NoSpace`, or the directory cannot be right.
    fn plan_insert(
        dir: &Dir<'_, M>,
        batch: &mut Batch<'_, '_, M>,
        entry: RawEntry,
    ) -> Result<(), FsError>;

    /// The entries from a place on of the first bucket that has any, in the order of their places, and
    /// the first place beyond that bucket, if there can be more.
    ///
    /// # Errors
    /// The directory cannot be right.
    fn entries_from(
        dir: &Dir<'_, M>,
        from: u64,
    ) -> Result<(Vec<ListedEntry>, Option<u64>), Corrupt>;

    /// The same past damage: readable entries of the first bucket that has any, or whose damage is noted.
    fn salvage_from(
        dir: &Dir<'_, M>,
        from: u64,
        damage: &mut Vec<Corrupt>,
    ) -> (Vec<ListedEntry>, Option<u64>);

    /// Shows every block once, nodes before what they name.
    ///
    /// # Errors
    /// A word that cannot be right, or `on_block`'s.
    fn each_block(dir: &Dir<'_, M>, on_block: &mut OnBlock<'_>) -> Result<(), Corrupt>;
}

/// Calls a function of the directory's shape.
macro_rules! by_shape {
    ($dir:expr, $function:ident, $($argument:expr),*) => {
        match $dir.settings.kind {
            DirectoryKind::Hashed => <Trie as Shape<M>>::$function($dir, $($argument),*),
            DirectoryKind::Linear => <List as Shape<M>>::$function($dir, $($argument),*),
            DirectoryKind::BPlus => <Tree as Shape<M>>::$function($dir, $($argument),*),
        }
    };
}

/// A directory that is looked at or changed.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'m, M: Medium> {
    reader: Reader<'m, M>,
    /// Its inode.
    owner: InodeNo,
    /// The address of the word that names its top.
    root_at: PoolOffset,
    settings: DirSettings,
    /// Knowledge of its buckets, of one that may be changed.
    known: Option<&'m KnownUnits>,
}

/// An entry that was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundEntry {
    pub(crate) inode: InodeNo,
    pub(crate) kind: FileType,
    slot_at: PoolOffset,
    slot: Slot,
}

/// An entry in a list.
#[derive(Clone, Debug)]
pub(crate) struct ListedEntry {
    /// Its place in the list.
    pub(crate) place: u64,
    pub(crate) entry: RawEntry,
}

impl FoundEntry {
    /// The file that the name leads to.
    pub(crate) fn dentry(&self) -> Dentry {
        Dentry { inode: self.inode, kind: self.kind }
    }
}

impl<'m, M: Medium> Dir<'m, M> {
    pub(crate) fn new(
        reader: Reader<'m, M>,
        owner: InodeNo,
        root_at: PoolOffset,
        settings: DirSettings,
    ) -> Self {
        Self { reader, owner, root_at, settings, known: None }
    }

    /// The same for who may change it, with what is known of the file system's buckets.
    pub(crate) fn knowing(self, known: &'m KnownUnits) -> Self {
        Self { known: Some(known), ..self }
    }

    /// The entry of this name.
    ///
    /// # Errors
    /// The directory cannot be right.
    pub(crate) fn find(&self, name: Name<'_>) -> Result<Option<FoundEntry>, Corrupt> {
        let hash = hash_of(self.settings.hash_key, name);
        by_shape!(self, find, name, hash)
    }

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
        let hash = hash_of(self.settings.hash_key, name);
        let entry = RawEntry { hash, inode, kind, name: name.bytes().into() };
        by_shape!(self, plan_insert, batch, entry)
    }

    /// Plans that an entry that was found in the same plan is not there any more.
    pub(crate) fn plan_remove(&self, batch: &mut Batch<'_, '_, M>, found: &FoundEntry) {
        if let Slot::Entry { place, .. } = found.slot {
            let removed = Slot::removed(place, batch.writer().epoch());
            batch.change_word(found.slot_at, removed.encode());
        }
    }

    /// Addresses of the slots that cannot be read, or whose entries cannot, and that may be those of `name`. Buckets that
    /// cannot be found or read have none.
    pub(crate) fn lost_slots(&self, name: Name<'_>) -> Vec<PoolOffset> {
        let hash = hash_of(self.settings.hash_key, name);
        let filter = SlotFilter::new(hash);
        let mut lost = Vec::new();
        // Behind damage of a node there may be more, of which nothing is known.
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

    /// Plans that a slot of [`Dir::lost_slots`] has no entry.
    pub(crate) fn plan_empty(&self, batch: &mut Batch<'_, '_, M>, slot_at: PoolOffset) {
        batch.change_word(slot_at, Slot::Empty.encode());
    }

    /// The entries from a place on of the first bucket that has any, in the order of their places, and
    /// the first place beyond that bucket, if there can be more.
    ///
    /// # Errors
    /// The directory cannot be right.
    pub(crate) fn entries_from(
        &self,
        from: u64,
    ) -> Result<(Vec<ListedEntry>, Option<u64>), Corrupt> {
        by_shape!(self, entries_from, from)
    }

    /// Readable entries from a place on, in the order of their places, and the first place beyond them, if
    /// there can be more. Notes what cannot be read, and goes on behind it; ends early if nothing but damage
    /// is found for a while.
    pub(crate) fn salvage_from(
        &self,
        from: u64,
        damage: &mut Vec<Corrupt>,
    ) -> (Vec<ListedEntry>, Option<u64>) {
        by_shape!(self, salvage_from, from, damage)
    }

    /// Shows every block once, and the address of a word that names it, nodes before what they name.
    ///
    /// # Errors
    /// A word that cannot be right, or `on_block`'s.
    pub(crate) fn each_block(&self, on_block: &mut OnBlock<'_>) -> Result<(), Corrupt> {
        by_shape!(self, each_block, on_block)
    }

    /// The entry of `name`, whose hash that is, in the bucket with this head.
    fn find_in(
        &self,
        head: BucketHead,
        name: Name<'_>,
        hash: u64,
    ) -> Result<Option<FoundEntry>, Corrupt> {
        let (line, filter) = (first_line(hash), SlotFilter::new(hash));
        let words = head.line(self.reader.medium, line)?;
        if let Some(found) = self.entry_among(&head, (line * LINE_SLOTS, &words), filter, name)? {
            return Ok(Some(found));
        }
        self.find_in_all(head, name, filter)
    }

    /// The same, in the order of the slots.
    fn find_in_all(
        &self,
        head: BucketHead,
        name: Name<'_>,
        filter: SlotFilter,
    ) -> Result<Option<FoundEntry>, Corrupt> {
        let mut bucket = Bucket::unread(head);
        bucket.read(self.reader.medium)?;
        let found = self.entry_among(&head, (0, bucket.words()), filter, name)?;
        if found.is_none() {
            // A slot that is damaged may have been that of the entry.
            bucket.check()?;
        }
        Ok(found)
    }

    /// The word at `at`. With a batch, as it will be once that is carried out.
    fn word(&self, batch: Option<&Batch<'_, '_, M>>, at: PoolOffset) -> u64 {
        batch.map_or_else(|| self.reader.medium.load_word(at), |batch| batch.word(at))
    }

    /// The head of one of its buckets.
    fn head(&self, bucket: BlockNo) -> Result<BucketHead, Corrupt> {
        let of = (self.owner, self.settings.kind);
        BucketHead::load(self.reader.medium, bucket.offset(), of)
    }

    /// Reads the slots of `bucket` as they will be once `batch` is carried out.
    fn read_for(&self, batch: &Batch<'_, '_, M>, bucket: &mut Bucket) -> Result<(), Corrupt> {
        bucket.read(self.reader.medium)?;
        let (at, words) = bucket.words_mut();
        batch.put_seen_words(at, words);
        Ok(())
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

    /// The entries with hashes from `from` on of a bucket, in the order of their hashes, which are their
    /// places.
    fn listed(&self, bucket: &Bucket, from: u64) -> Result<Vec<ListedEntry>, Corrupt> {
        let entries = self.entries_of(bucket)?.into_iter();
        let listed = entries.map(|entry| ListedEntry { place: entry.hash, entry });
        let mut listed: Vec<_> = listed.filter(|listed| listed.place >= from).collect();
        listed.sort_unstable_by_key(|listed| listed.place);
        Ok(listed)
    }

    /// The readable entries of the bucket with this head, each with the number of its slot. Notes those that
    /// cannot be read.
    fn salvaged(&self, head: BucketHead, damage: &mut Vec<Corrupt>) -> Vec<(usize, RawEntry)> {
        let bucket = match Bucket::load(self.reader.medium, head) {
            Ok(bucket) => bucket,
            Err(corrupt) => {
                damage.push(corrupt);
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for slot in bucket.slots() {
            let entry = match slot {
                Ok((index, Slot::Entry { place, .. })) => {
                    let entry = bucket.head.entry(self.reader.medium, place);
                    entry.map(|entry| entries.push((index, entry)))
                }
                other => other.map(drop),
            };
            damage.extend(entry.err());
        }
        entries
    }

    /// The same with hashes as places, from `from` on and in their order.
    fn salvaged_by_hash(
        &self,
        head: BucketHead,
        from: u64,
        damage: &mut Vec<Corrupt>,
    ) -> Vec<ListedEntry> {
        let entries = self.salvaged(head, damage).into_iter();
        let listed = entries.map(|(_, entry)| ListedEntry { place: entry.hash, entry });
        let mut listed: Vec<_> = listed.filter(|listed| listed.place >= from).collect();
        listed.sort_unstable_by_key(|listed| listed.place);
        listed
    }

    /// The entries of a bucket, in no order.
    fn entries_of(&self, bucket: &Bucket) -> Result<Vec<RawEntry>, Corrupt> {
        let mut entries = Vec::new();
        for slot in bucket.slots() {
            if let (_, Slot::Entry { place, .. }) = slot? {
                entries.push(bucket.head.entry(self.reader.medium, place)?);
            }
        }
        if entries.iter().map(RawEntry::units).sum::<usize>() > HEAP_UNITS.len() {
            let what = "its entries take more than there is, so some of them overlap";
            return Err(Corrupt::new("directory bucket", bucket.head.at, what));
        }
        Ok(entries)
    }
}

/// The word that names a node, `height` levels above the buckets.
fn node_word(node: BlockNo, height: u8) -> u64 {
    Entry { block: node, flags: EntryFlags { height, ..EntryFlags::default() } }.encode()
}

/// The word that names a bucket.
fn bucket_word(bucket: BlockNo) -> u64 {
    Entry::data(bucket).encode()
}
