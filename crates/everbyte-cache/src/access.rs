//! Reads and writes: parts of pages are served from the cache, absent pages are fetched first.
//!
//! Invariants: a page is busy during its fetch and during a write that bypasses the cache, so no
//! other thread brings it in. The policy gets an access when the page's bytes are available, in the
//! order of the request.

use std::ops::Range;
use std::time::Instant;

use everbyte_device::unflushed::Content;
use everbyte_device::{DeviceError, Fua, check_range};
use parking_lot::MutexGuard;

use crate::actions::PageOp;
use crate::cache::Cache;
use crate::frame::Bytes;
use crate::layout::{PAGE, PAGE_U64, Page, Part, page_no, parts};
use crate::settings::Mode;
use crate::state::State;
use crate::write_back::WritebackTarget;

/// Most pages of one fetch, or of one bypassing write.
const RUN_PAGES_MAX: usize = 64;

/// Most cached pages between two absent ones of a request that one fetch reads as well. A disk
/// passes over them in a hundredth of the time of a seek, a memory card or solid-state disk in
/// about the time of a jump, by the simulator's costs.
const GAP_PAGES_MAX: usize = 8;

/// Most pages that stay in DRAM because of a failed demotion.
const DEMOTION_FAILED_PAGES_MAX: usize = 256;

fn range_of(run: &[Part]) -> Range<Page> {
    let first = run.first().map_or(0, |part| part.page);
    first..page_no(u64::from(first) + run.len() as u64)
}

/// Returns the error of a request that may have been done in part. Only a media error states this.
pub(crate) fn in_part(done: usize, offset: u64, len: u64, error: DeviceError) -> DeviceError {
    match error {
        // A media error already allows any content of the range.
        DeviceError::Media { .. } => error,
        error if done > 0 => {
            let reason = format!("done in part: {error}");
            DeviceError::Media { offset, len, reason }
        }
        error => error,
    }
}

impl Cache {
    pub(crate) fn check_write(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if self.read_only {
            let reason = "the backing device behind the cache is".to_owned();
            return Err(DeviceError::ReadOnly { reason });
        }
        check_range(offset, len, self.settings.backing_bytes)
    }

