//! A journal of whole blocks: ext3 and its jbd.
//!
//! Source: Tweedie, "Journaling the Linux ext2fs filesystem", LinuxExpo 1998. A commit has two
//! fences, as there: for descriptors and blocks, and for the commit block after them. (A checksum in
//! the commit block, as jbd2 has it, saves one of them and costs a pass over all blocks.)
//!
//! Writes change a page cache. The cache keeps clean pages. A commit writes the running transaction
//! to the journal; when the journal is full, a checkpoint copies every journaled block in place,
//! from the cache. Metadata is the table of blocks, journaled by the block of 512 entries.
//!
//! - [`Mode::Data`] journals everything. After a crash: the device is as after some number of
//!   requests; after all that were answered if each is committed, and else at least those before
//!   the last flush.
//! - [`Mode::Ordered`] journals metadata only. Data is written in place, and is durable before the
//!   transaction with its name: whole blocks immediately, past the cache, parts of blocks at the
//!   commit. After a crash: data written before the last commit is present. Each aligned word of
//!   later writes is old or new. A block that was a hole is a hole or as at the last commit. It
//!   never has the former contents of another block. Atomic requests of several writes are not
//!   atomic.
//!
//! Durable when answered: each request is one transaction.
//!
//! A transaction in the journal, in blocks: descriptors (generation, number of the transaction,
//! number of blocks, then where each belongs), the blocks, the commit block (generation, number,
//! number of blocks). The head has the generation. Invariants: transactions of a generation follow
//! each other from the journal's start; a new generation is durable before its first. A block freed
//! by a transaction is free when the transaction is durable.

use std::sync::Arc;

use everbyte_extent::Delta;
use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, LineMask, MediaError, Medium, PoolOffset};
use everbyte_plant::planted;

use super::Kind;
use super::front::{Edit, Engine, Refused};
use super::overlay::Overlay;
use super::plant::Bug;
use super::space::{HEAD, HOLE, Space, SpaceError, WORDS, index};

/// Contents of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Metadata; data goes in place before.
    Ordered,
    /// Data and metadata.
    Data,
}

impl Mode {
    /// Code in the superblock.
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Ordered => 4,
            Self::Data => 5,
        }
    }
}

/// Words of a descriptor before the places.
const DESCRIPTOR_WORDS: usize = 3;
const PLACES_PER_DESCRIPTOR: usize = WORDS - DESCRIPTOR_WORDS;

/// A journal of whole blocks.
pub(crate) struct BlockJournal<M> {
    space: Space<M>,
    mode: Mode,
    /// The table in DRAM, newer than the one on the medium.
    places: Vec<u64>,
    cache: Overlay,
    /// Blocks changed by the running transaction.
    running: Vec<usize>,
    running_tables: Tables,
    /// Blocks of the table in the journal.
    journaled_tables: Tables,
    generation: u64,
    transactions: u64,
    /// Blocks of the journal that are filled.
    tail: u64,
    log_bytes: u64,
    scratch: Vec<u8>,
    /// Home places of the blocks of a transaction.
    homes: Vec<u64>,
}

/// A set of blocks of the table.
struct Tables {
    member: Vec<bool>,
    list: Vec<usize>,
}

impl Tables {
    fn new(count: usize) -> Self {
        Self { member: vec![false; count], list: Vec::new() }
    }

    fn insert(&mut self, number: usize) {
        if !std::mem::replace(&mut self.member[number], true) {
            self.list.push(number);
        }
    }
}

/// Writes one block of a transaction after the other.
struct LogWriter {
    at: PoolOffset,
    blocks: u64,
}

impl LogWriter {
    fn put<M: Medium>(&mut self, medium: &M, block: &[u8]) {
        medium.stream(self.at.plus(self.blocks * BLOCK_U64), block);
        self.blocks += 1;
    }
}

