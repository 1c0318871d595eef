//! The moment of durability of commits, chosen by users.

/// The moment at which a commit is durable. In both modes a commit is atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// When the commit returns.
    #[default]
    AtCommit,
    /// With the device's next checkpoint: syncs and commits flush nothing. The crate's head states
    /// the possible loss in a crash.
    AtCheckpoint,
}
