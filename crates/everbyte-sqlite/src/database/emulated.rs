//! Emulated batches, for a SQLite without batches.
//!
//! SQLite writes a rollback journal, then the database, and ends the journal to commit: it deletes the journal, cuts it
//! to nothing, or zeroes its header. Invariants: while the journal is volatile, the device has no live journal, and the
//! database as of the last commit, so a crash is a rollback. The end of the journal executes the collected writes as
//! one batch. If a batch cannot hold them, the device first gets the whole journal and then the writes, and SQLite's
//! own protocol continues.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use everbyte_device::Fua;

use super::{Commits, Database, Files, count};
use crate::batch::Batch;
use crate::durability::Durability;
use crate::error::DatabaseError;
use crate::ffi;
use crate::format::FileKind;
use crate::host;
use crate::journal::ends_journal;

/// Facts reported once for each database.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    DurableJournal = 1,
    Wal = 2,
    Unjournaled = 4,
}

impl Database {
    /// Opens the batch of an emulated commit, unless one is open. Returns false if the journal is not volatile.
    pub(super) fn begin_emulated_batch(&self, files: &mut Files) -> Result<bool, DatabaseError> {
        let is_emulated = files.journal.as_ref().is_some_and(|journal| !journal.is_empty());
        if is_emulated && files.batch.is_none() {
            self.open_batch(files)?;
        }
        Ok(is_emulated)
    }

    /// Writes to the volatile journal, which begins with a write at the start of a journal without a transaction.
    /// Returns false if the journal is on the device.
    pub(super) fn write_volatile(
        &self,
        files: &mut Files,
        offset: u64,
        data: &[u8],
        commits: Commits,
    ) -> Result<bool, DatabaseError> {
        let ends = ends_journal(offset, data);
        if files.journal.is_none() {
            let begins = commits.emulated && offset == 0 && !ends;
            let is_there = files.header.length(FileKind::Journal).is_some();
            if !begins || !is_there || self.has_live_journal(files)? {
                return Ok(false);
            }
        }
        if ends {
            return self.end_volatile(files, commits.durability);
        }
        if files.journal.get_or_insert_default().write(offset, data) {
            return Ok(true);
        }
        self.use_durable_journal(files, "its journal is too large for memory")?;
        Ok(false)
    }

    pub(super) fn truncate_volatile(
        &self,
        files: &mut Files,
        length: u64,
        durability: Durability,
    ) -> Result<bool, DatabaseError> {
        if length == 0 {
            return self.end_volatile(files, durability);
        }
        let Some(journal) = &mut files.journal else { return Ok(false) };
        if journal.set_length(length) {
            return Ok(true);
        }
        self.use_durable_journal(files, "its journal is too large for memory")?;
        Ok(false)
    }

    /// Ends the volatile journal as SQLite ends a journal: commits the collected writes and makes the journal an
    /// empty file. Returns false if the journal is on the device, also if the device refused the batch.
    pub(super) fn end_volatile(
        &self,
        files: &mut Files,
        durability: Durability,
    ) -> Result<bool, DatabaseError> {
        if files.journal.is_none() {
            return Ok(false);
        }
        // Without a batch the transaction wrote nothing, or SQLite rolled it back from memory.
        if let Some(batch) = files.batch.take() {
            let before = files.header;
            let mut header = before;
            header.set_length(FileKind::Main, Some(batch.length));
            header.set_length(FileKind::Journal, None);
            match self.execute(files, &batch, header, durability) {
                Ok(()) => files.spare = batch,
                Err(error @ DatabaseError::Batch { .. }) => {
                    files.batch = Some(batch);
                    self.use_durable_journal(files, error)?;
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
            for kind in [FileKind::Main, FileKind::Journal] {
                let (was, is) =
                    (before.length(kind).unwrap_or(0), header.length(kind).unwrap_or(0));
                if is < was {
                    self.give_back(header.start(kind) + is, was - is);
                }
            }
        }
        if let Some(journal) = &mut files.journal {
            journal.clear();
        }
        Ok(true)
    }

    /// Moves the transaction of the volatile journal to the device.
    pub(super) fn use_durable_journal(
        &self,
        files: &mut Files,
        reason: impl Display,
    ) -> Result<(), DatabaseError> {
        self.report_once(Notice::DurableJournal, || {
            format!("a transaction uses the journal on the volume, not one atomic batch: {reason}")
        });
        let start = files.header.start(FileKind::Journal);
        if let Some(journal) = &files.journal {
            count(&self.counters.writes[FileKind::Journal.index()]);
            self.unflushed.store(true, Ordering::Relaxed);
            // Before its length and before the writes that it undoes: the device keeps this order.
            self.device
                .write(start, journal.bytes(), Fua::No)
                .map_err(|error| self.failed(error))?;
            let length = journal.length();
            self.set_length(files, FileKind::Journal, Some(length))?;
        }
        files.journal = None;
        // After an error SQLite rolls back, by the journal on the device.
        if let Some(batch) = files.batch.take() {
            let start = files.header.start(FileKind::Main);
            let moved = self.move_batch(files, &batch, start);
            files.spare = batch;
            moved?;
        }
        Ok(())
    }

    fn move_batch(
        &self,
        files: &mut Files,
        batch: &Batch,
        start: u64,
    ) -> Result<(), DatabaseError> {
        for (at, data) in batch.writes() {
            self.write_file(files, FileKind::Main, at - start, data)?;
        }
        self.truncate_file(files, FileKind::Main, batch.length)
    }

    /// Forgets the transaction of a volatile journal, as a rollback does. SQLite released its lock without an end of
    /// the journal: it leaves a failed transaction to the next connection.
    pub(crate) fn abandon_transaction(&self) {
        let mut files = self.files.write();
        if files.journal.as_ref().is_some_and(|journal| !journal.is_empty()) {
            files.journal = None;
            if let Some(batch) = files.batch.take() {
                files.spare = batch;
            }
        }
    }

    /// Returns true if a transaction may have to be rolled back by the journal on the device.
    fn has_live_journal(&self, files: &Files) -> Result<bool, DatabaseError> {
        if files.header.length(FileKind::Journal).unwrap_or(0) == 0 {
            return Ok(false);
        }
        // As SQLite decides: a journal without a transaction begins with a zero.
        let mut first = [0];
        let start = files.header.start(FileKind::Journal);
        self.device.read(start, &mut first).map_err(|error| self.failed(error))?;
        Ok(first != [0])
    }

    /// Reports a write of the database on the device without anything to undo it.
    pub(super) fn report_unjournaled(&self, files: &Files) -> Result<(), DatabaseError> {
        let has_wal = files.header.length(FileKind::Wal).unwrap_or(0) > 0;
        if !has_wal && !self.is_reported(Notice::Unjournaled) && !self.has_live_journal(files)? {
            self.report_once(Notice::Unjournaled, || {
                "journal_mode is MEMORY or OFF: after a crash a part of a transaction can be there"
                    .to_owned()
            });
        }
        Ok(())
    }

    fn is_reported(&self, notice: Notice) -> bool {
        self.reported.load(Ordering::Relaxed) & notice as u8 != 0
    }

    pub(super) fn report_once(&self, notice: Notice, message: impl FnOnce() -> String) {
        if self.reported.fetch_or(notice as u8, Ordering::Relaxed) & notice as u8 == 0 {
            let message = format!("database {}: {}", self.name, message());
            host::report(ffi::SQLITE_WARNING, &message);
        }
    }
}
