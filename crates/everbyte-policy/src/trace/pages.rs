//! From requests to accesses of pages.
//!
//! A request becomes one access for each of its pages, with exactly the touched bytes. Zeroes are
//! written. Flushes and trims touch no page.

use super::beside::Touch;
use super::page_numbers::PageNumbers;
use super::{Problem, Request};
use crate::access::{Access, PAGE_BYTES, PageAddress, PageNo, PageTrace};

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
    /// Up to this number all accesses are kept; above it none are.
    kept_max: u64,
    numbers: PageNumbers,
    /// With the numbers that pages got when they were met.
    kept: Vec<Access>,
    accesses: u64,
    requests: u64,
}

impl PageTraceBuilder {
    /// With nothing in it yet.
    #[must_use]
    pub fn new(limits: PageLimits) -> Self {
        Self::keeping(limits, u64::MAX)
    }

    /// Keeps the accesses of a trace only if there are `kept_max` at most.
    pub(super) fn keeping(limits: PageLimits, kept_max: u64) -> Self {
        let numbers = PageNumbers::new(limits.pages_max);
        Self { limits, kept_max, numbers, kept: Vec::new(), accesses: 0, requests: 0 }
    }

    /// Adds the pages of a request.
    ///
    /// # Errors
    /// [`Problem::TooMany`] pages or accesses, [`Problem::BeyondEnd`].
    pub fn push(&mut self, request: &Request) -> Result<(), Problem> {
        Touch::of(request).map_or(Ok(()), |touch| self.touch(&touch))
    }

    /// Adds the pages of a touch.
    #[inline]
    pub(super) fn touch(&mut self, touch: &Touch) -> Result<(), Problem> {
        let Self { limits, kept_max, numbers, kept, accesses, .. } = self;
        cut(touch, |address, access| {
            // Checked for each access: one request can have millions of pages.
            if *accesses >= limits.accesses_max {
                let max = limits.accesses_max;
                return Err(Problem::TooMany { what: "accesses to pages", max });
            }
            let page = PageNo(numbers.of(address)?);
            *accesses += 1;
            if *accesses <= *kept_max {
                kept.push(Access { page, ..access });
            } else {
                // Too many to keep. The memory is freed now, and each simulation reads the trace
                // again.
                *kept = Vec::new();
            }
            Ok(())
        })?;
        self.requests += 1;
        Ok(())
    }

    /// The trace, its pages numbered in the order of their places.
    #[must_use]
    pub fn finish(self) -> PageTrace {
        self.finish_with_numbers().0
    }

    /// Returns the trace, its pages numbered in the order of their places; its accesses, which are
    /// all or none; and the numbers.
    pub(super) fn finish_with_numbers(self) -> (PageTrace, u64, PageNumbers) {
        let Self { mut numbers, kept: mut accesses, requests, .. } = self;
        let (addresses, places) = numbers.order();
        // The numbers were given in the order of appearance. Policies need the order of sectors.
        for access in &mut accesses {
            access.page = PageNo(places[access.page.0 as usize]);
        }
        (PageTrace { accesses, addresses, requests }, self.accesses, numbers)
    }
}

/// Cuts a touch into pages: calls `each` with every page, and with the access to it, which has no
/// number yet.
///
/// # Errors
/// [`Problem::BeyondEnd`], and those of `each`, the first of which ends it.
#[inline]
pub(super) fn cut(
    touch: &Touch,
    mut each: impl FnMut(PageAddress, Access) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let &Touch { offset, len, file: device, op } = touch;
    let end = offset.checked_add(len).ok_or(Problem::BeyondEnd { offset, len })?;
    let page_bytes = u64::from(PAGE_BYTES);
    let narrow = |bytes: u64| u16::try_from(bytes).unwrap_or(u16::MAX);
    // `len` is not 0 here, so the last page exists.
    for page in offset / page_bytes..=(end - 1) / page_bytes {
        let begin = page * page_bytes;
        let start = offset.max(begin) - begin;
        let len = end.min(begin + page_bytes) - begin - start;
        let access = Access { page: PageNo(u32::MAX), start: narrow(start), len: narrow(len), op };
        each(PageAddress { device, page }, access)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access::Op;
    use crate::trace::RequestOp;

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
