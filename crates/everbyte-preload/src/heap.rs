//! The program's heap: one region. The allocator and mappings get parts of it. Its first part may
//! be the program's variables.
//!
//! Invariants: free parts hold zeroes and are inaccessible. In a forked child the same addresses are
//! ordinary memory: the region does not exist there, and the child makes no calls of it.

mod accounting;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use everbyte_slots::FreeRanges;
use everbyte_swap::{
    FaultMode, FileStore, Region, RegionError, RegionOptions, SlotWear, Statistics, SwapSpace,
};
use libmimalloc_sys as mi;

use crate::kernel::{self, PAGE};
use crate::lock::Lock;
use crate::settings::Settings;
use crate::slot_source::{SlotSource, memory_file};
use crate::stderr::{print, print_detached};
use crate::variables;

/// Alignment of mimalloc's arenas, and of their lengths, in bytes.
pub(crate) const ARENA: usize = 32 << 20;
/// Addresses in addition to those for DRAM and slots, in bytes: the allocator takes an arena for each
/// thread, and most of an arena can stay untouched.
const SPARE_ADDRESSES: u64 = 64 << 30;
/// Threads resolving faults.
const HANDLERS: usize = 2;

pub(crate) struct Heap {
    region: Region,
    space: Arc<SwapSpace>,
    base: usize,
    len: usize,
    /// Threads in a fork. Held before `state`. Unused in a child.
    forks: Lock<u32>,
    /// Held while a thread adds an arena, before `state`.
    adding: Lock<()>,
    state: Lock<State>,
    /// Held while a thread borrows slots, after every other lock.
    lending: Lock<Lending>,
    /// Memory counts from its allocation.
    is_strict: bool,
    /// Maximum number of bytes in slots.
    space_bytes: u64,
    /// Bytes in use that page with the present slots.
    granted: AtomicU64,
    /// A lack of memory was printed.
    is_reported: AtomicBool,
    /// Pinned ranges, each unit once. Unused in a child.
    locked: Lock<FreeRanges>,
    /// Arenas of the allocator.
    arenas: AtomicU32,
    /// Some of it may be read alone.
    has_protected: AtomicBool,
    /// A free part may be accessible and hold other bytes than zeroes.
    has_unguarded: AtomicBool,
    /// This process is a forked child.
    is_child: AtomicBool,
}

/// The outcome of an attempt to give the allocator another arena.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArenaOutcome {
    /// It has one more.
    Now,
    /// Another thread was faster.
    ByAnother,
    /// Out of memory.
    Not,
}

struct State {
    free: FreeRanges,
    used_bytes: usize,
    /// End of all bytes ever used.
    end: usize,
}

struct Lending {
    store: FileStore,
    source: SlotSource,
    /// The last refusal, unless a loan followed it.
    refusal: Option<(Instant, String)>,
}

/// The reason for a lack of addresses while slots are free.
fn no_address_range(len: usize, align: usize) -> String {
    let (len, align) = (len.div_ceil(1 << 10), align >> 10);
    format!(
        "its heap's addresses, as many as its DRAM and the volume have bytes, have no free place of {len} KiB at a \
         multiple of {align} KiB"
    )
}

/// Maps the region, behind the program's variables if there are any, and returns its length.
///
/// # Errors
/// The reason, as text.
fn map_region(
    settings: &Settings,
    variables: &Range<usize>,
    space: &Arc<SwapSpace>,
) -> Result<(Region, u64), String> {
    let bytes = settings.dram_bytes.saturating_add(settings.space_bytes);
    let whole = bytes.checked_next_multiple_of(ARENA as u64);
    // No region can have more bytes than there are, and says so.
    let least = whole.map_or(u64::MAX, |bytes| bytes.saturating_add(2 * ARENA as u64));
    let mode = FaultMode::Transparent { handlers: HANDLERS };
    let options = RegionOptions::new()
        .fault_mode(mode)
        .reserves(false)
        .thread_start(crate::stay_outside_heap)
        .on_failure(|error| print_detached(&format!("paging has failed: {error}")));
    let options = if settings.strict { options } else { options.more_slots(accounting::lend_more) };
    let map = |bytes| {
        if variables.is_empty() {
            return Region::map(bytes, settings.dram_bytes, space, &options);
        }
        let over = variables.clone();
        // SAFETY: the loader made these pages for the program alone, and neither it nor another
        // thread has begun.
        unsafe { Region::map_over(over, bytes, settings.dram_bytes, space, &options) }
    };
    let spacious = least.saturating_mul(2).saturating_add(SPARE_ADDRESSES);
    // The user may have limited the addresses. Strict accounting has no use for spare ones.
    let region =
        if settings.strict { None } else { map(spacious).ok().map(|region| (region, spacious)) };
    let mapped = region.map_or_else(|| map(least).map(|region| (region, least)), Ok);
    mapped.map_err(|error| error.to_string())
}

