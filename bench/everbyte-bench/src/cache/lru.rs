//! A plain cache in DRAM, for comparison: it evicts the least recently used pages, writes dirty
//! ones back in the order of sectors, and writes all of them at a flush.
//!
//! Made to be fair, not clever: it fetches a request's missing pages in one read, as our cache
//! does, and writes back as a kernel's page cache does, which begins when a tenth of it is dirty.
//! DRAM loses its content with the power, so a flush has to reach the backing device. One lock, for
//! it is for one client.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use everbyte_device::{BlockDevice, DeviceError, Extent, Fua, Geometry, Hole};
use parking_lot::Mutex;

const PAGE: usize = 4096;
const PAGE_U64: u64 = 4096;

struct Frame {
    bytes: Box<[u8]>,
    used: u64,
}

#[derive(Default)]
struct State {
    frames: HashMap<u64, Frame>,
    /// Pages by their last use.
    order: BTreeMap<u64, u64>,
    dirty: BTreeSet<u64>,
    uses: u64,
    hits: u64,
    misses: u64,
    written_back: u64,
    runs: u64,
}

/// Counts of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LruStats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) written_back: u64,
    pub(crate) runs: u64,
}

/// A plain cache in DRAM.
pub(crate) struct LruCache {
    backing: Arc<dyn BlockDevice>,
    pages: usize,
    state: Mutex<State>,
}

/// Pages of a request, each with the bytes of it and of the request.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < len).then(|| {
            let from = offset + at as u64;
            let start = usize::try_from(from % PAGE_U64).unwrap_or(0);
            let end = len.min(at + PAGE - start);
            let part = (from / PAGE_U64, start, at..end);
            at = end;
            part
        })
    })
}

impl LruCache {
    /// Makes a cache of `pages`, at least one, before a backing device of whole pages.
    pub(crate) fn new(backing: Arc<dyn BlockDevice>, pages: usize) -> Self {
        Self { backing, pages: pages.max(1), state: Mutex::default() }
    }

    pub(crate) fn stats(&self) -> LruStats {
        let state = self.state.lock();
        LruStats {
            hits: state.hits,
            misses: state.misses,
            written_back: state.written_back,
            runs: state.runs,
        }
    }

    /// Uses a page, which comes from `fetched` if it is not cached.
    fn page<'s>(
        &self,
        state: &'s mut State,
        page: u64,
        fetched: impl FnOnce() -> Result<Box<[u8]>, DeviceError>,
    ) -> Result<&'s mut [u8], DeviceError> {
        state.uses += 1;
        let now = state.uses;
        if let Some(frame) = state.frames.get_mut(&page) {
            state.hits += 1;
            state.order.remove(&frame.used);
            frame.used = now;
        } else {
            state.misses += 1;
            let bytes = fetched()?;
            if state.frames.len() >= self.pages {
                self.evict(state)?;
            }
            state.frames.insert(page, Frame { bytes, used: now });
        }
        state.order.insert(now, page);
        match state.frames.get_mut(&page) {
            Some(frame) => Ok(&mut frame.bytes),
            None => Err(DeviceError::Gone),
        }
    }

    fn evict(&self, state: &mut State) -> Result<(), DeviceError> {
        let oldest = state.order.first_key_value().map(|(_, &page)| page);
        if oldest.is_some_and(|page| state.dirty.contains(&page)) {
            self.write_back(state)?;
        }
        if let Some((_, page)) = state.order.pop_first() {
            state.frames.remove(&page);
        }
        Ok(())
    }

    /// Writes every dirty page, neighbours in one go.
    fn write_back(&self, state: &mut State) -> Result<(), DeviceError> {
        let pages: Vec<u64> = state.dirty.iter().copied().collect();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let mut bytes = Vec::with_capacity(run.len() * PAGE);
            for page in run {
                if let Some(frame) = state.frames.get(page) {
                    bytes.extend_from_slice(&frame.bytes);
                }
            }
            self.backing.write(run[0] * PAGE_U64, &bytes, Fua::No)?;
            state.runs += 1;
        }
        state.written_back += pages.len() as u64;
        state.dirty.clear();
        Ok(())
    }

    /// Reads the bytes from the first to the last missing page of a request.
    fn fetch(&self, state: &State, offset: u64, len: usize) -> Result<Fetched, DeviceError> {
        let absent = || parts(offset, len).filter(|(page, ..)| !state.frames.contains_key(page));
        let (Some((first, ..)), Some((last, ..))) = (absent().next(), absent().last()) else {
            return Ok(Fetched { first: 0, bytes: Vec::new() });
        };
        let pages = usize::try_from(last - first + 1).unwrap_or(0);
        let mut bytes = vec![0; pages * PAGE];
        self.backing.read(first * PAGE_U64, &mut bytes)?;
        Ok(Fetched { first, bytes })
    }

    fn fetch_one(&self, page: u64) -> Result<Box<[u8]>, DeviceError> {
        let mut bytes = vec![0; PAGE];
        self.backing.read(page * PAGE_U64, &mut bytes)?;
        Ok(bytes.into())
    }
}

