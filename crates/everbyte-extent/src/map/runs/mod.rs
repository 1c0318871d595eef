//! Runs: a B+ tree of runs of blocks that lie together, as ext4 and XFS have (Mathur et al., "The New ext4
//! Filesystem", 2007), with nodes whose pairs stand in no order (Chen and Jin, "Persistent B+-Trees in
//! Non-Volatile Main Memory", VLDB 2015), so that none moves to make room for another.
//!
//! A node is a cell of 512 bytes: 32 pairs of a key and a word; a pair whose word is 0 is not used. In the lowest
//! level a key says the first logical block of a run and how many it has, up to 256, and the word names the
//! block of the first. Above, a key says the first block that may be found below, and the word names a node
//! of one level less.
//!
//! Invariants: runs do not overlap; all that lies below a pair begins at its key or later, and ends before the next
//! key; no node is empty. No block has a word of its own, so that a change of one block's place may change words that
//! say where others lie: whoever changes the map keeps everyone else out of the extent.

mod edit;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::format::{Entry, decode_word, encode_word};
use everbyte_pool::{
    Batch, BlockRun, BlockUse, CellSize, Claim, Corrupt, Part, UsedExtent, check_readable,
};

pub(crate) use edit::{Renamed, plan_renamed};

use super::{EntryReader, data_use};
use crate::address::LogicalBlock;

/// Bytes of a node.
const NODE_BYTES: u64 = 512;
/// Words of a node.
const WORDS: usize = 64;
/// Bytes of a pair.
const PAIR_BYTES: u64 = 16;
/// Pairs of a node.
const PAIRS: usize = WORDS / 2;
/// Blocks of the longest run.
const RUN_BLOCKS_MAX: u64 = 1 << LEN_BITS;
/// Bits of a key that say how long a run is.
const LEN_BITS: u32 = 8;
/// Most levels of nodes.
const LEVEL_MAX: u8 = 7;
const BLOCK_BITS: u32 = 40;
const LEVEL_SHIFT: u32 = 42;
const CELL_SHIFT: u32 = 45;

const STRUCTURE: &str = "node of runs";
const EMPTY: &str = "it is empty";

fn wrong(at: PoolOffset, what: impl Into<String>) -> Corrupt {
    Corrupt::new(STRUCTURE, at, what)
}

fn node_size() -> CellSize {
    CellSize::for_bytes(NODE_BYTES).expect("a size of cells")
}

/// The answer of a map of runs about a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InRun {
    /// The block's entry, as it would stand in a word of its own; `None` for a hole.
    pub(crate) entry: Option<Entry>,
    /// The address of the pair that says so, of 16 bytes; `None` for a hole.
    pub(crate) pair_at: Option<PoolOffset>,
    /// Blocks from this one on, itself among them, that are holes as well, or lie one after the other.
    pub(crate) blocks: u64,
}

impl InRun {
    /// The entry of the block that lies so many after this one, fewer than `blocks`.
    pub(crate) fn entry_after(&self, blocks: u64) -> Option<Entry> {
        self.entry.map(|entry| entry_after(entry, blocks))
    }
}

/// A node, by its place and level, of which the lowest is 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Node {
    at: PoolOffset,
    level: u8,
}

impl Node {
    /// The word that names it.
    fn word(self) -> u64 {
        let cell = self.at.0 % BLOCK_U64 / NODE_BYTES;
        encode_word(self.at.block().0 | u64::from(self.level) << LEVEL_SHIFT | cell << CELL_SHIFT)
    }

    /// The node that `word`, which was read at `named_at`, names.
    fn named<M: Medium>(
        entries: &EntryReader<'_, M>,
        word: u64,
        named_at: PoolOffset,
    ) -> Result<Option<Self>, Corrupt> {
        check_readable(entries.medium, STRUCTURE, named_at, 8)?;
        if word == 0 {
            return Ok(None);
        }
        let value = decode_word(word).ok_or_else(|| wrong(named_at, "its check bits are wrong"))?;
        let block = BlockNo(value & ((1 << BLOCK_BITS) - 1));
        let level = u8::try_from(value >> LEVEL_SHIFT & 7).expect("three bits");
        if value >> BLOCK_BITS & 3 != 0 || level == 0 {
            return Err(wrong(named_at, "it has unknown flags"));
        }
        if !entries.data.contains(block) {
            return Err(wrong(named_at, format!("{block} is outside the pool's data")));
        }
        Ok(Some(Self { at: block.offset().plus((value >> CELL_SHIFT) * NODE_BYTES), level }))
    }

