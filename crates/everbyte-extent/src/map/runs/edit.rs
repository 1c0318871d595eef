//! Changes of a map of runs, planned.
//!
//! Of a node that stays up to 16 words change one by one, each with a record unless the node is fresh; more only where there is
//! no space. Else, and where there are too many pairs, new nodes are filled before the fence, which nothing reaches before,
//! and words of the node above change.

use everbyte_media::{LineMask, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::Entry;
use everbyte_pool::plant::Bug;
use everbyte_pool::{Batch, Corrupt};

use super::{
    LEVEL_MAX, NODE_BYTES, Node, PAIR_BYTES, PAIRS, Pair, Placed, RUN_BLOCKS_MAX, WORDS, Words,
    child, entry_after, load_words, node_size, sorted_pairs,
};
use crate::address::LogicalBlock;
use crate::error::ExtentError;
use crate::extent::Extent;

/// Words of a node that change one by one; more are another node.
const WORDS_ONE_BY_ONE: usize = 16;

/// A block whose entry becomes another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renamed {
    /// The block.
    pub(crate) block: LogicalBlock,
    /// Its new entry, as it would stand in a word of its own; `None` for a hole.
    pub(crate) entry: Option<Entry>,
}

/// Plans that the map of `extent` says what `renamed` does. The caller keeps everyone else out of the extent.
///
/// # Errors
/// The pool is full, or the map corrupt; some of it is planned then.
pub(crate) fn plan_renamed<M: Medium>(
    extent: &Extent<M>,
    batch: &mut Batch<'_, '_, M>,
    renamed: &mut [Renamed],
) -> Result<(), ExtentError> {
    renamed.sort_unstable_by_key(|renamed| renamed.block);
    let entries = extent.entries();
    let root_at = extent.root_at();
    let word = batch.word(root_at);
    let (mut tops, mut level) = match Node::named(&entries, word, root_at)? {
        Some(node) => (update(extent, batch, (node, 0, u64::MAX), renamed)?, node.level),
        None => (new_nodes(batch, 1, &changed(extent, root_at, &[], renamed)?)?, 1),
    };
    while tops.len() > 1 {
        level += 1;
        if level > LEVEL_MAX {
            return Err(ExtentError::NoSpace);
        }
        tops = new_nodes(batch, level, &tops)?;
    }
    let new = tops.first().map_or(0, |top| top.word);
    if new != word {
        batch.change_word(root_at, new);
    }
    Ok(())
}

/// Plans what becomes of `node` and all below it, which are for blocks of `low .. end`. Returns pairs that name what
/// takes its place: none if nothing is left.
fn update<M: Medium>(
    extent: &Extent<M>,
    batch: &mut Batch<'_, '_, M>,
    (node, low, end): (Node, u64, u64),
    renamed: &[Renamed],
) -> Result<Vec<Pair>, ExtentError> {
    let words = load_words(extent.medium(), Some(batch), node)?;
    let old = sorted_pairs(node, &words, (low, end))?;
    let new = if node.level == 1 {
        changed(extent, node.at, &old, renamed)?
    } else {
        let mut new = Vec::with_capacity(old.len() + 1);
        let mut rest = renamed;
        for (place, &(slot, pair)) in old.iter().enumerate() {
            let next = old.get(place + 1).map_or(u64::MAX, |(_, next)| next.first);
            let (here, later) = rest.split_at(rest.partition_point(|one| one.block.0 < next));
            rest = later;
            if here.is_empty() {
                new.push(pair);
                continue;
            }
            let below = child(&extent.entries(), node, (slot, pair))?;
            let mut below = update(extent, batch, (below, pair.first, end.min(next)), here)?;
            if let Some(first) = below.first_mut() {
                first.first = first.first.min(pair.first);
            }
            new.extend(below);
        }
        new
    };
    plan_node(batch, node, (&words, &old), &new)
}

