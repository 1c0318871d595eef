//! A cache of DRAM and storage-class memory (SCM) before a slower backing device, as a block
//! device.
//!
//! Owns the frames in DRAM, the pages in the volume that is its SCM, what is known of each page,
//! and the order in which SCM and the backing device are written. The replacement policies are
//! those of the simulator, see [`everbyte_policy::policy`].
//!
//! Promises (`docs/decisions/0010-the-cache-is-a-block-volume.md` has the reasons, `docs/proofs.md`
//! the lemmas):
//! - What a client flushed survives in SCM, without a write to the backing device.
//! - The backing device is given only bytes that are durable in SCM under a mark that says that
//!   they are newer; the mark goes only after the backing device has flushed them. So a crash at
//!   any moment leaves of each page what was flushed last or something newer, and never a mixture.
//! - A backing device that fails costs nothing but time: the cache keeps what it could not write,
//!   and tries again.
//!
//! Knows devices only by their trait: its SCM is any [`everbyte_device::AtomicWrites`], its
//! backing device any [`everbyte_device::BlockDevice`]. Knows no pool and no protocol.
#![forbid(unsafe_code)]

mod access;
mod actions;
mod backing;
mod bypassed;
mod cache;
mod change;
mod device;
mod error;
mod frame;
mod frames;
mod hits;
mod layout;
pub mod plant;
mod policies;
mod proof;
mod references;
mod scm;
mod settings;
mod speed;
mod state;
mod stats;
mod write_back;
mod writeback_thread;
mod zero;

pub use cache::Cache;
pub use change::Change;
pub use error::CacheError;
pub use everbyte_policy::sim::Kind as Policy;
pub use layout::volume_bytes;
pub use scm::{InspectError, Inspection, inspect};
pub use settings::{Identity, Mode, Settings, SettingsError};
pub use stats::{ActionCount, CacheStats};
pub use writeback_thread::WritebackThread;
