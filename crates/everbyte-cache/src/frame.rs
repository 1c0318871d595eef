//! State of one page in the cache.

use std::ops::Range;

use everbyte_policy::policy::Tier;

use crate::layout::PAGE;
use crate::scm::Mark;

/// The bytes of a page.
pub(crate) type Bytes = Box<[u8; PAGE]>;

/// Bytes of a page, from one place to another; none if these are equal.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Span {
    start: u16,
    end: u16,
}

impl Span {
    /// Returns the span of `len` bytes from `start` on, which end within the page.
    #[allow(clippy::cast_possible_truncation, reason = "places in a page have 13 bits")]
    pub(crate) const fn of(start: usize, len: usize) -> Self {
        Self { start: start as u16, end: (start + len) as u16 }
    }

    pub(crate) const WHOLE: Self = Self::of(0, PAGE);

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

    pub(crate) fn range(self) -> Range<usize> {
        self.start.into()..self.end.into()
    }
}

/// A page in the cache.
///
/// Invariants: it has bytes in DRAM, a mark, or both, but for the moment between the removal of its
/// mark and its own. Bytes in DRAM are the newest. A dirty page has the mark `Dirty`, or bytes in DRAM
/// that are newer than those in SCM, or both.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Its bytes in DRAM.
    pub(crate) dram: Option<Bytes>,
    /// Number of its last write.
    pub(crate) version: u64,
    /// Bytes that are newer in DRAM than in SCM; all of the page without a mark.
    pub(crate) dram_dirty: Span,
    /// Its mark in SCM, if it has bytes there.
    pub(crate) mark: Option<Mark>,
    /// True if the backing device may have older bytes.
    pub(crate) dirty: bool,
    /// True if the policy has evicted it and it waits to be written back.
    pub(crate) pending_writeback: bool,
}

impl Frame {
    /// A page that came from the backing device, with its bytes in DRAM, `written` of which are newer
    /// than that device's.
    pub(crate) fn fetched(bytes: Bytes, written: Span) -> Self {
        Self {
            dram: Some(bytes),
            version: 0,
            dram_dirty: written,
            mark: None,
            dirty: !written.is_empty(),
            pending_writeback: false,
        }
    }

    /// A page found in SCM when the cache was opened.
    pub(crate) fn found(mark: Mark) -> Self {
        Self {
            dram: None,
            version: 0,
            dram_dirty: Span::default(),
            mark: Some(mark),
            dirty: mark == Mark::Dirty,
            pending_writeback: true,
        }
    }

    /// Returns the tier that a hit finds the page in. `None` if it is on its way out of the cache.
    pub(crate) fn tier(&self) -> Option<Tier> {
        match (&self.dram, self.mark) {
            _ if self.pending_writeback => None,
            (Some(_), _) => Some(Tier::Dram),
            (None, Some(_)) => Some(Tier::Scm),
            (None, None) => None,
        }
    }

    /// Returns true if a further write of it changes nothing but bytes: it is dirty, and counts as
    /// dirty where it is.
    pub(crate) fn is_dirty_in_place(&self) -> bool {
        self.dirty
            && match &self.dram {
                Some(_) => !self.dram_dirty.is_empty(),
                None => self.mark == Some(Mark::Dirty),
            }
    }
}
