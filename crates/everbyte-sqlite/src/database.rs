//! A database on a device: its three files, and atomic batches of writes.
//!
//! Owns the header in memory and the moment of its write. Invariants: bytes are written before the
//! length that covers them, so that after a crash with any prefix of the writes, no file has bytes
//! that were never written to it. A batch is only in memory until its commit, which is one atomic
//! write, header included. That write is durable only with everything before it. Knows of SQLite
//! only its files, and of the device only its contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use everbyte_device::{
    AtomicWriteError, AtomicWrites, DeviceError, DirectAccess, Fua, MappedBytes, WriteRequest,
};
use parking_lot::RwLock;

use crate::batch::Batch;
use crate::durability::Durability;
use crate::error::DatabaseError;
use crate::format::{DatabaseHeader, FileKind};
use crate::journal::VolatileJournal;
use crate::locks::LockTable;
use crate::places::Places;

mod emulated;

use emulated::Notice;

/// Counts of the requests to a database since the first of its present connections opened it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Writes to the database itself, those in batches included.
    pub main_writes: u64,
    /// Writes to the rollback journal on the device.
    pub journal_writes: u64,
    /// Writes to the WAL.
    pub wal_writes: u64,
    /// Syncs of any of its files.
    pub syncs: u64,
    /// Committed batches.
    pub batches_committed: u64,
    /// Batches refused by the device, so that a journal on the device was used.
    pub batches_refused: u64,
    /// Reads of the database itself: copies.
    pub main_reads: u64,
    /// Pages of the database used by SQLite in place.
    pub pages_lent: u64,
}

