//! Write-back of dirty pages to the backing device.
//!
//! A batch of pages passes five steps, and a crash between any two of them leaves each page durable
//! in SCM or on the backing device: lemmas C1 to C4 of `docs/proofs.md`.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Instant;

use everbyte_device::{DeviceError, Fua};
use everbyte_plant::planted;

use crate::cache::Cache;
use crate::error::CacheError;
use crate::frame::{Content, Frame};
use crate::layout::{PAGE, PAGE_U64, Page};
use crate::plant::Bug;
use crate::state::State;

/// Pages written back in one batch, with one flush of SCM and one of the backing device.
const BATCH_PAGES: usize = 256;

/// Pages copied under the lock at once.
const PIECE_PAGES: usize = 32;

/// The pages to write back.
#[derive(Debug)]
pub(crate) enum WritebackTarget {
    /// Those that the policy has evicted.
    Pending,
    /// The next ones after the end of the last sweep: of those that the policy would write next, or
    /// of all if it tells of none.
    Sweep,
    /// These, if they are dirty.
    Pages(BTreeSet<Page>),
}

/// A page's bytes.
struct Copied {
    page: Page,
    bytes: Vec<u8>,
}

impl Cache {
    /// Writes pages back, in batches. Returns the number of pages written. An error loses nothing:
    /// pages that were not written stay dirty. Pages that need a copy in SCM when it has no space
    /// left wait until others are clean and can be evicted.
    ///
    /// # Errors
    /// The first one of the backing device or of SCM, after every page was tried.
    pub(crate) fn write_back(&self, choice: &WritebackTarget) -> Result<usize, DeviceError> {
        let mut hand = self.writeback.lock();
        let mut pages = self.choose(choice, &mut hand);
        let begun = self.written_back_pages();
        loop {
            let written = self.written_back_pages();
            let mut without_space = None;
            for batch in pages.chunks(BATCH_PAGES) {
                match self.write_back_batch(batch) {
                    Err(error @ DeviceError::NoSpace { .. }) => {
                        without_space.get_or_insert(error);
                    }
                    outcome => outcome?,
                }
            }
            let Some(error) = without_space else { break };
            if self.written_back_pages() == written {
                return Err(error);
            }
            let state = self.state.lock();
            pages.retain(|page| state.dirty.contains(page));
        }
        Ok(usize::try_from(self.written_back_pages() - begun).unwrap_or(usize::MAX))
    }

    /// Returns the number of pages written back so far. The caller holds `writeback`.
    fn written_back_pages(&self) -> u64 {
        self.state.lock().counts.stats.written_back_pages
    }

    fn choose(&self, choice: &WritebackTarget, hand: &mut Page) -> Vec<Page> {
        let mut state = self.state.lock();
        match choice {
            WritebackTarget::Pending => state.pending_writeback.iter().copied().collect(),
            WritebackTarget::Pages(pages) => pages.intersection(&state.dirty).copied().collect(),
            WritebackTarget::Sweep => {
                let mut pages = state.policy().waiting(*hand, BATCH_PAGES);
                // What is dirty is known here; a page that is not would be chosen for ever.
                pages.retain(|page| state.dirty.contains(page));
                if pages.is_empty() {
                    let ahead = state.dirty.range(*hand..);
                    let behind = state.dirty.range((Bound::Unbounded, Bound::Excluded(*hand)));
                    pages = ahead.chain(behind).copied().take(BATCH_PAGES).collect();
                }
                *hand = pages.last().map_or(0, |&page| page + 1);
                pages
            }
        }
    }

