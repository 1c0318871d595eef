//! The swap volume: a store of pages without any promise after a crash.
//!
//! Owns which runs of 2 MiB a swap volume has, and who may use them: they are lent to programs, which
//! map them and copy pages by themselves. Nothing of the pages is logged, flushed or marked. What
//! the volume consists of is durable: a table below its root word, which is replaced as a whole when
//! the volume grows or shrinks. Knows the pool; knows neither regions nor the control socket.

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
