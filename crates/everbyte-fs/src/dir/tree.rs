//! Directories as B+ trees by the hashes of names (Comer, The Ubiquitous B-Tree, 1979), with buckets as
//! leaves. Names are listed in the order of their hashes.
//!
//! A node is a block of 256 pairs: a key, a checked word with the upper 48 bits of a hash, and a word that
//! names what has the hashes from that key on up to the next one's, a bucket or a node of one level less.
//! Pairs are sorted; those that are not used are zero, at the end. The word at the directory's root names
//! the only bucket, or a node with its height of 1 to 5. The first key of a node is that of the pair that
//! names it, 0 in the uppermost one, and a bucket's head says the lowest key that belongs there.
//!
//! A bucket that is full becomes two new ones of half its entries. Of the node above, up to 16 words
//! change one by one, each with a record; where more would, a new node takes its place; a full node
//! becomes two. Nothing is merged when names go: an empty bucket waits for others of its hashes.

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::{decode_word, encode_word};
use everbyte_pool::{Batch, Corrupt, check_readable};
use smallvec::SmallVec;

use super::room::is_worth_keeping;
use super::{
    BLOCK_WORDS, DAMAGE_MAX, Dir, FoundEntry, ListedEntry, OnBlock, Shape, WORDS_ONE_BY_ONE,
    bucket_word, node_word,
};
use crate::dentry::file_name::Name;
use crate::error::FsError;
use crate::format::{Bucket, BucketHead, BucketHeader, HASH_BITS, RawEntry, first_hash, tree_key};
use crate::plant::Bug;

/// Pairs of a node.
const PAIRS: u64 = BLOCK_WORDS / 2;
/// Bytes of a pair.
const PAIR_BYTES: u64 = 16;
/// Most levels of nodes.
const HEIGHT_MAX: u8 = 5;
/// Rounds after which a bucket with so few hashes that it cannot be cut is given up: each one halves it.
const ROUNDS_MAX: u32 = 16;

const STRUCTURE: &str = "node of a directory";

/// The tree.
pub(super) struct Tree;

/// A node on the way to a bucket.
#[derive(Clone, Copy)]
struct Step {
    node: BlockNo,
    height: u8,
    /// The address of the word that names the node.
    named_at: PoolOffset,
    /// The pair that was taken.
    pair: u64,
}

/// The way to a bucket.
struct Way {
    steps: SmallVec<[Step; HEIGHT_MAX as usize]>,
    bucket: BlockNo,
    /// The address of the word that names it.
    named_at: PoolOffset,
    /// The first key beyond its own, if there is one.
    next: Option<u64>,
}

/// A key and the word beside it.
#[derive(Clone, Copy)]
struct Pair {
    key: u64,
    word: u64,
}

/// The address of the key of a pair, whose word follows.
fn pair_at(node: BlockNo, pair: u64) -> PoolOffset {
    node.offset().plus(PAIR_BYTES * pair)
}

/// The address of the word of a pair.
fn word_at(node: BlockNo, pair: u64) -> PoolOffset {
    pair_at(node, pair).plus(8)
}

impl<M: Medium> Shape<M> for Tree {
    fn find(dir: &Dir<'_, M>, name: Name<'_>, hash: u64) -> Result<Option<FoundEntry>, Corrupt> {
        let Some((_, head)) = way_to(dir, None, tree_key(hash))? else { return Ok(None) };
        dir.find_in(head, name, hash)
    }

    fn plan_insert(
        dir: &Dir<'_, M>,
        batch: &mut Batch<'_, '_, M>,
        mut entry: RawEntry,
    ) -> Result<(), FsError> {
        let hash = entry.hash;
        for _ in 0..ROUNDS_MAX {
            let Some((way, head)) = way_to(dir, Some(batch), tree_key(hash))? else {
                let header = dir.first_header();
                let block = dir.plan_bucket(batch, header, std::slice::from_ref(&entry))?;
                batch.change_word(dir.root_at, bucket_word(block));
                return Ok(());
            };
            let mut bucket = Bucket::unread(head);
            dir.read_for(batch, &mut bucket)?;
            let room = dir.room_in(batch, &bucket, &entry)?;
            entry.hash = hash + room.free_low_bits().ok_or(FsError::NoSpace)?;
            if dir.plan_entry(batch, &bucket, &room, &entry) {
                return Ok(());
            }
            entry.hash = hash;
            plan_room(dir, batch, &way, &bucket)?;
        }
        Err(FsError::NoSpace)
    }

