//! Trimming and zeroing: whole pages bypass the cache, the rest are writes of zeroes.
//!
//! Invariant: after a crash a whole page reads as it was or as zeroes (lemma C5 of
//! `docs/proofs.md`).

use std::ops::Range;

use everbyte_device::unflushed::Content;
use everbyte_device::{DeviceError, Fua, Hole};
use everbyte_plant::planted;
use parking_lot::MutexGuard;

use crate::access::in_part;
use crate::cache::Cache;
use crate::frame::Frame;
use crate::layout::{PAGE, PAGE_U64, Page, pages_of};
use crate::plant::Bug;
use crate::scm::Mark;
use crate::state::State;

/// Pages invalidated in one hold of the lock.
const PIECE_PAGES: usize = 64;

/// A request to make a range read as zeroes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ZeroOp {
    Discard,
    Zero { hole: Hole, fast: bool },
}

impl Cache {
    /// Makes a range read as zeroes. After an error other than a media error, nothing was done.
    pub(crate) fn zero(
        &self,
        offset: u64,
        len: u64,
        op: ZeroOp,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.check_write(offset, len)?;
        let end = offset + len;
        let first = offset.next_multiple_of(PAGE_U64);
        let ends_all = end == self.settings.backing_bytes;
        // The last page of the device counts as whole, although the device may end within it.
        let last = if ends_all { end } else { end - end % PAGE_U64 };
        let after_part = |error| in_part(1, offset, len, error);
        if first < last {
            self.zero_pages(first, last, op)?;
            self.zero_edge(offset, first).map_err(after_part)?;
            self.zero_edge(last, end).map_err(after_part)?;
        } else {
            self.zero_edge(offset, end)?;
        }
        if fua == Fua::Yes { self.persist_all().map_err(after_part) } else { Ok(()) }
    }

    /// Writes zeroes over less than two pages.
    fn zero_edge(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        let zeroes = [0; 2 * PAGE];
        match usize::try_from(to - from) {
            Ok(0) | Err(_) => Ok(()),
            Ok(len) => self.write_bytes(from, &zeroes[..len.min(zeroes.len())]),
        }
    }

    fn zero_pages(&self, first: u64, last: u64, op: ZeroOp) -> Result<(), DeviceError> {
        let (len, pages) = (last - first, pages_of(first, last - first));
        if self.state.lock().bypassed.is_full() {
            self.flush_bypassed()?;
        }
        // A write-back in progress could write a copy of these pages over the zeroes.
        let _exclusive = self.writeback.lock();
        // Clean pages go first and durably, so no crash restores one over the zeroes (C5).
        self.invalidate_all(&pages, |frame| !frame.is_dirty())?;
        let mut state = self.lock_free(&pages);
        // Pages that arrived in the time between.
        state.drop_clean(&pages)?;
        let was_persisted = state.is_persisted(&pages);
        state.begin_busy(pages.clone());
        let failures = state.bypassed.failures();
        drop(state);
        let mut zeroed = self.zero_backing(first, len, op, was_persisted);
        let mut state = self.state.lock();
        let must_flush = if planted(Bug::TrimForgetsFlushed) {
            was_persisted
        } else {
            state.is_persisted(&pages)
        };
        if zeroed.is_ok() && must_flush {
            // SCM holds a promised page. Its mark may go only after the zeroes are durable.
            drop(state);
            zeroed = self.flush_since(failures);
            state = self.state.lock();
        }
        if zeroed.is_ok() && must_flush {
            state.bypassed.superseded(first, len);
            state.counts.stats.bypass_zero_bytes += len;
            drop(state);
            // The zeroes are durable: bytes of the pages that a concurrent flush makes durable may
            // go.
            let dropped = self.invalidate_all(&pages, |_| true);
            drop(self.end_busy(std::slice::from_ref(&pages)));
            return dropped.map_err(|error| in_part(1, first, len, error));
        }
        state.end_busy(&pages);
        self.freed.notify_all();
        match zeroed {
            Ok(()) => state.bypassed.changed(first, Content::Zeroes(len, op.hole()), failures),
            // Nothing was done.
            Err(DeviceError::NotFast) => return Err(DeviceError::NotFast),
            Err(error) => {
                state.bypassed.change_failed(pages, failures);
                return Err(error);
            }
        }
        state.counts.stats.bypass_zero_bytes += len;
        // SCM has none of them, and no flush may precede their removal.
        state.drop_all(&pages).map_err(|error| in_part(1, first, len, error))
    }

