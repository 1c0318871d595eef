//! Redo logging of differences, improved.
//!
//! Differences from `published`:
//! - Differences are sets of lines, found as the block volume finds them. They stay in DRAM until a
//!   commit, so two changes of a line are logged once.
//! - A commit streams all lines as one group with one CRC-32C, behind one fence. The log has no
//!   commit word.
//! - Whole blocks are streamed to their new places immediately. A new block is changed in place
//!   until its group is logged.
//! - A checkpoint takes lines from DRAM, each once, streams them, and has two fences.
//!
//! Durable when answered: one fence where lines are logged, two where a block is replaced: the
//! block must not be less durable than the group that names it.
//!
//! After a crash: as in `published`.
//!
//! A group in the log: the header's words (CRC-32C of the rest, and bytes of the whole; generation;
//! number of the group; number of entries); two words for each entry: the block and a mask of
//! lines, or the block with a flag and its new place; the lines of all entries; padding to lines.
//! The head has the generation. Invariants: groups of a generation follow each other from the
//! log's start, numbered from 0. A new generation is durable before its first group is written:
//! otherwise, remaining groups of the last generation could undo a checkpoint.

use std::sync::Arc;

use everbyte_extent::Delta;
use everbyte_media::{
    BLOCK, BLOCK_U64, BlockNo, LINE, LINE_U64, LineMask, MediaError, Medium, PoolOffset,
};
use everbyte_plant::planted;

use crate::baselines::Kind;
use crate::baselines::front::{Edit, Engine, Refused};
use crate::baselines::overlay::{Overlay, lines_of, part_of};
use crate::baselines::plant::Bug;
use crate::baselines::space::{HEAD, HOLE, Space, SpaceError, index};

/// Code in the superblock.
pub(crate) const CODE: u64 = 3;
const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
/// Lines of a block from which on it is replaced: more than half.
const REPLACE_LINES: u32 = 33;
/// Bytes that an edit takes in a group at most.
const EDIT_BYTES_MAX: usize = ENTRY_BYTES + (REPLACE_LINES as usize - 1) * LINE;
/// Most bytes of a group in addition to its entries.
const GROUP_BYTES: usize = HEADER_BYTES + LINE;
/// In the first word of an entry: the block is replaced.
const REPLACED: u64 = 1 << 63;

/// State of a block in addition to its place.
#[derive(Clone, Copy, Default)]
struct State {
    /// Its entry in the table is older than its place.
    moved: bool,
    /// Its place is not in the log yet, so that the block there may be changed.
    fresh: bool,
    /// It is among the blocks of the running group.
    running: bool,
}

/// Redo logging of sets of lines, in groups with a checksum.
pub(crate) struct Improved<M> {
    space: Space<M>,
    places: Vec<u64>,
    states: Vec<State>,
    overlay: Overlay,
    /// Blocks that the next group names.
    running: Vec<usize>,
    /// Bytes that the next group takes at most.
    running_bytes: usize,
    /// Blocks that moved since the last checkpoint.
    moved: Vec<usize>,
    generation: u64,
    groups: u64,
    tail: usize,
    log_bytes: u64,
    group: Vec<u8>,
    scratch: Vec<u8>,
}

impl<M: Medium> Improved<M> {
    /// Opens a device: reads the log, copies its contents in place, and begins a new generation.
    ///
    /// # Errors The device is missing, or its log or table is invalid.
    pub(crate) fn open(medium: Arc<M>, delta: Delta) -> Result<Self, SpaceError> {
        let space = Space::open(medium, CODE, delta)?;
        let places = space.load_table()?;
        let generation = space.medium().load_word(HEAD);
        space.medium().check_range(HEAD, 8)?;
        let mut scheme = Self {
            states: vec![State::default(); places.len()],
            overlay: Overlay::new(places.len()),
            places,
            running: Vec::new(),
            running_bytes: 0,
            moved: Vec::new(),
            generation,
            groups: 0,
            tail: 0,
            log_bytes: 0,
            group: Vec::new(),
            scratch: vec![0; BLOCK],
            space,
        };
        while scheme.load_group()? {
            scheme.take_group()?;
        }
        scheme.copy_in_place()?;
        scheme.space.claim(scheme.places.iter().copied())?;
        Ok(scheme)
    }

    fn log_at(&self) -> PoolOffset {
        self.space.layout.log_at().plus(self.tail as u64)
    }

    fn log_room(&self) -> usize {
        index(self.space.layout.log_bytes()) - self.tail
    }

