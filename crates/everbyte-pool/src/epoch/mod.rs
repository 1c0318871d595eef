//! Epochs: logged, fresh and dirty state, and how an epoch is sealed and completed.
//!
//! Owns the per-block state and the checkpoint. The order of its stores is argued in
//! `docs/crash-model.md`.

mod block_state;
mod checkpoint;
mod dirty;

pub use block_state::WordGroup;
pub(crate) use block_state::{BlockStates, GroupedWords};
pub use checkpoint::PendingCheckpoint;
pub(crate) use dirty::{DirtyLines, DirtyList};
