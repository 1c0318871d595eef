//! Insertion of entries, and the split of full buckets.

use everbyte_media::{BLOCK, BlockNo, Medium};
use everbyte_pool::Batch;
use everbyte_pool::format::{Entry, EntryFlags};

use super::bucket_space::fits_with_space;
use super::walk::BucketPath;
use super::{BLOCK_WORDS, Dir, hash_of};
use crate::dentry::file_name::Name;
use crate::error::FsError;
use crate::format::number::{FileType, InodeNo};
use crate::format::{Bucket, BucketHeader, HASH_BITS, RawEntry};

/// Words of a node that change one by one; more make a new node.
const WORDS_ONE_BY_ONE: u64 = 16;

impl<M: Medium> Dir<'_, M> {
    /// Plans an entry for a name that is not in the directory.
    ///
    /// # Errors
    /// `NoSpace`, or a damaged directory.
    pub(crate) fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        name: Name<'_>,
        inode: InodeNo,
        kind: FileType,
    ) -> Result<(), FsError> {
        let hash = hash_of(self.hash_key, name);
        let mut entry = RawEntry { hash, inode, kind, name: name.bytes().into() };
        // Each round halves the range of the bucket, down to one hash.
        for _ in 0..=HASH_BITS {
            // With the planned changes: an earlier round, or another entry of the batch, has split
            // buckets.
            let Some((path, head)) = self.head_of(Some(batch), hash)? else {
                let header = self.first_header();
                let block = self.plan_bucket(batch, header, std::slice::from_ref(&entry))?;
                batch.change_word(self.root_at, bucket_word(block));
                return Ok(());
            };
            let mut bucket = Bucket::unread(head);
            self.read_for(batch, &mut bucket)?;
            let space = self.space_in(batch, &bucket, &entry)?;
            // A place in a listing is a hash, so two entries need different ones.
            entry.hash = hash + space.free_low_bits().ok_or(FsError::NoSpace)?;
            if self.plan_entry(batch, &bucket, &space, &entry) {
                return Ok(());
            }
            entry.hash = hash;
            self.plan_split_or_rewrite(batch, &path, &bucket)?;
        }
        Err(FsError::NoSpace)
    }

    /// Plans space in the bucket at the end of `path`: a new bucket without removed entries, or two halves.
    fn plan_split_or_rewrite(
        &self,
        batch: &mut Batch<'_, '_, M>,
        path: &BucketPath,
        bucket: &Bucket,
    ) -> Result<(), FsError> {
        let entries = self.entries_of(bucket)?;
        let header = bucket.head.header;
        let (new, last) = if fits_with_space(&entries) {
            let block = self.plan_bucket(batch, header, &entries)?;
            (block, block)
        } else {
            let depth = header.depth + 1;
            // More entries with one hash than it has low bits. Only a chosen set of names reaches
            // this.
            if depth >= HASH_BITS {
                return Err(FsError::NoSpace);
            }
            let half = |prefix| BucketHeader { depth, prefix, ..header };
            let (low, high) = (half(header.prefix << 1), half(header.prefix << 1 | 1));
            let (lower, upper): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| low.covers(entry.hash));
            (self.plan_bucket(batch, low, &lower)?, self.plan_bucket(batch, high, &upper)?)
        };
        self.plan_words(batch, path, header, [new, last])?;
        // A deferred free: undo restores the words that name the old bucket.
        batch.free(path.bucket);
        Ok(())
    }

    /// Plans that the words for the bucket with `header` name the two `halves`, which can be equal.
    fn plan_words(
        &self,
        batch: &mut Batch<'_, '_, M>,
        path: &BucketPath,
        header: BucketHeader,
        halves: [BlockNo; 2],
    ) -> Result<(), FsError> {
        let [low, high] = halves;
        let is_one_word = header.depth == path.bits;
        if is_one_word && low == high {
            batch.change_word(path.named_at, bucket_word(low));
            return Ok(());
        }
        // One word cannot name two buckets, so a node takes its place. It is filled before the word
        // changes.
        if is_one_word {
            let node = batch.alloc_node().ok_or(FsError::NoSpace)?;
            let half = BLOCK_WORDS / 2;
            let image = node_image((0..BLOCK_WORDS).map(|i| if i < half { low } else { high }));
            batch.stream(node.offset(), &image[..]);
            batch.change_word(path.named_at, node_word(node));
            return Ok(());
        }
        let (node, node_named_at) = path.node.expect("a bucket beside others is in a node");
        let words = 1 << (path.bits - header.depth);
        // The words of a bucket are adjacent, because the bits of its prefix are the highest ones.
        let first = (header.prefix << (path.bits - header.depth)) % BLOCK_WORDS;
        let word_of = |index: u64| bucket_word(if index < first + words / 2 { low } else { high });
        if words <= WORDS_ONE_BY_ONE {
            for index in first..first + words {
                batch.change_word(node.offset().plus(8 * index), word_of(index));
            }
            return Ok(());
        }
        let new = batch.alloc_node().ok_or(FsError::NoSpace)?;
        let mut image = Box::new([0; BLOCK]);
        for index in 0..BLOCK_WORDS {
            let is_changed = (first..first + words).contains(&index);
            // The planned value: an earlier split of this batch may have changed other words of the
            // node.
            let old = batch.word(node.offset().plus(8 * index));
            let word = if is_changed { word_of(index) } else { old };
            put_word(&mut image, index, word);
        }
        batch.stream(new.offset(), &image[..]);
        batch.change_word(node_named_at, node_word(new));
        batch.free(node);
        Ok(())
    }
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

/// The word that names a node.
fn node_word(node: BlockNo) -> u64 {
    Entry { block: node, flags: EntryFlags { height: 1, ..EntryFlags::default() } }.encode()
}

/// The word that names a bucket.
fn bucket_word(bucket: BlockNo) -> u64 {
    Entry::data(bucket).encode()
}
