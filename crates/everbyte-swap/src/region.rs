//! Regions: program memory that pages to a store.

#![allow(unsafe_code, reason = "lending the region's bytes, and leaving them to forked children")]

mod backing;
mod direct;
mod fork_guard;
mod paged;
mod stats;
mod threads;
mod units;

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use everbyte_media::BlockedSignals;

use crate::error::RegionError;
use crate::slots::SlotNo;
use crate::slots::index;
use crate::store::{SwapSpace, UNIT};
use backing::Backing;
use direct::region::{DirectOptions, DirectRegion, direct_slots_needed};
use paged::engine::{LIMIT_MIN, PagerOptions, WINDOW, slots_needed};
use paged::region::PagedRegion;
use paged::threads::Workers;
use paged::uffd::{Delivery, OpenFailure, Uffd};
use paged::uffd_memory::UffdMemory;
use units::UnitNo;
use units::UnitRun;

pub use direct::region::DirectMode;
pub use stats::Statistics;

const UNIT_BYTES: u64 = UNIT as u64;

/// Resolver of a region's faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultMode {
    /// The faulting thread resolves its fault in a handler of SIGBUS. This mode is the fastest and
    /// needs no privilege.
    ///
    /// A system call fails with EFAULT, or processes fewer bytes, if its buffer is not in DRAM. The
    /// same holds for a system call with a store to a write-protected page. Pin such buffers. A
    /// fault on a thread with SIGBUS blocked kills the process. The handler runs on the thread's
    /// alternate stack if one is set, else on its own stack. 8 KiB of alternate stack are enough.
    #[default]
    Sigbus,
    /// Threads of the region resolve faults. System calls accept any bytes of the region. Needs
    /// CAP_SYS_PTRACE, access to /dev/userfaultfd, or vm.unprivileged_userfaultfd=1.
    Transparent {
        /// Number of threads resolving faults, at least 1.
        handlers: usize,
    },
}

/// Options of a region. The default resolves faults in the faulting thread, tracks stores, and
/// reads up to 16 units ahead on streams.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RegionOptions {
    fault_mode: FaultMode,
    read_ahead: u64,
    tracks_stores: bool,
    reserves: bool,
    direct: Option<DirectMode>,
    mappings_max: Option<u64>,
    thread_start: fn(),
    on_failure: fn(&RegionError),
    more_slots: Option<fn(u64, bool) -> bool>,
}

impl Default for RegionOptions {
    fn default() -> Self {
        Self {
            fault_mode: FaultMode::Sigbus,
            read_ahead: WINDOW,
            tracks_stores: true,
            reserves: true,
            direct: None,
            mappings_max: None,
            thread_start: || {},
            on_failure: |_| {},
            more_slots: None,
        }
    }
}

