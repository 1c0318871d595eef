//! Rollback as published: a record of old bytes for each request, and a commit before its stores.
//!
//! Source: Lee et al., "Data Consistency-Control Scheme Using a Rollback-Recovery Mechanism for
//! Storage Class Memory" (2015). If less than half of a block changes, its old bytes from the first
//! to the last change go to the log, and the new bytes in place. Otherwise the old block becomes
//! the log: its place is recorded, and the new contents go to another block. The request flushes
//! the records, then commits itself by a word with the valid length of the log, then stores the new
//! bytes without a flush. A checkout flushes all new bytes and empties the log. It runs when at
//! most three quarters of the log are free, and at the first write five seconds after the last
//! checkout. Every write is recorded, also a second write to recorded bytes.
//!
//! Two fences for each request, before its stores. A flush is a checkout, since old bytes cannot
//! make new ones durable: durable when answered, a request pays two more fences.
//!
//! After a crash: the device is as after the last checkout.
//!
//! In the log: records of three words, the block (and a flag), its place, and the range of bytes;
//! and the old bytes, padded to words. A record has the place because the table on the medium may
//! name either block of an undone request. Invariants: the word in the head covers whole requests.
//! The word covering a record is durable before the lines of its data or table are stored. Recovery
//! undoes the newest record first, so the oldest record of a byte is applied last. Blocks replaced
//! by a request are free after the next checkout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everbyte_extent::Delta;
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use super::Kind;
use super::dirty::Dirty;
use super::front::{Edit, Engine, Refused};
use super::overlay::span_of;
use super::plant::Bug;
use super::space::{HEAD, HOLE, Space, SpaceError, index};

/// Code in the superblock.
pub(crate) const CODE: u64 = 8;
const WORD: u64 = 8;
/// Bytes of a record's words.
const RECORD_BYTES: u64 = 3 * WORD;
/// Bytes that a record takes at most: less than half a block of old ones.
const RECORD_BYTES_MAX: u64 = RECORD_BYTES + BLOCK_U64 / 2;
/// In the first word: the block is replaced.
const REPLACED: u64 = 1 << 63;
/// Time between checkouts under writes.
const CHECKOUT_EVERY: Duration = Duration::from_secs(5);

/// Rollback with a record for each request.
pub(crate) struct RollbackPublished<M> {
    space: Space<M>,
    places: Vec<u64>,
    dirty: Dirty,
    /// The stores of the current request, delayed until its commit.
    stores: Vec<Change>,
    /// For each block, the number of the last request that changed it.
    changed_by: Vec<u64>,
    request: u64,
    /// Bytes of the log that are filled; all of them are committed between requests.
    tail: u64,
    log_bytes: u64,
    checkout_at: Instant,
    scratch: Box<[u8; BLOCK]>,
}

/// The change that an edit makes, once its record is committed.
#[derive(Clone, Copy)]
enum Change {
    /// Bytes `first ..` of the edit's data go in place, to the block at `place`.
    Bytes { edit: usize, place: u64, first: usize, len: usize },
    /// The block moves to `place`, with the edit's data and the rest of the old block.
    Moved { edit: usize, old: u64, place: u64 },
}

/// A record as it lies in the log.
#[derive(Clone, Copy)]
struct Record {
    block: usize,
    place: u64,
    /// Position and number of the old bytes that follow; none where the block is replaced.
    bytes: Option<(usize, usize)>,
}

impl Record {
    fn words(&self) -> [u64; 3] {
        match self.bytes {
            Some((start, len)) => {
                [self.block as u64, self.place, (start as u64) << 32 | len as u64]
            }
            None => [self.block as u64 | REPLACED, self.place, 0],
        }
    }

    /// Bytes that it takes in the log.
    fn len(&self) -> u64 {
        RECORD_BYTES + self.bytes.map_or(0, |(_, len)| (len as u64).next_multiple_of(WORD))
    }
}

impl<M: Medium> RollbackPublished<M> {
    /// Opens a device: undoes the records of the log, and empties the log.
    ///
    /// # Errors The device is missing, or its log or table is invalid.
    pub(crate) fn open(medium: Arc<M>, delta: Delta) -> Result<Self, SpaceError> {
        let space = Space::open(medium, CODE, delta)?;
        let committed = space.medium().load_word(HEAD);
        space.medium().check_range(HEAD, WORD)?;
        if committed > space.layout.log_bytes() {
            return Err(SpaceError::corrupt("log", HEAD, "it counts more than it can hold"));
        }
        let blocks = space.layout.device_blocks();
        let mut scheme = Self {
            places: Vec::new(),
            dirty: Dirty::new(blocks),
            stores: Vec::new(),
            changed_by: vec![0; blocks],
            request: 0,
            tail: committed,
            log_bytes: 0,
            checkout_at: Instant::now(),
            scratch: Box::new([0; BLOCK]),
            space,
        };
        scheme.undo()?;
        scheme.places = scheme.space.load_table()?;
        scheme.space.claim(scheme.places.iter().copied())?;
        Ok(scheme)
    }