    /// The address of the pair in this slot.
    fn pair_at(self, slot: usize) -> PoolOffset {
        self.at.plus(PAIR_BYTES * slot as u64)
    }

    /// The address of the word in this slot.
    fn word_at(self, slot: usize) -> PoolOffset {
        self.pair_at(slot).plus(8)
    }
}

/// A pair that is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    first: u64,
    /// Blocks of a run, at least 1; 1 for the key of a node.
    len: u64,
    word: u64,
}

impl Pair {
    fn end(self) -> u64 {
        self.first + self.len
    }

    fn key(self) -> u64 {
        encode_word(self.first << LEN_BITS | (self.len - 1))
    }

    /// The entry of the first block of a run whose pair this is, at `at`.
    fn entry<M: Medium>(
        self,
        entries: &EntryReader<'_, M>,
        at: PoolOffset,
    ) -> Result<Entry, Corrupt> {
        let entry = entries.decode(self.word, at.plus(8))?;
        let entry = entry.ok_or_else(|| wrong(at, "it names nothing"))?;
        if entry.flags.height != 0 || !entries.data.contains(BlockNo(entry.block.0 + self.len - 1))
        {
            return Err(wrong(at, "no run can lie so"));
        }
        Ok(entry)
    }
}

/// The entry of the block that lies `blocks` after the first one of a run with this entry.
fn entry_after(entry: Entry, blocks: u64) -> Entry {
    Entry { block: BlockNo(entry.block.0 + blocks), ..entry }
}

/// Words of a node, as they will be once `batch` is carried out.
type Words = [u64; WORDS];

fn load_words<M: Medium>(
    medium: &M,
    batch: Option<&Batch<'_, '_, M>>,
    node: Node,
) -> Result<Words, Corrupt> {
    let mut bytes = [0; WORDS * 8];
    medium.read(node.at, &mut bytes);
    check_readable(medium, STRUCTURE, node.at, NODE_BYTES)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    if let Some(batch) = batch {
        batch.put_seen_words(node.at, &mut words);
    }
    Ok(words)
}

/// The pair in a slot, if it is used.
#[inline]
fn pair_in(node: Node, words: &Words, slot: usize) -> Result<Option<Pair>, Corrupt> {
    let (key, word) = (words[2 * slot], words[2 * slot + 1]);
    if word == 0 {
        return Ok(None);
    }
    let key = decode_word(key).ok_or_else(|| wrong(node.pair_at(slot), "no key can be so"))?;
    let len = (key & (RUN_BLOCKS_MAX - 1)) + 1;
    Ok(Some(Pair { first: key >> LEN_BITS, len, word }))
}

/// A pair and the slot in which it stands.
type Placed = (usize, Pair);

/// The pairs of `node`, in the order of their keys, all of which are for blocks of `low .. end`.
fn sorted_pairs(node: Node, words: &Words, (low, end): (u64, u64)) -> Result<Vec<Placed>, Corrupt> {
    let mut pairs = Vec::with_capacity(PAIRS);
    for slot in 0..PAIRS {
        pairs.extend(pair_in(node, words, slot)?.map(|pair| (slot, pair)));
    }
    pairs.sort_unstable_by_key(|(_, pair)| pair.first);
    let (Some((_, first)), Some((_, last))) = (pairs.first(), pairs.last()) else {
        return Err(wrong(node.at, EMPTY));
    };
    let is_apart = pairs.is_sorted_by(|(_, pair), (_, next)| pair.end() <= next.first);
    if !is_apart || first.first < low || last.end() > end {
        return Err(wrong(node.at, "its blocks are others', or overlap"));
    }
    Ok(pairs)
}

