//! A plain LRU cache in DRAM for comparison, with our cache's write-back.
//!
//! As in our cache, one request reads all missing pages, without the lock of hits. Write-back begins at 50% dirty pages and
//! ends at 45%, in the order of sectors, in batches with one flush each. Evicted dirty pages wait in an extra buffer of a
//! sixteenth of the pages. Write-back of the buffer begins at half of it. DRAM is volatile, so a flush must reach the
//! backing device.
//!
//! Invariants: one request at a time uses a page. A page in write-back stays readable here until the backing device has
//! flushed it. No thread waits for another page with the lock held. A failure of the backing device ends the run: the cache
//! does not retry failed writes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole, Passthrough};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Counts;

const PAGE: usize = 4096;
const PAGE_U64: u64 = 4096;

/// Percentages of dirty pages at the begin and the end of write-back, and pages of a batch: as in our cache.
const HIGH_PERCENT: usize = 50;
const LOW_PERCENT: usize = 45;
const BATCH_PAGES: usize = 256;
/// Longest time between two looks for work in the background.
const REST: Duration = Duration::from_millis(100);

type Bytes = Box<[u8]>;

struct Frame {
    bytes: Bytes,
    used: u64,
}

#[derive(Default)]
struct State {
    frames: HashMap<u64, Frame>,
    /// Pages by their last use.
    order: BTreeMap<u64, u64>,
    /// Pages in frames that are newer than the backing device.
    dirty: BTreeSet<u64>,
    /// Evicted pages that are newer than the backing device.
    pending: BTreeMap<u64, Bytes>,
    /// Pages in write-back.
    writing: BTreeMap<u64, Bytes>,
    /// Pages of requests.
    busy: HashSet<u64>,
    /// First page of the next batch.
    hand: u64,
    counts: Counts,
}

/// Pages to write back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// All evicted pages.
    Pending,
    /// The next batch in the order of sectors.
    Sweep,
    /// All pages.
    All,
}

/// A request's bytes.
enum Access<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Access<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Read(bytes) => bytes.len(),
            Self::Write(bytes) => bytes.len(),
        }
    }
}

/// A plain cache in DRAM.
pub(crate) struct LruCache {
    backing: Arc<dyn BlockDevice>,
    pages: usize,
    pending_max: usize,
    state: Mutex<State>,
    /// Notified after a request has released its pages.
    idle: Condvar,
    /// Notified when write-back is due.
    work: Condvar,
    /// Held during write-back.
    writer: Mutex<()>,
}

/// Pages of a request, each with its first byte in the page and its range in the request.
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

impl State {
    /// Returns true if the cache has the newest bytes of a page.
    fn has(&self, page: u64) -> bool {
        self.frames.contains_key(&page)
            || self.pending.contains_key(&page)
            || self.writing.contains_key(&page)
    }

    /// Evicts the least recently used page.
    fn evict(&mut self) {
        let Some((_, page)) = self.order.pop_first() else { return };
        let Some(frame) = self.frames.remove(&page) else { return };
        // Only this copy is newer than the backing device: it must stay readable.
        if self.dirty.remove(&page) {
            self.pending.insert(page, frame.bytes);
        }
    }

    /// Uses a page. An absent page comes from `fetched`.
    fn page(
        &mut self,
        page: u64,
        frames_max: usize,
        fetched: impl FnOnce() -> Result<Bytes, DeviceError>,
    ) -> Result<&mut [u8], DeviceError> {
        self.counts.accesses += 1;
        let now = self.counts.accesses;
        if let Some(frame) = self.frames.get_mut(&page) {
            self.counts.hits += 1;
            self.order.remove(&frame.used);
            frame.used = now;
        } else {
            // Copies of the cache are newer than the bytes from the backing device.
            let bytes = if let Some(bytes) = self.pending.remove(&page) {
                self.dirty.insert(page);
                bytes
            } else if let Some(bytes) = self.writing.get(&page) {
                bytes.clone()
            } else {
                fetched()?
            };
            // Eviction comes last: a failed fetch must not cost another page its frame.
            if self.frames.len() >= frames_max {
                self.evict();
            }
            self.frames.insert(page, Frame { bytes, used: now });
        }
        self.order.insert(now, page);
        match self.frames.get_mut(&page) {
            Some(frame) => Ok(&mut frame.bytes),
            None => Err(DeviceError::Gone),
        }
    }

