//! Backing devices of caches: what a user names becomes an open device, with what tells it from
//! others, and nobody waits for ever for one that is silent.
//!
//! Without the feature `nbd`, backing devices are files and block devices. Knows no pool.

#![forbid(unsafe_code)]

mod backing;
mod error;
mod export;
mod watch;

pub use backing::{Backing, Options, look_at, open, open_within, resolve, share_bytes};
pub use error::BackingError;
pub use export::Cancel;
pub use watch::{Outcome, UnderWay, Watch, Watched, Work};
