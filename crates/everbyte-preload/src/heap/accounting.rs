//! Accounting of the heap's memory, and the loans of slots.
//!
//! Memory counts from its first use: the region borrows slots for pages on their way out of DRAM,
//! and an allocation fails if the used bytes and its own exceed DRAM and volume. With strict
//! accounting memory counts from its allocation: the used part of the region never exceeds the slots
//! plus the DRAM limit.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everbyte_swap::RegionError;
use libmimalloc_sys as mi;
use rustix::process::{Signal, getpid, kill_process};

use super::{Heap, State};
use crate::kernel::PAGE;
use crate::stderr::{print, print_detached};
use crate::{any_heap, outside_heap};

/// Bytes of an allocation for which slots are borrowed before its first use, at most. So a refusal
/// by the pool's server is mostly an error of the allocation.
const AHEAD_MAX: u64 = 2 << 20;
/// Size up to which an allocation is probably served from memory in use.
const SMALL_MAX: usize = 64 << 10;
/// Time from a refusal of slots to the next request of an allocation.
const REFUSAL_TIME: Duration = Duration::from_millis(200);
/// Time between two looks for a heap in its set-up.
const SETUP_REST: Duration = Duration::from_millis(1);
/// Part of the used bytes that a growing program gets as slots by one request, at least,
const STEP_PART: u64 = 8;
/// and for no more bytes than these unless they are needed.
const STEP_BYTES_MAX: u64 = 64 << 20;

/// Borrows slots for pages on their way out of DRAM, on a thread of the region. If a fault waits and
/// there are none, the program ends: it has more memory in use than exists.
pub(super) fn lend_more(slots: u64, is_urgent: bool) -> bool {
    let Some(heap) = any_heap() else {
        // The heap is still in its set-up.
        std::thread::sleep(SETUP_REST);
        return true;
    };
    match heap.borrow(slots * PAGE as u64) {
        Ok(()) => true,
        Err(reason) if is_urgent => heap.end_without_slots(&reason),
        Err(_) => false,
    }
}

impl Heap {
    /// Ensures addresses for `more` additional bytes, and slots with strict accounting. False
    /// without a message if the heap has too few addresses.
    pub(super) fn has_slots(&self, state: &State, more: usize) -> bool {
        if self.is_child() {
            return true;
        }
        let wanted = state.used_bytes.saturating_add(more);
        // The heap has no addresses for these bytes: it leaves the slots to others.
        if wanted > self.len {
            return false;
        }
        if !self.is_strict {
            return true;
        }
        let wanted = wanted as u64;
        loop {
            let missing = match self.region.reserve(wanted) {
                Ok(()) => return true,
                Err(RegionError::SpaceTooSmall { needed, free }) => needed.saturating_sub(free),
                Err(_) => return false,
            };
            let bytes = (missing * PAGE as u64).max((wanted / STEP_PART).min(STEP_BYTES_MAX));
            if let Err(reason) = self.borrow(bytes) {
                self.report_shortage(|| reason);
                return false;
            }
        }
    }

    /// True if the bytes in use and `bytes` more fit into DRAM and slots. With strict accounting the
    /// reservation of slots decides instead.
    #[inline]
    pub(crate) fn has_memory(&self, bytes: usize) -> bool {
        let used = self.region.bytes_used().saturating_add(bytes as u64);
        used <= self.granted.load(Ordering::Relaxed) || self.find_memory(bytes)
    }

    /// Bytes in use that page with all slots of the volume.
    pub(super) fn bytes_max(&self) -> u64 {
        self.region.bytes_paged_by(self.space_bytes / PAGE as u64)
    }