    /// Copies the next pages to `writing`. They count as clean from now on.
    fn begin(&mut self, work: Work) {
        if work != Work::Sweep {
            self.writing.append(&mut self.pending);
        }
        let pages: Vec<u64> = match work {
            Work::Pending => Vec::new(),
            Work::All => self.dirty.iter().copied().collect(),
            Work::Sweep => {
                let behind = self.dirty.range(..self.hand);
                self.dirty.range(self.hand..).chain(behind).copied().take(BATCH_PAGES).collect()
            }
        };
        if work == Work::Sweep {
            // The next batch continues behind this one, so all sectors get their turn.
            self.hand = pages.last().map_or(0, |page| page + 1);
        }
        for page in pages {
            // A write during the write-back makes the page dirty again.
            self.dirty.remove(&page);
            if let Some(frame) = self.frames.get(&page) {
                self.writing.insert(page, frame.bytes.clone());
            }
        }
    }
}

impl LruCache {
    /// Makes a cache of `pages`, and of one at least, before a backing device of whole pages.
    pub(crate) fn new(backing: Arc<dyn BlockDevice>, pages: usize) -> Self {
        let pages = pages.max(1);
        Self {
            backing,
            pages,
            pending_max: (pages / 16).clamp(4, 4096),
            state: Mutex::default(),
            idle: Condvar::new(),
            work: Condvar::new(),
            writer: Mutex::default(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    fn due(&self, state: &State) -> Option<Work> {
        // A full buffer of evicted pages stops requests, so it comes first.
        if state.pending.len() * 2 >= self.pending_max {
            Some(Work::Pending)
        } else if state.dirty.len() > self.pages * HIGH_PERCENT / 100 {
            Some(Work::Sweep)
        } else {
            None
        }
    }

    /// Does the write-back that a background thread would do now.
    ///
    /// # Errors
    /// The backing device's.
    pub(crate) fn write_back_due(&self) -> Result<(), DeviceError> {
        let Some(work) = self.due(&self.state.lock()) else { return Ok(()) };
        self.write_back(work)?;
        while work == Work::Sweep && self.dirty_pages() > self.pages * LOW_PERCENT / 100 {
            self.write_back(work)?;
        }
        Ok(())
    }

    fn dirty_pages(&self) -> usize {
        self.state.lock().dirty.len()
    }

    /// Writes pages back, with one write for neighbors, and flushes the backing device.
    fn write_back(&self, work: Work) -> Result<(), DeviceError> {
        let _writer = self.writer.lock();
        // Copies leave the lock to requests during the writes.
        let copies: Vec<(u64, Bytes)> = {
            let mut state = self.state.lock();
            state.begin(work);
            state.writing.iter().map(|(page, bytes)| (*page, bytes.clone())).collect()
        };
        let mut runs = 0;
        for run in copies.chunk_by(|a, b| a.0 + 1 == b.0) {
            let bytes: Vec<&[u8]> = run.iter().map(|(_, bytes)| &**bytes).collect();
            self.backing.write(run[0].0 * PAGE_U64, &bytes.concat(), Fua::No)?;
            runs += 1;
        }
        if !copies.is_empty() {
            self.backing.flush()?;
        }
        // Only now may a read of these pages go to the backing device.
        let mut state = self.state.lock();
        state.writing.clear();
        state.counts.written_back += copies.len() as u64;
        state.counts.runs += runs;
        Ok(())
    }

    /// Waits until no request uses these pages, and reserves them.
    fn take(&self, pages: &[u64]) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        // All pages or none: a request with a part of its pages could deadlock with another.
        while pages.iter().any(|page| state.busy.contains(page)) {
            self.idle.wait(&mut state);
        }
        state.busy.extend(pages);
        state
    }

    fn serve(&self, offset: u64, mut access: Access<'_>) -> Result<(), DeviceError> {
        let pages: Vec<u64> = parts(offset, access.len()).map(|(page, ..)| page).collect();
        // Each page of the request can evict a dirty page.
        if self.state.lock().pending.len() + pages.len() > self.pending_max {
            self.write_back(Work::Pending)?;
        }
        let is_read = matches!(access, Access::Read(_));
        let state = self.take(&pages);
        let needed =
            parts(offset, access.len()).filter(|(_, _, range)| is_read || range.len() < PAGE);
        // A write of a whole page needs no old bytes.
        let missing: Vec<u64> =
            needed.map(|(page, ..)| page).filter(|page| !state.has(*page)).collect();
        drop(state);
        let fetched = match (is_read, missing.first(), missing.last()) {
            // One long read seeks once, also with cached pages in between.
            (true, Some(&first), Some(&last)) => self.fetch(first, last),
            _ => missing.iter().try_fold(HashMap::new(), |mut all, &page| {
                all.extend(self.fetch(page, page)?);
                Ok(all)
            }),
        };
        let outcome = fetched.and_then(|fetched| self.apply(offset, &mut access, fetched));
        // A failed request releases its pages too.
        let mut state = self.state.lock();
        for page in &pages {
            state.busy.remove(page);
        }
        self.idle.notify_all();
        if self.due(&state).is_some() {
            self.work.notify_one();
        }
        outcome
    }

    fn apply(
        &self,
        offset: u64,
        access: &mut Access<'_>,
        mut fetched: HashMap<u64, Bytes>,
    ) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        for (page, start, range) in parts(offset, access.len()) {
            let is_replaced = range.len() == PAGE && matches!(access, Access::Write(_));
            let own = fetched.remove(&page);
            let bytes = state.page(page, self.pages, || match own {
                Some(bytes) => Ok(bytes),
                None if is_replaced => Ok(vec![0; PAGE].into()),
                // The cache had the page at the check, and has evicted it since.
                None => Ok(self.fetch(page, page)?.remove(&page).unwrap_or_default()),
            })?;
            let bytes = &mut bytes[start..start + range.len()];
            match access {
                Access::Read(out) => out[range].copy_from_slice(bytes),
                Access::Write(data) => {
                    bytes.copy_from_slice(&data[range]);
                    state.dirty.insert(page);
                }
            }
        }
        Ok(())
    }

    /// Reads the pages `first..=last` by one request.
    fn fetch(&self, first: u64, last: u64) -> Result<HashMap<u64, Bytes>, DeviceError> {
        let pages = usize::try_from(last - first + 1).unwrap_or(0);
        let mut bytes = vec![0; pages * PAGE];
        self.backing.read(first * PAGE_U64, &mut bytes)?;
        Ok((first..=last).zip(bytes.chunks(PAGE).map(Into::into)).collect())
    }
}

/// A thread for write-back. A drop ends it.
pub(crate) struct LruWriter {
    cache: Arc<LruCache>,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LruWriter {
    /// Starts it.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(cache: &Arc<LruCache>) -> Result<Self> {
        let (own, is_stopping) = (Arc::clone(cache), Arc::new(AtomicBool::new(false)));
        let stop = Arc::clone(&is_stopping);
        let run = move || {
            while !stop.load(Ordering::SeqCst) {
                // The requests report the failure. Here the work stays, so the thread waits before it tries again.
                let failed = own.write_back_due().is_err();
                let mut state = own.state.lock();
                if failed || own.due(&state).is_none() && !stop.load(Ordering::SeqCst) {
                    own.work.wait_for(&mut state, REST);
                }
            }
        };
        let thread = std::thread::Builder::new().name("lru-write-back".to_owned()).spawn(run);
        let thread = thread.context("no thread for a writer")?;
        Ok(Self { cache: Arc::clone(cache), is_stopping, thread: Some(thread) })
    }
}

impl Drop for LruWriter {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        {
            // Under the lock, the thread is either before its check of the flag or waiting.
            let _state = self.cache.state.lock();
            self.cache.work.notify_all();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has printed its message.
            let _ = thread.join();
        }
    }
}

