//! More memory than DRAM: regions that page to slots of storage-class memory, in the process itself.
//! `docs/benchmarks.md` has them beside kernel swap, with what they miss.
//!
//! A [`Region`] is memory of which a part is in DRAM and the rest in a [`SwapSpace`]: a
//! [`SlotStore`], such as a file on tmpfs, DAX or a disk, and its free slots, found by a slot tree.
//! Contents mean nothing after the process has ended, so nothing is logged, flushed or fenced.
//! In direct mode ([`RegionOptions::direct`]) parts of a byte-addressable store are mapped straight instead.
//! `docs/swap.md` describes how units move, and why none is lost.
//!
//! # Example
//! ```
//! use everbyte_swap::{FileStore, Region, RegionOptions, SlotOrder, SwapSpace};
//!
//! let directory = tempfile::tempdir_in("/dev/shm")?;
//! let store = FileStore::create(&directory.path().join("store"), 8 << 20)?;
//! let space = SwapSpace::new(store, SlotOrder::Order64);
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
pub use slots::{FreeSlots, SlotNo, SlotOrder, SlotSearches};
pub use store::{FileStore, SlotStore, SlotWear, SwapSpace, UNIT};