    /// Takes back every committed request, and empties the log.
    fn undo(&mut self) -> Result<(), SpaceError> {
        if self.tail == 0 {
            return Ok(());
        }
        let mut records = Vec::new();
        let mut at = 0;
        while at < self.tail {
            let record = self.record(at)?;
            records.push((at, record));
            at += record.len();
        }
        if !planted(Bug::PublishedUndoneForward) {
            records.reverse();
        }
        for (at, record) in records {
            self.undo_one(at, &record)?;
        }
        self.space.medium().fence()?;
        self.space.persist_head(0)?;
        self.tail = 0;
        Ok(())
    }

    fn undo_one(&mut self, at: u64, record: &Record) -> Result<(), SpaceError> {
        let medium = self.space.medium();
        let Some((start, len)) = record.bytes else {
            let entry = self.space.layout.entry_at(record.block);
            medium.store_word(entry, record.place);
            medium.flush(entry, WORD);
            return Ok(());
        };
        let from = self.log_at(at + RECORD_BYTES);
        let old = &mut self.scratch[..len];
        medium.read(from, old);
        medium.check_range(from, len as u64)?;
        let to = BlockNo(record.place).offset().plus(start as u64);
        medium.store(to, old);
        medium.flush(to, len as u64);
        Ok(())
    }

    fn log_at(&self, at: u64) -> PoolOffset {
        self.space.layout.log_at().plus(at)
    }

    /// The record at `at`, checked.
    fn record(&self, at: u64) -> Result<Record, SpaceError> {
        let wrong = |what| SpaceError::corrupt("log", self.log_at(at), what);
        if self.tail - at < RECORD_BYTES {
            return Err(wrong("a record is cut short"));
        }
        let medium = self.space.medium();
        let words = [0, 1, 2].map(|word| medium.load_word(self.log_at(at + word * WORD)));
        medium.check_range(self.log_at(at), RECORD_BYTES)?;
        let block = index(words[0] & !REPLACED);
        if block >= self.changed_by.len() {
            return Err(wrong("its block is not in the device"));
        }
        let place = words[1];
        self.space.check_place(place, "log", self.log_at(at))?;
        if words[0] & REPLACED != 0 {
            return Ok(Record { block, place, bytes: None });
        }
        let (start, len) = (index(words[2] >> 32), index(words[2] & u64::from(u32::MAX)));
        if start >= BLOCK || len > BLOCK - start || place == HOLE {
            return Err(wrong("its bytes are in no block"));
        }
        let record = Record { block, place, bytes: Some((start, len)) };
        match record.len() <= self.tail - at {
            true => Ok(record),
            false => Err(wrong("a record is cut short")),
        }
    }

    /// Adds a record with its old bytes, which is not flushed yet.
    fn log(&mut self, record: &Record) -> Result<(), MediaError> {
        let at = self.log_at(self.tail);
        let medium = self.space.medium();
        for (word, at) in record.words().into_iter().zip((0..).map(|word| at.plus(word * WORD))) {
            medium.store_word(at, word);
        }
        if let Some((start, len)) = record.bytes {
            let old = &mut self.scratch[..len];
            self.space.load(record.place, start, old)?;
            medium.store(at.plus(RECORD_BYTES), old);
        }
        self.tail += record.len();
        self.log_bytes += record.len();
        Ok(())
    }

    /// Records the old contents of an edit, and notes the change.
    fn prepare(&mut self, edit: usize, of: Edit<'_>) -> Result<(), MediaError> {
        let (Edit::Write { block, .. } | Edit::Unmap { block }) = of;
        let place = self.places[block];
        let moved = match of {
            Edit::Unmap { .. } if place == HOLE => return Ok(()),
            Edit::Unmap { .. } => HOLE,
            Edit::Write { start, data, .. } => {
                if place != HOLE {
                    let Some((first, len)) = self.span_of_change(block, start, data)? else {
                        return Ok(());
                    };
                    self.changed_by[block] = self.request;
                    // The paper logs the pointer alone if 50% of the block or more change.
                    if len < BLOCK / 2 {
                        let bytes = Some((start + first, len));
                        self.log(&Record { block, place, bytes })?;
                        self.stores.push(Change::Bytes { edit, place, first, len });
                        return Ok(());
                    }
                }
                self.space.take().0
            }
        };
        self.log(&Record { block, place, bytes: None })?;
        // Later edits of the request see the block where it will be.
        self.places[block] = moved;
        self.changed_by[block] = self.request;
        self.stores.push(Change::Moved { edit, old: place, place: moved });
        Ok(())
    }

