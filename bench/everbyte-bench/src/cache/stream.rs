//! Requests of a generated workload or a trace, mapped to a device with exactly the touched pages.
//!
//! The size of the device is the footprint. Pages keep the order of the trace, and its holes cost no seeks. Trims are left
//! out, as in the simulator.
//!
//! The last part is reserved for timed slices. Slices with counted requests would favor policies with slow eviction of the
//! first pages.

use std::path::Path;

use anyhow::{Context, Result, bail};
use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};
use everbyte_policy::trace::{
    PageLimits, PageTraceBuilder, ReadOptions, Request, RequestOp, TraceReader,
};
use everbyte_policy::{PAGE_BYTES, PageAddress, PageTrace};

/// Limits of a trace: its pages fit into memory several times.
const LIMITS: PageLimits = PageLimits { accesses_max: 1 << 26, pages_max: 1 << 20 };

/// Counted requests for each request of timed slices.
const LATER: u64 = 4;

fn moves_bytes(request: &Request) -> bool {
    matches!(request.op, RequestOp::Read | RequestOp::Write | RequestOp::Zero)
}

fn requests_of(workload: Workload, requests: Option<u64>) -> Result<Vec<Request>> {
    let mut all = Vec::new();
    let options = GenerateOptions { requests, ..GenerateOptions::default() };
    generate(workload, &options, &mut |request, _| {
        all.push(*request);
        Ok(())
    })?;
    Ok(all)
}

/// Requests on a device of their touched pages.
pub(crate) struct Stream {
    pub(crate) name: String,
    /// Requests to count.
    pub(crate) requests: Vec<Request>,
    /// Requests after the counted ones, for timed slices.
    pub(crate) later: Vec<Request>,
    /// The accesses of the counted requests, for the simulator.
    pub(crate) pages: PageTrace,
    /// Bytes of the longest request.
    pub(crate) longest: usize,
}

impl Stream {
    /// The requests of a workload, at most `requests`.
    ///
    /// # Errors
    /// Errors of the generator.
    pub(crate) fn generated(workload: Workload, requests: Option<u64>) -> Result<Self> {
        let mut all = requests_of(workload, None)?;
        let own = workload.requests();
        let mut later = requests_of(workload, Some(own + own / LATER))?;
        // Both are equal up to the length of the shorter one. The end of the shorter one touches unused pages, so the
        // later requests come from the longer one.
        later.drain(..usize::try_from(own)?.min(later.len()));
        later.truncate(usize::try_from(own / LATER)?);
        if let Some(requests) = requests {
            all.truncate(usize::try_from(requests)?);
        }
        Self::new(workload.name(), all, later)
    }

    /// The requests of a trace in a file.
    ///
    /// # Errors
    /// The trace's; the trace is too large for memory.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let reader = TraceReader::open(path, &ReadOptions::default())?;
        let mut all = reader.collect::<Result<Vec<Request>, _>>()?;
        let later = all.split_off(all.len() - all.len() / usize::try_from(LATER)?);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self::new(&name, all, later).with_context(|| path.display().to_string())
    }

    fn new(name: &str, mut requests: Vec<Request>, mut later: Vec<Request>) -> Result<Self> {
        let mut builder = PageTraceBuilder::new(LIMITS);
        for part in [&mut requests, &mut later] {
            part.retain(|r| r.op == RequestOp::Flush || (moves_bytes(r) && r.len > 0));
            part.iter().try_for_each(|request| builder.push(request))?;
        }
        let mut all = builder.finish();
        // One percent of fewer pages is less than a page.
        if all.pages() < 100 {
            bail!("{name} touches {} pages only: too few for sizes in percent", all.pages());
        }
        let mut longest = 0;
        for request in requests.iter_mut().chain(&mut later).filter(|r| moves_bytes(r)) {
            let page_bytes = u64::from(PAGE_BYTES);
            let page = request.offset / page_bytes;
            let number = all.number_of(PageAddress { device: request.file, page });
            // The builder has seen each request, so a page without a number is a fault of the builder.
            let number = number.context("a request touches a page that was not counted")?;
            request.offset = u64::from(number.0) * page_bytes + request.offset % page_bytes;
            longest = longest.max(usize::try_from(request.len)?);
        }
        // The simulator sees the pages at their places on the new device.
        for (page, address) in (0..).zip(&mut all.addresses) {
            *address = PageAddress { device: 0, page };
        }
        let pages_of = |r: &Request| (r.offset + r.len).div_ceil(4096) - r.offset / 4096;
        let counted: u64 = requests.iter().filter(|r| moves_bytes(r)).map(pages_of).sum();
        // The builder has numbered pages of both parts; only the counted part is simulated.
        all.accesses.truncate(usize::try_from(counted)?);
        all.requests = requests.len() as u64;
        Ok(Self { name: name.to_owned(), requests, later, pages: all, longest })
    }

    /// Bytes of the device.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.pages.pages() as u64 * u64::from(PAGE_BYTES)
    }

    /// Pages of a cache of `percent` of the device.
    pub(crate) fn cache_pages(&self, percent: u32) -> Result<u32> {
        Ok(u32::try_from(self.pages.pages() as u64 * u64::from(percent) / 100)?.max(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_lie_at_simulator_offsets() {
        let stream = Stream::generated(Workload::Web, Some(3000)).unwrap();
        let mut accesses = stream.pages.accesses.iter();
        for request in stream.requests.iter().filter(|r| r.op != RequestOp::Flush) {
            assert!(request.offset + request.len <= stream.size_bytes());
            let mut left = request.len;
            let mut at = request.offset;
            while left > 0 {
                let access = accesses.next().unwrap();
                assert_eq!(at, u64::from(access.page.0) * 4096 + u64::from(access.start));
                at += u64::from(access.len);
                left -= u64::from(access.len);
            }
        }
        assert!(accesses.next().is_none());
    }
}
