//! The cache's SCM volume: pages, and a mark for each.
//!
//! Invariants on the medium: a page with a mark has its bytes at its place. A mark changes alone,
//! or in one atomic write with the bytes that it describes. A crash between the removal of a mark
//! and the free of the page's space leaves bytes without a mark, and a scan frees them. Written
//! bytes are never a hole, even zeroes, so a mark without bytes is damage.

use std::sync::Arc;

use everbyte_device::{
    AtomicWriteError, AtomicWrites, BlockDevice, DeviceError, Fua, WriteRequest,
};

use crate::error::CacheError;
use crate::layout::{PAGE, PAGE_U64, Page, groups, mark_at, page_at, page_no};
use crate::settings::{Settings, SettingsError};

/// Extents requested in one step of a scan.
const EXTENTS_MAX: usize = 1024;

/// State of a page in the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mark {
    /// The backing device has the same bytes.
    Clean = 1,
    /// The backing device may have older bytes.
    Dirty = 2,
}

/// Contents of a cache's volume, read without opening the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Settings of the cache.
    pub settings: Settings,
    /// Pages in the volume.
    pub pages: u64,
    /// Dirty pages: the backing device may have older bytes.
    pub dirty_pages: u64,
}

/// Errors of [`inspect`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The volume has no valid header of a cache.
    #[error(transparent)]
    Header(#[from] SettingsError),
    /// The volume could not be read.
    #[error("the volume of the cache cannot be read: {0}")]
    Device(#[from] DeviceError),
}

impl From<InspectError> for CacheError {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Header(error) => error.into(),
            InspectError::Device(error) => error.into(),
        }
    }
}

/// Reads settings and page counts from the volume of a cache, without changing anything.
///
/// # Errors
/// `Header`, if the volume holds no cache; `Device`, if it cannot be read.
pub fn inspect(volume: &dyn BlockDevice) -> Result<Inspection, InspectError> {
    let mut header = vec![0; PAGE];
    volume.read(0, &mut header)?;
    let settings = Settings::decode(&header)?;
    let marks = marks(volume, settings.backing_bytes.div_ceil(PAGE_U64))?;
    let dirty = marks.iter().filter(|(_, mark)| *mark == Mark::Dirty).count();
    Ok(Inspection { settings, pages: marks.len() as u64, dirty_pages: dirty as u64 })
}

/// Returns the marked pages, ascending.
fn marks(volume: &dyn BlockDevice, pages: u64) -> Result<Vec<(Page, Mark)>, DeviceError> {
    let mut found = Vec::new();
    let mut block = vec![0; PAGE];
    for first in groups(pages) {
        let at = mark_at(first);
        // Most blocks of marks of a large device are holes, and a hole needs no read.
        if volume.status(at, PAGE_U64, 1)?.first().is_some_and(|extent| extent.zero) {
            continue;
        }
        volume.read(at, &mut block)?;
        marks_of_group(first, &block, pages, &mut found)?;
    }
    Ok(found)
}

/// Adds the marked pages of the group that begins at `first`.
fn marks_of_group(
    first: Page,
    block: &[u8],
    pages: u64,
    found: &mut Vec<(Page, Mark)>,
) -> Result<(), DeviceError> {
    // The last group of the largest device has a mark for an unused number.
    for (place, &byte) in (0..).zip(block) {
        let page = u64::from(first) + place;
        let corrupt =
            |reason| Err(DeviceError::Media { offset: mark_at(first) + place, len: 1, reason });
        let mark = match byte {
            0 => continue,
            1 => Mark::Clean,
            2 => Mark::Dirty,
            other => return corrupt(format!("corrupt mark of page {page} of the cache: {other}")),
        };
        if page >= pages {
            return corrupt(format!(
                "corrupt mark: page {page} lies beyond the backing device's end"
            ));
        }
        found.push((page_no(page), mark));
    }
    Ok(())
}

/// Returns the error of a mark without bytes: the page would read as zeroes.
fn without_bytes(page: Page) -> DeviceError {
    let reason = format!("corrupt mark of page {page} of the cache: the page is not there");
    DeviceError::Media { offset: mark_at(page), len: 1, reason }
}

/// The cache's SCM volume.
#[derive(Clone)]
pub(crate) struct ScmVolume {
    volume: Arc<dyn AtomicWrites>,
}

impl ScmVolume {
    pub(crate) fn new(volume: Arc<dyn AtomicWrites>) -> Self {
        Self { volume }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.volume.geometry().size_bytes
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.volume.geometry().read_only
    }

