//! A CSB+ tree: a B+ tree with the children of a node adjacent in one group, so a node has one link and more
//! keys. A leaf has a link to a table for each key.
//!
//! A group has space for a power of two of nodes. A new node is appended in place, or after a copy of the
//! full group to one of twice the size. One key publishes it, or one key after the link to the new group. So
//! ascending numbers copy each node about once. Another change makes new groups, up to one word that names
//! the highest of them.
//!
//! Source: Rao and Ross, Making B+-Trees Cache Conscious in Main Memory, SIGMOD 2000. Their groups are copied
//! for each new node, or have their final size from the start. Doubling lies between the two.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Corrupt, check_readable};
use zerocopy::IntoBytes;

use super::arena::{fill, reader_of};
use super::link::Link;
use super::sorted::{
    Entry, EntryNode, Path, SortedTree, check_bounds, count_at_most, key_added, key_words,
    load_keys, split,
};
use super::tree::{Census, Tree};
use crate::error::FsError;
use crate::format::FsSuperblock;
use crate::format::reader::Reader;

/// Default bytes of a node.
pub(super) const NODE_BYTES: u32 = 128;
/// Limit of a group's bytes, so that it fits in a run of blocks.
const GROUP_BYTES_MAX: u64 = 1 << 20;
/// Offset of the keys in a node above the leaves. The link to its group comes before.
const KEYS_AT: u64 = 8;

/// The words of a node.
type Image = Vec<u64>;

/// An open CSB+ tree.
pub(super) struct CsbPlusIndex {
    tree: Tree,
    leaves: EntryNode,
    children_max: usize,
}

/// A node above the leaves.
struct Inner {
    keys: Vec<u32>,
    group: Link,
}

/// The effect of a change on the node above.
enum NodeChange {
    /// No effect.
    Done,
    /// The node below gets this image.
    Node(Image),
    /// The node below has a new right neighbour. The node gets the image `left` if present.
    Beside { left: Option<Image>, key: u32, right: Image },
}

impl CsbPlusIndex {
    /// The tree of the file system whose superblock is at `at`.
    pub(super) fn new(superblock: &FsSuperblock, at: PoolOffset) -> Self {
        let tree = Tree::new("CSB+ index", superblock, at);
        let leaves = EntryNode::new(tree.node_words());
        let children = (2 * (tree.node_words() - 1)).min(GROUP_BYTES_MAX / tree.node_bytes);
        let children_max = usize::try_from(children).expect("children of a node");
        Self { tree, leaves, children_max }
    }