/// Plans that `node` has the pairs `new`, or that other nodes have them. Returns pairs that name those.
fn plan_node<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    node: Node,
    (words, old): (&Words, &[Placed]),
    new: &[Pair],
) -> Result<Vec<Pair>, ExtentError> {
    // What only follows fills this node, and what is left over goes to others.
    let is_beyond = new.len() > PAIRS && new[old.len() - 1].first == old[old.len() - 1].1.first;
    let (here, beyond) = new.split_at(if is_beyond { PAIRS } else { new.len() });
    if !here.is_empty() && here.len() <= PAIRS {
        let image = placed(words, old, here);
        let changes = (0..WORDS).filter(|&word| image[word] != words[word]).count();
        let stays = Pair { first: here[0].first, len: 1, word: node.word() };
        if changes <= WORDS_ONE_BY_ONE || is_fresh(batch, node) {
            plan_words(batch, node, (words, &image));
            let beyond = new_nodes(batch, node.level, beyond)?;
            return Ok([stays].into_iter().chain(beyond).collect());
        }
        if beyond.is_empty() {
            return match new_nodes(batch, node.level, here) {
                // Who takes space away needs none.
                Err(ExtentError::NoSpace) => {
                    plan_words(batch, node, (words, &image));
                    Ok(vec![stays])
                }
                named => {
                    batch.give_cell(node.at, node_size());
                    named
                }
            };
        }
    }
    let named = new_nodes(batch, node.level, new)?;
    batch.give_cell(node.at, node_size());
    Ok(named)
}

/// Plans that a node which has `words` stays, with those of `image`.
fn plan_words<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    node: Node,
    (words, image): (&Words, &Words),
) {
    for word in (0..WORDS).filter(|&word| image[word] != words[word]) {
        let at = node.at.plus(8 * word as u64);
        if planted(Bug::RunsUnlogged) {
            batch.stream(at, &image[word].to_le_bytes());
        } else {
            batch.change_word(at, image[word]);
        }
    }
}

/// Returns true if no undo relies on any word of `node`.
fn is_fresh<M: Medium>(batch: &Batch<'_, '_, M>, node: Node) -> bool {
    let bytes = usize::try_from(NODE_BYTES).expect("512");
    let lines = LineMask::covering(node.at.in_block(), bytes);
    lines.without(batch.writer().logged(node.at.block())).is_empty()
}

/// The words of a node that has `old` pairs and is to have `new` ones, at most as many as fit: a pair stays where one
/// with its first block is, and others go where none is any more.
fn placed(words: &Words, old: &[Placed], new: &[Pair]) -> Words {
    let mut image = *words;
    let mut is_kept = [false; PAIRS];
    let mut homeless = Vec::new();
    for pair in new {
        match old.binary_search_by_key(&pair.first, |(_, old)| old.first) {
            Ok(place) => {
                let slot = old[place].0;
                is_kept[slot] = true;
                (image[2 * slot], image[2 * slot + 1]) = (pair.key(), pair.word);
            }
            Err(_) => homeless.push(*pair),
        }
    }
    let mut homeless = homeless.into_iter();
    for slot in (0..PAIRS).filter(|&slot| !is_kept[slot]) {
        match homeless.next() {
            Some(pair) => (image[2 * slot], image[2 * slot + 1]) = (pair.key(), pair.word),
            // A key of a pair that is not used means nothing.
            None => image[2 * slot + 1] = 0,
        }
    }
    image
}

/// Plans nodes of `level` with these pairs, of about the same number each. Returns pairs that name them.
fn new_nodes<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    level: u8,
    pairs: &[Pair],
) -> Result<Vec<Pair>, ExtentError> {
    let nodes = pairs.len().div_ceil(PAIRS);
    let mut named = Vec::with_capacity(nodes);
    for pairs in pairs.chunks(pairs.len().div_ceil(nodes.max(1)).max(1)) {
        let at = batch.take_cell(node_size()).ok_or(ExtentError::NoSpace)?;
        let mut image = [0; WORDS * 8];
        for (place, pair) in image.chunks_exact_mut(16).zip(pairs) {
            place[..8].copy_from_slice(&pair.key().to_le_bytes());
            place[8..].copy_from_slice(&pair.word.to_le_bytes());
        }
        batch.stream(at, &image);
        named.push(Pair { first: pairs[0].first, len: 1, word: Node { at, level }.word() });
    }
    Ok(named)
}