    pub(crate) fn header(&self) -> Result<Vec<u8>, DeviceError> {
        let mut header = vec![0; PAGE];
        self.volume.read(0, &mut header)?;
        Ok(header)
    }

    /// Writes the header, durably.
    pub(crate) fn write_header(&self, header: &[u8]) -> Result<(), DeviceError> {
        self.volume.write(0, header, Fua::No)?;
        self.volume.flush()
    }

    pub(crate) fn read(&self, page: Page, start: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        self.volume.read(page_at(page) + start as u64, out)
    }

    /// Writes bytes of a page and, atomically with them, a changed mark.
    pub(crate) fn store(
        &self,
        page: Page,
        start: usize,
        data: &[u8],
        mark: Option<Mark>,
    ) -> Result<(), DeviceError> {
        let offset = page_at(page) + start as u64;
        // Without a changed mark the bytes need no second write to be atomic with.
        let Some(mark) = mark else {
            return self.volume.write(offset, data, Fua::No);
        };
        let mark = [mark as u8];
        let requests = [
            WriteRequest { offset, data, fua: Fua::No },
            WriteRequest { offset: mark_at(page), data: &mark, fua: Fua::No },
        ];
        self.volume.write_atomic(&requests).map_err(|error| match error {
            AtomicWriteError::Device(error) => error,
            other => {
                DeviceError::Media { offset, len: data.len() as u64, reason: other.to_string() }
            }
        })
    }

    pub(crate) fn set_mark(&self, page: Page, mark: Mark) -> Result<(), DeviceError> {
        self.volume.write(mark_at(page), &[mark as u8], Fua::No)
    }

    /// Removes a page's mark and frees its space.
    pub(crate) fn forget(&self, page: Page) -> Result<(), DeviceError> {
        // The mark first: a crash before the discard leaves bytes without a mark, which a scan
        // frees.
        self.volume.write(mark_at(page), &[0], Fua::No)?;
        // Without a mark the bytes mean nothing: space that cannot be freed now is freed when the
        // cache is opened again.
        if let Err(error) = self.volume.discard(page_at(page), PAGE_U64, Fua::No) {
            tracing::warn!(page, %error, "an invalidated page keeps its space");
        }
        Ok(())
    }

    /// Makes everything written so far durable.
    pub(crate) fn flush(&self) -> Result<(), DeviceError> {
        self.volume.flush()
    }

    /// Returns the pages in the volume, ascending. Frees bytes without a mark, left by a crash. A
    /// mark without bytes is an error.
    pub(crate) fn scan(&self, pages: u64) -> Result<Vec<(Page, Mark)>, DeviceError> {
        let found = marks(&*self.volume, pages)?;
        let mut marked = found.iter().map(|&(page, _)| page).peekable();
        for first in groups(pages) {
            let count = (pages - u64::from(first)).min(PAGE_U64);
            for page in self.used(first, count)? {
                match marked.next_if(|&known| known <= page) {
                    // Both lists ascend, so a mark that was passed has no bytes.
                    Some(known) if known < page => return Err(without_bytes(known)),
                    Some(_) => {}
                    None => self.volume.discard(page_at(page), PAGE_U64, Fua::No)?,
                }
            }
        }
        marked.next().map_or(Ok(found), |page| Err(without_bytes(page)))
    }

    /// Returns the pages of a group that use space.
    fn used(&self, first: Page, count: u64) -> Result<Vec<Page>, DeviceError> {
        let (start, end) = (page_at(first), page_at(first) + count * PAGE_U64);
        let mut used = Vec::new();
        let mut at = start;
        while at < end {
            for extent in self.volume.status(at, end - at, EXTENTS_MAX)? {
                let to = (at + extent.len).min(end);
                let blocks = (at - start) / PAGE_U64..(to - start).div_ceil(PAGE_U64);
                if !extent.hole {
                    let pages = blocks.map(|n| page_no(u64::from(first) + n));
                    used.extend(pages);
                }
                at += extent.len;
            }
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_device_reads_its_last_marks() {
        let (pages, first) = (u64::from(u32::MAX), u32::MAX - 4095);
        let (mut block, mut found) = (vec![0_u8; PAGE], Vec::new());
        (block[0], block[4094]) = (1, 2);
        marks_of_group(first, &block, pages, &mut found).unwrap();
        assert_eq!(found, [(first, Mark::Clean), (u32::MAX - 1, Mark::Dirty)]);
        for (mark, words) in [(1, "page 4294967295 lies beyond"), (3, "of the cache: 3")] {
            block[4095] = mark;
            let error = marks_of_group(first, &block, pages, &mut found).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
