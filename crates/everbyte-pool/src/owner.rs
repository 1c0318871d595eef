//! Who owns which blocks.
//!
//! Owns the trait by which a kind of volume tells the pool what its map holds, and the claims that
//! are made while an allocator is rebuilt or a pool checked. Knows no map.

use std::collections::HashMap;
use std::sync::Arc;

use everbyte_media::{BlockNo, Medium, PoolOffset};

use crate::alloc::{Allocator, BlockRun};
use crate::format::{CHECKSUM_ROOT_AT, Corrupt, Descriptor, ROOT_AT, VolumeKind};

/// A volume as its kind's walker sees it: on the medium, not open.
#[derive(Clone, Copy, Debug)]
pub struct VolumeView<'a> {
    /// What the volume was created as.
    pub descriptor: &'a Descriptor,
    /// Address of its root word.
    pub root_at: PoolOffset,
    /// Address of the root word of its checksums.
    pub checksum_root_at: PoolOffset,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// First block that a map may name.
    pub data_start: u64,
    /// One beyond the last.
    pub data_end: u64,
}

impl<'a> VolumeView<'a> {
    /// The volume with this descriptor and size, whose header is at `header_at`, in a pool whose
    /// data blocks are `data`.
    pub(crate) fn new(
        descriptor: &'a Descriptor,
        header_at: PoolOffset,
        size_bytes: u64,
        data: std::ops::Range<u64>,
    ) -> Self {
        Self {
            descriptor,
            root_at: header_at.plus(ROOT_AT),
            checksum_root_at: header_at.plus(CHECKSUM_ROOT_AT),
            size_bytes,
            data_start: data.start,
            data_end: data.end,
        }
    }

    /// Whether a map may name `block`.
    #[must_use]
    pub fn may_name(&self, block: BlockNo) -> bool {
        (self.data_start..self.data_end).contains(&block.0)
    }
}

/// What blocks are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// Undo records.
    Log,
    /// Nodes or a table of a map.
    Map,
    /// Checksums of data.
    Checksums,
    /// The volume's bytes from this offset on.
    Data {
        /// First byte of the volume that lies here.
        offset: u64,
    },
    /// Nothing yet: the volume reads zeroes from this offset on.
    Reserved {
        /// First byte of the volume that the blocks are kept for.
        offset: u64,
    },
}

impl std::fmt::Display for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log => f.write_str("the log"),
            Self::Map => f.write_str("the map"),
            Self::Checksums => f.write_str("the checksums"),
            Self::Data { offset } => write!(f, "the data at byte {offset}"),
            Self::Reserved { offset } => write!(f, "the space kept for byte {offset}"),
        }
    }
}

/// A run of blocks with an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// The blocks.
    pub run: BlockRun,
    /// Address of the word that names them.
    pub named_at: PoolOffset,
    /// What they are used for.
    pub holds: Holds,
}

/// Takes a run of blocks for the volume that is being visited.
pub type Claim<'a> = dyn FnMut(Claimed) -> Result<(), Corrupt> + 'a;

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
        claim(Claimed { run: log, named_at: view.root_at, holds: Holds::Log })?;
        owner.visit(medium, view, claim)
    }
}

/// A claim that takes blocks from `alloc`, so that a second owner is noticed.
pub(crate) fn take_from(
    alloc: &Allocator,
    volume: &str,
) -> impl FnMut(Claimed) -> Result<(), Corrupt> {
    move |Claimed { run, named_at, .. }| {
        alloc.take(run).map_err(|error| {
            let what = format!(
                "{} blocks from {} on belong to someone else already ({error})",
                run.len, run.start
            );
            Corrupt::new(format!("map of volume {volume}"), named_at, what)
        })
    }
}
