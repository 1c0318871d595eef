//! The chunks of a region in direct mode: real mappings behind the steps.
//!
//! Owns the address range. A new mapping is prepared at another address. Then one `mremap` replaces
//! the chunk's mapping by it while every fault of the process waits. An `mremap` of zero bytes of
//! the store's mapping maps a run a second time. It needs no descriptor of the store's file, and
//! locks by a descriptor stay held.
//!
//! Invariant: every mapping in the range is kept from children of a fork before it is moved there.
//!
//! Limit: if the kernel runs out of memory during such a move, the chunk loses its mapping, and an
//! access ends in SIGSEGV. The kernel checks the number of mappings before.

#![allow(unsafe_code, reason = "mapping chunks, moving their mappings and copying their bytes")]

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use libc::c_void;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    mremap_fixed, munmap,
};

use crate::region::direct::chunk::{CHUNK, CHUNK_UNITS, ChunkNo, RunNo};
use crate::region::direct::memory::{ChunkError, ChunkMemory, Permission};
use crate::region::threads::pause;
use crate::slots::SlotNo;
use crate::slots::index;
use crate::store::{SwapSpace, UNIT};

const CHUNK_BYTES: usize = index(CHUNK);

static ZEROES: [u8; UNIT] = [0; UNIT];

/// The chunks of a region.
pub(crate) struct RemapMemory {
    base: *mut u8,
    raw: *mut c_void,
    raw_len: usize,
    space: Arc<SwapSpace>,
    is_mapped: AtomicBool,
    start: Instant,
}

// SAFETY: the range is memory without thread affinity, and the pointers never change. Claims of
// chunks decide which thread may access a chunk.
unsafe impl Send for RemapMemory {}
// SAFETY: as above.
unsafe impl Sync for RemapMemory {}

/// A private mapping of a chunk's size; unmapped when dropped.
struct PreparedMapping(*mut c_void);

impl PreparedMapping {
    /// Maps new memory of zeroes, aligned to its size to allow one large page.
    fn memory(access: ProtFlags) -> io::Result<Self> {
        let place = map_nothing(CHUNK_BYTES, access)?;
        if place.addr().is_multiple_of(CHUNK_BYTES) {
            return Self(place).kept_from_children();
        }
        drop(Self(place));
        let raw = map_nothing(2 * CHUNK_BYTES, access)?;
        let before = raw.addr().next_multiple_of(CHUNK_BYTES) - raw.addr();
        let place = raw.wrapping_byte_add(before);
        let behind = place.wrapping_byte_add(CHUNK_BYTES);
        for (rest, len) in [(raw, before), (behind, CHUNK_BYTES - before)] {
            if len > 0 {
                // SAFETY: mapped above, and unknown to other code.
                unsafe { munmap(rest, len) }?;
            }
        }
        Self(place).kept_from_children()
    }

    /// Maps the memory of a run, mapped at `at`, a second time.
    fn run(at: *const u8) -> io::Result<Self> {
        // Aligned like the run, so both can be large pages.
        let place = Self::memory(ProtFlags::empty())?.leave();
        let (at, flags) = (at.cast_mut().cast(), MremapFlags::MAYMOVE);
        // On failure the kernel may have unmapped the address already, and another mapping may be
        // there.
        // SAFETY: of no bytes the kernel moves nothing: it makes a second mapping, at a place that is ours.
        unsafe { mremap_fixed(at, 0, CHUNK_BYTES, flags, place) }?;
        let run = Self(place).kept_from_children()?;
        // All of it is there. Entering small pages by one call spares a fault for each.
        // SAFETY: its own mapping, whose bytes the advice does not change.
        let _best_effort = unsafe { madvise(place, CHUNK_BYTES, Advice::LinuxPopulateWrite) };
        Ok(run)
    }

    /// Releases the mapping to the caller, who unmaps it.
    fn leave(self) -> *mut c_void {
        let place = self.0;
        std::mem::forget(self);
        place
    }

    fn kept_from_children(self) -> io::Result<Self> {
        // SAFETY: its own mapping; the advice changes nothing in this process.
        unsafe { madvise(self.0, CHUNK_BYTES, Advice::LinuxDontFork) }?;
        // Large pages only save time, and not every kind of memory has them.
        // SAFETY: as above.
        let _best_effort = unsafe { madvise(self.0, CHUNK_BYTES, Advice::LinuxHugepage) };
        Ok(self)
    }

    /// Replaces the mapping at `to`.
    ///
    /// # Safety
    /// Any user of `to` accepts the bytes of this mapping there from now on.
    unsafe fn move_to(self, to: *mut c_void) -> io::Result<()> {
        // SAFETY: no other code uses the mapping, and the caller answers for the replaced one.
        unsafe { mremap_fixed(self.0, CHUNK_BYTES, CHUNK_BYTES, MremapFlags::MAYMOVE, to) }?;
        self.leave();
        Ok(())
    }
}

impl Drop for PreparedMapping {
    fn drop(&mut self) {
        // SAFETY: its own mapping, unknown to other code. The call cannot fail for such a range,
        // and a failure has no remedy.
        let _cannot_fail = unsafe { munmap(self.0, CHUNK_BYTES) };
    }
}

/// Maps private memory of zeroes. It takes no memory before an access.
fn map_nothing(len: usize, access: ProtFlags) -> io::Result<*mut c_void> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses a free place.
    Ok(unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags) }?)
}

