//! Trees of nodes with sorted keys: search, leaves, and the common part of both trees.
//!
//! Keys are numbers of tables in 32 bits, two in a word. Unused keys are all ones and come last. One word
//! appends a key, after the stores below it: before, no reader sees them. So a lookup needs no lock and reads
//! keys before links.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Claim, Corrupt, check_readable};

use super::TableIndex;
use super::arena::reader_of;
use super::link::Link;
use super::tree::{Census, Tree};
use crate::error::FsError;
use crate::format::reader::Reader;

/// The unused key.
const UNUSED: u32 = u32::MAX;
const UNUSED_WORD: u64 = u64::MAX;
/// Words in the final linear search: a line. Halving comes before it.
const LINEAR_WORDS: u64 = 8;

/// The key of a table; `None` beyond the range of keys.
fn key_of(table: u64) -> Option<u32> {
    u32::try_from(table).ok().filter(|&key| key != UNUSED)
}

#[inline]
fn halves(word: u64) -> [u32; 2] {
    let low = u32::try_from(word & u64::from(u32::MAX)).expect("half a word");
    let high = u32::try_from(word >> 32).expect("half a word");
    [low, high]
}

/// Number of keys at most `key` in `words` words from `keys_at` on. Free of branches on keys.
#[inline]
pub(super) fn count_at_most<M: Medium>(
    medium: &M,
    keys_at: PoolOffset,
    words: u64,
    key: u32,
) -> u64 {
    let (mut first, mut len) = (0, words);
    while len > LINEAR_WORDS {
        let half = len / 2;
        let [low, _] = halves(medium.load_word(keys_at.plus(8 * (first + half))));
        first += half * u64::from(low <= key);
        len -= half;
    }
    (first..first + len).fold(2 * first, |count, word| {
        let [low, high] = halves(medium.load_word(keys_at.plus(8 * word)));
        count + u64::from(low <= key) + u64::from(high <= key)
    })
}

/// Reads the keys in `words` words from `keys_at` on.
///
/// # Errors
/// There is no key, or the keys do not ascend.
pub(super) fn load_keys<M: Medium>(
    tree: &Tree,
    reader: Reader<'_, M>,
    keys_at: PoolOffset,
    words: u64,
) -> Result<Vec<u32>, Corrupt> {
    let load = |word| halves(reader.medium.load_word(keys_at.plus(8 * word)));
    let mut keys: Vec<u32> = (0..words).flat_map(load).collect();
    check_readable(reader.medium, tree.structure, keys_at, 8 * words)?;
    let used = keys.iter().position(|&key| key == UNUSED).unwrap_or(keys.len());
    // A used key behind an unused one would be invisible to lookups.
    if keys[used..].iter().any(|&key| key != UNUSED) || !keys[..used].is_sorted_by(|a, b| a < b) {
        return Err(tree.corrupt(keys_at, "its keys are out of order"));
    }
    if used == 0 {
        return Err(tree.corrupt(keys_at, "a node has no keys"));
    }
    keys.truncate(used);
    Ok(keys)
}

/// The words with `keys`.
pub(super) fn key_words(keys: impl Iterator<Item = u32>, words: u64) -> Vec<u64> {
    let mut all = vec![UNUSED_WORD; usize::try_from(words).expect("words of a node")];
    for (index, key) in keys.enumerate() {
        let shift = index % 2 * 32;
        all[index / 2] = all[index / 2] & !(u64::from(UNUSED) << shift) | u64::from(key) << shift;
    }
    all
}

/// The address and the new value of the word that appends `key` to the first `count` keys.
pub(super) fn key_added<M: Medium>(
    batch: &Batch<'_, '_, M>,
    keys_at: PoolOffset,
    count: usize,
    key: u32,
) -> (PoolOffset, u64) {
    let at = keys_at.plus(count as u64 / 2 * 8);
    let shift = count % 2 * 32;
    (at, batch.word(at) & !(u64::from(UNUSED) << shift) | u64::from(key) << shift)
}

/// An entry of a node: a key and its link.
pub(super) type Entry = (u32, Link);

/// The layout of a node with keys first and then a link for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EntryNode {
    /// Limit of entries.
    pub(super) entries_max: usize,
    key_words: u64,
}

