//! Regions: memory of a program's that pages to a store.

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

/// Who resolves the faults of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultMode {
    /// The thread that faulted, in a handler of SIGBUS: the fastest, and without privilege.
    ///
    /// A system call that is given bytes which are not in DRAM fails with EFAULT, or does less than
    /// it was asked to; so does one that would write to a page that is write-protected. Pin such
    /// buffers. A thread that blocks SIGBUS and faults is killed. The handler runs on the thread's
    /// alternate stack if it has one, where 8 KiB are enough, else on its own.
    #[default]
    Sigbus,
    /// Threads of the region's own. System calls may be given any of its bytes. Needs
    /// CAP_SYS_PTRACE, access to /dev/userfaultfd, or vm.unprivileged_userfaultfd=1.
    Transparent {
        /// Threads that resolve faults, at least 1.
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
        }
    }
}

impl RegionOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who resolves faults.
    pub fn fault_mode(mut self, mode: FaultMode) -> Self {
        self.fault_mode = mode;
        self
    }

    /// Units that are filled at once, 1 to 16 (else the nearest), where faults go through the region
    /// by equal steps. 1 never reads ahead.
    pub fn read_ahead(mut self, units: u64) -> Self {
        self.read_ahead = units.clamp(1, WINDOW);
        self
    }

    /// True if pages that were filled for a load are write-protected, as long as more than two thirds
    /// of them are never stored to: those need not be copied out again. False never protects, which
    /// spares the fault of the first store, and copies every page out: for stores that are nearly as
    /// fast as DRAM.
    pub fn tracks_stores(mut self, tracks: bool) -> Self {
        self.tracks_stores = tracks;
        self
    }

    /// Has each of the region's own threads call this before anything else: for allocators whose memory
    /// lies in the region, which these threads must not use.
    pub fn thread_start(mut self, call: fn()) -> Self {
        self.thread_start = call;
        self
    }

    /// Has a thread of the region's call this when there is a reason for [`Region::check`] to fail, once for each kind of them:
    /// for programs that would not ask. The thread has no descriptors of the program's, not even standard error. In
    /// direct mode nobody calls.
    pub fn on_failure(mut self, call: fn(&RegionError)) -> Self {
        self.on_failure = call;
        self
    }

    /// Maps what is not in DRAM straight from the store's memory, in parts of 2 MiB, instead of paging by 4 KiB: loads
    /// and stores go there, without a fault once a part was touched. For stores that are files or leases of
    /// byte-addressable memory. Read-ahead and the tracking of stores mean nothing then.
    ///
    /// New parts are in DRAM as long as the limit has room. Any limit will do, 0 too; what is above a multiple of
    /// 2 MiB counts for nothing. A system call on bytes that were never touched, or whose part is watched or moved at the
    /// moment, fails with EFAULT or does less than it was asked to: pin such buffers, which then stay where they
    /// are, in DRAM or not, by whole parts and without a bound. A thread that blocks SIGSEGV and faults is killed.
    pub fn direct(mut self, mode: DirectMode) -> Self {
        self.direct = Some(mode);
        self
    }

    /// Mappings that the process may have for parts of a region in direct mode to be moved; half of
    /// `vm.max_map_count` by default. Where it has more, nothing moves, and
    /// [`Statistics::moves_refused`] counts on.
    pub fn mappings_max(mut self, mappings: u64) -> Self {
        self.mappings_max = Some(mappings);
        self
    }

    /// Threads that resolve faults; 0 if who faults does.
    fn handlers(&self) -> usize {
        match self.fault_mode {
            FaultMode::Sigbus => 0,
            FaultMode::Transparent { handlers } => handlers.max(1),
        }
    }

    /// True if slots for all of the region are reserved when it is mapped. False leaves that to
    /// [`Region::reserve`]: for a region of which only as much is used as there are slots for.
    pub fn reserves(mut self, reserves: bool) -> Self {
        self.reserves = reserves;
        self
    }
}

/// Memory that pages to the slots of a [`SwapSpace`]: at most its DRAM limit is in DRAM at a time.
///
/// It reads as zeroes at first, and afterwards as any memory does. After a fork the child has no
/// such memory: touching it there ends in SIGSEGV, never in zeroes, and dropping the region there
/// does nothing, and methods that would move its pages fail; [`fork_begins`](Self::fork_begins) gives it to a child. The program must not use `madvise`, `mremap`, `munmap` or `mprotect` on it,
/// but for `mprotect` that leaves read access.
///
/// If the store is full or has failed, nothing is lost: DRAM beyond the limit is used, and
/// [`check`](Self::check) says so. While a method moves pages, its thread takes no signals but faults, so handlers may
/// touch the region. A page whose slot cannot be read, and any page once somebody has
/// closed the region's userfaultfd, ends in SIGBUS.
pub struct Region {
    /// Dropped by this process alone.
    backing: ManuallyDrop<Box<dyn Backing>>,
    space: Arc<SwapSpace>,
    bytes: u64,
    reserved: Mutex<u64>,
    process: u32,
}

