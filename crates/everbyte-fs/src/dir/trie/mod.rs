//! Hashed directories: a trie over the bits of names' hashes, with buckets of entries at its ends.
//!
//! The word at the directory's root names a bucket, or a node: a block of 512 words, each of which names
//! a bucket or a node in turn. A node takes the next nine bits of a hash. A bucket stands in every word
//! of a node whose hashes begin with its bits, so it can have fewer bits than the node takes; when it is
//! full it is cut in two by its next bit. Names are listed in the order of their hashes, so a place in
//! the list stays where it is whatever comes and goes: extendible hashing (Fagin et al., 1979) with the
//! directory of buckets as a tree.

mod insert;
mod walk;

use everbyte_media::Medium;
use everbyte_pool::{Batch, Corrupt};

use super::{BLOCK_WORDS, DAMAGE_MAX, Dir, FoundEntry, ListedEntry, OnBlock, Shape};
use crate::dentry::file_name::Name;
use crate::error::FsError;
use crate::format::{Bucket, BucketHead, HASH_BITS, RawEntry};

/// Bits that a node takes.
const NODE_BITS: u32 = BLOCK_WORDS.trailing_zeros();

/// The trie.
pub(super) struct Trie;

impl<M: Medium> Shape<M> for Trie {
    fn find(dir: &Dir<'_, M>, name: Name<'_>, hash: u64) -> Result<Option<FoundEntry>, Corrupt> {
        let Some((_, head)) = dir.head_of(None, hash)? else { return Ok(None) };
        dir.find_in(head, name, hash)
    }

    fn plan_insert(
        dir: &Dir<'_, M>,
        batch: &mut Batch<'_, '_, M>,
        entry: RawEntry,
    ) -> Result<(), FsError> {
        dir.plan_insert_hashed(batch, entry)
    }

    fn entries_from(
        dir: &Dir<'_, M>,
        from: u64,
    ) -> Result<(Vec<ListedEntry>, Option<u64>), Corrupt> {
        let mut from = Some(from);
        while let Some(hash) = from.filter(|hash| hash >> HASH_BITS == 0) {
            let Some((_, head)) = dir.head_of(None, hash)? else { break };
            let bucket = Bucket::load(dir.reader.medium, head)?;
            let entries = dir.listed(&bucket, hash)?;
            from = beyond(&bucket.head);
            if !entries.is_empty() {
                return Ok((entries, from));
            }
        }
        Ok((Vec::new(), None))
    }

    fn salvage_from(
        dir: &Dir<'_, M>,
        from: u64,
        damage: &mut Vec<Corrupt>,
    ) -> (Vec<ListedEntry>, Option<u64>) {
        let mut from = Some(from);
        while let Some(hash) = from.filter(|hash| hash >> HASH_BITS == 0) {
            if damage.len() >= DAMAGE_MAX {
                return (Vec::new(), from);
            }
            match dir.head_of(None, hash) {
                Ok(None) => break,
                Ok(Some((_, head))) => {
                    let entries = dir.salvaged_by_hash(head, hash, damage);
                    from = beyond(&head);
                    if !entries.is_empty() {
                        return (entries, from);
                    }
                }
                Err(corrupt) => {
                    // A damaged bucket can stand in several words.
                    let is_new = damage.last().is_none_or(|last| *last != corrupt);
                    damage.extend(is_new.then_some(corrupt));
                    from = dir.beyond_damage(hash);
                }
            }
        }
        (Vec::new(), None)
    }

    fn each_block(dir: &Dir<'_, M>, on_block: &mut OnBlock<'_>) -> Result<(), Corrupt> {
        dir.each_block_hashed(on_block)
    }
}

/// The first hash beyond those of the bucket with this head, if there are such.
fn beyond(head: &BucketHead) -> Option<u64> {
    let header = head.header;
    let next = header.prefix + 1;
    (next >> header.depth == 0).then(|| next << (HASH_BITS - header.depth))
}

const _: () = assert!(NODE_BITS < HASH_BITS);
