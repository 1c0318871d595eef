//! SQLite on Everbyte volumes.
//!
//! Owns a file system for SQLite (a "VFS") with databases on volumes of a pool, or on any other
//! devices with atomic writes, in this process, without a kernel or a socket in between. A commit
//! is one atomic write of the device, by its own log: SQLite's journal is not written at all.
//!
//! ```
//! use std::sync::Arc;
//!
//! use everbyte_block::BlockOptions;
//! use everbyte_media::{Mapped, MediaOptions};
//! use everbyte_pool::{OpenOptions, Pool};
//! use everbyte_sqlite::{Store, VfsOptions};
//! use rusqlite::{Connection, OpenFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let medium = Mapped::anonymous(64 << 20, &MediaOptions::new())?;
//! Pool::format(&medium, 8, [1; 16])?;
//! let pool = Arc::new(Pool::open(
//!     Arc::new(medium),
//!     everbyte_block::kinds(),
//!     &OpenOptions::default(),
//! )?);
//! let store = Store::new(pool);
//! store.create_database("ledger", 16 << 20, &BlockOptions::default())?;
//!
//! let _vfs = everbyte_sqlite::register("everbyte", &store, VfsOptions::default())?;
//! let db = Connection::open_with_flags_and_vfs("ledger", OpenFlags::default(), "everbyte")?;
//! db.execute_batch("CREATE TABLE entry (amount INTEGER); INSERT INTO entry VALUES (42);")?;
//! db.execute("UPDATE entry SET amount = 43", [])?;
//! assert_eq!(store.activity("ledger")?.batches_committed, 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Atomic batches
//! A SQLite built with `SQLITE_ENABLE_BATCH_ATOMIC_WRITE` has batches: [`has_batch_atomic`] reports it, and
//! [`register`] warns otherwise. The bundled one is built with the flags of `LIBSQLITE3_FLAGS` in the
//! environment. This repository's `.cargo/config.toml` sets it, and another program that uses this crate
//! must do the same. With `VfsOptions::batch_atomic` off, everything works through the rollback journal.
//!
//! A transaction uses the journal as well if it changes more than 64 MiB, or if it exceeds the undo
//! space of the volume's log or the pool's free blocks. SQLite's own batches exclude transactions
//! with more pages than the connection's page cache (`PRAGMA cache_size`), the first one of an empty
//! database, and all with `PRAGMA synchronous = OFF`.
//!
//! # Emulated batches
//! For a SQLite without batches the VFS makes them of transactions with a rollback journal, in
//! journal modes DELETE, TRUNCATE and PERSIST. It keeps the journal in memory and collects the writes
//! of the database. The end of the journal is the commit: one atomic batch of these writes. A crash
//! before it leaves the database as of the last commit, and no journal. ROLLBACK, savepoints and
//! transactions larger than the page cache work as usual, because reads see the collected writes.
//! A transaction without room in a batch moves to the journal on the volume, and its guarantees stay.
//! WAL works as without batches. With journal modes MEMORY and OFF, as everywhere, a crash can leave a
//! part of a transaction. Each of these three is reported once for each database, in SQLite's error
//! log. The extension ([`register_extension`]) reports it on standard error, too.
//!
//! # Pages without a copy
//! With `PRAGMA mmap_size = BYTES` SQLite reads pages of the first `BYTES` of a database in place
//! in the pool's memory, while no transaction of the connection writes. It copies other pages:
//! pages smaller than 4 KiB or in several pieces, holes, and all pages of a pool with emulated
//! costs. Failed memory under such a page reads as zeroes, only here, and SQLite may have used it
//! as the page before the database reports the failure: all later requests of the connection fail.
//! A database deleted from the pool (`Pool::delete_volume`) during a statement loses such pages,
//! and the statement may read other data.
//!
//! # Volumes that are renamed or deleted
//! The old name of a volume leads to its database, journals included, until its open connections
//! are closed. Until then no other database can be made or attached under that name
//! ([`DatabaseError::Moved`]), and new connections fail with `SQLITE_CANTOPEN` under either name.
//! Connections to a renamed volume continue to read, and end their writing transaction. SQLite
//! refuses later ones with `SQLITE_READONLY_DBMOVED`, unless it need open no journal for them (with
//! a WAL, with a journal held open by `PRAGMA locking_mode = EXCLUSIVE`, in journal modes MEMORY
//! and OFF), or the database is empty. With a deleted volume everything fails.
//!
//! # What is supported
//! - Journal modes DELETE, TRUNCATE, PERSIST, MEMORY and OFF. WAL only with `PRAGMA locking_mode =
//!   EXCLUSIVE` set before it, also when a database in WAL mode is opened again: connections have
//!   no shared memory.
//! - Any number of connections in this process, with SQLite's usual locks.
//! - A database has the room of its volume; beyond it, SQLite reports `SQLITE_FULL`.
//! - Temporary files are left to SQLite's default VFS.
//! - Unsupported: one commit over several attached databases. SQLite uses a super-journal for it. A
//!   transaction that needs one fails as a whole if the main database, or one that it writes
//!   through a rollback journal, is of this VFS. SQLite makes one if several databases are written.
//!   After `BEGIN IMMEDIATE`, databases opened for writing without writes count as well.
//! - Databases with a WAL, with journal mode MEMORY or OFF, or with `synchronous = OFF` need no
//!   super-journal. A single other database with them needs none, and none is needed if the main
//!   one is `:memory:` or temporary. Such databases **commit separately**: an error or a crash in
//!   between leaves some of them changed and others unchanged.
//! - `VACUUM INTO` needs an existing database.
//!
//! # Durability
//! A commit with atomic batches is durable on return. So is one with a journal, with `synchronous`
//! at `FULL`, SQLite's default; deletions of journals are durable.
//!
//! With [`Durability::AtCheckpoint`] commits do not wait for that. A volume makes its own
//! checkpoints when its pool's timer says so (`Pool::start_timer`) or its log fills, and with every
//! flush; a crash takes the transactions that were committed since the last one, at most a few
//! seconds of them with the usual timer, and without a timer as many as the log holds. What it
//! leaves is the database as it was after some commit, with every commit before that one:
//! - with atomic batches because a batch is undone as a whole or not at all;
//! - with a journal or a WAL because all files of a database are on one device, which keeps the
//!   order of its writes. The crash cuts their sequence at one point, as the end of the process
//!   would have, and from there SQLite recovers: a journal that is there at that point was there
//!   before the pages that it can restore were changed, a frame of the WAL before the commit that
//!   it belongs to. Syncs would only say how far along the sequence the cut must be. (Not with
//!   journal modes MEMORY and OFF, where the end of a process spoils the database as well.)
//!
//! The end of a connection flushes nothing either; `Pool::close` does.
//!
//! Errors go to SQLite's error log (`SQLITE_CONFIG_LOG`) in words; SQLite itself knows only codes.

mod batch;
mod database;
mod durability;
mod error;
mod ffi;
mod file;
mod format;
mod host;
mod journal;
mod locks;
mod places;
mod pools;
mod registration;
mod store;
mod super_journal;
mod vfs;

pub use database::Activity;
pub use durability::Durability;
pub use error::DatabaseError;
pub use format::{FileKind, volume_bytes};
pub use pools::{OpenPool, PoolStore};
pub use registration::{RegisterError, Registration, VfsOptions, register_extension};
#[cfg(feature = "linked")]
pub use registration::{has_batch_atomic, register};
pub use store::Store;
