//! The swap volume: a store of pages without any promise after a crash.
//!
//! Owns the 2 MiB runs of a swap volume and the right to use them. The volume lends runs to programs.
//! A program maps its runs and copies pages in and out. The pages are not logged, flushed or marked.
//! The list of runs is durable: a table below the volume's root word. Growing or shrinking the volume
//! replaces the whole table. This crate knows the pool, and neither regions nor the control socket.

#![forbid(unsafe_code)]

mod error;
mod kind;
mod lease;
mod lend;
pub mod plant;
mod scratch;
mod table;
mod volume;

pub use error::{Borrowers, SwapError};
pub use kind::{SWAP_NAME, kinds};
pub use lease::Lease;
pub use lend::{Lender, LenderStatus};
pub use scratch::ScratchDevice;
pub use table::{RUN_BYTES, SWAP};
pub use volume::{SwapOptions, SwapVolume};
