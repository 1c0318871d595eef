//! Memory larger than DRAM: regions page to slots of storage-class memory inside the process.
//! `docs/benchmarks/swap.md` compares them with kernel swap.
//!
//! A [`Region`] is memory with one part in DRAM and the rest in a [`SwapSpace`]. The space has a
//! [`SlotStore`], such as a file on tmpfs, DAX or a disk, and a slot tree of its free slots.
//! Contents are volatile: they end with the process, so the crate logs, flushes and fences nothing.
//! In direct mode ([`RegionOptions::direct`]) the region maps parts of a byte-addressable store
//! instead. `docs/proofs.md`, "Paging" and "Direct mode", argues from the order of steps that no
//! unit is lost.
//!
//! # Example
//! ```
//! use everbyte_swap::{FileStore, Region, RegionOptions, SwapSpace};
//!
//! let directory = tempfile::tempdir_in("/dev/shm")?;
//! let store = FileStore::create(&directory.path().join("store"), 8 << 20)?;
//! let space = SwapSpace::new(store);
//! let mut region = Region::map(8 << 20, 1 << 20, &space, &RegionOptions::new())?;
//! for (at, byte) in region.as_mut_slice().iter_mut().enumerate() {
//!     *byte = (at % 251) as u8;
//! }
//! assert!(region.as_slice().iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
//! assert!(region.statistics().units_out > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod plant;
mod region;
mod slots;
mod store;

pub use everbyte_media::BlockedSignals;

pub use error::RegionError;
pub use region::{DirectMode, FaultMode, Region, RegionOptions, Statistics};
pub use slots::{FreeSlots, SlotNo, SlotSearches};
pub use store::{FileStore, SlotStore, SlotWear, SwapSpace, UNIT};
