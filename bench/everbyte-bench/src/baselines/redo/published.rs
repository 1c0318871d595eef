//! Redo logging of differences as published.
//!
//! Each request writes its bytes, or from the first of a block that changes to the last where
//! changes are detected, to the log and
//! flushes them: new data once. A checkpoint reads the log, copies every record in place and
//! flushes it: new data twice. A commit stores how much of the log counts, once all of that is
//! durable.
//!
//! Durable when answered: two fences, for the records and for the commit word. Else the records
//! are flushed and fenced all the same, as the paper's journal is, and the word waits for the
//! flush.
//!
//! After a crash, in both modes: the device has the effects of a prefix of the requests. If each
//! request is committed, the prefix includes all answered requests. Otherwise it includes at least
//! the requests before the last flush.
//!
//! In the log: records of two words, the block (and a flag) and the range (or the new block), and
//! the bytes, padded to words. Invariants: the commit word, the only one of the head, covers whole
//! requests. A record of bytes counts only if no later record replaces its block: the block's new
//! contents hold those bytes already, and newer ones.

use std::sync::Arc;

use everbyte_extent::Delta;
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LINE, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use crate::baselines::Kind;
use crate::baselines::front::{Edit, Engine, Refused};
use crate::baselines::overlay::{Overlay, lines_of, part_of, span_of};
use crate::baselines::plant::Bug;
use crate::baselines::space::{HEAD, HOLE, Space, SpaceError, index};

/// Code in the superblock.
pub(crate) const CODE: u64 = 2;
/// Bytes of a record's two words.
const RECORD_BYTES: u64 = 16;
/// Bytes that a record takes at most: more than half a block is written as a block.
const RECORD_BYTES_MAX: u64 = RECORD_BYTES + BLOCK_U64 / 2;
/// In the first word: the block is replaced.
const REPLACED: u64 = 1 << 63;
const WORD: u64 = 8;

/// Redo logging of differences as published.
pub(crate) struct Published<M> {
    space: Space<M>,
    /// Place of each block if every record in the log counts.
    places: Vec<u64>,
    overlay: Overlay,
    /// For each block, one more than the position of the last record that replaces it.
    replaced_at: Vec<u32>,
    /// Blocks that were replaced since the log was empty.
    replaced: Vec<usize>,
    /// Filled bytes of the log, and committed bytes.
    tail: u64,
    committed: u64,
    log_bytes: u64,
    /// A block's worth of bytes.
    scratch: Vec<u8>,
}

/// A record as it lies in the log.
enum Record {
    Bytes { block: usize, start: usize, len: usize },
    Replaced { block: usize, place: u64 },
}

impl Record {
    fn words(&self) -> [u64; 2] {
        match *self {
            Self::Bytes { block, start, len } => [block as u64, (start as u64) << 32 | len as u64],
            Self::Replaced { block, place } => [block as u64 | REPLACED, place],
        }
    }

    /// Bytes it takes.
    fn bytes(&self) -> u64 {
        match *self {
            Self::Bytes { len, .. } => RECORD_BYTES + (len as u64).next_multiple_of(WORD),
            Self::Replaced { .. } => RECORD_BYTES,
        }
    }

    fn block(&self) -> usize {
        match *self {
            Self::Bytes { block, .. } | Self::Replaced { block, .. } => block,
        }
    }
}

impl<M: Medium> Published<M> {
    /// Opens a device: copies the contents of the log in place, and empties the log.
    ///
    /// # Errors The device is missing, or its log or table is invalid.
    pub(crate) fn open(medium: Arc<M>, delta: Delta) -> Result<Self, SpaceError> {
        let space = Space::open(medium, CODE, delta)?;
        let places = space.load_table()?;
        let committed = space.medium().load_word(HEAD);
        space.medium().check_range(HEAD, WORD)?;
        if committed > space.layout.log_bytes() {
            return Err(SpaceError::corrupt("log", HEAD, "it counts more than it can hold"));
        }
        let mut scheme = Self {
            overlay: Overlay::new(places.len()),
            replaced_at: vec![0; places.len()],
            replaced: Vec::new(),
            places,
            tail: committed,
            committed,
            log_bytes: 0,
            scratch: vec![0; BLOCK],
            space,
        };
        scheme.find_replaced()?;
        scheme.empty_log()?;
        scheme.space.claim(scheme.places.iter().copied())?;
        Ok(scheme)
    }

