//! The page cache of the schemes with logs of new data: lines in DRAM newer than the lines in
//! place.
//!
//! It is a cache and not an index into the log because a file system over a journal has one too:
//! reads are as cheap as possible, and a checkpoint takes each line from DRAM once for any number
//! of log entries. A page costs 4 KiB of DRAM for any used part, so its users checkpoint at
//! `PAGES_MAX` pages. Buffers are kept and used again.
//!
//! Invariants: a page's buffer holds the newest bytes of its `lines`; its other bytes mean nothing.
//! `running` is the part of `lines` without a durable commit. Pages are visited in the order of
//! their creation, so runs repeat exactly.

use everbyte_media::{BLOCK, LINE, LineMask, MediaError, Medium};

use super::space::Space;

/// Pages at which users checkpoint: 64 MiB.
pub(crate) const PAGES_MAX: usize = 16384;

/// Lines of one block.
pub(crate) struct Page {
    pub(crate) lines: LineMask,
    pub(crate) running: LineMask,
    /// Its bytes are in the log, and not yet in place. Used by the journals of whole blocks: they
    /// keep clean pages.
    pub(crate) logged: bool,
    pub(crate) bytes: Box<[u8; BLOCK]>,
}

impl Page {
    /// Puts `data` over bytes `start ..`. The page has their partial lines; of them, the lines of
    /// `mask` count as changed.
    pub(crate) fn put(&mut self, start: usize, data: &[u8], mask: LineMask) {
        self.bytes[start..start + data.len()].copy_from_slice(data);
        self.lines = self.lines.or(mask);
        self.running = self.running.or(mask);
    }

    /// Returns true if bytes of the range of one line differ from `new`.
    fn differs(&self, start: usize, new: &[u8]) -> bool {
        self.bytes[start..start + new.len()] != *new
    }

    /// Corrects `changed`, the lines with a difference between the block in place and `new` at
    /// `start`.
    fn changed(&self, changed: LineMask, start: usize, new: &[u8]) -> LineMask {
        let mut changed = changed;
        for line in lines_of(self.lines.and(LineMask::covering(start, new.len()))) {
            let (from, to) = part_of(line, start, new.len());
            let mask = LineMask::covering(line, LINE);
            changed = match self.differs(from, &new[from - start..to - start]) {
                true => changed.or(mask),
                false => changed.without(mask),
            };
        }
        changed
    }
}

/// The lines of a set, by their first bytes.
pub(crate) fn lines_of(mask: LineMask) -> impl Iterator<Item = usize> {
    mask.runs().flat_map(|(start, len)| (start..start + len).step_by(LINE))
}

/// The bytes `from .. to` that the line at `line` and `len` bytes from `start` have in common.
pub(crate) fn part_of(line: usize, start: usize, len: usize) -> (usize, usize) {
    (line.max(start), (line + LINE).min(start + len))
}

/// The bytes of `data`, meant for `start` of a block, from the first byte different from the stored
/// bytes to the last, by position and number. `changed` are the different lines; `read` fills its
/// second argument from a byte of the block.
///
/// # Errors
/// Those of `read`.
pub(crate) fn span_of(
    changed: LineMask,
    start: usize,
    data: &[u8],
    read: impl Fn(usize, &mut [u8]) -> Result<(), MediaError>,
) -> Result<Option<(usize, usize)>, MediaError> {
    let mut lines = lines_of(changed);
    let Some(first_line) = lines.next() else { return Ok(None) };
    let last_line = lines.last().unwrap_or(first_line);
    let edge = |line: usize, find: fn(&[u8], &[u8]) -> Option<usize>| {
        let (from, to) = part_of(line, start, data.len());
        let mut old = [0; LINE];
        let old = &mut old[..to - from];
        read(from, old)?;
        let found = find(old, &data[from - start..to - start]).unwrap_or(0);
        Ok::<usize, MediaError>(from - start + found)
    };
    let first = edge(first_line, |old, new| old.iter().zip(new).position(|(a, b)| a != b))?;
    let last = edge(last_line, |old, new| old.iter().zip(new).rposition(|(a, b)| a != b))?;
    Ok(Some((first, last - first + 1)))
}

