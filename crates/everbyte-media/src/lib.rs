//! Byte-addressable media. All accesses to persistent memory are here, except those to runs of swap volumes
//! and to pages mapped by SQLite.
//!
//! Owns the [`Medium`] contract, its mapped implementation [`Mapped`], and the suite
//! `everbyte_testkit::medium` for every medium. Knows nothing of pools, volumes, logs or blocks
//! beyond their size.
//!
//! Invariant: this crate makes no Rust reference into mapped memory, because other threads and processes may write
//! it at any time. Bytes cross the border by raw copies, SIMD loads, atomics of one word, or the kernel.
//!
//! # Example
//! A value becomes durable before the flag that announces it:
//! ```
//! use everbyte_media::{Mapped, MediaOptions, Medium, PoolOffset};
//!
//! // `Mapped::open` maps a file or a DAX device in the same way.
//! let medium = Mapped::anonymous(1 << 20, &MediaOptions::new())?;
//! let (value, flag) = (PoolOffset(0), PoolOffset(64));
//! medium.store(value, b"hello");
//! medium.flush(value, 5);
//! medium.fence()?; // from here on the value is durable; `describe` names the persistence domain
//! medium.store_word(flag, 1);
//! medium.flush(flag, 8);
//! medium.fence()?;
//!
//! let mut found = [0; 5];
//! medium.read(value, &mut found);
//! assert_eq!((&found, medium.load_word(flag)), (b"hello", 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![allow(unsafe_code, reason = "mapping memory, flushing its lines and catching its faults")]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "everbyte-media runs on x86-64 Linux only. A port to aarch64 must replace cpu.rs: `dc cvap` \
     (or `dc cvadp`) for each flushed line, `dsb sy` as the fence, `stnp` for streamed copies, and \
     a release barrier in `store_word` that also orders streamed stores."
);

mod counters;
mod cpu;
mod crc;
mod emulate;
mod error;
mod fault_handler;
mod free_space;
mod map;
mod mapped;
mod medium;
mod open;
mod own_memory;
mod peer_memory;
mod poison;
mod send;
mod shards;
mod signals;
mod stack;
mod units;
mod wear;
mod window;
mod writeback;

pub use cpu::prefetch;
pub use crc::crc32c;
pub use emulate::{LineCost, Technology};
pub use error::OpenError;
pub use fault_handler::{FaultRange, PageFault, ResolveFaults};
pub use free_space::check_free_space;
pub use mapped::{Description, Mapped};
pub use medium::{Counters, MediaError, Medium, PersistenceDomain, Piece, PoisonedRange};
pub use open::{
    MediaKind, MediaOptions, allocate_file, create_file, remove_created, writeback_and_invalidate,
};
pub use own_memory::OwnMemory;
pub use peer_memory::PeerMemory;
pub use shards::prepare_thread;
pub use signals::BlockedSignals;
pub use stack::{OtherWriters, Stack, Writers};
pub use units::{BLOCK, BLOCK_U32, BLOCK_U64, BlockNo, LINE, LINE_U64, LineMask, PoolOffset};
pub use wear::Wear;
pub use window::{WINDOW_REGION_BYTES, Window};
