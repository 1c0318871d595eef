//! When commits are durable, as users choose.

/// When a commit is durable. That it is there as a whole or not at all holds either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When it returns.
    #[default]
    AtCommit,
    /// With the device's next checkpoint: syncs and commits flush nothing. The crate's head says
    /// what a crash may take.
    AtCheckpoint,
}
