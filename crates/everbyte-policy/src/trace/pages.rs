//! From requests to accesses of pages.
//!
//! A request becomes one access for each page that it touches, with exactly the bytes that it
//! touches there. Zeroes are written. Flushes and trims touch nothing.

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

/// Takes requests one after the other and gives a [`PageTrace`].
#[derive(Debug)]
pub struct PageTraceBuilder {
    limits: PageLimits,
    /// Pages by the order of their first access, which is what accesses have until the end.
    numbers: FxHashMap<PageAddress, u32>,
    addresses: Vec<PageAddress>,
    accesses: Vec<Access>,
    requests: u64,
}

impl PageTraceBuilder {
    /// With nothing in it yet.
    #[must_use]
    pub fn new(limits: PageLimits) -> Self {
        Self {
            limits,
            numbers: FxHashMap::default(),
            addresses: Vec::new(),
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

    fn number(&mut self, address: PageAddress) -> Result<u32, Problem> {
        if let Some(&number) = self.numbers.get(&address) {
            return Ok(number);
        }
        let count = self.addresses.len() as u64;
        let number = u32::try_from(count).ok().filter(|_| count < self.limits.pages_max);
        let max = self.limits.pages_max;
        let number = number.ok_or(Problem::TooMany { what: "distinct pages", max })?;
        self.numbers.insert(address, number);
        self.addresses.push(address);
        Ok(number)
    }

    /// The trace, its pages numbered in the order of their places.
    #[must_use]
    pub fn finish(self) -> PageTrace {
        let Self { numbers, mut addresses, mut accesses, requests, .. } = self;
        drop(numbers);
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let mut by_place: Vec<u32> = (0..count).collect();
        by_place.sort_unstable_by_key(|&number| addresses[number as usize]);
        let mut places = vec![0; addresses.len()];
        for (place, &number) in (0..).zip(&by_place) {
            places[number as usize] = place;
        }
        for access in &mut accesses {
            access.page = PageNo(places[access.page.0 as usize]);
        }
        addresses.sort_unstable();
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
