//! Write-back of dirty pages to the backing device.
//!
//! A batch of pages passes five steps, and a crash between any two of them leaves each page durable
//! in SCM or on the backing device: lemmas C1 to C4 of `docs/proofs.md`.

use std::ops::Range;
use std::time::Instant;

use everbyte_device::{DeviceError, Fua};
use everbyte_plant::planted;

use crate::cache::Cache;
use crate::error::CacheError;
use crate::frame::{Content, Frame};
use crate::layout::{PAGE, PAGE_U64, Page};
use crate::plant::Bug;
use crate::state::State;
use crate::writeback_in_flight::{BATCH_PAGES, Writeback, WritebackInFlight};

/// Pages copied in one hold of the lock.
const PIECE_PAGES: usize = 32;

/// Most consecutive batches without a written page, so that a missing backing device does not get
/// requests for every page.
const BATCHES_IN_VAIN_MAX: usize = 16;

/// Consecutive failed writes after which a failing run is not split further. The search for one bad
/// page in a batch takes 9.
const WRITES_IN_VAIN_MAX: usize = 16;

/// The first failures of a write-back.
#[derive(Default)]
struct Failures {
    without_space: Option<DeviceError>,
    other: Option<DeviceError>,
}

/// The pages to write back.
#[derive(Debug)]
pub(crate) enum WritebackTarget {
    /// Pages that the policy has evicted.
    Pending,
    /// The next pages after the last sweep: those that the policy would write next, or of all pages
    /// if it reports none.
    Sweep,
    /// These pages, ascending, if they are dirty.
    Pages(Vec<Page>),
}

impl Cache {
    /// Writes pages back, in batches. Returns the number of pages written. An error loses no data:
    /// unwritten pages stay dirty. Pages that need a copy in a full SCM wait until other pages are
    /// clean and can be evicted. If necessary, pages outside the choice are written for this.
    ///
    /// # Errors
    /// The first one of the backing device or of SCM, after every page was tried; or after many in
    /// succession were tried in vain.
    pub(crate) fn write_back(&self, choice: &WritebackTarget) -> Result<usize, DeviceError> {
        // One thread at a time: the note of a copy tells nothing about another thread's copy (C4).
        let mut writeback = self.writeback.lock();
        let Writeback { hand, in_flight } = &mut *writeback;
        let mut pages = self.choose(choice, hand);
        let begun = self.written_back_pages();
        let mut first_error = None;
        loop {
            let written = self.written_back_pages();
            let Failures { without_space, other } = self.write_back_all(&pages, in_flight);
            first_error = first_error.or(other);
            let Some(error) = without_space else { break };
            if self.written_back_pages() == written {
                // No page has become clean, so SCM gets room only by pages that need none.
                let others = self.write_back_batch(&self.in_need_of_no_space(), in_flight);
                if self.written_back_pages() == written {
                    return Err(others.err().unwrap_or(error));
                }
            }
            let state = self.state.lock();
            pages.retain(|&page| state.dirty.contains(page));
        }
        let written = self.written_back_pages() - begun;
        first_error.map_or(Ok(usize::try_from(written).unwrap_or(usize::MAX)), Err)
    }

    /// Writes pages back as `write_back` does, each once.
    fn write_back_all(&self, pages: &[Page], in_flight: &mut WritebackInFlight) -> Failures {
        let (mut failures, mut in_vain) = (Failures::default(), 0);
        for batch in pages.chunks(BATCH_PAGES) {
            let written = self.written_back_pages();
            match self.write_back_batch(batch, in_flight) {
                Err(error @ DeviceError::NoSpace { .. }) => {
                    failures.without_space.get_or_insert(error);
                }
                Err(error) => {
                    failures.other.get_or_insert(error);
                    in_vain += 1;
                }
                Ok(()) => {}
            }
            // Any written page shows that the backing device is there.
            if self.written_back_pages() > written {
                in_vain = 0;
            }
            if in_vain == BATCHES_IN_VAIN_MAX {
                break;
            }
        }
        failures
    }