#[derive(Debug, Default)]
struct Counters {
    writes: [AtomicU64; 3],
    syncs: AtomicU64,
    batches_committed: AtomicU64,
    batches_refused: AtomicU64,
    main_reads: AtomicU64,
    pages_lent: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The commits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commits {
    /// Makes an atomic batch of a transaction with a rollback journal.
    pub(crate) emulated: bool,
    pub(crate) durability: Durability,
}

struct Files {
    header: DatabaseHeader,
    batch: Option<Batch>,
    /// The last batch, kept for its memory.
    spare: Batch,
    /// The rollback journal of an emulated batch. An empty one is an empty file.
    journal: Option<VolatileJournal>,
    /// The reason why the database is unusable.
    broken: Option<String>,
}

/// An open database.
pub(crate) struct Database {
    name: String,
    device: Arc<dyn AtomicWrites>,
    device_bytes: u64,
    files: RwLock<Files>,
    /// True if writes may be unflushed. Set under the files' lock for writing and cleared under it,
    /// so that no write comes between a flush and the clearing.
    unflushed: AtomicBool,
    counters: Counters,
    /// A bit for each reported [`Notice`].
    reported: AtomicU8,
    /// Formerly lent pages of the database.
    places: Places,
    pub(crate) locks: LockTable,
}

impl Database {
    /// Opens the database on `device`. An unwritten device becomes an empty database.
    pub(crate) fn open(name: &str, device: Arc<dyn AtomicWrites>) -> Result<Self, DatabaseError> {
        let geometry = device.geometry();
        let no_database = |what| DatabaseError::NoDatabase { name: name.to_owned(), what };
        let failed = |source| DatabaseError::Device { name: name.to_owned(), source };
        let device_bytes = geometry.size_bytes;
        let fresh = DatabaseHeader::new(device_bytes).map_err(no_database)?;
        let header = if is_unwritten(&*device).map_err(failed)? && !geometry.read_only {
            device.write(0, &fresh.encode(), Fua::No).map_err(failed)?;
            device.flush().map_err(failed)?;
            fresh
        } else {
            let mut bytes = [0; DatabaseHeader::BYTES];
            device.read(0, &mut bytes).map_err(failed)?;
            DatabaseHeader::parse(&bytes, device_bytes).map_err(no_database)?
        };
        Ok(Self {
            name: name.to_owned(),
            device,
            device_bytes,
            files: RwLock::new(Files {
                header,
                batch: None,
                spare: Batch::default(),
                journal: None,
                broken: None,
            }),
            // The last user may not have flushed.
            unflushed: AtomicBool::new(true),
            counters: Counters::default(),
            reported: AtomicU8::new(0),
            places: Places::default(),
            locks: LockTable::default(),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.device.geometry().read_only
    }

    /// Returns the bytes in a file, `None` if it does not exist. An open batch counts.
    pub(crate) fn length(&self, kind: FileKind) -> Option<u64> {
        let files = self.files.read();
        files.length(kind)
    }

    pub(crate) fn activity(&self) -> Activity {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let writes = |kind: FileKind| get(&self.counters.writes[kind.index()]);
        Activity {
            main_writes: writes(FileKind::Main),
            journal_writes: writes(FileKind::Journal),
            wal_writes: writes(FileKind::Wal),
            syncs: get(&self.counters.syncs),
            batches_committed: get(&self.counters.batches_committed),
            batches_refused: get(&self.counters.batches_refused),
            main_reads: get(&self.counters.main_reads),
            pages_lent: get(&self.counters.pages_lent),
        }
    }

    /// Fills the start of `out` with a file's bytes from `offset` on. Returns how many there were.
    pub(crate) fn read(
        &self,
        kind: FileKind,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, DatabaseError> {
        let files = self.files.read();
        self.check(&files)?;
        if kind == FileKind::Main {
            count(&self.counters.main_reads);
        }
        let length = files.length(kind).ok_or_else(|| self.no_file(kind))?;
        let there = length.saturating_sub(offset).min(out.len() as u64);
        let there = usize::try_from(there).expect("at most `out`");
        let out = &mut out[..there];
        if there == 0 {
            return Ok(0);
        }
        if let Some(journal) = files.journal.as_ref().filter(|_| kind == FileKind::Journal) {
            journal.read(offset, out);
        } else {
            let at = files.header.start(kind) + offset;
            self.device.read(at, out).map_err(|error| self.failed(error))?;
            if let Some(batch) = files.batch.as_ref().filter(|_| kind == FileKind::Main) {
                batch.read_over(at, out);
            }
        }
        Ok(there)
    }

    /// Returns the place of whole blocks of the database, all of which exist; `None` if they must
    /// be read. They stay there until the database is written, for which the caller has SQLite's
    /// lock.
    pub(crate) fn lend(&self, offset: u64, len: usize) -> Option<MappedBytes> {
        // The places of a volume that was deleted are those of others' bytes.
        let access = self.device.transport()?.direct_access()?;
        let lent = self.places.find(offset, len).or_else(|| self.look_up(access, offset, len))?;
        count(&self.counters.pages_lent);
        Some(lent)
    }

    /// Asks the device for the bytes to lend, and keeps the answer.
    #[cold]
    fn look_up(&self, access: &dyn DirectAccess, offset: u64, len: usize) -> Option<MappedBytes> {
        let files = self.files.read();
        if files.broken.is_some() || files.batch.is_some() {
            return None;
        }
        let end = offset.checked_add(len as u64)?;
        if end > files.header.length(FileKind::Main)? {
            return None;
        }
        let lent = access.map_range(files.header.start(FileKind::Main) + offset, len)?;
        // Under the files' lock, so that a database that breaks concurrently forgets it.
        let capacity = files.header.capacity(FileKind::Main, self.device_bytes);
        self.places.keep(offset, &lent, capacity);
        Some(lent)
    }

    /// Ends the use of lent bytes. If memory failed under them, SQLite may have read zeroes, and
    /// the database is unusable.
    pub(crate) fn take_back(&self, lent: &MappedBytes) -> Result<(), DatabaseError> {
        match self.device.transport().and_then(|transport| transport.direct_access()) {
            Some(access) if access.has_failed(lent) => {
                let reason = format!("memory failed under a page in use, at {}", lent.place);
                Err(self.broken(&mut self.files.write(), reason))
            }
            _ => Ok(()),
        }
    }

    /// Writes to a file and extends it if necessary. A gap before the new bytes reads as zeroes.
    pub(crate) fn write(
        &self,
        kind: FileKind,
        offset: u64,
        data: &[u8],
        commits: Commits,
    ) -> Result<(), DatabaseError> {
        let mut files = self.files.write();
        self.check(&files)?;
        self.check_capacity(&files, kind, offset.saturating_add(data.len() as u64))?;
        let is_in_memory = match kind {
            FileKind::Main => self.write_to_batch(&mut files, offset, data)?,
            FileKind::Journal => self.write_volatile(&mut files, offset, data, commits)?,
            FileKind::Wal => false,
        };
        if kind == FileKind::Main || !is_in_memory {
            count(&self.counters.writes[kind.index()]);
        }
        if is_in_memory {
            return Ok(());
        }
        if kind == FileKind::Main && commits.emulated {
            self.report_unjournaled(&files)?;
        }
        self.write_file(&mut files, kind, offset, data)
    }

    /// Writes to a file on the device.
    fn write_file(
        &self,
        files: &mut Files,
        kind: FileKind,
        offset: u64,
        data: &[u8],
    ) -> Result<(), DatabaseError> {
        let length = files.header.length(kind).ok_or_else(|| self.no_file(kind))?;
        let (start, end) = (files.header.start(kind), offset.saturating_add(data.len() as u64));
        if kind == FileKind::Main {
            self.places.forget(offset.min(length)..end);
        }
        if offset > length {
            self.zero(start + length, offset - length)?;
        }
        self.unflushed.store(true, Ordering::Relaxed);
        self.device.write(start + offset, data, Fua::No).map_err(|error| self.failed(error))?;
        if end > length { self.set_length(files, kind, Some(end)) } else { Ok(()) }
    }

    /// Adds a write of the database to the open batch, or to a new one if the journal is volatile. Returns false if
    /// no batch is open, or if an emulated batch has no room for the write.
    fn write_to_batch(
        &self,
        files: &mut Files,
        offset: u64,
        data: &[u8],
    ) -> Result<bool, DatabaseError> {
        let is_emulated = self.begin_emulated_batch(files)?;
        let start = files.header.start(FileKind::Main);
        let Some(batch) = &mut files.batch else { return Ok(false) };
        let has_room = batch.zero(start + batch.length, offset.saturating_sub(batch.length))
            && batch.write(start + offset, data);
        if has_room {
            batch.length = batch.length.max(offset.saturating_add(data.len() as u64));
            return Ok(true);
        }
        self.leave_full_batch(files, is_emulated)
    }

    /// Moves the transaction of a full emulated batch to the journal on the device. SQLite itself moves its own.
    fn leave_full_batch(
        &self,
        files: &mut Files,
        is_emulated: bool,
    ) -> Result<bool, DatabaseError> {
        let reason = "it is too large for memory";
        if !is_emulated {
            return Err(self.no_batch(reason));
        }
        self.use_durable_journal(files, reason)?;
        Ok(false)
    }

    fn open_batch(&self, files: &mut Files) -> Result<(), DatabaseError> {
        let length = files.length(FileKind::Main).ok_or_else(|| self.no_file(FileKind::Main))?;
        files.batch = Some(std::mem::take(&mut files.spare).begin_again(length));
        Ok(())
    }

    /// Makes a file `length` bytes long. SQLite cuts a shrunk database after its commit, without a journal.
    pub(crate) fn truncate(
        &self,
        kind: FileKind,
        length: u64,
        commits: Commits,
    ) -> Result<(), DatabaseError> {
        let mut files = self.files.write();
        self.check(&files)?;
        self.check_capacity(&files, kind, length)?;
        let is_in_memory = match kind {
            FileKind::Main => self.truncate_in_batch(&mut files, length)?,
            FileKind::Journal => self.truncate_volatile(&mut files, length, commits.durability)?,
            FileKind::Wal => false,
        };
        if is_in_memory {
            return Ok(());
        }
        self.truncate_file(&mut files, kind, length)
    }

    fn truncate_file(
        &self,
        files: &mut Files,
        kind: FileKind,
        length: u64,
    ) -> Result<(), DatabaseError> {
        let before = files.header.length(kind).ok_or_else(|| self.no_file(kind))?;
        let start = files.header.start(kind);
        if kind == FileKind::Main {
            self.places.forget(length.min(before)..u64::MAX);
        }
        if length > before {
            self.zero(start + before, length - before)?;
        }
        if length != before {
            self.set_length(files, kind, Some(length))?;
        }
        if length < before {
            self.give_back(start + length, before - length);
        }
        Ok(())
    }

    /// As `write_to_batch`, for a new length of the database.
    fn truncate_in_batch(&self, files: &mut Files, length: u64) -> Result<bool, DatabaseError> {
        let is_emulated = self.begin_emulated_batch(files)?;
        let start = files.header.start(FileKind::Main);
        let Some(batch) = &mut files.batch else { return Ok(false) };
        let has_room = if length < batch.length {
            // SQLite continues without a batch, and cuts the database after its commit.
            if !is_emulated {
                return Err(self.no_batch("the database shrinks in it"));
            }
            batch.cut(start + length);
            true
        } else {
            batch.zero(start + batch.length, length - batch.length)
        };
        if has_room {
            batch.length = length;
            return Ok(true);
        }
        self.leave_full_batch(files, is_emulated)
    }

    /// Makes all writes to all of the files durable, now or with the next checkpoint.
    pub(crate) fn sync(&self, durability: Durability) -> Result<(), DatabaseError> {
        count(&self.counters.syncs);
        let files = self.files.read();
        self.check(&files)?;
        self.flush(&files, durability)
    }

    /// Makes an empty file, if there is none.
    pub(crate) fn create(&self, kind: FileKind, commits: Commits) -> Result<(), DatabaseError> {
        let mut files = self.files.write();
        self.check(&files)?;
        if commits.emulated && kind == FileKind::Wal {
            self.report_once(Notice::Wal, || {
                "its commits use the write-ahead log, not atomic batches".to_owned()
            });
        }
        if commits.emulated && kind == FileKind::Journal && files.length(kind).is_none() {
            files.journal = Some(VolatileJournal::default());
        }
        match files.length(kind) {
            Some(_) => Ok(()),
            None => self.set_length(&mut files, kind, Some(0)),
        }
    }

    /// Deletes a file as durably as a commit: SQLite commits with the journal's deletion, and does
    /// not sync after it.
    pub(crate) fn delete(
        &self,
        kind: FileKind,
        durability: Durability,
    ) -> Result<(), DatabaseError> {
        let mut files = self.files.write();
        self.check(&files)?;
        if kind == FileKind::Journal && self.end_volatile(&mut files, durability)? {
            files.journal = None;
            if files.header.length(kind).is_none() {
                return Ok(());
            }
        }
        let length = files.header.length(kind).ok_or_else(|| self.no_file(kind))?;
        let start = files.header.start(kind);
        self.set_length(&mut files, kind, None)?;
        self.give_back(start, length);
        self.flush(&files, durability)
    }

    /// Collects the writes to the database from now on.
    pub(crate) fn begin_batch(&self) -> Result<(), DatabaseError> {
        let mut files = self.files.write();
        self.check(&files)?;
        if files.batch.is_some() {
            return Err(self.no_batch("one is open already"));
        }
        self.open_batch(&mut files)
    }

    /// Executes the collected writes as one. After an error other than `Broken` the database is
    /// unchanged.
    pub(crate) fn commit_batch(&self, durability: Durability) -> Result<(), DatabaseError> {
        let mut files = self.files.write();
        self.check(&files)?;
        let batch = files.batch.take().ok_or_else(|| self.no_batch("none is open"))?;
        let mut header = files.header;
        header.set_length(FileKind::Main, Some(batch.length));
        let executed = self.execute(&mut files, &batch, header, durability);
        files.spare = batch;
        executed
    }

    /// Executes the writes of a batch as one, with `header` as the header after it. After an error other than
    /// `Broken` the database is unchanged.
    fn execute(
        &self,
        files: &mut Files,
        batch: &Batch,
        header: DatabaseHeader,
        durability: Durability,
    ) -> Result<(), DatabaseError> {
        let fua = match durability {
            Durability::AtCommit => Fua::Yes,
            Durability::AtCheckpoint => Fua::No,
        };
        self.flush(files, durability).map_err(|error| self.no_batch(error))?;
        let encoded = header.encode();
        let grown = (header != files.header).then_some((0, encoded.as_slice()));
        let requests: Vec<WriteRequest<'_>> = batch
            .writes()
            .chain(grown)
            .map(|(offset, data)| WriteRequest { offset, data, fua })
            .collect();
        if requests.is_empty() {
            return Ok(());
        }
        let start = files.header.start(FileKind::Main);
        for (offset, data) in batch.writes() {
            let offset = offset - start;
            self.places.forget(offset..offset + data.len() as u64);
        }
        if header.length(FileKind::Main) < files.header.length(FileKind::Main) {
            self.places.forget(header.length(FileKind::Main).unwrap_or(0)..u64::MAX);
        }
        match self.device.write_atomic(&requests) {
            Ok(()) => {
                files.header = header;
                self.unflushed.store(fua == Fua::No, Ordering::Relaxed);
                count(&self.counters.batches_committed);
                Ok(())
            }
            Err(AtomicWriteError::Device(error @ DeviceError::Media { .. })) => {
                Err(self.broken(files, error))
            }
            Err(refusal) => {
                count(&self.counters.batches_refused);
                Err(self.no_batch(refusal))
            }
        }
    }

    /// Forgets the collected writes, if there are any.
    pub(crate) fn roll_back_batch(&self) {
        let mut files = self.files.write();
        if let Some(batch) = files.batch.take() {
            files.spare = batch;
        }
    }

    /// Makes the writes durable, unless they may wait for a checkpoint. Takes the files as evidence
    /// of their lock.
    fn flush(&self, _files: &Files, durability: Durability) -> Result<(), DatabaseError> {
        if durability == Durability::AtCommit && self.unflushed.load(Ordering::Relaxed) {
            self.device.flush().map_err(|error| self.failed(error))?;
            self.unflushed.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_length(
        &self,
        files: &mut Files,
        kind: FileKind,
        length: Option<u64>,
    ) -> Result<(), DatabaseError> {
        let mut header = files.header;
        header.set_length(kind, length);
        self.unflushed.store(true, Ordering::Relaxed);
        self.device.write(0, &header.encode(), Fua::No).map_err(|error| self.failed(error))?;
        files.header = header;
        Ok(())
    }

    /// Makes a range of the device read as zeroes and frees its blocks.
    fn zero(&self, at: u64, len: u64) -> Result<(), DatabaseError> {
        self.unflushed.store(true, Ordering::Relaxed);
        self.device.discard(at, len, Fua::No).map_err(|error| self.failed(error))
    }

    /// Frees the blocks of bytes beyond every length. They have no meaning, so after a failure they
    /// stay: SQLite would take an error as a failure of the operation, such as a commit by the end
    /// of the journal.
    fn give_back(&self, at: u64, len: u64) {
        let _best_effort = self.zero(at, len);
    }

    fn check(&self, files: &Files) -> Result<(), DatabaseError> {
        match &files.broken {
            Some(reason) => {
                Err(DatabaseError::Broken { name: self.name.clone(), reason: reason.clone() })
            }
            None => Ok(()),
        }
    }

    fn check_capacity(
        &self,
        files: &Files,
        kind: FileKind,
        wanted_bytes: u64,
    ) -> Result<(), DatabaseError> {
        let capacity_bytes = files.header.capacity(kind, self.device_bytes);
        if wanted_bytes <= capacity_bytes {
            return Ok(());
        }
        Err(DatabaseError::Full { name: self.name.clone(), kind, wanted_bytes, capacity_bytes })
    }

    fn no_file(&self, kind: FileKind) -> DatabaseError {
        DatabaseError::NoFile { name: self.name.clone(), kind }
    }

    fn failed(&self, source: DeviceError) -> DatabaseError {
        DatabaseError::Device { name: self.name.clone(), source }
    }

    fn no_batch(&self, reason: impl ToString) -> DatabaseError {
        DatabaseError::Batch { name: self.name.clone(), reason: reason.to_string() }
    }

    fn broken(&self, files: &mut Files, reason: impl ToString) -> DatabaseError {
        let reason = reason.to_string();
        self.places.forget(0..u64::MAX);
        files.broken = Some(reason.clone());
        DatabaseError::Broken { name: self.name.clone(), reason }
    }
}

impl Files {
    fn length(&self, kind: FileKind) -> Option<u64> {
        match &self.batch {
            Some(batch) if kind == FileKind::Main => Some(batch.length),
            _ => match &self.journal {
                Some(journal) if kind == FileKind::Journal => Some(journal.length()),
                _ => self.header.length(kind),
            },
        }
    }
}

/// Returns true if the device is unwritten, so that using it loses nothing.
fn is_unwritten(device: &dyn AtomicWrites) -> Result<bool, DeviceError> {
    let size_bytes = device.geometry().size_bytes;
    let mut at = 0;
    while at < size_bytes {
        for extent in device.status(at, size_bytes - at, 16)? {
            if !extent.hole {
                return Ok(false);
            }
            at += extent.len;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use everbyte_block::{BlockOptions, BlockVolume};
    use everbyte_media::{BLOCK, BLOCK_U64, Mapped, MediaOptions};
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;

    #[test]
    fn places_go_with_cut_pages_and_broken_databases() {
        let medium = Mapped::anonymous(16 << 20, &MediaOptions::new()).unwrap();
        Pool::format(&medium, 8, [1; 16]).unwrap();
        let options = OpenOptions::default();
        let pool =
            Arc::new(Pool::open(Arc::new(medium), everbyte_block::kinds(), &options).unwrap());
        let size_bytes = crate::volume_bytes(1 << 20);
        let volume = BlockVolume::create(&pool, "v", size_bytes, &BlockOptions::default()).unwrap();
        let database = Database::open("v", Arc::new(volume)).unwrap();
        let commits = Commits { emulated: false, durability: Durability::AtCommit };
        database.create(FileKind::Main, commits).unwrap();
        database.write(FileKind::Main, 0, &[7; 3 * BLOCK], commits).unwrap();
        let is_lent = |block| database.lend(block * BLOCK_U64, BLOCK).is_some();
        assert!(is_lent(1) && is_lent(2));

        database.truncate(FileKind::Main, 2 * BLOCK_U64, commits).unwrap();
        assert!(is_lent(1) && !is_lent(2));
        database.truncate(FileKind::Main, 3 * BLOCK_U64, commits).unwrap();
        assert!(!is_lent(2), "a hole lies nowhere");

        let _: DatabaseError = database.broken(&mut database.files.write(), "planned");
        assert!(!is_lent(1));
    }
}
