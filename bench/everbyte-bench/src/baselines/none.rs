//! No consistency: what a file system in memory (ramfs) does, and all that it does.
//!
//! New bytes go in place with ordinary stores, whole blocks past the cache. A commit writes back
//! the lines that are dirty. There is no log.
//!
//! After a crash: in both modes, what was written before the last commit is there. Of what was
//! written since, each aligned 8-byte word is old or new, or each byte of one that a request wrote
//! in part; in a block that was a hole then, there may be anything. Several writes as one are
//! several writes.

use std::sync::Arc;

use everbyte_media::{BLOCK, BlockNo, LINE, LineMask, MediaError, Medium};

use super::Kind;
use super::front::{Edit, Engine, Refused};
use super::space::{HOLE, Layout, Space, SpaceError};

/// Code in the superblock.
pub(crate) const CODE: u64 = 1;
/// Edits in one go; there is no limit but that of space.
const EDITS_MAX: usize = 1024;
/// Entries of the table in a line.
const ENTRIES_PER_LINE: usize = LINE / 8;

/// Writes in place without a log.
pub(crate) struct NoConsistency<M> {
    space: Space<M>,
    places: Vec<u64>,
    /// Dirty lines of each block of the device, and which blocks have some.
    dirty: Vec<LineMask>,
    dirty_blocks: Vec<usize>,
    /// True for each line of the table that is dirty, and the list of them.
    dirty_entries: Vec<bool>,
    dirty_entry_lines: Vec<usize>,
    scratch: Box<[u8; BLOCK]>,
}

impl<M: Medium> NoConsistency<M> {
    /// Opens a device.
    ///
    /// # Errors
    /// There is none, or the table cannot be right: nothing protects it.
    pub(crate) fn open(medium: Arc<M>) -> Result<Self, SpaceError> {
        let space = Space::open(medium, CODE)?;
        let places = space.load_table()?;
        space.claim(places.iter().copied())?;
        let blocks = places.len();
        Ok(Self {
            space,
            places,
            dirty: vec![LineMask::EMPTY; blocks],
            dirty_blocks: Vec::new(),
            dirty_entries: vec![false; blocks.div_ceil(ENTRIES_PER_LINE)],
            dirty_entry_lines: Vec::new(),
            scratch: Box::new([0; BLOCK]),
        })
    }

    fn layout(&self) -> Layout {
        self.space.layout
    }

    fn set_place(&mut self, block: usize, place: u64) {
        self.places[block] = place;
        self.space.medium().store_word(self.layout().entry_at(block), place);
        let line = block / ENTRIES_PER_LINE;
        if !std::mem::replace(&mut self.dirty_entries[line], true) {
            self.dirty_entry_lines.push(line);
        }
    }

    fn mark(&mut self, block: usize, lines: LineMask) {
        if self.dirty[block].is_empty() {
            self.dirty_blocks.push(block);
        }
        self.dirty[block] = self.dirty[block].or(lines);
    }

    /// Returns whether bytes were streamed.
    fn write(&mut self, block: usize, start: usize, data: &[u8]) -> Result<bool, MediaError> {
        let place = self.places[block];
        if place != HOLE && data.len() < BLOCK {
            let at = BlockNo(place).offset().plus(start as u64);
            self.space.medium().store(at, data);
            self.mark(block, LineMask::covering(start, data.len()));
            return Ok(false);
        }
        let new = if place == HOLE { self.space.take() } else { BlockNo(place) };
        let whole = self.space.merged(place, start, data, &mut self.scratch)?;
        self.space.medium().stream(new.offset(), whole);
        // The block stays in the list, with nothing to be done.
        self.dirty[block] = LineMask::EMPTY;
        if place == HOLE {
            self.set_place(block, new.0);
        }
        Ok(true)
    }
}

impl<M: Medium> Engine for NoConsistency<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        Kind::None.name()
    }

    fn medium(&self) -> &M {
        self.space.medium()
    }

    fn blocks(&self) -> usize {
        self.places.len()
    }

    fn edits_max(&self) -> usize {
        EDITS_MAX
    }

    fn is_mapped(&self, block: usize) -> bool {
        self.places[block] != HOLE
    }

    fn read(&self, block: usize, start: usize, out: &mut [u8]) -> Result<(), MediaError> {
        self.space.load(self.places[block], start, out)
    }

    fn apply(&mut self, edits: &[Edit<'_>]) -> Result<(), Refused> {
        if !self.space.reserve(edits.len()) {
            // Nothing is kept back: a block that is freed is free.
            return Err(Refused::NoSpace);
        }
        let mut streamed = false;
        for &edit in edits {
            match edit {
                Edit::Write { block, start, data } => streamed |= self.write(block, start, data)?,
                Edit::Unmap { block } if self.places[block] != HOLE => {
                    self.space.free_later(self.places[block]);
                    self.dirty[block] = LineMask::EMPTY;
                    self.set_place(block, HOLE);
                }
                Edit::Unmap { .. } => {}
            }
        }
        self.space.release();
        if streamed {
            self.space.medium().fence()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        if self.dirty_blocks.is_empty() && self.dirty_entry_lines.is_empty() {
            return Ok(());
        }
        let medium = self.space.medium();
        for block in self.dirty_blocks.drain(..) {
            let (lines, at) = (self.dirty[block], BlockNo(self.places[block]).offset());
            self.dirty[block] = LineMask::EMPTY;
            for (start, len) in lines.runs() {
                medium.flush(at.plus(start as u64), len as u64);
            }
        }
        for line in self.dirty_entry_lines.drain(..) {
            self.dirty_entries[line] = false;
            medium.flush(self.space.layout.entry_at(line * ENTRIES_PER_LINE), LINE as u64);
        }
        Ok(medium.fence()?)
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()
    }

    fn log_bytes(&self) -> u64 {
        0
    }
}
