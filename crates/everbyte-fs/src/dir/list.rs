//! Linear directories: buckets one after the other, in any of which a name may be, as PMFS keeps them
//! (Dulloor et al., System Software for Persistent Memory, EuroSys 2014; `pmfs_add_entry`). Who looks a name up reads
//! them all up to the one that has it, and so does who adds one, up to the first with room.
//!
//! The buckets are numbered from 0 on. The word at the directory's root names the only bucket, or, with a
//! height of 1 to 5, a node: a block of 512 words, each of which names a bucket or a node of one level
//! less, filled from the left. A node of height h has the next 512^h buckets.
//!
//! Unlike PMFS, which compares name after name, this has the slots of all buckets: 27 bits of a name's hash
//! say which entries need a look. Like there, no bucket is ever given up before the directory is.
//!
//! A bucket is added by one word: all that lies below it is filled before. Entries stay where they are, so
//! the place of one in a list is the number of its slot, counted through all buckets.

use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::{Batch, Corrupt};

use super::{
    BLOCK_WORDS, DAMAGE_MAX, Dir, FoundEntry, ListedEntry, OnBlock, Shape, bucket_word, node_word,
};
use crate::dentry::file_name::Name;
use crate::error::FsError;
use crate::format::{Bucket, BucketHead, BucketHeader, RawEntry, SLOTS, Slot, SlotFilter};
use crate::plant::Bug;

/// Most levels of nodes.
const HEIGHT_MAX: u8 = 5;
/// Bits of a bucket's number that a node takes.
const NODE_BITS: u32 = BLOCK_WORDS.trailing_zeros();

const STRUCTURE: &str = "node of a directory";

/// The list.
pub(super) struct List;

/// The end of a search for the bucket with a number.
enum Reached {
    /// The block with the bucket.
    Bucket(BlockNo),
    /// No bucket yet: this word is to name what is so many levels above the buckets.
    Hole(PoolOffset, u8),
    /// No bucket yet: the node at the top, of that height, has no word for it.
    Beyond(BlockNo, u8),
}

/// The word that names a block `levels` above the buckets.
fn word_of(block: BlockNo, levels: u8) -> u64 {
    if levels == 0 { bucket_word(block) } else { node_word(block, levels) }
}

/// Buckets below a node of that height.
fn capacity(height: u8) -> u64 {
    1 << (NODE_BITS * u32::from(height))
}

