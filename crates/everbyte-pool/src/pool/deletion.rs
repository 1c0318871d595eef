//! Deleting volumes, damaged ones too.
//!
//! The order: no user is left and nothing of the volume is in an open epoch; the state becomes DELETING, durably; only
//! then are its blocks free for others; then the state becomes FREE. A crash in between leaves either a volume or none,
//! and never two owners of a block.
//!
//! The map of a damaged volume may name blocks of another volume, and free blocks. So a block of it is freed
//! only if a walk of each other volume's map does not find the block, and the allocator does not have it. If
//! a walk fails, the block leaks. All other volumes are quiet from before the first walk until the blocks are
//! freed: otherwise a volume could free a block after the walk of a second volume, and the second volume
//! could get it. A leak is nowhere on the medium but in the saved list of free blocks of a clean shutdown. If
//! the maps contradict that list, a repair drops it, in an update of the superblock. So a crash at any moment
//! leaves at most a leak.

use std::sync::Arc;

use everbyte_media::{BLOCK_U64, BlockNo, Medium};
use everbyte_plant::planted;

use super::volumes::store_state;
use super::{Pool, PoolError};
use crate::alloc::{Allocator, BlockRun};
use crate::format::{Corrupt, VolumeState};
use crate::kind::unknown_kind;
use crate::plant::Bug;
use crate::volume::Volume;

/// Outcome of a deletion of a damaged volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeletedVolume {
    /// The damage, if there was any.
    pub damage: Option<String>,
    /// Blocks of the volume that are free now.
    pub freed_blocks: u64,
    /// Known blocks of the volume without an owner. They are not allocated before a repair.
    pub leaked_blocks: u64,
}

impl<M: Medium> Pool<M> {
    /// Deletes the volume of this name. Its users are refused from now on, and their requests under way end before.
    ///
    /// # Errors
    /// `NoSuchVolume`; the pool is read-only; `Damaged`, and the volume is as it was; the medium's.
    pub fn delete_volume(&self, name: &str) -> Result<(), PoolError> {
        let _admin = self.admin.lock();
        self.writable()?;
        let volume = self.volume(name)?;
        if let Some(reason) = volume.damage() {
            return Err(PoolError::Damaged { volume: name.to_owned(), reason: reason.to_owned() });
        }
        if volume.read_only_reason().is_some() {
            return Err(PoolError::ReadOnly("its volumes cannot be deleted".into()));
        }
        // Before the last checkpoint: no later write may join an epoch.
        self.end_users(&volume);
        let owned = self.end_epochs(&volume).and_then(|()| Ok(self.owned_by(&volume)?));
        let owned = owned.map_err(|error| {
            // Nothing was deleted, so the volume stays in use.
            volume.unmark_gone();
            damaged_or(error, name)
        })?;
        self.end_volume(&volume, owned.free_runs())
    }

