//! The pages of the cache and the operations on one page, under one lock. Hits go without it.
//!
//! Invariants: `pages` has exactly the pages with a frame. `dirty`, `dram_dirty` and
//! `pending_writeback` match the frames' states: a hit changes none of them. The frame records the
//! actual tier of a page, and the policy the intended one. They differ after a restart and while
//! SCM refuses writes. The policy gets all pending hits before any other call. This module never
//! accesses the backing device.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use everbyte_device::DeviceError;
use everbyte_plant::planted;
use everbyte_policy::policy::{Action, SparseSet, Tier};
use everbyte_policy::sim::Costs;

use crate::backing_latency::BackingLatency;
use crate::bypassed::BypassedPages;
use crate::frame::{Bytes, Content, DramCopy, Frame, Span};
use crate::frames::Frames;
use crate::hit_log::{HitLog, PendingHit};
use crate::layout::{PAGE, Page};
use crate::plant::Bug;
use crate::policies::AnyPolicy;
use crate::scm::{Mark, ScmVolume};
use crate::stats::{CacheStats, Counts};

/// Most unused page buffers kept for later promotions.
const SPARE_MAX: usize = 64;

/// Clean pages evicted together when SCM has no space left.
const EVICTED_CLEAN_PAGES: usize = 32;

/// The pages of the cache, under one lock.
pub(crate) struct State {
    pub(crate) scm: ScmVolume,
    /// Used through `policy()`, except while hits are reported and directly afterwards.
    pub(crate) lagging_policy: AnyPolicy,
    /// Times of requests of the backing device.
    pub(crate) latency: BackingLatency,
    pub(crate) frames: Arc<Frames>,
    pub(crate) hit_log: Arc<HitLog>,
    /// Pages with a frame.
    pub(crate) pages: SparseSet,
    pub(crate) dirty: SparseSet,
    /// Dirty pages with their newest bytes only in DRAM.
    pub(crate) dram_dirty: SparseSet,
    /// Evicted pages that are not written back yet.
    pub(crate) pending_writeback: SparseSet,
    /// Pages in DRAM that the policy has demoted and SCM has refused.
    pub(crate) demotion_failed: SparseSet,
    /// Pages in fetching or zeroing: no other thread touches them.
    busy: Vec<Range<Page>>,
    /// Number of marks removed so far, and their number at the last flush of SCM.
    pub(crate) invalidated: u64,
    pub(crate) invalidated_durably: u64,
    /// Changes of the backing device that bypassed pages.
    pub(crate) bypassed: BypassedPages,
    /// Running flushes and similar promises. Until they have flushed these changes, newer bytes in
    /// DRAM replace none of them.
    pub(crate) promises: u32,
    pub(crate) counts: Counts,
    pub(crate) last_error: Option<DeviceError>,
    /// Memory of former DRAM pages, with undefined content.
    spare: Vec<Bytes>,
    /// Empty, with room for the hits of `hit_log`, and for the policy's actions.
    pub(crate) taken: Vec<PendingHit>,
    pub(crate) actions: Vec<Action>,
}

