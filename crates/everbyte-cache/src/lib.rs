//! A cache of DRAM and storage-class memory (SCM) before a slower backing device, as a block
//! device.
//!
//! Owns the frames in DRAM, the pages in the SCM volume, the state of each page, and the order of
//! writes to SCM and to the backing device. The simulator and the cache use the same replacement
//! policies, see [`everbyte_policy::policy`].
//!
//! Promises (`docs/decisions/0010-the-cache-is-a-block-volume.md` has the reasons, `docs/proofs.md`
//! the lemmas):
//! - Flushed client data survives in SCM, without a write to the backing device.
//! - The backing device gets only bytes that are durable in SCM under a mark of newer bytes. The
//!   mark is removed after the backing device has flushed them. So a crash at any moment leaves
//!   each page as flushed last or newer, and never mixed.
//! - A failing backing device costs only time: the cache keeps unwritten pages, and tries again.
//!
//! Knows devices only by their trait: its SCM is any [`everbyte_device::AtomicWrites`], its
//! backing device any [`everbyte_device::BlockDevice`]. Knows no pool and no protocol.
//!
//! # Example
//! ```
//! # use everbyte_block::{BlockOptions, BlockVolume, kinds};
//! # use everbyte_media::{Mapped, MediaOptions};
//! # use everbyte_pool::{OpenOptions, Pool, format::VolumeKind};
//! # let medium = Arc::new(Mapped::anonymous(32 << 20, &MediaOptions::new())?);
//! # Pool::format(&*medium, 8, [1; 16])?;
//! # let pool = Arc::new(Pool::open(medium, kinds(), &OpenOptions::default())?);
//! # let make_scm = |bytes| BlockVolume::create_as(&pool, "c", VolumeKind::CACHE, bytes, &BlockOptions::default());
//! use std::sync::Arc;
//!
//! use everbyte_cache::{Cache, Identity, Mode, Policy, Settings, volume_bytes};
//! use everbyte_device::{BlockDevice, Fua, MemoryDevice};
//!
//! let (slow, backing_bytes) = (Arc::new(MemoryDevice::new(256 << 20)), 256 << 20);
//! let backing = Identity { kind: "memory".into(), name: "slow".into(), serial: String::new(), backing: None };
//! let (mode, policy) = (Mode::WriteBack, Policy::Everbyte);
//! let (dram_bytes, scm_bytes, small_write_bytes) = (1 << 20, 4 << 20, 512);
//! let settings = Settings { backing, backing_bytes, dram_bytes, scm_bytes, mode, policy, small_write_bytes };
//! let scm = make_scm(volume_bytes(backing_bytes))?; // a block volume, or any `AtomicWrites`
//! Cache::format(&scm, &settings)?;
//! let cache = Cache::open(Arc::new(scm), Arc::<MemoryDevice>::clone(&slow), &settings.backing)?;
//! cache.write(0, b"hot", Fua::Yes)?; // durable in SCM; the backing device has not seen it
//! assert_eq!((slow.allocated_bytes(), cache.stats().dirty_pages), (0, 1));
//! cache.drain()?; // now it has
//! assert_eq!(cache.stats().dirty_pages, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! [`WritebackThread`] writes back in the background; without one a cache does so when it needs room.
#![forbid(unsafe_code)]

mod access;
mod actions;
mod backing;
mod backing_latency;
mod bypassed;
mod cache;
mod change;
mod device;
mod error;
mod frame;
mod frames;
mod hit_log;
mod hits;
mod identity_check;
mod layout;
pub mod plant;
mod policies;
mod scm;
mod settings;
mod state;
mod stats;
mod write_back;
mod writeback_in_flight;
mod writeback_thread;
mod zero;

pub use cache::Cache;
pub use change::Change;
pub use error::CacheError;
pub use everbyte_policy::policy::ActionCount;
pub use everbyte_policy::sim::Kind as Policy;
pub use layout::volume_bytes;
pub use scm::{InspectError, Inspection, inspect};
pub use settings::{Identity, Mode, Settings, SettingsError, usable_policies};
pub use stats::CacheStats;
pub use writeback_thread::WritebackThread;