impl EntryNode {
    /// The layout of nodes of so many words, with as many entries as fit.
    pub(super) fn new(node_words: u64) -> Self {
        let entries = 2 * node_words / 3;
        let entries_max = usize::try_from(entries).expect("entries of a node");
        Self { entries_max, key_words: entries.div_ceil(2) }
    }

    /// Number of keys of `node` at most `key`.
    #[inline]
    pub(super) fn count_at_most<M: Medium>(self, medium: &M, node: PoolOffset, key: u32) -> u64 {
        count_at_most(medium, node, self.key_words, key)
    }

    /// The address of a link of `node`.
    #[inline]
    pub(super) fn link_at(self, node: PoolOffset, index: u64) -> PoolOffset {
        node.plus(8 * (self.key_words + index))
    }

    /// The address of the table with `key` in `leaf`; `None` if absent.
    ///
    /// # Errors
    /// A damaged leaf.
    #[inline]
    fn find<M: Medium>(
        self,
        tree: &Tree,
        reader: Reader<'_, M>,
        leaf: PoolOffset,
        key: u32,
    ) -> Result<Option<PoolOffset>, Corrupt> {
        // The key before the link: a writer stores them in the other order.
        let place = self.place_of(reader.medium, leaf, key);
        check_readable(reader.medium, tree.structure, leaf, 8 * self.key_words)?;
        let Some(place) = place.filter(|&place| place < self.entries_max as u64) else {
            return Ok(None);
        };
        tree.named(reader, self.link_at(leaf, place), 0).map(|link| Some(link.at))
    }

    /// The place of `key` in `leaf`.
    #[inline]
    fn place_of<M: Medium>(self, medium: &M, leaf: PoolOffset, key: u32) -> Option<u64> {
        let place = self.count_at_most(medium, leaf, key).checked_sub(1)?;
        let word = halves(medium.load_word(leaf.plus(place / 2 * 8)));
        (word[usize::from(place % 2 == 1)] == key).then_some(place)
    }

    /// Reads all entries of `node`.
    ///
    /// # Errors
    /// Damaged entries.
    pub(super) fn load<M: Medium>(
        self,
        tree: &Tree,
        reader: Reader<'_, M>,
        node: Link,
    ) -> Result<Vec<Entry>, Corrupt> {
        let keys = load_keys(tree, reader, node.at, self.key_words)?;
        if keys.len() > self.entries_max {
            return Err(tree.corrupt(node.at, "it has more keys than links"));
        }
        let link = |index| tree.named(reader, self.link_at(node.at, index), node.level - 1);
        keys.into_iter().zip(0..).map(|(key, index)| Ok((key, link(index)?))).collect()
    }

    /// A node with `entries`.
    pub(super) fn image(self, tree: &Tree, entries: &[Entry]) -> Vec<u64> {
        let mut words = key_words(entries.iter().map(|(key, _)| *key), self.key_words);
        words.extend(entries.iter().map(|(_, link)| link.encode()));
        words.resize(usize::try_from(tree.node_words()).expect("words of a node"), 0);
        words
    }

    /// Plans `entry` after the first `count` entries of `node`, which has space.
    pub(super) fn plan_append<M: Medium>(
        self,
        tree: &Tree,
        batch: &mut Batch<'_, '_, M>,
        (node, count): (Link, usize),
        (key, link): Entry,
    ) {
        let (key_at, key_word) = key_added(batch, node.at, count, key);
        // The link first: the key makes the entry visible.
        batch.change_word(self.link_at(node.at, count as u64), link.encode());
        if link.level > 0 {
            tree.publish(batch, key_at, key_word);
        } else {
            batch.change_word(key_at, key_word);
        }
    }
}

/// A tree of nodes with sorted keys. Its leaves have a link to a table for each key.
pub(super) trait SortedTree<M: Medium>: Send + Sync {
    /// The root, and the space of the nodes.
    fn tree(&self) -> &Tree;

    /// The shape of the leaves.
    fn leaves(&self) -> EntryNode;

