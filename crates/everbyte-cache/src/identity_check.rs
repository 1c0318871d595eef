//! Evidence for the identity of a backing device: the bytes of clean pages.
//!
//! The backing device has the same bytes as a clean page. A differing page shows another device, or
//! a change made without the cache. Pages that repeat one byte agree with too many devices to prove
//! anything.

use everbyte_device::BlockDevice;

use crate::error::CacheError;
use crate::layout::{PAGE, PAGE_U64, Page};
use crate::scm::{Mark, ScmVolume};
use crate::settings::Identity;

/// Clean pages compared with a moved backing device, spread over all of them.
const COMPARED_PAGES_MAX: usize = 1024;

/// Clean pages compared whenever a cache is opened: few, because each may cost a seek.
const COMPARED_AT_OPENING_MAX: usize = 32;

/// Number of agreeing pages that prove the device, without pages that repeat one byte.
pub(crate) const MATCHES_MIN: u64 = 8;

/// A cache, the home of its clean pages and the backing device to compare.
pub(crate) struct IdentityCheck<'a> {
    pub(crate) scm: &'a ScmVolume,
    pub(crate) backing: &'a dyn BlockDevice,
    pub(crate) backing_bytes: u64,
    pub(crate) found: &'a Identity,
}

/// Outcome of comparing one page.
enum PageOutcome {
    Agrees { is_distinctive: bool },
    Differs,
    NotRead(CacheError),
}

impl IdentityCheck<'_> {
    /// Compares with a moved device. Returns the number of pages that prove its identity.
    ///
    /// # Errors
    /// A page that differs or is unreadable.
    pub(crate) fn of_moved(&self, pages: &[(Page, Mark)]) -> Result<u64, CacheError> {
        let mut matched = 0;
        for page in spread(pages, COMPARED_PAGES_MAX) {
            match self.page(page) {
                PageOutcome::Agrees { is_distinctive } => matched += u64::from(is_distinctive),
                PageOutcome::Differs => return Err(self.other_bytes(page)),
                PageOutcome::NotRead(error) => return Err(error),
            }
        }
        Ok(matched)
    }

    /// Compares with a device in its old place. Returns the number of pages that prove its
    /// identity. Unreadable pages are skipped: the request for such a page reports the error.
    ///
    /// # Errors
    /// A differing page.
    pub(crate) fn at_opening(&self, pages: &[(Page, Mark)]) -> Result<u64, CacheError> {
        let mut matched = 0;
        for page in spread(pages, COMPARED_AT_OPENING_MAX) {
            match self.page(page) {
                PageOutcome::Agrees { is_distinctive } => matched += u64::from(is_distinctive),
                PageOutcome::Differs => return Err(self.other_bytes(page)),
                PageOutcome::NotRead(error) => {
                    // An unreadable page proves nothing against the device.
                    tracing::warn!(page, %error, "a clean page could not be compared");
                }
            }
        }
        Ok(matched)
    }

    fn page(&self, page: Page) -> PageOutcome {
        let (mut cached, mut stored) = (vec![0; PAGE], vec![0; PAGE]);
        let offset = u64::from(page) * PAGE_U64;
        let len = usize::try_from((self.backing_bytes - offset).min(PAGE_U64)).unwrap_or(PAGE);
        if let Err(error) = self.scm.read(page, 0, &mut cached[..len]) {
            return PageOutcome::NotRead(CacheError::Scm(error));
        }
        if let Err(error) = self.backing.read(offset, &mut stored[..len]) {
            return PageOutcome::NotRead(CacheError::Backing(error));
        }
        if cached[..len] != stored[..len] {
            return PageOutcome::Differs;
        }
        PageOutcome::Agrees { is_distinctive: cached[1..len].iter().any(|byte| *byte != cached[0]) }
    }

    fn other_bytes(&self, page: Page) -> CacheError {
        let offset = u64::from(page) * PAGE_U64;
        CacheError::OtherBytes { found: Box::new(self.found.clone()), offset }
    }
}

/// Returns at most `max` of the clean pages, evenly spread over all of them.
fn spread(pages: &[(Page, Mark)], max: usize) -> Vec<Page> {
    let clean = pages.iter().filter(|(_, mark)| *mark == Mark::Clean).map(|(page, _)| *page);
    let clean: Vec<Page> = clean.collect();
    clean.iter().copied().step_by(clean.len().div_ceil(max).max(1)).collect()
}