    /// Locks the state when none of `pages` is busy.
    pub(crate) fn lock_free(&self, pages: &Range<Page>) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.is_busy(pages) {
            self.freed.wait(&mut state);
        }
        state
    }

    pub(crate) fn end_busy(&self, all: &[Range<Page>]) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        all.iter().for_each(|pages| state.end_busy(pages));
        self.freed.notify_all();
        state
    }

    pub(crate) fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_range(offset, out.len() as u64, self.settings.backing_bytes)?;
        let mut parts = parts(offset, out.len());
        // Plain hits take no common lock. The first other page sends the rest the common way.
        while let Some(part) = parts.next() {
            if !self.read_hit(part, &mut out[part.at..part.at + part.len])? {
                let rest: Vec<Part> = std::iter::once(part).chain(parts).collect();
                return self.read_parts(&rest, out);
            }
        }
        Ok(())
    }

    /// Reads parts of pages. Some pages may be absent.
    fn read_parts(&self, parts: &[Part], out: &mut [u8]) -> Result<(), DeviceError> {
        let mut done = 0;
        while let Some(&part) = parts.get(done) {
            // A busy page belongs to a fetch or a bypassing write, which must end first.
            let mut state = self.lock_free(&(part.page..part.page + 1));
            if state.frames.contains(part.page) {
                let wanted = PageOp::Read(&mut out[part.at..part.at + part.len]);
                done += usize::from(state.serve_or_forget(part, wanted)?);
                continue;
            }
            // Both calls may release the lock, and the page can come or go. So the loop looks
            // again.
            let Some(state) = self.with_room(state)? else { continue };
            let (run, absent) = self.missing(&state, &parts[done..]);
            let Some(mut state) = self.with_flushed(state, &range_of(run))? else { continue };
            // No other thread may write an absent page during the fetch: `admit` would replace its
            // newer bytes.
            absent.iter().for_each(|pages| state.begin_busy(pages.clone()));
            drop(state);
            let bytes = self.fetch_run(range_of(run), &absent);
            let mut state = self.end_busy(&absent);
            for (part, bytes) in run.iter().zip(bytes?) {
                let wanted = PageOp::Read(&mut out[part.at..part.at + part.len]);
                if absent.iter().any(|pages| pages.contains(&part.page)) {
                    state.admit(*part, bytes, wanted);
                } else if !state.frames.contains(part.page)
                    || !state.serve_or_forget(*part, wanted)?
                {
                    // It has left the cache, and the bytes that were read may be stale.
                    break;
                }
                done += 1;
            }
        }
        Ok(())
    }

    /// Returns the state, if there is room for more evicted pages; else makes room, without the
    /// lock, and returns `None`.
    fn with_room<'s>(
        &self,
        state: MutexGuard<'s, State>,
    ) -> Result<Option<MutexGuard<'s, State>>, DeviceError> {
        if self.has_room(&state) {
            return Ok(Some(state));
        }
        // `write_back` takes `writeback` before `state`, so this lock must be released first.
        drop(state);
        let written = self.write_back(&WritebackTarget::Pending);
        let retried = self.retry_demotions();
        // Pages that cannot be written leave room as long as they are few.
        if !self.has_room(&self.state.lock()) {
            written?;
            retried?;
        }
        Ok(None)
    }

    /// Returns true if there is room for more evicted pages.
    fn has_room(&self, state: &State) -> bool {
        state.pending_writeback.len() < self.settings.pending_pages_max() as usize
            && state.demotion_failed.len() < DEMOTION_FAILED_PAGES_MAX
    }

    /// Returns the state if the backing device cannot lose its bytes of `pages`, so that they may
    /// count as clean. Otherwise flushes it, without the lock, and returns `None`.
    fn with_flushed<'s>(
        &self,
        state: MutexGuard<'s, State>,
        pages: &Range<Page>,
    ) -> Result<Option<MutexGuard<'s, State>>, DeviceError> {
        // A clean page has its bytes on the backing device for good (C4). Unflushed bytes may
        // vanish.
        if !state.bypassed.touches(pages) {
            return Ok(Some(state));
        }
        drop(state);
        let flushed = self.flush_bypassed();
        // Others' changes may fail without concerning these pages.
        if self.state.lock().bypassed.touches(pages) {
            flushed?;
        }
        Ok(None)
    }

    /// Repeats failed demotions. If they are too many, clean pages of SCM give them their space, as
    /// for a flush. Evicts the clean pages among those that fail again.
    fn retry_demotions(&self) -> Result<(), DeviceError> {
        let pages: Vec<Page> = self.state.lock().demotion_failed.iter().collect();
        let persisted = match pages.len() {
            // At the limit a request fails otherwise, so clean pages of SCM are given up first.
            DEMOTION_FAILED_PAGES_MAX.. => self.persist_copies_with_room(&pages),
            _ => Ok(()),
        };
        let mut state = self.state.lock();
        for page in pages {
            // The policy may want it in DRAM by now.
            if !state.demotion_failed.contains(page) {
                continue;
            }
            state.demote(page);
            let is_clean = state.frames.look(page, |frame| !frame.is_dirty()) == Some(true);
            // The backing device has the same bytes, so nothing is lost with a clean page.
            if is_clean && state.demotion_failed.contains(page) {
                state.invalidate(page)?;
            }
        }
        if state.demotion_failed.len() < DEMOTION_FAILED_PAGES_MAX {
            return Ok(());
        }
        persisted.and(Err(state.last_error.clone().unwrap_or(DeviceError::Gone)))
    }

    /// Returns the parts of one fetch, and the absent pages among them: from the first part, whose
    /// page is absent, to the last before a busy one. The fetch includes a few cached pages in
    /// between, because this costs the backing device less than a second request.
    fn missing<'p>(&self, state: &State, parts: &'p [Part]) -> (&'p [Part], Vec<Range<Page>>) {
        let room = (self.settings.pending_pages_max() as usize)
            .saturating_sub(state.pending_writeback.len());
        // At least the first page: without progress the caller would loop.
        let mut room = room.max(1);
        let (mut absent, mut len): (Vec<Range<Page>>, usize) = (Vec::new(), 0);
        for (at, part) in parts.iter().take(RUN_PAGES_MAX).enumerate() {
            let page = part.page;
            if state.frames.contains(page) {
                if at - len >= GAP_PAGES_MAX {
                    break;
                }
                continue;
            }
            if room == 0 || state.is_busy(&(page..page + 1)) {
                break;
            }
            match absent.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => absent.push(page..page + 1),
            }
            room -= 1;
            len = at + 1;
        }
        (&parts[..len], absent)
    }

    /// As `fetch`. After a failure, reads only the `absent` pages: the backing device may be unable
    /// to read the cached ones in between, whose bytes are not needed.
    fn fetch_run(
        &self,
        pages: Range<Page>,
        absent: &[Range<Page>],
    ) -> Result<Vec<Bytes>, DeviceError> {
        let fetched = self.fetch(pages.clone(), absent);
        // A single absent range spans the whole run, so a retry would read the same bytes.
        if fetched.is_ok() || absent.len() == 1 {
            return fetched;
        }
        let mut bytes: Vec<Bytes> = Vec::with_capacity(pages.len());
        for part in absent {
            let before = (part.start - pages.start) as usize;
            bytes.resize_with(before, || Box::new([0; PAGE]));
            bytes.extend(self.fetch(part.clone(), std::slice::from_ref(part))?);
        }
        Ok(bytes)
    }

    /// Reads `pages` from the backing device. The `absent` ones are busy for the caller.
    fn fetch(&self, pages: Range<Page>, absent: &[Range<Page>]) -> Result<Vec<Bytes>, DeviceError> {
        let count = pages.len();
        let mut bytes = vec![0; count * PAGE];
        // The backing device may end within the last page. The rest stays zero.
        let valid = (count - 1) * PAGE + self.page_len(pages.end - 1);
        let offset = u64::from(pages.start) * PAGE_U64;
        let begun = Instant::now();
        self.backing
            .read(offset, &mut bytes[..valid])
            .map_err(|error| self.backing_failed(offset, valid as u64, &error))?;
        let took = begun.elapsed();
        let wanted: usize = absent.iter().map(ExactSizeIterator::len).sum();
        let mut state = self.state.lock();
        state.note_read(&pages, took);
        state.counts.stats.fetches += 1;
        state.counts.stats.fetched_pages += wanted as u64;
        drop(state);
        let (pages, _) = bytes.as_chunks::<PAGE>();
        Ok(pages.iter().map(|page| Box::new(*page)).collect())
    }

    /// Writes without a promise of durability. After an error other than a media error, nothing was
    /// done.
    pub(crate) fn write_bytes(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        self.check_write(offset, len)?;
        let mut rest = parts(offset, data.len()).peekable();
        let mut done = 0;
        while let Some(part) = rest.peek() {
            match self.write_hit(*part, &data[part.at..part.at + part.len]) {
                Ok(true) => done += 1,
                Ok(false) => break,
                Err(error) => return Err(in_part(done, offset, len, error)),
            }
            rest.next();
        }
        let rest: Vec<Part> = rest.collect();
        if !rest.is_empty() {
            let failed = |(more, error)| in_part(done + more, offset, len, error);
            self.write_parts(&rest, data).map_err(failed)?;
        }
        // By the usual steps of a write-back, so an answered write is on the backing device and
        // flushed.
        if self.settings.mode == Mode::WriteThrough {
            let pages = parts(offset, data.len()).map(|part| part.page).collect();
            let written = self.write_back(&WritebackTarget::Pages(pages));
            written.map_err(|error| in_part(1, offset, len, error))?;
        }
        Ok(())
    }

    /// Writes parts of pages. An error comes with the number of written parts.
    fn write_parts(&self, parts: &[Part], data: &[u8]) -> Result<(), (usize, DeviceError)> {
        let mut done = 0;
        while done < parts.len() {
            done += self.write_some(&parts[done..], data).map_err(|error| (done, error))?;
        }
        self.wake_writeback_thread();
        Ok(())
    }

    /// Writes one or more of the first of `parts`. Returns their number.
    fn write_some(&self, parts: &[Part], data: &[u8]) -> Result<usize, DeviceError> {
        let part = parts[0];
        let bytes = &data[part.at..part.at + part.len];
        let mut state = self.lock_free(&(part.page..part.page + 1));
        if state.frames.contains(part.page) {
            return state.serve_or_forget(part, PageOp::Write(bytes)).map(usize::from);
        }
        // Only for absent pages: a cached page must get the write, or it would serve older bytes.
        if self.settings.mode == Mode::WriteAround {
            return self.write_bypassing(state, parts, data);
        }
        // The lock was released, and the page can have come. So the caller tries the part again.
        let Some(state) = self.with_room(state)? else { return Ok(0) };
        let is_whole = part.len == self.page_len(part.page);
        let pages = part.page..part.page + 1;
        // A keeper of a promise may have looked for dirty pages already, and relies on finding here
        // the bytes that this page would replace.
        let is_free = is_whole && state.promises == 0;
        let state = if is_free { Some(state) } else { self.with_flushed(state, &pages)? };
        let Some(mut state) = state else { return Ok(0) };
        if is_whole {
            let mut memory = state.take_memory();
            // The backing device may end within the page.
            memory[part.len..].fill(0);
            state.admit(part, memory, PageOp::Write(bytes));
            return Ok(1);
        }
        let absent = [pages.clone()];
        state.begin_busy(pages.clone());
        drop(state);
        let fetched = self.fetch(pages, &absent);
        let mut state = self.end_busy(&absent);
        for page in fetched? {
            state.admit(part, page, PageOp::Write(bytes));
        }
        Ok(1)
    }

    /// Writes parts of uncached pages to the backing device. Returns their number.
    fn write_bypassing(
        &self,
        mut state: MutexGuard<'_, State>,
        parts: &[Part],
        data: &[u8],
    ) -> Result<usize, DeviceError> {
        // Kept copies of unflushed changes are bounded. A flush releases them.
        if state.bypassed.is_full() {
            drop(state);
            self.flush_bypassed()?;
            return Ok(0);
        }
        let absent = parts.iter().take(RUN_PAGES_MAX).take_while(|part| {
            let page = part.page;
            !state.frames.contains(page) && !state.is_busy(&(page..page + 1))
        });
        // The first page is absent and not busy, because the caller holds the lock since its check.
        let run = &parts[..absent.count().max(1)];
        let (first, last) = (run[0], run[run.len() - 1]);
        let bytes = &data[first.at..last.at + last.len];
        let pages = range_of(run);
        state.begin_busy(pages.clone());
        // Noted before the write: a flush that fails in between may lose it (C6).
        let failures = state.bypassed.failures();
        drop(state);
        let offset = u64::from(first.page) * PAGE_U64 + first.start as u64;
        // First, because a crash could otherwise bring back an older clean page over this write.
        let written = self.persist_invalidations().and_then(|()| {
            self.backing
                .write(offset, bytes, Fua::No)
                .map_err(|error| self.backing_failed(offset, bytes.len() as u64, &error))
        });
        let mut state = self.end_busy(std::slice::from_ref(&pages));
        match written {
            Ok(()) => state.bypassed.changed(offset, Content::Bytes(bytes.to_vec()), failures),
            Err(error) => {
                state.bypassed.change_failed(pages, failures);
                return Err(error);
            }
        }
        state.counts.stats.bypass_write_bytes += bytes.len() as u64;
        Ok(run.len())
    }

    /// Makes the removal of marks durable before the backing device is changed, so that no crash
    /// brings back an invalidated page.
    pub(crate) fn persist_invalidations(&self) -> Result<(), DeviceError> {
        let is_needed = {
            let state = self.state.lock();
            state.invalidated > state.invalidated_durably
        };
        if is_needed {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Makes the writes to `pages` durable.
    pub(crate) fn persist(&self, pages: &[Page]) -> Result<(), DeviceError> {
        self.promising(|| {
            // Dirty pages before bypassed changes: `promises` covers a change that moves in between
            // (C7).
            self.persist_copies_with_room(pages)?;
            let may_be_lost = || {
                let state = self.state.lock();
                pages.iter().any(|&page| state.bypassed.touches(&(page..page + 1)))
            };
            if may_be_lost() {
                let flushed = self.flush_bypassed();
                // Others' changes may fail without concerning these pages.
                if may_be_lost() {
                    flushed?;
                }
            }
            Ok(())
        })?;
        self.checkpoint()
    }

    /// Makes all answered writes durable.
    pub(crate) fn persist_all(&self) -> Result<(), DeviceError> {
        self.promising(|| {
            // Pages that become dirty later belong to writes that this flush need not cover.
            let pages: Vec<Page> = self.state.lock().dram_dirty.iter().collect();
            self.persist_copies_with_room(&pages)?;
            self.flush_bypassed()
        })?;
        self.checkpoint()
    }

    /// Lets `keep` keep a promise: it looks for dirty pages first, and then flushes the changes
    /// that bypassed the cache. In between, no bypassed change moves to a dirty page (lemma C7 of
    /// `docs/proofs.md`).
    pub(crate) fn promising(
        &self,
        keep: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.state.lock().promises += 1;
        let kept = keep();
        self.state.lock().promises -= 1;
        kept
    }

    /// As `persist_copies`. Writes some pages back when SCM has no space left and all its pages are
    /// dirty.
    fn persist_copies_with_room(&self, pages: &[Page]) -> Result<(), DeviceError> {
        loop {
            let written = self.written_back_pages();
            match self.persist_copies(pages) {
                Err(error @ DeviceError::NoSpace { .. }) => {
                    // It may fail for some pages and make room by others.
                    drop(self.write_back(&WritebackTarget::Sweep));
                    if self.written_back_pages() == written {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
        }
    }

    /// Writes the newest bytes of `pages` to SCM, in pieces, so that other requests are served in
    /// between.
    fn persist_copies(&self, pages: &[Page]) -> Result<(), DeviceError> {
        for piece in pages.chunks(RUN_PAGES_MAX) {
            // Released after each piece: a flush of many pages must not stop all other requests.
            let mut state = self.state.lock();
            for &page in piece {
                state.persist_copy_of_dirty(page)?;
            }
        }
        Ok(())
    }

    /// As [`Cache::persist_all`], for a client. Reports once that a flush of the backing device for
    /// another caller failed. Such a flush may have lost clients' writes, although they were
    /// written again since.
    pub(crate) fn flush_for_client(&self) -> Result<(), DeviceError> {
        let persisted = self.persist_all();
        // Taken even if the flush fails: then this error tells the client the same.
        let unreported = self.state.lock().bypassed.take_unreported();
        persisted?;
        unreported.map_or(Ok(()), Err)
    }
}

impl State {
    /// Writes the bytes of a dirty page to SCM if DRAM has newer ones.
    fn persist_copy_of_dirty(&mut self, page: Page) -> Result<(), DeviceError> {
        if self.dram_dirty.contains(page) { self.persist_copy(page) } else { Ok(()) }
    }
}
