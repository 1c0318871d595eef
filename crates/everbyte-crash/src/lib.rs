//! Crash exploration for storage code on byte-addressable persistent memory.
//!
//! Bring your own storage code: a workload that runs on a [`SimMedium`], a recovery, and an oracle
//! of the results allowed for recovery. The [`Explorer`] crashes the workload at each of its
//! operations, recovers from every image that a loss of power could leave, and crashes the
//! recoveries, too. A failure is reduced and reported as a [`Failure`]: the lost stores, the kept
//! ones, and a string to replay it.
//!
//! # Example
//! A value at 0 counts if the flag at 64 is set. The flag must not persist first:
//! ```
//! use everbyte_crash::{Closures, Explorer, Medium, PoolOffset, ReplayError};
//!
//! const VALUE: PoolOffset = PoolOffset(0);
//! const FLAG: PoolOffset = PoolOffset(64);
//!
//! fn publish(fenced: bool) -> Closures<'static, &'static str, Option<u64>> {
//!     Closures::new(
//!         // The workload, and what it promises when.
//!         move |medium, log| {
//!             medium.store_word(VALUE, 42);
//!             medium.flush(VALUE, 8);
//!             if fenced {
//!                 medium.fence().unwrap();
//!             }
//!             medium.store_word(FLAG, 1);
//!             medium.flush(FLAG, 8);
//!             medium.fence().unwrap();
//!             log.note("published");
//!         },
//!         // Recovery, on any image that a crash could leave.
//!         |medium| Ok((medium.load_word(FLAG) == 1).then(|| medium.load_word(VALUE))),
//!         // The oracle.
//!         |value, crash| match value {
//!             Some(42) => Ok(()),
//!             None if crash.events.is_empty() => Ok(()),
//!             other => Err(format!("found {other:?}")),
//!         },
//!     )
//!     .label(0..8, "value")
//!     .label(64..72, "flag")
//! }
//!
//! let explorer = Explorer::default();
//! assert!(explorer.explore(&publish(true)).unwrap().is_exhaustive());
//!
//! let failure = explorer.explore(&publish(false)).unwrap_err();
//! println!("{failure}");
//! assert_eq!(failure.message, "found Some(0)");
//! assert_eq!(failure.replay, "0:3/5:a+0");
//! let again = explorer.replay(&publish(false), &failure.replay);
//! assert!(matches!(again, Err(ReplayError::Failed(_))));
//! explorer.replay(&publish(false), "0:3/5:a").unwrap();
//! ```
//! It prints:
//! ```text
//! crash before operation 3 of 5: found Some(0)
//!   the workload, and what the crash left of it:
//!     LOST            0  store  8 bytes at 0x0 (value)  2a 00 00 00 00 00 00 00    not fenced
//!                     1  flush  8 bytes at 0x0 (value)                             not fenced
//!     kept            2  store  8 bytes at 0x40 (flag)  01 00 00 00 00 00 00 00    not flushed
//!     ------------ power fails ------------
//!                     3  flush  8 bytes at 0x40 (flag)
//!                     4  fence
//!   the image that failed: everything that was in doubt persisted, but
//!     of line 0x0 (value) nothing
//!   to see it again: Explorer::replay with the same scenario and "0:3/5:a+0"
//! ```
//! [`Closures`] suits small code. Larger code implements [`Scenario`], whose recovery may pass an
//! opened store to the check. It takes the medium as an [`Arc`](std::sync::Arc), so engines that
//! are generic over [`Medium`] run unchanged. Workloads made of a list of steps implement [`Steps`]
//! as well: [`Explorer::explore_steps`] drops the steps that a failure does not need.
//!
//! # What a crash leaves
//! - Stores of up to 8 naturally aligned bytes persist as a whole or not at all. Other stores are
//!   bulk copies, made of such pieces.
//! - Ordinary stores to one line of 64 bytes persist in order, the pieces of one copy in any
//!   ([`StoreOrder`]). A line may persist at any time, flushed or not, independently of others.
//! - Streamed (non-temporal) bytes persist in any subset of pieces until their thread fences. Until
//!   then no other thread may load or store any of them: it could see older bytes, or lose its own
//!   bytes to them later. On this medium such an access panics, which fails the run.
//! - A flush counts after the next fence of its thread, for the line's content at the flush.
//!
//! # What is exhaustive, and what is sampled
//! Lines with a content in doubt are decided when recovery or the check first reads them, so only
//! images that the code can distinguish are tried, and unread lines cost nothing. Within the limits
//! of the [`Explorer`] every such image of every crash point is tried, and
//! [`Summary::is_exhaustive`] reports this. Beyond them, the summary counts the samples:
//! - More images at one crash than `runs_max`: in addition to the first ones, everything, each line
//!   alone, each line missing, and random ones.
//! - More than [`Explorer::subsets_max`] pieces of one line without an order: none, all, each
//!   alone, each missing, and random sets.
//! - More crash points than `points_max`, or crashes of recoveries than the `nested_` limits.
//!
//! Everything follows from the scenario and [`Explorer::seed`]: the same seed explores the same,
//! another one samples other images.
//!
//! # How to write an oracle
//! - Let the workload [note](Log::note) an operation before its first store, and a promise after
//!   its last fence. The oracle gets the events before the crash.
//! - Accept exactly the values allowed by these events: after "put 3 begun" the old value or the
//!   new one, after "put 3 answered" the new one. Demand the content: a recovery without an error
//!   is not enough.
//! - Compare all expected content, not only the last write.
//! - Use the recovered data, and write to it. Damage by a crash may show only then.
//! - Plant a mistake and see it caught. An oracle that has never failed proves nothing. An
//!   [`Omission`] is a mistake without a change of the code: an omitted flush or fence.
//!
//! # Failures
//! The first failure is reduced, in at most [`Explorer::shrink_runs_max`] tries: without crashes of
//! recoveries if it fails without, at an earlier operation, with as few lines as possible that
//! differ from an image with everything or nothing persisted. The oracle's message may change in
//! the process. The report lists, for each operation before the crash:
//! - `durable`: a store present in every image;
//! - `kept`, `LOST`, `TORN`: a store that could have been lost, and is present, absent or present
//!   in part;
//! - `overwritten`: a later store to the same bytes is present;
//! - `unread`: the bytes were never read, so it did not matter;
//! - `not flushed`, `not fenced`: the missing operation.
//!
//! # Cost
//! The workload runs once. Each image costs one recovery and one check, each image whose recovery
//! is crashed one recovery more. An exploration copies the medium once or twice; all else depends
//! on the lines touched, and on a thousandth of its size. So keep workloads small, and have many of them.
//!
//! # Threads
//! Threads are distinguished. A workload starts threads through [`schedule`], and each schedule is
//! a separate workload for the explorer.
//!
//! # Limits
//! - Of recovery and check only calls of the medium are counted ([`Explorer::calls_max`]): a loop
//!   without calls hangs.
//! - Code under test must be deterministic (see [`Scenario`]), and reach the medium through
//!   [`Medium`] alone.
//! - Memory is sequentially consistent: no load sees an old value because of a weak order, and
//!   threads switch only at calls of the medium and at locks that take part.
//! - A part of an aligned word stored by one call of [`store`](Medium::store) or
//!   [`stream`](Medium::stream) persists as a whole or not at all. A real medium may tear it. Only
//!   [`store_word`](Medium::store_word) promises atomicity.
//! - The medium does not fail but by losing power, unless it is made to [fail](SimMedium::fail).
//! - Poison does not outlive a crash: [poisoned](SimMedium::inject_poison) bytes are sound again
//!   after it, so no recovery meets a media error.
//! - Caches in the domain of persistence (eADR) leave fewer images than are tried here.

#![forbid(unsafe_code)]

mod address;
mod closures;
mod decision_trace;
mod explorer;
mod failure;
mod labels;
mod line;
mod line_map;
mod medium;
mod memory;
mod omission;
mod recovery_run;
mod replay;
mod scenario;
pub mod schedule;
mod shrink;
mod step;
mod trace;
mod walk;

pub use closures::Closures;
pub use decision_trace::{BadPlan, Choice, Lines, Plan};
pub use everbyte_media::{Medium, PoolOffset};
pub use explorer::Explorer;
pub use failure::{Failure, NestedCrash, Summary};
pub use labels::Labels;
pub use medium::{Op, OpKind, SimMedium};
pub use memory::{CrashState, StoreOrder, ThreadNo};
pub use omission::Omission;
pub use replay::ReplayError;
pub use scenario::{Crash, Log, Scenario, Stamped, Steps};
pub use trace::{Mark, Missing, Traced};
