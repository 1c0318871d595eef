//! The pages of the cache, and what is done to one: the part that one lock covers.
//!
//! Invariants: `dirty`, `newer` and `aside` have exactly the frames that are so. Where a page lies
//! is what its frame says; the policy's view of its tier decides where it should lie, and may
//! differ: after a restart, and while storage-class memory refuses writes. Nothing here touches
//! storage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use everbyte_device::DeviceError;
use everbyte_plant::planted;

use crate::bypassed::Bypassed;
use crate::frame::{Frame, Span};
use crate::layout::{PAGE, Page};
use crate::memory::{Mark, Memory};
use crate::plant::Bug;
use crate::policies::AnyPolicy;
use crate::stats::{CacheStats, Counts};

/// Clean pages that leave at once where memory has no space left.
const GIVEN_UP_PAGES: usize = 32;

/// The pages of the cache, under one lock.
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) policy: AnyPolicy,
    pub(crate) frames: BTreeMap<Page, Frame>,
    pub(crate) dirty: BTreeSet<Page>,
    /// Dirty pages whose newest bytes are in DRAM only.
    pub(crate) newer: BTreeSet<Page>,
    /// Pages that the policy has forgotten.
    pub(crate) aside: BTreeSet<Page>,
    /// Pages that belong in memory and could not be put there.
    pub(crate) stranded: BTreeSet<Page>,
    /// Pages that are being fetched or zeroed: nobody else touches them.
    busy: Vec<Range<Page>>,
    /// Pages that lost their mark so far, and how many of them had when memory was last flushed.
    pub(crate) departed: u64,
    pub(crate) departed_durably: u64,
    /// Changes of storage that did not go through pages.
    pub(crate) bypassed: Bypassed,
    pub(crate) counts: Counts,
    pub(crate) last_error: Option<DeviceError>,
    versions: u64,
}

impl State {
    pub(crate) fn new(memory: Memory, policy: AnyPolicy) -> Self {
        Self {
            memory,
            policy,
            frames: BTreeMap::new(),
            dirty: BTreeSet::new(),
            newer: BTreeSet::new(),
            aside: BTreeSet::new(),
            stranded: BTreeSet::new(),
            busy: Vec::new(),
            departed: 0,
            departed_durably: 0,
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
        stats.waiting_pages = self.aside.len() as u64;
        stats
    }

    pub(crate) fn is_busy(&self, pages: &Range<Page>) -> bool {
        self.busy.iter().any(|busy| busy.start < pages.end && pages.start < busy.end)
    }

    /// Keeps everybody else away from `pages`, none of which is busy.
    pub(crate) fn begin_busy(&mut self, pages: Range<Page>) {
        self.busy.push(pages);
    }

    pub(crate) fn end_busy(&mut self, pages: &Range<Page>) {
        if let Some(at) = self.busy.iter().position(|busy| busy == pages) {
            self.busy.swap_remove(at);
        }
    }

    /// Notes an error of memory that is not told to a client at once.
    pub(crate) fn note(&mut self, page: Page, error: DeviceError) {
        tracing::warn!(page, %error, "the cache's volume refused");
        self.counts.stats.memory_errors += 1;
        self.last_error = Some(error);
    }

    /// Reads bytes of a page that has a frame.
    pub(crate) fn read(&self, page: Page, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        match self.frames.get(&page).and_then(|frame| frame.dram.as_deref()) {
            Some(bytes) => {
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
            None => self.memory.read(page, start, out),
        }
    }

    /// Writes bytes of a page that has a frame, wherever they lie.
    pub(crate) fn write(
        &mut self,
        page: Page,
        start: usize,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(()) };
        if let Some(bytes) = &mut frame.dram {
            bytes[start..start + data.len()].copy_from_slice(data);
            frame.newer = frame.newer.with(Span::of(start, data.len()));
            self.newer.insert(page);
        } else {
            let mark = (frame.mark != Some(Mark::Dirty)).then_some(Mark::Dirty);
            self.memory.store(page, start, data, mark)?;
            frame.mark = Some(Mark::Dirty);
            self.counts.stats.scm_bytes_in_place += data.len() as u64;
        }
        self.soil(page);
        Ok(())
    }

    /// A write reached the page.
    pub(crate) fn soil(&mut self, page: Page) {
        self.versions += 1;
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.dirty = true;
            frame.version = self.versions;
            self.dirty.insert(page);
        }
    }

    /// Makes memory have the newest bytes of a page. Durable with the next flush of memory. Where
    /// memory has no space left, clean pages leave the cache.
    ///
    /// # Errors
    /// `NoSpace`, if none is clean; memory's.
    pub(crate) fn shadow(&mut self, page: Page) -> Result<(), DeviceError> {
        loop {
            match self.copy_down(page) {
                Err(DeviceError::NoSpace { .. }) if self.give_up_clean()? > 0 => {}
                copied => {
                    self.counts.stats.scm_bytes_shadow += copied?;
                    return Ok(());
                }
            }
        }
    }

