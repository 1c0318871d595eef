//! The common part of the four trees: the root, and the allocation and check of nodes.

use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::{Batch, Claim, Corrupt};
use zerocopy::IntoBytes;

use super::arena::{Arena, NodeRun, fill};
use super::link::Link;
use crate::error::FsError;
use crate::format::reader::Reader;
use crate::format::{FsSuperblock, INDEX_WORDS_AT};

/// A tree of nodes of one size.
pub(super) struct Tree {
    /// Its name in errors.
    pub(super) structure: &'static str,
    /// The address of the word that names the root.
    pub(super) root_at: PoolOffset,
    /// Bytes of a node, a power of two from 64 to 4096.
    pub(super) node_bytes: u64,
    pub(super) arena: Arena,
}

/// Nodes that a walk through a tree can still meet.
pub(super) struct Census {
    runs: Vec<NodeRun>,
    nodes_left: u64,
}

impl Tree {
    /// The tree of the file system with its superblock at `at`.
    pub(super) fn new(structure: &'static str, superblock: &FsSuperblock, at: PoolOffset) -> Self {
        let words = at.plus(INDEX_WORDS_AT);
        Self {
            structure,
            root_at: words,
            node_bytes: u64::from(superblock.index_node_bytes),
            arena: Arena::new(structure, words.plus(8)),
        }
    }

    /// Words of a node.
    pub(super) fn node_words(&self) -> u64 {
        self.node_bytes / 8
    }

    pub(super) fn corrupt(&self, at: PoolOffset, what: impl Into<String>) -> Corrupt {
        Corrupt::new(self.structure, at, what)
    }

    /// The root.
    ///
    /// # Errors
    /// A missing or damaged root.
    #[inline]
    pub(super) fn root<M: Medium>(&self, reader: Reader<'_, M>) -> Result<Link, Corrupt> {
        let root = Link::load(self.structure, reader, self.root_at)?;
        let root = root.ok_or_else(|| self.corrupt(self.root_at, "it has no root"))?;
        self.checked(root, self.root_at)
    }

    /// The root of a tree without tables as roots.
    ///
    /// # Errors
    /// As [`Self::root`]; the root is a table.
    #[inline]
    pub(super) fn root_node<M: Medium>(&self, reader: Reader<'_, M>) -> Result<Link, Corrupt> {
        let root = self.root(reader)?;
        if root.level == 0 {
            return Err(self.corrupt(self.root_at, "its root is no node"));
        }
        Ok(root)
    }

    /// The link in the word at `at`, which must lead to `level`.
    ///
    /// # Errors
    /// A damaged link.
    #[inline]
    pub(super) fn link<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        at: PoolOffset,
        level: u32,
    ) -> Result<Option<Link>, Corrupt> {
        let Some(link) = Link::load(self.structure, reader, at)? else { return Ok(None) };
        if link.level != level {
            let what = format!("it leads to level {} instead of {level}", link.level);
            return Err(self.corrupt(at, what));
        }
        self.checked(link, at).map(Some)
    }

    /// As [`Tree::link`], for a word that must be a link.
    ///
    /// # Errors
    /// A damaged link.
    #[inline]
    pub(super) fn named<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        at: PoolOffset,
        level: u32,
    ) -> Result<Link, Corrupt> {
        let link = self.link(reader, at, level)?;
        link.ok_or_else(|| self.corrupt(at, "a key leads nowhere"))
    }

    /// A node at a multiple of its size stays within a block.
    #[inline]
    fn checked(&self, link: Link, at: PoolOffset) -> Result<Link, Corrupt> {
        if link.level > 0 && link.at.0 & (self.node_bytes - 1) != 0 {
            return Err(self.corrupt(at, "no node can begin where it leads"));
        }
        Ok(link)
    }

    /// Plans a new node at `level`.
    ///
    /// # Errors
    /// `NoSpace`, `Invalid` if the tree becomes too large, or damaged space.
    pub(super) fn add<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        words: &[u64],
        level: u32,
    ) -> Result<Link, FsError> {
        let link = Link::new(self.arena.take(batch, self.node_bytes)?, level)?;
        fill(batch, link.at, words.as_bytes());
        Ok(link)
    }

    /// Plans the last word of a change, which makes new nodes reachable.
    #[expect(clippy::unused_self, reason = "it is the tree that changes")]
    pub(super) fn publish<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        at: PoolOffset,
        word: u64,
    ) {
        batch.change_word(at, word);
    }

    /// Claims the space of the tree.
    ///
    /// # Errors
    /// Damaged space, or `claim`'s.
    pub(super) fn census<M: Medium>(
        &self,
        reader: Reader<'_, M>,
        claim: &mut Claim<'_>,
    ) -> Result<Census, Corrupt> {
        let runs = self.arena.visit(reader, claim)?;
        let nodes_left = runs.iter().map(|run| run.bytes() / self.node_bytes).sum();
        Ok(Census { runs, nodes_left })
    }

    /// Notes the node at `at`, named by the word at `named_at`, in a walk.
    ///
    /// # Errors
    /// It lies outside the space, or the walk has met more nodes than fit, because two paths lead to one.
    pub(super) fn meet(
        &self,
        census: &mut Census,
        at: PoolOffset,
        named_at: PoolOffset,
    ) -> Result<(), Corrupt> {
        // A linear search, because runs are few.
        if !census.runs.iter().any(|run| run.has(at, self.node_bytes)) {
            return Err(self.corrupt(named_at, "it leads outside the index"));
        }
        let left = census.nodes_left.checked_sub(1);
        census.nodes_left =
            left.ok_or_else(|| self.corrupt(named_at, "it leads to more nodes than there are"))?;
        Ok(())
    }
}