impl everbyte_device::Decorator for LruCache {
    type Inner = dyn BlockDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Split;

    fn inner(&self) -> &Self::Inner {
        &*self.backing
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.serve(offset, Access::Read(out))
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.serve(offset, Access::Write(data))?;
        // DRAM is volatile: only a flush of the backing device makes the write durable.
        if fua == Fua::Yes { BlockDevice::flush(self) } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        // Each write-back has flushed its pages, so the dirty and the evicted pages suffice.
        self.write_back(Work::All)
    }

    fn discard(&self, offset: u64, len: u64, fua: Fua) -> Result<(), DeviceError> {
        BlockDevice::write_zeroes(self, offset, len, Hole::Allowed, false, fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        _: Hole,
        _: bool,
        fua: Fua,
    ) -> Result<(), DeviceError> {
        // 64-bit addresses: every length fits.
        let zeroes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        BlockDevice::write(self, offset, &zeroes, fua)
    }
}

#[cfg(test)]
mod tests {
    use everbyte_device::{FaultDevice, MemoryDevice};
    use everbyte_policy::sim::{Kind, Spec, run};
    use everbyte_policy::trace::RequestOp;
    use everbyte_policy::trace::generate::Workload;

    use super::super::stream::Stream;
    use super::*;

    /// The bytes of an array, and the hits of the simulator's LRU.
    #[test]
    fn lru_evicts_least_recently_used() {
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
            cache.write_back_due().unwrap();
            assert!(cache.dirty_pages() <= 50, "writing begins at a half");
        }
        assert!(cache.counts().written_back > 0);
        let said = run(Kind::Lru, &Spec::new(100).unwrap(), &stream.pages);
        assert_eq!(cache.counts().hits, said.hits());
        assert_eq!(cache.counts().accesses, said.accesses());
        cache.flush().unwrap();
        let mut found = vec![0; size];
        backing.read(0, &mut found).unwrap();
        assert!(found == model);
    }