impl<M: Medium> Shape<M> for List {
    fn find(dir: &Dir<'_, M>, name: Name<'_>, hash: u64) -> Result<Option<FoundEntry>, Corrupt> {
        let filter = SlotFilter::new(hash);
        let mut damage = None;
        for number in 0.. {
            let Some(head) = head_of(dir, None, number)? else { break };
            match dir.find_in_all(head, name, filter) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                // The name may be in a later bucket, which is not damaged.
                Err(corrupt) => drop(damage.get_or_insert(corrupt)),
            }
        }
        damage.map_or(Ok(None), Err)
    }

    fn plan_insert(
        dir: &Dir<'_, M>,
        batch: &mut Batch<'_, '_, M>,
        entry: RawEntry,
    ) -> Result<(), FsError> {
        for number in 0.. {
            let Some(head) = head_of(dir, Some(batch), number)? else {
                return plan_bucket(dir, batch, number, &entry);
            };
            let mut bucket = Bucket::unread(head);
            dir.read_for(batch, &mut bucket)?;
            let room = dir.room_in(batch, &bucket, &entry)?;
            if dir.plan_entry(batch, &bucket, &room, &entry) {
                return Ok(());
            }
        }
        Err(FsError::NoSpace)
    }

    fn entries_from(
        dir: &Dir<'_, M>,
        from: u64,
    ) -> Result<(Vec<ListedEntry>, Option<u64>), Corrupt> {
        for number in from / SLOTS as u64.. {
            let Some(head) = head_of(dir, None, number)? else { break };
            let bucket = Bucket::load(dir.reader.medium, head)?;
            let mut entries = Vec::new();
            let start = number * SLOTS as u64;
            for slot in bucket.slots() {
                let (index, slot) = slot?;
                let place = start + index as u64;
                if let (true, Slot::Entry { place: heap, .. }) = (place >= from, slot) {
                    let entry = bucket.head.entry(dir.reader.medium, heap)?;
                    entries.push(ListedEntry { place, entry });
                }
            }
            if !entries.is_empty() {
                return Ok((entries, Some(start + SLOTS as u64)));
            }
        }
        Ok((Vec::new(), None))
    }

    fn salvage_from(
        dir: &Dir<'_, M>,
        from: u64,
        damage: &mut Vec<Corrupt>,
    ) -> (Vec<ListedEntry>, Option<u64>) {
        let mut number = from / SLOTS as u64;
        let number_max = u64::MAX / SLOTS as u64;
        while number < number_max {
            let start = number * SLOTS as u64;
            if damage.len() >= DAMAGE_MAX {
                return (Vec::new(), Some(start.max(from)));
            }
            match head_of(dir, None, number) {
                Ok(None) => break,
                Ok(Some(head)) => {
                    let entries = dir.salvaged(head, damage).into_iter();
                    let listed = entries
                        .map(|(index, entry)| ListedEntry { place: start + index as u64, entry });
                    let entries: Vec<_> = listed.filter(|listed| listed.place >= from).collect();
                    number += 1;
                    if !entries.is_empty() {
                        return (entries, Some(start + SLOTS as u64));
                    }
                }
                Err(corrupt) => {
                    damage.push(corrupt);
                    let Some(next) = beyond_damage(dir, number) else { break };
                    number = next;
                }
            }
        }
        (Vec::new(), None)
    }

    fn each_block(dir: &Dir<'_, M>, on_block: &mut OnBlock<'_>) -> Result<(), Corrupt> {
        match named(dir, None, dir.root_at)? {
            None => Ok(()),
            Some((block, height)) => {
                on_block(dir.root_at, block)?;
                if height > HEIGHT_MAX {
                    return Err(wrong_height(dir.root_at));
                }
                each_block_below(dir, block, height, on_block).map(drop)
            }
        }
    }
}

fn wrong_height(at: PoolOffset) -> Corrupt {
    Corrupt::new(STRUCTURE, at, "it names nothing of the level that belongs there")
}

/// Reads the word at `at`: the block that it names, and how many levels above the buckets that is.
fn named<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    at: PoolOffset,
) -> Result<Option<(BlockNo, u8)>, Corrupt> {
    let word = dir.word(batch, at);
    let Some(entry) = dir.reader.decode(STRUCTURE, word, at)? else { return Ok(None) };
    if entry.flags.zero {
        return Err(Corrupt::new(STRUCTURE, at, "it has unknown flags"));
    }
    Ok(Some((entry.block, entry.flags.height)))
}

/// Goes from the root to the bucket with that number.
fn reach<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    number: u64,
) -> Result<Reached, Corrupt> {
    let Some((mut block, height)) = named(dir, batch, dir.root_at)? else {
        return Ok(Reached::Hole(dir.root_at, 0));
    };
    if height > HEIGHT_MAX {
        return Err(wrong_height(dir.root_at));
    }
    if number >= capacity(height) {
        return Ok(Reached::Beyond(block, height));
    }
    for level in (0..height).rev() {
        let index = number >> (NODE_BITS * u32::from(level)) & (BLOCK_WORDS - 1);
        let at = block.offset().plus(8 * index);
        match named(dir, batch, at)? {
            None => {
                check_end(dir, batch, at, index)?;
                return Ok(Reached::Hole(at, level));
            }
            Some((below, height)) if height == level => block = below,
            Some(_) => return Err(wrong_height(at)),
        }
    }
    Ok(Reached::Bucket(block))
}

/// Checks that the empty word at `at`, the one with that index in its node, may be the end of the list: a node
/// has something, and nothing behind its end.
fn check_end<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    at: PoolOffset,
    index: u64,
) -> Result<(), Corrupt> {
    if index == 0 {
        return Err(Corrupt::new(STRUCTURE, at, "it names nothing"));
    }
    let next = at.plus(8);
    if index + 1 < BLOCK_WORDS && named(dir, batch, next)?.is_some() {
        return Err(after_end(next));
    }
    Ok(())
}

fn after_end(at: PoolOffset) -> Corrupt {
    Corrupt::new(STRUCTURE, at, "it names something after the end")
}