    /// As [`has_memory`](Self::has_memory), by slots borrowed now.
    #[cold]
    fn find_memory(&self, bytes: usize) -> bool {
        if self.is_strict || self.is_child() {
            return true;
        }
        let reason = match self.try_find_memory(bytes) {
            Ok(()) => return true,
            Err(reason) => reason,
        };
        if bytes > SMALL_MAX {
            // The allocator keeps freed memory for a while, and that counts as used.
            // SAFETY: the call takes a flag, and this thread is in no call of the allocator.
            unsafe { mi::mi_collect(true) };
            if self.try_find_memory(bytes).is_ok() {
                return true;
            }
        } else if self.region.bytes_used() <= self.granted.load(Ordering::Relaxed) + self.slack() {
            // Most small objects get memory in use.
            return true;
        }
        outside_heap(|| self.report_shortage(|| reason));
        false
    }

    /// Bytes by which small objects may exceed the granted bytes: DRAM kept free for moves.
    fn slack(&self) -> u64 {
        let limit = self.region.statistics().units_limit * PAGE as u64;
        limit.saturating_sub(self.region.bytes_paged_by(0)) / 2
    }

    /// Borrows slots for an allocation, or returns the reason for their lack.
    fn try_find_memory(&self, bytes: usize) -> Result<(), String> {
        let (used, most) = (self.region.bytes_used(), self.bytes_max());
        if used.saturating_add(bytes as u64) > most {
            return Err(format!(
                "{} MiB in use and {} KiB more exceed the {} MiB of its DRAM and slots",
                used >> 20,
                bytes.div_ceil(1 << 10),
                most >> 20
            ));
        }
        outside_heap(|| {
            // After a refusal nothing else promises slots for the rest.
            let ahead = if self.lending.lock().refusal.is_some() { most } else { AHEAD_MAX };
            let without_loan = used.max(self.region.bytes_paged_by(0));
            let wanted = (used + bytes as u64).min(without_loan.saturating_add(ahead));
            loop {
                let missing = wanted.saturating_sub(self.granted.load(Ordering::Relaxed));
                if missing == 0 {
                    return Ok(());
                }
                self.borrow_unless_refused(missing)?;
            }
        })
    }

    /// As [`borrow`](Self::borrow), and shortly after a refusal refused without a request: small
    /// allocations follow each other closely.
    fn borrow_unless_refused(&self, bytes: u64) -> Result<(), String> {
        if let Some((since, reason)) = &self.lending.lock().refusal
            && since.elapsed() < REFUSAL_TIME
        {
            return Err(reason.clone());
        }
        self.borrow(bytes)
    }

    /// Borrows slots for `bytes` bytes, fewer if no more are free. Not in a forked child.
    ///
    /// # Errors
    /// The reason, as text.
    fn borrow(&self, bytes: u64) -> Result<(), String> {
        let lending = &mut *self.lending.lock();
        let added = lending.source.more(bytes).and_then(|(file, ranges)| {
            let added = lending.store.append(&file, &ranges);
            added.map_err(|error| format!("cannot map lent memory: {error}"))
        });
        lending.refusal = added.as_ref().err().map(|reason| (Instant::now(), reason.clone()));
        added?;
        self.space.grow();
        self.granted.store(self.region.bytes_paged_by(self.space.slots()), Ordering::Relaxed);
        Ok(())
    }

    /// Prints the reason for a lack of memory, the first time.
    pub(super) fn report_shortage(&self, reason: impl FnOnce() -> String) {
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            print(&format!("no more memory for this program: {}", reason()));
        }
    }

    /// Ends the program because a fault has no slot. By a signal without a handler, as for a lack
    /// of system memory: a handler could wait for the memory.
    fn end_without_slots(&self, reason: &str) -> ! {
        print_detached(&format!(
            "the program ends: it uses {} MiB, with {} MiB of DRAM and {} MiB of slots, and {reason}",
            self.region.bytes_used() >> 20,
            (self.region.statistics().units_limit * PAGE as u64) >> 20,
            self.space_bytes() >> 20
        ));
        let _killed = kill_process(getpid(), Signal::KILL);
        std::process::abort();
    }
}