    fn entries_from(
        dir: &Dir<'_, M>,
        from: u64,
    ) -> Result<(Vec<ListedEntry>, Option<u64>), Corrupt> {
        let mut from = Some(from);
        while let Some(hash) = from {
            let Some((way, head)) = way_to(dir, None, tree_key(hash))? else { break };
            let entries = dir.listed(&Bucket::load(dir.reader.medium, head)?, hash)?;
            let is_beyond =
                |listed: &ListedEntry| way.next.is_some_and(|next| tree_key(listed.place) >= next);
            if entries.last().is_some_and(is_beyond) {
                let what = "it has an entry of the next bucket's hashes";
                return Err(Corrupt::new("directory bucket", way.bucket.offset(), what));
            }
            from = way.next.map(first_hash);
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
            let (head, next) = way_past(dir, tree_key(hash), damage);
            let entries = head.map(|head| dir.salvaged_by_hash(head, hash, damage));
            from = next.map(first_hash);
            // An entry of another bucket's hashes is listed there or not at all.
            let is_own =
                |listed: &ListedEntry| next.is_none_or(|next| tree_key(listed.place) < next);
            let entries: Vec<_> = entries.into_iter().flatten().filter(is_own).collect();
            if !entries.is_empty() {
                return (entries, from);
            }
        }
        (Vec::new(), None)
    }

    fn each_block(dir: &Dir<'_, M>, on_block: &mut OnBlock<'_>) -> Result<(), Corrupt> {
        match named(dir, None, dir.root_at)? {
            None => Ok(()),
            Some((block, height)) => {
                on_block(dir.root_at, block)?;
                each_block_below(dir, (block, height), (0, None), on_block)
            }
        }
    }
}

fn wrong(at: PoolOffset, what: &str) -> Corrupt {
    Corrupt::new(STRUCTURE, at, what)
}

/// Reads the word at `at`: the block that it names, and its height.
fn named<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    at: PoolOffset,
) -> Result<Option<(BlockNo, u8)>, Corrupt> {
    let word = dir.word(batch, at);
    let Some(entry) = dir.reader.decode(STRUCTURE, word, at)? else { return Ok(None) };
    if entry.flags.zero || entry.flags.height > HEIGHT_MAX {
        return Err(wrong(at, "it has unknown flags"));
    }
    Ok(Some((entry.block, entry.flags.height)))
}

/// The key in a pair. Means nothing if the pair is not used.
fn key_of<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    (node, pair): (BlockNo, u64),
) -> Result<u64, Corrupt> {
    let at = pair_at(node, pair);
    check_readable(dir.reader.medium, STRUCTURE, at, 8)?;
    decode_word(dir.word(batch, at)).ok_or_else(|| wrong(at, "no key can be so"))
}