    /// Reads the group at the tail, if it is complete.
    fn load_group(&mut self) -> Result<bool, SpaceError> {
        if self.log_room() < HEADER_BYTES {
            return Ok(false);
        }
        let (at, medium) = (self.log_at(), self.space.medium());
        let len = index(medium.load_word(at) >> 32);
        let expected = [self.generation, self.groups];
        let found = [8, 16].map(|word| medium.load_word(at.plus(word)));
        medium.check_range(at, HEADER_BYTES as u64)?;
        if found != expected || len < HEADER_BYTES || len > self.log_room() {
            return Ok(false);
        }
        self.group.resize(len, 0);
        medium.read(at, &mut self.group);
        medium.check_range(at, len as u64)?;
        let check = check_of(&self.group);
        Ok(word(&self.group, 0) & u64::from(u32::MAX) == check || planted(Bug::ImprovedUnchecked))
    }

    /// Applies the contents of the last read group.
    fn take_group(&mut self) -> Result<(), SpaceError> {
        let at = self.log_at();
        let wrong = |what| SpaceError::corrupt("log", at, what);
        let entries = index(word(&self.group, 24));
        let mut lines_at = entries
            .checked_mul(ENTRY_BYTES)
            .and_then(|bytes| bytes.checked_add(HEADER_BYTES))
            .filter(|&bytes| bytes <= self.group.len())
            .ok_or_else(|| wrong("a group has more entries than bytes"))?;
        for entry in 0..entries {
            let entry_at = HEADER_BYTES + entry * ENTRY_BYTES;
            let (name, value) = (word(&self.group, entry_at), word(&self.group, entry_at + 8));
            let block = index(name & !REPLACED);
            if block >= self.places.len() {
                return Err(wrong("a block is not in the device"));
            }
            if name & REPLACED != 0 {
                self.space.check_place(value, "log", at)?;
                self.move_to(block, value);
                continue;
            }
            let mask = LineMask(value);
            let lines_end = lines_at + mask.count() as usize * LINE;
            if lines_end > self.group.len() || self.places[block] == HOLE {
                return Err(wrong("lines are missing, or of a hole"));
            }
            let page = self.overlay.page(block);
            for (line, bytes) in
                lines_of(mask).zip(self.group[lines_at..lines_end].chunks_exact(LINE))
            {
                page.put(line, bytes, LineMask::covering(line, LINE));
            }
            lines_at = lines_end;
        }
        self.tail += self.group.len();
        self.groups += 1;
        Ok(())
    }

    /// Moves a block. Its lines in DRAM become useless.
    fn move_to(&mut self, block: usize, place: u64) {
        self.overlay.remove(block);
        self.places[block] = place;
        if !std::mem::replace(&mut self.states[block].moved, true) {
            self.moved.push(block);
        }
    }

    /// Names a block in the running group, with so many more bytes.
    fn run(&mut self, block: usize, lines: u32) {
        if !std::mem::replace(&mut self.states[block].running, true) {
            self.running.push(block);
            self.running_bytes += ENTRY_BYTES;
        }
        self.running_bytes += lines as usize * LINE;
    }

    /// Gives a block a new place as part of the running group.
    fn replace(&mut self, block: usize, place: u64) {
        let old = self.places[block];
        if self.states[block].fresh && old != HOLE {
            self.space.free_unused(old);
        } else {
            self.space.free_later(old);
        }
        self.move_to(block, place);
        self.states[block].fresh = true;
        self.run(block, 0);
    }