    /// Plans a tree with one table.
    pub(super) fn plan_create<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        first: BlockNo,
    ) -> Result<(), FsError> {
        let leaf = self.leaves.image(&self.tree, &[(0, Link::table(first)?)]);
        let root = self.tree.add(batch, &leaf, 1)?;
        batch.change_word(self.tree.root_at, root.encode());
        Ok(())
    }

    fn key_words(&self) -> u64 {
        self.tree.node_words() - 1
    }

    /// Capacity of a group with so many nodes.
    fn room(&self, nodes: usize) -> usize {
        nodes.next_power_of_two().min(self.children_max)
    }

    /// A node of a group.
    ///
    /// # Errors
    /// It lies outside the pool's data.
    #[inline]
    fn node<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        group: Link,
        place: u64,
    ) -> Result<Link, Corrupt> {
        let at = group.at.plus(place * self.tree.node_bytes);
        if !reader.data.contains(at.block()) {
            return Err(self.tree.corrupt(group.at, "it reaches outside the pool's data"));
        }
        Ok(Link { at, ..group })
    }

    fn load<M: Medium>(&self, reader: Reader<'_, M>, node: Link) -> Result<Inner, Corrupt> {
        let keys = load_keys(&self.tree, reader, node.at.plus(KEYS_AT), self.key_words())?;
        if keys.len() > self.children_max {
            return Err(self.tree.corrupt(node.at, "it has more keys than a group has nodes"));
        }
        let group = self.tree.named(reader, node.at, node.level - 1)?;
        // If both ends of a group lie in the pool's data, all of it does.
        self.node(reader, group, keys.len() as u64 - 1)?;
        Ok(Inner { keys, group })
    }

    /// The words of the first `nodes` nodes of a group.
    fn images<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        group: Link,
        nodes: usize,
    ) -> Result<Vec<Image>, Corrupt> {
        let load = |at: PoolOffset, word| reader.medium.load_word(at.plus(8 * word));
        let bytes = nodes as u64 * self.tree.node_bytes;
        let images = (0..nodes as u64).map(|place| group.at.plus(place * self.tree.node_bytes));
        let images =
            images.map(|at| (0..self.tree.node_words()).map(|word| load(at, word)).collect());
        let images = images.collect();
        check_readable(reader.medium, self.tree.structure, group.at, bytes)?;
        Ok(images)
    }

    fn inner_image(&self, group: Link, keys: &[u32]) -> Image {
        let mut words = vec![group.encode()];
        words.extend(key_words(keys.iter().copied(), self.key_words()));
        words
    }

    /// Plans a group with `nodes` of `level`.
    fn add_group<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        nodes: &[Image],
        level: u32,
    ) -> Result<Link, FsError> {
        let room = self.room(nodes.len()) as u64;
        let at = self.tree.arena.take(batch, room * self.tree.node_bytes)?;
        fill(batch, at, nodes.concat().as_bytes());
        Link::new(at, level)
    }

    /// Plans an entry that is not in the leaf.
    fn plan_leaf<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        leaf: Link,
        (key, table): Entry,
    ) -> Result<NodeChange, FsError> {
        let mut entries = self.leaves.load(&self.tree, reader_of(batch), leaf)?;
        let place = entries.partition_point(|entry| entry.0 < key);
        let image = |entries: &[_]| self.leaves.image(&self.tree, entries);
        if place == entries.len() {
            if place < self.leaves.entries_max {
                self.leaves.plan_append(&self.tree, batch, (leaf, place), (key, table));
                return Ok(NodeChange::Done);
            }
            return Ok(NodeChange::Beside { left: None, key, right: image(&[(key, table)]) });
        }
        entries.insert(place, (key, table));
        if entries.len() <= self.leaves.entries_max {
            return Ok(NodeChange::Node(image(&entries)));
        }
        let (lower, key, upper) = split(entries);
        Ok(NodeChange::Beside { left: Some(image(&lower)), key, right: image(&upper) })
    }

    /// Plans the effect of the `changed` child at `place` on `node`.
    fn plan_inner<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        (node, place): (Link, usize),
        changed: NodeChange,
    ) -> Result<NodeChange, FsError> {
        let reader = reader_of(batch);
        let Inner { mut keys, group } = self.load(reader, node)?;
        let (left, key, right) = match changed {
            NodeChange::Done => return Ok(NodeChange::Done),
            NodeChange::Node(image) => {
                let mut nodes = self.images(reader, group, keys.len())?;
                nodes[place] = image;
                let group = self.add_group(batch, &nodes, group.level)?;
                self.tree.publish(batch, node.at, group.encode());
                return Ok(NodeChange::Done);
            }
            NodeChange::Beside { left, key, right } => (left, key, right),
        };
        if left.is_none() && place + 1 == keys.len() {
            return self.plan_last(batch, node, (&keys, group), (key, right));
        }
        let mut nodes = self.images(reader, group, keys.len())?;
        if let Some(left) = left {
            nodes[place] = left;
        }
        nodes.insert(place + 1, right);
        keys.insert(place + 1, key);
        if nodes.len() <= self.children_max {
            let group = self.add_group(batch, &nodes, group.level)?;
            return Ok(NodeChange::Node(self.inner_image(group, &keys)));
        }
        let (lower, upper) = nodes.split_at(nodes.len() / 2);
        let left = self.add_group(batch, lower, group.level)?;
        let right = self.add_group(batch, upper, group.level)?;
        let (lower, upper) = keys.split_at(lower.len());
        let (left, right) = (self.inner_image(left, lower), self.inner_image(right, upper));
        Ok(NodeChange::Beside { left: Some(left), key: upper[0], right })
    }

    /// Plans a child of `node` after the other children.
    fn plan_last<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        node: Link,
        (keys, group): (&[u32], Link),
        (key, child): (u32, Image),
    ) -> Result<NodeChange, FsError> {
        let count = keys.len();
        if count == self.children_max {
            let group = self.add_group(batch, &[child], group.level)?;
            return Ok(NodeChange::Beside {
                left: None,
                key,
                right: self.inner_image(group, &[key]),
            });
        }
        if count < self.room(count) {
            let at = group.at.plus(count as u64 * self.tree.node_bytes);
            fill(batch, at, child.as_bytes());
        } else {
            let mut nodes = self.images(reader_of(batch), group, count)?;
            nodes.push(child);
            let group = self.add_group(batch, &nodes, group.level)?;
            batch.change_word(node.at, group.encode());
        }
        let (key_at, word) = key_added(batch, node.at.plus(KEYS_AT), count, key);
        self.tree.publish(batch, key_at, word);
        Ok(NodeChange::Done)
    }

    /// Plans the effect of `changed` on the root.
    fn plan_root<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        root: Link,
        changed: NodeChange,
    ) -> Result<(), FsError> {
        let new = match changed {
            NodeChange::Done => return Ok(()),
            NodeChange::Node(image) => self.tree.add(batch, &image, root.level)?,
            NodeChange::Beside { left, key, right } => {
                let mut nodes = match left {
                    Some(left) => vec![left],
                    None => self.images(reader_of(batch), root, 1)?,
                };
                nodes.push(right);
                let group = self.add_group(batch, &nodes, root.level)?;
                self.tree.add(batch, &self.inner_image(group, &[0, key]), root.level + 1)?
            }
        };
        self.tree.publish(batch, self.tree.root_at, new.encode());
        Ok(())
    }
}

