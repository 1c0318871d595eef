//! Regions in direct mode: chunks on real mappings, their fault resolver, and the sampler thread
//! for hot chunks.
//!
//! Invariant: a signal handler runs [`DirectResolver::resolve`], `engine` and `remap_memory`. They
//! do not allocate or sleep on a lock, and they access only bytes of claimed chunks of the region.

#![allow(
    unsafe_code,
    reason = "registering for the region's faults, and the contract of their resolver"
)]

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use everbyte_media::{FaultRange, PageFault, ResolveFaults};

use crate::error::RegionError;
use crate::region::backing::Backing;
use crate::region::direct::chunk::{CHUNK, CHUNK_UNITS, ChunkNo};
use crate::region::direct::engine::budget::{Budget, count_mappings, half_of_most};
use crate::region::direct::engine::rounds::{Findings, Round};
use crate::region::direct::engine::{Chunks, DirectSettings, RangeError};
use crate::region::direct::memory::ChunkError;
use crate::region::direct::remap_memory::RemapMemory;
use crate::region::fork_guard::ForkGuard;
use crate::region::stats::{Statistics, add};
use crate::region::threads::spawn;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;
use crate::slots::SlotNo;
use crate::slots::index;
use crate::store::{SwapSpace, UNIT};

/// Maximum time with inaccessible chunks in a round.
const WINDOW: Duration = Duration::from_millis(10);
/// Time between two rounds.
const REST: Duration = Duration::from_millis(30);
/// Time between two rounds if no chunk is accessed or no exchange is possible.
const REST_LONG: Duration = Duration::from_secs(1);
/// Moves take no more than one chunk in so many of the time.
const MOVES_SHARE: u32 = 10;

/// Policy for moves of chunks between DRAM and the store, for a region in direct mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectMode {
    /// A thread of the region periodically makes a few chunks inaccessible, for at most 10 ms, and
    /// measures the time to their first access. Hot chunks in the store and cold ones in DRAM
    /// change places.
    Exchanging,
    /// Chunks stay at the place of their first access, except by
    /// [`Region::prefetch`](crate::Region::prefetch) and
    /// [`Region::set_dram_limit`](crate::Region::set_dram_limit). A chunk never faults after its
    /// first access, so system calls accept its bytes.
    Still,
}

/// A region's chunks and the first failures of faults.
struct DirectResolver {
    chunks: Chunks<RemapMemory>,
    fork_guard: ForkGuard,
    /// The offset of the first unreadable page plus 1, or 0.
    unreadable: AtomicU64,
    /// The offset plus 1 of the first chunk refused for lack of memory or mappings, or 0.
    refused: AtomicU64,
}

impl DirectResolver {
    fn note(noted: &AtomicU64, offset: u64) {
        let _first_wins = noted.compare_exchange(0, offset + 1, SeqCst, SeqCst);
    }
}

// SAFETY: `fault` moves chunks and by contract does not allocate, lock or panic; reading the clock
// and the fork guard needs neither. Of the region it accesses only bytes of claimed chunks, which
// are accessible to the thread with the claim.
unsafe impl ResolveFaults for DirectResolver {
    fn resolve(&self, fault: PageFault) -> bool {
        // A forked child does not have this memory. Any mapping there belongs to the child.
        if !self.fork_guard.is_here() {
            return false;
        }
        let offset = fault.address.wrapping_sub(self.chunks.memory.base().addr()) as u64;
        let at = ChunkNo(offset / CHUNK);
        if at.0 >= self.chunks.len() {
            return false;
        }
        if !fault.is_forbidden {
            // The store's memory is not there, or has failed.
            Self::note(&self.unreadable, offset / UNIT as u64 * UNIT as u64);
            return false;
        }
        let start = Instant::now();
        let done = self.chunks.fault(at, fault.is_store);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&self.chunks.counters.fault_ns, ns);
        if done.is_err() {
            Self::note(&self.refused, at.0 * CHUNK);
        }
        done.is_ok()
    }
}