    /// Returns whether bytes were streamed.
    fn write(&mut self, block: usize, start: usize, data: &[u8]) -> Result<bool, MediaError> {
        let place = self.places[block];
        if place != HOLE {
            let in_place = self.states[block].fresh
                || (planted(Bug::ImprovedInPlace) && self.states[block].moved);
            if in_place {
                let at = BlockNo(place).offset().plus(start as u64);
                self.space.medium().stream(at, data);
                return Ok(true);
            }
            let changed = match self.space.compares() {
                true => self.overlay.changed(&self.space, place, block, start, data)?,
                false => LineMask::covering(start, data.len()),
            };
            if changed.is_empty() {
                return Ok(false);
            }
            if changed.count() < REPLACE_LINES {
                self.write_lines(block, start, data, changed)?;
                return Ok(false);
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
        self.log_bytes += BLOCK_U64;
        self.replace(block, new.0);
        Ok(true)
    }

    /// Puts the changed lines into the page of a block.
    fn write_lines(
        &mut self,
        block: usize,
        start: usize,
        data: &[u8],
        changed: LineMask,
    ) -> Result<(), MediaError> {
        let place = self.places[block];
        let running = self.overlay.page(block).running;
        let new = changed.without(running).count();
        // Before the lines, so that a failure leaves none that no group has.
        self.run(block, new);
        let page = self.overlay.page(block);
        for line in lines_of(changed) {
            let (from, to) = part_of(line, start, data.len());
            let mask = LineMask::covering(line, LINE);
            if to - from < LINE && page.lines.and(mask).is_empty() {
                self.space.load(place, line, &mut page.bytes[line..line + LINE])?;
            }
            page.put(from, &data[from - start..to - start], mask);
        }
        Ok(())
    }

    /// Puts the running group together.
    fn build_group(&mut self) {
        let group = &mut self.group;
        group.clear();
        group.resize(HEADER_BYTES, 0);
        for &block in &self.running {
            let page = self.overlay.get(block);
            let (name, value) = match page {
                Some(page) if !self.states[block].fresh => (block as u64, page.running.0),
                _ => (block as u64 | REPLACED, self.places[block]),
            };
            group.extend_from_slice(&name.to_le_bytes());
            group.extend_from_slice(&value.to_le_bytes());
        }
        for block in self.running.drain(..) {
            let state = &mut self.states[block];
            (state.fresh, state.running) = (false, false);
            let Some(page) = self.overlay.get_mut(block) else { continue };
            for (start, len) in page.running.runs() {
                group.extend_from_slice(&page.bytes[start..start + len]);
            }
            page.running = LineMask::EMPTY;
        }
        self.running_bytes = 0;
    }

    /// Copies the logged contents in place, and begins a new generation.
    fn copy_in_place(&mut self) -> Result<(), MediaError> {
        let Self { space, overlay, places, .. } = self;
        let medium = space.medium();
        overlay.drain(|block, page| {
            let at = BlockNo(places[block]).offset();
            for (start, len) in page.lines.runs() {
                medium.stream(at.plus(start as u64), &page.bytes[start..start + len]);
            }
        });
        self.moved.sort_unstable();
        for line in self.moved.chunk_by(|a, b| a / 8 == b / 8) {
            for &block in line {
                self.states[block].moved = false;
                medium.store_word(space.layout.entry_at(block), places[block]);
            }
            let first = space.layout.entry_at(line[0] / 8 * 8);
            medium.flush(first, LINE_U64);
        }
        self.moved.clear();
        // A new generation voids the logged groups, so the copies must be durable first.
        medium.fence()?;
        self.generation = self.generation.wrapping_add(1);
        space.persist_head(self.generation)?;
        (self.tail, self.groups) = (0, 0);
        space.release();
        Ok(())
    }

    /// Makes room for edits in the log, in the cache and among the blocks.
    fn make_room(&mut self, edits: usize) -> Result<(), Refused> {
        let bytes = GROUP_BYTES + self.running_bytes + edits * EDIT_BYTES_MAX;
        if bytes > self.log_room() || self.overlay.is_full(edits) || !self.space.reserve(edits) {
            self.checkpoint()?;
        }
        match self.space.reserve(edits) {
            true => Ok(()),
            false => Err(Refused::NoSpace),
        }
    }
}

/// The word at `at`.
fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..at + 8].iter().rev();
    word.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// The CRC-32C that belongs into the first four bytes of a group.
fn check_of(group: &[u8]) -> u64 {
    u64::from(crc32c::crc32c(&group[4..]))
}

impl<M: Medium> Engine for Improved<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        Kind::RedoImproved.name()
    }

    fn space(&self) -> &Space<M> {
        &self.space
    }

    fn places(&self) -> &[u64] {
        &self.places
    }

    fn edits_max(&self) -> usize {
        (index(self.space.layout.log_bytes()) - GROUP_BYTES) / EDIT_BYTES_MAX
    }

    fn read(&self, block: usize, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        self.overlay.read(&self.space, self.places[block], block, start, out)
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        self.make_room(edits.len())?;
        let mut streamed = false;
        for &edit in edits {
            match edit {
                Edit::Write { block, start, data } => streamed |= self.write(block, start, data)?,
                Edit::Unmap { block } if self.places[block] != HOLE => self.replace(block, HOLE),
                Edit::Unmap { .. } => {}
            }
        }
        // Another thread may send the next request, so streams are fenced before this one ends.
        if streamed {
            self.space.medium().fence()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        if self.running.is_empty() {
            return Ok(());
        }
        let entries = self.running.len() as u64;
        self.build_group();
        let len = self.group.len().next_multiple_of(LINE);
        self.group.resize(len, 0);
        for (at, value) in
            [(0, (len as u64) << 32), (8, self.generation), (16, self.groups), (24, entries)]
        {
            self.group[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let check = check_of(&self.group);
        self.group[..4].copy_from_slice(&check.to_le_bytes()[..4]);
        // Recovery detects a torn group by its checksum, so the group needs no commit word.
        self.space.medium().stream(self.log_at(), &self.group);
        self.space.medium().fence()?;
        self.tail += len;
        self.groups += 1;
        self.log_bytes += len as u64;
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()?;
        match self.tail {
            0 => Ok(()),
            _ => Ok(self.copy_in_place()?),
        }
    }

    fn log_bytes(&self) -> u64 {
        self.log_bytes
    }
}
