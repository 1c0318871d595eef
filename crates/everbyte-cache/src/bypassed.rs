//! Changes that bypassed the cache and that the backing device may still lose.
//!
//! Invariants (lemmas C6 to C8 of `docs/proofs.md`): an answered change is kept here until a later
//! flush of the backing device has succeeded, or newer bytes replaced it. After a failed flush,
//! changes are `lost` until they are repeated. Pages of failed changes are `suspect` while the
//! cache is open, and their bytes count as dirty when read.

use std::ops::Range;

use everbyte_device::DeviceError;
use everbyte_device::unflushed::{Content, Unflushed};

use crate::layout::{PAGE_U64, Page};

/// Most separate runs of pages. Beyond this limit, one run covers all of them.
const RUNS_MAX: usize = 256;

/// Approximate limit of the bytes of kept changes. Above it, a flush precedes the next change.
const COST_MAX: usize = 16 << 20;

/// A set of pages as runs. They may cover pages that were not added.
#[derive(Default)]
struct Runs(Vec<Range<Page>>);

impl Runs {
    fn add(&mut self, pages: Range<Page>) {
        // Only the last run is compared: sequential changes are the common case.
        match self.0.last_mut() {
            Some(last) if last.start <= pages.end && pages.start <= last.end => {
                *last = last.start.min(pages.start)..last.end.max(pages.end);
            }
            _ => self.0.push(pages),
        }
        // Too many pages only cost needless flushes. A missing page could lose data.
        if self.0.len() > RUNS_MAX {
            let start = self.0.iter().map(|run| run.start).min().unwrap_or(0);
            let end = self.0.iter().map(|run| run.end).max().unwrap_or(0);
            self.0.clear();
            self.0.push(start..end);
        }
    }

    fn append(&mut self, other: Self) {
        other.0.into_iter().for_each(|pages| self.add(pages));
    }

    fn touches(&self, pages: &Range<Page>) -> bool {
        self.0.iter().any(|run| run.start < pages.end && pages.start < run.end)
    }
}

/// Changes between two flushes that may still be lost.
#[derive(Default)]
struct Changes {
    answered: Unflushed,
    /// Pages of failed changes.
    failed: Runs,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.answered.is_empty() && self.failed.0.is_empty()
    }

    fn touches(&self, pages: &Range<Page>) -> bool {
        let (offset, len) = bytes_of(pages);
        self.answered.touches(offset, len) || self.failed.touches(pages)
    }
}

fn bytes_of(pages: &Range<Page>) -> (u64, u64) {
    let len = u64::from(pages.end.saturating_sub(pages.start)) * PAGE_U64;
    (u64::from(pages.start) * PAGE_U64, len)
}

/// Changes that bypassed the cache and that the backing device may still lose.
#[derive(Default)]
pub(crate) struct BypassedPages {
    /// Changed since the last flush began.
    since: Changes,
    /// Changed earlier; the flush for them is running.
    being_flushed: Changes,
    /// Changes that a failed flush may have lost.
    lost: Unflushed,
    suspect: Runs,
    /// A failure that was not reported to a client yet.
    unreported: Option<DeviceError>,
    failures: u64,
}

impl BypassedPages {
    /// Notes a range changed by a request. The request began when `failures` flushes had failed.
    pub(crate) fn changed(&mut self, offset: u64, content: Content, failures: u64) {
        self.superseded(offset, content.len());
        // A flush that failed during the change may have dropped it, and no later flush tells (C6).
        if failures == self.failures {
            self.since.answered.put(offset, content);
        } else {
            self.lost.put(offset, content);
        }
    }

    /// Notes a failed change of pages. It began when `failures` flushes had failed. The pages'
    /// bytes are unknown.
    pub(crate) fn change_failed(&mut self, pages: Range<Page>, failures: u64) {
        // The bytes are unknown, so the change cannot be made again (C8).
        if failures == self.failures {
            self.since.failed.add(pages);
        } else {
            self.suspect.add(pages);
        }
    }

    /// Forgets the range, because newer bytes are kept elsewhere.
    pub(crate) fn superseded(&mut self, offset: u64, len: u64) {
        self.since.answered.cut(offset, len);
        self.being_flushed.answered.cut(offset, len);
        self.lost.cut(offset, len);
    }

    /// Returns true if the backing device may lose its present bytes of `pages`.
    pub(crate) fn touches(&self, pages: &Range<Page>) -> bool {
        let (offset, len) = bytes_of(pages);
        self.since.touches(pages)
            || self.being_flushed.touches(pages)
            || self.lost.touches(offset, len)
    }

    /// Returns true if a failed flush may have lost the page's bytes in the backing device, so that
    /// no later flush covers them.
    pub(crate) fn is_suspect(&self, page: Page) -> bool {
        self.suspect.touches(&(page..page + 1))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty() && self.being_flushed.is_empty() && self.lost.is_empty()
    }

    /// Returns true if the kept changes need a flush before the next change.
    pub(crate) fn is_full(&self) -> bool {
        let kept = [&self.since.answered, &self.being_flushed.answered, &self.lost];
        kept.iter().map(|changes| changes.cost()).sum::<usize>() >= COST_MAX
    }

