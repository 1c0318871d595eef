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
    /// The volume's kind has no log, so the volume does not change in epochs.
    #[error("the volume has no log")]
    NoLog,
    /// The volume has a log, so its root changes in epochs only.
    #[error("the root of a volume with a log changes in its epochs only")]
    HasLog,
    /// A checkpoint failed or was abandoned. No later epoch can complete until the pool is opened again.
    #[error("an earlier checkpoint of the volume failed")]
    CheckpointAbandoned,
    /// A thread panicked inside an epoch, or could not roll a group back. The epoch may have a part of a
    /// write, so it never completes.
    #[error(
        "a thread panicked during a write to the volume, or a group could not be rolled back; the next opening of the pool undoes all changes that were not durable"
    )]
    Unfinished,
}