impl<M: Medium> BlockJournal<M> {
    /// Opens a device: copies the journal's blocks in place, and begins a new generation.
    ///
    /// # Errors The device is missing, or its journal or table is invalid.
    pub(crate) fn open(medium: Arc<M>, mode: Mode, delta: Delta) -> Result<Self, SpaceError> {
        let space = Space::open(medium, mode.code(), delta)?;
        let generation = space.medium().load_word(HEAD);
        space.medium().check_range(HEAD, 8)?;
        let tables = index(space.layout.table_blocks());
        let blocks = space.layout.device_blocks();
        let mut scheme = Self {
            mode,
            places: Vec::new(),
            cache: Overlay::new(blocks),
            running: Vec::new(),
            running_tables: Tables::new(tables),
            journaled_tables: Tables::new(tables),
            generation,
            transactions: 0,
            tail: 0,
            log_bytes: 0,
            scratch: vec![0; BLOCK],
            homes: Vec::new(),
            space,
        };
        while scheme.load_transaction()? {
            scheme.replay_transaction()?;
        }
        scheme.begin_generation()?;
        scheme.places = scheme.space.load_table()?;
        scheme.space.claim(scheme.places.iter().copied())?;
        Ok(scheme)
    }

    /// Block `number` of the journal, counted from the tail.
    fn log_at(&self, number: u64) -> PoolOffset {
        self.space.layout.log_at().plus((self.tail + number) * BLOCK_U64)
    }

    fn log_room(&self) -> u64 {
        self.space.layout.log_bytes() / BLOCK_U64 - self.tail
    }

    /// Reads block `number` of the journal, counted from the tail, into `scratch`.
    fn load_log(&mut self, number: u64) -> Result<(), MediaError> {
        let at = self.log_at(number);
        self.space.medium().read(at, &mut self.scratch);
        self.space.medium().check_range(at, BLOCK_U64)
    }

    /// Reads the home places of the transaction's blocks at the tail. Returns true if the
    /// transaction is complete.
    fn load_transaction(&mut self) -> Result<bool, SpaceError> {
        if self.log_room() == 0 {
            return Ok(false);
        }
        self.load_log(0)?;
        let mine = [self.generation, self.transactions];
        let count = word(&self.scratch, 2);
        let found = [0, 1].map(|number| word(&self.scratch, number));
        // An older generation may fill the journal beyond the tail: a mismatch is its end, not
        // damage.
        if found != mine || count == 0 || count > self.log_room() {
            return Ok(false);
        }
        let blocks = transaction_blocks(count);
        if blocks > self.log_room() {
            return Ok(false);
        }
        self.homes.clear();
        for number in 0..descriptors(count) {
            self.load_log(number)?;
            let places = PLACES_PER_DESCRIPTOR.min(index(count) - self.homes.len());
            let words = (DESCRIPTOR_WORDS..DESCRIPTOR_WORDS + places)
                .map(|number| word(&self.scratch, number));
            self.homes.extend(words);
        }
        self.load_log(blocks - 1)?;
        let expected = [mine[0], mine[1], count];
        let found = [0, 1, 2].map(|number| word(&self.scratch, number));
        Ok(found == expected || planted(Bug::JournalUncommitted))
    }

    /// Copies the blocks of the last read transaction in place.
    fn replay_transaction(&mut self) -> Result<(), SpaceError> {
        let homes = std::mem::take(&mut self.homes);
        let count = homes.len() as u64;
        for (&home, number) in homes.iter().zip(descriptors(count)..) {
            let at = self.log_at(number);
            if !self.space.is_table(home) {
                self.space.check_place(home, "journal", at)?;
                if home == HOLE {
                    return Err(SpaceError::corrupt("journal", at, "it names no block"));
                }
            }
            self.load_log(number)?;
            self.space.medium().stream(BlockNo(home).offset(), &self.scratch);
        }
        self.homes = homes;
        self.tail += transaction_blocks(count);
        self.transactions += 1;
        Ok(())
    }

    /// Begins a new generation once the copies in place are durable.
    fn begin_generation(&mut self) -> Result<(), MediaError> {
        // A new generation ends the replay of the old one, so the copies must be durable first.
        self.space.medium().fence()?;
        self.generation = self.generation.wrapping_add(1);
        self.space.persist_head(self.generation)?;
        (self.tail, self.transactions) = (0, 0);
        Ok(())
    }

    fn set_place(&mut self, block: usize, place: u64) {
        self.places[block] = place;
        self.running_tables.insert(block / WORDS);
    }

