//! The lines of blocks and of the table stored in place and not flushed yet.
//!
//! Invariants: a block with dirty lines is in the list. A block in the list may have no dirty
//! lines.
//! Flushing goes in the order in which blocks and entries became dirty, so that runs repeat exactly.

use everbyte_media::{BlockNo, LINE, LineMask, Medium};

use super::space::Space;

/// Entries of the table in a line.
const ENTRIES_PER_LINE: usize = LINE / 8;

/// Dirty lines of a device.
pub(crate) struct Dirty {
    lines: Vec<LineMask>,
    blocks: Vec<usize>,
    entries: Vec<bool>,
    entry_lines: Vec<usize>,
}

impl Dirty {
    /// Nothing is dirty of a device of so many blocks.
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            lines: vec![LineMask::EMPTY; blocks],
            blocks: Vec::new(),
            entries: vec![false; blocks.div_ceil(ENTRIES_PER_LINE)],
            entry_lines: Vec::new(),
        }
    }

    /// Returns true if nothing became dirty since the last flush.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.entry_lines.is_empty()
    }

    /// Notes lines of a block.
    pub(crate) fn mark(&mut self, block: usize, lines: LineMask) {
        if self.lines[block].is_empty() {
            self.blocks.push(block);
        }
        self.lines[block] = self.lines[block].or(lines);
    }

    /// Forgets the lines of a block.
    pub(crate) fn forget(&mut self, block: usize) {
        self.lines[block] = LineMask::EMPTY;
    }

    /// Notes the entry of a block.
    pub(crate) fn mark_entry(&mut self, block: usize) {
        let line = block / ENTRIES_PER_LINE;
        if !std::mem::replace(&mut self.entries[line], true) {
            self.entry_lines.push(line);
        }
    }

    /// Flushes all of it, without a fence; blocks lie at `places`.
    pub(crate) fn flush<M: Medium>(&mut self, space: &Space<M>, places: &[u64]) {
        for block in self.blocks.drain(..) {
            let lines = std::mem::replace(&mut self.lines[block], LineMask::EMPTY);
            let at = BlockNo(places[block]).offset();
            for (start, len) in lines.runs() {
                space.medium().flush(at.plus(start as u64), len as u64);
            }
        }
        for line in self.entry_lines.drain(..) {
            self.entries[line] = false;
            let at = space.layout.entry_at(line * ENTRIES_PER_LINE);
            space.medium().flush(at, LINE as u64);
        }
    }
}