impl State {
    pub(crate) fn new(scm: ScmVolume, policy: AnyPolicy) -> Self {
        Self {
            scm,
            lagging_policy: policy,
            latency: BackingLatency::new(Costs::default()),
            frames: Arc::new(Frames::new()),
            hit_log: Arc::new(HitLog::new()),
            pages: SparseSet::new(),
            dirty: SparseSet::new(),
            dram_dirty: SparseSet::new(),
            pending_writeback: SparseSet::new(),
            demotion_failed: SparseSet::new(),
            busy: Vec::new(),
            invalidated: 0,
            invalidated_durably: 0,
            bypassed: BypassedPages::default(),
            promises: 0,
            counts: Counts::default(),
            last_error: None,
            spare: Vec::with_capacity(SPARE_MAX),
            taken: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Returns memory for a page, with anything in it.
    pub(crate) fn take_memory(&mut self) -> Bytes {
        self.spare.pop().unwrap_or_else(|| Box::new([0; PAGE]))
    }

    /// Keeps the memory of a former DRAM page, up to the limit.
    fn keep_memory(&mut self, left: Option<DramCopy>) {
        if let Some(DramCopy { bytes, .. }) = left
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(bytes);
        }
    }

    pub(crate) fn stats(&mut self) -> CacheStats {
        self.tell_hits();
        let mut stats = self.counts.shown();
        stats.scm_bytes_in_place = self.frames.bytes_in_place();
        stats.pages = self.pages.len() as u64;
        stats.dirty_pages = self.dirty.len() as u64;
        stats.pending_pages = self.pending_writeback.len() as u64;
        stats
    }

    /// Notes the time of a fetch.
    pub(crate) fn note_read(&mut self, pages: &Range<Page>, took: Duration) {
        if let Some(costs) = self.latency.read(pages.start, pages.len(), took) {
            self.policy().set_costs(costs);
        }
    }

    /// Notes the time of a write-back and its flush.
    pub(crate) fn note_write_back(&mut self, runs: usize, pages: usize, took: Duration) {
        if let Some(costs) = self.latency.wrote(runs, pages, took) {
            self.policy().set_costs(costs);
        }
    }

    pub(crate) fn is_busy(&self, pages: &Range<Page>) -> bool {
        self.busy.iter().any(|busy| busy.start < pages.end && pages.start < busy.end)
    }

    /// Keeps other threads away from `pages`. None of them is busy.
    pub(crate) fn begin_busy(&mut self, pages: Range<Page>) {
        self.busy.push(pages);
    }

    pub(crate) fn end_busy(&mut self, pages: &Range<Page>) {
        if let Some(at) = self.busy.iter().position(|busy| busy == pages) {
            self.busy.swap_remove(at);
        }
    }

    /// Notes an error of SCM that is not reported to a client now.
    pub(crate) fn note(&mut self, page: Page, error: DeviceError) {
        tracing::warn!(page, %error, "the cache's volume refused");
        self.counts.stats.scm_errors += 1;
        self.last_error = Some(error);
    }

    /// Returns the policy after the report of all pending hits.
    pub(crate) fn policy(&mut self) -> &mut AnyPolicy {
        self.tell_hits();
        &mut self.lagging_policy
    }

    /// Reads bytes of a page with a frame.
    pub(crate) fn read(&self, page: Page, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.frames.read(page).read(&self.scm, page, start, out)
    }

    /// Writes bytes of a page with a frame, in its tier.
    pub(crate) fn write(
        &mut self,
        page: Page,
        start: usize,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let mut shard = self.frames.write(page);
        let was_dirty = shard.get(page).is_some_and(Frame::is_dirty);
        // The sets change after the bytes: a refused write leaves the page as clean as before.
        let tier = shard.write(&self.scm, page, start, data)?;
        drop(shard);
        if tier.is_some() && !was_dirty {
            self.dirty.insert(page);
        }
        if tier == Some(Tier::Dram) {
            self.dram_dirty.insert(page);
        }
        Ok(())
    }

    /// Adds a frame for a page without one, with its bytes if it is in DRAM.
    pub(crate) fn insert(&mut self, page: Page, frame: Frame, bytes: Option<DramCopy>) {
        self.pages.insert(page);
        if frame.is_dirty() {
            self.dirty.insert(page);
        }
        if bytes.as_ref().is_some_and(|bytes| !bytes.newer.is_empty()) {
            self.dram_dirty.insert(page);
        }
        if frame.pending_writeback {
            self.pending_writeback.insert(page);
        }
        self.frames.insert(page, frame, bytes);
    }

    /// Takes back a page that was pending write-back: the policy has readmitted it.
    pub(crate) fn keep(&mut self, page: Page) {
        if let Some(frame) = self.frames.write(page).get_mut(page) {
            frame.pending_writeback = false;
        }
        self.pending_writeback.remove(page);
    }

    /// Writes the newest bytes of a page to SCM; the next flush of SCM makes them durable. Evicts
    /// clean pages when SCM has no space left.
    ///
    /// # Errors
    /// `NoSpace`, if no page is clean; those of SCM.
    pub(crate) fn persist_copy(&mut self, page: Page) -> Result<(), DeviceError> {
        loop {
            match self.copy_down(page) {
                // The backing device has the bytes of clean pages, so durability of dirty ones goes
                // first.
                Err(DeviceError::NoSpace { .. }) if self.evict_clean()? > 0 => {}
                copied => {
                    self.counts.stats.scm_bytes_persisted += copied?;
                    return Ok(());
                }
            }
        }
    }

    /// Evicts some clean pages of SCM. Returns their number.
    fn evict_clean(&mut self) -> Result<usize, DeviceError> {
        let is_clean = |frame: &Frame| !frame.is_dirty() && frame.mark.is_some();
        let clean = self.pages.iter();
        let clean = clean.filter(|&page| self.frames.look(page, is_clean) == Some(true));
        let pages: Vec<Page> = clean.take(EVICTED_CLEAN_PAGES).collect();
        pages.iter().try_for_each(|&page| self.invalidate(page))?;
        Ok(pages.len())
    }

    /// Writes to SCM the bytes that are newer in DRAM. Returns their number.
    fn copy_down(&mut self, page: Page) -> Result<u64, DeviceError> {
        let mut shard = self.frames.write(page);
        let Some((frame, Some(copy))) = shard.both_mut(page) else { return Ok(0) };
        let mark = if frame.is_dirty() { Mark::Dirty } else { Mark::Clean };
        // Without a mark SCM has no bytes of the page, and a mark promises all of them.
        let span = if frame.mark.is_none() { Span::WHOLE } else { copy.newer };
        if span.is_empty() && frame.mark == Some(mark) {
            return Ok(0);
        }
        let changed = (frame.mark != Some(mark)).then_some(mark);
        let store = |span: Span| {
            self.scm.store(page, span.range().start, &copy.bytes[span.range()], changed)
        };
        let stored = match store(span) {
            // SCM cannot read the rest of the page. DRAM has it.
            Err(DeviceError::Media { .. }) if span != Span::WHOLE => {
                store(Span::WHOLE).map(|()| Span::WHOLE)
            }
            stored => stored.map(|()| span),
        }?;
        frame.mark = Some(mark);
        // From now on a write of it waits for the lock of the state.
        copy.newer = Span::default();
        self.dram_dirty.remove(page);
        Ok(stored.range().len() as u64)
    }

    /// Demotes a page from DRAM to SCM, and frees its DRAM. The page stays if SCM refuses it.
    pub(crate) fn demote(&mut self, page: Page) {
        match self.copy_down(page) {
            Ok(bytes) => {
                self.counts.stats.scm_bytes_moved += bytes;
                let left = self.frames.write(page).set_dram(page, None);
                self.keep_memory(left);
                self.demotion_failed.remove(page);
            }
            Err(error) => {
                // The page stays in DRAM, which may have the only copy of its newest bytes.
                self.demotion_failed.insert(page);
                self.note(page, error);
            }
        }
    }

    /// Promotes a page to DRAM. A dirty page keeps its bytes in SCM, because a flush may have
    /// promised them. A clean page frees its space there. If SCM refuses this, the page keeps its
    /// mark, also after writes in DRAM, until newer bytes are stored or the mark can be removed.
    pub(crate) fn promote(&mut self, page: Page) {
        if self.frames.look(page, |frame| frame.in_dram) != Some(false) {
            return;
        }
        let mut bytes = self.take_memory();
        // Held from the read to the move: a hit in between would write to SCM bytes that DRAM
        // lacks.
        let mut shard = self.frames.write(page);
        if let Err(error) = self.scm.read(page, 0, &mut bytes[..]) {
            drop(shard);
            return self.note(page, error);
        }
        // Equal to SCM's bytes, so a flush need not store them again.
        shard.set_dram(page, Some(DramCopy { bytes, newer: Span::default() }));
        let is_clean = shard.get(page).is_some_and(|frame| !frame.is_dirty());
        drop(shard);
        if is_clean {
            self.unmark_or_note(page);
        }
    }

    /// Promotes a page that is only in SCM to DRAM with entirely new bytes, without reading SCM.
    /// Returns false if it is in DRAM already.
    pub(crate) fn replace(&mut self, page: Page, bytes: &[u8]) -> bool {
        if self.frames.look(page, |frame| frame.in_dram) != Some(false) {
            return false;
        }
        let mut memory = self.take_memory();
        memory.copy_from_slice(bytes);
        let mut shard = self.frames.write(page);
        shard.set_dram(page, Some(DramCopy { bytes: memory, newer: Span::WHOLE }));
        let Some(frame) = shard.get_mut(page) else { return false };
        let was_dirty = frame.is_dirty();
        frame.content = Content::Written;
        drop(shard);
        self.dram_dirty.insert(page);
        // A clean page frees its space in SCM. A dirty one keeps its bytes there, because a flush
        // may have promised them.
        if !was_dirty {
            self.dirty.insert(page);
            self.unmark_or_note(page);
        }
        true
    }

    /// Evicts a page: a clean one is invalidated, a dirty one is pending write-back.
    pub(crate) fn evict(&mut self, page: Page) {
        let Some(is_dirty) = self.frames.look(page, Frame::is_dirty) else { return };
        if is_dirty {
            self.demote(page);
        } else if self.unmark_or_note(page) {
            self.remove(page);
            return;
        }
        if let Some(frame) = self.frames.write(page).get_mut(page) {
            frame.pending_writeback = true;
        }
        self.pending_writeback.insert(page);
    }

    /// Removes the page's mark, if it has one.
    pub(crate) fn unmark(&mut self, page: Page) -> Result<(), DeviceError> {
        if let Some(frame) = self.frames.write(page).get_mut(page)
            && unmark(&self.scm, page, frame)?
        {
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

    /// Removes a frame of a page without a mark.
    pub(crate) fn remove(&mut self, page: Page) {
        debug_assert_ne!(
            self.frames.look(page, |frame| frame.mark.is_some()),
            Some(true),
            "the mark of page {page} would outlive its frame"
        );
        let left = self.frames.remove(page);
        self.keep_memory(left);
        self.pages.remove(page);
        self.dirty.remove(page);
        self.dram_dirty.remove(page);
        self.pending_writeback.remove(page);
        self.demotion_failed.remove(page);
    }

    /// Makes a page clean after the backing device has flushed the copied bytes, unless it was
    /// written since.
    pub(crate) fn clean(&mut self, page: Page) -> Result<(), DeviceError> {
        let mut shard = self.frames.write(page);
        let Some((frame, in_dram)) = shard.both_mut(page) else { return Ok(()) };
        // A later write is not on the backing device, so the page stays dirty (C4).
        if frame.content != Content::Copied && !planted(Bug::CleanThoughWritten) {
            return Ok(());
        }
        if frame.pending_writeback {
            // The policy has evicted the page already, so it leaves the cache now.
            drop(shard);
            self.unmark(page)?;
            self.remove(page);
            return Ok(());
        }
        if in_dram.is_none() {
            self.scm.set_mark(page, Mark::Clean)?;
            frame.mark = Some(Mark::Clean);
        } else if unmark(&self.scm, page, frame)? {
            // The bytes in SCM were only there for durability.
            self.invalidated += 1;
        }
        frame.content = Content::Clean;
        if let Some(copy) = in_dram {
            copy.newer = Span::default();
        }
        drop(shard);
        self.dirty.remove(page);
        self.dram_dirty.remove(page);
        self.policy().cleaned(page);
        Ok(())
    }
}

/// Removes the mark of a page, if it has one. Returns true if it had.
fn unmark(scm: &ScmVolume, page: Page, frame: &mut Frame) -> Result<bool, DeviceError> {
    if frame.mark.is_none() {
        return Ok(false);
    }
    scm.forget(page)?;
    frame.mark = None;
    Ok(true)
}