/// The number of the first pair for which `is_beyond` is true, of pairs for which it is false and then
/// true.
fn first_pair(mut is_beyond: impl FnMut(u64) -> Result<bool, Corrupt>) -> Result<u64, Corrupt> {
    let (mut low, mut high) = (0, PAIRS);
    while low < high {
        let middle = u64::midpoint(low, high);
        if is_beyond(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(low)
}

/// Pairs of a node that are used.
fn used_pairs<M: Medium>(
    dir: &Dir<'_, M>,
    batch: &Batch<'_, '_, M>,
    node: BlockNo,
) -> Result<u64, Corrupt> {
    first_pair(|pair| Ok(dir.word(Some(batch), word_at(node, pair)) == 0))
}

/// Goes from the root to the bucket for a key, and reads its head; `None` if the directory has no bucket.
/// With a batch, as they will be once that is carried out.
fn way_to<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    key: u64,
) -> Result<Option<(Way, BucketHead)>, Corrupt> {
    let mut named_at = dir.root_at;
    let Some((mut block, mut height)) = named(dir, batch, named_at)? else { return Ok(None) };
    let (mut low, mut next, mut steps) = (0, None, SmallVec::new());
    while height > 0 {
        let beyond = first_pair(|pair| {
            Ok(dir.word(batch, word_at(block, pair)) == 0
                || key_of(dir, batch, (block, pair))? > key)
        })?;
        let first = key_of(dir, batch, (block, 0))?;
        let Some(pair) = beyond.checked_sub(1).filter(|_| first == low) else {
            return Err(wrong(block.offset(), "it is a node for other hashes"));
        };
        if beyond + 1 < PAIRS
            && dir.word(batch, word_at(block, beyond)) == 0
            && dir.word(batch, word_at(block, beyond + 1)) != 0
        {
            return Err(wrong(
                word_at(block, beyond),
                "it names nothing, and the next pair something",
            ));
        }
        if beyond < PAIRS && dir.word(batch, word_at(block, beyond)) != 0 {
            next = Some(key_of(dir, batch, (block, beyond))?);
        }
        steps.push(Step { node: block, height, named_at, pair });
        named_at = word_at(block, pair);
        low = key_of(dir, batch, (block, pair))?;
        match named(dir, batch, named_at)? {
            Some((below, level)) if level + 1 == height => (block, height) = (below, level),
            _ => return Err(wrong(named_at, "it names nothing of the level that belongs there")),
        }
    }
    let head = dir.head(block)?;
    if head.header.prefix != low {
        let what = "the bucket is one for other hashes";
        return Err(Corrupt::new("directory bucket", block.offset(), what));
    }
    Ok(Some((Way { steps, bucket: block, named_at, next }, head)))
}

/// Goes from the root to the bucket for a key past damaged pairs, which are noted. Returns the bucket's head, if it
/// can be read, and the first key that another readable pair has.
fn way_past<M: Medium>(
    dir: &Dir<'_, M>,
    key: u64,
    damage: &mut Vec<Corrupt>,
) -> (Option<BucketHead>, Option<u64>) {
    let mut next = None;
    let mut way = || -> Result<Option<BucketHead>, Corrupt> {
        let Some((mut block, mut height)) = named(dir, None, dir.root_at)? else { return Ok(None) };
        let mut low = 0;
        while height > 0 {
            let mut chosen = None;
            let mut unread = Vec::new();
            for pair in 0..PAIRS {
                match key_of(dir, None, (block, pair)) {
                    _ if dir.word(None, word_at(block, pair)) == 0 => {}
                    Ok(first) if first > key => {
                        next = Some(first);
                        break;
                    }
                    Ok(first) => {
                        chosen = Some((pair, first));
                        unread.clear();
                    }
                    Err(corrupt) => unread.push(corrupt),
                }
            }
            // They are between the chosen pair and the next one, and so are noted once.
            damage.append(&mut unread);
            let Some((pair, first)) = chosen else {
                return Err(wrong(block.offset(), "it is a node for other hashes"));
            };
            let at = word_at(block, pair);
            low = first;
            match named(dir, None, at)? {
                Some((below, level)) if level + 1 == height => (block, height) = (below, level),
                _ => return Err(wrong(at, "it names nothing of the level that belongs there")),
            }
        }
        let head = dir.head(block)?;
        if head.header.prefix != low {
            let what = "the bucket is one for other hashes";
            return Err(Corrupt::new("directory bucket", block.offset(), what));
        }
        Ok(Some(head))
    };
    let head = way();
    let head = head.unwrap_or_else(|corrupt| {
        damage.push(corrupt);
        None
    });
    (head, next)
}

/// Plans room in the bucket at the end of `way`: a new one without what was removed, or two.
fn plan_room<M: Medium>(
    dir: &Dir<'_, M>,
    batch: &mut Batch<'_, '_, M>,
    way: &Way,
    bucket: &Bucket,
) -> Result<(), FsError> {
    let mut entries = dir.entries_of(bucket)?;
    let header = bucket.head.header;
    if is_worth_keeping(&entries) {
        let new = dir.plan_bucket(batch, header, &entries)?;
        batch.change_word(way.named_at, bucket_word(new));
    } else {
        entries.sort_unstable_by_key(|entry| entry.hash);
        let cut = cut_of(&entries).ok_or(FsError::NoSpace)?;
        let key = tree_key(entries[cut].hash);
        let low = dir.plan_bucket(batch, header, &entries[..cut])?;
        let upper = BucketHeader { prefix: key, ..header };
        let high = dir.plan_bucket(batch, upper, &entries[cut..])?;
        let new = Pair { key, word: bucket_word(high) };
        plan_pair(dir, batch, &way.steps, bucket_word(low), (new, 1))?;
    }
    batch.give(way.bucket);
    Ok(())
}

/// The number of entries, sorted, that stay in the lower of two buckets: near half of them, so that none
/// after them has a key of theirs.
fn cut_of(entries: &[RawEntry]) -> Option<usize> {
    let key = |index: usize| tree_key(entries[index].hash);
    let cuts = (1..entries.len()).filter(|&cut| key(cut - 1) != key(cut));
    cuts.min_by_key(|cut| cut.abs_diff(entries.len() / 2))
}

/// Plans that what the last of `steps` led to is named by the word `low` instead, and what `new` says by a
/// pair after it. Both are one level below a node of that height.
fn plan_pair<M: Medium>(
    dir: &Dir<'_, M>,
    batch: &mut Batch<'_, '_, M>,
    steps: &[Step],
    low: u64,
    (new, height): (Pair, u8),
) -> Result<(), FsError> {
    let Some((step, above)) = steps.split_last() else {
        if height > HEIGHT_MAX {
            return Err(FsError::NoSpace);
        }
        let node = plan_node(batch, &[Pair { key: 0, word: low }, new])?;
        let word = node_word(node, height);
        if planted(Bug::SplitUnlogged) {
            batch.stream(dir.root_at, &word.to_le_bytes());
        } else {
            batch.change_word(dir.root_at, word);
        }
        return Ok(());
    };
    let used = used_pairs(dir, batch, step.node)?;
    let is_full = used == PAIRS;
    let words = 3 + 2 * (used - step.pair - 1);
    if !is_full && words <= WORDS_ONE_BY_ONE {
        plan_words(dir, batch, step, low, new)?;
        return Ok(());
    }
    let mut pairs = Vec::with_capacity(usize::try_from(PAIRS).expect("256") + 1);
    for pair in 0..used {
        let key = key_of(dir, Some(batch), (step.node, pair))?;
        if pair == step.pair {
            pairs.extend([Pair { key, word: low }, new]);
        } else {
            pairs.push(Pair { key, word: batch.word(word_at(step.node, pair)) });
        }
    }
    if is_full {
        let (lower, upper) = pairs.split_at(pairs.len() / 2);
        let word = node_word(plan_node(batch, lower)?, step.height);
        let key = upper[0].key;
        let upper = Pair { key, word: node_word(plan_node(batch, upper)?, step.height) };
        plan_pair(dir, batch, above, word, (upper, step.height + 1))?;
    } else {
        let node = plan_node(batch, &pairs)?;
        batch.change_word(step.named_at, node_word(node, step.height));
    }
    batch.give(step.node);
    Ok(())
}

/// Plans the same in place: the pairs that follow make room, word by word.
fn plan_words<M: Medium>(
    dir: &Dir<'_, M>,
    batch: &mut Batch<'_, '_, M>,
    step: &Step,
    low: u64,
    new: Pair,
) -> Result<(), Corrupt> {
    let mut pairs: SmallVec<[Pair; 8]> = SmallVec::new();
    pairs.push(new);
    for pair in step.pair + 1..used_pairs(dir, batch, step.node)? {
        let key = key_of(dir, Some(batch), (step.node, pair))?;
        pairs.push(Pair { key, word: batch.word(word_at(step.node, pair)) });
    }
    batch.change_word(word_at(step.node, step.pair), low);
    for (pair, Pair { key, word }) in (step.pair + 1..).zip(pairs) {
        let (at, key) = (pair_at(step.node, pair), encode_word(key));
        if planted(Bug::PairsUnlogged) {
            batch.stream(at, &[key.to_le_bytes(), word.to_le_bytes()].concat());
            continue;
        }
        batch.change_word(at, key);
        batch.change_word(at.plus(8), word);
    }
    Ok(())
}

/// Plans a node with these pairs.
fn plan_node<M: Medium>(batch: &mut Batch<'_, '_, M>, pairs: &[Pair]) -> Result<BlockNo, FsError> {
    let block = batch.take_node().ok_or(FsError::NoSpace)?;
    let mut image = Box::new([0; BLOCK]);
    for (place, pair) in image.chunks_exact_mut(16).zip(pairs) {
        place[..8].copy_from_slice(&encode_word(pair.key).to_le_bytes());
        place[8..].copy_from_slice(&pair.word.to_le_bytes());
    }
    batch.stream(block.offset(), &image[..]);
    Ok(block)
}

/// Shows what lies below a block of that height, whose keys begin with `low` and end before `end`.
fn each_block_below<M: Medium>(
    dir: &Dir<'_, M>,
    (block, height): (BlockNo, u8),
    (low, end): (u64, Option<u64>),
    on_block: &mut OnBlock<'_>,
) -> Result<(), Corrupt> {
    if height == 0 {
        return Ok(());
    }
    let mut pairs: Vec<(u64, BlockNo)> = Vec::new();
    for pair in 0..PAIRS {
        let at = word_at(block, pair);
        match named(dir, None, at)? {
            None if dir.reader.medium.load_word(pair_at(block, pair)) == 0 => continue,
            Some((below, level)) if level + 1 == height && pairs.len() as u64 == pair => {
                pairs.push((key_of(dir, None, (block, pair))?, below));
            }
            _ => return Err(wrong(at, "it names nothing of the level that belongs there")),
        }
    }
    let is_sorted = pairs.is_sorted_by(|(key, _), (next, _)| key < next);
    let ends = pairs.last().is_some_and(|(last, _)| end.is_none_or(|end| *last < end));
    if !is_sorted || !ends || pairs[0].0 != low {
        return Err(wrong(block.offset(), "it is a node for other hashes"));
    }
    for (pair, &(key, below)) in pairs.iter().enumerate() {
        let end = pairs.get(pair + 1).map(|(key, _)| *key).or(end);
        on_block(word_at(block, pair as u64), below)?;
        each_block_below(dir, (below, height - 1), (key, end), on_block)?;
    }
    Ok(())
}