impl<M: Medium> SortedTree<M> for CsbPlusIndex {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn leaves(&self) -> EntryNode {
        self.leaves
    }

    #[inline]
    fn child(&self, reader: Reader<'_, M>, node: Link, key: u32) -> Result<(u64, Link), Corrupt> {
        let keys_at = node.at.plus(KEYS_AT);
        let count = count_at_most(reader.medium, keys_at, self.key_words(), key);
        let place = count.saturating_sub(1).min(self.children_max as u64 - 1);
        // After the keys: a reader with a new key then sees the group with its node.
        let group = self.tree.named(reader, node.at, node.level - 1)?;
        check_readable(reader.medium, self.tree.structure, node.at, self.tree.node_bytes)?;
        Ok((place, self.node(reader, group, place)?))
    }

    fn plan_entry(
        &self,
        batch: &mut Batch<'_, '_, M>,
        Path { root, above, leaf }: Path,
        entry: Entry,
    ) -> Result<(), FsError> {
        let mut changed = self.plan_leaf(batch, leaf, entry)?;
        for above in above.into_iter().rev() {
            changed = self.plan_inner(batch, above, changed)?;
        }
        self.plan_root(batch, root, changed)
    }

    fn visit_node(
        &self,
        reader: Reader<'_, M>,
        census: &mut Census,
        (node, named_at): (Link, PoolOffset),
        (low, high): (u32, u32),
    ) -> Result<(), Corrupt> {
        self.tree.meet(census, node.at, named_at)?;
        if node.level == 1 {
            let entries = self.leaves.load(&self.tree, reader, node)?;
            let ends = (entries.first().map(|entry| entry.0), entries.last().map(|entry| entry.0));
            return check_bounds(&self.tree, node.at, ends, (low, high));
        }
        let Inner { keys, group } = self.load(reader, node)?;
        let ends = (keys.first().copied(), keys.last().copied());
        check_bounds(&self.tree, node.at, ends, (low, high))?;
        for (place, &key) in keys.iter().enumerate() {
            let low = if place == 0 { low } else { key };
            let high = keys.get(place + 1).copied().unwrap_or(high);
            let below = self.node(reader, group, place as u64)?;
            self.visit_node(reader, census, (below, node.at), (low, high))?;
        }
        Ok(())
    }
}