    /// Invalidates the `chosen` pages among `pages`, in pieces, so that other requests are served
    /// in between.
    fn invalidate_all(
        &self,
        pages: &Range<Page>,
        chosen: impl Fn(&Frame) -> bool,
    ) -> Result<(), DeviceError> {
        let mut from = pages.start;
        while from < pages.end {
            let mut state = self.state.lock();
            let piece = state.pages.range(from..pages.end).take(PIECE_PAGES);
            let piece: Vec<Page> = piece.collect();
            from = piece.last().map_or(pages.end, |&last| last + 1);
            for page in piece {
                if state.frames.look(page, &chosen) == Some(true) {
                    state.invalidate(page)?;
                }
            }
            // A plain unlock would mostly give the lock to this thread again.
            MutexGuard::unlock_fair(state);
        }
        Ok(())
    }

    /// Zeroes a range of the backing device. SCM may have dirty pages of it.
    fn zero_backing(
        &self,
        offset: u64,
        len: u64,
        op: ZeroOp,
        is_dirty_in_scm: bool,
    ) -> Result<(), DeviceError> {
        if is_dirty_in_scm {
            // From before its last write such a page may still be clean durably, and no crash may bring that
            // back over the zeroes.
            self.checkpoint()?;
        } else {
            self.persist_invalidations()?;
        }
        let done = match op {
            ZeroOp::Discard => self.backing.discard(offset, len, Fua::No),
            ZeroOp::Zero { hole, fast } => {
                self.backing.write_zeroes(offset, len, hole, fast, Fua::No)
            }
        };
        done.map_err(|error| match error {
            DeviceError::NotFast => DeviceError::NotFast,
            error => self.backing_failed(offset, len, &error),
        })
    }
}

impl ZeroOp {
    fn hole(self) -> Hole {
        match self {
            Self::Discard => Hole::Allowed,
            Self::Zero { hole, .. } => hole,
        }
    }
}

impl State {
    /// Invalidates the clean pages among `pages`, and removes the marks of dirty pages that count
    /// as clean in SCM: SCM refused to free them at their promotion.
    fn drop_clean(&mut self, pages: &Range<Page>) -> Result<(), DeviceError> {
        let found: Vec<Page> = self.pages.range(pages.clone()).collect();
        for page in found {
            match self.frames.look(page, |frame| (frame.is_dirty(), frame.mark)) {
                Some((false, _)) => self.invalidate(page)?,
                Some((true, Some(Mark::Clean))) => {
                    self.unmark(page)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if SCM holds a dirty page of `pages`. A flush may have promised it.
    fn is_persisted(&self, pages: &Range<Page>) -> bool {
        let is_persisted = |frame: &Frame| frame.mark == Some(Mark::Dirty);
        let mut pages = self.pages.range(pages.clone());
        pages.any(|page| self.frames.look(page, is_persisted) == Some(true))
    }

    fn drop_all(&mut self, pages: &Range<Page>) -> Result<(), DeviceError> {
        let found: Vec<Page> = self.pages.range(pages.clone()).collect();
        found.into_iter().try_for_each(|page| self.invalidate(page))
    }

    /// Invalidates a page with all writes to it.
    pub(crate) fn invalidate(&mut self, page: Page) -> Result<(), DeviceError> {
        // By these hits the policy may count this page as in SCM, and SCM then gets its mark again.
        self.tell_hits();
        let is_pending = self.pending_writeback.contains(page);
        self.unmark(page)?;
        // A pending page has left the policy already.
        if !is_pending {
            self.lagging_policy.remove(page);
        }
        self.remove(page);
        Ok(())
    }
}
