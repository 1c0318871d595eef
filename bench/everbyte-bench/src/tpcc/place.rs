//! Places of a database, its way to commit there, and the copy of a loaded one to it.
//!
//! Knows nothing of TPC-C. Invariant: whatever the place, pages have 4 KiB and the page cache the
//! same size.

use std::ffi::c_int;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use everbyte_device::AtomicWrites;
use everbyte_sqlite::{Activity, Durability, Registration, Store, VfsOptions, register};
use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

const NAME: &str = "tpcc.db";
const PAGE_BYTES: u32 = 4096;

/// Place of a database.
#[derive(Clone)]
pub(crate) enum Place {
    /// On a device, through our own file system for SQLite.
    Device(Arc<dyn AtomicWrites>),
    /// In a directory, through SQLite's.
    Directory(PathBuf),
}

/// SQLite's way to commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum JournalMode {
    /// By an atomic write of the device, without a journal.
    Batch,
    /// With a rollback journal, which is deleted after every commit.
    Delete,
    /// With a write-ahead log and exclusive locking.
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

/// An open database. The connection is dropped before the file system that it came through.
pub(crate) struct Opened {
    pub(crate) db: Connection,
    ours: Option<(Registration, Arc<Store>)>,
}

impl Opened {
    /// Returns the counts of requests to the device since the database was opened, if there is one.
    ///
    /// # Errors
    /// None that is known of: the database is open.
    pub(crate) fn activity(&self) -> Result<Option<Activity>> {
        let store = self.ours.as_ref().map(|(_, store)| store);
        Ok(store.map(|store| store.activity(NAME)).transpose()?)
    }
}

impl Place {
    /// Opens the database that is there. With [`Durability::AtCheckpoint`] in a directory, SQLite
    /// leaves it to the kernel when to write: with a WAL this is `synchronous = NORMAL`, which may
    /// lose the latest transactions; with a journal it is `synchronous = OFF`, which may lose the
    /// database if power fails.
    ///
    /// # Errors
    /// There are no atomic writes where `setting` wants them; SQLite's, the device's.
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
        // With exclusive locks, the mode DELETE would not delete the journal.
        let (journal, locking) = match setting.journal {
            JournalMode::Batch | JournalMode::Delete => ("delete", "normal"),
            JournalMode::Wal => ("wal", "exclusive"),
        };
        // A database in WAL mode may be there, which devices open with exclusive locks only.
        set(db, "locking_mode = exclusive", "exclusive")?;
        set(db, &format!("journal_mode = {journal}"), journal)?;
        set(db, &format!("locking_mode = {locking}"), locking)?;
        db.execute_batch(&format!(
            "PRAGMA synchronous = {synchronous}; PRAGMA cache_size = -{};",
            u64::from(setting.cache_mib) << 10
        ))?;
        Ok(opened)
    }

    /// Copies `source` there, durably, over the database that was there.
    ///
    /// # Errors
    /// SQLite's, the device's, the system's.
    pub(crate) fn fill(&self, source: &Connection) -> Result<()> {
        if let Self::Directory(folder) = self {
            for suffix in ["", "-journal", "-wal"] {
                let _absent = fs::remove_file(folder.join(format!("{NAME}{suffix}")));
            }
        }
        let mut opened = self.connect(false, Durability::AtCheckpoint)?;
        // A database in WAL mode may be there.
        set(&opened.db, "locking_mode = exclusive", "exclusive")?;
        set(&opened.db, "journal_mode = off", "off")?;
        opened.db.execute_batch("PRAGMA synchronous = OFF")?;
        Backup::new(source, &mut opened.db)?
            .run_to_completion(c_int::MAX, Duration::ZERO, None)
            .context("cannot copy the database")?;
        drop(opened);
        self.settle()
    }

    /// Makes durable all writes there.
    ///
    /// # Errors
    /// The device's, the system's.
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
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let device = match self {
            Self::Directory(folder) => {
                let db = Connection::open(folder.join(NAME))
                    .with_context(|| format!("cannot open a database in {}", folder.display()))?;
                return Ok(Opened { db, ours: None });
            }
            Self::Device(device) => device,
        };
        let store = Store::of_devices();
        store.attach(NAME, Arc::clone(device))?;
        let vfs = format!("everbyte-bench-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let options = VfsOptions { batch_atomic, durability, ..VfsOptions::default() };
        let registration = register(&vfs, &store, options)?;
        let db = Connection::open_with_flags_and_vfs(NAME, OpenFlags::default(), vfs.as_str())?;
        Ok(Opened { db, ours: Some((registration, store)) })
    }
}

/// A new database in memory, or in a new file, to be loaded and then copied to its places. It has
/// no journal, so that no transaction can be rolled back.
///
/// # Errors
/// SQLite's.
pub(crate) fn new_source(file: Option<&Path>) -> Result<Connection> {
    let db = match file {
        Some(path) => Connection::open(path)?,
        None => Connection::open_in_memory()?,
    };
    db.execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}; PRAGMA synchronous = OFF;"))?;
    set(&db, "journal_mode = off", "off")?;
    Ok(db)
}

/// Bytes of a connection's database.
///
/// # Errors
/// SQLite's.
pub(crate) fn database_bytes(db: &Connection) -> Result<u64> {
    let pages: u32 = db.query_row("PRAGMA page_count", [], |row| row.get(0))?;
    Ok(u64::from(pages) * u64::from(PAGE_BYTES))
}

/// Sets a pragma that answers with a word, which must be `expected`.
///
/// # Errors
/// It is another; SQLite's.
fn set(db: &Connection, pragma: &str, expected: &str) -> Result<()> {
    let answer: String = db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))?;
    if answer != expected {
        bail!("PRAGMA {pragma} answers {answer}");
    }
    Ok(())
}
