//! From requests to accesses of pages.
//!
//! A request becomes one access for each page that it touches, with exactly the bytes that it
//! touches there. Zeroes are written. Flushes and trims touch nothing.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::{Problem, Request, RequestOp};
use crate::access::{Access, Op, PAGE_BYTES, PageAddress, PageNo, PageTrace};

/// Limits of a trace in DRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLimits {
    /// Accesses, of 12 bytes each.
    pub accesses_max: u64,
    /// Distinct pages, at most 2^32.
    pub pages_max: u64,
}

impl Default for PageLimits {
    /// A thousand million accesses, as many pages as can be numbered.
    fn default() -> Self {
        Self { accesses_max: 1 << 30, pages_max: 1 << 32 }
    }
}

/// Pages of a chunk, which are numbered together.
const CHUNK_PAGES: usize = 16;
/// The number of a page that was not met.
const NONE: u32 = u32::MAX;

/// A run of pages of one device: its number there, and the device's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct ChunkAddress {
    device: u32,
    chunk: u64,
}

/// Takes requests one after the other and gives a [`PageTrace`].
///
/// Pages are numbered by chunks of 16: those that are used lie beside each other often enough that
/// a table of chunks stays in the processor's cache where one of pages would not. A page all
/// alone takes a cache line.
#[derive(Debug)]
pub struct PageTraceBuilder {
    limits: PageLimits,
    chunks: FxHashMap<ChunkAddress, u32>,
    /// The numbers of each chunk's pages in the order of their first access, which is what accesses
    /// have until the end.
    numbers: Vec<[u32; CHUNK_PAGES]>,
    /// The chunk of the page numbered last.
    last: Option<(ChunkAddress, u32)>,
    pages: u32,
    accesses: Vec<Access>,
    requests: u64,
}

impl PageTraceBuilder {
    /// With nothing in it yet.
    #[must_use]
    pub fn new(limits: PageLimits) -> Self {
        Self {
            limits,
            chunks: FxHashMap::default(),
            numbers: Vec::new(),
            last: None,
            pages: 0,
            accesses: Vec::new(),
            requests: 0,
        }
    }

    /// Adds the pages of a request.
    ///
    /// # Errors
    /// [`Problem::TooMany`] pages or accesses, [`Problem::BeyondEnd`].
    pub fn push(&mut self, request: &Request) -> Result<(), Problem> {
        let op = match request.op {
            RequestOp::Read => Op::Read,
            RequestOp::Write | RequestOp::Zero => Op::Write,
            RequestOp::Flush | RequestOp::Trim => return Ok(()),
        };
        if request.len == 0 {
            return Ok(());
        }
        let beyond = Problem::BeyondEnd { offset: request.offset, len: request.len };
        let end = request.offset.checked_add(request.len).ok_or(beyond)?;
        let page_bytes = u64::from(PAGE_BYTES);
        let (first, last) = (request.offset / page_bytes, (end - 1) / page_bytes);
        let room = self.limits.accesses_max.saturating_sub(self.accesses.len() as u64);
        if last - first >= room {
            let max = self.limits.accesses_max;
            return Err(Problem::TooMany { what: "accesses to pages", max });
        }
        for page in first..=last {
            let begin = page * page_bytes;
            let start = request.offset.max(begin) - begin;
            let len = end.min(begin + page_bytes) - begin - start;
            let number = self.number(PageAddress { device: request.file, page })?;
            let narrow = |bytes: u64| u16::try_from(bytes).unwrap_or(u16::MAX);
            let (start, len) = (narrow(start), narrow(len));
            self.accesses.push(Access { page: PageNo(number), start, len, op });
        }
        self.requests += 1;
        Ok(())
    }

    #[inline]
    fn number(&mut self, address: PageAddress) -> Result<u32, Problem> {
        let per_chunk = CHUNK_PAGES as u64;
        let chunk = ChunkAddress { device: address.device, chunk: address.page / per_chunk };
        let at = match self.last {
            Some((last, at)) if last == chunk => at,
            _ => self.chunk(chunk)?,
        };
        let in_chunk = usize::try_from(address.page % per_chunk).unwrap_or(0);
        let number = &mut self.numbers[at as usize][in_chunk];
        if *number == NONE {
            let max = self.limits.pages_max;
            if u64::from(self.pages) >= max || self.pages == NONE {
                return Err(Problem::TooMany { what: "distinct pages", max });
            }
            *number = self.pages;
            self.pages += 1;
        }
        Ok(*number)
    }