    /// Returns whether bytes were streamed.
    fn write(&mut self, block: usize, start: usize, data: &[u8]) -> Result<bool, MediaError> {
        let mut place = self.places[block];
        if place != HOLE
            && self.space.compares()
            && self.cache.changed(&self.space, place, block, start, data)?.is_empty()
        {
            return Ok(false);
        }
        let is_whole = data.len() == BLOCK;
        let streams = is_whole && self.mode == Mode::Ordered;
        if !streams {
            self.put(block, start, data)?;
        }
        if place == HOLE {
            place = self.space.take().0;
            self.set_place(block, place);
        }
        if streams {
            self.space.medium().stream(BlockNo(place).offset(), data);
            if let Some(page) = self.cache.get_mut(block) {
                page.bytes.copy_from_slice(data);
                (page.lines, page.running) = (LineMask::FULL, LineMask::EMPTY);
            }
        }
        Ok(streams)
    }

    /// Puts a write into the cache, as part of the running transaction.
    fn put(&mut self, block: usize, start: usize, data: &[u8]) -> Result<(), MediaError> {
        let place = self.places[block];
        let page = self.cache.page(block);
        if page.lines.is_empty() && data.len() < BLOCK {
            self.space.load(place, 0, &mut page.bytes[..])?;
        }
        if page.running.is_empty() {
            self.running.push(block);
        }
        page.put(start, data, LineMask::FULL);
        Ok(())
    }

    fn unmap(&mut self, block: usize) {
        if self.places[block] != HOLE {
            match planted(Bug::JournalFreedEarly) {
                true => self.space.free_unused(self.places[block]),
                false => self.space.free_later(self.places[block]),
            }
            self.cache.remove(block);
            self.set_place(block, HOLE);
        }
    }

    /// Puts a block of the table into `scratch`.
    fn build_table(&mut self, number: usize) {
        let end = ((number + 1) * WORDS).min(self.places.len());
        self.scratch.fill(0);
        let entries = &self.places[number * WORDS..end];
        for (bytes, entry) in self.scratch.chunks_exact_mut(8).zip(entries) {
            bytes.copy_from_slice(&entry.to_le_bytes());
        }
    }

    /// Writes the data of the running transaction in place. Returns true if there was data. It is
    /// not fenced yet.
    fn write_data(&mut self) -> bool {
        let medium = self.space.medium();
        let mut written = false;
        for block in self.running.drain(..) {
            if let Some(page) = self.cache.get_mut(block).filter(|page| !page.running.is_empty()) {
                medium.stream(BlockNo(self.places[block]).offset(), &page.bytes[..]);
                page.running = LineMask::EMPTY;
                written = true;
            }
        }
        written
    }

    /// Writes the running transaction to the journal, and fences it and all earlier streams.
    /// Returns false if there is none.
    fn write_transaction(&mut self) -> Result<bool, MediaError> {
        let cache = &self.cache;
        // A block whose page is gone was freed since; one that is here twice was so in between.
        self.running.retain(|&block| cache.get(block).is_some_and(|page| !page.running.is_empty()));
        self.running.sort_unstable();
        self.running.dedup();
        self.homes.clear();
        self.homes.extend(self.running.iter().map(|&block| self.places[block]));
        let table_block = |&number: &usize| self.space.layout.table_block(number).0;
        self.homes.extend(self.running_tables.list.iter().map(table_block));
        if self.homes.is_empty() {
            return Ok(false);
        }
        let mut writer = LogWriter { at: self.log_at(0), blocks: 0 };
        for first in (0..self.homes.len()).step_by(PLACES_PER_DESCRIPTOR) {
            self.build_descriptor(first);
            writer.put(self.space.medium(), &self.scratch);
        }
        for block in std::mem::take(&mut self.running) {
            let Some(page) = self.cache.get_mut(block) else { continue };
            (page.running, page.logged) = (LineMask::EMPTY, true);
            writer.put(self.space.medium(), &page.bytes[..]);
        }
        for table in std::mem::take(&mut self.running_tables.list) {
            self.running_tables.member[table] = false;
            self.journaled_tables.insert(table);
            self.build_table(table);
            writer.put(self.space.medium(), &self.scratch);
        }
        // Replay does not verify the blocks, so the commit block must not be durable before them.
        self.space.medium().fence()?;
        self.scratch.fill(0);
        self.put_words(&[self.generation, self.transactions, self.homes.len() as u64]);
        writer.put(self.space.medium(), &self.scratch);
        self.space.medium().fence()?;
        self.tail += writer.blocks;
        self.log_bytes += writer.blocks * BLOCK_U64;
        self.transactions += 1;
        Ok(true)
    }

