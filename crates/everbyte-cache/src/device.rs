//! The cache as a [`BlockDevice`].

use std::collections::BTreeSet;

use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, Geometry, Hole, WriteRequest, check_range,
};

use crate::access::in_part;
use crate::cache::Cache;
use crate::layout::{PAGE_U64, Page, page_no, parts};
use crate::zero::ZeroOp;

impl Cache {
    /// Returns the end of the first run of bytes from `at` on that are all cached or all uncached,
    /// and true if they are cached.
    fn run(&self, at: u64, end: u64) -> (u64, bool) {
        let start_of = |page: Page| u64::from(page) * PAGE_U64;
        let state = self.state.lock();
        let first = page_no(at / PAGE_U64);
        let mut cached = state.pages.range(first..);
        match cached.next() {
            Some(page) if page == first => {
                let mut next = first + 1;
                while start_of(next) < end && cached.next() == Some(next) {
                    next += 1;
                }
                (start_of(next).min(end), true)
            }
            Some(page) => (start_of(page).min(end), false),
            None => (end, false),
        }
    }
}

impl BlockDevice for Cache {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.settings.backing_bytes,
            minimum_bytes: 1,
            preferred_bytes: 4096,
            read_only: self.read_only,
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.read_bytes(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.write_bytes(offset, data)?;
        if fua == Fua::No {
            return Ok(());
        }
        let pages: Vec<Page> = parts(offset, data.len()).map(|part| part.page).collect();
        let len = data.len() as u64;
        self.persist(&pages).map_err(|error| in_part(1, offset, len, error))
    }

    /// Makes all requests with FUA durable by one flush.
    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        let mut outcomes: Vec<_> =
            requests.iter().map(|r| self.write_bytes(r.offset, r.data)).collect();
        let mut durable = BTreeSet::new();
        for (request, outcome) in requests.iter().zip(&outcomes) {
            if request.fua == Fua::Yes && outcome.is_ok() {
                durable.extend(parts(request.offset, request.data.len()).map(|part| part.page));
            }
        }
        if durable.is_empty() {
            return outcomes;
        }
        let durable: Vec<Page> = durable.into_iter().collect();
        if let Err(error) = self.persist(&durable) {
            for (request, outcome) in requests.iter().zip(&mut outcomes) {
                if request.fua == Fua::Yes && outcome.is_ok() {
                    let len = request.data.len() as u64;
                    // The write itself is done, so the error must not state that nothing was.
                    *outcome = Err(in_part(1, request.offset, len, error.clone()));
                }
            }
        }
        outcomes
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.read_only { Ok(()) } else { self.flush_for_client() }
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.zero(offset, len, ZeroOp::Discard, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        hole: Hole,
        fast: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        self.zero(offset, len, ZeroOp::Zero { hole, fast }, fua)
    }

    fn status(
        &self,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let size_bytes = self.settings.backing_bytes;
        check_range(offset, len, size_bytes)?;
        if len == 0 {
            return Err(DeviceError::OutOfRange { offset, len, size_bytes });
        }
        let end = offset + len;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < end && extents.len() < extents_max.max(1) {
            // The lock is released between runs, so the answer is a hint as of different moments.
            let (next, is_cached) = self.run(at, end);
            if is_cached {
                // A cached page counts as data: the backing device's status may be older.
                extents.push(Extent { len: next - at, hole: false, zero: false });
                at = next;
                continue;
            }
            let room = extents_max.max(1) - extents.len();
            let below = self.backing.status(at, next - at, room);
            for extent in below.map_err(|error| self.backing_failed(at, next - at, &error))? {
                extents.push(extent);
                at += extent.len;
            }
        }
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        // A hint is not an access, so the policy gets no report.
        check_range(offset, len, self.settings.backing_bytes)
    }
}
