//! The pages of the cache and the operations on one page, under one lock.
//!
//! Invariants: `dirty`, `dram_dirty` and `pending_writeback` have exactly the frames that are so.
//! The frame says in which tier a page is; the policy says in which tier it should be. They differ
//! after a restart and while SCM refuses writes. Nothing here accesses the backing device.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use everbyte_device::DeviceError;
use everbyte_plant::planted;
use everbyte_policy::sim::Costs;

use crate::bypassed::Bypassed;
use crate::frame::{Frame, Span};
use crate::layout::{PAGE, Page};
use crate::plant::Bug;
use crate::policies::AnyPolicy;
use crate::scm::{Mark, ScmVolume};
use crate::speed::BackingSpeed;
use crate::stats::{CacheStats, Counts};

/// Clean pages that are evicted at once when SCM has no space left.
const EVICTED_CLEAN_PAGES: usize = 32;

/// The pages of the cache, under one lock.
pub(crate) struct State {
    pub(crate) scm: ScmVolume,
    pub(crate) policy: AnyPolicy,
    /// Times of requests of the backing device.
    pub(crate) speed: BackingSpeed,
    pub(crate) frames: BTreeMap<Page, Frame>,
    pub(crate) dirty: BTreeSet<Page>,
    /// Dirty pages whose newest bytes are in DRAM only.
    pub(crate) dram_dirty: BTreeSet<Page>,
    /// Pages that the policy has evicted and that are not written back yet.
    pub(crate) pending_writeback: BTreeSet<Page>,
    /// Pages in DRAM that the policy has demoted and SCM has refused.
    pub(crate) demotion_failed: BTreeSet<Page>,
    /// Pages that are being fetched or zeroed: no other thread touches them.
    busy: Vec<Range<Page>>,
    /// Number of marks removed so far, and the number of them that were when SCM was last flushed.
    pub(crate) invalidated: u64,
    pub(crate) invalidated_durably: u64,
    /// Changes of the backing device that did not go through pages.
    pub(crate) bypassed: Bypassed,
    pub(crate) counts: Counts,
    pub(crate) last_error: Option<DeviceError>,
    versions: u64,
}

impl State {
    pub(crate) fn new(scm: ScmVolume, policy: AnyPolicy) -> Self {
        Self {
            scm,
            policy,
            speed: BackingSpeed::new(Costs::default()),
            frames: BTreeMap::new(),
            dirty: BTreeSet::new(),
            dram_dirty: BTreeSet::new(),
            pending_writeback: BTreeSet::new(),
            demotion_failed: BTreeSet::new(),
            busy: Vec::new(),
            invalidated: 0,
            invalidated_durably: 0,
            bypassed: Bypassed::default(),
            counts: Counts::default(),
            last_error: None,
            versions: 0,
        }
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let mut stats = self.counts.shown();
        stats.pages = self.frames.len() as u64;
        stats.dirty_pages = self.dirty.len() as u64;
        stats.pending_pages = self.pending_writeback.len() as u64;
        stats
    }

    /// Notes the time of a fetch.
    pub(crate) fn note_read(&mut self, pages: &Range<Page>, took: Duration) {
        if let Some(costs) = self.speed.read(pages.start, pages.len(), took) {
            self.policy.set_costs(costs);
        }
    }

    /// Notes the time of a write-back and its flush.
    pub(crate) fn note_write_back(&mut self, runs: usize, pages: usize, took: Duration) {
        if let Some(costs) = self.speed.wrote(runs, pages, took) {
            self.policy.set_costs(costs);
        }
    }

    pub(crate) fn is_busy(&self, pages: &Range<Page>) -> bool {
        self.busy.iter().any(|busy| busy.start < pages.end && pages.start < busy.end)
    }

    /// Keeps other threads away from `pages`, none of which is busy.
    pub(crate) fn begin_busy(&mut self, pages: Range<Page>) {
        self.busy.push(pages);
    }

    pub(crate) fn end_busy(&mut self, pages: &Range<Page>) {
        if let Some(at) = self.busy.iter().position(|busy| busy == pages) {
            self.busy.swap_remove(at);
        }
    }

    /// Notes an error of SCM that is not told to a client at once.
    pub(crate) fn note(&mut self, page: Page, error: DeviceError) {
        tracing::warn!(page, %error, "the cache's volume refused");
        self.counts.stats.scm_errors += 1;
        self.last_error = Some(error);
    }

    /// Reads bytes of a page that has a frame.
    pub(crate) fn read(&self, page: Page, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        match self.frames.get(&page).and_then(|frame| frame.dram.as_deref()) {
            Some(bytes) => {
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
            None => self.scm.read(page, start, out),
        }
    }

    /// Writes bytes of a page that has a frame, in its tier.
    pub(crate) fn write(
        &mut self,
        page: Page,
        start: usize,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(()) };
        if let Some(bytes) = &mut frame.dram {
            bytes[start..start + data.len()].copy_from_slice(data);
            frame.dram_dirty = frame.dram_dirty.with(Span::of(start, data.len()));
            self.dram_dirty.insert(page);
        } else {
            let mark = (frame.mark != Some(Mark::Dirty)).then_some(Mark::Dirty);
            self.scm.store(page, start, data, mark)?;
            frame.mark = Some(Mark::Dirty);
            self.counts.stats.scm_bytes_in_place += data.len() as u64;
        }
        self.mark_dirty(page);
        Ok(())
    }

