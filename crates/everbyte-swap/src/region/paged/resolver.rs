//! Maps fault addresses to units, on the two paths of a fault to the pager.
//!
//! Invariant: a signal handler runs only this module, `engine` and `uffd_memory`. They do not
//! allocate, sleep on a lock, or access the region.

#![allow(unsafe_code, reason = "the contract of a resolver of faults")]

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use everbyte_media::{PageFault, ResolveFaults};

use crate::error::RegionError;
use crate::region::fork_guard::ForkGuard;
use crate::region::paged::engine::{Access, FaultError, Pager, PagingFailure};
use crate::region::paged::uffd_memory::UffdMemory;
use crate::region::stats::add;
use crate::region::units::UnitNo;
use crate::store::UNIT;

/// A region's pager and the first unresolved fault.
pub(crate) struct FaultResolver {
    pub(crate) pager: Pager<UffdMemory>,
    fork_guard: ForkGuard,
    /// The offset of the first unreadable unit plus 1, or 0.
    unreadable: AtomicU64,
}

impl FaultResolver {
    pub(crate) fn new(pager: Pager<UffdMemory>, fork_guard: ForkGuard) -> Self {
        Self { pager, fork_guard, unreadable: AtomicU64::new(0) }
    }

    /// As [`Region::check`](crate::Region::check).
    pub(crate) fn check(&self) -> Result<(), RegionError> {
        match self.pager.failure() {
            Some(PagingFailure::DescriptorLost) => return Err(RegionError::DescriptorLost),
            Some(PagingFailure::StoreFailed) => return Err(RegionError::StoreFailed),
            Some(PagingFailure::Locked) => return Err(RegionError::Locked),
            None => {}
        }
        if let Some(offset) = self.unreadable() {
            return Err(RegionError::Unreadable { offset });
        }
        if self.pager.is_full() && !self.pager.may_grow() {
            Err(RegionError::StoreFull)
        } else {
            Ok(())
        }
    }

    /// False in a forked child.
    pub(crate) fn is_here(&self) -> bool {
        self.fork_guard.is_here()
    }

    /// The first offset unreadable in a fault.
    fn unreadable(&self) -> Option<u64> {
        self.unreadable.load(SeqCst).checked_sub(1)
    }

    fn fault(&self, address: usize, access: Access) -> Result<(), FaultError> {
        let offset = address.wrapping_sub(self.pager.memory.base().addr());
        let at = UnitNo((offset / UNIT) as u64);
        if at.0 >= self.pager.len() {
            return Err(FaultError::DescriptorLost);
        }
        let start = Instant::now();
        let done = self.pager.fault(at, access);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&self.pager.counters.fault_ns, ns);
        if done == Err(FaultError::Unreadable) {
            let first = at.0 * UNIT as u64 + 1;
            if self.unreadable.compare_exchange(0, first, SeqCst, SeqCst).is_ok() {
                self.pager.wake_evictor();
            }
        }
        done
    }

    /// Resolves a fault reported by a message, and wakes its waiting threads. If the page is
    /// unreadable, the access ends in SIGBUS. If the kernel cannot raise SIGBUS there, the process
    /// ends: otherwise the thread would read zeroes or hang. If the system has no memory, the
    /// thread faults again until memory is free, as with ordinary memory.
    pub(crate) fn resolve_message(&self, address: usize, access: Access) {
        let page = address / UNIT * UNIT;
        let done = self.fault(address, access);
        let uffd = &self.pager.memory.uffd;
        let answered = match done {
            Err(error) if error.is_final() => self.poison(page),
            _ => Ok(()),
        };
        if answered.and_then(|()| uffd.wake(page, UNIT)).is_err() {
            std::process::abort();
        }
    }

    fn poison(&self, page: usize) -> io::Result<()> {
        let memory = &self.pager.memory;
        let at = UnitNo(((page - memory.base().addr()) / UNIT) as u64);
        match self.pager.poison(at, || memory.uffd.poison(page, UNIT)) {
            // There is a page, or such a mark, already.
            Some(Err(error)) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            Some(done) => done,
            None => Ok(()),
        }
    }
}

// SAFETY: `fault` runs the pager and by contract does not allocate, lock or panic; reading the
// clock needs neither; and only the kernel accesses the region.
unsafe impl ResolveFaults for FaultResolver {
    fn resolve(&self, fault: PageFault) -> bool {
        // A forked child does not have this memory. Any mapping there belongs to the child; the
        // descriptor is its parent's.
        if !self.is_here() {
            return false;
        }
        let access = Access { is_store: fault.is_store, is_present: fault.is_present };
        self.fault(fault.address, access).is_ok()
    }
}
