//! Trimming and zeroing: whole pages past the cache, the rest as writes of zeroes.
//!
//! The order, for whole pages: clean ones leave the cache, durably, so that no crash brings them
//! back; storage zeroes; if dirty ones are durable in memory by now (a flush may have come
//! meanwhile), storage is flushed, because their bytes may go only when storage is done; then they
//! leave, too. Until then a crash finds them as they were.

use std::ops::Range;

use everbyte_device::unflushed::Content;
use everbyte_device::{DeviceError, Fua, Hole};
use everbyte_plant::planted;

use crate::cache::Cache;
use crate::layout::{PAGE, PAGE_U64, Page, pages_of};
use crate::memory::Mark;
use crate::plant::Bug;
use crate::state::State;

/// How to zero.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Discard,
    Zero { hole: Hole, fast: bool },
}

impl Cache {
    /// Makes a range read as zeroes.
    pub(crate) fn zero(
        &self,
        offset: u64,
        len: u64,
        how: How,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check_write(offset, len)?;
        let end = offset + len;
        let first = offset.next_multiple_of(PAGE_U64);
        let ends_all = end == self.settings.storage_bytes;
        let last = if ends_all { end } else { end - end % PAGE_U64 };
        if first < last {
            self.zero_pages(first, last, how)?;
            self.zero_edge(offset, first)?;
            self.zero_edge(last, end)?;
        } else {
            self.zero_edge(offset, end)?;
        }
        if fua == Fua::Yes { self.persist_all() } else { Ok(()) }
    }

    /// Writes zeroes over less than two pages.
    fn zero_edge(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        let zeroes = [0; 2 * PAGE];
        match usize::try_from(to - from) {
            Ok(0) | Err(_) => Ok(()),
            Ok(len) => self.write_bytes(from, &zeroes[..len.min(zeroes.len())]),
        }
    }

    fn zero_pages(&self, first: u64, last: u64, how: How) -> Result<(), DeviceError> {
        let (len, pages) = (last - first, pages_of(first, last - first));
        if self.state.lock().bypassed.is_full() {
            self.flush_bypassed()?;
        }
        let _hand = self.writer.lock();
        let mut state = self.lock_free(&pages);
        state.drop_clean(&pages)?;
        let was_persisted = state.is_persisted(&pages);
        state.begin_busy(pages.clone());
        let failures = state.bypassed.failures();
        drop(state);
        let mut zeroed = self.zero_storage(first, len, how);
        let mut state = self.state.lock();
        let must_flush = if planted(Bug::TrimForgetsFlushed) {
            was_persisted
        } else {
            state.is_persisted(&pages)
        };
        if zeroed.is_ok() && must_flush {
            drop(state);
            zeroed = self.flush_since(failures);
            state = self.state.lock();
        }
        state.end_busy(&pages);
        self.freed.notify_all();
        match zeroed {
            Ok(()) if must_flush => state.bypassed.superseded(first, len),
            Ok(()) => state.bypassed.changed(first, Content::Zeroes(len, how.hole()), failures),
            // Nothing was done.
            Err(DeviceError::NotFast) => return Err(DeviceError::NotFast),
            Err(error) => {
                state.bypassed.change_failed(pages, failures);
                return Err(error);
            }
        }
        state.counts.stats.bypass_zero_bytes += len;
        state.drop_all(&pages)
    }

    fn zero_storage(&self, offset: u64, len: u64, how: How) -> Result<(), DeviceError> {
        self.forget_departed()?;
        let done = match how {
            How::Discard => self.storage.discard(offset, len, Fua::No),
            How::Zero { hole, fast } => self.storage.write_zeroes(offset, len, hole, fast, Fua::No),
        };
        done.map_err(|error| match error {
            DeviceError::NotFast => DeviceError::NotFast,
            error => self.storage_failed(offset, len, &error),
        })
    }
}

impl How {
    fn hole(self) -> Hole {
        match self {
            Self::Discard => Hole::Allowed,
            Self::Zero { hole, .. } => hole,
        }
    }
}

impl State {
    /// Takes clean pages out.
    fn drop_clean(&mut self, pages: &Range<Page>) -> Result<(), DeviceError> {
        let frames = self.frames.range(pages.clone());
        let clean: Vec<Page> =
            frames.filter(|(_, frame)| !frame.dirty).map(|(&page, _)| page).collect();
        clean.into_iter().try_for_each(|page| self.take_out(page))
    }

    /// Whether memory holds dirty ones of `pages`, which may have been promised to be durable.
    fn is_persisted(&self, pages: &Range<Page>) -> bool {
        let mut frames = self.frames.range(pages.clone());
        frames.any(|(_, frame)| frame.mark == Some(Mark::Dirty))
    }

    fn drop_all(&mut self, pages: &Range<Page>) -> Result<(), DeviceError> {
        let found: Vec<Page> = self.frames.range(pages.clone()).map(|(&page, _)| page).collect();
        found.into_iter().try_for_each(|page| self.take_out(page))
    }

    /// Takes a page out with whatever was written to it.
    pub(crate) fn take_out(&mut self, page: Page) -> Result<(), DeviceError> {
        let is_aside = self.frames.get(&page).is_some_and(|frame| frame.aside);
        self.unmark(page)?;
        if !is_aside {
            self.policy.remove(page);
        }
        self.remove(page);
        Ok(())
    }
}