    /// Puts the descriptor of homes `first ..` into `scratch`.
    fn build_descriptor(&mut self, first: usize) {
        self.scratch.fill(0);
        self.put_words(&[self.generation, self.transactions, self.homes.len() as u64]);
        let homes = self.homes[first..].iter().take(PLACES_PER_DESCRIPTOR);
        let places = self.scratch.chunks_exact_mut(8).skip(DESCRIPTOR_WORDS);
        for (bytes, home) in places.zip(homes) {
            bytes.copy_from_slice(&home.to_le_bytes());
        }
    }

    fn put_words(&mut self, words: &[u64]) {
        for (bytes, word) in self.scratch.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Makes room for edits in the journal, in the cache and among the blocks.
    fn make_room(&mut self, edits: usize) -> Result<(), Refused> {
        let data = match self.mode {
            Mode::Ordered => 0,
            Mode::Data => self.running.len() + edits,
        };
        let tables = self.running_tables.list.len() + edits.min(self.running_tables.member.len());
        let full = transaction_blocks((data + tables) as u64) > self.log_room();
        if full || self.cache.is_full(edits) || !self.space.reserve(edits) {
            self.checkpoint()?;
        }
        if self.cache.is_full(edits) {
            // All of it is clean.
            self.cache.drain(|_, _| ());
        }
        match self.space.reserve(edits) {
            true => Ok(()),
            false => Err(Refused::NoSpace),
        }
    }
}

fn word(bytes: &[u8], number: usize) -> u64 {
    let word = bytes[8 * number..8 * number + 8].iter().rev();
    word.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Descriptors of a transaction of so many blocks.
fn descriptors(count: u64) -> u64 {
    count.div_ceil(PLACES_PER_DESCRIPTOR as u64)
}

/// Blocks in the journal for a transaction of so many blocks.
fn transaction_blocks(count: u64) -> u64 {
    descriptors(count) + count + 1
}

impl<M: Medium> Engine for BlockJournal<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        match self.mode {
            Mode::Ordered => Kind::JournalOrdered.name(),
            Mode::Data => Kind::JournalData.name(),
        }
    }

    fn space(&self) -> &Space<M> {
        &self.space
    }

    fn places(&self) -> &[u64] {
        &self.places
    }

    /// Each edit may take a block of data and one of the table.
    fn edits_max(&self) -> usize {
        let log_blocks = index(self.space.layout.log_bytes() / BLOCK_U64);
        (log_blocks - 2) * PLACES_PER_DESCRIPTOR / (2 * (PLACES_PER_DESCRIPTOR + 1))
    }

    fn read(&self, block: usize, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        self.cache.read(&self.space, self.places[block], block, start, out)
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        self.make_room(edits.len())?;
        let mut streamed = false;
        for &edit in edits {
            match edit {
                Edit::Write { block, start, data } => streamed |= self.write(block, start, data)?,
                Edit::Unmap { block } => self.unmap(block),
            }
        }
        if streamed {
            self.space.medium().fence()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        let written = self.mode == Mode::Ordered && self.write_data();
        // The data is fenced with the journal's blocks, before the commit block.
        if !self.write_transaction()? && written {
            self.space.medium().fence()?;
        }
        self.space.release();
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()?;
        if self.tail == 0 {
            return Ok(());
        }
        let (medium, places) = (self.space.medium(), &self.places);
        self.cache.clean(|block, page| {
            medium.stream(BlockNo(places[block]).offset(), &page.bytes[..]);
        });
        for number in std::mem::take(&mut self.journaled_tables.list) {
            self.build_table(number);
            let home = self.space.layout.table_block(number).offset();
            self.space.medium().stream(home, &self.scratch);
            self.journaled_tables.member[number] = false;
        }
        Ok(self.begin_generation()?)
    }

    fn log_bytes(&self) -> u64 {
        self.log_bytes
    }
}