    fn chunk(&mut self, address: ChunkAddress) -> Result<u32, Problem> {
        let count = self.numbers.len();
        let at = match self.chunks.entry(address) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => {
                let max = self.limits.pages_max;
                let too_many = Problem::TooMany { what: "distinct pages", max };
                let at = u32::try_from(count).map_err(|_| too_many)?;
                unknown.insert(at);
                self.numbers.push([NONE; CHUNK_PAGES]);
                at
            }
        };
        self.last = Some((address, at));
        Ok(at)
    }

    /// The trace, its pages numbered in the order of their places.
    #[must_use]
    pub fn finish(self) -> PageTrace {
        let Self { chunks, numbers, pages, mut accesses, requests, .. } = self;
        let mut chunks: Vec<(ChunkAddress, u32)> = chunks.into_iter().collect();
        chunks.sort_unstable();
        let mut addresses = Vec::with_capacity(pages as usize);
        let mut places = vec![0; pages as usize];
        for (ChunkAddress { device, chunk }, at) in chunks {
            for (page, &number) in (chunk * CHUNK_PAGES as u64..).zip(&numbers[at as usize]) {
                if number != NONE {
                    places[number as usize] = u32::try_from(addresses.len()).unwrap_or(NONE);
                    addresses.push(PageAddress { device, page });
                }
            }
        }
        for access in &mut accesses {
            access.page = PageNo(places[access.page.0 as usize]);
        }
        PageTrace { accesses, addresses, requests }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(op: RequestOp, file: u32, offset: u64, len: u64) -> Request {
        Request { time_ns: 0, op, file, offset, len }
    }

    fn pages_of(requests: &[Request]) -> PageTrace {
        let mut builder = PageTraceBuilder::new(PageLimits::default());
        for request in requests {
            builder.push(request).unwrap();
        }
        builder.finish()
    }

    #[test]
    fn requests_are_cut_exactly() {
        let trace = pages_of(&[
            request(RequestOp::Write, 1, 4095, 4098),
            request(RequestOp::Read, 0, 8192, 1),
            request(RequestOp::Flush, 0, 0, 0),
            request(RequestOp::Trim, 0, 0, 1 << 40),
            request(RequestOp::Zero, 1, 4096, 4096),
            request(RequestOp::Write, 1, 5, 0),
        ]);
        let access = |page, start, len, op| Access { page: PageNo(page), start, len, op };
        assert_eq!(
            trace.accesses,
            [
                access(1, 4095, 1, Op::Write),
                access(2, 0, 4096, Op::Write),
                access(3, 0, 1, Op::Write),
                access(0, 0, 1, Op::Read),
                access(2, 0, 4096, Op::Write),
            ]
        );
        let address = |device, page| PageAddress { device, page };
        assert_eq!(trace.addresses, [address(0, 2), address(1, 0), address(1, 1), address(1, 2)]);
        assert_eq!((trace.requests, trace.pages()), (3, 4));
        let numbers = [address(0, 2), address(1, 2), address(1, 3)].map(|at| trace.number_of(at));
        assert_eq!(numbers, [Some(PageNo(0)), Some(PageNo(3)), None]);
    }

    #[test]
    fn limits_hold() {
        let limits = PageLimits { accesses_max: 4, pages_max: 2 };
        let mut builder = PageTraceBuilder::new(limits);
        builder.push(&request(RequestOp::Write, 0, 0, 8192)).unwrap();
        let third = builder.push(&request(RequestOp::Read, 0, 8192, 1));
        assert_eq!(third, Err(Problem::TooMany { what: "distinct pages", max: 2 }));
        let many = builder.push(&request(RequestOp::Read, 0, 0, 3 * 4096));
        assert_eq!(many, Err(Problem::TooMany { what: "accesses to pages", max: 4 }));
        assert!(builder.push(&request(RequestOp::Read, 0, u64::MAX, 2)).is_err());
    }

    proptest! {
        /// Against the bytes one by one.
        #[test]
        fn every_byte_is_touched_once(
            requests in prop::collection::vec((0..3_u32, 0..9000_u64, 0..9000_u64), 1..8),
        ) {
            let requests: Vec<_> = requests
                .into_iter()
                .map(|(file, offset, len)| request(RequestOp::Read, file, offset, len))
                .collect();
            let trace = pages_of(&requests);
            let wanted = requests
                .iter()
                .flat_map(|r| (r.offset..r.offset + r.len).map(|byte| (r.file, byte)));
            let found = trace.accesses.iter().flat_map(|access| {
                let place = trace.addresses[access.page.0 as usize];
                let first = place.page * 4096 + u64::from(access.start);
                (first..first + u64::from(access.len)).map(move |byte| (place.device, byte))
            });
            prop_assert!(wanted.eq(found));
            prop_assert!(trace.addresses.is_sorted_by(|a, b| a < b));
        }
    }
}
