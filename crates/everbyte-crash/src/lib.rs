//! Crash exploration for storage code on byte-addressable memory.
//!
//! Owns a [`SimMedium`] that knows what a loss of power would leave of it, and an [`Explorer`]
//! that crashes a workload everywhere, recovers from every image that could be left, and crashes
//! the recoveries too. Knows nothing of pools, logs or blocks: bring your own [`Scenario`].
//!
//! # What a crash leaves
//! - Stores of up to 8 bytes that are naturally aligned persist as a whole or not at all. Other
//!   stores are copies in bulk, made of such pieces.
//! - Ordinary stores to one line of 64 bytes persist in order, the pieces of one copy in any
//!   ([`StoreOrder`]). A line may persist at any time, flushed or not, independently of others.
//! - Streamed bytes persist in any subset of pieces until the thread that streamed them fences.
//! - A flush counts after the next fence of the thread that flushed, for what the line held at
//!   the flush.
//!
//! # Example
//! A value at 0 is valid if the flag at 64 is set. The flag must not persist first:
//! ```
//! use std::sync::Arc;
//! use everbyte_crash::{Crash, Explorer, Log, Scenario, SimMedium};
//! use everbyte_media::{Medium, PoolOffset};
//!
//! struct Publish { fenced: bool }
//!
//! impl Scenario for Publish {
//!     type Event = &'static str;
//!     type Recovered = Option<u64>;
//!     fn medium_len(&self) -> u64 { 4096 }
//!     fn prepare(&self, _: &Arc<SimMedium>) {}
//!     fn run(&self, medium: &Arc<SimMedium>, log: &Log<&'static str>) {
//!         medium.store_word(PoolOffset(0), 42);
//!         medium.flush(PoolOffset(0), 8);
//!         if self.fenced {
//!             medium.fence().unwrap();
//!         }
//!         medium.store_word(PoolOffset(64), 1);
//!         medium.flush(PoolOffset(64), 8);
//!         medium.fence().unwrap();
//!         log.note("published");
//!     }
//!     fn recover(&self, medium: Arc<SimMedium>) -> Result<Option<u64>, String> {
//!         let flag = medium.load_word(PoolOffset(64));
//!         Ok((flag == 1).then(|| medium.load_word(PoolOffset(0))))
//!     }
//!     fn check(&self, value: Option<u64>, crash: &Crash<&'static str>) -> Result<(), String> {
//!         match value {
//!             Some(42) => Ok(()),
//!             None if crash.events.is_empty() => Ok(()),
//!             other => Err(format!("found {other:?}")),
//!         }
//!     }
//! }
//!
//! let explorer = Explorer::default();
//! assert!(explorer.explore(&Publish { fenced: true }).unwrap().is_exhaustive());
//! let failure = explorer.explore(&Publish { fenced: false }).unwrap_err();
//! assert!(explorer.replay(&Publish { fenced: false }, &failure.replay).is_err());
//! ```
//!
//! # Limits
//! Code under test must be deterministic (see [`Scenario`]). Threads are told apart; a
//! workload that starts some does so through [`schedule`], and each schedule is a workload of its
//! own to the explorer.

#![forbid(unsafe_code)]

mod boot;
mod closures;
mod explorer;
mod failure;
mod labels;
mod line;
mod medium;
mod memory;
mod replay;
mod scenario;
pub mod schedule;
mod shrink;
mod tape;
mod trace;
mod walk;

pub use closures::Closures;
pub use everbyte_media::{Medium, PoolOffset};
pub use explorer::Explorer;
pub use failure::{Failure, NestedCrash, Summary};
pub use labels::Labels;
pub use medium::{Op, OpKind, SimMedium};
pub use memory::{CrashState, StoreOrder, ThreadNo};
pub use replay::ReplayError;
pub use scenario::{Crash, Log, Scenario, Stamped, Steps};
pub use tape::{BadPlan, Choice, Lines, Plan};
pub use trace::{Mark, Missing, Traced};
