//! Figures about a trace's requests.

use rustc_hash::FxHashSet;

use super::{Problem, Request, RequestOp};
use crate::access::PAGE_BYTES;

/// Writes of so many bytes and fewer count as small, as in the figures of the hybrid policy's
/// paper.
const SMALL_BYTES: u64 = 512;
/// Distinct pages that are counted, at most.
const PAGES_MAX: usize = 1 << 28;

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
    pages: FxHashSet<(u32, u64)>,
}

impl Summary {
    /// Counts a request.
    ///
    /// # Errors
    /// [`Problem::TooMany`] distinct pages, 2^28.
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
        for page in request.offset / page_bytes..=last {
            if self.pages.insert((request.file, page)) && self.pages.len() > PAGES_MAX {
                return Err(Problem::TooMany { what: "distinct pages", max: PAGES_MAX as u64 });
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
        self.pages.len() as u64
    }

    /// From the earliest request to the latest, in ns.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.span_ns.map_or(0, |(first, last)| last - first)
    }
}
