//! Paged regions: a pager on real pages, its threads, and its faults.

#![allow(unsafe_code, reason = "registering for the region's faults")]

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use everbyte_media::FaultRange;

use crate::error::RegionError;
use crate::region::backing::Backing;
use crate::region::fork_guard::ForkGuard;
use crate::region::paged::engine::{
    FaultError, LIMIT_MIN, Pager, PagerOptions, RangeError, slots_needed, units_paged_by,
};
use crate::region::paged::memory::MemoryError;
use crate::region::paged::resolver::FaultResolver;
use crate::region::paged::threads::{Threads, Workers};
use crate::region::paged::uffd_memory::UffdMemory;
use crate::region::stats::Statistics;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;
use crate::slots::SlotMap;
use crate::slots::index;
use crate::store::UNIT;

const UNIT_BYTES: u64 = UNIT as u64;

/// A pager at work.
pub(crate) struct PagedRegion {
    /// Declared first, hence dropped first: no fault reaches a dropped pager.
    faults: Option<FaultRange>,
    threads: Option<Threads>,
    shared: Arc<FaultResolver>,
    /// Forks in progress.
    forks: Mutex<u64>,
}

impl PagedRegion {
    /// Starts paging `units` units in `pages`. The units in `present` have pages.
    pub(crate) fn start(
        pages: UffdMemory,
        units: u64,
        present: &[UnitNo],
        slots: &Arc<SlotMap>,
        options: &PagerOptions,
        workers: Workers,
    ) -> Result<Self, RegionError> {
        let pager = Pager::new(pages, units, Arc::clone(slots), options);
        let no_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let pager = pager.ok_or_else(no_memory);
        let pager = pager.map_err(RegionError::io("allocate the state of the region's units"))?;
        // On failure existing memory is unchanged.
        pager.hold();
        present.iter().for_each(|&at| pager.adopt(at));
        let fork_guard =
            ForkGuard::here().map_err(RegionError::io("map a page zeroed at a fork"))?;
        let shared = Arc::new(FaultResolver::new(pager, fork_guard));
        let mut paged = Self { faults: None, threads: None, shared, forks: Mutex::new(0) };
        paged.threads = Some(Threads::start(&paged.shared, workers)?);
        if workers.handlers == 0 {
            paged.faults = Some(paged.register()?);
        }
        let pager = &paged.shared.pager;
        // No later step can fail, so the region takes ownership of existing memory.
        pager.memory.keep();
        pager.resume_evictions();
        Ok(paged)
    }

    fn register(&self) -> Result<FaultRange, RegionError> {
        let pager = &self.shared.pager;
        let (base, len) = (pager.memory.base().addr(), index(pager.len()) * UNIT);
        // SAFETY: an `Arc` of this struct owns the resolver and outlives the range, which is
        // dropped first. Code with access to the region's bytes borrows the region, or promises to
        // keep it alive.
        let range = unsafe { FaultRange::register(base, len, Arc::as_ptr(&self.shared)) };
        range.map_err(RegionError::io("handle SIGBUS"))?.ok_or(RegionError::TooMany)
    }
}

impl Backing for PagedRegion {
    fn base(&self) -> *mut u8 {
        self.shared.pager.memory.base()
    }

    fn is_here(&self) -> bool {
        self.shared.is_here()
    }

    fn slots_needed(&self, units: u64, limit: u64) -> u64 {
        slots_needed(units, limit.max(LIMIT_MIN))
    }

    fn prefetch(&self, run: UnitRun) -> Result<u64, RegionError> {
        self.shared.pager.prefetch(run).map_err(region_error)
    }

    fn pin(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.pager.pin(run).map_err(region_error)
    }

    fn unpin(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.pager.unpin(run).map_err(region_error)
    }

    fn discard(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.pager.discard(run).map_err(region_error)
    }

    fn units_paged_by(&self, slots: u64, limit: u64) -> u64 {
        units_paged_by(slots, limit)
    }

    fn units_used(&self) -> u64 {
        self.shared.pager.units_used()
    }

    fn close(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.pager.close(run).map_err(region_error)
    }

    fn open(&self, run: UnitRun) -> Result<(), RegionError> {
        self.shared.pager.open(run);
        Ok(())
    }

    fn set_limit(&self, units: u64) -> Result<(), RegionError> {
        self.shared.pager.set_limit(units).map_err(region_error)
    }

    fn fork_begins(&self, run: UnitRun) -> Result<(), RegionError> {
        let pager = &self.shared.pager;
        let forks = &mut *self.forks.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = pager.hold_resident(run).map_err(region_error);
        let shared = whole.and_then(|()| {
            let shared = if *forks == 0 { pager.memory.share_with_children(true) } else { Ok(()) };
            shared.map_err(RegionError::io("share the region"))
        });
        if shared.is_ok() {
            *forks += 1;
        } else if *forks == 0 {
            // Only without another fork: the hold must last until the last one ends.
            pager.resume_evictions();
        }
        shared
    }

    fn fork_ended(&self) -> Result<(), RegionError> {
        let pager = &self.shared.pager;
        let forks = &mut *self.forks.lock().unwrap_or_else(PoisonError::into_inner);
        *forks = forks.saturating_sub(1);
        if *forks > 0 {
            return Ok(());
        }
        // Before evictions resume: a child must not get zeroes for units in slots.
        let unshared = pager.memory.share_with_children(false);
        pager.resume_evictions();
        unshared.map_err(RegionError::io("exclude the region from forked children"))
    }

    fn units_stored(&self, run: UnitRun) -> u64 {
        self.shared.pager.units_stored(run)
    }

    fn statistics(&self) -> Statistics {
        self.shared.pager.statistics()
    }

    fn check(&self) -> Result<(), RegionError> {
        self.shared.check()
    }
}

impl Drop for PagedRegion {
    fn drop(&mut self) {
        // Threads and faults use the pager, so they end before its slots are free.
        self.threads = None;
        self.faults = None;
        self.shared.pager.free_slots();
    }
}

fn region_error(error: RangeError) -> RegionError {
    let offset = |at: UnitNo| at.0 * UNIT_BYTES;
    match error {
        RangeError::Fault { at, error } => match error {
            FaultError::Unreadable => RegionError::Unreadable { offset: offset(at) },
            FaultError::NoMemory => RegionError::NoMemory { offset: offset(at) },
            FaultError::DescriptorLost => RegionError::DescriptorLost,
        },
        RangeError::TooManyPinned { pinned, most } => {
            RegionError::TooMuchPinned { pinned: pinned * UNIT_BYTES, most: most * UNIT_BYTES }
        }
        RangeError::Pinned(at) => RegionError::Pinned { offset: offset(at) },
        RangeError::BadPin(at) => RegionError::BadPin { offset: offset(at) },
        RangeError::LimitTooLow(units) => {
            RegionError::LimitTooLow { limit: 0, least: units * UNIT_BYTES }
        }
        RangeError::Zap(at, MemoryError::Again) => RegionError::NoMemory { offset: offset(at) },
        RangeError::Zap(_, MemoryError::Locked) => RegionError::Locked,
        RangeError::Zap(..) => RegionError::DescriptorLost,
    }
}
