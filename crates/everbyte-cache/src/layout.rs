//! The layout of the cache's SCM volume.
//!
//! Block 0 is the header. Groups follow, each of one block of marks and the 4096 pages that the
//! marks describe, so a cache grows with its backing device by growing at its end. A page never
//! changes its place in the volume. An uncached page is a hole. `docs/format.md` has the table.

use std::ops::Range;

/// Bytes of a page and of a block.
pub(crate) const PAGE: usize = 4096;
pub(crate) const PAGE_U64: u64 = 4096;

/// Pages in a group, and bytes in its block of marks.
const GROUP_PAGES: u64 = PAGE_U64;

/// Size of the largest cacheable backing device: page numbers have 32 bits, and the last number is
/// unused.
pub(crate) const BACKING_BYTES_MAX: u64 = (u32::MAX as u64) * PAGE_U64;

/// Number of a page of the backing device.
pub(crate) type Page = u32;

/// Returns the size in bytes of the volume for a cache before a backing device of `backing_bytes`
/// bytes.
#[must_use]
pub fn volume_bytes(backing_bytes: u64) -> u64 {
    let pages = backing_bytes.div_ceil(PAGE_U64);
    (1 + pages.div_ceil(GROUP_PAGES) + pages) * PAGE_U64
}

fn group_at(page: Page) -> u64 {
    (1 + u64::from(page) / GROUP_PAGES * (GROUP_PAGES + 1)) * PAGE_U64
}

/// Returns the offset of the mark of a page in the volume, in bytes.
pub(crate) fn mark_at(page: Page) -> u64 {
    group_at(page) + u64::from(page) % GROUP_PAGES
}

/// Returns the offset of the bytes of a page in the volume, in bytes.
pub(crate) fn page_at(page: Page) -> u64 {
    group_at(page) + (1 + u64::from(page) % GROUP_PAGES) * PAGE_U64
}

/// Returns page `number` of a backing device of at most `BACKING_BYTES_MAX` bytes, or the one beyond
/// its last.
pub(crate) fn page_no(number: u64) -> Page {
    Page::try_from(number).expect("`Settings::check` refuses backing devices with more pages")
}

/// Returns the pages of a range; none for an empty range.
pub(crate) fn pages_of(offset: u64, len: u64) -> Range<Page> {
    page_no(offset / PAGE_U64)..page_no((offset + len).div_ceil(PAGE_U64))
}

/// Returns the first page of each group of `pages` pages.
pub(crate) fn groups(pages: u64) -> impl Iterator<Item = Page> {
    (0..pages.div_ceil(GROUP_PAGES)).map(|group| page_no(group * GROUP_PAGES))
}

/// The part of a request within one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) page: Page,
    /// First byte in the page.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Its offset in the request, in bytes.
    pub(crate) at: usize,
}

/// Cuts a request into its parts. The request lies in a device of at most `BACKING_BYTES_MAX`
/// bytes.
#[allow(clippy::cast_possible_truncation, reason = "pages are below 2^32, remainders below 4096")]
pub(crate) fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let from = offset + at as u64;
        let start = (from % PAGE_U64) as usize;
        let part =
            Part { page: (from / PAGE_U64) as Page, start, len: (PAGE - start).min(len - at), at };
        at += part.len;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_has_no_overlap_and_fits() {
        let block = |at: u64| at / PAGE_U64;
        assert_eq!((block(mark_at(0)), block(page_at(0))), (1, 2));
        assert_eq!(
            (block(page_at(4095)), block(mark_at(4096)), block(page_at(4096))),
            (4097, 4098, 4099)
        );
        assert_eq!(mark_at(4097) - mark_at(4096), 1);
        for pages in [1, 4095, 4096, 4097, 8192, 8193] {
            let last = u32::try_from(pages - 1).unwrap();
            assert_eq!(page_at(last) + PAGE_U64, volume_bytes(pages * PAGE_U64), "{pages}");
        }
        assert_eq!(groups(8193).collect::<Vec<_>>(), [0, 4096, 8192]);
        let last = groups(BACKING_BYTES_MAX / PAGE_U64).last();
        assert_eq!(last, Some(u32::MAX - 4095), "the largest backing device has all its groups");
        assert_eq!(pages_of(BACKING_BYTES_MAX - 1, 1), u32::MAX - 1..u32::MAX);
    }

    #[test]
    fn parts_cover_a_request() {
        let found: Vec<_> = parts(4000, 5000).map(|p| (p.page, p.start, p.len, p.at)).collect();
        assert_eq!(found, [(0, 4000, 96, 0), (1, 0, 4096, 96), (2, 0, 808, 4192)]);
        assert_eq!(parts(5, 0).count(), 0);
    }
}
