//! The moment from which commits are durable, chosen by users.

/// The moment from which a commit is durable. Either way a commit is there as a whole or not at
/// all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When the commit returns.
    #[default]
    AtCommit,
    /// With the device's next checkpoint: syncs and commits flush nothing. The crate's head says
    /// what a crash may take.
    AtCheckpoint,
}