/// The runs of a lowest node at `at` with the pairs `old` once its blocks are `renamed`.
fn changed<M: Medium>(
    extent: &Extent<M>,
    at: PoolOffset,
    old: &[Placed],
    renamed: &[Renamed],
) -> Result<Vec<Pair>, Corrupt> {
    let entries = extent.entries();
    let mut runs = Runs::default();
    let mut rest = renamed;
    for &(slot, pair) in old {
        // Blocks before the run, then those of it, between which parts of it stay.
        let before = rest.partition_point(|one| one.block.0 < pair.first);
        rest[..before].iter().for_each(|one| runs.push_renamed(one));
        rest = &rest[before..];
        let within = rest.partition_point(|one| one.block.0 < pair.end());
        let (here, later) = rest.split_at(within);
        rest = later;
        let entry = pair.entry(&entries, at.plus(PAIR_BYTES * slot as u64))?;
        let mut from = pair.first;
        for one in here {
            runs.push(from, one.block.0 - from, entry_after(entry, from - pair.first));
            runs.push_renamed(one);
            from = one.block.0 + 1;
        }
        runs.push(from, pair.end() - from, entry_after(entry, from - pair.first));
    }
    rest.iter().for_each(|one| runs.push_renamed(one));
    Ok(runs
        .0
        .into_iter()
        .map(|(first, len, entry)| Pair { first, len, word: entry.encode() })
        .collect())
}

/// Runs in order, each with its first block, its length and the entry of its first block.
#[derive(Default)]
struct Runs(Vec<(u64, u64, Entry)>);

impl Runs {
    fn push_renamed(&mut self, renamed: &Renamed) {
        if let Some(entry) = renamed.entry {
            self.push(renamed.block.0, 1, entry);
        }
    }

    /// Adds `len` blocks from `first` on, to the last run if they go on where it ends.
    fn push(&mut self, first: u64, len: u64, entry: Entry) {
        if len == 0 {
            return;
        }
        if let Some((before, blocks, begins)) = self.0.last_mut()
            && *before + *blocks == first
            && *blocks + len <= RUN_BLOCKS_MAX
            && entry_after(*begins, *blocks) == entry
        {
            *blocks += len;
            return;
        }
        self.0.push((first, len, entry));
    }
}

#[cfg(test)]
mod tests {
    use everbyte_media::BlockNo;

    use super::*;

    fn runs(parts: &[(u64, u64, u64)]) -> Vec<(u64, u64, u64)> {
        let mut runs = Runs::default();
        for &(first, len, block) in parts {
            runs.push(first, len, Entry::data(BlockNo(block)));
        }
        runs.0.into_iter().map(|(first, len, entry)| (first, len, entry.block.0)).collect()
    }

    #[test]
    fn blocks_that_go_on_where_a_run_ends_make_it_longer_up_to_256() {
        assert_eq!(runs(&[(5, 3, 70), (8, 2, 73)]), [(5, 5, 70)]);
        assert_eq!(runs(&[(5, 3, 70), (8, 2, 74)]), [(5, 3, 70), (8, 2, 74)]);
        assert_eq!(runs(&[(5, 3, 70), (9, 2, 73)]), [(5, 3, 70), (9, 2, 73)]);
        assert_eq!(runs(&[(0, 250, 10), (250, 6, 260)]), [(0, 256, 10)]);
        assert_eq!(runs(&[(0, 250, 10), (250, 7, 260)]), [(0, 250, 10), (250, 7, 260)]);
        assert_eq!(runs(&[(0, 0, 10)]), []);
    }

    #[test]
    fn pairs_that_stay_keep_their_slots_and_others_take_those_that_are_free() {
        let pair = |first, len, word| Pair { first, len, word };
        let mut words = [0; WORDS];
        let old = [(3, pair(10, 4, 1)), (0, pair(20, 4, 2)), (7, pair(30, 4, 3))];
        for (slot, pair) in old {
            (words[2 * slot], words[2 * slot + 1]) = (pair.key(), pair.word);
        }
        let new = [pair(10, 2, 1), pair(12, 1, 9), pair(13, 1, 8), pair(30, 4, 3)];
        let image = placed(&words, &old, &new);
        let slot = |slot: usize| (image[2 * slot], image[2 * slot + 1]);
        assert_eq!(slot(3), (new[0].key(), 1));
        assert_eq!((slot(0), slot(1)), ((new[1].key(), 9), (new[2].key(), 8)));
        assert_eq!(slot(7), (new[3].key(), 3));
        let changed = (0..WORDS).filter(|&word| image[word] != words[word]).count();
        assert_eq!(changed, 5, "a length, and two pairs");
    }
}