    fn write_back_batch(&self, pages: &[Page]) -> Result<(), DeviceError> {
        let (copies, mut first_error) = self.copy_dirty(pages);
        if !planted(Bug::OpenEpochWrittenBack) {
            self.checkpoint()?;
        }
        let failures = self.flushes_failed();
        let mut written: Vec<&Copied> = Vec::new();
        let (begun, mut runs) = (Instant::now(), 0);
        for run in copies.chunk_by(|a, b| a.page + 1 == b.page) {
            match self.write_run(run) {
                Ok(()) => {
                    written.extend(run);
                    runs += 1;
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        if planted(Bug::CleanBeforeFlush) {
            self.clean_all(&written)?;
            self.checkpoint()?;
        }
        if !written.is_empty() {
            self.flush_since(failures)?;
            self.state.lock().note_write_back(runs, written.len(), begun.elapsed());
        }
        self.clean_all(&written)?;
        first_error.map_or(Ok(()), Err)
    }

    /// Copies the newest bytes of the dirty ones among `pages`, after writing them to SCM.
    /// Invalidates clean ones, which are pending only because their mark could not be removed.
    fn copy_dirty(&self, pages: &[Page]) -> (Vec<Copied>, Option<DeviceError>) {
        let mut copies = Vec::new();
        let mut first_error = None;
        for piece in pages.chunks(PIECE_PAGES) {
            let mut state = self.state.lock();
            for &page in piece {
                match state.copy_dirty(page, self.page_len(page)) {
                    Ok(copied) => copies.extend(copied),
                    Err(error) => {
                        state.note(page, error.clone());
                        first_error.get_or_insert(error);
                    }
                }
            }
        }
        (copies, first_error)
    }

    fn write_run(&self, run: &[Copied]) -> Result<(), DeviceError> {
        let Some(first) = run.first() else { return Ok(()) };
        let mut bytes = Vec::with_capacity(run.len() * PAGE);
        run.iter().for_each(|copied| bytes.extend_from_slice(&copied.bytes));
        let offset = u64::from(first.page) * PAGE_U64;
        self.backing
            .write(offset, &bytes, Fua::No)
            .map_err(|error| self.backing_failed(offset, bytes.len() as u64, &error))?;
        self.state.lock().counts.stats.write_back_runs += 1;
        Ok(())
    }

    fn clean_all(&self, written: &[&Copied]) -> Result<(), DeviceError> {
        for piece in written.chunks(PIECE_PAGES) {
            let mut state = self.state.lock();
            for copied in piece {
                state.clean(copied.page)?;
                state.counts.stats.written_back_pages += 1;
            }
        }
        Ok(())
    }

    /// Writes back a batch of dirty pages, the next in the order of sectors. Returns their number.
    /// For callers without a [`crate::WritebackThread`].
    ///
    /// # Errors
    /// Those of the backing device or of the volume; pages that were not written stay dirty.
    pub fn sweep(&self) -> Result<usize, DeviceError> {
        self.write_back(&WritebackTarget::Sweep)
    }

    /// Returns the bytes of all dirty pages.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty.len() as u64 * PAGE_U64
    }

    /// Writes everything back that was written before the call, and flushes the backing device.
    ///
    /// # Errors
    /// `NotDrained`, if pages remain because the backing device or the volume fails. Nothing is
    /// lost.
    pub fn drain(&self) -> Result<(), CacheError> {
        let failed = |error: DeviceError| self.not_drained(&error);
        let all = self.state.lock().dirty.clone();
        self.write_back(&WritebackTarget::Pages(all)).map_err(failed)?;
        self.flush_bypassed().map_err(failed)?;
        self.checkpoint().map_err(failed)
    }
}

impl State {
    fn copy_dirty(&mut self, page: Page, len: usize) -> Result<Option<Copied>, DeviceError> {
        let Some(is_dirty) = self.frames.look(page, Frame::is_dirty) else { return Ok(None) };
        if !is_dirty {
            if self.pending_writeback.contains(&page) {
                self.unmark(page)?;
                self.remove(page);
            }
            return Ok(None);
        }
        if let Some(frame) = self.frames.write(page).get_mut(page) {
            // Before the bytes are copied, so that a write meanwhile is a write since.
            frame.content = Content::Copied;
        }
        if !planted(Bug::OpenEpochWrittenBack) {
            self.persist_copy(page)?;
        }
        let mut bytes = vec![0; len];
        self.read(page, 0, &mut bytes)?;
        Ok(Some(Copied { page, bytes }))
    }
}
