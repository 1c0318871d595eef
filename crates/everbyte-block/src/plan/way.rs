//! The way through a map to the word that a plan changes.
//!
//! Invariant: a plan walks the map as it will be once the plan is carried out.

use everbyte_media::{BlockNo, Medium, PoolOffset};
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::{Corrupt, Writer};
use smallvec::SmallVec;

use super::{Plan, PlanError};
use crate::map::{self, MapKind, Path, Pending};
use crate::volume::BlockVolume;

/// Where the entry of a block is that a plan will ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedEntry {
    pub(crate) block: u64,
    pub(crate) at: PoolOffset,
    /// Whether all of the block is written.
    pub(crate) is_whole: bool,
}

/// Entries that were looked up before a plan asks for them, in the order in which it will. They are
/// there still: branches are only added beside them and above, and a node is unlinked only by who
/// locks every block below.
#[derive(Default)]
pub(crate) struct ExpectedEntries {
    entries: SmallVec<[ExpectedEntry; 2]>,
    /// How many were asked for.
    taken: usize,
}

impl ExpectedEntries {
    pub(crate) fn new(entries: SmallVec<[ExpectedEntry; 2]>) -> Self {
        Self { entries, taken: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place of the entry for `block`, if it is the next one.
    fn take(&mut self, block: u64) -> Option<PoolOffset> {
        let entry = self.entries.get(self.taken).filter(|entry| entry.block == block)?;
        self.taken += 1;
        Some(entry.at)
    }
}

impl<'v> Plan<'v, '_> {
    pub(super) fn walk<M: Medium>(
        &self,
        volume: &BlockVolume<M>,
        block: u64,
    ) -> Result<Path, Corrupt> {
        volume.walk(block, self.pending())
    }

    fn pending(&self) -> Option<&dyn Pending> {
        if self.links.is_empty() { None } else { Some(&self.links) }
    }

    /// The address of the entry for `block`, with the branch that leads to it planned if it is
    /// missing.
    pub(super) fn entry_for_write<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: u64,
    ) -> Result<PoolOffset, PlanError> {
        match self.expected.take(block) {
            Some(at) => Ok(at),
            None => self.word_for_write(volume, writer, block, Self::walk),
        }
    }

    /// The same for the slot of the checksum of `block`.
    pub(super) fn slot_for_write<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: BlockNo,
    ) -> Result<PoolOffset, PlanError> {
        let at = self.word_for_write(volume, writer, block.0, |plan, volume, block| {
            volume.walk_slots(BlockNo(block), plan.pending(), |_| {})
        })?;
        volume.check_slot(at)?;
        Ok(at)
    }

    /// The address of the word to which `walk` leads for `block`, in either tree.
    fn word_for_write<M: Medium>(
        &mut self,
        volume: &'v BlockVolume<M>,
        writer: &mut Writer<'_, M>,
        block: u64,
        walk: impl Fn(&Self, &BlockVolume<M>, u64) -> Result<Path, Corrupt>,
    ) -> Result<PoolOffset, PlanError> {
        loop {
            let attach = match walk(self, volume, block)? {
                Path::Entry(at) => return Ok(at),
                Path::Missing(attach) => attach,
            };
            if self.structure.is_none() && !planted(Bug::BranchUnlocked) {
                // Somebody may have built the branch before we got the lock: look again.
                self.hold_structure(volume);
                continue;
            }
            let mut nodes: SmallVec<[BlockNo; 4]> = SmallVec::new();
            for _ in 0..attach.nodes_needed() {
                nodes.push(self.alloc(writer).ok_or(PlanError::NoSpace)?);
            }
            let new = map::build_branch(writer, &attach, block, &nodes);
            let old = volume.medium().load_word(attach.at);
            self.change_link(writer, attach.at, old, new);
        }
    }
}

impl<M: Medium> BlockVolume<M> {
    /// Walks to the entry of logical block `block`.
    pub(crate) fn walk(&self, block: u64, pending: Option<&dyn Pending>) -> Result<Path, Corrupt> {
        self.walk_seeing(block, pending, |_| {})
    }

    /// The same, with every node passed shown to `on_node`.
    pub(crate) fn walk_seeing(
        &self,
        block: u64,
        pending: Option<&dyn Pending>,
        on_node: impl FnMut(BlockNo),
    ) -> Result<Path, Corrupt> {
        let root_at = self.volume().root_at();
        match self.map_kind() {
            MapKind::Radix => {
                map::walk(self.medium(), root_at, block, self.size_blocks(), pending, on_node)
            }
            MapKind::Direct => {
                let root = map::load_entry(self.medium(), root_at)?.ok_or_else(|| {
                    Corrupt::new("volume root", root_at, "a direct map has no table")
                })?;
                Ok(Path::Entry(map::slot_at(root.block, block)))
            }
        }
    }
}
