//! The consistency schemes that rollback is compared with, and rollback itself, to measure the cost
//! of consistency.
//!
//! Owns their common trait, [`Scheme`], and their making and opening. Each scheme is a file. Its
//! head states the promise after a crash, and cites the source. All work on any [`Medium`], with
//! the pool's allocator, in blocks of 4 KiB and behind one table of a word for each block (`shadow`
//! has a tree, `rollback` its volume's map). All detect changes as the engine of block volumes
//! does, by the same code and setting ([`Delta`]).
//!
//! Two schemes have two versions: as published, and improved. Compare published with published,
//! and best with best.
//!
//! Two modes of durability, by the device contract: a request with `Fua::Yes` is durable when it is
//! answered, any other at the next `flush`. A flush uses the cheapest way of its scheme to
//! durability. A scheme with a log of new data writes the log. Its next checkpoint copies the data
//! in place. A full log causes a checkpoint.
//!
//! Knows nothing of workloads and of how results are shown.

mod block_journal;
mod dirty;
mod front;
mod none;
mod overlay;
mod plant;
mod redo;
mod rollback;
mod rollback_published;
mod shadow;
mod space;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use anyhow::Result;
use everbyte_device::{AtomicWrites, DeviceError};
use everbyte_extent::Delta;
use everbyte_media::Medium;

use self::block_journal::{BlockJournal, Mode};
use self::front::Front;
use self::none::NoConsistency;
use self::redo::{Improved, Published};
use self::rollback::Rollback;
use self::rollback_published::RollbackPublished;
use self::shadow::Shadow;
use self::space::{Layout, Space, check_free_space};
use crate::subject::Counts;

/// A consistency scheme as a device.
pub(crate) trait Scheme: AtomicWrites {
    /// Its name in results.
    fn name(&self) -> &'static str;

    /// Makes everything durable, puts it in place and empties the log.
    ///
    /// # Errors
    /// `Media`.
    fn checkpoint(&self) -> Result<(), DeviceError>;

    /// Returns the counts of operations on its medium since it was opened. Log bytes are written
    /// for recovery to read. They include whole blocks that the redo schemes write to the journal
    /// and then keep as data, as their papers count them. The copies of
    /// shadow paging are not log bytes. The old blocks kept by rollback are not written again, so
    /// they are not log bytes either.
    fn counts(&self) -> Counts;
}

/// A scheme.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Neither consistency nor durability: plain copies.
    Ramfs,
    /// No consistency, but durability when it is asked for.
    None,
    /// Redo logging of differences as published.
    RedoPublished,
    /// The same, improved: fewer fences and bytes.
    RedoImproved,
    /// A journal of blocks of metadata, data in place before.
    JournalOrdered,
    /// A journal of all blocks.
    JournalData,
    /// Short-circuit shadow paging.
    Shadow,
    /// Rollback as published.
    RollbackPublished,
    /// Rollback as the block volume has it.
    Rollback,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::Ramfs,
        Self::None,
        Self::RedoPublished,
        Self::RedoImproved,
        Self::JournalOrdered,
        Self::JournalData,
        Self::Shadow,
        Self::RollbackPublished,
        Self::Rollback,
    ];

    /// Its name in results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ramfs => "ramfs",
            Self::None => "none",
            Self::RedoPublished => "redo-published",
            Self::RedoImproved => "redo-improved",
            Self::JournalOrdered => "block-journal-ordered",
            Self::JournalData => "block-journal-data",
            Self::Shadow => "shadow",
            Self::RollbackPublished => "rollback-published",
            Self::Rollback => "rollback",
        }
    }

    /// Code in the superblock; of rollback, which has a pool's, it is not used.
    fn code(self) -> u64 {
        match self {
            Self::Ramfs => none::RAMFS_CODE,
            Self::None => none::CODE,
            Self::RedoPublished => redo::PUBLISHED_CODE,
            Self::RedoImproved => redo::IMPROVED_CODE,
            Self::JournalOrdered => Mode::Ordered.code(),
            Self::JournalData => Mode::Data.code(),
            Self::Shadow => shadow::CODE,
            Self::RollbackPublished => rollback_published::CODE,
            Self::Rollback => 0,
        }
    }

    /// Bytes that a medium must have for a device of `device_bytes` and a log of `log_bytes`.
    ///
    /// # Errors The size is too small or not a multiple of a block. A log has at least 64 KiB.
    pub(crate) fn medium_bytes(self, device_bytes: u64, log_bytes: u64) -> Result<u64> {
        let layout = Layout::new(self.code(), device_bytes, log_bytes)?;
        Ok(layout.medium_bytes().max(rollback::medium_bytes(device_bytes, log_bytes)))
    }
}

/// Makes an empty device of `device_bytes` with a log of `log_bytes` on `medium`, and opens it;
/// changes are detected as `delta` says.
///
/// # Errors
/// The medium is too small or fails.
pub(crate) fn build<M: Medium>(
    kind: Kind,
    medium: Arc<M>,
    device_bytes: u64,
    log_bytes: u64,
    delta: Delta,
) -> Result<Arc<dyn Scheme>> {
    let layout = Layout::new(kind.code(), device_bytes, log_bytes)?;
    let needed_bytes = kind.medium_bytes(device_bytes, log_bytes)?;
    check_free_space(&*medium, needed_bytes)?;
    match kind {
        Kind::Rollback => Rollback::format(&medium, device_bytes, log_bytes, delta)?,
        _ => Space::format(&*medium, layout)?,
    }
    open(kind, medium, delta)
}

/// Opens the device that `build` has made on `medium`, and recovers it. `rollback` detects changes
/// as it was made to, the others as `delta` says.
///
/// # Errors
/// There is none, or something of it cannot be right.
pub(crate) fn open<M: Medium>(kind: Kind, medium: Arc<M>, delta: Delta) -> Result<Arc<dyn Scheme>> {
    Ok(match kind {
        Kind::Ramfs => Arc::new(Front::new(NoConsistency::open(medium, false, delta)?)),
        Kind::None => Arc::new(Front::new(NoConsistency::open(medium, true, delta)?)),
        Kind::RedoPublished => Arc::new(Front::new(Published::open(medium, delta)?)),
        Kind::RedoImproved => Arc::new(Front::new(Improved::open(medium, delta)?)),
        Kind::JournalOrdered => {
            Arc::new(Front::new(BlockJournal::open(medium, Mode::Ordered, delta)?))
        }
        Kind::JournalData => Arc::new(Front::new(BlockJournal::open(medium, Mode::Data, delta)?)),
        Kind::Shadow => Arc::new(Front::new(Shadow::open(medium, delta)?)),
        Kind::RollbackPublished => Arc::new(Front::new(RollbackPublished::open(medium, delta)?)),
        Kind::Rollback => Arc::new(Rollback::open(&medium)?),
    })
}