    /// Takes some clean pages out that are in memory; says how many.
    fn give_up_clean(&mut self) -> Result<usize, DeviceError> {
        let frames = self.frames.iter();
        let clean = frames.filter(|(_, frame)| !frame.dirty && frame.mark.is_some());
        let pages: Vec<Page> = clean.map(|(&page, _)| page).take(GIVEN_UP_PAGES).collect();
        pages.iter().try_for_each(|&page| self.take_out(page))?;
        Ok(pages.len())
    }

    /// Writes to memory what DRAM has newer; says how many bytes.
    fn copy_down(&mut self, page: Page) -> Result<u64, DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(0) };
        let Some(bytes) = &frame.dram else { return Ok(0) };
        let mark = if frame.dirty { Mark::Dirty } else { Mark::Clean };
        let span = if frame.mark.is_none() { Span::WHOLE } else { frame.newer };
        if span.is_empty() && frame.mark == Some(mark) {
            return Ok(0);
        }
        let changed = (frame.mark != Some(mark)).then_some(mark);
        self.memory.store(page, span.start, &bytes[span.start..span.end], changed)?;
        frame.mark = Some(mark);
        frame.newer = Span::default();
        self.newer.remove(&page);
        Ok((span.end - span.start) as u64)
    }

    /// Puts a page that is in DRAM into memory, and frees its DRAM. Where memory refuses it stays.
    pub(crate) fn sink(&mut self, page: Page) {
        match self.copy_down(page) {
            Ok(bytes) => {
                self.counts.stats.scm_bytes_moved += bytes;
                if let Some(frame) = self.frames.get_mut(&page) {
                    frame.dram = None;
                }
                self.stranded.remove(&page);
            }
            Err(error) => {
                self.stranded.insert(page);
                self.note(page, error);
            }
        }
    }

    /// Brings a page up to DRAM. A dirty one keeps its bytes in memory, because they may have been
    /// promised to be durable; of a clean one the space there is given back.
    pub(crate) fn lift(&mut self, page: Page) {
        let Some(frame) = self.frames.get_mut(&page) else { return };
        if frame.dram.is_some() {
            return;
        }
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        if let Err(error) = self.memory.read(page, 0, &mut bytes) {
            return self.note(page, error);
        }
        frame.dram = Some(bytes);
        if !frame.dirty {
            self.unmark_or_note(page);
        }
    }

    /// The page leaves the policy: a clean one is gone, a dirty one waits for being written back.
    pub(crate) fn leave(&mut self, page: Page) {
        let Some(frame) = self.frames.get(&page) else { return };
        if frame.dirty {
            self.sink(page);
        } else if self.unmark_or_note(page) {
            self.remove(page);
            return;
        }
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.aside = true;
            self.aside.insert(page);
        }
        if planted(Bug::EvictedBeforeWriteBack) {
            self.forget_too_early(page);
        }
    }

    /// The bytes of the page, which memory forgets.
    fn forget_too_early(&mut self, page: Page) {
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        if self.read(page, 0, &mut bytes).is_ok()
            && self.unmark_or_note(page)
            && let Some(frame) = self.frames.get_mut(&page)
        {
            frame.dram = Some(bytes);
        }
    }

    /// Takes the page's mark, if it has one.
    pub(crate) fn unmark(&mut self, page: Page) -> Result<(), DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(()) };
        if frame.mark.is_some() {
            self.memory.forget(page)?;
            frame.mark = None;
            self.departed += 1;
        }
        Ok(())
    }

    /// As `unmark`; says whether the mark is gone.
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
        self.newer.remove(&page);
        self.aside.remove(&page);
        self.stranded.remove(&page);
    }

    /// Storage has flushed the bytes that the page had at `version`.
    pub(crate) fn clean(&mut self, page: Page, version: u64) -> Result<(), DeviceError> {
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(()) };
        if frame.version != version && !planted(Bug::CleanThoughWritten) {
            return Ok(());
        }
        if frame.aside {
            self.unmark(page)?;
            self.remove(page);
            return Ok(());
        }
        if frame.dram.is_none() {
            self.memory.set_mark(page, Mark::Clean)?;
            frame.mark = Some(Mark::Clean);
        } else {
            // Only durability needed the bytes in memory.
            self.unmark(page)?;
        }
        if let Some(frame) = self.frames.get_mut(&page) {
            frame.dirty = false;
            frame.newer = Span::default();
        }
        self.dirty.remove(&page);
        self.newer.remove(&page);
        self.policy.cleaned(page);
        Ok(())
    }
}
