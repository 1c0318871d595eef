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
    /// Returns the span of `len` bytes from `start` on. It ends within the page.
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

/// The bytes of a page in DRAM.
#[derive(Debug)]
pub(crate) struct DramCopy {
    pub(crate) bytes: Bytes,
    /// The bytes newer than in SCM; the whole page if it has no mark.
    pub(crate) newer: Span,
}

/// State of a page compared with the backing device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// The backing device has the same bytes.
    Clean,
    /// The backing device may have older bytes.
    Written,
    /// As `Written`, and a write-back has copied the bytes since they were written last.
    Copied,
}

/// A page in the cache, without its bytes. There is one for each page of SCM, so it has four bytes.
///
/// Invariants: the page is in DRAM, has a mark, or both, except between the removal of its mark and
/// its own removal. Bytes in DRAM are the newest. A dirty page has the mark `Dirty`, or bytes in
/// DRAM that are newer than those in SCM, or both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// True if DRAM has its bytes.
    pub(crate) in_dram: bool,
    /// Its mark in SCM, if it has bytes there.
    pub(crate) mark: Option<Mark>,
    pub(crate) content: Content,
    /// True if the policy has evicted it and it waits to be written back.
    pub(crate) pending_writeback: bool,
}

const _: () = assert!(size_of::<Frame>() == 4);

impl Frame {
    /// A page fetched from the backing device, or written as a whole. It is in DRAM.
    pub(crate) fn fetched(is_written: bool) -> Self {
        let content = if is_written { Content::Written } else { Content::Clean };
        Self { in_dram: true, mark: None, content, pending_writeback: false }
    }

    /// A page found in SCM when the cache was opened.
    pub(crate) fn found(mark: Mark) -> Self {
        let content = match mark {
            Mark::Clean => Content::Clean,
            Mark::Dirty => Content::Written,
        };
        Self { in_dram: false, mark: Some(mark), content, pending_writeback: true }
    }

    /// Returns true if the backing device may have older bytes.
    pub(crate) fn is_dirty(&self) -> bool {
        self.content != Content::Clean
    }

    /// Returns the tier of the page for a hit. `None` if it is leaving the cache.
    pub(crate) fn tier(&self) -> Option<Tier> {
        match (self.in_dram, self.mark) {
            _ if self.pending_writeback => None,
            (true, _) => Some(Tier::Dram),
            (false, Some(_)) => Some(Tier::Scm),
            (false, None) => None,
        }
    }
}
