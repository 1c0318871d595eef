//! The way through a map to the word that a plan changes.
//!
//! Invariant: a plan walks the map as it will be once the plan is carried out.

use everbyte_device::WriteRequest;
use everbyte_media::{BLOCK, BlockNo, Medium, PoolOffset};
use everbyte_pool::plant::{Bug, planted};
use everbyte_pool::{Corrupt, Writer};
use smallvec::SmallVec;

use super::{Few, Plan, PlanError, pieces};
use crate::map::{self, MapKind, Path, Pending};
use crate::volume::BlockVolume;
use crate::write::range_of;

/// Blocks of a plan up to which their entries are fetched ahead.
const EXPECTED_MAX: u64 = 64;

impl<'v> Plan<'v, '_> {
    /// Fetches what the planning of several blocks will look at: the entries of the map, whether the
    /// blocks that they name are fresh, and for those that are not what is logged of the entries. One
    /// after the other, these misses of the cache would take longer than the rest of a plan; here each
    /// step asks for what the next one needs, for all blocks. Of many blocks at once the first ones
    /// would be gone again when they are planned.
    pub(crate) fn expect<'r, M: Medium>(
        &mut self,
        volume: &BlockVolume<M>,
        writer: &Writer<'_, M>,
        requests: impl Iterator<Item = &'r WriteRequest<'r>> + Clone,
    ) {
        let blocks: u64 = requests.clone().map(|request| range_of(request).count).sum();
        self.expects = (2..=EXPECTED_MAX).contains(&blocks);
        if !self.expects {
            return;
        }
        let size_bytes = volume.size_bytes();
        let mut entries: Few<(PoolOffset, bool)> = Few::new();
        let pieces = requests.flat_map(|request| pieces(request.offset, request.data));
        for piece in pieces.filter(|piece| piece.offset() < size_bytes) {
            if let Ok(Path::Entry(at)) = volume.walk(piece.block, None) {
                volume.medium().prefetch(at, 8);
                entries.push((at, piece.data.len() == BLOCK));
            }
        }
        let named = |at| map::load_entry(volume.medium(), at).ok().flatten();
        for &(at, is_whole) in &entries {
            match named(at) {
                Some(entry) if is_whole => volume.volume().expect_retire(entry.block),
                Some(entry) => volume.volume().expect(entry.block.offset(), 0),
                None => {}
            }
        }
        entries.retain(|(at, is_whole)| {
            !(*is_whole && named(*at).is_some_and(|entry| writer.is_fresh(entry.block)))
        });
        entries.iter().for_each(|(at, _)| volume.volume().expect(*at, 8));
        entries.iter().for_each(|(at, _)| volume.volume().expect_record(*at));
    }

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
        self.word_for_write(volume, writer, block, Self::walk)
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
                nodes.push(self.alloc_node(writer).ok_or(PlanError::NoSpace)?);
            }
            let new = map::build_branch(writer, &attach, block, &nodes);
            let old = volume.medium().load_word(attach.at);
            self.change_link(writer, attach.at, old, new);
        }
    }
}

impl<M: Medium> BlockVolume<M> {
    /// Finds the entry of logical block `block`, whose lock the caller holds.
    pub(crate) fn walk(&self, block: u64, pending: Option<&dyn Pending>) -> Result<Path, Corrupt> {
        // Beside bad memory, a node above that cannot be read any more is found by walking.
        if !self.medium().has_bad()
            && let Some(at) = self.leaves.entry(block)
        {
            return Ok(Path::Entry(at));
        }
        let path = self.walk_seeing(block, pending, |_| {})?;
        // A branch that is only planned may be given up.
        if let (Path::Entry(at), None) = (&path, pending) {
            self.leaves.put(block, *at);
        }
        Ok(path)
    }

    /// Walks there, with every node passed shown to `on_node`.
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