    /// Deletes the volume of this name, damaged or not. Frees its blocks as far as its map can be read and no other
    /// volume owns them. The others leak.
    ///
    /// # Errors
    /// `NoSuchVolume`; the pool is read-only for another reason than a block with two owners; this program does not
    /// know the volume's kind; the medium's.
    pub fn delete_damaged_volume(&self, name: &str) -> Result<DeletedVolume, PoolError> {
        let _admin = self.admin.lock();
        // A clash makes the pool read-only. The deletion of one owner resolves it, so it must be
        // possible.
        if self.has_clash() {
            self.check_not_closed()?;
            self.medium().check()?;
        } else {
            self.writable()?;
        }
        let volume = self.volume(name)?;
        if !self.knows_kind(&volume) {
            let reason = unknown_kind(volume.kind());
            return Err(PoolError::Invalid(format!("volume {name}: {reason}")));
        }
        if volume.damage().is_none() && volume.refuses_changes() {
            return Err(PoolError::ReadOnly("its volumes cannot be deleted".into()));
        }
        // First, so no user changes the map during the walk.
        self.end_users(&volume);
        let mut damage = volume.damage().map(str::to_owned);
        // A volume opened read-only took no write, so it has no open epoch.
        if volume.opened_read_only().is_none()
            && let Err(error) = self.end_epochs(&volume)
        {
            damage.get_or_insert(error.to_string());
        }
        let reached = self.reached_from(&volume);
        if let Err(corrupt) = &reached.complete {
            damage.get_or_insert(corrupt.to_string());
        }
        let used_blocks = volume.used_blocks().map(|used| used + volume.descriptor().log_blocks());
        let mut others = self.volumes();
        others.retain(|other| other.header_at != volume.header_at);
        // During the comparison a writer of another volume could attach one of these blocks.
        let _quiet: Vec<_> = others.iter().map(|other| other.quiesce()).collect();
        if !self.without_blocks_of_others(&others, &reached.blocks) {
            // Whose they are is unknown.
            damage.get_or_insert(
                "the blocks of other volumes cannot be told from its own".to_owned(),
            );
            let leaked_blocks = used_blocks.unwrap_or(reached.blocks.free_blocks());
            self.end_volume(&volume, std::iter::empty())?;
            return Ok(DeletedVolume { damage, freed_blocks: 0, leaked_blocks });
        }
        let freed_blocks = reached.blocks.free_blocks();
        self.end_volume(&volume, reached.blocks.free_runs())?;
        let leaked_blocks = used_blocks.unwrap_or(freed_blocks).saturating_sub(freed_blocks);
        Ok(DeletedVolume { damage, freed_blocks, leaked_blocks })
    }

    fn end_users(&self, volume: &Volume<M>) {
        volume.mark_gone();
        // Operations that began before the mark hold the gate. Later ones see the mark.
        drop(volume.quiesce());
        volume.wait_idle();
    }

    /// Completes the open epochs of a volume without users, and returns its preallocated blocks.
    fn end_epochs(&self, volume: &Volume<M>) -> Result<(), PoolError> {
        let completed = {
            let guard = volume.lock_checkpoint();
            volume.begin_checkpoint(&guard).and_then(|pending| pending.finish())
        };
        // Also after a failed checkpoint: no user is left to return them.
        volume.return_preallocated();
        // After the checkpoint: blocks held back by its frees go to the allocator with their last
        // pin.
        volume.end_all_pins();
        Ok(completed.map(drop)?)
    }

    /// Ends a volume without users and with nothing in an open epoch, and frees `runs`.
    fn end_volume(
        &self,
        volume: &Volume<M>,
        runs: impl Iterator<Item = BlockRun>,
    ) -> Result<(), PoolError> {
        let medium = &**self.medium();
        if !planted(Bug::DeleteWithoutState) {
            // The state may be on the medium all the same. It is the volume's until the next opening.
            store_state(medium, volume.header_at, VolumeState::Deleting)
                .inspect_err(|_| volume.unmark_gone())?;
        }
        self.volumes.write().remove(volume.name());
        // Not before: a volume that is still the pool's is closed with a checkpoint.
        volume.retire();
        // Only now: until DELETING is durable, the next opening finds a volume that owns these
        // blocks.
        runs.for_each(|run| self.return_run(run));
        if !planted(Bug::DeleteWithoutState) {
            // Last: a crash before this store leaves DELETING, and the next opening frees the slot.
            store_state(medium, volume.header_at, VolumeState::Free)?;
        }
        Ok(())
    }

    /// The blocks of `volume`, as the free ones of a separate allocator.
    pub(crate) fn owned_by(&self, volume: &Volume<M>) -> Result<Allocator, Corrupt> {
        let reached = self.reached_from(volume);
        reached.complete.map(|()| reached.blocks)
    }

    /// Walks the readable part of the map of `volume`.
    fn reached_from(&self, volume: &Volume<M>) -> Reached {
        let bounds = self.data_bounds();
        let blocks = Allocator::new(bounds.end);
        let complete = self.visit(volume, &mut |extent| {
            let run = extent.run;
            let map = || format!("map of volume {}", volume.name());
            // `blocks` has slots only up to the end of the bounds.
            let is_inside = bounds.contains(&run.start.0) && run.len <= bounds.end - run.start.0;
            if !is_inside {
                let what =
                    format!("{} blocks from {} on are not all the pool's", run.len, run.start);
                return Err(Corrupt::new(map(), extent.named_at, what));
            }
            // A cycle, or a block named twice, shows as a second free here.
            blocks.free_run(run).map_err(|error| {
                let what = format!(
                    "it leads to one of {} blocks from {} on twice ({error})",
                    run.len, run.start
                );
                Corrupt::new(map(), extent.named_at, what)
            })
        });
        Reached { blocks, complete }
    }

