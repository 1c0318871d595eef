//! A journal of whole blocks: ext3 and its jbd.
//!
//! Source: Tweedie, "Journaling the Linux ext2fs filesystem", LinuxExpo 1998, and jbd2's checksum
//! in the commit block (after Prabhakaran et al., "IRON file systems", SOSP 2005), which lets
//! descriptor, blocks and commit block go out behind one fence.
//!
//! Writes change a page cache. A commit writes the running transaction to the journal; when the
//! journal is full, a checkpoint copies every journaled block in place, from the cache. Metadata
//! is the table of blocks, journaled by the block of 512 entries.
//!
//! - [`Mode::Data`] journals everything. After a crash: the device is as after some number of
//!   requests; after all that were answered if each is committed, and else at least those before
//!   the last flush.
//! - [`Mode::Ordered`] journals metadata only; data is written in place, and durable, before the
//!   transaction that names it. After a crash: what was written before the last commit is there;
//!   of what was written since, each aligned word is old or new, and a block that was a hole is a
//!   hole or as at the last commit, never what another block once held. Several writes as one are
//!   several writes.
//!
//! Durable when answered: each request is a transaction of its own.
//!
//! A transaction in the journal, in blocks: descriptors (generation, number of the transaction,
//! number of blocks, then where each belongs), the blocks, the commit block (generation, number,
//! CRC-32C of all before). The head has the generation. Invariants: transactions of a generation
//! follow each other from the journal's start; a new generation is durable before its first. A
//! block that a transaction frees is free when that transaction is durable.

use std::sync::Arc;

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
    /// Blocks that the running transaction changes.
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
    /// CRC-32C so far.
    check: u32,
}

impl LogWriter {
    fn put<M: Medium>(&mut self, medium: &M, block: &[u8]) {
        self.check = crc32c::crc32c_append(self.check, block);
        medium.stream(self.at.plus(self.blocks * BLOCK_U64), block);
        self.blocks += 1;
    }
}

impl<M: Medium> BlockJournal<M> {
    /// Opens a device: copies in place what the journal says, and begins a new generation.
    ///
    /// # Errors
    /// There is no device, or its journal or table cannot be right.
    pub(crate) fn open(medium: Arc<M>, mode: Mode) -> Result<Self, SpaceError> {
        let space = Space::open(medium, mode.code())?;
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

    /// Reads the home places of the transaction's blocks at the tail. Returns true if a whole one
    /// is there.
    fn load_transaction(&mut self) -> Result<bool, SpaceError> {
        if self.log_room() == 0 {
            return Ok(false);
        }
        self.load_log(0)?;
        let mine = [self.generation, self.transactions];
        let count = word(&self.scratch, 2);
        let found = [0, 1].map(|number| word(&self.scratch, number));
        if found != mine || count == 0 || count > self.log_room() {
            return Ok(false);
        }
        let blocks = transaction_blocks(count);
        if blocks > self.log_room() {
            return Ok(false);
        }
        self.homes.clear();
        let mut check = 0;
        for number in 0..blocks - 1 {
            self.load_log(number)?;
            check = crc32c::crc32c_append(check, &self.scratch);
            if number < descriptors(count) {
                let places = PLACES_PER_DESCRIPTOR.min(index(count) - self.homes.len());
                let words = (DESCRIPTOR_WORDS..DESCRIPTOR_WORDS + places)
                    .map(|number| word(&self.scratch, number));
                self.homes.extend(words);
            }
        }
        self.load_log(blocks - 1)?;
        let expected = [mine[0], mine[1], u64::from(check)];
        let found = [0, 1, 2].map(|number| word(&self.scratch, number));
        Ok(found == expected || planted(Bug::JournalUnchecked))
    }

    /// Copies in place the blocks of the transaction that was read.
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

    /// Begins a new generation once what was copied in place is durable.
    fn begin_generation(&mut self) -> Result<(), MediaError> {
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

    fn write(&mut self, block: usize, start: usize, data: &[u8]) -> Result<(), MediaError> {
        let place = self.places[block];
        let page = self.cache.page(block);
        if page.lines.is_empty() && data.len() < BLOCK {
            self.space.load(place, 0, &mut page.bytes[..])?;
        }
        if page.running.is_empty() {
            self.running.push(block);
        }
        page.put(start, data, LineMask::FULL);
        if place == HOLE {
            let new = self.space.take();
            self.set_place(block, new.0);
        }
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

    /// Writes the data of the running transaction in place.
    fn write_data(&mut self) -> Result<(), MediaError> {
        let medium = self.space.medium();
        let mut written = false;
        for block in self.running.drain(..) {
            if let Some(page) = self.cache.get(block).filter(|page| !page.running.is_empty()) {
                medium.stream(BlockNo(self.places[block]).offset(), &page.bytes[..]);
                self.cache.remove(block);
                written = true;
            }
        }
        self.cache.drain(|_, _| ());
        match written {
            true => medium.fence(),
            false => Ok(()),
        }
    }

    /// Writes the running transaction to the journal.
    fn write_transaction(&mut self) -> Result<(), MediaError> {
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
            return Ok(());
        }
        let mut writer = LogWriter { at: self.log_at(0), blocks: 0, check: 0 };
        for first in (0..self.homes.len()).step_by(PLACES_PER_DESCRIPTOR) {
            self.build_descriptor(first);
            writer.put(self.space.medium(), &self.scratch);
        }
        for block in std::mem::take(&mut self.running) {
            let Some(page) = self.cache.get_mut(block) else { continue };
            page.running = LineMask::EMPTY;
            writer.put(self.space.medium(), &page.bytes[..]);
        }
        for table in std::mem::take(&mut self.running_tables.list) {
            self.running_tables.member[table] = false;
            self.journaled_tables.insert(table);
            self.build_table(table);
            writer.put(self.space.medium(), &self.scratch);
        }
        self.scratch.fill(0);
        self.put_words(&[self.generation, self.transactions, u64::from(writer.check)]);
        writer.put(self.space.medium(), &self.scratch);
        self.space.medium().fence()?;
        self.tail += writer.blocks;
        self.log_bytes += writer.blocks * BLOCK_U64;
        self.transactions += 1;
        Ok(())
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

/// Blocks that a transaction of so many blocks takes in the journal.
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

    fn medium(&self) -> &M {
        self.space.medium()
    }

    fn blocks(&self) -> usize {
        self.places.len()
    }

    /// Each edit may take a block of data and one of the table.
    fn edits_max(&self) -> usize {
        let log_blocks = index(self.space.layout.log_bytes() / BLOCK_U64);
        (log_blocks - 2) * PLACES_PER_DESCRIPTOR / (2 * (PLACES_PER_DESCRIPTOR + 1))
    }

    fn is_mapped(&self, block: usize) -> bool {
        self.places[block] != HOLE
    }

    fn read(&self, block: usize, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        self.cache.read(&self.space, self.places[block], block, start, out)
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        self.make_room(edits.len())?;
        for &edit in edits {
            match edit {
                Edit::Write { block, start, data } => self.write(block, start, data)?,
                Edit::Unmap { block } => self.unmap(block),
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        if self.mode == Mode::Ordered {
            self.write_data()?;
        }
        self.write_transaction()?;
        self.space.release();
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()?;
        if self.tail == 0 {
            return Ok(());
        }
        let (medium, places) = (self.space.medium(), &self.places);
        self.cache.drain(|block, page| {
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