    /// Marks the page dirty after a write.
    pub(crate) fn mark_dirty(&mut self, page: Page) {
        self.versions += 1;
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.dirty = true;
            frame.version = self.versions;
            self.dirty.insert(page);
        }
    }

    /// Writes the newest bytes of a page to SCM; the next flush of SCM makes them durable. Evicts
    /// clean pages when SCM has no space left.
    ///
    /// # Errors
    /// `NoSpace`, if no page is clean; those of SCM.
    pub(crate) fn persist_copy(&mut self, page: Page) -> Result<(), DeviceError> {
        loop {
            match self.copy_down(page) {
                Err(DeviceError::NoSpace { .. }) if self.evict_clean()? > 0 => {}
                copied => {
                    self.counts.stats.scm_bytes_persisted += copied?;
                    return Ok(());
                }
            }
        }
    }

    /// Evicts some clean pages that are in SCM. Returns their number.
    fn evict_clean(&mut self) -> Result<usize, DeviceError> {
        let frames = self.frames.iter();
        let clean = frames.filter(|(_, frame)| !frame.dirty && frame.mark.is_some());
        let pages: Vec<Page> = clean.map(|(&page, _)| page).take(EVICTED_CLEAN_PAGES).collect();
        pages.iter().try_for_each(|&page| self.invalidate(page))?;
        Ok(pages.len())
    }

    /// Writes to SCM the bytes that are newer in DRAM. Returns their number.
    fn copy_down(&mut self, page: Page) -> Result<u64, DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(0) };
        let Some(bytes) = &frame.dram else { return Ok(0) };
        let mark = if frame.dirty { Mark::Dirty } else { Mark::Clean };
        let span = if frame.mark.is_none() { Span::WHOLE } else { frame.dram_dirty };
        if span.is_empty() && frame.mark == Some(mark) {
            return Ok(0);
        }
        let changed = (frame.mark != Some(mark)).then_some(mark);
        self.scm.store(page, span.start, &bytes[span.start..span.end], changed)?;
        frame.mark = Some(mark);
        frame.dram_dirty = Span::default();
        self.dram_dirty.remove(&page);
        Ok((span.end - span.start) as u64)
    }

    /// Demotes a page that is in DRAM to SCM, and frees its DRAM. The page stays if SCM refuses it.
    pub(crate) fn demote(&mut self, page: Page) {
        match self.copy_down(page) {
            Ok(bytes) => {
                self.counts.stats.scm_bytes_moved += bytes;
                if let Some(frame) = self.frames.get_mut(&page) {
                    frame.dram = None;
                }
                self.demotion_failed.remove(&page);
            }
            Err(error) => {
                self.demotion_failed.insert(page);
                self.note(page, error);
            }
        }
    }

    /// Promotes a page to DRAM. A dirty one keeps its bytes in SCM, because a flush may have
    /// promised them; a clean one frees its space there.
    pub(crate) fn promote(&mut self, page: Page) {
        let Some(frame) = self.frames.get_mut(&page) else { return };
        if frame.dram.is_some() {
            return;
        }
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        if let Err(error) = self.scm.read(page, 0, &mut bytes) {
            return self.note(page, error);
        }
        frame.dram = Some(bytes);
        if !frame.dirty {
            self.unmark_or_note(page);
        }
    }

    /// Evicts a page: a clean one is invalidated, a dirty one is pending write-back.
    pub(crate) fn evict(&mut self, page: Page) {
        let Some(frame) = self.frames.get(&page) else { return };
        if frame.dirty {
            self.demote(page);
        } else if self.unmark_or_note(page) {
            self.remove(page);
            return;
        }
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.pending_writeback = true;
            self.pending_writeback.insert(page);
        }
        if planted(Bug::EvictedBeforeWriteBack) {
            self.forget_too_early(page);
        }
    }

    /// Makes SCM forget a page, and keeps its bytes in DRAM.
    fn forget_too_early(&mut self, page: Page) {
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        if self.read(page, 0, &mut bytes).is_ok()
            && self.unmark_or_note(page)
            && let Some(frame) = self.frames.get_mut(&page)
        {
            frame.dram = Some(bytes);
        }
    }

    /// Removes the page's mark, if it has one.
    pub(crate) fn unmark(&mut self, page: Page) -> Result<(), DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(()) };
        if frame.mark.is_some() {
            self.scm.forget(page)?;
            frame.mark = None;
            self.invalidated += 1;
        }
        Ok(())
    }

    /// As `unmark`; notes an error and returns false.
    fn unmark_or_note(&mut self, page: Page) -> bool {
        match self.unmark(page) {
            Ok(()) => true,
            Err(error) => {
                self.note(page, error);
                false
            }
        }
    }

    /// Removes a frame whose page has no mark.
    pub(crate) fn remove(&mut self, page: Page) {
        self.frames.remove(&page);
        self.dirty.remove(&page);
        self.dram_dirty.remove(&page);
        self.pending_writeback.remove(&page);
        self.demotion_failed.remove(&page);
    }

    /// Makes a page clean after the backing device has flushed the bytes that it had at `version`.
    pub(crate) fn clean(&mut self, page: Page, version: u64) -> Result<(), DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(()) };
        if frame.version != version && !planted(Bug::CleanThoughWritten) {
            return Ok(());
        }
        if frame.pending_writeback {
            self.unmark(page)?;
            self.remove(page);
            return Ok(());
        }
        if frame.dram.is_none() {
            self.scm.set_mark(page, Mark::Clean)?;
            frame.mark = Some(Mark::Clean);
        } else {
            // The bytes in SCM were only there for durability.
            self.unmark(page)?;
        }
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.dirty = false;
            frame.dram_dirty = Span::default();
        }
        self.dirty.remove(&page);
        self.dram_dirty.remove(&page);
        self.policy.cleaned(page);
        Ok(())
    }
}
