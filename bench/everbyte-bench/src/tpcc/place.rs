//! Places of a database, its journal mode there, and the copy of a loaded database to a place.
//!
//! Invariant: at each place pages have 4 KiB, and the page cache has the size of the setting.

use std::ffi::c_int;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use everbyte_device::AtomicWrites;
use everbyte_sqlite::{Durability, Registration, Store, VfsOptions, register};
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

const NAME: &str = "tpcc.db";
const PAGE_BYTES: u32 = 4096;

/// Place of a database.
#[derive(Clone)]
pub(crate) enum Place {
    /// A device, through the VFS of `everbyte-sqlite`.
    Device(Arc<dyn AtomicWrites>),
    /// A directory, through SQLite's VFS.
    Directory(PathBuf),
}

/// Means of SQLite to commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JournalMode {
    /// An atomic write of the device, without a journal.
    Batch,
    /// A rollback journal. SQLite deletes it after each commit.
    Delete,
    /// A write-ahead log with exclusive locking.
    Wal,
}

/// Settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) journal: JournalMode,
    pub(crate) durability: Durability,
    /// SQLite's page cache.
    pub(crate) cache_mib: u32,
}

/// An open database. The connection is dropped before its VFS.
pub(crate) struct Opened {
    pub(crate) db: Connection,
    pub(super) _vfs: Option<(Registration, Arc<Store>)>,
}

impl Place {
    /// Opens the database. With [`Durability::AtCheckpoint`] in a directory, the kernel decides when to write: a WAL has
    /// `synchronous = NORMAL`, and a power failure can lose the latest transactions. A journal has `synchronous = OFF`,
    /// and a power failure can lose the database.
    ///
    /// # Errors
    /// `setting` requires atomic writes and the place has none; an error of SQLite or of the device.
    pub(crate) fn open(&self, setting: &Setting) -> Result<Opened> {
        let batch_atomic = setting.journal == JournalMode::Batch;
        let opened = self.connect(batch_atomic, setting.durability)?;
        let db = &opened.db;
        let lazy = setting.durability == Durability::AtCheckpoint;
        let synchronous = match (self, setting.journal) {
            (Self::Directory(_), JournalMode::Batch) => {
                bail!("files in a directory have no atomic writes")
            }
            (Self::Directory(_), JournalMode::Delete) if lazy => "OFF",
            (Self::Directory(_), JournalMode::Wal) if lazy => "NORMAL",
            _ => "FULL",
        };
        // With exclusive locks, mode DELETE keeps the journal.
        let (journal, locking) = match setting.journal {
            JournalMode::Batch | JournalMode::Delete => ("delete", "normal"),
            JournalMode::Wal => ("wal", "exclusive"),
        };
        // The database can be in WAL mode. A device opens such a database only with exclusive locks.
        set(db, "locking_mode = exclusive", "exclusive")?;
        set(db, &format!("journal_mode = {journal}"), journal)?;
        set(db, &format!("locking_mode = {locking}"), locking)?;
        db.execute_batch(&format!(
            "PRAGMA synchronous = {synchronous}; PRAGMA cache_size = -{};",
            u64::from(setting.cache_mib) << 10
        ))?;
        Ok(opened)
    }

    /// Replaces the database by a durable copy of `source`.
    ///
    /// # Errors
    /// An error of SQLite, the device or the system.
    pub(crate) fn fill(&self, source: &Connection) -> Result<()> {
        if let Self::Directory(folder) = self {
            for suffix in ["", "-journal", "-wal"] {
                let _absent = fs::remove_file(folder.join(format!("{NAME}{suffix}")));
            }
        }
        let mut opened = self.connect(false, Durability::AtCheckpoint)?;
        // The database can be in WAL mode, as above.
        set(&opened.db, "locking_mode = exclusive", "exclusive")?;
        set(&opened.db, "journal_mode = off", "off")?;
        opened.db.execute_batch("PRAGMA synchronous = OFF")?;
        Backup::new(source, &mut opened.db)?
            .run_to_completion(c_int::MAX, Duration::ZERO, None)
            .context("cannot copy the database")?;
        drop(opened);
        self.settle()
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// An error of the device or the system.
    pub(crate) fn settle(&self) -> Result<()> {
        match self {
            Self::Device(device) => Ok(device.flush()?),
            Self::Directory(folder) => {
                let wal = folder.join(format!("{NAME}-wal"));
                for path in [folder.join(NAME), wal] {
                    if let Ok(file) = File::open(path) {
                        file.sync_all()?;
                    }
                }
                Ok(())
            }
        }
    }

    fn connect(&self, batch_atomic: bool, durability: Durability) -> Result<Opened> {
        // Each connection registers a VFS of its own, and SQLite needs distinct names.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (db, vfs) = match self {
            Self::Directory(folder) => {
                let db = Connection::open(folder.join(NAME));
                (db.with_context(|| format!("cannot open {}", folder.display()))?, None)
            }
            Self::Device(device) => {
                let store = Store::of_devices();
                store.attach(NAME, Arc::clone(device))?;
                let name = format!("everbyte-bench-{}", NEXT.fetch_add(1, Ordering::Relaxed));
                let options = VfsOptions { batch_atomic, durability, ..VfsOptions::default() };
                let registration = register(&name, &store, options)?;
                let flags = OpenFlags::default();
                let db = Connection::open_with_flags_and_vfs(NAME, flags, name.as_str())?;
                (db, Some((registration, store)))
            }
        };
        Ok(Opened { db, _vfs: vfs })
    }
}

/// A new database in memory, to be filled and copied to places. It has no journal, so no transaction rolls back.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn new_source() -> Result<Connection> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}; PRAGMA synchronous = OFF;"))?;
    set(&db, "journal_mode = off", "off")?;
    Ok(db)
}

/// Bytes of the database of a connection.
///
/// # Errors
/// An error of SQLite.
pub(crate) fn database_bytes(db: &Connection) -> Result<u64> {
    let pages: u32 = db.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    Ok(u64::from(pages) * u64::from(PAGE_BYTES))
}

/// Sets a pragma, and compares its answer with `expected`.
///
/// # Errors
/// Another answer; an error of SQLite.
fn set(db: &Connection, pragma: &str, expected: &str) -> Result<()> {
    let answer: String = db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))?;
    ensure!(answer == expected, "PRAGMA {pragma} answers {answer}");
    Ok(())
}
