//! Concurrent crash exploration of the block volume: two writers, a checkpointer and a reader under a
//! deterministic scheduler that may switch at every call of the medium and every lock. Each order of their
//! steps is crashed like a sequential workload, and the oracle demands a cut between epochs.
//! `EVERBYTE_SCHEDULES` sets the number of seeded orders of each workload beyond the bounded ones, and lifts
//! the bound on places of a delay.
//!
//! Not covered: switches between atomics with neither a lock nor the medium in between (loom has the slot
//! trees), and orders without sequential consistency of memory itself.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "tests say what they explored")]

mod engine;
mod explore;
#[path = "../crash/labels.rs"]
mod labels;
#[path = "../crash/mistake.rs"]
mod mistake;
mod oracle;
mod planted;
mod workload;
