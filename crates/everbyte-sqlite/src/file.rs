//! A connection's open file: one file of a database, and its lock.
//!
//! Owns the answers to SQLite's questions about a file, the device characteristics among them.
//! Knows no C.

use std::ffi::c_int;

use crate::ffi;
use everbyte_device::MappedBytes;
use everbyte_media::{BLOCK, BLOCK_U64};

use crate::database::Commits;
use crate::error::DatabaseError;
use crate::format::FileKind;
use crate::locks::Level;
use crate::store::DatabaseHandle;
use crate::super_journal::{JOURNAL_HEAD_BYTES, NUMBER_BYTES, is_name, may_be_name};

/// Device characteristics of every file of a database:
///
/// - ATOMIC512 to ATOMIC4K: a write within a block is never torn, and every file begins at a block.
///   (Larger writes are atomic as well if the log has room for them, without a guarantee.)
/// - SAFE_APPEND: bytes are written before their length.
/// - SEQUENTIAL: a device of a store keeps the order of its writes, see `Store::attach`. A volume
///   does: after a crash it is in the state of its last checkpoint, and a checkpoint has every
///   write answered before it. All files of a database are on one device, and none is written with
///   FUA before all earlier writes are durable, so that no write overtakes another. So SQLite need
///   not sync the journal before it writes to the database.
/// - POWERSAFE_OVERWRITE: a write changes no byte but those it is for, whenever power fails.
///
/// Not UNDELETABLE_WHEN_OPEN: an open journal can be deleted.
const CHARACTERISTICS: c_int = ffi::SQLITE_IOCAP_ATOMIC512
    | ffi::SQLITE_IOCAP_ATOMIC1K
    | ffi::SQLITE_IOCAP_ATOMIC2K
    | ffi::SQLITE_IOCAP_ATOMIC4K
    | ffi::SQLITE_IOCAP_SAFE_APPEND
    | ffi::SQLITE_IOCAP_SEQUENTIAL
    | ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE;

/// An open file.
pub(crate) struct File {
    database: DatabaseHandle,
    kind: FileKind,
    level: Level,
    batch_atomic: bool,
    commits: Commits,
    delete_on_close: bool,
    /// Bytes from the start of the database for use in place.
    lent_max: u64,
    /// Pages in use, with their offsets: a few at a time.
    lent: Vec<(u64, MappedBytes)>,
}

impl File {
    /// Opens a file of `database` by SQLite's `flags`. New connections to a moved database are
    /// refused. Open ones find their journals.
    pub(crate) fn open(
        database: DatabaseHandle,
        kind: FileKind,
        flags: c_int,
        batch_atomic: bool,
        commits: Commits,
    ) -> Result<Self, DatabaseError> {
        if kind == FileKind::Main && database.has_moved() {
            return Err(DatabaseError::Moved { name: database.name().to_owned() });
        }
        if database.length(kind).is_none() {
            if flags & ffi::SQLITE_OPEN_CREATE == 0 {
                return Err(DatabaseError::NoFile { name: database.name().to_owned(), kind });
            }
            database.create(kind, commits)?;
        }
        let delete_on_close = flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0;
        let (level, lent_max, lent) = (Level::None, 0, Vec::new());
        Ok(Self { database, kind, level, batch_atomic, commits, delete_on_close, lent_max, lent })
    }

    /// Returns the actual flags of the opening.
    pub(crate) fn flags(&self, asked: c_int) -> c_int {
        if self.database.is_read_only() {
            (asked & !ffi::SQLITE_OPEN_READWRITE) | ffi::SQLITE_OPEN_READONLY
        } else {
            asked
        }
    }

    pub(crate) fn characteristics(&self) -> c_int {
        let batch_atomic = if self.batch_atomic { ffi::SQLITE_IOCAP_BATCH_ATOMIC } else { 0 };
        CHARACTERISTICS | batch_atomic
    }

    /// Returns true if the database's volume is gone or has another name now. SQLite opens no journal
    /// for a new transaction then.
    pub(crate) fn has_moved(&self) -> bool {
        self.database.has_moved()
    }