    /// Takes from `blocks` the free blocks and the blocks of `others`: all other volumes, quiet. Returns
    /// false if the blocks of the others are not all known.
    fn without_blocks_of_others(&self, others: &[Arc<Volume<M>>], blocks: &Allocator) -> bool {
        // An unknown map may own any of these blocks.
        if self.has_clash() || self.space_unknown().is_some() || !self.lost_headers().is_empty() {
            return false;
        }
        // Afterwards no block waits for being freed outside the maps of its volume.
        let settle =
            |other: &Arc<Volume<M>>| other.opened_read_only().is_none() && other.settle().is_ok();
        if !others.iter().all(settle) {
            return false;
        }
        let are_walked = others.iter().all(|other| {
            let walked = self.visit(other, &mut |extent| {
                let (at, len) = extent.bytes();
                let end = at.0.saturating_add(len).div_ceil(BLOCK_U64);
                take_each(blocks, at.block().0..end);
                Ok(())
            });
            // No map names a freed, pinned block, and it is not free: its pin alone keeps it.
            if other.pins.any() {
                let pinned = blocks.free_runs().flat_map(BlockRun::blocks);
                let pinned: Vec<_> = pinned.filter(|&block| other.pins.holds_back(block)).collect();
                pinned.into_iter().for_each(|block| take_each(blocks, block.0..block.0 + 1));
            }
            walked.is_ok()
        });
        // A damaged map may name free blocks. A second free would give them two owners.
        let free = blocks.free_runs().flat_map(BlockRun::blocks);
        let free: Vec<_> = free.filter(|&block| self.allocator().is_free(block)).collect();
        free.into_iter().for_each(|block| take_each(blocks, block.0..block.0 + 1));
        are_walked
    }

    /// Returns the damage of a volume, if any: the known damage, or the damage found by a walk of its map
    /// now. Writers continue. If the walk finds damage, a concurrent change may be the cause: a second walk
    /// then excludes writers.
    #[must_use]
    pub fn find_damage(&self, volume: &Volume<M>) -> Option<String> {
        if !self.knows_kind(volume) {
            return None;
        }
        if let Some(reason) = volume.damage() {
            return Some(reason.to_owned());
        }
        if volume.is_gone() || !volume.walk_is_due() {
            return None;
        }
        let began = std::time::Instant::now();
        let mut found = self.owned_by(volume).err();
        if found.is_some() {
            let _quiet = volume.quiesce();
            found = self.owned_by(volume).err();
        }
        if found.is_none() {
            volume.note_sound_walk(began);
        }
        found.map(|corrupt| corrupt.to_string())
    }
}

/// Results of a walk of a map.
struct Reached {
    /// The blocks, as the free ones of a separate allocator.
    blocks: Allocator,
    /// The damage at the end of the walk, if it met any.
    complete: Result<(), Corrupt>,
}

/// Takes the blocks of `range` that are free in `blocks`.
fn take_each(blocks: &Allocator, range: std::ops::Range<u64>) {
    // A map without valid bounds may name any block.
    let end = range.end.min(blocks.capacity());
    for block in (range.start..end).map(BlockNo).filter(|&block| blocks.is_free(block)) {
        // It is free, and no other thread takes from it.
        let _taken = blocks.take(BlockRun { start: block, len: 1 });
    }
}

/// The error with the name of the damaged volume, if `error` is damage.
fn damaged_or(error: PoolError, name: &str) -> PoolError {
    match error {
        PoolError::Corrupt(corrupt) => {
            PoolError::Damaged { volume: name.to_owned(), reason: corrupt.to_string() }
        }
        other => other,
    }
}