    /// Learns from the log which blocks are replaced.
    fn find_replaced(&mut self) -> Result<(), SpaceError> {
        let mut at = 0;
        while at < self.committed {
            let record = self.record(at)?;
            if let Record::Replaced { block, place } = record {
                // A checkpoint copies later records of the block to this place.
                self.space.check_place(place, "log", self.log_at(at))?;
                self.places[block] = place;
                self.replaced_at[block] = position(at);
                self.replaced.push(block);
            }
            at += record.bytes();
        }
        Ok(())
    }

    fn log_at(&self, at: u64) -> PoolOffset {
        self.space.layout.log_at().plus(at)
    }

    /// The record at `at`, checked.
    fn record(&self, at: u64) -> Result<Record, SpaceError> {
        let wrong = |what| SpaceError::corrupt("log", self.log_at(at), what);
        if self.committed - at < RECORD_BYTES {
            return Err(wrong("a record is cut short"));
        }
        let medium = self.space.medium();
        let words = [0, WORD].map(|word| medium.load_word(self.log_at(at + word)));
        medium.check_range(self.log_at(at), RECORD_BYTES)?;
        let block = index(words[0] & !REPLACED);
        if block >= self.places.len() {
            return Err(wrong("its block is not in the device"));
        }
        if words[0] & REPLACED != 0 {
            return Ok(Record::Replaced { block, place: words[1] });
        }
        let (start, len) = (index(words[1] >> 32), index(words[1] & u64::from(u32::MAX)));
        if start >= BLOCK || len > BLOCK - start {
            return Err(wrong("its bytes leave the block"));
        }
        let record = Record::Bytes { block, start, len };
        match record.bytes() <= self.committed - at {
            true => Ok(record),
            false => Err(wrong("a record is cut short")),
        }
    }

    /// Copies the committed records in place, and empties the log.
    fn empty_log(&mut self) -> Result<(), SpaceError> {
        if self.committed == 0 {
            return Ok(());
        }
        let mut at = 0;
        while at < self.committed {
            let record = self.record(at)?;
            let replaced_at = self.replaced_at[record.block()];
            match record {
                Record::Replaced { block, place } if replaced_at == position(at) => {
                    let entry = self.space.layout.entry_at(block);
                    self.space.medium().store_word(entry, place);
                    self.space.medium().flush(entry, WORD);
                }
                Record::Bytes { block, start, len }
                    if replaced_at <= position(at) || planted(Bug::PublishedOldOverNew) =>
                {
                    self.copy_in_place(at, block, start, len)?;
                }
                Record::Replaced { .. } | Record::Bytes { .. } => {}
            }
            at += record.bytes();
        }
        // The copies are durable before the log counts as empty. A crash in between repeats them.
        self.space.medium().fence()?;
        self.space.persist_head(0)?;
        self.forget_log();
        Ok(())
    }

    fn copy_in_place(
        &mut self,
        at: u64,
        block: usize,
        start: usize,
        len: usize,
    ) -> Result<(), SpaceError> {
        let place = self.places[block];
        if place == HOLE {
            let what = "it changes a block that is a hole";
            return Err(SpaceError::corrupt("log", self.log_at(at), what));
        }
        let from = self.log_at(at + RECORD_BYTES);
        let bytes = &mut self.scratch[..len];
        let medium = self.space.medium();
        medium.read(from, bytes);
        medium.check_range(from, len as u64)?;
        let to = BlockNo(place).offset().plus(start as u64);
        medium.store(to, bytes);
        medium.flush(to, len as u64);
        Ok(())
    }

    /// Forgets the former contents of the emptied log in DRAM.
    fn forget_log(&mut self) {
        for block in self.replaced.drain(..) {
            self.replaced_at[block] = 0;
        }
        self.overlay.drain(|_, _| ());
        (self.tail, self.committed) = (0, 0);
        self.space.release();
    }

    /// Adds a record without a flush.
    fn log(&mut self, record: &Record, bytes: &[u8]) {
        let at = self.log_at(self.tail);
        let medium = self.space.medium();
        for (word, at) in record.words().into_iter().zip([at, at.plus(WORD)]) {
            medium.store_word(at, word);
        }
        medium.store(at.plus(RECORD_BYTES), bytes);
        self.tail += record.bytes();
        self.log_bytes += record.bytes();
    }