    /// Fills the start of `out` and returns the number of bytes: zero in a journal that was deleted
    /// while open. SQLite inspects a journal that may be hot, and its writer may roll back at that
    /// moment.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize, DatabaseError> {
        match self.database.read(self.kind, offset, out) {
            Err(DatabaseError::NoFile { .. }) if self.kind != FileKind::Main => Ok(0),
            read => read,
        }
    }

    /// Bytes from the start of the file for use in place.
    pub(crate) fn lent_max(&self) -> u64 {
        self.lent_max
    }

    pub(crate) fn set_lent_max(&mut self, bytes: u64) {
        self.lent_max = bytes;
    }

    /// Returns the place of bytes of the file, if SQLite may use them there.
    ///
    /// The conditions: whole blocks without bytes that others write; of the database, whose blocks
    /// change only under EXCLUSIVE; while this connection holds SHARED and no more, so that no
    /// connection has EXCLUSIVE. This holds while the bytes are in use, because SQLite returns a
    /// connection's pages before its lock, and before it writes to them. `check_unused` enforces
    /// this.
    pub(crate) fn lend(&mut self, offset: u64, len: usize) -> Option<*const u8> {
        let is_whole = offset.is_multiple_of(BLOCK_U64) && len.is_multiple_of(BLOCK) && len > 0;
        let is_within = offset.checked_add(len as u64).is_some_and(|end| end <= self.lent_max);
        let is_stable = self.kind == FileKind::Main && self.level == Level::Shared;
        if !(is_whole && is_within && is_stable) {
            return None;
        }
        let lent = self.database.lend(offset, len)?;
        self.lent.push((offset, lent));
        Some(lent.address)
    }

    /// Ends one use of the bytes from `offset` on.
    pub(crate) fn take_back(&mut self, offset: u64) -> Result<(), DatabaseError> {
        match self.lent.iter().rposition(|(at, _)| *at == offset) {
            Some(index) => self.database.take_back(&self.lent.swap_remove(index).1),
            None => Ok(()),
        }
    }

    /// Refuses to change bytes used by SQLite in place.
    fn check_unused(&self, from: u64, to: u64) -> Result<(), DatabaseError> {
        let is_in = |(at, lent): &&(u64, MappedBytes)| *at < to && from < at + lent.len as u64;
        match self.lent.iter().find(is_in) {
            Some(&(offset, _)) => {
                Err(DatabaseError::InUse { name: self.database.name().to_owned(), offset })
            }
            None => Ok(()),
        }
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), DatabaseError> {
        self.check_unused(offset, offset.saturating_add(data.len() as u64))?;
        if self.is_super_journal_name(offset, data)? {
            return Err(DatabaseError::several_databases());
        }
        self.database.write(self.kind, offset, data, self.commits)
    }

    /// Returns true if SQLite would put the name of a super-journal into the journal.
    fn is_super_journal_name(&self, offset: u64, data: &[u8]) -> Result<bool, DatabaseError> {
        let before = offset.checked_sub(NUMBER_BYTES as u64);
        let Some(before) = before.filter(|_| self.kind == FileKind::Journal && may_be_name(data))
        else {
            return Ok(false);
        };
        let (mut head, mut number) = ([0; JOURNAL_HEAD_BYTES], [0; NUMBER_BYTES]);
        self.read(0, &mut head)?;
        self.read(before, &mut number)?;
        Ok(is_name(&head, number))
    }

    pub(crate) fn truncate(&self, length: u64) -> Result<(), DatabaseError> {
        self.check_unused(length, u64::MAX)?;
        self.database.truncate(self.kind, length, self.commits)
    }

    pub(crate) fn sync(&self) -> Result<(), DatabaseError> {
        self.database.sync(self.commits.durability)
    }

    /// Bytes in the file, 0 for a file deleted while open.
    pub(crate) fn length(&self) -> u64 {
        self.database.length(self.kind).unwrap_or(0)
    }

    /// Raises its lock; returns false if other connections are in the way.
    pub(crate) fn lock(&mut self, wanted: Level) -> bool {
        self.level = self.database.locks.raise(self.level, wanted);
        self.level >= wanted
    }

    pub(crate) fn unlock(&mut self, to: Level) {
        if self.commits.emulated && self.level > Level::Shared && to <= Level::Shared {
            self.database.abandon_transaction();
        }
        self.level = self.database.locks.lower(self.level, to);
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.database.locks.is_reserved()
    }

    pub(crate) fn begin_batch(&self) -> Result<(), DatabaseError> {
        if self.level < Level::Exclusive {
            let name = self.database.name().to_owned();
            let reason = "the connection holds no exclusive lock".to_owned();
            return Err(DatabaseError::Batch { name, reason });
        }
        self.database.begin_batch()
    }

    pub(crate) fn commit_batch(&self) -> Result<(), DatabaseError> {
        self.database.commit_batch(self.commits.durability)
    }

    pub(crate) fn roll_back_batch(&self) {
        self.database.roll_back_batch();
    }

    /// Returns true if SQLite may write this file in atomic batches.
    pub(crate) fn has_batches(&self) -> bool {
        self.batch_atomic && self.kind == FileKind::Main
    }

    /// Closes it.
    pub(crate) fn close(mut self) -> Result<(), DatabaseError> {
        if self.level == Level::Exclusive {
            self.database.roll_back_batch();
        }
        self.unlock(Level::None);
        if self.delete_on_close && self.database.length(self.kind).is_some() {
            self.database.delete(self.kind, self.commits.durability)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use everbyte_block::BlockOptions;
    use everbyte_media::{Mapped, MediaOptions};
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;
    use crate::durability::Durability;
    use crate::store::Store;

    #[test]
    fn journal_deleted_while_open_reads_as_empty() {
        let medium = Mapped::anonymous(16 << 20, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 8, [1; 16]).unwrap();
        let options = OpenOptions::default();
        let pool = Pool::open(Arc::new(medium), everbyte_block::kinds(), &options).unwrap();
        let store = Store::new(Arc::new(pool));
        store.create_database("v", 1 << 20, &BlockOptions::default()).unwrap();
        let open = |flags| {
            let commits = Commits { emulated: false, durability: Durability::AtCommit };
            let database = store.database("v").unwrap();
            File::open(database, FileKind::Journal, flags, false, commits).unwrap()
        };
        open(ffi::SQLITE_OPEN_CREATE).write(0, b"head").unwrap();
        let journal = open(0);
        let mut first = [0];
        assert_eq!(journal.read(0, &mut first).unwrap(), 1);
        let deleted = store.database("v").unwrap();
        deleted.delete(FileKind::Journal, Durability::AtCommit).unwrap();
        assert_eq!(journal.read(0, &mut first).unwrap(), 0);
        assert_eq!(journal.length(), 0);
    }
}