impl RemapMemory {
    /// Maps so many chunks, aligned to their size, all empty.
    pub(crate) fn map(chunks: u64, space: Arc<SwapSpace>) -> io::Result<Self> {
        let raw_len = index(chunks + 1) * CHUNK_BYTES;
        let raw = map_nothing(raw_len, ProtFlags::empty())?;
        let skip = raw.addr().next_multiple_of(CHUNK_BYTES) - raw.addr();
        let base = raw.cast::<u8>().wrapping_add(skip);
        let (is_mapped, start) = (AtomicBool::new(true), Instant::now());
        let mapped = Self { base, raw, raw_len, space, is_mapped, start };
        // SAFETY: our own range, and the advice changes nothing in this process.
        unsafe { madvise(raw, raw_len, Advice::LinuxDontFork) }?;
        // SAFETY: as above.
        let _best_effort = unsafe { madvise(raw, raw_len, Advice::LinuxHugepage) };
        Ok(mapped)
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Unmaps the range. Requires: no thread accesses it.
    pub(crate) fn unmap(&self) {
        if self.is_mapped.swap(false, SeqCst) {
            // SAFETY: our own range, unused from now on. The call cannot fail for such a range, and
            // a failure has no remedy.
            let _cannot_fail = unsafe { munmap(self.raw, self.raw_len) };
        }
    }

    fn place(&self, at: ChunkNo) -> *mut u8 {
        self.base.wrapping_add(index(at.0) * CHUNK_BYTES)
    }

    fn slots_of(run: RunNo) -> impl Iterator<Item = SlotNo> {
        (0..CHUNK_UNITS).map(move |nth| SlotNo(run.0 * CHUNK_UNITS + nth))
    }

    /// Replaces the mapping of a chunk.
    fn replace(&self, at: ChunkNo, by: io::Result<PreparedMapping>) -> Result<(), ChunkError> {
        let to = self.place(at).cast();
        // SAFETY: a chunk of our own range, owned by the caller, due for the prepared mapping.
        let moved = by.and_then(|by| unsafe { by.move_to(to) });
        moved.map_err(|_refused| ChunkError::Refused)
    }

    fn check_store(&self) -> Result<(), ChunkError> {
        self.space.store().check().map_err(|_reason| ChunkError::StoreFailed)
    }
}

impl Drop for RemapMemory {
    fn drop(&mut self) {
        self.unmap();
    }
}

impl ChunkMemory for RemapMemory {
    fn open(&self, at: ChunkNo) -> Result<(), ChunkError> {
        self.allow(at, Permission::Everything)
    }

    fn close(&self, at: ChunkNo, _run: Option<RunNo>) -> Result<(), ChunkError> {
        self.replace(at, PreparedMapping::memory(ProtFlags::empty()))
    }

    fn allow(&self, at: ChunkNo, allowed: Permission) -> Result<(), ChunkError> {
        let access = match allowed {
            Permission::Nothing => MprotectFlags::empty(),
            Permission::Loads => MprotectFlags::READ,
            Permission::Everything => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: a chunk of our own range, owned by the caller. A thread with a forbidden access
        // faults and waits.
        let done = unsafe { mprotect(self.place(at).cast(), CHUNK_BYTES, access) };
        done.map_err(|_refused| ChunkError::Refused)
    }

    fn zero_run(&self, run: RunNo) -> Result<(), ChunkError> {
        for slot in Self::slots_of(run) {
            // SAFETY: the zeroes are not part of the store.
            unsafe { self.space.write(slot, ZEROES.as_ptr()) }
        }
        self.check_store()
    }

    fn copy_out(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError> {
        for (slot, nth) in Self::slots_of(run).zip(0..) {
            let page = self.place(at).wrapping_add(nth * UNIT);
            // SAFETY: a readable page of our range. The chunk is not this run.
            unsafe { self.space.write(slot, page) }
        }
        self.check_store()
    }

    fn map_run(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError> {
        let address = self.space.store().address(SlotNo(run.0 * CHUNK_UNITS));
        self.replace(at, PreparedMapping::run(address))
    }

    fn move_in(&self, at: ChunkNo, run: RunNo) -> Result<(), ChunkError> {
        let (store, first) = (self.space.store(), SlotNo(run.0 * CHUNK_UNITS));
        let new = PreparedMapping::memory(ProtFlags::READ | ProtFlags::WRITE);
        let new = new.map_err(|_refused| ChunkError::Refused)?;
        // SAFETY: the run is mapped at the store's address while the store lives, and no thread
        // stores to it, because its chunk is read-only. The new memory has the same length and no
        // other user.
        unsafe { ptr::copy_nonoverlapping(store.address(first), new.0.cast(), CHUNK_BYTES) }
        // An unreadable page is known only after the attempt to read it.
        if !store.is_readable(first, CHUNK_UNITS) {
            return Err(ChunkError::Unreadable);
        }
        self.replace(at, Ok(new))
    }

    fn zero(&self, at: ChunkNo, units: Range<u64>) {
        let first = self.place(at).wrapping_add(index(units.start) * UNIT);
        // SAFETY: pages of a chunk of our range, owned by the caller and accessible.
        unsafe { ptr::write_bytes(first, 0, index(units.end - units.start) * UNIT) }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn pause(&self, tries: u32) {
        pause(tries);
    }
}
