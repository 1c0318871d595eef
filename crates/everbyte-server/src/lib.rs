//! A pool as one process has it open: its volumes, their clients, what is done to them, and how it is
//! closed.
//!
//! Owns the handles of volumes of every kind, exports for NBD servers, the answers to control
//! requests, backing devices of caches, the recording of requests, and the way of a command to the
//! pool or to its server. Knows neither command lines nor signals: that is the program's business.
//!
//! Nobody who uses one volume waits for what another one needs. [`OpenPool`] has the locks that are
//! needed for this: a table of volumes, held for looking up only; for each volume, a gate between
//! its clients and its changes.

#![forbid(unsafe_code)]

mod block;
mod cache;
mod changes;
mod context;
mod device;
mod exports;
mod fs;
mod gate;
mod handle;
mod kinds;
mod leased;
mod mounts;
mod open_pool;
pub mod recording;
mod refusal;
mod session;
mod shutdown;
mod size;
mod status;
mod volumes;

pub use exports::listen;
pub use handle::MountRequest;
pub use kinds::kinds;
pub use open_pool::{OpenPool, Options};
pub use session::{Busy, Need, Session, SessionError, ask, wait_for};
pub use shutdown::CloseError;
pub use size::show_size;