/// The number of the first bucket beyond the word by which the way to the bucket with that number ends in damage, if
/// there can be one.
fn beyond_damage<M: Medium>(dir: &Dir<'_, M>, number: u64) -> Option<u64> {
    let (mut block, height) = named(dir, None, dir.root_at).ok()??;
    if height > HEIGHT_MAX || number >= capacity(height) {
        return None;
    }
    let beyond = |level: u8| {
        let bits = NODE_BITS * u32::from(level);
        let next = ((number >> bits) + 1) << bits;
        (next < capacity(height)).then_some(next)
    };
    for level in (0..height).rev() {
        let index = number >> (NODE_BITS * u32::from(level)) & (BLOCK_WORDS - 1);
        match named(dir, None, block.offset().plus(8 * index)) {
            Ok(Some((below, height))) if height == level => block = below,
            _ => return beyond(level),
        }
    }
    beyond(0)
}

/// The head of the bucket with that number, if there is one.
fn head_of<M: Medium>(
    dir: &Dir<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    number: u64,
) -> Result<Option<BucketHead>, Corrupt> {
    let Reached::Bucket(block) = reach(dir, batch, number)? else { return Ok(None) };
    let head = dir.head(block)?;
    if head.header.prefix != number {
        let what = format!("it is bucket {}, and is named as bucket {number}", head.header.prefix);
        return Err(Corrupt::new("directory bucket", block.offset(), what));
    }
    Ok(Some(head))
}

/// Plans the bucket with that number, the next one, with an entry.
fn plan_bucket<M: Medium>(
    dir: &Dir<'_, M>,
    batch: &mut Batch<'_, '_, M>,
    number: u64,
    entry: &RawEntry,
) -> Result<(), FsError> {
    let header = BucketHeader { prefix: number, ..dir.first_header() };
    let bucket = dir.plan_bucket(batch, header, std::slice::from_ref(entry))?;
    let (at, word) = match reach(dir, Some(batch), number)? {
        Reached::Hole(at, levels) => (at, plan_chain(batch, bucket, levels)?),
        Reached::Beyond(_, HEIGHT_MAX) => return Err(FsError::NoSpace),
        Reached::Beyond(top, height) => {
            let below = plan_chain(batch, bucket, height)?;
            let node = plan_node(batch, &[word_of(top, height), below])?;
            (dir.root_at, word_of(node, height + 1))
        }
        Reached::Bucket(_) => unreachable!("who plans a bucket has found none"),
    };
    if planted(Bug::ListUnlogged) {
        batch.stream(at, &word.to_le_bytes());
    } else {
        batch.change_word(at, word);
    }
    Ok(())
}

/// Plans nodes above `bucket` that have nothing else, and returns the word that names the uppermost, so
/// many levels above the buckets.
fn plan_chain<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    bucket: BlockNo,
    levels: u8,
) -> Result<u64, FsError> {
    let mut word = word_of(bucket, 0);
    for level in 1..=levels {
        word = word_of(plan_node(batch, &[word])?, level);
    }
    Ok(word)
}

/// Plans a node with these words.
fn plan_node<M: Medium>(batch: &mut Batch<'_, '_, M>, words: &[u64]) -> Result<BlockNo, FsError> {
    let block = batch.take_node().ok_or(FsError::NoSpace)?;
    let mut image = Box::new([0; BLOCK]);
    for (place, word) in image.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    batch.stream(block.offset(), &image[..]);
    Ok(block)
}

/// Shows what is below a node, or nothing below a bucket. Returns true if nothing can be behind it.
fn each_block_below<M: Medium>(
    dir: &Dir<'_, M>,
    node: BlockNo,
    height: u8,
    on_block: &mut OnBlock<'_>,
) -> Result<bool, Corrupt> {
    let words = if height == 0 { 0 } else { BLOCK_WORDS };
    let mut is_end = false;
    for index in 0..words {
        let at = node.offset().plus(8 * index);
        match named(dir, None, at)? {
            None => {
                check_end(dir, None, at, index)?;
                is_end = true;
            }
            Some(_) if is_end => return Err(after_end(at)),
            Some((block, below)) if below + 1 == height => {
                on_block(at, block)?;
                is_end = each_block_below(dir, block, below, on_block)?;
            }
            Some(_) => return Err(wrong_height(at)),
        }
    }
    Ok(is_end)
}