impl Heap {
    /// # Errors
    /// The reason, in words.
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        // A program below its limit needs no slots.
        let store = FileStore::of_ranges(&memory_file(PAGE as u64)?, &[], settings.space_bytes)
            .map_err(|error| format!("cannot reserve address space: {error}"))?;
        let space = SwapSpace::new(store.clone());
        if settings.wear {
            space.count_writes();
        }
        let is_strict = settings.strict;
        let variables = if settings.bss { variables::pages() } else { 0..0 };
        let (region, bytes) = map_region(&settings, &variables, &space)?;
        let base = region.as_mut_ptr().expose_provenance();
        let len = usize::try_from(bytes).map_err(|error| error.to_string())?;
        let used_bytes = variables.len();
        let end = base + used_bytes;
        let free = FreeRanges::new(end..base + len);
        let source = SlotSource::new(settings.volume, settings.trust_pool);
        let granted = AtomicU64::new(region.bytes_paged_by(0));
        let heap = Self {
            region,
            space,
            base,
            len,
            forks: Lock::new(0),
            adding: Lock::new(()),
            state: Lock::new(State { free, used_bytes, end }),
            lending: Lock::new(Lending { store, source, refusal: None }),
            is_strict,
            space_bytes: settings.space_bytes,
            granted,
            is_reported: AtomicBool::new(false),
            locked: Lock::new(FreeRanges::new(0..0)),
            arenas: AtomicU32::new(0),
            has_protected: AtomicBool::new(false),
            has_unguarded: AtomicBool::new(false),
            is_child: AtomicBool::new(false),
        };
        if !heap.set_access(&(end..base + len), libc::PROT_NONE) {
            return Err("the kernel does not change access rights".into());
        }
        let has_memory = if is_strict {
            heap.has_slots(&heap.state.lock(), 0)
        } else {
            used_bytes as u64 <= heap.bytes_max()
        };
        if has_memory {
            Ok(heap)
        } else {
            Err(format!("its variables alone exceed the memory: {} MiB", used_bytes >> 20))
        }
    }

    /// True if an address lies in the region.
    #[inline]
    pub(crate) fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.len
    }

    /// The part of an address range within the region.
    pub(crate) fn overlap(&self, range: &Range<usize>) -> Range<usize> {
        range.start.max(self.base)..range.end.min(self.base + self.len)
    }

    pub(crate) fn is_child(&self) -> bool {
        self.is_child.load(Ordering::Relaxed)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.region.statistics()
    }

    /// Bytes of slots, free and used.
    pub(crate) fn space_bytes(&self) -> u64 {
        self.space.slots() * PAGE as u64
    }

    /// Bytes allocated from the region, touched or not.
    pub(crate) fn bytes_reserved(&self) -> usize {
        self.state.lock().used_bytes
    }

    /// Writes of slots, if they are counted.
    pub(crate) fn wear(&self) -> Option<SlotWear> {
        self.space.wear()
    }

    pub(crate) fn check(&self) -> Result<(), RegionError> {
        self.region.check()
    }

    /// Takes `len` bytes of zeroes, whole pages, at a multiple of `align`.
    pub(crate) fn take(&self, len: usize, align: usize) -> Option<usize> {
        if !self.has_memory(len) {
            return None;
        }
        let found = self.try_take(&mut self.state.lock(), len, align);
        let Some(found) = found else {
            self.report_shortage(|| no_address_range(len, align));
            return None;
        };
        self.admit(found..found + len).then_some(found)
    }

    /// Reserves the addresses for [`take`](Self::take), without access. No message for want of
    /// addresses.
    fn try_take(&self, state: &mut State, len: usize, align: usize) -> Option<usize> {
        if !self.has_slots(state, len) {
            return None;
        }
        let at = state.free.take(len, align)?;
        state.used_bytes += len;
        state.end = state.end.max(at + len);
        Some(at)
    }

    /// Takes `len` bytes of zeroes, whole pages, at a multiple of `align`, and the page before
    /// them. `align` is more than one page, in whole pages.
    pub(crate) fn take_behind_page(&self, len: usize, align: usize) -> Option<usize> {
        let (used, room) = (len.checked_add(PAGE)?, len.checked_add(align)?);
        if !self.has_memory(used) {
            return None;
        }
        let at = {
            let state = &mut *self.state.lock();
            let has_slots = self.has_slots(state, used);
            let Some(before) = has_slots.then(|| state.free.take(room, align)).flatten() else {
                self.report_shortage(|| no_address_range(room, align));
                return None;
            };
            let at = before + align;
            state.free.give(before..at - PAGE);
            state.used_bytes += used;
            state.end = state.end.max(at + len);
            at
        };
        self.admit(at - PAGE..at + len).then_some(at)
    }

    /// Takes exactly `range`, if it is free.
    pub(crate) fn take_at(&self, range: Range<usize>) -> bool {
        let len = range.end - range.start;
        if !self.has_memory(len) {
            return false;
        }
        {
            let state = &mut *self.state.lock();
            if !self.has_slots(state, len) || !state.free.take_at(range.clone()) {
                return false;
            }
            state.used_bytes += len;
            state.end = state.end.max(range.end);
        }
        self.admit(range)
    }

    /// Gives the program access to a part just taken. If the kernel refuses, the part is free
    /// again.
    fn admit(&self, range: Range<usize>) -> bool {
        let is_admitted = self.set_access(&range, kernel::READ_WRITE);
        if is_admitted {
            // After the kernel's change: a fault at a closed unit repeats until it is open.
            self.open(&range);
            // Without a guard the program could store to the part while it was free.
            if self.has_unguarded.load(Ordering::SeqCst) {
                self.discard(&range);
            }
        } else {
            let state = &mut *self.state.lock();
            state.used_bytes -= state.free.give(range);
            self.report_shortage(|| {
                "the kernel gives no access to it, as with too many mappings (vm.max_map_count)"
                    .into()
            });
        }
        is_admitted
    }

    /// Makes `range`, whole pages, new memory of the program, including its free parts. False
    /// without slots for the free parts, or if the kernel refuses write access.
    pub(crate) fn renew(&self, range: Range<usize>) -> bool {
        let Some(taken) = self.take_free(&range) else { return false };
        self.unpin(&range);
        let is_writable = self.set_access(&range, kernel::READ_WRITE);
        if is_writable {
            self.open(&range);
            self.discard(&range);
        } else {
            taken.into_iter().for_each(|part| self.free(part));
        }
        is_writable
    }

    /// Takes the free parts of `range`, without access.
    fn take_free(&self, range: &Range<usize>) -> Option<Vec<Range<usize>>> {
        let free_bytes = |free: &[Range<usize>]| free.iter().map(ExactSizeIterator::len).sum();
        let len = free_bytes(&self.state.lock().free.within(range));
        if !self.has_memory(len) {
            return None;
        }
        let state = &mut *self.state.lock();
        let free = state.free.within(range);
        let len = free_bytes(&free);
        if !self.has_slots(state, len) {
            return None;
        }
        for part in &free {
            state.free.take_at(part.clone());
        }
        state.used_bytes += len;
        state.end = state.end.max(range.end);
        Some(free)
    }

    /// True if the program has unmapped some of `range`, or never had it.
    pub(crate) fn has_free(&self, range: &Range<usize>) -> bool {
        !self.state.lock().free.within(range).is_empty()
    }

    /// Zeroes `range`, whole writable pages, and frees DRAM and slots if possible.
    fn discard(&self, range: &Range<usize>) {
        if !self.try_discard(range) {
            // The descriptor is closed: the pages are zeroed at least.
            let at = std::ptr::with_exposed_provenance_mut::<u8>(range.start);
            // SAFETY: the program discards the contents of these pages; they are mapped and
            // writable.
            unsafe { at.write_bytes(0, range.end - range.start) };
        }
    }

    /// As [`discard`](Self::discard), for pages possibly read-only. False if it is impossible for
    /// such pages.
    pub(crate) fn discard_writable(&self, range: &Range<usize>) -> bool {
        let is_done = self.try_discard(range);
        if !is_done && !self.has_protected.load(Ordering::SeqCst) {
            self.discard(range);
            return true;
        }
        is_done
    }

    /// Discards whole pages and frees their DRAM and slots.
    fn try_discard(&self, range: &Range<usize>) -> bool {
        let (start, len) = (range.start, range.end - range.start);
        if self.is_child() {
            let at = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: the program discards the contents of these pages.
            return unsafe { kernel::madvise(at, len, libc::MADV_DONTNEED) == 0 };
        }
        let offset = (start - self.base) as u64;
        // SAFETY: as above.
        unsafe { self.region.discard_shared(offset..offset + len as u64) }.is_ok()
    }

    /// True if some of `range` is [pinned](Self::pin).
    pub(crate) fn is_pinned(&self, range: &Range<usize>) -> bool {
        !self.is_child() && !self.locked.lock().within(range).is_empty()
    }

    /// Frees `range`, whole pages, and removes all access to it. Parts already free stay free.
    pub(crate) fn free(&self, range: Range<usize>) {
        self.unpin(&range);
        if !self.guard(&range) {
            self.open(&range);
            // Without write access its bytes cannot become zeroes: it stays used.
            if !self.set_access(&range, kernel::READ_WRITE) {
                return;
            }
            self.discard(&range);
            // After the end of all evictions no thread of the region reads a page.
            if !(self.has_ended() && self.set_access(&range, libc::PROT_NONE)) {
                self.has_unguarded.store(true, Ordering::SeqCst);
            }
        }
        let state = &mut *self.state.lock();
        state.used_bytes -= state.free.give(range);
    }

    /// Frees the pages and slots of `range` and makes it inaccessible. False if the region or the
    /// kernel refuses, as beyond the maximum number of mappings.
    fn guard(&self, range: &Range<usize>) -> bool {
        if self.is_child() {
            return self.try_discard(range) && self.set_access(range, libc::PROT_NONE);
        }
        // Before the access ends: the evictor reads the page of each unit that is not closed.
        // SAFETY: the program discards the contents of these pages.
        unsafe { self.region.close_shared(self.offsets(range)) }.is_ok()
            && self.set_access(range, libc::PROT_NONE)
    }

    /// True if no page leaves DRAM from now on.
    fn has_ended(&self) -> bool {
        let failure = self.region.check();
        let is_final = |error: &RegionError| {
            matches!(
                error,
                RegionError::DescriptorLost | RegionError::StoreFailed | RegionError::Locked
            )
        };
        !self.is_child() && failure.as_ref().is_err_and(is_final)
    }

    /// Lets the program's faults fill `range` again.
    fn open(&self, range: &Range<usize>) {
        if !self.is_child() {
            // The range lies in the region, and this is its process.
            let _cannot_fail = self.region.open(self.offsets(range));
        }
    }

    /// Sets the program's access to whole pages. False if the kernel refuses.
    fn set_access(&self, range: &Range<usize>, access: libc::c_int) -> bool {
        let at = std::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the heap's pages. A caller that removes access has ended their use, also by the
        // region.
        unsafe { kernel::mprotect(at, range.end - range.start, access) == 0 }
    }

    /// The program has changed the access to a part.
    pub(crate) fn note_protected(&self) {
        self.has_protected.store(true, Ordering::SeqCst);
    }

    /// Pins whole pages, once for any number of calls.
    ///
    /// # Errors
    /// An error of the region: too many pinned bytes. The pins are unchanged then.
    pub(crate) fn pin(&self, range: &Range<usize>) -> Result<(), RegionError> {
        let locked = &mut *self.locked.lock();
        let mut missing = FreeRanges::new(range.clone());
        for part in locked.within(range) {
            missing.take_at(part);
        }
        let missing = missing.within(range);
        for (nth, part) in missing.iter().enumerate() {
            if let Err(error) = self.region.pin(self.offsets(part)) {
                for part in &missing[..nth] {
                    self.region.unpin(self.offsets(part))?;
                }
                return Err(error);
            }
        }
        locked.give(range.clone());
        Ok(())
    }

    /// Ends [`pin`](Self::pin) for the pinned parts of `range`.
    pub(crate) fn unpin(&self, range: &Range<usize>) {
        if self.is_child() {
            return;
        }
        let locked = &mut *self.locked.lock();
        for part in locked.within(range) {
            // It is pinned, and by this alone.
            let _unpinned = self.region.unpin(self.offsets(&part));
            locked.take_at(part);
        }
    }

    /// Pins `to` instead of the pinned parts of `from`, never both together. False if the region
    /// refuses: `from` is unchanged then, unless other threads have pinned too much since.
    pub(crate) fn move_pins(&self, from: &Range<usize>, to: &Range<usize>) -> bool {
        let before = self.locked.lock().within(from);
        self.unpin(from);
        let is_moved = self.pin(to).is_ok();
        if !is_moved {
            for part in &before {
                let _again = self.pin(part);
            }
        }
        is_moved
    }

    /// Ends [`pin`](Self::pin) for everything.
    pub(crate) fn unpin_all(&self) {
        self.unpin(&(self.base..self.base + self.len));
    }

    fn offsets(&self, range: &Range<usize>) -> Range<u64> {
        (range.start - self.base) as u64..(range.end - self.base) as u64
    }

    /// The number of arenas, for [`add_arena`](Self::add_arena).
    pub(crate) fn arenas(&self) -> u32 {
        self.arenas.load(Ordering::Acquire)
    }

    /// Gives the allocator another arena, with room for an object of `bytes` bytes, unless another thread
    /// has done so since there were `seen`.
    pub(crate) fn add_arena(&self, seen: u32, bytes: usize) -> ArenaOutcome {
        let _one_at_a_time = self.adding.lock();
        if self.arenas() != seen {
            return ArenaOutcome::ByAnother;
        }
        if self.grow_by_arena(bytes) { ArenaOutcome::Now } else { ArenaOutcome::Not }
    }

    /// False without memory. The caller holds `adding`.
    fn grow_by_arena(&self, bytes: usize) -> bool {
        let used = self.state.lock().used_bytes;
        // Large objects get separate blocks of arenas, with a head.
        let head = if bytes < ARENA / 4 { 0 } else { ARENA };
        let needed = bytes.saturating_add(head).max(ARENA);
        let Some(needed) = needed.checked_next_multiple_of(ARENA) else { return false };
        // The number of arenas is limited, so their size grows with the used bytes.
        let generous = needed.max((used / 8).next_multiple_of(ARENA));
        let sizes = if generous > needed { vec![generous, needed] } else { vec![needed] };
        let found = {
            let state = &mut *self.state.lock();
            let mut sizes = sizes.into_iter();
            let found = sizes.find_map(|len| Some((self.try_take(state, len, ARENA)?, len)));
            if found.is_none() {
                self.report_shortage(|| no_address_range(needed, ARENA));
            }
            found
        };
        let Some((at, len)) = found else { return false };
        if !self.admit(at..at + len) {
            return false;
        }
        let start = std::ptr::with_exposed_provenance(at);
        // SAFETY: the heap owns the range, mapped and zeroed, and gives it to the allocator
        // forever.
        let added = unsafe {
            mi::mi_manage_os_memory_ex(
                start,
                len,
                true,
                false,
                true,
                -1,
                false,
                std::ptr::null_mut(),
            )
        };
        if added {
            self.arenas.fetch_add(1, Ordering::AcqRel);
        } else {
            self.free(at..at + len);
            let most = self.arenas();
            let reason = || format!("its allocator takes no more than {most} arenas");
            self.report_shortage(reason);
        }
        added
    }

    /// All bytes ever used, as offsets.
    fn used(&self, state: &State) -> Range<u64> {
        0..(state.end - self.base) as u64
    }

    /// Bytes brought in by a fork.
    pub(crate) fn bytes_stored(&self) -> u64 {
        let state = self.state.lock();
        self.region.bytes_stored(self.used(&state)).unwrap_or(u64::MAX)
    }

    /// Prepares a fork: until [`fork_ended`](Self::fork_ended) a child gets the whole heap, also a
    /// child of another thread.
    ///
    /// # Errors
    /// An error of the region. Nothing is changed then.
    pub(crate) fn fork_begins(&self) -> Result<(), RegionError> {
        let forks = &mut *self.forks.lock();
        if *forks == 0 {
            // A thread that takes more memory gets it after this; pages touched from then on stay
            // in DRAM.
            let state = self.state.lock();
            self.region.fork_begins(self.used(&state))?;
        }
        *forks += 1;
        Ok(())
    }

    /// Resumes paging after a fork, in the parent.
    pub(crate) fn fork_ended(&self) {
        let forks = &mut *self.forks.lock();
        *forks -= 1;
        if *forks == 0
            && let Err(error) = self.region.fork_ended()
        {
            print(&format!("the program ends because its next child would lack memory: {error}"));
            std::process::abort();
        }
    }

    /// This process is a forked child from now on.
    pub(crate) fn become_child(&self) {
        self.is_child.store(true, Ordering::Relaxed);
    }

    /// Keeps others from taking and giving until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        let adding = self.adding.lock();
        std::mem::forget((adding, self.state.lock()));
    }

    /// Ends [`hold`](Self::hold).
    pub(crate) fn release(&self) {
        self.state.release();
        self.adding.release();
    }
}
