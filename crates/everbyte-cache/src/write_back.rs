//! Writing dirty pages back to storage.
//!
//! The order, for a batch of pages: their newest bytes are in memory and are copied; memory is
//! flushed, so that no crash can take those bytes back; the copies are written to storage, in the
//! order of sectors; storage is flushed; and only then does a page count as clean, unless it was
//! written meanwhile. A crash at any moment finds the page's mark still there, or storage done.

use std::collections::BTreeSet;
use std::ops::Bound;

use everbyte_device::{DeviceError, Fua};
use everbyte_plant::planted;

use crate::cache::Cache;
use crate::error::CacheError;
use crate::layout::{PAGE, PAGE_U64, Page};
use crate::plant::Bug;
use crate::state::State;

/// Pages written back in one batch, with one flush of memory and one of storage.
const BATCH_PAGES: usize = 256;

/// Pages copied under the lock at once.
const PIECE_PAGES: usize = 32;

/// Which pages to write back.
#[derive(Debug)]
pub(crate) enum Choice {
    /// Those that the policy has forgotten.
    Aside,
    /// The next ones from where the last sweep ended.
    Sweep,
    /// These, if they are dirty.
    These(BTreeSet<Page>),
}

/// A page's bytes at a version.
struct Copied {
    page: Page,
    version: u64,
    bytes: Vec<u8>,
}

impl Cache {
    /// Writes a batch of pages back; says how many were written. Nothing is lost by an error:
    /// pages that were not written stay dirty. Pages that have no space in memory yet, where there
    /// is none left, wait until others are clean and can leave.
    ///
    /// # Errors
    /// The first one, of storage or of memory, after whatever could be done was done.
    pub(crate) fn write_back(&self, choice: &Choice) -> Result<usize, DeviceError> {
        let mut hand = self.writer.lock();
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

    /// Pages written back so far, by whoever holds `writer`.
    fn written_back_pages(&self) -> u64 {
        self.state.lock().counts.stats.written_back_pages
    }

    fn choose(&self, choice: &Choice, hand: &mut Page) -> Vec<Page> {
        let state = self.state.lock();
        match choice {
            Choice::Aside => state.aside.iter().copied().collect(),
            Choice::These(pages) => pages.intersection(&state.dirty).copied().collect(),
            Choice::Sweep => {
                let ahead = state.dirty.range(*hand..);
                let behind = state.dirty.range((Bound::Unbounded, Bound::Excluded(*hand)));
                let pages: Vec<Page> = ahead.chain(behind).copied().take(BATCH_PAGES).collect();
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
        for run in copies.chunk_by(|a, b| a.page + 1 == b.page) {
            match self.write_run(run) {
                Ok(()) => written.extend(run),
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
        }
        self.clean_all(&written)?;
        first_error.map_or(Ok(()), Err)
    }

    /// Copies of the newest bytes of the dirty ones among `pages`, which memory then has as well.
    /// Clean ones that are only here because their mark could not be taken lose it now.
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
        self.storage
            .write(offset, &bytes, Fua::No)
            .map_err(|error| self.storage_failed(offset, bytes.len() as u64, &error))?;
        self.state.lock().counts.stats.write_back_runs += 1;
        Ok(())
    }

    fn clean_all(&self, written: &[&Copied]) -> Result<(), DeviceError> {
        for piece in written.chunks(PIECE_PAGES) {
            let mut state = self.state.lock();
            for copied in piece {
                state.clean(copied.page, copied.version)?;
                state.counts.stats.written_back_pages += 1;
            }
        }
        Ok(())
    }

    /// Writes back a batch of dirty pages, the next in the order of sectors; says how many. For
    /// those who have no [`crate::Writer`].
    ///
    /// # Errors
    /// The storage's or the volume's; pages that were not written stay dirty.
    pub fn sweep(&self) -> Result<usize, DeviceError> {
        self.write_back(&Choice::Sweep)
    }

    /// Bytes of pages that storage may have older bytes of.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty.len() as u64 * PAGE_U64
    }

    /// Writes everything back: storage has all that was written when this was called.
    ///
    /// # Errors
    /// `NotDrained`, if pages remain because storage or the volume fails. Nothing is lost then.
    pub fn drain(&self) -> Result<(), CacheError> {
        let failed = |error: DeviceError| self.not_drained(&error);
        let all = self.state.lock().dirty.clone();
        self.write_back(&Choice::These(all)).map_err(failed)?;
        self.flush_bypassed().map_err(failed)?;
        self.checkpoint().map_err(failed)
    }
}

impl State {
    fn copy_dirty(&mut self, page: Page, len: usize) -> Result<Option<Copied>, DeviceError> {
        let Some(frame) = self.frames.get(&page) else { return Ok(None) };
        let version = frame.version;
        if !frame.dirty {
            if frame.aside {
                self.unmark(page)?;
                self.remove(page);
            }
            return Ok(None);
        }
        if !planted(Bug::OpenEpochWrittenBack) {
            self.shadow(page)?;
        }
        let mut bytes = vec![0; len];
        self.read(page, 0, &mut bytes)?;
        Ok(Some(Copied { page, version, bytes }))
    }
}