    /// Logs the replacement of a block.
    fn replace(&mut self, block: usize, place: u64) {
        let old = std::mem::replace(&mut self.places[block], place);
        // Until the checkpoint, the table or a record still names the old block.
        self.space.free_later(old);
        self.overlay.remove(block);
        self.replaced_at[block] = position(self.tail);
        self.replaced.push(block);
        self.log(&Record::Replaced { block, place }, &[]);
    }

    fn write(&mut self, block: usize, start: usize, data: &[u8]) -> Result<(), MediaError> {
        let place = self.places[block];
        if place != HOLE {
            let Some((first, len)) = self.span_of_change(block, start, data)? else {
                return Ok(());
            };
            // Shortcut-JFS journals the whole block if more than half of it changes.
            if len <= BLOCK / 2 {
                let data = &data[first..first + len];
                return self.write_bytes(block, start + first, data);
            }
        }
        let whole = if data.len() < BLOCK {
            self.overlay.read(&self.space, place, block, 0, &mut self.scratch)?;
            self.scratch[start..start + data.len()].copy_from_slice(data);
            &self.scratch[..]
        } else {
            data
        };
        let new = self.space.take();
        self.space.medium().stream(new.offset(), whole);
        // Shortcut-JFS writes this block to its journal first, so it counts as log bytes.
        self.log_bytes += BLOCK_U64;
        self.replace(block, new.0);
        Ok(())
    }

    /// The bytes of `data`, for `start` of a block, from the first new byte to the last, by
    /// position and number; all of `data` if this write is not compared. The block must not be a
    /// hole.
    fn span_of_change(
        &self,
        block: usize,
        start: usize,
        data: &[u8],
    ) -> Result<Option<(usize, usize)>, MediaError> {
        if !self.space.compares() {
            return Ok(Some((0, data.len())));
        }
        let changed = self.overlay.changed(&self.space, self.places[block], block, start, data)?;
        span_of(changed, start, data, |from, old| self.read(block, from, old))
    }

    fn write_bytes(&mut self, block: usize, start: usize, data: &[u8]) -> Result<(), MediaError> {
        let lines = LineMask::covering(start, data.len());
        let page = self.overlay.page(block);
        for line in lines_of(lines.without(page.lines)) {
            let (from, to) = part_of(line, start, data.len());
            if to - from < LINE {
                self.space.load(self.places[block], line, &mut page.bytes[line..line + LINE])?;
            }
        }
        page.put(start, data, lines);
        self.log(&Record::Bytes { block, start, len: data.len() }, data);
        Ok(())
    }

    /// Makes room for edits in the log, in the cache and among the blocks.
    fn make_room(&mut self, edits: usize) -> Result<(), Refused> {
        let full = self.tail + edits as u64 * RECORD_BYTES_MAX > self.space.layout.log_bytes();
        if full || self.overlay.is_full(edits) || !self.space.reserve(edits) {
            self.checkpoint()?;
        }
        match self.space.reserve(edits) {
            true => Ok(()),
            false => Err(Refused::NoSpace),
        }
    }
}

/// A position as it is kept for each block.
fn position(at: u64) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX - 1) + 1
}

impl<M: Medium> Engine for Published<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        Kind::RedoPublished.name()
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

    fn read(&self, block: usize, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        self.overlay.read(&self.space, self.places[block], block, start, out)
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        self.make_room(edits.len())?;
        let before = self.tail;
        for &edit in edits {
            match edit {
                Edit::Write { block, start, data } => self.write(block, start, data)?,
                Edit::Unmap { block } if self.places[block] != HOLE => self.replace(block, HOLE),
                Edit::Unmap { .. } => {}
            }
        }
        if self.tail != before {
            // The paper flushes its journal with each request, so the records are flushed without
            // FUA too.
            // Records of one request share lines.
            self.space.medium().flush(self.log_at(before), self.tail - before);
            self.space.medium().fence()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        if self.committed != self.tail {
            self.space.persist_head(self.tail)?;
            self.committed = self.tail;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()?;
        self.empty_log()
    }

    fn log_bytes(&self) -> u64 {
        self.log_bytes
    }
}