    #[test]
    fn flush_reaches_backing_device_once() {
        let backing = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(2 * PAGE_U64))));
        let cache = LruCache::new(Arc::<FaultDevice>::clone(&backing), 2);
        cache.write(0, &[1; PAGE], Fua::No).unwrap();
        for _ in 0..2 {
            cache.flush().unwrap();
            assert_eq!(backing.requests(), 2, "the page and a flush");
        }
    }

    /// Parallel threads have their own bytes in shared pages, over a small cache with a writer in the background.
    #[test]
    fn concurrent_writes_are_kept() {
        const PAGES: u64 = 64;
        let backing = Arc::new(MemoryDevice::new(PAGES * PAGE_U64));
        let cache = Arc::new(LruCache::new(Arc::<MemoryDevice>::clone(&backing), 8));
        let writer = LruWriter::start(&cache).unwrap();
        std::thread::scope(|scope| {
            for me in 0..4_u64 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(me + 1) | 1;
                    let mut own = vec![0; usize::try_from(PAGES).unwrap()];
                    for value in (1..=u8::MAX).cycle().take(4000) {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let page = random % PAGES;
                        let (at, place) =
                            (page * PAGE_U64 + me * 1000, usize::try_from(page).unwrap());
                        let mut found = [0; 100];
                        cache.read(at, &mut found).unwrap();
                        assert_eq!(found, [own[place]; 100], "page {page} of thread {me}");
                        if random & (1 << 40) == 0 {
                            cache.write(at, &[value; 100], Fua::No).unwrap();
                            own[place] = value;
                        }
                        if value == 9 {
                            cache.flush().unwrap();
                        }
                    }
                    for (page, value) in (0..PAGES).zip(own) {
                        let mut found = [0; 100];
                        cache.read(page * PAGE_U64 + me * 1000, &mut found).unwrap();
                        assert_eq!(found, [value; 100], "page {page} of thread {me}, in the end");
                    }
                });
            }
        });
        drop(writer);
        cache.flush().unwrap();
        let (mut stored, mut cached) = (vec![0; PAGE], vec![0; PAGE]);
        for page in 0..PAGES {
            backing.read(page * PAGE_U64, &mut stored).unwrap();
            cache.read(page * PAGE_U64, &mut cached).unwrap();
            assert!(stored == cached, "page {page}");
        }
    }
}
