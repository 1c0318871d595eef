//! No consistency: every write in place, without a log, at two levels of durability.
//!
//! - `none` keeps what was written, and nothing more: it is the cost of durability itself, which
//!   every scheme has. New bytes go in place with ordinary stores, whole blocks past the cache; a
//!   commit writes back the lines that are dirty, and fences. After a crash, in both modes, what
//!   was written before the last commit is there. Of what was written since, each aligned 8-byte
//!   word is old or new, or each byte of one that a request wrote in part; in a block that was a
//!   hole then, there may be anything. Several writes as one are several writes.
//! - `ramfs` is what a file system in memory does, and all that it does: ordinary stores, without
//!   flush or fence. A commit does nothing, and after a crash nothing is promised, not even a
//!   device that opens. It is what the papers call no consistency.

use std::sync::Arc;

use everbyte_extent::Delta;
use everbyte_media::{BLOCK, BlockNo, LINE, LineMask, MediaError, Medium, PoolOffset};

use super::Kind;
use super::front::{Edit, Engine, Refused};
use super::space::{HOLE, Layout, Space, SpaceError};

/// Codes in the superblock.
pub(crate) const CODE: u64 = 1;
pub(crate) const RAMFS_CODE: u64 = 7;
/// Edits in one go; there is no limit but that of space.
const EDITS_MAX: usize = 1024;
/// Entries of the table in a line.
const ENTRIES_PER_LINE: usize = LINE / 8;

/// Writes in place without a log.
pub(crate) struct NoConsistency<M> {
    space: Space<M>,
    /// False for `ramfs`.
    durable: bool,
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
    /// Opens a device, which is `durable`, or `ramfs`.
    ///
    /// # Errors
    /// There is none, or the table cannot be right: nothing protects it.
    pub(crate) fn open(medium: Arc<M>, durable: bool, delta: Delta) -> Result<Self, SpaceError> {
        let space = Space::open(medium, if durable { CODE } else { RAMFS_CODE }, delta)?;
        let places = space.load_table()?;
        space.claim(places.iter().copied())?;
        let blocks = places.len();
        Ok(Self {
            space,
            durable,
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
        if self.durable && !std::mem::replace(&mut self.dirty_entries[line], true) {
            self.dirty_entry_lines.push(line);
        }
    }

    fn mark(&mut self, block: usize, lines: LineMask) {
        if !self.durable {
            return;
        }
        if self.dirty[block].is_empty() {
            self.dirty_blocks.push(block);
        }
        self.dirty[block] = self.dirty[block].or(lines);
    }

    /// Writes a whole block, past the cache if it is to be durable.
    fn put(space: &Space<M>, durable: bool, at: PoolOffset, block: &[u8]) {
        match durable {
            true => space.medium().stream(at, block),
            false => space.medium().store(at, block),
        }
    }

    /// Returns whether bytes were streamed.
    fn write(&mut self, block: usize, start: usize, data: &[u8]) -> Result<bool, MediaError> {
        let place = self.places[block];
        if place == HOLE {
            let new = self.space.take();
            let whole = self.space.merged(HOLE, start, data, &mut self.scratch)?;
            Self::put(&self.space, self.durable, new.offset(), whole);
            self.set_place(block, new.0);
            return Ok(self.durable);
        }
        let at = BlockNo(place).offset();
        let changed = self.space.to_store(place, start, data)?;
        if data.len() == BLOCK && changed == LineMask::FULL {
            Self::put(&self.space, self.durable, at, data);
            // The block stays in the list, with nothing to be done.
            self.dirty[block] = LineMask::EMPTY;
            return Ok(self.durable);
        }
        for (run, len) in changed.runs() {
            let (from, to) = (run.max(start), (run + len).min(start + data.len()));
            self.space.medium().store(at.plus(from as u64), &data[from - start..to - start]);
        }
        self.mark(block, changed);
        Ok(false)
    }
}

impl<M: Medium> Engine for NoConsistency<M> {
    type Medium = M;

    fn name(&self) -> &'static str {
        if self.durable { Kind::None.name() } else { Kind::Ramfs.name() }
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
