//! Storage-class memory (SCM) for your program: crash-consistent block devices, hybrid caches and file
//! systems in a file or device of byte-addressable memory, and a crash explorer for storage code of your own.
//!
//! A [`Pool`] lies in persistent memory, CXL memory, DRAM (`/dev/shm`) or an ordinary file, mapped
//! into this process. Volumes in it are [`BlockDevice`]s: any byte range can be read and written from
//! any thread, at the price of a copy, without a system call.
//!
//! # When to use it
//! - Your program keeps state in blocks or pages, and must find it whole after a crash.
//! - You have a slow disk with a hot part, and SCM, which is persistent or at least larger than DRAM.
//! - You write your own structures in persistent memory, and want to test that they survive crashes.
//!
//! To give memory to programs that you cannot change, use the program `everbyte` instead, which
//! serves volumes over NBD. One process has a pool open at a time.
//!
//! # What it promises
//! 1. After a crash no block of 4096 bytes is torn. On a block volume no write of up to 32 MiB is half
//!    there, unless the pool is nearly full or the log was made small; trims and zeroing are whole in
//!    parts of 2 MiB, writes of files in parts of up to 2 MiB, and a cache's writes page by page.
//!    [`FileSystem::write`] replaces a file's contents in one change or, as it says, in several.
//! 2. What was written before a [`flush`](BlockDevice::flush) began is there once that returned; with
//!    [`Fua::Yes`], once the write returned.
//! 3. A crash undoes unflushed writes together, to the last checkpoint, which is at most 5 s old. It
//!    never undoes a write to a block and keeps a later one to the same block. In a cache it undoes
//!    them page by page.
//! 4. A success means that it was done: damage and media errors are errors of the requests that meet
//!    them, and never of others.
//! 5. A crash is what the [persistence domain](media::PersistenceDomain) covers: the loss of power for
//!    files on DAX file systems, DAX devices on an NVDIMM bus, ordinary files and disks; the end of the
//!    process alone for other DAX devices (CXL memory, DRAM that was set aside) and `/dev/shm`.
//!
//! # What it costs
//! - Space: a log for each volume, by default 1/32 of its size from 2.5 to 128 MiB; 8 bytes of map for
//!   every 4096 bytes that are mapped; nothing for what was never written.
//! - Time: a write is a copy and the log of what it replaces; a flush is a checkpoint. On files that
//!   are neither DAX nor tmpfs each flush calls `msync`.
//! - A thread for each pool, which makes checkpoints, and a write-back thread for each cache.
//! - 1 TiB of address space for each pool, so that it can grow.
//!
//! # A block device
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("pool");
//! use everbyte::{BlockDevice, Fua, Pool};
//!
//! let pool = Pool::create(&path, 64 << 20)?;
//! let disk = pool.create_block("disk", 1 << 30)?; // takes space as it is written
//! disk.write(4096, b"hello", Fua::No)?;
//! disk.flush()?; // from here on it survives
//! drop((disk, pool)); // the last handle closes the pool
//!
//! let mut found = [0; 5];
//! Pool::open(&path)?.open_block("disk")?.read(4096, &mut found)?;
//! assert_eq!(&found, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A cache before a file
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let (path, slow) = (folder.path().join("pool"), folder.path().join("slow"));
//! # std::fs::File::create(&slow)?.set_len(1 << 30)?;
//! use everbyte::{BlockDevice, Fua, Pool};
//!
//! let pool = Pool::create(&path, 64 << 20)?;
//! let cache = pool.create_cache("cache", &slow, 16 << 20)?; // as large as the file
//! cache.write(0, b"hot", Fua::No)?;
//! cache.flush()?; // survives in the pool; the file has not been written
//! assert_eq!(cache.stats()?.dirty_pages, 1);
//! cache.drain()?; // now the file has it
//! assert_eq!(&std::fs::read(&slow)?[..3], b"hot");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//! ```
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("pool");
//! use everbyte::Pool;
//!
//! let files = Pool::create(&path, 64 << 20)?.create_fs("files", 48 << 20)?;
//! files.create_dir("docs")?;
//! files.write("docs/letter", b"hello")?;
//! files.sync()?; // from here on it survives
//! drop(files); // the last handle closes the pool
//! assert_eq!(Pool::open(&path)?.open_fs("files")?.read("docs/letter")?, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Crash-testing your own storage code
//! A value that counts once a flag is set. The explorer finds the crash after which the flag is there
//! and the value is not; [`crash`] says how to do this for real code.
//! ```
//! use everbyte::crash::{Closures, Explorer, Medium, PoolOffset, SimMedium};
//!
//! let (value, flag) = (PoolOffset(0), PoolOffset(64));
//! let save = |medium: &SimMedium| {
//!     medium.store_word(value, 42);
//!     medium.store_word(flag, 1); // a bug: the value is to be flushed and fenced first
//! };
//! let recover = |medium: &SimMedium| (medium.load_word(flag) == 1).then(|| medium.load_word(value));
//! let check = |found| if found == Some(0) { Err("lost".to_owned()) } else { Ok(()) };
//! let case = Closures::<(), _>::new(|m, _| save(m), |m| Ok(recover(m)), |found, _| check(found));
//! println!("{}", Explorer::default().explore(&case).unwrap_err());
//! ```
//!
//! # More examples
//! `docs/examples.md` lists all of them. Those of this crate run with `cargo run -p everbyte --example NAME`:
//! `block_device`, `hybrid_cache` and `file_system`, which are those above; `crash_test`, and for larger code
//! `crash_struct` (a type of one's own), `crash_threads` and `crash_allocator`.
//!
//! # Features
//! - `nbd` lets caches have exports of NBD servers as backing devices.
//!
//! The library logs with [`tracing`](https://docs.rs/tracing): what fails in the background, and when
//! the last handle is dropped.

#![forbid(unsafe_code)]

pub mod backing;
pub mod block;
mod builder;
pub mod cache;
pub mod device;
mod engine;
pub mod error;
pub mod explore;
pub mod files;
pub mod media;
pub mod pool;
mod shared;
mod size;
pub mod stream;
pub mod swap;
pub mod volume;

#[doc(inline)]
pub use block::BlockVolume;
#[doc(inline)]
pub use cache::CacheVolume;
#[doc(inline)]
pub use device::{BlockDevice, Fua};
#[doc(inline)]
pub use error::{Error, Result};
pub use everbyte_crash as crash;
#[doc(inline)]
pub use files::FileSystem;
#[doc(inline)]
pub use pool::{Pool, PoolBuilder};
pub use size::show_size;
#[doc(inline)]
pub use swap::SwapVolume;
#[doc(inline)]
pub use volume::Volume;