/// A region in direct mode.
pub(crate) struct DirectRegion {
    /// Declared first, hence dropped first: no fault reaches dropped chunks.
    faults: Option<FaultRange>,
    sampler: Option<Sampler>,
    shared: Arc<DirectResolver>,
}

/// Settings of a region in direct mode.
#[derive(Clone, Copy)]
pub(crate) struct DirectOptions {
    pub(crate) mode: DirectMode,
    /// Maximum number of mappings of the process for moves of chunks; half of the system's limit if
    /// `None`.
    pub(crate) mappings_max: Option<u64>,
    /// The region's thread calls this first.
    pub(crate) thread_start: fn(),
}

impl DirectRegion {
    /// Maps `units` units with at most `limit` in DRAM, on the store of `space`. Searches for slots
    /// start at `slot_hint`.
    pub(crate) fn start(
        units: u64,
        limit: u64,
        slot_hint: SlotNo,
        space: &Arc<SwapSpace>,
        options: DirectOptions,
    ) -> Result<Self, RegionError> {
        let memory = RemapMemory::map(units.div_ceil(CHUNK_UNITS), Arc::clone(space));
        let memory = memory.map_err(RegionError::io("map the region"))?;
        let bound = options.mappings_max.unwrap_or_else(half_of_most);
        let budget = Budget::new(bound, count_mappings);
        let limit = limit / CHUNK_UNITS;
        let settings = DirectSettings { units, limit, slot_hint };
        let chunks = Chunks::new(memory, Arc::clone(&space.slots), budget, &settings);
        let shared = Arc::new(DirectResolver {
            chunks,
            fork_guard: ForkGuard::here()
                .map_err(RegionError::io("map a page zeroed at a fork"))?,
            unreadable: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let mut direct = Self { faults: None, sampler: None, shared };
        direct.faults = Some(direct.register()?);
        if options.mode == DirectMode::Exchanging {
            direct.sampler = Some(Sampler::start(&direct.shared, options.thread_start)?);
        }
        Ok(direct)
    }

    fn register(&self) -> Result<FaultRange, RegionError> {
        let chunks = &self.shared.chunks;
        let (base, len) = (chunks.memory.base().addr(), index(chunks.len() * CHUNK));
        // SAFETY: an `Arc` of this struct owns the resolver and outlives the range, which is
        // dropped first. Code with access to the region's bytes borrows the region, or promises to
        // keep it alive.
        let range =
            unsafe { FaultRange::register_forbidding(base, len, Arc::as_ptr(&self.shared)) };
        range.map_err(RegionError::io("handle SIGSEGV"))?.ok_or(RegionError::TooMany)
    }
}

impl Backing for DirectRegion {
    fn base(&self) -> *mut u8 {
        self.shared.chunks.memory.base()
    }

    fn is_here(&self) -> bool {
        self.shared.fork_guard.is_here()
    }

    /// One run more than the chunks without DRAM: an exchange of two chunks needs a free run.
    fn slots_needed(&self, units: u64, limit: u64) -> u64 {
        direct_slots_needed(units, limit)
    }

    fn prefetch(&self, run: UnitRun) -> Result<u64, RegionError> {
        self.shared.chunks.prefetch(run).map_err(region_error)
    }

    fn pin(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.chunks.pin(run).map_err(region_error)
    }

    fn unpin(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.chunks.unpin(run).map_err(region_error)
    }

    fn discard(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.chunks.discard(run).map_err(region_error)
    }

    fn units_paged_by(&self, slots: u64, limit: u64) -> u64 {
        slots + limit
    }

    fn units_used(&self) -> u64 {
        0
    }

    fn close(&self, _: UnitRun) -> Result<(), RegionError> {
        Err(RegionError::NotDirect { what: "close units" })
    }

    fn open(&self, _: UnitRun) -> Result<(), RegionError> {
        Err(RegionError::NotDirect { what: "open units" })
    }

    fn set_limit(&self, units: u64) -> Result<(), RegionError> {
        self.shared.chunks.set_limit(units / CHUNK_UNITS);
        Ok(())
    }

    fn fork_begins(&self, _run: UnitRun) -> Result<(), RegionError> {
        Err(RegionError::NotDirect { what: "share its memory with a forked child" })
    }

    fn fork_ended(&self) -> Result<(), RegionError> {
        Ok(())
    }

    fn units_stored(&self, run: UnitRun) -> u64 {
        self.shared.chunks.units_direct(run)
    }

    fn statistics(&self) -> Statistics {
        self.shared.chunks.statistics()
    }

    fn check(&self) -> Result<(), RegionError> {
        let offset = |noted: &AtomicU64| noted.load(SeqCst).checked_sub(1);
        if self.shared.chunks.has_failed() {
            return Err(RegionError::StoreFailed);
        }
        if let Some(offset) = offset(&self.shared.unreadable) {
            return Err(RegionError::Unreadable { offset });
        }
        if let Some(offset) = offset(&self.shared.refused) {
            return Err(RegionError::NoMemory { offset });
        }
        if self.shared.chunks.is_full() { Err(RegionError::StoreFull) } else { Ok(()) }
    }
}

impl Drop for DirectRegion {
    fn drop(&mut self) {
        // The sampler and faults use the chunks, so they end before the mappings are removed.
        self.sampler = None;
        self.faults = None;
        // Other regions may get the runs only after this region's mappings are removed.
        self.shared.chunks.memory.unmap();
        self.shared.chunks.free_runs();
    }
}

/// Number of slots that guarantees a free run to a region of `units` units.
pub(crate) fn direct_slots_needed(units: u64, limit: u64) -> u64 {
    let (chunks, limit) = (units.div_ceil(CHUNK_UNITS), limit / CHUNK_UNITS);
    let spare = u64::from(limit > 0);
    if chunks <= limit { 0 } else { (chunks - limit + spare) * CHUNK_UNITS }
}

fn region_error(error: RangeError) -> RegionError {
    let offset = |at: ChunkNo| at.0 * CHUNK;
    match error {
        RangeError::Chunk(at, ChunkError::Refused) => RegionError::NoMemory { offset: offset(at) },
        RangeError::Chunk(at, ChunkError::Unreadable) => {
            RegionError::Unreadable { offset: offset(at) }
        }
        RangeError::Chunk(_, ChunkError::StoreFailed) => RegionError::StoreFailed,
        RangeError::Pinned(UnitNo(at)) => RegionError::Pinned { offset: at * UNIT as u64 },
        RangeError::BadPin(at) => RegionError::BadPin { offset: offset(at) },
    }
}

/// The thread of the rounds; it ends when this is dropped.
struct Sampler {
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Sampler {
    fn start(shared: &Arc<DirectResolver>, thread_start: fn()) -> Result<Self, RegionError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, until) = (Arc::clone(shared), Arc::clone(&stop));
        let run = move |_: &[BorrowedFd<'_>]| run_rounds(&shared.chunks, &until);
        let handle = spawn("sampler", &[], thread_start, run)?;
        Ok(Self { stop, handle: Some(handle) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            // The result of a panicked thread has no use here.
            let _ended = handle.join();
        }
    }
}

fn run_rounds(chunks: &Chunks<RemapMemory>, stop: &AtomicBool) {
    let mut round = Round::new(chunks.memory.base().addr() as u64);
    let mut rest = REST;
    while !stop.load(SeqCst) {
        std::thread::park_timeout(rest);
        // Rounds without a result become rare, because each watched chunk can cost a fault.
        let longer = (rest * 2).min(REST_LONG);
        if stop.load(SeqCst) || !chunks.begin_round(&mut round) {
            rest = longer;
            continue;
        }
        std::thread::park_timeout(WINDOW);
        let start = Instant::now();
        let window_ns = u64::try_from(WINDOW.as_nanos()).unwrap_or(u64::MAX);
        let findings = chunks.end_round(&mut round, window_ns);
        rest = match findings {
            Findings { is_refused: true, .. } => REST_LONG,
            Findings { touched: 0, .. } => longer,
            // A round with moves is followed by a rest in proportion to its time.
            Findings { moves: 1.., .. } => (start.elapsed() * (MOVES_SHARE - 1)).max(REST),
            _ => REST,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::store::FileStore;

    #[test]
    fn slots_needed_include_run_for_exchange() {
        assert_eq!(direct_slots_needed(4 * CHUNK_UNITS, 4 * CHUNK_UNITS), 0);
        assert_eq!(direct_slots_needed(4 * CHUNK_UNITS, 3 * CHUNK_UNITS), 2 * CHUNK_UNITS);
        assert_eq!(direct_slots_needed(4 * CHUNK_UNITS, 3 * CHUNK_UNITS - 1), 3 * CHUNK_UNITS);
        assert_eq!(direct_slots_needed(4 * CHUNK_UNITS, 0), 4 * CHUNK_UNITS, "nothing moves");
        assert_eq!(direct_slots_needed(1, 0), CHUNK_UNITS);
    }

    /// Threads store to their own words while other threads move, watch and pin the chunks.
    #[test]
    fn contents_hold_during_chunk_moves() {
        const CHUNKS: u64 = 4;
        const THREADS: u64 = 3;
        const MOVES: usize = 200;
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = FileStore::create(&directory.path().join("store"), 4 * CHUNK).unwrap();
        let space = SwapSpace::new(store);
        let options =
            DirectOptions { mode: DirectMode::Still, mappings_max: None, thread_start: || {} };
        let (units, limit) = (CHUNKS * CHUNK_UNITS, 2 * CHUNK_UNITS);
        let direct = DirectRegion::start(units, limit, SlotNo(0), &space, options).unwrap();
        let (base, chunks) = (direct.base().expose_provenance(), &direct.shared.chunks);
        let stop = AtomicBool::new(false);
        let run = |me: u64| {
            let mut random = SmallRng::seed_from_u64(me);
            // Few words: each is checked again after its chunk has moved.
            let mut stored = vec![0u64; 1024];
            let word = |nth: usize| {
                let at = nth * index(CHUNKS * CHUNK) / 1024 + 8 * index(me);
                // SAFETY: an aligned word of the region, which outlives the threads; all accesses
                // to words are atomic.
                unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(base + at)) }
            };
            while !stop.load(SeqCst) {
                let nth = random.random_range(0..stored.len());
                assert_eq!(word(nth).load(SeqCst), stored[nth], "word {nth} of thread {me}");
                stored[nth] += me + 1;
                word(nth).fetch_add(me + 1, SeqCst);
            }
            for (nth, stored) in stored.into_iter().enumerate() {
                assert_eq!(word(nth).load(SeqCst), stored, "word {nth} of thread {me}");
            }
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|me| drop(scope.spawn(move || run(me))));
            let mut random = SmallRng::seed_from_u64(99);
            for _ in 0..MOVES {
                let at = ChunkNo(random.random_range(0..CHUNKS));
                match random.random_range(0..6) {
                    0 | 1 => drop(chunks.demote(at).unwrap()),
                    2 | 3 => drop(chunks.promote(at).unwrap()),
                    4 => {
                        chunks.watch(at, 0);
                        std::thread::yield_now();
                        chunks.unwatch(at);
                    }
                    _ => {
                        let run = UnitRun { first: UnitNo(at.0 * CHUNK_UNITS), units: CHUNK_UNITS };
                        chunks.pin(run).unwrap();
                        assert_eq!(chunks.demote(at), Ok(false));
                        chunks.unpin(run).unwrap();
                    }
                }
            }
            stop.store(true, SeqCst);
        });
        let statistics = direct.statistics();
        assert!(statistics.units_in > 0 && statistics.units_out > 0, "{statistics:?}");
        drop(direct);
        assert_eq!(space.slots_free(), space.slots(), "runs are missing");
    }
}
