//! The frames of the pages in the cache, in shards with a lock each.
//!
//! Invariants ([decision 31](../../../docs/decisions/0031-hits-take-no-common-lock.md)): a thread
//! that serves a page from its frame holds the lock of its shard until the last byte is copied. A
//! page changes its place only under that lock, held for writing. Frames are added, removed and
//! changed, except by bytes written to a dirty page, under the lock of the state as well, which is
//! taken first. No thread has two shards. Knows no policy.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crossbeam_utils::CachePadded;
use everbyte_device::DeviceError;
use everbyte_policy::policy::{PageHasher, Tier};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::frame::{Content, DramCopy, Frame, Span};
use crate::layout::Page;
use crate::scm::{Mark, ScmVolume};

/// Shards: many more than concurrent threads, to make contention rare.
const SHARDS: usize = 256;

type PageMap<T> = HashMap<Page, T, BuildHasherDefault<PageHasher>>;

/// Frames of some pages.
///
/// Invariant: `dram` has exactly the pages whose frames are in DRAM.
#[derive(Default)]
pub(crate) struct Shard {
    frames: PageMap<Frame>,
    dram: PageMap<DramCopy>,
    /// Bytes that requests wrote to SCM in place.
    bytes_in_place: u64,
}

impl Shard {
    pub(crate) fn get(&self, page: Page) -> Option<&Frame> {
        self.frames.get(&page)
    }

    pub(crate) fn get_mut(&mut self, page: Page) -> Option<&mut Frame> {
        self.frames.get_mut(&page)
    }

    /// Returns a page's frame and its bytes in DRAM, if it has them.
    pub(crate) fn both_mut(&mut self, page: Page) -> Option<(&mut Frame, Option<&mut DramCopy>)> {
        let frame = self.frames.get_mut(&page)?;
        let bytes = if frame.in_dram { self.dram.get_mut(&page) } else { None };
        Some((frame, bytes))
    }

    /// Sets or removes the bytes in DRAM of a page with a frame. Returns the former ones.
    pub(crate) fn set_dram(&mut self, page: Page, bytes: Option<DramCopy>) -> Option<DramCopy> {
        let frame = self.frames.get_mut(&page)?;
        frame.in_dram = bytes.is_some();
        match bytes {
            Some(bytes) => self.dram.insert(page, bytes),
            None => self.dram.remove(&page),
        }
    }

    /// Returns true if a further write of the page changes nothing but its bytes: it is dirty, and
    /// counts as dirty where it is.
    pub(crate) fn is_dirty_in_place(&self, page: Page) -> bool {
        self.get(page).is_some_and(|frame| {
            frame.is_dirty()
                && match frame.in_dram {
                    true => self.dram.get(&page).is_some_and(|bytes| !bytes.newer.is_empty()),
                    false => frame.mark == Some(Mark::Dirty),
                }
        })
    }

    /// Reads bytes of a page where it is. Zeroes if it is nowhere.
    pub(crate) fn read(
        &self,
        scm: &ScmVolume,
        page: Page,
        start: usize,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        let is_in_dram = self.get(page).is_some_and(|frame| frame.in_dram);
        match self.dram.get(&page).filter(|_| is_in_dram) {
            Some(DramCopy { bytes, .. }) => {
                out.copy_from_slice(&bytes[start..start + out.len()]);
                Ok(())
            }
            None => scm.read(page, start, out),
        }
    }

    /// Writes bytes of a page where it is, and makes it dirty. Returns the tier, if it has a frame.
    pub(crate) fn write(
        &mut self,
        scm: &ScmVolume,
        page: Page,
        start: usize,
        data: &[u8],
    ) -> Result<Option<Tier>, DeviceError> {
        let Some((frame, in_dram)) = self.both_mut(page) else { return Ok(None) };
        if let Some(DramCopy { bytes, newer }) = in_dram {
            bytes[start..start + data.len()].copy_from_slice(data);
            *newer = newer.with(Span::of(start, data.len()));
            frame.content = Content::Written;
            return Ok(Some(Tier::Dram));
        }
        // An unchanged mark is not stored again: then the write is a single one, without atomicity.
        let mark = (frame.mark != Some(Mark::Dirty)).then_some(Mark::Dirty);
        // The frame changes only after SCM has taken bytes and mark, so an error leaves it true.
        scm.store(page, start, data, mark)?;
        frame.mark = Some(Mark::Dirty);
        frame.content = Content::Written;
        self.bytes_in_place += data.len() as u64;
        Ok(Some(Tier::Scm))
    }
}

/// All frames.
pub(crate) struct Frames(Box<[CachePadded<RwLock<Shard>>]>);

impl Frames {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| CachePadded::default()).collect())
    }

    fn shard(&self, page: Page) -> &RwLock<Shard> {
        &self.0[page as usize % SHARDS]
    }

    /// Locks the shard of a page. Its pages stay at their places.
    pub(crate) fn read(&self, page: Page) -> RwLockReadGuard<'_, Shard> {
        self.shard(page).read()
    }

    /// Locks the shard of a page for the caller alone.
    pub(crate) fn write(&self, page: Page) -> RwLockWriteGuard<'_, Shard> {
        self.shard(page).write()
    }

    /// Returns the result of `look` for the page's frame, if there is one.
    pub(crate) fn look<R>(&self, page: Page, look: impl FnOnce(&Frame) -> R) -> Option<R> {
        self.read(page).get(page).map(look)
    }

    pub(crate) fn contains(&self, page: Page) -> bool {
        self.look(page, |_| ()).is_some()
    }

    /// Adds a frame, with its bytes if it is in DRAM.
    pub(crate) fn insert(&self, page: Page, frame: Frame, bytes: Option<DramCopy>) {
        let mut shard = self.write(page);
        shard.frames.insert(page, frame);
        shard.set_dram(page, bytes);
    }

    /// Removes a frame. Returns its bytes in DRAM.
    pub(crate) fn remove(&self, page: Page) -> Option<DramCopy> {
        let mut shard = self.write(page);
        let bytes = shard.set_dram(page, None);
        shard.frames.remove(&page);
        bytes
    }

    /// Returns the bytes written by requests to SCM in place.
    pub(crate) fn bytes_in_place(&self) -> u64 {
        self.0.iter().map(|shard| shard.read().bytes_in_place).sum()
    }
}
