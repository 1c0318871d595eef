//! Requests on one device: those of a generated workload or of a trace, placed on a device that has
//! the pages which they touch and nothing else.
//!
//! So the size of the device is the footprint, the order of pages is the trace's, and holes of the
//! trace cost a disk no seek. Trims are left out: the simulator does not know them either.

use std::path::Path;

use anyhow::{Context, Result, bail};
use everbyte_policy::trace::generate::{GenerateOptions, Workload, generate};
use everbyte_policy::trace::{
    PageLimits, PageTraceBuilder, ReadOptions, Request, RequestOp, TraceReader,
};
use everbyte_policy::{PAGE_BYTES, PageAddress, PageTrace};

/// Pages that a trace may touch: as many as fit into memory several times.
const LIMITS: PageLimits = PageLimits { accesses_max: 1 << 26, pages_max: 1 << 20 };

/// See the module's head.
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
    /// The same for the simulator.
    pub(crate) pages: PageTrace,
    /// Bytes of the longest request.
    pub(crate) longest: usize,
}

impl Stream {
    /// The requests of a workload, at most `requests`.
    ///
    /// # Errors
    /// None that a workload can cause.
    pub(crate) fn generated(workload: Workload, requests: Option<u64>) -> Result<Self> {
        let mut all = Vec::new();
        generate(workload, &GenerateOptions::default(), &mut |request, _| {
            all.push(*request);
            Ok(())
        })?;
        if let Some(requests) = requests {
            all.truncate(usize::try_from(requests)?);
        }
        Self::new(workload.name(), all)
    }

    /// The requests of a trace in a file.
    ///
    /// # Errors
    /// The trace's, and that it is too large to be played.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let reader = TraceReader::open(path, &ReadOptions::default())?;
        let requests = reader.collect::<Result<Vec<Request>, _>>()?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        Self::new(&name, requests).with_context(|| path.display().to_string())
    }

    fn new(name: &str, mut requests: Vec<Request>) -> Result<Self> {
        let moves_bytes = |op| matches!(op, RequestOp::Read | RequestOp::Write | RequestOp::Zero);
        requests.retain(|r| r.op == RequestOp::Flush || (moves_bytes(r.op) && r.len > 0));
        let mut builder = PageTraceBuilder::new(LIMITS);
        for request in &requests {
            builder.push(request)?;
        }
        let pages = builder.finish();
        let mut longest = 0;
        for request in requests.iter_mut().filter(|request| moves_bytes(request.op)) {
            let page_bytes = u64::from(PAGE_BYTES);
            let page = request.offset / page_bytes;
            let number = pages.number_of(PageAddress { device: request.file, page });
            let number = number.context("a request touches a page that was not counted")?;
            request.offset = u64::from(number.0) * page_bytes + request.offset % page_bytes;
            longest = longest.max(usize::try_from(request.len)?);
        }
        if pages.pages() < 100 {
            bail!("{name} touches {} pages only: too few for sizes in percent", pages.pages());
        }
        Ok(Self { name: name.to_owned(), requests, pages, longest })
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
    fn requests_lie_where_the_simulator_has_them() {
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
