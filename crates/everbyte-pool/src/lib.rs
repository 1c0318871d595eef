//! The pool: a medium shared by volumes, with one consistency scheme under all of them.
//!
//! Owns the format, allocation, the rollback log, epochs, recovery and the check. Everything is
//! generic over the medium, so that the same code runs on memory and under the crash explorer.
//! Knows volumes' maps only through their kinds. `docs/crash-model.md` argues the protocol.

#![forbid(unsafe_code)]

pub mod alloc;
mod batch;
mod check;
mod checkpoint_record;
mod data_area;
mod epoch;
pub mod file;
pub mod format;
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
pub use kind::{BlockUse, Claim, Kind, Kinds, Part, UsedExtent, VolumeView};
pub use pool::{
    CheckpointTimer, LANES_DEFAULT, NewRoot, OpenOptions, Pool, PoolError, PoolInfo,
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