/// The pair of the block `block` in a node for blocks before `end`, with its slot, and the first key beyond.
#[inline]
fn search(
    node: Node,
    words: &Words,
    block: u64,
    (low, end): (u64, u64),
) -> Result<(Option<Placed>, u64), Corrupt> {
    let (mut found, mut next, mut is_empty): (Option<Placed>, u64, bool) = (None, end, true);
    for slot in 0..PAIRS {
        let Some(pair) = pair_in(node, words, slot)? else { continue };
        is_empty = false;
        if pair.first < low || pair.first >= end {
            return Err(wrong(node.pair_at(slot), "it is for other blocks"));
        }
        if pair.first > block {
            next = next.min(pair.first);
        } else if found.is_none_or(|(_, before)| before.first < pair.first) {
            found = Some((slot, pair));
        }
    }
    if is_empty {
        return Err(wrong(node.at, EMPTY));
    }
    Ok((found, next))
}

/// Finds out what the tree below `root_at` says of `block`; with a batch, as it will be once that is carried out.
pub(crate) fn look_up<M: Medium>(
    entries: &EntryReader<'_, M>,
    batch: Option<&Batch<'_, '_, M>>,
    root_at: PoolOffset,
    block: u64,
) -> Result<InRun, Corrupt> {
    let root = batch.map_or_else(|| entries.medium.load_word(root_at), |batch| batch.word(root_at));
    let (mut low, mut end) = (0, u64::MAX);
    let hole = |end| Ok(InRun { entry: None, pair_at: None, blocks: end - block });
    let Some(mut node) = Node::named(entries, root, root_at)? else { return hole(end) };
    loop {
        let words = load_words(entries.medium, batch, node)?;
        let (found, next) = search(node, &words, block, (low, end))?;
        let Some((slot, pair)) = found else { return hole(next) };
        if node.level == 1 {
            if pair.end() > next {
                return Err(wrong(node.pair_at(slot), "its blocks are others' as well"));
            }
            if pair.end() <= block {
                return hole(next);
            }
            let entry = pair.entry(entries, node.pair_at(slot))?;
            return Ok(InRun {
                entry: Some(entry_after(entry, block - pair.first)),
                pair_at: Some(node.pair_at(slot)),
                blocks: pair.end() - block,
            });
        }
        (low, end) = (pair.first, next);
        node = child(entries, node, (slot, pair))?;
    }
}

/// The node that a pair of `node`, which is none of the lowest, names.
fn child<M: Medium>(
    entries: &EntryReader<'_, M>,
    node: Node,
    (slot, pair): Placed,
) -> Result<Node, Corrupt> {
    let named_at = node.word_at(slot);
    match Node::named(entries, pair.word, named_at)? {
        Some(below) if below.level + 1 == node.level => Ok(below),
        _ => Err(wrong(named_at, "it names nothing of the level that belongs there")),
    }
}

/// Claims the nodes of the tree below `root_at`, and the blocks that they name.
pub(super) fn visit<M: Medium>(
    entries: &EntryReader<'_, M>,
    root_at: PoolOffset,
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let root = entries.medium.load_word(root_at);
    match Node::named(entries, root, root_at)? {
        None => Ok(()),
        Some(node) => visit_node(entries, (node, root_at), (0, u64::MAX), claim),
    }
}

/// The same of what lies below `node`, which the word at `named_at` names.
fn visit_node<M: Medium>(
    entries: &EntryReader<'_, M>,
    (node, named_at): (Node, PoolOffset),
    (low, end): (u64, u64),
    claim: &mut Claim<'_>,
) -> Result<(), Corrupt> {
    let part = Part::Cell { at: node.at, size: node_size() };
    claim(UsedExtent { part, named_at, holds: BlockUse::Map })?;
    let words = load_words(entries.medium, None, node)?;
    let pairs = sorted_pairs(node, &words, (low, end))?;
    for (place, &(slot, pair)) in pairs.iter().enumerate() {
        if node.level == 1 {
            let entry = pair.entry(entries, node.pair_at(slot))?;
            let run = BlockRun { start: entry.block, len: pair.len };
            let holds = data_use(entry, LogicalBlock(pair.first));
            claim(UsedExtent { part: Part::Blocks(run), named_at: node.word_at(slot), holds })?;
        } else {
            let below = child(entries, node, (slot, pair))?;
            let end = pairs.get(place + 1).map_or(end, |(_, next)| next.first);
            visit_node(entries, (below, node.word_at(slot)), (pair.first, end), claim)?;
        }
    }
    Ok(())
}