/// The pages of a device.
pub(crate) struct Overlay {
    /// For each block, one more than the index of its page; 0 if it has none.
    slots: Vec<u32>,
    pages: Vec<Page>,
    free: Vec<u32>,
    /// Blocks with a present or earlier page.
    order: Vec<usize>,
}

impl Overlay {
    pub(crate) fn new(blocks: usize) -> Self {
        Self { slots: vec![0; blocks], pages: Vec::new(), free: Vec::new(), order: Vec::new() }
    }

    #[inline]
    pub(crate) fn get(&self, block: usize) -> Option<&Page> {
        let slot = self.slots[block].checked_sub(1)?;
        Some(&self.pages[slot as usize])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, block: usize) -> Option<&mut Page> {
        let slot = self.slots[block].checked_sub(1)?;
        Some(&mut self.pages[slot as usize])
    }

    /// Fills `out` from byte `start` of a block at `place`, and from its page.
    ///
    /// # Errors
    /// A media error.
    #[inline]
    pub(crate) fn read<M: Medium>(
        &self,
        space: &Space<M>,
        place: u64,
        block: usize,
        start: usize,
        out: &mut [u8],
    ) -> Result<(), MediaError> {
        let Some(page) = self.get(block) else { return space.load(place, start, out) };
        let lines = page.lines.and(LineMask::covering(start, out.len()));
        if lines != LineMask::covering(start, out.len()) {
            space.load(place, start, out)?;
        }
        for (run, run_len) in lines.runs() {
            let (from, to) = (run.max(start), (run + run_len).min(start + out.len()));
            out[from - start..to - start].copy_from_slice(&page.bytes[from..to]);
        }
        Ok(())
    }

    /// The lines of a block at `place` with a difference between bytes `start ..` and `new`.
    ///
    /// # Errors
    /// A media error.
    #[inline]
    pub(crate) fn changed<M: Medium>(
        &self,
        space: &Space<M>,
        place: u64,
        block: usize,
        start: usize,
        new: &[u8],
    ) -> Result<LineMask, MediaError> {
        let all = LineMask::covering(start, new.len());
        Ok(match self.get(block) {
            // Nothing on the medium has to be read.
            Some(page) if page.lines.and(all) == all => page.changed(all, start, new),
            Some(page) => page.changed(space.changed(place, start, new)?, start, new),
            None => space.changed(place, start, new)?,
        })
    }

    /// The page of a block; a new one has no lines.
    pub(crate) fn page(&mut self, block: usize) -> &mut Page {
        if self.slots[block] == 0 {
            let slot = self.free.pop().unwrap_or_else(|| {
                let bytes = Box::new([0; BLOCK]);
                self.pages.push(Page {
                    lines: LineMask::EMPTY,
                    running: LineMask::EMPTY,
                    logged: false,
                    bytes,
                });
                u32::try_from(self.pages.len() - 1).unwrap_or(u32::MAX)
            });
            self.slots[block] = slot + 1;
            self.order.push(block);
        }
        &mut self.pages[self.slots[block] as usize - 1]
    }

    /// Forgets the page of a block.
    pub(crate) fn remove(&mut self, block: usize) {
        if let Some(slot) = self.slots[block].checked_sub(1) {
            let page = &mut self.pages[slot as usize];
            (page.lines, page.running, page.logged) = (LineMask::EMPTY, LineMask::EMPTY, false);
            self.slots[block] = 0;
            self.free.push(slot);
        }
    }

    /// Returns true if `more` pages would exceed the maximum.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.order.len() + more > PAGES_MAX
    }

    /// Passes every logged page to `each`, and keeps it.
    pub(crate) fn clean(&mut self, mut each: impl FnMut(usize, &Page)) {
        for &block in &self.order {
            let Some(slot) = self.slots[block].checked_sub(1) else { continue };
            let page = &mut self.pages[slot as usize];
            if std::mem::replace(&mut page.logged, false) {
                each(block, page);
            }
        }
    }

    /// Passes every page to `each`, and forgets it.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(usize, &Page)) {
        for block in std::mem::take(&mut self.order) {
            if let Some(page) = self.get(block) {
                each(block, page);
                self.remove(block);
            }
        }
    }
}