impl RegionOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the resolver of faults.
    pub fn fault_mode(mut self, mode: FaultMode) -> Self {
        self.fault_mode = mode;
        self
    }

    /// Sets the number of units filled together, clamped to 1 to 16, if faults pass through the
    /// region by equal steps. 1 disables read-ahead.
    pub fn read_ahead(mut self, units: u64) -> Self {
        self.read_ahead = units.clamp(1, WINDOW);
        self
    }

    /// Tracks stores if true: pages filled for a load are write-protected while more than two
    /// thirds of the protected pages never see a store. The region evicts such pages without a
    /// copy. If false, no page is write-protected: the first store takes no fault, and every
    /// evicted page is copied. Use false for stores nearly as fast as DRAM.
    pub fn tracks_stores(mut self, tracks: bool) -> Self {
        self.tracks_stores = tracks;
        self
    }

    /// Calls `call` first on each of the region's threads: for allocators with memory in the
    /// region, because these threads must not use it.
    pub fn thread_start(mut self, call: fn()) -> Self {
        self.thread_start = call;
        self
    }

    /// Calls `call` on a thread of the region when [`Region::check`] starts to fail, once for each
    /// kind of failure: for programs without a call of `check`. The thread has no descriptors of
    /// the program, not even standard error. In direct mode the region never calls it.
    pub fn on_failure(mut self, call: fn(&RegionError)) -> Self {
        self.on_failure = call;
        self
    }

    /// Calls `call` with a number of slots, on a thread of the region, when the space runs short of
    /// slots: for a space that [grows](SwapSpace::grow) on demand. `call` adds slots and returns
    /// true, or false without more slots. The second argument is true if a fault waits for a slot;
    /// after a false answer the region exceeds its DRAM limit. `call` must not use the region. In
    /// direct mode the region never calls it.
    pub fn more_slots(mut self, call: fn(u64, bool) -> bool) -> Self {
        self.more_slots = Some(call);
        self
    }

    /// Maps units outside DRAM directly from the store's memory, in chunks of 2 MiB, instead of
    /// paging by 4 KiB. Loads and stores access the store without a fault after the first access of
    /// a chunk. The store must be a file or leases of byte-addressable memory. Read-ahead and store
    /// tracking have no effect.
    ///
    /// New chunks are in DRAM while the limit allows it. Any limit is valid, including 0; it is
    /// rounded down to a multiple of 2 MiB. A system call fails with EFAULT, or processes fewer
    /// bytes, if its buffer lies in a chunk never accessed, watched or in a move. Pin such buffers:
    /// a pin keeps whole chunks in place, in DRAM or not, without a bound on their number. A fault
    /// on a thread with SIGSEGV blocked kills the process.
    pub fn direct(mut self, mode: DirectMode) -> Self {
        self.direct = Some(mode);
        self
    }

    /// Sets the maximum number of mappings of the process for moves of chunks in direct mode; half
    /// of `vm.max_map_count` by default. Above it no chunk moves, and [`Statistics::moves_refused`]
    /// counts the skipped moves.
    pub fn mappings_max(mut self, mappings: u64) -> Self {
        self.mappings_max = Some(mappings);
        self
    }

    /// Number of threads resolving faults; 0 if the faulting thread does it.
    fn handlers(&self) -> usize {
        match self.fault_mode {
            FaultMode::Sigbus => 0,
            FaultMode::Transparent { handlers } => handlers.max(1),
        }
    }

    /// Reserves slots for the whole region at its mapping if true. If false, the caller reserves
    /// with [`Region::reserve`]: for a region used only as far as slots exist.
    pub fn reserves(mut self, reserves: bool) -> Self {
        self.reserves = reserves;
        self
    }
}

/// Memory that pages to the slots of a [`SwapSpace`]. Its DRAM use stays within a limit.
///
/// A new region reads as zeroes. A forked child does not have the memory: an access there ends in
/// SIGSEGV, never in zeroes, a drop there does nothing, and methods that move pages fail.
/// [`fork_begins`](Self::fork_begins) shares the region with a child. The program must not use
/// `madvise`, `mremap`, `munmap` or `mprotect` on the region, except an `mprotect` that keeps read
/// access.
///
/// If the store is full or has failed, no bytes are lost: the region uses DRAM beyond the limit,
/// and [`check`](Self::check) reports it. While a method moves pages, its thread blocks all signals
/// except faults, so handlers may access the region. An access ends in SIGBUS if the page's slot is
/// unreadable, or if the region's userfaultfd was closed.
pub struct Region {
    /// Dropped by this process alone.
    backing: ManuallyDrop<Box<dyn Backing>>,
    space: Arc<SwapSpace>,
    bytes: u64,
    reserved: Mutex<u64>,
    process: u32,
}