    /// Returns the number of pages written back so far.
    pub(crate) fn written_back_pages(&self) -> u64 {
        self.state.lock().counts.stats.written_back_pages
    }

    fn choose(&self, choice: &WritebackTarget, hand: &mut Page) -> Vec<Page> {
        let mut state = self.state.lock();
        match choice {
            WritebackTarget::Pending => state.pending_writeback.iter().collect(),
            WritebackTarget::Pages(pages) => {
                pages.iter().copied().filter(|&page| state.dirty.contains(page)).collect()
            }
            WritebackTarget::Sweep => {
                let mut pages = state.policy().waiting(*hand, BATCH_PAGES);
                // Only dirty pages may stay: a clean one would be chosen endlessly.
                pages.retain(|&page| state.dirty.contains(page));
                if pages.is_empty() {
                    let ahead = state.dirty.range(*hand..);
                    let behind = state.dirty.range(..*hand);
                    pages = ahead.chain(behind).take(BATCH_PAGES).collect();
                }
                *hand = pages.last().map_or(0, |&page| page + 1);
                pages
            }
        }
    }

    /// Returns some dirty pages whose newest bytes are in SCM already.
    fn in_need_of_no_space(&self) -> Vec<Page> {
        let state = self.state.lock();
        let pages = state.dirty.iter().filter(|&page| !state.dram_dirty.contains(page));
        pages.take(BATCH_PAGES).collect()
    }

    fn write_back_batch(
        &self,
        pages: &[Page],
        in_flight: &mut WritebackInFlight,
    ) -> Result<(), DeviceError> {
        // The order of the steps is that of lemmas C1 to C4: SCM durable, then the backing device.
        let mut first_error = self.copy_dirty(pages, in_flight);
        if !planted(Bug::OpenEpochWrittenBack) {
            self.checkpoint()?;
        }
        // Before the first write: a flush of another thread that fails from here on may drop these
        // writes.
        let failures = self.flushes_failed();
        let begun = Instant::now();
        let (written, runs, error) = self.write_runs(in_flight);
        first_error = first_error.or(error);
        if planted(Bug::CleanBeforeFlush) {
            self.clean_all(&written)?;
            self.checkpoint()?;
        }
        if !written.is_empty() {
            self.flush_since(failures)?;
            self.state.lock().note_write_back(runs, written.len(), begun.elapsed());
        }
        // Not flushed: a mark that stays dirty after a crash only causes another write-back (C2).
        self.clean_all(&written)?;
        first_error.map_or(Ok(()), Err)
    }

    /// Sets `in_flight` to the newest bytes of the dirty pages among `pages`, after writing them to
    /// SCM. Invalidates clean ones, which are pending only because their mark could not be removed.
    fn copy_dirty(&self, pages: &[Page], in_flight: &mut WritebackInFlight) -> Option<DeviceError> {
        in_flight.clear();
        let mut first_error = None;
        for piece in pages.chunks(PIECE_PAGES) {
            let mut state = self.state.lock();
            for &page in piece {
                let room = &mut in_flight.room()[..self.page_len(page)];
                match state.copy_dirty(page, room) {
                    Ok(true) => in_flight.pages.push(page),
                    Ok(false) => {}
                    Err(error) => {
                        // The other pages of the batch are independent of this one.
                        state.note(page, error.clone());
                        first_error.get_or_insert(error);
                    }
                }
            }
        }
        first_error
    }

