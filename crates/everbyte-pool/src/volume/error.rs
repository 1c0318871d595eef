//! Errors of writing to a volume.

use everbyte_media::MediaError;

/// Errors of writing to a volume.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The volume or pool is read-only.
    #[error("the volume is read-only: {reason}")]
    ReadOnly {
        /// The reason.
        reason: String,
    },
    /// The volume was deleted or closed.
    #[error("the volume is gone")]
    Gone,
    /// The volume is of a kind without a log, so nothing of it changes in epochs.
    #[error("the volume has no log")]
    NoLog,
    /// The volume has a log, so its root changes in epochs only.
    #[error("the root of a volume with a log changes in its epochs only")]
    HasLog,
    /// A checkpoint was begun and failed or was abandoned: no epoch can be completed any more.
    #[error("an earlier checkpoint of the volume failed")]
    CheckpointAbandoned,
    /// A thread panicked inside an epoch, or could not roll a group back. The epoch may hold part of a
    /// write: it is never completed.
    #[error(
        "a thread panicked while it wrote to the volume, or a group could not be rolled back; what was not durable then is undone when the pool is opened again"
    )]
    Unfinished,
}