impl Region {
    /// Maps `bytes` bytes, a positive multiple of 4096, of which `dram_limit` may be in DRAM, at
    /// least 256 KiB unless it is in direct mode. The rest, and a little more, is reserved in `space`.
    ///
    /// # Errors
    /// `BadLength`, `LimitTooLow`, `SpaceTooSmall`; `Forbidden` and `Unsupported` where there is no
    /// userfaultfd; `NotMappable` and `NotDirect` in direct mode, which has no transparent faults; `TooMany`; `Io`.
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

    /// As [`map`](Self::map), with memory that is there as its first part, such as a program's variables:
    /// `existing` begins at a multiple of 64 KiB. It holds what it held. The rest is mapped behind it, where
    /// nothing may be. Dropping the region unmaps all of it. If this fails, `existing` is as it was, but that it may have no
    /// large pages.
    ///
    /// # Errors
    /// As [`map`](Self::map); `Misaligned` unless `existing` is whole units from such an address on;
    /// `BadLength` if it is longer than the region; `NotDirect` in direct mode.
    ///
    /// # Safety
    /// `existing` is private anonymous memory, readable and writable, whose addresses are exposed. Nobody
    /// but the region changes its mapping any more, and no other thread uses it during this call.
    pub unsafe fn map_over(
        existing: Range<usize>,
        bytes: u64,
        dram_limit: u64,
        space: &Arc<SwapSpace>,
        options: &RegionOptions,
    ) -> Result<Self, RegionError> {
        if options.direct.is_some() {
            return Err(RegionError::NotDirect { what: "begin with memory that is there" });
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
        let pages = pages.map_err(RegionError::io("map the region behind what is there"))?;
        let present = pages.present(existing.len());
        let present = present.map_err(RegionError::io("see which pages are there"))?;
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
            return Err(RegionError::NotDirect { what: "have faults resolved by other threads" });
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

    /// A region of these pages, of which some units are present.
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
        let (thread_start, on_failure) = (options.thread_start, options.on_failure);
        let workers = Workers { handlers: options.handlers(), thread_start, on_failure };
        Self::start(bytes, needed, space, |slot_hint| {
            let pager_options = PagerOptions {
                limit,
                slot_hint,
                read_ahead: options.read_ahead,
                tracks_stores: options.tracks_stores,
            };
            let slots = &space.slots;
            Ok(Box::new(PagedRegion::start(pages, units, present, slots, &pager_options, workers)?))
        })
    }

    /// Reserves slots, and makes a region of what `start` makes, given the slot to search from.
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

    /// The first byte, aligned to 64 KiB (in direct mode to 2 MiB), for code that shares the region among threads by rules of
    /// its own. Valid until the region is dropped, in this process and not in forked children.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.backing.base()
    }

