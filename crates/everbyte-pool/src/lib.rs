//! The pool: a medium shared by volumes, with one consistency scheme for all of them.
//!
//! Owns the format, allocation, the rollback log, epochs, recovery and the check. All code is generic over the
//! medium, so the same code runs on memory and in the crash explorer. The pool knows the maps of volumes only by
//! their kinds. `docs/crash-model.md` has the proof of the protocol.
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
//! // `everbyte_block::kinds()` lets the pool have block volumes.
//! let pool = open_locked(&path, &MediaOptions::new(), Kinds::new([]), &OpenOptions::default())?;
//! assert!(pool.recovery().was_clean);
//! assert!(pool.check()?.is_clean());
//! pool.close()?; // marks the pool clean; without it, the next opening recovers the pool
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Overview
//! To use pools:
//! - [`mod@file`]: pools in files and devices: creation, locks, inspection and repair.
//! - [`Pool`]: opening on any medium, volumes, checkpoints, [`CheckpointTimer`], closing; [`PoolInfo`],
//!   [`Pool::check`], [`Pool::scrub`] and [`repair()`].
//! - [`VolumeSpec`], [`NewRoot`]: settings of a new volume.
//!
//! To write a kind of volume:
//! - [`Kind`], [`Kinds`]: the interface of the pool to a kind: the blocks in a map. [`VolumeHandle`] is the
//!   exclusive right to use a volume.
//! - [`Batch`]: atomic changes of any size; [`Group`]: several requests as one atomic change.
//! - [`Writer`], [`Committed`]: the undo log below batches, for changes of a few words.
//! - [`alloc`]: the owners of blocks. [`PinnedBlocks`]: blocks with readers in
//!   place.
//!
//! To inspect bytes, or to test:
//! - [`mod@format`]: the layout on the medium, as in `docs/format.md`.
//! - [`plant`]: planted bugs in the protocol. The crash explorer must catch them.
//! - [`sync`]: the locks. A deterministic scheduler can replace them (feature `schedule`).

#![forbid(unsafe_code)]

pub mod alloc;
mod batch;
mod check;
mod checkpoint_record;
mod checkpoint_signal;
mod data_area;
mod epoch;
pub mod file;
pub mod format;
mod health;
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

pub use alloc::BlockRun;
pub use batch::{Batch, BatchOutcome, ChangeError, Fill, PlanConstraints, Savepoint};
pub use check::CheckReport;
pub use data_area::DataArea;
pub use epoch::{PendingCheckpoint, WordGroup};
pub use format::Corrupt;
pub use health::Health;
pub use kind::{BlockUse, Claim, Kind, Kinds, UsedExtent, VolumeView};
pub use pool::{
    CheckpointTimer, DeletedVolume, LANES_DEFAULT, NewRoot, OpenOptions, Pool, PoolError, PoolInfo,
    RecoverySummary, THRESHOLD_LINES_DEFAULT, VolumeInfo, VolumeSpec, volumes_max_default,
};
pub use range_locks::{is_range_locked, lock_range};
pub use readable::check_readable;
pub use repair::repair;
pub use scrub::{ScrubFinding, ScrubReport};
pub use volume::{
    Committed, Group, GroupError, PinError, PinLimits, PinnedBlocks, Users, Volume, VolumeHandle,
    WriteError, Writer,
};
