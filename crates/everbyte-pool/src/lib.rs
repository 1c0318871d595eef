//! The pool: a medium shared by volumes, with one consistency scheme under all of them.
//!
//! Owns the format, allocation, the rollback log, epochs, recovery and the check. Everything is
//! generic over the medium, so that the same code runs on memory and under the crash explorer.
//! Knows volumes' maps only through their kinds. `docs/crash-model.md` argues the protocol.
//!
//! # Example
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("pool");
//! use everbyte_media::MediaOptions;
//! use everbyte_pool::file::{CreateOptions, create, open_locked};
//! use everbyte_pool::{Kinds, OpenOptions};
//!
//! create(&path, &CreateOptions { len_bytes: Some(16 << 20), ..CreateOptions::default() })?;
//! // `everbyte_block::kinds()` instead of none lets the pool have block volumes.
//! let pool = open_locked(&path, &MediaOptions::new(), Kinds::new([]), &OpenOptions::default())?;
//! assert!(pool.recovery().was_clean);
//! assert!(pool.check()?.is_clean());
//! pool.close()?; // marks the pool clean; dropped without, it is recovered when it is opened next
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where to look
//! To use pools:
//! - [`mod@file`]: pools in files and devices: making, locking, inspecting, repairing them.
//! - [`Pool`]: opening on any medium, volumes, checkpoints, [`CheckpointTimer`], closing; [`PoolInfo`],
//!   [`Pool::check`], [`Pool::scrub`] and [`repair()`] for what they are worth.
//! - [`VolumeSpec`], [`NewRoot`]: what a new volume is like.
//!
//! To write a kind of volume:
//! - [`Kind`], [`Kinds`]: what the pool asks of a kind: which blocks its map names. [`VolumeHandle`] is
//!   the right to use a volume, which one user has at a time.
//! - [`Batch`]: changes of any size that are made as one; [`Group`]: several requests as one.
//! - [`Writer`], [`Committed`]: the undo log below batches, for changes of a few words.
//! - [`alloc`]: who owns which block; cells, the parts of a block. [`PinnedBlocks`]: blocks that are read
//!   where they lie.
//!
//! To look at bytes, or to test:
//! - [`mod@format`]: the layout on the medium, as `docs/format.md` has it.
//! - [`plant`]: mistakes that tests plant in the protocol, to see the crash explorer catch them.
//! - [`sync`]: the locks, which a deterministic scheduler may take over (feature `schedule`).

#![forbid(unsafe_code)]

pub mod alloc;
mod batch;
mod check;
mod checkpoint_record;
mod data_area;
mod epoch;
pub mod file;
pub mod format;
mod health;
mod kick;
mod kind;
mod log;
mod persist;
pub mod plant;
mod pool;
mod range_locks;
mod readable;
mod recover;
mod repair;
mod scrub;
mod shared;
pub mod sync;
mod volume;

pub use alloc::{BlockRun, CellSize};
pub use batch::{Batch, BatchOutcome, ChangeError, Circumstances, Fill, Savepoint};
pub use check::CheckReport;
pub use data_area::DataArea;
pub use epoch::{PendingCheckpoint, WordGroup};
pub use format::Corrupt;
pub use health::Health;
pub use kind::{BlockUse, Claim, Kind, Kinds, Part, UsedExtent, VolumeView};
pub use pool::{
    CheckpointTimer, DeletedVolume, LANES_DEFAULT, NewRoot, OpenOptions, Pool, PoolError, PoolInfo,
    RecoverySummary, THRESHOLD_LINES_DEFAULT, VOLUMES_MAX_DEFAULT, VolumeInfo, VolumeSpec,
};
pub use range_locks::{is_range_locked, lock_range};
pub use readable::check_readable;
pub use repair::repair;
pub use scrub::{ScrubFinding, ScrubReport};
pub use volume::{
    Committed, Group, GroupError, PinError, PinLimits, PinnedBlocks, Users, Volume, VolumeHandle,
    WriteError, Writer,
};
