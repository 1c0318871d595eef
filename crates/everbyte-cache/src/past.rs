//! What storage was changed past the cache and has not flushed.
//!
//! Invariant: a page that was changed is told of until a flush of storage that began after the
//! change has succeeded. So whoever fetches a page that is not told of gets bytes that storage will
//! not lose, and may call them clean.

use std::ops::Range;

use crate::layout::Page;

/// Runs of pages that are told apart; more become one that has them all.
const RUNS_MAX: usize = 256;

/// Pages of the backing device that were changed past the cache and are not flushed.
#[derive(Default)]
pub(crate) struct Past {
    /// Changed since the last flush began.
    since: Vec<Range<Page>>,
    /// Changed before.
    being_flushed: Vec<Range<Page>>,
}

impl Past {
    pub(crate) fn add(&mut self, pages: Range<Page>) {
        match self.since.last_mut() {
            Some(last) if last.start <= pages.end && pages.start <= last.end => {
                *last = last.start.min(pages.start)..last.end.max(pages.end);
            }
            _ => self.since.push(pages),
        }
        if self.since.len() > RUNS_MAX {
            let start = self.since.iter().map(|run| run.start).min().unwrap_or(0);
            let end = self.since.iter().map(|run| run.end).max().unwrap_or(0);
            self.since.clear();
            self.since.push(start..end);
        }
    }

    /// Whether any of `pages` may be lost by storage.
    pub(crate) fn has(&self, pages: &Range<Page>) -> bool {
        let mut runs = self.since.iter().chain(&self.being_flushed);
        runs.any(|run| run.start < pages.end && pages.start < run.end)
    }

    /// Says that a flush begins; there is one at a time. `false` if it need not.
    pub(crate) fn begin_flush(&mut self) -> bool {
        self.being_flushed = std::mem::take(&mut self.since);
        !self.being_flushed.is_empty()
    }

    /// Says that it ended.
    pub(crate) fn end_flush(&mut self, succeeded: bool) {
        let flushed = std::mem::take(&mut self.being_flushed);
        if !succeeded {
            flushed.into_iter().for_each(|run| self.add(run));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_told_of_until_a_later_flush_succeeds() {
        let mut past = Past::default();
        assert!(!past.begin_flush());
        past.add(3..5);
        assert!(past.has(&(4..9)) && !past.has(&(5..9)) && !past.has(&(0..3)));
        assert!(past.begin_flush());
        past.add(7..8);
        assert!(past.has(&(4..5)), "the flush is under way");
        past.end_flush(false);
        assert!(past.has(&(4..5)) && past.has(&(7..8)));
        assert!(past.begin_flush());
        past.add(9..10);
        past.end_flush(true);
        assert!(!past.has(&(0..9)) && past.has(&(9..10)));
    }

    #[test]
    fn many_runs_become_one() {
        let mut past = Past::default();
        let count = u32::try_from(RUNS_MAX).unwrap();
        (0..count).for_each(|run| past.add(10 * run + 5..10 * run + 6));
        assert!(!past.has(&(0..5)) && !past.has(&(6..15)));
        past.add(7..8);
        assert!(!past.has(&(0..5)) && past.has(&(6..15)));
    }
}
