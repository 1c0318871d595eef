//! Who owns which blocks.
//!
//! Owns the trait by which a kind of volume tells the pool what its map holds, and the claims that
//! are made while an allocator is rebuilt or a pool checked. Knows no map.

use std::collections::HashMap;
use std::sync::Arc;

use everbyte_media::{BlockNo, Medium, PoolOffset};

use crate::alloc::{Allocator, BlockRun};
use crate::format::{Corrupt, Descriptor, VolumeKind};

/// A volume as its kind's walker sees it: on the medium, not open.
#[derive(Clone, Copy, Debug)]
pub struct VolumeView<'a> {
    /// What the volume was created as.
    pub descriptor: &'a Descriptor,
    /// Address of its root word.
    pub root_at: PoolOffset,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// First block that a map may name.
    pub data_start: u64,
    /// One beyond the last.
    pub data_end: u64,
}

impl VolumeView<'_> {
    /// Whether a map may name `block`.
    #[must_use]
    pub fn may_name(&self, block: BlockNo) -> bool {
        (self.data_start..self.data_end).contains(&block.0)
    }
}

/// Takes a run of blocks that the word at the given address owns.
pub type Claim<'a> = dyn FnMut(BlockRun, PoolOffset) -> Result<(), Corrupt> + 'a;

/// What a kind of volume must do so that the pool can tell used blocks from free ones.
pub trait BlockOwner<M: Medium>: Send + Sync {
    /// The kind.
    fn kind(&self) -> VolumeKind;

    /// Calls `claim` once for every block or run that the volume's map owns, nodes and tables
    /// included, the log not.
    ///
    /// # Errors
    /// The first thing in the map that cannot be right, or `claim`'s error.
    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt>;
}

/// The walkers of every kind that this program knows.
pub struct Owners<M: Medium>(HashMap<VolumeKind, Arc<dyn BlockOwner<M>>>);

impl<M: Medium> Owners<M> {
    /// A set of walkers; of two for one kind the last counts.
    #[must_use]
    pub fn new(owners: impl IntoIterator<Item = Arc<dyn BlockOwner<M>>>) -> Self {
        Self(owners.into_iter().map(|owner| (owner.kind(), owner)).collect())
    }

    /// Visits the map of the volume in `view` and its log.
    ///
    /// # Errors
    /// As [`BlockOwner::visit`]; also if no walker knows the kind.
    pub(crate) fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let owner = VolumeKind::from_code(view.descriptor.kind)
            .and_then(|kind| self.0.get(&kind))
            .ok_or_else(|| Corrupt::new("volume descriptor", view.root_at, "unknown kind"))?;
        let log = BlockRun {
            start: BlockNo(view.descriptor.log_start),
            len: view.descriptor.log_blocks(),
        };
        claim(log, view.root_at)?;
        owner.visit(medium, view, claim)
    }
}

/// A claim that takes blocks from `alloc`, so that a second owner is noticed.
pub(crate) fn take_from(
    alloc: &Allocator,
    volume: &str,
) -> impl FnMut(BlockRun, PoolOffset) -> Result<(), Corrupt> {
    move |run, owner_at| {
        alloc.take(run).map_err(|error| {
            let what = format!(
                "{} blocks from {} on belong to someone else already ({error})",
                run.len, run.start
            );
            Corrupt::new(format!("map of volume {volume}"), owner_at, what)
        })
    }
}