    /// Writes the runs of `in_flight`. A failing run is split until only bad pages are left.
    /// Returns the written pages, the number of runs, and the first error.
    fn write_runs(&self, in_flight: &WritebackInFlight) -> (Vec<Page>, usize, Option<DeviceError>) {
        let mut written: Vec<Page> = Vec::with_capacity(in_flight.pages.len());
        let (mut runs, mut in_vain, mut first_error) = (0, 0, None);
        let mut left: Vec<Range<usize>> = in_flight.runs().collect();
        left.reverse();
        while let Some(run) = left.pop() {
            match self.write_run(in_flight, &run) {
                Ok(()) => {
                    written.extend(&in_flight.pages[run]);
                    (runs, in_vain) = (runs + 1, 0);
                }
                Err(_) if run.len() > 1 && in_vain < WRITES_IN_VAIN_MAX => {
                    // Halves in ascending order of sectors: the stack yields the last one first.
                    let middle = run.start + run.len() / 2;
                    left.extend([middle..run.end, run.start..middle]);
                    in_vain += 1;
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                    in_vain += 1;
                }
            }
        }
        (written, runs, first_error)
    }

    /// Writes a run of adjacent pages.
    fn write_run(
        &self,
        in_flight: &WritebackInFlight,
        run: &Range<usize>,
    ) -> Result<(), DeviceError> {
        let (first, last) = (in_flight.pages[run.start], in_flight.pages[run.end - 1]);
        let len = (run.len() - 1) * PAGE + self.page_len(last);
        let bytes = &in_flight.bytes[run.start * PAGE..][..len];
        let offset = u64::from(first) * PAGE_U64;
        self.backing
            .write(offset, bytes, Fua::No)
            .map_err(|error| self.backing_failed(offset, len as u64, &error))?;
        self.state.lock().counts.stats.write_back_runs += 1;
        Ok(())
    }

    fn clean_all(&self, written: &[Page]) -> Result<(), DeviceError> {
        for piece in written.chunks(PIECE_PAGES) {
            let mut state = self.state.lock();
            for &page in piece {
                state.clean(page)?;
                state.counts.stats.written_back_pages += 1;
            }
        }
        Ok(())
    }

    /// Writes back a batch of dirty pages, the next in the order of sectors. Returns their number.
    /// For callers without a [`crate::WritebackThread`].
    ///
    /// # Errors
    /// Those of the backing device or of the volume. Unwritten pages stay dirty.
    pub fn sweep(&self) -> Result<usize, DeviceError> {
        self.write_back(&WritebackTarget::Sweep)
    }

    /// Returns the bytes of all dirty pages.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty.len() as u64 * PAGE_U64
    }

    /// Writes back all earlier writes, and flushes the backing device.
    ///
    /// # Errors
    /// `NotDrained`, if pages remain because the backing device or the volume fails. Nothing is
    /// lost.
    pub fn drain(&self) -> Result<(), CacheError> {
        let failed = |error: DeviceError| self.not_drained(&error);
        // As for a flush: no bypassed change may move to a page that was not among the dirty ones
        // (C7).
        let drained = self.promising(|| {
            let all = self.state.lock().dirty.iter().collect();
            self.write_back(&WritebackTarget::Pages(all))?;
            self.flush_bypassed()
        });
        drained.map_err(failed)?;
        // The clean marks become durable too, so the next opening finds no dirty page.
        self.checkpoint().map_err(failed)
    }
}

impl State {
    /// Copies the first bytes of a dirty page, as many as `out` has. Returns false for a clean
    /// page.
    fn copy_dirty(&mut self, page: Page, out: &mut [u8]) -> Result<bool, DeviceError> {
        let Some(is_dirty) = self.frames.look(page, Frame::is_dirty) else { return Ok(false) };
        if !is_dirty {
            if self.pending_writeback.contains(page) {
                self.unmark(page)?;
                self.remove(page);
            }
            return Ok(false);
        }
        if let Some(frame) = self.frames.write(page).get_mut(page) {
            // Before the copy, so that a concurrent write counts as a later write.
            frame.content = Content::Copied;
        }
        if !planted(Bug::OpenEpochWrittenBack) {
            self.persist_copy(page)?;
        }
        self.read(page, 0, out)?;
        Ok(true)
    }
}
