//! A radix tree: the bits of a table's number, from the top, choose the slot in each node of the path. It
//! stores no keys; the word 0 is a hole. With one table the root is the table.
//!
//! It grows at the top: a new root has the old one in its first slot. Every change builds the missing nodes
//! and then attaches them by one word, so readers need no lock.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Claim, Corrupt};

use super::TableIndex;
use super::arena::reader_of;
use super::link::Link;
use super::tree::{Census, Tree};
use crate::error::FsError;
use crate::format::FsSuperblock;
use crate::format::reader::Reader;

/// An open radix tree.
pub(super) struct RadixIndex {
    tree: Tree,
    /// Bits of a number for one slot.
    bits: u32,
}

impl RadixIndex {
    /// The tree of the file system whose superblock is at `at`.
    pub(super) fn new(structure: &'static str, superblock: &FsSuperblock, at: PoolOffset) -> Self {
        let tree = Tree::new(structure, superblock, at);
        let bits = tree.node_words().ilog2();
        Self { tree, bits }
    }

    /// Plans a tree with one table.
    pub(super) fn plan_create<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        first: BlockNo,
    ) -> Result<(), FsError> {
        batch.change_word(self.tree.root_at, Link::table(first)?.encode());
        Ok(())
    }

    /// `table` without the bits that choose slots below `level`.
    #[inline]
    fn above(&self, table: u64, level: u32) -> u64 {
        table.checked_shr(self.bits * level).unwrap_or(0)
    }

    /// The slot that `table` has in a node of `level`, from 1 on.
    #[inline]
    fn slot(&self, table: u64, level: u32) -> u64 {
        self.above(table, level - 1) & ((1 << self.bits) - 1)
    }

    /// Plans a node of `level` with these slots.
    fn node<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        level: u32,
        slots: &[(u64, Link)],
    ) -> Result<Link, FsError> {
        let mut words = vec![0; 1 << self.bits];
        for &(slot, link) in slots {
            words[usize::try_from(slot).expect("a slot of a node")] = link.encode();
        }
        self.tree.add(batch, &words, level)
    }

    /// Plans the nodes between `table` and `level`, and returns the highest.
    fn branch<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        (table, block): (u64, BlockNo),
        level: u32,
    ) -> Result<Link, FsError> {
        let mut link = Link::table(block)?;
        for level in 1..=level {
            link = self.node(batch, level, &[(self.slot(table, level), link)])?;
        }
        Ok(link)
    }

    /// Plans a root high enough for `table`, which exceeds the tree.
    fn plan_growth<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        root: Link,
        (table, block): (u64, BlockNo),
    ) -> Result<(), FsError> {
        let mut old = root;
        // A number far above the tree needs several new roots.
        while self.above(table, old.level + 1) > 0 {
            old = self.node(batch, old.level + 1, &[(0, old)])?;
        }
        let level = old.level + 1;
        let new = self.branch(batch, (table, block), old.level)?;
        let top = self.node(batch, level, &[(0, old), (self.slot(table, level), new)])?;
        self.tree.publish(batch, self.tree.root_at, top.encode());
        Ok(())
    }

    fn visit_node<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        census: &mut Census,
        node: Link,
        named_at: PoolOffset,
    ) -> Result<(), Corrupt> {
        self.tree.meet(census, node.at, named_at)?;
        for slot in 0..self.tree.node_words() {
            let at = node.at.plus(8 * slot);
            if let Some(below) = self.tree.link(reader, at, node.level - 1)?
                && below.level > 0
            {
                self.visit_node(reader, census, below, at)?;
            }
        }
        Ok(())
    }
}

impl<M: Medium> TableIndex<M> for RadixIndex {
    fn find(&self, reader: Reader<'_, M>, table: u64) -> Result<Option<PoolOffset>, Corrupt> {
        let mut link = self.tree.root(reader)?;
        // A lower tree cannot contain the number.
        if self.above(table, link.level) > 0 {
            return Ok(None);
        }
        while link.level > 0 {
            let at = link.at.plus(8 * self.slot(table, link.level));
            match self.tree.link(reader, at, link.level - 1)? {
                Some(below) => link = below,
                None => return Ok(None),
            }
        }
        Ok(Some(link.at))
    }

    fn plan_insert(
        &self,
        batch: &mut Batch<'_, '_, M>,
        table: u64,
        block: BlockNo,
    ) -> Result<(), FsError> {
        let reader = reader_of(batch);
        let root = self.tree.root(reader)?;
        if self.above(table, root.level) > 0 {
            return self.plan_growth(batch, root, (table, block));
        }
        let (mut at, mut level) = (self.tree.root_at, root.level);
        let mut node = Some(root);
        while let Some(link) = node.filter(|_| level > 0) {
            at = link.at.plus(8 * self.slot(table, level));
            level -= 1;
            node = self.tree.link(reader, at, level)?;
        }
        let new = self.branch(batch, (table, block), level)?.encode();
        if level > 0 {
            self.tree.publish(batch, at, new)
        } else {
            batch.change_word(at, new)
        }
        Ok(())
    }

    fn visit(&self, reader: Reader<'_, M>, claim: &mut Claim<'_>) -> Result<(), Corrupt> {
        let mut census = self.tree.census(reader, claim)?;
        let root = self.tree.root(reader)?;
        if root.level == 0 {
            return Ok(());
        }
        self.visit_node(reader, &mut census, root, self.tree.root_at)
    }
}