    /// The bytes of `data` from the first that changes to the last; all of it if this write is not
    /// compared, or if stores of the same request to the block are still to come.
    fn span_of_change(
        &self,
        block: usize,
        start: usize,
        data: &[u8],
    ) -> Result<Option<(usize, usize)>, MediaError> {
        let place = self.places[block];
        if self.changed_by[block] == self.request || !self.space.compares() {
            return Ok(Some((0, data.len())));
        }
        let changed = self.space.changed(place, start, data)?;
        span_of(changed, start, data, |from, old| self.space.load(place, from, old))
    }

    /// Makes the records of the request durable, and then the word that commits it.
    fn commit_records(&mut self, before: u64) -> Result<(), MediaError> {
        // The old bytes are durable before the word commits the request. New bytes follow the word.
        self.space.medium().flush(self.log_at(before), self.tail - before);
        self.space.medium().fence()?;
        self.space.persist_head(self.tail)
    }

    /// Stores the changes of a committed request.
    fn store(&mut self, edits: &[Edit<'_>], change: Change) -> Result<(), MediaError> {
        let (Change::Bytes { edit, .. } | Change::Moved { edit, .. }) = change;
        match (change, edits[edit]) {
            (Change::Bytes { place, first, len, .. }, Edit::Write { block, start, data }) => {
                let at = BlockNo(place).offset().plus((start + first) as u64);
                self.space.medium().store(at, &data[first..first + len]);
                // Of a block that the request moves afterwards, the new place is flushed whole.
                self.dirty.mark(block, LineMask::covering(start + first, len));
            }
            (Change::Moved { old, place, .. }, Edit::Write { block, start, data }) => {
                let whole = self.space.merged(old, start, data, &mut self.scratch)?;
                self.space.medium().store(BlockNo(place).offset(), whole);
                self.space.free_later(old);
                self.set_place(block, place);
                self.dirty.mark(block, LineMask::FULL);
            }
            (Change::Moved { old, place, .. }, Edit::Unmap { block }) => {
                self.space.free_later(old);
                self.dirty.forget(block);
                self.set_place(block, place);
            }
            (Change::Bytes { .. }, Edit::Unmap { .. }) => {}
        }
        Ok(())
    }

    fn set_place(&mut self, block: usize, place: u64) {
        self.places[block] = place;
        self.space.medium().store_word(self.space.layout.entry_at(block), place);
        self.dirty.mark_entry(block);
    }

    /// Flushes all new bytes, and empties the log.
    fn checkout(&mut self) -> Result<(), MediaError> {
        self.checkout_at = Instant::now();
        if self.tail == 0 {
            return Ok(());
        }
        // New data is durable before its records are deleted: without them, nothing can undo it.
        self.dirty.flush(&self.space, &self.places);
        self.space.medium().fence()?;
        self.space.persist_head(0)?;
        self.tail = 0;
        self.space.release();
        Ok(())
    }

    /// Checks out if the log is filled to a quarter or time is up, and gets blocks for edits.
    fn make_room(&mut self, edits: usize) -> Result<(), Refused> {
        let size = self.space.layout.log_bytes();
        let full = self.tail + edits as u64 * RECORD_BYTES_MAX > size;
        // The paper checks out when at most 75% of the log area remains, or every 5 s.
        let due = self.tail >= size / 4 || self.checkout_at.elapsed() >= CHECKOUT_EVERY;
        if full || due || !self.space.reserve(edits) {
            self.checkout()?;
        }
        match self.space.reserve(edits) {
            true => Ok(()),
            false => Err(Refused::NoSpace),
        }
    }

    /// Forgets the records of a request of which one could not be made.
    fn abandon(&mut self, before: u64, edits: &[Edit<'_>]) {
        self.tail = before;
        while let Some(change) = self.stores.pop() {
            let Change::Moved { edit, old, place } = change else { continue };
            let (Edit::Write { block, .. } | Edit::Unmap { block }) = edits[edit];
            self.places[block] = old;
            if place != HOLE {
                self.space.free_unused(place);
            }
        }
    }
}

impl<M: Medium> Engine for RollbackPublished<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        Kind::RollbackPublished.name()
    }

    fn space(&self) -> &Space<M> {
        &self.space
    }

    fn places(&self) -> &[u64] {
        &self.places
    }

    fn edits_max(&self) -> usize {
        index(self.space.layout.log_bytes() / RECORD_BYTES_MAX)
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        self.make_room(edits.len())?;
        self.request += 1;
        let before = self.tail;
        for (number, &edit) in edits.iter().enumerate() {
            if let Err(error) = self.prepare(number, edit) {
                self.abandon(before, edits);
                return Err(error.into());
            }
        }
        if self.stores.is_empty() {
            return Ok(());
        }
        if !planted(Bug::PublishedStoredEarly) {
            self.commit_records(before)?;
        }
        for change in std::mem::take(&mut self.stores) {
            self.store(edits, change)?;
        }
        if planted(Bug::PublishedStoredEarly) {
            self.commit_records(before)?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        Ok(self.checkout()?)
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()
    }

    fn log_bytes(&self) -> u64 {
        self.log_bytes
    }
}
