//! The frames of the pages in the cache, in shards with a lock each.
//!
//! Invariants ([decision 31](../../../docs/decisions/0031-hits-take-no-common-lock.md)): whoever serves
//! a page from its frame holds the lock of its shard until the last byte is copied, and a page changes its
//! place only under that lock, held for writing; frames come, go and change otherwise than by bytes
//! written to a dirty page under the lock of the state besides, which is taken before. No thread has two
//! shards. Knows no policy.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crossbeam_utils::CachePadded;
use everbyte_device::DeviceError;
use everbyte_policy::policy::{PageHasher, Tier};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::frame::{Frame, Span};
use crate::layout::Page;
use crate::scm::{Mark, ScmVolume};

/// Shards: many more than threads that hit at once, so that they seldom meet.
const SHARDS: usize = 256;

/// Frames of some pages.
#[derive(Default)]
pub(crate) struct Shard {
    frames: HashMap<Page, Frame, BuildHasherDefault<PageHasher>>,
    /// Writes so far, of which each has a number of its own in its shard.
    versions: u64,
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

    /// Reads bytes of a page where it is. Zeroes if it is nowhere.
    pub(crate) fn read(
        &self,
        scm: &ScmVolume,
        page: Page,
        start: usize,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        match self.get(page).and_then(|frame| frame.dram.as_deref()) {
            Some(bytes) => {
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
        let Some(frame) = self.frames.get_mut(&page) else { return Ok(None) };
        let tier = if let Some(bytes) = &mut frame.dram {
            bytes[start..start + data.len()].copy_from_slice(data);
            frame.dram_dirty = frame.dram_dirty.with(Span::of(start, data.len()));
            Tier::Dram
        } else {
            let mark = (frame.mark != Some(Mark::Dirty)).then_some(Mark::Dirty);
            scm.store(page, start, data, mark)?;
            frame.mark = Some(Mark::Dirty);
            self.bytes_in_place += data.len() as u64;
            Tier::Scm
        };
        self.versions += 1;
        frame.version = self.versions;
        frame.dirty = true;
        Ok(Some(tier))
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

    /// Locks the shard of a page, so that what is in it stays where it is.
    pub(crate) fn read(&self, page: Page) -> RwLockReadGuard<'_, Shard> {
        self.shard(page).read()
    }

    /// Locks the shard of a page for the caller alone.
    pub(crate) fn write(&self, page: Page) -> RwLockWriteGuard<'_, Shard> {
        self.shard(page).write()
    }

    /// Returns what `look` says of the page's frame, if there is one.
    pub(crate) fn look<R>(&self, page: Page, look: impl FnOnce(&Frame) -> R) -> Option<R> {
        self.read(page).get(page).map(look)
    }

    pub(crate) fn contains(&self, page: Page) -> bool {
        self.look(page, |_| ()).is_some()
    }

    /// Adds a frame. A dirty one counts as written.
    pub(crate) fn insert(&self, page: Page, mut frame: Frame) {
        let mut shard = self.write(page);
        shard.versions += 1;
        frame.version = shard.versions;
        shard.frames.insert(page, frame);
    }

    pub(crate) fn remove(&self, page: Page) {
        self.write(page).frames.remove(&page);
    }

    /// Returns the bytes that requests wrote to SCM in place.
    pub(crate) fn bytes_in_place(&self) -> u64 {
        self.0.iter().map(|shard| shard.read().bytes_in_place).sum()
    }
}