/// Pages that were read from the backing device.
struct Fetched {
    first: u64,
    bytes: Vec<u8>,
}

impl Fetched {
    fn page(&self, page: u64) -> Option<Box<[u8]>> {
        let at = usize::try_from(page.checked_sub(self.first)?).ok()? * PAGE;
        self.bytes.get(at..at + PAGE).map(Into::into)
    }
}

impl BlockDevice for LruCache {
    fn geometry(&self) -> Geometry {
        self.backing.geometry()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let fetched = self.fetch(&state, offset, out.len())?;
        for (page, start, range) in parts(offset, out.len()) {
            let bytes = self.page(&mut state, page, || match fetched.page(page) {
                Some(bytes) => Ok(bytes),
                // The page was cached, and was evicted for another page of this request.
                None => self.fetch_one(page),
            })?;
            let len = range.len();
            out[range].copy_from_slice(&bytes[start..start + len]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        for (page, start, range) in parts(offset, data.len()) {
            let bytes = self.page(&mut state, page, || match range.len() {
                PAGE => Ok(vec![0; PAGE].into()),
                _ => self.fetch_one(page),
            })?;
            bytes[start..start + range.len()].copy_from_slice(&data[range]);
            state.dirty.insert(page);
        }
        if state.dirty.len() > (self.pages / 10).max(1) || fua == Fua::Yes {
            self.write_back(&mut state)?;
        }
        drop(state);
        if fua == Fua::Yes { self.backing.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.write_back(&mut self.state.lock())?;
        self.backing.flush()
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        self.write_zeroes(offset, len, Hole::Allowed, false, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _: Hole,
        _: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        let len = usize::try_from(len).map_err(|_| DeviceError::OutOfRange {
            offset,
            len,
            size_bytes: u64::MAX,
        })?;
        self.write(offset, &vec![0; len], fua)
    }

    fn status(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, DeviceError> {
        self.backing.status(offset, len, max)
    }

    fn cache(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.backing.cache(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use everbyte_device::MemoryDevice;
    use everbyte_policy::sim::{Kind, Spec, run};
    use everbyte_policy::trace::RequestOp;
    use everbyte_policy::trace::generate::Workload;

    use super::super::stream::Stream;
    use super::*;

    /// Bytes as an array has them, hits as the simulator's LRU has them.
    #[test]
    fn it_is_an_lru_cache() {
        let stream = Stream::generated(Workload::Web, Some(4000)).unwrap();
        let size = usize::try_from(stream.size_bytes()).unwrap();
        let (backing, mut model) = (Arc::new(MemoryDevice::new(size as u64)), vec![0; size]);
        let cache = LruCache::new(Arc::<MemoryDevice>::clone(&backing), 100);
        let mut buffer = vec![0; stream.longest];
        for (request, fill) in stream.requests.iter().zip((1..=u8::MAX).cycle()) {
            let len = usize::try_from(request.len).unwrap();
            let at = usize::try_from(request.offset).unwrap();
            match request.op {
                RequestOp::Read => {
                    cache.read(request.offset, &mut buffer[..len]).unwrap();
                    assert!(buffer[..len] == model[at..at + len]);
                }
                RequestOp::Flush => cache.flush().unwrap(),
                _ => {
                    buffer[..len].fill(fill);
                    cache.write(request.offset, &buffer[..len], Fua::No).unwrap();
                    model[at..at + len].fill(fill);
                }
            }
        }
        let said = run(Kind::Lru, &Spec::new(100).unwrap(), &stream.pages);
        assert_eq!(cache.stats().hits, said.hits());
        assert_eq!(cache.stats().hits + cache.stats().misses, said.accesses());
        cache.flush().unwrap();
        let mut found = vec![0; size];
        backing.read(0, &mut found).unwrap();
        assert!(found == model);
    }
}
