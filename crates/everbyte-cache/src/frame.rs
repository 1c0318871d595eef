//! State of one page in the cache.

use crate::layout::PAGE;
use crate::scm::Mark;

/// Bytes `start .. end` of a page; none if they are equal.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) const WHOLE: Self = Self { start: 0, end: PAGE };

    pub(crate) fn of(start: usize, len: usize) -> Self {
        Self { start, end: start + len }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The smallest span with both.
    pub(crate) fn with(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A page in the cache.
///
/// Invariants: it has bytes in DRAM, a mark, or both. Bytes in DRAM are the newest. What is dirty
/// has the mark `Dirty`, or bytes in DRAM that are newer than those in SCM, or both.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Its bytes in DRAM.
    pub(crate) dram: Option<Box<[u8]>>,
    /// Its mark in SCM, if it has bytes there.
    pub(crate) mark: Option<Mark>,
    /// Bytes that are newer in DRAM than in SCM; all of the page without a mark.
    pub(crate) dram_dirty: Span,
    /// True if the backing device may have older bytes.
    pub(crate) dirty: bool,
    /// Number of its last write.
    pub(crate) version: u64,
    /// True if the policy has evicted it and it waits to be written back.
    pub(crate) pending_writeback: bool,
}

impl Frame {
    /// A page that came from the backing device, with its bytes in DRAM.
    pub(crate) fn fetched(bytes: Box<[u8]>) -> Self {
        Self {
            dram: Some(bytes),
            mark: None,
            dram_dirty: Span::default(),
            dirty: false,
            version: 0,
            pending_writeback: false,
        }
    }

    /// A page found in SCM when the cache was opened.
    pub(crate) fn found(mark: Mark) -> Self {
        Self {
            dram: None,
            mark: Some(mark),
            dram_dirty: Span::default(),
            dirty: mark == Mark::Dirty,
            version: 0,
            pending_writeback: true,
        }
    }
}
