//! Figures about a trace's requests.

use rustc_hash::FxHashMap;

use super::{Problem, Request, RequestOp};
use crate::access::PAGE_BYTES;

/// Writes of so many bytes and fewer count as small, as in the figures of the hybrid policy's
/// paper.
const SMALL_BYTES: u64 = 512;
/// Distinct pages that are counted, at most.
const PAGES_MAX: u64 = 1 << 28;
/// Pages of an area, which are counted in one word.
const AREA_PAGES: u64 = 64;
/// Most counted areas, so that a trace with scattered pages takes little more than 2 GiB: 8 TiB, if
/// touched everywhere.
const AREAS_MAX: usize = 1 << 25;

/// Counts over a trace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Reads.
    pub reads: u64,
    /// Bytes that they ask for.
    pub read_bytes: u64,
    /// Writes, those of zeroes among them.
    pub writes: u64,
    /// Bytes that they bring.
    pub written_bytes: u64,
    /// Writes of at most 512 bytes.
    pub small_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Trims.
    pub trims: u64,
    /// Requests that are earlier than the one before them.
    pub times_going_back: u64,
    /// The earliest and the latest time, in ns.
    pub span_ns: Option<(u64, u64)>,
    last_ns: u64,
    pages: u64,
    /// The pages of each file's areas that were met, a bit each.
    areas: FxHashMap<(u32, u64), u64>,
}

impl Summary {
    /// Counts a request.
    ///
    /// # Errors
    /// [`Problem::TooMany`] distinct pages, 2^28, or too far apart: in 2^25 areas of 256 KiB.
    pub fn add(&mut self, request: &Request) -> Result<(), Problem> {
        self.add_time(request.time_ns);
        match request.op {
            RequestOp::Read => {
                self.reads += 1;
                self.read_bytes = self.read_bytes.saturating_add(request.len);
                self.add_pages(request)?;
            }
            RequestOp::Write | RequestOp::Zero => {
                self.writes += 1;
                self.written_bytes = self.written_bytes.saturating_add(request.len);
                self.small_writes += u64::from(request.len <= SMALL_BYTES);
                self.add_pages(request)?;
            }
            RequestOp::Flush => self.flushes += 1,
            RequestOp::Trim => self.trims += 1,
        }
        Ok(())
    }

    fn add_pages(&mut self, request: &Request) -> Result<(), Problem> {
        if request.len == 0 {
            return Ok(());
        }
        let page_bytes = u64::from(PAGE_BYTES);
        let last = request.offset.saturating_add(request.len - 1) / page_bytes;
        let first = request.offset / page_bytes;
        for area in first / AREA_PAGES..=last / AREA_PAGES {
            let start = area * AREA_PAGES;
            let from = first.max(start) - start;
            let until = last.min(start + (AREA_PAGES - 1)) - start;
            let asked = (u64::MAX << from) & (u64::MAX >> (AREA_PAGES - 1 - until));
            let met = self.areas.entry((request.file, area)).or_default();
            self.pages += u64::from((asked & !*met).count_ones());
            *met |= asked;
            if self.pages > PAGES_MAX {
                return Err(Problem::TooMany { what: "distinct pages", max: PAGES_MAX });
            }
            if self.areas.len() > AREAS_MAX {
                let what = "areas of 256 KiB with pages in them";
                return Err(Problem::TooMany { what, max: AREAS_MAX as u64 });
            }
        }
        Ok(())
    }

    fn add_time(&mut self, time_ns: u64) {
        let (first, last) = self.span_ns.unwrap_or((time_ns, time_ns));
        self.times_going_back += u64::from(self.span_ns.is_some() && time_ns < self.last_ns);
        self.span_ns = Some((first.min(time_ns), last.max(time_ns)));
        self.last_ns = time_ns;
    }

    /// Reads and writes.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Distinct pages that are read or written.
    #[must_use]
    pub fn footprint_pages(&self) -> u64 {
        self.pages
    }

    /// From the earliest request to the latest, in ns.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.span_ns.map_or(0, |(first, last)| last - first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn read(file: u32, offset: u64, len: u64) -> Request {
        Request { time_ns: 0, op: RequestOp::Read, file, offset, len }
    }

    proptest! {
        #[test]
        fn pages_are_counted_once_each(
            asked in prop::collection::vec((0_u32..2, 0_u64..8 << 20, 0_u64..600 << 10), 1..60),
        ) {
            let mut summary = Summary::default();
            let mut pages = HashSet::new();
            for (file, offset, len) in asked {
                summary.add(&read(file, offset, len)).unwrap();
                if len > 0 {
                    pages.extend((offset / 4096..=(offset + len - 1) / 4096).map(|page| (file, page)));
                }
                prop_assert_eq!(summary.footprint_pages(), pages.len() as u64);
            }
        }
    }

    #[test]
    fn last_page_counts_and_excess_is_refused() {
        let mut summary = Summary::default();
        summary.add(&read(9, u64::MAX, 1)).unwrap();
        assert_eq!(summary.footprint_pages(), 1);
        let all = summary.add(&read(9, 0, u64::MAX));
        assert_eq!(all, Err(Problem::TooMany { what: "distinct pages", max: PAGES_MAX }));
    }
}