    /// The child of `node`, above the leaves, for `key`, and its place. The first key is not a bound.
    ///
    /// # Errors
    /// A damaged node.
    fn child(&self, reader: Reader<'_, M>, node: Link, key: u32) -> Result<(u64, Link), Corrupt>;

    /// Plans an entry that is not in the leaf.
    ///
    /// # Errors
    /// `NoSpace`, or a damaged node.
    fn plan_entry(
        &self,
        batch: &mut Batch<'_, '_, M>,
        path: Path,
        entry: Entry,
    ) -> Result<(), FsError>;

    /// Checks the nodes below `node` with keys in these bounds, and adds them to `census`.
    ///
    /// # Errors
    /// A damaged node.
    fn visit_node(
        &self,
        reader: Reader<'_, M>,
        census: &mut Census,
        node: (Link, PoolOffset),
        bounds: (u32, u32),
    ) -> Result<(), Corrupt>;
}

/// The nodes from a root to a leaf.
pub(super) struct Path {
    pub(super) root: Link,
    /// Nodes above the leaf, from the root on, with the place of the next node.
    pub(super) above: Vec<(Link, usize)>,
    pub(super) leaf: Link,
}

/// An index that is a sorted tree.
pub(super) struct SortedIndex<T>(pub(super) T);

impl<M: Medium, T: SortedTree<M>> TableIndex<M> for SortedIndex<T> {
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt> {
        let Some(key) = key_of(table) else { return Ok(None) };
        let mut node = self.0.tree().root_node(reader)?;
        // Levels fall on every step, so damage cannot trap the walk.
        while node.level > 1 {
            node = self.0.child(reader, node, key)?.1;
        }
        self.0.leaves().find(self.0.tree(), reader, node.at, key)
    }

    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError> {
        let key = key_of(table).ok_or(FsError::NoInodes { max: u64::from(u32::MAX) })?;
        let (reader, table) = (reader_of(batch), Link::table(block)?);
        let root = self.0.tree().root_node(reader)?;
        let (mut leaf, mut above) = (root, Vec::new());
        while leaf.level > 1 {
            let (place, below) = self.0.child(reader, leaf, key)?;
            above.push((leaf, usize::try_from(place).expect("a place in a node")));
            leaf = below;
        }
        if let Some(place) = self.0.leaves().place_of(reader.medium, leaf.at, key) {
            batch.change_word(self.0.leaves().link_at(leaf.at, place), table.encode());
            return Ok(());
        }
        self.0.plan_entry(batch, Path { root, above, leaf }, (key, table))
    }

    fn visit(&self, reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        let mut census = self.0.tree().census(reader, claim)?;
        let root = (self.0.tree().root_node(reader)?, self.0.tree().root_at);
        self.0.visit_node(reader, &mut census, root, (0, u32::MAX))
    }
}

/// The entries in two halves, with the first key of the upper half.
pub(super) fn split(mut entries: Vec<Entry>) -> (Vec<Entry>, u32, Vec<Entry>) {
    let upper = entries.split_off(entries.len() / 2);
    (entries, upper[0].0, upper)
}

/// Checks that keys lie in `low .. high`.
///
/// # Errors
/// A key outside.
pub(super) fn check_bounds(
    tree: &Tree,
    at: PoolOffset,
    keys: (Option<u32>, Option<u32>),
    (low, high): (u32, u32),
) -> Result<(), Corrupt> {
    if keys.0.is_some_and(|key| key < low) || keys.1.is_some_and(|key| key >= high) {
        return Err(tree.corrupt(at, format!("it has keys outside {low} to {high}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use everbyte_crash::SimMedium;

    use super::*;

    #[test]
    fn node_has_space_for_its_entries() {
        for (words, entries) in [(8, 5), (16, 10), (32, 21), (64, 42), (128, 85), (512, 341)] {
            let shape = EntryNode::new(words);
            assert_eq!(shape.entries_max, entries);
            let end = shape.link_at(PoolOffset(0), entries as u64).0;
            assert!(end <= 8 * words && end + 16 > 8 * words, "{words}");
        }
    }

    #[test]
    fn key_count_matches_a_linear_count() {
        let medium = SimMedium::new(1 << 14);
        for words in [1, 2, 7, 8, 9, 11, 31, 170, 511] {
            for used in (0..=2 * words).rev() {
                let keys: Vec<u32> = (0..used).map(|n| 3 * n + 5).collect();
                let words = u64::from(words);
                for (word, place) in key_words(keys.iter().copied(), words).into_iter().zip(0..) {
                    medium.store_word(PoolOffset(8 * place), word);
                }
                for key in [0, 4, 5, 6, 8, used, 3 * used + 1, UNUSED - 1] {
                    let expected = keys.iter().filter(|&&other| other <= key).count() as u64;
                    assert_eq!(count_at_most(&medium, PoolOffset(0), words, key), expected);
                }
            }
        }
    }
}
