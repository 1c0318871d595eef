//! A cache of DRAM and storage-class memory before slower storage, as a block device.
//!
//! Owns the frames in DRAM, the pages in the volume that is its storage-class memory, what is known
//! of each page, and the order in which memory and storage are written. The replacement policies are
//! those of the simulator, see [`everbyte_policy::policy`].
//!
//! What it promises, and `docs/decisions/0010-the-cache-is-a-block-volume.md` argues:
//! - What a client flushed survives in storage-class memory, without a write to storage.
//! - Storage is given only bytes that are durable in storage-class memory under a mark that says
//!   that they are newer; the mark goes only after storage has flushed them. So a crash at any
//!   moment leaves of each page what was flushed last or something newer, and never a mixture.
//! - Storage that fails costs nothing but time: what could not be written stays, and is tried again.
//!
//! Knows devices only by their trait: its memory is any [`everbyte_device::AtomicWrites`], its
//! storage any [`everbyte_device::BlockDevice`]. Knows no pool and no protocol.
#![forbid(unsafe_code)]

mod access;
mod actions;
mod bypassed;
mod cache;
mod change;
mod device;
mod error;
mod frame;
mod layout;
mod memory;
pub mod plant;
mod policies;
mod proof;
mod settings;
mod state;
mod stats;
mod storage;
mod write_back;
mod writer;
mod zero;

pub use cache::Cache;
pub use change::Change;
pub use error::CacheError;
pub use everbyte_policy::sim::Kind as Policy;
pub use layout::volume_bytes;
pub use memory::{InspectError, Inspection, inspect};
pub use settings::{Identity, Mode, Settings, SettingsError};
pub use stats::{ActionCount, CacheStats};
pub use writer::Writer;
