//! Search for buckets in a directory's trie, and visits of all blocks.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Corrupt};

use super::{BLOCK_WORDS, Dir, NODE_BITS, OnBlock};
use crate::format::{BucketHead, HASH_BITS};

/// The path to a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketPath {
    /// The bucket.
    pub(super) bucket: BlockNo,
    /// The address of the word that names the bucket.
    pub(super) named_at: PoolOffset,
    /// The node with that word, and the address of the word that names the node.
    pub(super) node: Option<(BlockNo, PoolOffset)>,
    /// Bits of the hash that the nodes of the path take.
    pub(super) bits: u32,
}

/// A block of a trie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TrieBlock {
    Node,
    Bucket,
}

impl<M: Medium> Dir<'_, M> {
    /// Reads the word at `at`: the named block and its kind.
    pub(super) fn named(
        &self,
        batch: Option<&Batch<'_, '_, M>>,
        at: PoolOffset,
    ) -> Result<Option<(TrieBlock, BlockNo)>, Corrupt> {
        let word = self.word(batch, at);
        let structure = "node of a directory";
        let Some(entry) = self.reader.decode(structure, word, at)? else { return Ok(None) };
        match (entry.flags.zero, entry.flags.height) {
            (false, 0) => Ok(Some((TrieBlock::Bucket, entry.block))),
            (false, 1) => Ok(Some((TrieBlock::Node, entry.block))),
            _ => Err(Corrupt::new(structure, at, "it has unknown flags")),
        }
    }

    /// The path to the bucket for `hash`, and the head of the bucket. `None` for a directory without buckets.
    /// With a batch, the path after its changes; a head never changes.
    pub(super) fn head_of(
        &self,
        batch: Option<&Batch<'_, '_, M>>,
        hash: u64,
    ) -> Result<Option<(BucketPath, BucketHead)>, Corrupt> {
        let (mut at, mut node, mut bits) = (self.root_at, None, 0);
        loop {
            match self.named(batch, at)? {
                None if bits == 0 => return Ok(None),
                None => {
                    let what = "a node names a bucket in each of its words";
                    return Err(Corrupt::new("node of a directory", at, what));
                }
                Some((TrieBlock::Bucket, block)) => {
                    let path = BucketPath { bucket: block, named_at: at, node, bits };
                    return self.head_at(&path, hash).map(|head| Some((path, head)));
                }
                Some((TrieBlock::Node, _)) if bits + NODE_BITS >= HASH_BITS => {
                    let what = "the directory has more levels than a hash has bits for";
                    return Err(Corrupt::new("node of a directory", at, what));
                }
                Some((TrieBlock::Node, block)) => {
                    node = Some((block, at));
                    bits += NODE_BITS;
                    let index = hash >> (HASH_BITS - bits) & (BLOCK_WORDS - 1);
                    at = block.offset().plus(8 * index);
                }
            }
        }
    }

    /// The first hash after the range of the damaged word for `hash`; `None` at the end.
    pub(super) fn beyond_damage(&self, hash: u64) -> Option<u64> {
        let (mut at, mut bits) = (self.root_at, 0);
        while let Ok(Some((TrieBlock::Node, block))) = self.named(None, at) {
            if bits + NODE_BITS >= HASH_BITS {
                break;
            }
            bits += NODE_BITS;
            let index = hash >> (HASH_BITS - bits) & (BLOCK_WORDS - 1);
            at = block.offset().plus(8 * index);
        }
        let next = (hash >> (HASH_BITS - bits)) + 1;
        (next >> bits == 0).then(|| next << (HASH_BITS - bits))
    }

    /// The head of the bucket at the end of `path` for `hash`.
    fn head_at(&self, path: &BucketPath, hash: u64) -> Result<BucketHead, Corrupt> {
        // The head repeats owner and range, so a word that leads to a foreign bucket is detected.
        let head = self.head(path.bucket)?;
        let depth = head.header.depth;
        if !head.header.covers(hash) || depth > path.bits || depth + NODE_BITS < path.bits {
            let what = "the bucket is one for other hashes";
            return Err(Corrupt::new("directory bucket", path.bucket.offset(), what));
        }
        Ok(head)
    }

    /// Visits every block of the trie once, with the address of a word that names it, nodes before their
    /// children.
    ///
    /// # Errors
    /// A damaged word, or `on_block`'s.
    pub(crate) fn each_block(&self, on_block: &mut OnBlock<'_>) -> Result<(), Corrupt> {
        match self.named(None, self.root_at)? {
            None => Ok(()),
            Some((kind, block)) => {
                on_block(self.root_at, block)?;
                match kind {
                    TrieBlock::Node => self.each_block_below(block, NODE_BITS, on_block),
                    TrieBlock::Bucket => Ok(()),
                }
            }
        }
    }

    fn each_block_below(
        &self,
        node: BlockNo,
        bits: u32,
        on_block: &mut OnBlock<'_>,
    ) -> Result<(), Corrupt> {
        let mut before = None;
        for index in 0..BLOCK_WORDS {
            let at = node.offset().plus(8 * index);
            let Some((kind, block)) = self.named(None, at)? else {
                let what = "a node names a bucket in each of its words";
                return Err(Corrupt::new("node of a directory", at, what));
            };
            // A bucket with fewer bits than the node takes stands in adjacent words.
            if before == Some(block) {
                continue;
            }
            before = Some(block);
            // Before the descent: a claim refuses a block that was visited before, and so ends a
            // cycle.
            on_block(at, block)?;
            if kind == TrieBlock::Node {
                if bits + NODE_BITS >= HASH_BITS {
                    let what = "the directory has more levels than a hash has bits for";
                    return Err(Corrupt::new("node of a directory", at, what));
                }
                self.each_block_below(block, bits + NODE_BITS, on_block)?;
            }
        }
        Ok(())
    }
}