impl Region {
    /// Maps `bytes` bytes, a positive multiple of 4096, with at most `dram_limit` bytes in DRAM.
    /// Outside direct mode the limit is at least 256 KiB. Reserves slots in `space` for the rest
    /// and a small margin.
    ///
    /// # Errors
    /// `BadLength`, `LimitTooLow`, `SpaceTooSmall`; `Forbidden` and `Unsupported` without a
    /// userfaultfd; `NotMappable` and `NotDirect` in direct mode, because it has no transparent
    /// faults; `TooMany`; `Io`.
    pub fn map(
        bytes: u64,
        dram_limit: u64,
        space: &Arc<SwapSpace>,
        options: &RegionOptions,
    ) -> Result<Self, RegionError> {
        if let Some(mode) = options.direct {
            return Self::map_direct(bytes, dram_limit, space, options, mode);
        }
        let handlers = checked_handlers(bytes, dram_limit, options)?;
        let pages = UffdMemory::map(index(bytes), open_uffd(handlers)?, Arc::clone(space));
        let pages = pages.map_err(RegionError::io("map the region"))?;
        Self::map_paged(pages, bytes, &[], dram_limit, space, options)
    }

    /// As [`map`](Self::map), with existing memory as the first part, such as a program's
    /// variables: `existing` begins at a multiple of 64 KiB. Its contents stay. The rest is mapped
    /// behind it, where no mapping may exist. Dropping the region unmaps all of it. On failure
    /// `existing` is unchanged, except that it may have lost large pages.
    ///
    /// # Errors
    /// As [`map`](Self::map); `Misaligned` unless `existing` starts at such an address and has
    /// whole units; `BadLength` if it is longer than the region; `NotDirect` in direct mode.
    ///
    /// # Safety
    /// `existing` is private anonymous memory, readable and writable, with exposed addresses. Only
    /// the region changes its mapping from now on, and no other thread uses it during this call.
    pub unsafe fn map_over(
        existing: Range<usize>,
        bytes: u64,
        dram_limit: u64,
        space: &Arc<SwapSpace>,
        options: &RegionOptions,
    ) -> Result<Self, RegionError> {
        if options.direct.is_some() {
            return Err(RegionError::NotDirect { what: "begin with existing memory" });
        }
        let handlers = checked_handlers(bytes, dram_limit, options)?;
        let (start, end) = (existing.start as u64, existing.end as u64);
        if !start.is_multiple_of(UNIT_BYTES * WINDOW) || !end.is_multiple_of(UNIT_BYTES) {
            return Err(RegionError::Misaligned { start, end });
        }
        if existing.is_empty() || end - start > bytes {
            return Err(RegionError::BadLength { bytes });
        }
        let uffd = open_uffd(handlers)?;
        // SAFETY: the caller's promise.
        let pages = unsafe { UffdMemory::over(&existing, index(bytes), uffd, Arc::clone(space)) };
        let pages = pages.map_err(RegionError::io("map the region behind existing memory"))?;
        let present = pages.present(existing.len());
        let present = present.map_err(RegionError::io("find the present pages"))?;
        Self::map_paged(pages, bytes, &present, dram_limit, space, options)
    }

    fn map_direct(
        bytes: u64,
        dram_limit: u64,
        space: &Arc<SwapSpace>,
        options: &RegionOptions,
        mode: DirectMode,
    ) -> Result<Self, RegionError> {
        check_length(bytes)?;
        if options.fault_mode != FaultMode::Sigbus {
            return Err(RegionError::NotDirect { what: "resolve faults in other threads" });
        }
        if !space.store().is_mappable() || !space.slots.aligns_runs() {
            return Err(RegionError::NotMappable);
        }
        let (units, limit) = (bytes / UNIT_BYTES, dram_limit / UNIT_BYTES);
        let (thread_start, mappings_max) = (options.thread_start, options.mappings_max);
        let needed = if options.reserves { direct_slots_needed(units, limit) } else { 0 };
        Self::start(bytes, needed, space, |slot_hint| {
            let options = DirectOptions { mode, mappings_max, thread_start };
            Ok(Box::new(DirectRegion::start(units, limit, slot_hint, space, options)?))
        })
    }