    /// The region's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped while the region lives; all zeroes at first; pages come and
        // go, but what is read from them changes by nobody but who has a `&mut` of the region, or
        // the pointer and rules of its own.
        unsafe { std::slice::from_raw_parts(self.as_mut_ptr(), index(self.bytes)) }
    }

    /// The region's bytes, to be changed.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and the region is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), index(self.bytes)) }
    }

    /// Brings bytes in before they are needed (will-need), from the start of the range as far as
    /// the DRAM limit has room. Returns how many bytes of whole units are in.
    ///
    /// # Errors
    /// `OutOfRange`, `Unreadable`, `NoMemory`, `DescriptorLost`, `ForkedChild`.
    pub fn prefetch(&self, range: Range<u64>) -> Result<u64, RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        Ok(self.backing.prefetch(run)? * UNIT_BYTES)
    }

    /// Brings in every unit that the range touches and keeps it in DRAM, writable, until it is
    /// unpinned as often as it was pinned: for buffers that system calls or devices use.
    ///
    /// # Errors
    /// `OutOfRange`; `TooMuchPinned` beyond three quarters of the DRAM limit; `BadPin`; `Unreadable`,
    /// `NoMemory`, `DescriptorLost`, `ForkedChild`. Nothing is pinned then that was not before.
    pub fn pin(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.pin(run)
    }

    /// Takes back one [`pin`](Self::pin) of the same range.
    ///
    /// # Errors
    /// `OutOfRange`, `ForkedChild`; `BadPin` if some of it is not pinned: everything is then as it was.
    pub fn unpin(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.unpin(run)
    }

    /// Makes whole units hold zeroes, and gives up their DRAM and slots (dont-need).
    ///
    /// # Errors
    /// `OutOfRange`, `Misaligned`, `ForkedChild`: nothing is changed; nor by `Pinned`, unless another thread pins meanwhile.
    /// `DescriptorLost`, `Locked`, `Io`: some units may be as they were.
    pub fn discard(&mut self, range: Range<u64>) -> Result<(), RegionError> {
        // SAFETY: the region is borrowed mutably, so nobody has references into it.
        unsafe { self.discard_shared(range) }
    }

    /// As [`discard`](Self::discard), for regions that are shared by their pointer.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// Nobody has references into the range, or relies on what it holds.
    pub unsafe fn discard_shared(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        if !(range.start.is_multiple_of(UNIT_BYTES) && range.end.is_multiple_of(UNIT_BYTES)) {
            return Err(RegionError::Misaligned { start: range.start, end: range.end });
        }
        let _no_signals = BlockedSignals::new();
        self.backing.discard(run)
    }

    /// Changes the DRAM limit, at least 256 KiB and four thirds of what is pinned. A lower limit is
    /// reached by and by; it reserves more slots, a higher one keeps what is reserved.
    ///
    /// # Errors
    /// `LimitTooLow`, `SpaceTooSmall`, `ForkedChild`: the limit is as it was.
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

    /// Reserves the slots with which `bytes` bytes of the region can be used, wherever they lie, in
    /// addition to those that are reserved. The space may have to [grow](SwapSpace::grow) first.
    ///
    /// # Errors
    /// `SpaceTooSmall`: what was reserved before still is.
    pub fn reserve(&self, bytes: u64) -> Result<(), RegionError> {
        let limit = self.backing.statistics().units_limit;
        let needed = self.backing.slots_needed(bytes.div_ceil(UNIT_BYTES), limit);
        self.reserve_slots(needed).map(|_| ())
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

    /// Brings all of `range` in and keeps it in DRAM, beyond the limit if need be, and lets a child of
    /// a fork that follows have the whole region: as ordinary memory, which does not page. What lies in
    /// slots outside `range` would be zeroes to the child.
    ///
    /// To be followed by [`fork_ended`](Self::fork_ended) in this process; the child must leave the
    /// region alone, also not drop it, and use its bytes only. Threads may do so at the same time: children have the
    /// region until the last fork has ended.
    ///
    /// # Errors
    /// `OutOfRange`, `Unreadable`, `NoMemory`, `DescriptorLost`, `Io`, `ForkedChild`, and `NotDirect` in direct mode: a child
    /// would not have the region, and everything is as it was.
    pub fn fork_begins(&self, range: Range<u64>) -> Result<(), RegionError> {
        let run = self.to_move(&range)?;
        let _no_signals = BlockedSignals::new();
        self.backing.fork_begins(run)
    }

    /// Ends what one [`fork_begins`](Self::fork_begins) began, in the process that has the region.
    ///
    /// # Errors
    /// `Io`: children that are forked later would have the region, without what is in slots. `ForkedChild`.
    pub fn fork_ended(&self) -> Result<(), RegionError> {
        self.check_here()?;
        // A handler of this thread's may fork, too.
        let _no_signals = BlockedSignals::new();
        self.backing.fork_ended()
    }

    /// Bytes of `range` that are in slots alone, rounded out to units.
    ///
    /// # Errors
    /// `OutOfRange`.
    pub fn bytes_stored(&self, range: Range<u64>) -> Result<u64, RegionError> {
        Ok(self.backing.units_stored(self.covering(&range)?) * UNIT_BYTES)
    }

    /// Counters since the region was mapped, and what it holds now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.backing.statistics()
    }

    /// Checks that the region pages as it should.
    ///
    /// # Errors
    /// `DescriptorLost`, `StoreFailed`, `Locked`, `Unreadable` with the first offset that a fault could not
    /// read, or `StoreFull`, which may pass.
    pub fn check(&self) -> Result<(), RegionError> {
        self.backing.check()
    }

    fn check_here(&self) -> Result<(), RegionError> {
        if self.backing.is_here() { Ok(()) } else { Err(RegionError::ForkedChild) }
    }

    /// The units that a range touches, in the process that has the region.
    fn to_move(&self, range: &Range<u64>) -> Result<UnitRun, RegionError> {
        self.check_here()?;
        self.covering(range)
    }

    /// The units that a range touches.
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
        // SAFETY: here alone, and nobody uses it afterwards.
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

/// The number of threads that resolve faults, of a region that can be.
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
