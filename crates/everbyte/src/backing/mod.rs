//! Backing devices of caches: opens the device named by a user, identifies it among others, and
//! bounds the wait for a silent one.
//!
//! Without the feature `nbd`, backing devices are files and block devices. Knows no pool.

mod claims;
mod error;
mod export;
mod open;
mod options;
mod watch;

pub use claims::Claim;
pub use error::BackingError;
pub use export::Cancel;
pub use open::{Backing, KnownBacking, look_within, open, open_within, resolve, share_bytes};
pub use options::{Options, rights_for};
pub use watch::{IoWatchdog, Outcome, PendingRequest, TimedTask, Watched};