    /// Notes the start of a flush. Only one flush runs at a time.
    pub(crate) fn begin_flush(&mut self) {
        self.being_flushed = std::mem::take(&mut self.since);
    }

    /// Notes that the flush has succeeded.
    pub(crate) fn flushed(&mut self) {
        self.being_flushed = Changes::default();
    }

    /// Notes a failed flush.
    pub(crate) fn flush_failed(&mut self, error: &DeviceError) {
        self.failures += 1;
        // Before the changes move to `lost`. A failure without any of them concerns no client.
        let is_concerned = !self.is_empty();
        for changes in [std::mem::take(&mut self.being_flushed), std::mem::take(&mut self.since)] {
            self.lost.append(changes.answered);
            self.suspect.append(changes.failed);
        }
        if is_concerned {
            self.unreported = Some(error.clone());
        }
    }

    /// Notes a failed flush at opening: any earlier change may be lost.
    pub(crate) fn opening_flush_failed(&mut self, error: DeviceError) {
        self.failures += 1;
        // Changes before the last close are unknown, so every page may be concerned.
        self.suspect.add(0..Page::MAX);
        self.unreported = Some(error);
    }

    /// Returns the number of failed flushes.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Returns the first lost change at `offset` or later.
    pub(crate) fn lost_from(&self, offset: u64) -> Option<(u64, Content)> {
        let (start, content) = self.lost.first_from(offset)?;
        Some((start, content.clone()))
    }

    /// Returns true if a change is lost and was not made again.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Takes the failure to report to the next client that flushes.
    pub(crate) fn take_unreported(&mut self) -> Option<DeviceError> {
        self.unreported.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> DeviceError {
        DeviceError::Gone
    }

    fn change(bypassed: &mut BypassedPages, page: u64, byte: u8) {
        let failures = bypassed.failures();
        bypassed.changed(page * PAGE_U64, Content::Bytes(vec![byte; 100]), failures);
    }

    #[test]
    fn changes_stay_until_a_flush_succeeds() {
        let mut bypassed = BypassedPages::default();
        change(&mut bypassed, 3, 1);
        assert!(bypassed.touches(&(3..9)) && !bypassed.touches(&(4..9)));
        bypassed.begin_flush();
        change(&mut bypassed, 7, 1);
        assert!(bypassed.touches(&(3..4)), "the flush is under way");
        bypassed.flushed();
        assert!(!bypassed.touches(&(3..4)) && bypassed.touches(&(7..8)));
        assert!(bypassed.take_unreported().is_none());
    }

    #[test]
    fn later_flush_covers_no_lost_change() {
        let mut bypassed = BypassedPages::default();
        change(&mut bypassed, 3, 1);
        bypassed.begin_flush();
        change(&mut bypassed, 7, 2);
        let begun = bypassed.failures();
        bypassed.flush_failed(&error());
        // It was under way when the flush failed.
        bypassed.changed(9 * PAGE_U64, Content::Bytes(vec![3; 9]), begun);
        bypassed.begin_flush();
        bypassed.flushed();
        for page in [3, 7, 9] {
            assert!(bypassed.touches(&(page..page + 1)), "{page}");
        }
        assert!(bypassed.take_unreported().is_some() && bypassed.take_unreported().is_none());
        // Made again, and flushed.
        while let Some((offset, content)) = bypassed.lost_from(0) {
            let failures = bypassed.failures();
            bypassed.changed(offset, content, failures);
        }
        assert!(!bypassed.is_empty() && !bypassed.has_lost());
        bypassed.begin_flush();
        bypassed.flushed();
        assert!(bypassed.is_empty());
    }

    #[test]
    fn newer_bytes_are_never_taken_back() {
        let mut bypassed = BypassedPages::default();
        change(&mut bypassed, 3, 1);
        bypassed.begin_flush();
        bypassed.flush_failed(&error());
        change(&mut bypassed, 3, 2);
        assert!(!bypassed.has_lost());
        bypassed.begin_flush();
        bypassed.flush_failed(&error());
        assert_eq!(bypassed.lost_from(0).unwrap().1, Content::Bytes(vec![2; 100]));
        bypassed.superseded(3 * PAGE_U64, PAGE_U64);
        assert!(bypassed.is_empty());
    }

    #[test]
    fn failed_changes_are_suspect_after_failed_flush() {
        let mut bypassed = BypassedPages::default();
        bypassed.change_failed(3..5, 0);
        assert!(bypassed.touches(&(4..5)) && !bypassed.is_suspect(4));
        bypassed.begin_flush();
        bypassed.flush_failed(&error());
        bypassed.change_failed(8..9, 0);
        assert!(bypassed.is_empty(), "there is nothing that could be made again");
        assert!(bypassed.is_suspect(4) && bypassed.is_suspect(8) && !bypassed.is_suspect(5));
    }

    #[test]
    fn many_runs_become_one() {
        let mut runs = Runs::default();
        let count = u32::try_from(RUNS_MAX).unwrap();
        (0..count).for_each(|run| runs.add(10 * run + 5..10 * run + 6));
        assert!(!runs.touches(&(0..5)) && !runs.touches(&(6..15)));
        runs.add(7..8);
        assert!(!runs.touches(&(0..5)) && runs.touches(&(6..15)));
    }
}
