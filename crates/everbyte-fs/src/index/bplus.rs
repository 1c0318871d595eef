//! A B+ tree: sorted keys, a link for each, tables below the leaves.
//!
//! An append to a node takes two words in place. Another change makes new copies of the changed nodes, up to
//! one word that names the highest of them. An append to a full node adds a neighbour and keeps the node. So
//! ascending numbers, the order of tables, leave full nodes and replace none.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Corrupt, check_readable};

use super::arena::reader_of;
use super::link::Link;
use super::sorted::{Entry, EntryNode, Path, SortedTree, check_bounds, split};
use super::tree::{Census, Tree};
use crate::error::FsError;
use crate::format::FsSuperblock;
use crate::format::reader::Reader;

/// Default bytes of a node.
pub(super) const NODE_BYTES: u32 = 256;

/// An open B+ tree.
pub(super) struct BPlusIndex {
    tree: Tree,
    shape: EntryNode,
}

/// The effect of a change on the node above.
enum NodeGrowth {
    /// No effect.
    Done,
    /// The node below was replaced.
    Replaced(Link),
    /// The node below has a new right neighbour. `left` replaces the node if present.
    Beside { left: Option<Link>, right: Entry },
}

impl BPlusIndex {
    /// The tree of the file system whose superblock is at `at`.
    pub(super) fn new(superblock: &FsSuperblock, at: PoolOffset) -> Self {
        let tree = Tree::new("B+ index", superblock, at);
        let shape = EntryNode::new(tree.node_words());
        Self { tree, shape }
    }

    /// Plans a tree with one table.
    pub(super) fn plan_create<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        first: BlockNo,
    ) -> Result<(), FsError> {
        let root = self.add(batch, &[(0, Link::table(first)?)], 1)?;
        batch.change_word(self.tree.root_at, root.encode());
        Ok(())
    }

    fn add<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        entries: &[Entry],
        level: u32,
    ) -> Result<Link, FsError> {
        self.tree.add(batch, &self.shape.image(&self.tree, entries), level)
    }

    /// Plans `entry` at `place` of `node`; the previous entry gets the link `left` if present.
    fn plan_at<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        (node, place): (Link, usize),
        entry: Entry,
        left: Option<Link>,
    ) -> Result<NodeGrowth, FsError> {
        let mut entries = self.shape.load(&self.tree, reader_of(batch), node)?;
        if left.is_none() && place == entries.len() {
            if place < self.shape.entries_max {
                self.shape.plan_append(&self.tree, batch, (node, place), entry);
                // In place: a reader does not see the entry before its key.
                return Ok(NodeGrowth::Done);
            }
            let right = (entry.0, self.add(batch, &[entry], node.level)?);
            return Ok(NodeGrowth::Beside { left: None, right });
        }
        if let Some(left) = left {
            entries[place - 1].1 = left;
        }
        entries.insert(place, entry);
        if entries.len() <= self.shape.entries_max {
            return Ok(NodeGrowth::Replaced(self.add(batch, &entries, node.level)?));
        }
        let (lower, key, upper) = split(entries);
        let left = Some(self.add(batch, &lower, node.level)?);
        let right = (key, self.add(batch, &upper, node.level)?);
        Ok(NodeGrowth::Beside { left, right })
    }

    /// Plans the effect of `grown` on the root.
    fn plan_root<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        root: Link,
        grown: &NodeGrowth,
    ) -> Result<(), FsError> {
        let new = match *grown {
            NodeGrowth::Done => return Ok(()),
            NodeGrowth::Replaced(link) => link,
            NodeGrowth::Beside { left, right } => {
                self.add(batch, &[(0, left.unwrap_or(root)), right], root.level + 1)?
            }
        };
        self.tree.publish(batch, self.tree.root_at, new.encode());
        Ok(())
    }
}

impl<M: Medium> SortedTree<M> for BPlusIndex {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn leaves(&self) -> EntryNode {
        self.shape
    }

    #[inline]
    fn child(&self, reader: Reader<'_, M>, node: Link, key: u32) -> Result<(u64, Link), Corrupt> {
        let place = self.shape.count_at_most(reader.medium, node.at, key).saturating_sub(1);
        check_readable(reader.medium, self.tree.structure, node.at, self.tree.node_bytes)?;
        let place = place.min(self.shape.entries_max as u64 - 1);
        let at = self.shape.link_at(node.at, place);
        Ok((place, self.tree.named(reader, at, node.level - 1)?))
    }

    fn plan_entry(
        &self,
        batch: &mut Batch<'_, '_, M>,
        Path { root, above, leaf }: Path,
        entry: Entry,
    ) -> Result<(), FsError> {
        let place = self.shape.count_at_most(reader_of(batch).medium, leaf.at, entry.0);
        let place = usize::try_from(place).expect("a place in a node");
        let mut grown = self.plan_at(batch, (leaf, place), entry, None)?;
        for (node, place) in above.into_iter().rev() {
            match grown {
                NodeGrowth::Done => return Ok(()),
                NodeGrowth::Replaced(link) => {
                    let at = self.shape.link_at(node.at, place as u64);
                    self.tree.publish(batch, at, link.encode());
                    return Ok(());
                }
                NodeGrowth::Beside { left, right } => {
                    grown = self.plan_at(batch, (node, place + 1), right, left)?;
                }
            }
        }
        self.plan_root(batch, root, &grown)
    }

    fn visit_node(
        &self,
        reader: Reader<'_, M>,
        census: &mut Census,
        (node, named_at): (Link, PoolOffset),
        (low, high): (u32, u32),
    ) -> Result<(), Corrupt> {
        self.tree.meet(census, node.at, named_at)?;
        let entries = self.shape.load(&self.tree, reader, node)?;
        let ends = (entries.first().map(|entry| entry.0), entries.last().map(|entry| entry.0));
        check_bounds(&self.tree, node.at, ends, (low, high))?;
        if node.level == 1 {
            return Ok(());
        }
        for (place, &(key, below)) in entries.iter().enumerate() {
            let low = if place == 0 { low } else { key };
            let high = entries.get(place + 1).map_or(high, |next| next.0);
            let named_at = self.shape.link_at(node.at, place as u64);
            self.visit_node(reader, census, (below, named_at), (low, high))?;
        }
        Ok(())
    }
}
