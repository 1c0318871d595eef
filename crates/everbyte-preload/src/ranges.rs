//! Free ranges of address space, and finding one that fits.
//!
//! First fit by address. Invariant: ranges neither touch nor overlap, so that what was given up in parts
//! is whole again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free ranges of addresses.
pub(crate) struct FreeRanges {
    /// Start and end of each.
    by_start: BTreeMap<usize, usize>,
}

impl FreeRanges {
    /// All of `range` is free.
    pub(crate) fn new(range: Range<usize>) -> Self {
        Self { by_start: BTreeMap::from([(range.start, range.end)]) }
    }

    /// Takes the first `len` bytes that begin at a multiple of `align`.
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let found = self.by_start.iter().find_map(|(&start, &end)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(len)? <= end).then_some((start, end, at))
        });
        let (start, end, at) = found?;
        self.cut(start, end, at..at + len);
        Some(at)
    }

    /// Takes exactly `range`, if all of it is free.
    pub(crate) fn take_at(&mut self, range: Range<usize>) -> bool {
        let Some((&start, &end)) = self.by_start.range(..=range.start).next_back() else {
            return false;
        };
        if range.end > end {
            return false;
        }
        self.cut(start, end, range);
        true
    }

    fn cut(&mut self, start: usize, end: usize, taken: Range<usize>) {
        self.by_start.remove(&start);
        if start < taken.start {
            self.by_start.insert(start, taken.start);
        }
        if taken.end < end {
            self.by_start.insert(taken.end, end);
        }
    }

    /// Makes `range` free. What of it is free already stays so; returns the bytes that were not.
    pub(crate) fn give(&mut self, range: Range<usize>) -> usize {
        let (mut start, mut end) = (range.start, range.end);
        let mut fresh = end - start;
        let before = self.by_start.range(..start).next_back().map(|(&s, &e)| (s, e));
        let touching: Vec<(usize, usize)> = before
            .into_iter()
            .chain(self.by_start.range(start..=end).map(|(&s, &e)| (s, e)))
            .filter(|&(s, e)| e >= start && s <= end)
            .collect();
        for (s, e) in touching {
            fresh -= e.min(range.end).saturating_sub(s.max(range.start));
            self.by_start.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.by_start.insert(start, end);
        fresh
    }
}
