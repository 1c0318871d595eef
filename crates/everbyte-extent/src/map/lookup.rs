//! Looking up the word of a block: in the map, or in the table of checksums.
//!
//! Invariants: a batch reads words with its own planned changes. A missing branch is built under the
//! structure lock. The batch holds that lock until it ends.

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};
use everbyte_pool::{Batch, Corrupt};
use smallvec::SmallVec;

use super::{EntryReader, MapSlot, build_branch, lookup_path};
use crate::address::LogicalBlock;
use crate::error::ExtentError;
use crate::extent::Extent;

impl<M: Medium> Extent<M> {
    /// Reads entries of the extent's map.
    #[inline]
    pub(crate) fn entries(&self) -> EntryReader<'_, M> {
        EntryReader::new(self.medium(), self.volume().data_area())
    }

    /// Finds the entry of `block`. The caller holds its lock.
    #[inline]
    pub(crate) fn look_up(&self, block: LogicalBlock) -> Result<MapSlot, Corrupt> {
        if let Some(at) = self.known_entry(block) {
            return Ok(MapSlot::At(at));
        }
        let path = self.look_up_seeing(block, |_| {})?;
        // Entries next to the root word are in no leaf.
        if let (MapSlot::At(at), true) = (&path, self.is_below_leaf(block)) {
            self.leaves.put(block, *at);
        }
        Ok(path)
    }

    /// Looks it up from the root, and passes every node on the path to `on_node`.
    pub(crate) fn look_up_seeing(
        &self,
        block: LogicalBlock,
        on_node: impl FnMut(BlockNo),
    ) -> Result<MapSlot, Corrupt> {
        self.look_up_map(None, block, on_node)
    }

    /// Finds the slot of the checksum of `block` below `root_at`, with every node passed shown to
    /// `on_node`.
    pub(crate) fn look_up_slot(
        &self,
        root_at: PoolOffset,
        block: BlockNo,
        on_node: impl FnMut(BlockNo),
    ) -> Result<MapSlot, Corrupt> {
        self.look_up_checksum(None, (root_at, block), on_node)
    }

    /// The entry of `block`, if it is known without a lookup.
    #[inline]
    pub(crate) fn known_entry(&self, block: LogicalBlock) -> Option<PoolOffset> {
        // With media errors, only a lookup from the root finds a node above that has become unreadable.
        if self.medium().has_poison() {
            return None;
        }
        match self.first_entries() {
            Some(first) if block.0 < first.count => first.entry(block),
            _ => self.leaves.entry(block),
        }
    }

    /// Returns true if the entry of `block` is in a leaf of the map, and not next to the root word.
    #[inline]
    fn is_below_leaf(&self, block: LogicalBlock) -> bool {
        self.first_entries().is_none_or(|first| block.0 >= first.count)
    }

    fn look_up_map(
        &self,
        batch: Option<&Batch<'_, '_, M>>,
        block: LogicalBlock,
        on_node: impl FnMut(BlockNo),
    ) -> Result<MapSlot, Corrupt> {
        if let Some(at) = self.first_entries().and_then(|first| first.entry(block)) {
            return Ok(MapSlot::At(at));
        }
        let word = |at| self.word_in(batch, at);
        lookup_path(&self.entries(), self.root_at(), block.0, self.size_blocks(), word, on_node)
    }

    fn look_up_checksum(
        &self,
        batch: Option<&Batch<'_, '_, M>>,
        (root_at, block): (PoolOffset, BlockNo),
        on_node: impl FnMut(BlockNo),
    ) -> Result<MapSlot, Corrupt> {
        let word = |at| self.word_in(batch, at);
        let blocks = self.medium().len() / BLOCK_U64;
        lookup_path(&self.entries(), root_at, block.0, blocks, word, on_node)
    }

    /// The word at `at`; with a batch, its value after the batch.
    #[inline]
    fn word_in(&self, batch: Option<&Batch<'_, '_, M>>, at: PoolOffset) -> u64 {
        batch.map_or_else(|| self.medium().load_word(at), |batch| batch.word(at))
    }

    /// The same as [`Extent::look_up`] for a batch, with its own changes.
    pub(crate) fn look_up_in(
        &self,
        batch: &Batch<'_, '_, M>,
        block: LogicalBlock,
    ) -> Result<MapSlot, Corrupt> {
        if let Some(at) = self.known_entry(block) {
            return Ok(MapSlot::At(at));
        }
        let path = self.look_up_map(Some(batch), block, |_| {})?;
        // A branch that is only planned may be abandoned.
        let is_kept = !batch.has_pending_words() && self.is_below_leaf(block);
        if let (MapSlot::At(at), true) = (&path, is_kept) {
            self.leaves.put(block, *at);
        }
        Ok(path)
    }

    /// The address of the entry for `block`. Plans the branch to the entry if it is missing.
    pub(crate) fn entry_for_write<'v>(
        &'v self,
        batch: &mut Batch<'v, '_, M>,
        block: LogicalBlock,
    ) -> Result<PoolOffset, ExtentError> {
        loop {
            match self.look_up_in(batch, block)? {
                MapSlot::At(at) => return Ok(at),
                MapSlot::Missing(attach) => self.attach(batch, block.0, &attach)?,
            }
        }
    }

    /// The same for the slot of the checksum of `block` below `root_at`.
    pub(crate) fn slot_for_write<'v>(
        &'v self,
        batch: &mut Batch<'v, '_, M>,
        root_at: PoolOffset,
        block: BlockNo,
    ) -> Result<PoolOffset, ExtentError> {
        loop {
            match self.look_up_checksum(Some(batch), (root_at, block), |_| {})? {
                MapSlot::At(at) => {
                    self.check_slot(at)?;
                    return Ok(at);
                }
                MapSlot::Missing(attach) => self.attach(batch, block.0, &attach)?,
            }
        }
    }

    /// Plans the missing branch on the way to `number`. The first time, it only locks the tree's shape
    /// instead: another thread may have built the branch before.
    fn attach<'v>(
        &'v self,
        batch: &mut Batch<'v, '_, M>,
        number: u64,
        attach: &super::Attach,
    ) -> Result<(), ExtentError> {
        // Another thread may have attached the branch before it released the lock, so the caller
        // looks again.
        if batch.hold(self.structure()) {
            return Ok(());
        }
        let mut nodes: SmallVec<[BlockNo; 4]> = SmallVec::new();
        for _ in 0..attach.nodes_needed() {
            nodes.push(batch.alloc_node().ok_or(ExtentError::NoSpace)?);
        }
        let word = build_branch(batch, attach, number, &nodes);
        // One logged word attaches the whole branch. The nodes below are durable by the same fence.
        batch.change_word(attach.at, word);
        Ok(())
    }
}
