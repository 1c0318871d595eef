//! No consistency: every write in place, without a log, at two levels of durability.
//!
//! - `none` provides durability only. Its cost is the cost of durability in every scheme. New
//!   bytes go in place with ordinary stores, whole blocks past the cache. A commit writes back the
//!   dirty lines, and fences. After a crash, in both modes, data written before the last commit is
//!   present. Of later writes, each aligned 8-byte word is old or new. In a word written in part,
//!   each byte is old or new. A block that was a hole at the last commit may have any contents.
//!   Atomic requests of several writes are not atomic.
//! - `ramfs` does the work of a file system in memory: ordinary stores, without flush or fence. A
//!   commit does nothing. After a crash nothing is promised, not even a device that opens. The
//!   papers call it no consistency.

use std::sync::Arc;

use everbyte_extent::Delta;
use everbyte_media::{BLOCK, BlockNo, LineMask, MediaError, Medium, PoolOffset};

use super::Kind;
use super::dirty::Dirty;
use super::front::{Edit, Engine, Refused};
use super::space::{HOLE, Layout, Space, SpaceError};

/// Codes in the superblock.
pub(crate) const CODE: u64 = 1;
pub(crate) const RAMFS_CODE: u64 = 7;
/// Most edits of one call. Only space limits them.
const EDITS_MAX: usize = 1024;

/// Writes in place without a log.
pub(crate) struct NoConsistency<M> {
    space: Space<M>,
    /// False for `ramfs`.
    durable: bool,
    places: Vec<u64>,
    dirty: Dirty,
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
            dirty: Dirty::new(blocks),
            scratch: Box::new([0; BLOCK]),
        })
    }

    fn layout(&self) -> Layout {
        self.space.layout
    }

    fn set_place(&mut self, block: usize, place: u64) {
        self.places[block] = place;
        self.space.medium().store_word(self.layout().entry_at(block), place);
        if self.durable {
            self.dirty.mark_entry(block);
        }
    }

    fn mark(&mut self, block: usize, lines: LineMask) {
        if self.durable {
            self.dirty.mark(block, lines);
        }
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
            self.dirty.forget(block);
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

    fn space(&self) -> &Space<M> {
        &self.space
    }

    fn places(&self) -> &[u64] {
        &self.places
    }

    fn edits_max(&self) -> usize {
        EDITS_MAX
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
                    self.dirty.forget(block);
                    self.set_place(block, HOLE);
                }
                Edit::Unmap { .. } => {}
            }
        }
        self.space.release();
        // Another thread may send the next request, so streams are fenced before this one ends.
        if streamed {
            self.space.medium().fence()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), SpaceError> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        self.dirty.flush(&self.space, &self.places);
        Ok(self.space.medium().fence()?)
    }

    fn checkpoint(&mut self) -> Result<(), SpaceError> {
        self.commit()
    }

    fn log_bytes(&self) -> u64 {
        0
    }
}
