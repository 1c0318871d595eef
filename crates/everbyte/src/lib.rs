//! Storage-class memory (SCM) for your program: crash-consistent block devices, hybrid caches and file
//! systems in a file or device of byte-addressable memory, and a crash explorer for storage code of your own.
//!
//! A [`Pool`] lies in persistent memory, CXL memory, DRAM (`/dev/shm`) or an ordinary file, mapped
//! into this process. Volumes in it are [`BlockDevice`]s: any byte range can be read and written from
//! any thread, at the price of a copy, without a system call.
//!
//! # When to use it
//! - Your program keeps state in blocks or pages, and needs it intact after a crash.
//! - You have a slow disk with a hot part, and SCM. The SCM is persistent or at least larger than
//!   DRAM.
//! - You write your own structures in persistent memory, and want to crash-test them.
//!
//! To give memory to unchanged programs, use the program `everbyte` instead: it serves volumes over
//! NBD. Only one process at a time has a pool open.
//!
//! # What it promises
//! 1. After a crash no block of 4096 bytes is torn. On a block volume, a write of up to 32 MiB is
//!    atomic, unless the pool is nearly full or the log was made small. Trims and zeroing are
//!    atomic in parts of 2 MiB. Writes of files are atomic in parts of up to 2 MiB. A cache's
//!    writes are atomic page by page. [`FileSystem::write`] replaces a file's contents in one
//!    change or, in the documented cases, in several.
//! 2. All writes before the start of a [`flush`](BlockDevice::flush) are durable once the flush has
//!    returned. A write with [`Fua::Yes`] is durable once it has returned.
//! 3. A crash undoes unflushed writes together, to the last checkpoint. The last checkpoint is at
//!    most 5 s old. A crash never undoes a write to a block and keeps a later write to the same
//!    block. In a cache it undoes unflushed writes page by page.
//! 4. A success means a completed request. Damage and media errors fail the affected requests, and
//!    never others.
//! 5. The [persistence domain](media::PersistenceDomain) defines a crash. The loss of power is
//!    covered for files on DAX file systems, DAX devices on an NVDIMM bus, ordinary files and
//!    disks. Only the end of the process is covered for other DAX devices (CXL memory, reserved
//!    DRAM) and `/dev/shm`.
//!
//! # What it costs
//! - Space: a log for each volume, by default 1/32 of its size from 2.5 to 128 MiB; 8 bytes of map
//!   for every 4096 mapped bytes; nothing for unwritten bytes.
//! - Time: a write costs a copy and the log of the replaced bytes. A flush costs a checkpoint. On
//!   files other than DAX and tmpfs each flush calls `msync`.
//! - A checkpoint thread for each pool, and a write-back thread for each cache.
//! - 1 TiB of address space for each pool, as room to grow.
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
//! A value counts once a flag is set. The explorer finds the crash with a durable flag and a lost
//! value. [`crash`] explains crash tests of real code.
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
//! `docs/examples.md` lists all examples. Run an example of this crate with
//! `cargo run -p everbyte --example NAME`. `block_device`, `hybrid_cache`, `file_system` and
//! `crash_test` are the examples above. Larger crash tests are `crash_struct` (a user-defined
//! type), `crash_threads` and `crash_allocator`.
//!
//! # Features
//! - `nbd` lets caches have exports of NBD servers as backing devices.
//!
//! The library logs background failures, and failures at the drop of the last handle, with
//! [`tracing`](https://docs.rs/tracing).

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