    /// Maps a region of `pages`. The units in `present` have pages.
    fn map_paged(
        pages: UffdMemory,
        bytes: u64,
        present: &[UnitNo],
        dram_limit: u64,
        space: &Arc<SwapSpace>,
        options: &RegionOptions,
    ) -> Result<Self, RegionError> {
        let (units, limit) = (bytes / UNIT_BYTES, dram_limit / UNIT_BYTES);
        let needed = if options.reserves { slots_needed(units, limit) } else { 0 };
        let RegionOptions { thread_start, on_failure, more_slots, .. } = *options;
        let handlers = options.handlers();
        let workers = Workers { handlers, thread_start, on_failure, more_slots };
        Self::start(bytes, needed, space, |slot_hint| {
            let pager_options = PagerOptions {
                limit,
                slot_hint,
                read_ahead: options.read_ahead,
                tracks_stores: options.tracks_stores,
                grows: options.more_slots.is_some(),
            };
            let slots = &space.slots;
            Ok(Box::new(PagedRegion::start(pages, units, present, slots, &pager_options, workers)?))
        })
    }

    /// Reserves slots and builds a region from the result of `start`, called with the first slot to
    /// search.
    fn start(
        bytes: u64,
        needed: u64,
        space: &Arc<SwapSpace>,
        start: impl FnOnce(SlotNo) -> Result<Box<dyn Backing>, RegionError>,
    ) -> Result<Self, RegionError> {
        let before = space.reserve(needed);
        let before = before.map_err(|free| RegionError::SpaceTooSmall { needed, free })?;
        match start(SlotNo(before)) {
            Ok(backing) => Ok(Self {
                backing: ManuallyDrop::new(backing),
                space: Arc::clone(space),
                bytes,
                reserved: Mutex::new(needed),
                process: std::process::id(),
            }),
            Err(error) => {
                space.release(needed);
                Err(error)
            }
        }
    }

    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// False: no region is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte, aligned to 64 KiB (in direct mode to 2 MiB), for code with its own rules for
    /// sharing the region among threads. Valid in this process, not in forked children, until the
    /// region is dropped.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.backing.base()
    }

    /// The region's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped while the region lives, with zeroes at first. Pages are
        // removed and restored, but only the holder of a `&mut` of the region, or of its pointer
        // under the caller's rules, changes their bytes.
        unsafe { std::slice::from_raw_parts(self.as_mut_ptr(), index(self.bytes)) }
    }

    /// The region's bytes, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and the region is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), index(self.bytes)) }
    }

    /// Brings bytes into DRAM early (will-need), from the start of the range as far as the DRAM
    /// limit allows. Returns the number of bytes of whole units in DRAM.
    ///
    /// # Errors
    /// `OutOfRange`, `Unreadable`, `NoMemory`, `DescriptorLost`, `ForkedChild`.
    pub fn prefetch(&self, range: Range<u64>) -> Result<u64, RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        Ok(self.backing.prefetch(run)? * UNIT_BYTES)
    }

    /// Brings every unit of the range into DRAM, writable, and keeps it there until the caller has
    /// unpinned it as often: for buffers of system calls or devices.
    ///
    /// # Errors
    /// `OutOfRange`; `TooMuchPinned` beyond three quarters of the DRAM limit; `BadPin`;
    /// `Unreadable`, `NoMemory`, `DescriptorLost`, `ForkedChild`. On failure the pins are
    /// unchanged.
    pub fn pin(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.pin(run)
    }

    /// Takes back one [`pin`](Self::pin) of the same range.
    ///
    /// # Errors
    /// `OutOfRange`, `ForkedChild`; `BadPin` if a part is not pinned. On failure the pins are
    /// unchanged.
    pub fn unpin(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.unpin(run)
    }

    /// Sets whole units to zero and frees their DRAM and slots (dont-need).
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`, `ForkedChild`: no unit is changed. `Pinned`: no unit is changed
    /// unless another thread pins during the call. `DescriptorLost`, `Locked`, `Io`: some units may
    /// be unchanged.
    pub fn discard(&mut self, range: Range<u64>) -> Result<(), RegionError> {
        // SAFETY: the region is borrowed mutably, so no references into it exist.
        unsafe { self.discard_shared(range) }
    }

    /// As [`discard`](Self::discard), for regions shared by their pointer.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// No references into the range exist, and no code relies on its contents.
    pub unsafe fn discard_shared(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        if !(range.start.is_multiple_of(UNIT_BYTES) && range.end.is_multiple_of(UNIT_BYTES)) {
            return Err(RegionError::Misaligned { start: range.start, end: range.end });
        }
        let _no_signals = BlockedSignals::new();
        self.backing.discard(run)
    }

    /// As [`discard_shared`](Self::discard_shared), and no fault fills the range until
    /// [`open`](Self::open): for a range without access, such as unmapped memory. The caller removes
    /// the access after this call, because an access repeats its fault until then.
    ///
    /// # Errors
    /// As there; `NotDirect` in direct mode.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn close_shared(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        if !(range.start.is_multiple_of(UNIT_BYTES) && range.end.is_multiple_of(UNIT_BYTES)) {
            return Err(RegionError::Misaligned { start: range.start, end: range.end });
        }
        let _no_signals = BlockedSignals::new();
        self.backing.close(run)
    }

    /// Lets faults fill the closed units of a range again. They hold zeroes.
    ///
    /// # Errors
    /// `OutOfRange`, `ForkedChild`; `NotDirect` in direct mode.
    pub fn open(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.open(run)
    }

    /// Changes the DRAM limit. Minimum: 256 KiB and four thirds of the pinned bytes. The region
    /// reaches a lower limit gradually and reserves more slots for it. A higher limit keeps the
    /// reserved slots.
    ///
    /// # Errors
    /// `LimitTooLow`, `SpaceTooSmall`, `ForkedChild`: the limit is unchanged.
    pub fn set_dram_limit(&mut self, bytes: u64) -> Result<(), RegionError> {
        self.check_here()?;
        let limit = bytes / UNIT_BYTES;
        let needed = self.backing.slots_needed(self.bytes / UNIT_BYTES, limit);
        let more = self.reserve_slots(needed)?;
        let _no_signals = BlockedSignals::new();
        if let Err(error) = self.backing.set_limit(limit) {
            self.release_slots(more);
            return Err(match error {
                RegionError::LimitTooLow { least, .. } => {
                    RegionError::LimitTooLow { limit: bytes, least }
                }
                error => error,
            });
        }
        Ok(())
    }

    /// Reserves slots for the use of any `bytes` bytes of the region, in addition to the reserved
    /// ones. The space may have to [grow](SwapSpace::grow) first.
    ///
    /// # Errors
    /// `SpaceTooSmall`: the earlier reservation is unchanged.
    pub fn reserve(&self, bytes: u64) -> Result<(), RegionError> {
        let limit = self.backing.statistics().units_limit;
        let needed = self.backing.slots_needed(bytes.div_ceil(UNIT_BYTES), limit);
        self.reserve_slots(needed).map(|_| ())
    }

    /// Bytes with contents, in DRAM or in slots; 0 in direct mode.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        self.backing.units_used() * UNIT_BYTES
    }

    /// Number of bytes with contents that page with `slots` slots.
    #[must_use]
    pub fn bytes_paged_by(&self, slots: u64) -> u64 {
        let limit = self.backing.statistics().units_limit;
        self.backing.units_paged_by(slots, limit) * UNIT_BYTES
    }

    /// Reserves slots until there are `needed`, and returns how many came to it.
    fn reserve_slots(&self, needed: u64) -> Result<u64, RegionError> {
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let more = needed.saturating_sub(*reserved);
        let added = self.space.reserve(more);
        added.map_err(|free| RegionError::SpaceTooSmall { needed: more, free })?;
        *reserved += more;
        Ok(more)
    }

    fn release_slots(&self, slots: u64) {
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) -= slots;
        self.space.release(slots);
    }

    /// Brings all of `range` into DRAM and keeps it there, beyond the limit if necessary. A child
    /// forked afterwards has the whole region as ordinary memory without paging. Bytes in slots
    /// outside `range` read as zeroes in the child.
    ///
    /// To be followed by [`fork_ended`](Self::fork_ended) in this process; the child must leave the
    /// region alone, also not drop it, and use its bytes only. Threads may do so at the same time: children have the
    /// region until the last fork has ended.
    ///
    /// # Errors
    /// `OutOfRange`, `Unreadable`, `NoMemory`, `DescriptorLost`, `Io`, `ForkedChild`, and
    /// `NotDirect` in direct mode: a child does not have the region, and nothing is changed.
    pub fn fork_begins(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.fork_begins(run)
    }

    /// Ends the effect of one [`fork_begins`](Self::fork_begins), in the region's process.
    ///
    /// # Errors
    /// `Io`: children forked later have the region without the bytes in slots. `ForkedChild`.
    pub fn fork_ended(&self) -> Result<(), RegionError> {
        self.check_here()?;
        // A handler of this thread's may fork, too.
        let _no_signals = BlockedSignals::new();
        self.backing.fork_ended()
    }

    /// Bytes of `range` only in slots, rounded out to units.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn bytes_stored(&self, range: Range<u64>) -> Result<u64, RegionError> {
        Ok(self.backing.units_stored(self.covering(&range)?) * UNIT_BYTES)
    }

    /// Counters since the mapping of the region, and its present contents.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.backing.statistics()
    }

    /// Checks that the region can page.
    ///
    /// # Errors
    /// `DescriptorLost`, `StoreFailed`, `Locked`, `Unreadable` with the first offset unreadable in
    /// a fault, or `StoreFull`, possibly temporary.
    pub fn check(&self) -> Result<(), RegionError> {
        self.backing.check()
    }

    fn check_here(&self) -> Result<(), RegionError> {
        if self.backing.is_here() { Ok(()) } else { Err(RegionError::ForkedChild) }
    }

    /// The units of a range, in the region's process.
    fn to_move(&self, range: &Range<u64>) -> Result<UnitRun, RegionError> {
        self.check_here()?;
        self.covering(range)
    }

    /// The units of a range, rounded out.
    fn covering(&self, range: &Range<u64>) -> Result<UnitRun, RegionError> {
        let (start, end) = (range.start, range.end);
        if start > end || end > self.bytes {
            return Err(RegionError::OutOfRange { start, end, len: self.bytes });
        }
        let first = start / UNIT_BYTES;
        let units = if start == end { 0 } else { end.div_ceil(UNIT_BYTES) - first };
        Ok(UnitRun { first: UnitNo(first), units })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a forked child there are neither threads to end nor memory to unmap, and the slots
            // are the parent's.
            return;
        }
        // SAFETY: dropped only here, and unused afterwards.
        unsafe { ManuallyDrop::drop(&mut self.backing) };
        let reserved = *self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        self.space.release(reserved);
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("bytes", &self.bytes)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// The number of threads resolving faults, after the check of length and limit.
fn checked_handlers(
    bytes: u64,
    dram_limit: u64,
    options: &RegionOptions,
) -> Result<usize, RegionError> {
    check_length(bytes)?;
    if dram_limit / UNIT_BYTES < LIMIT_MIN {
        let least = LIMIT_MIN * UNIT_BYTES;
        return Err(RegionError::LimitTooLow { limit: dram_limit, least });
    }
    Ok(options.handlers())
}

fn check_length(bytes: u64) -> Result<(), RegionError> {
    let is_whole = bytes > 0 && bytes.is_multiple_of(UNIT_BYTES);
    if !is_whole || bytes > isize::MAX as u64 / 2 {
        return Err(RegionError::BadLength { bytes });
    }
    Ok(())
}

fn open_uffd(handlers: usize) -> Result<Uffd, RegionError> {
    let delivery = if handlers == 0 { Delivery::Sigbus } else { Delivery::Messages };
    Uffd::open(delivery).map_err(|failure| match failure {
        OpenFailure::Forbidden { setting, source } => RegionError::Forbidden { setting, source },
        OpenFailure::Unsupported(source) => RegionError::Unsupported { source },
    })
}
