//! Windows: runs of a medium at consecutive addresses.
//!
//! Owns the places of runs, and the address space of the second mapping of a file's runs. Invariants: a
//! window only grows, by one region at its end, and its contents stay there until it is dropped. A byte is
//! counted as mapped only once it is. Nothing is ever stored through a window. Knows nothing of its contents.

use std::fs::File;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use libc::c_void;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::fault_handler::Registration;
use crate::map::{ALIGN, reserve_range, to_usize};
use crate::own_memory;
use crate::units::PoolOffset;

/// Bytes of a region of a window, and of its run.
pub const WINDOW_REGION_BYTES: u64 = 2 << 20;

/// Runs of 2 MiB of a medium, read at consecutive addresses from 0 on.
///
/// Made and filled by [`Medium::window`](crate::Medium::window) and
/// [`Medium::extend_window`](crate::Medium::extend_window). It has a table of its runs. If a medium can map
/// its memory twice, the runs are also in address space reserved when the window was made: a read of a byte
/// then costs one addition, as in contiguous runs.
pub struct Window {
    /// The start of the run of each region plus 1; 0 for a missing region.
    runs: Box<[AtomicU64]>,
    /// Number of present regions.
    regions: AtomicU64,
    growing: Mutex<()>,
    space: Option<WindowSpace>,
}

impl Window {
    /// An empty window with room for so many regions, read by its table.
    pub(crate) fn new(regions_max: u64) -> Self {
        Self {
            runs: (0..regions_max).map(|_| AtomicU64::new(0)).collect(),
            regions: AtomicU64::new(0),
            growing: Mutex::new(()),
            space: None,
        }
    }

    /// The same with address space for its runs.
    pub(crate) fn with_space(mut self, space: WindowSpace) -> Self {
        self.space = Some(space);
        self
    }

    /// Regions in it.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.regions.load(Ordering::Acquire)
    }

    /// Largest number of regions.
    #[must_use]
    pub fn regions_max(&self) -> u64 {
        self.runs.len() as u64
    }

    /// Returns true if every region is mapped at consecutive addresses, false if some are found by the
    /// table alone.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        let bytes = self.regions() * WINDOW_REGION_BYTES;
        self.space.as_ref().is_some_and(|space| space.range.mapped() >= bytes)
    }

    /// The address in the medium of the byte at `at`, or `None` beyond the last region.
    #[inline]
    #[must_use]
    pub fn offset(&self, at: u64) -> Option<PoolOffset> {
        let run = self.runs.get(to_usize(at / WINDOW_REGION_BYTES))?.load(Ordering::Acquire);
        Some(PoolOffset(run.checked_sub(1)? + at % WINDOW_REGION_BYTES))
    }

    /// As [`Window::offset`], of present bytes.
    ///
    /// # Panics
    /// They are not, or do not lie in one region.
    pub(crate) fn offset_of(&self, at: u64, len: u64) -> PoolOffset {
        assert!(
            at % WINDOW_REGION_BYTES + len <= WINDOW_REGION_BYTES,
            "{len} bytes at {at} of a window do not lie in one region"
        );
        let offset = self.offset(at);
        offset.unwrap_or_else(|| panic!("byte {at} of a window is in none of its regions"))
    }

    /// Adds a region for the run at `run`. With a file the run is mapped as well, if all before it are.
    ///
    /// # Panics
    /// The window is full, or no run can begin at `run`.
    pub(crate) fn push(&self, run: PoolOffset, file: Option<(&File, MapFlags)>) {
        assert!(run.0.is_multiple_of(WINDOW_REGION_BYTES), "no run of 2 MiB begins at {run}");
        let _one_at_a_time = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let region = self.regions.load(Ordering::Relaxed);
        let slot = self.runs.get(to_usize(region)).expect("a window that is full does not grow");
        if let (Some(space), Some((file, flags))) = (&self.space, file) {
            space.range.extend(region, file, flags, run);
        }
        slot.store(run.0 + 1, Ordering::Release);
        self.regions.store(region + 1, Ordering::Release);
    }

    /// Copies bytes of one region out of the mapped runs. Returns false if they are not mapped, or if any
    /// page of them was found to be poisoned: `out` is then undefined, and the page is not reported.
    #[inline]
    pub(crate) fn read_mapped(&self, at: u64, out: &mut [u8]) -> bool {
        let Some(place) = self.place(at, out.len() as u64) else { return false };
        // SAFETY: that many bytes are mapped from `place` on, and `out` is no part of them.
        unsafe { ptr::copy_nonoverlapping(place, out.as_mut_ptr(), out.len()) }
        !self.has_poison()
    }

    /// As [`Window::read_mapped`], for an aligned word, with acquire order.
    #[inline]
    pub(crate) fn load_word_mapped(&self, at: u64) -> Option<u64> {
        let place = self.place(at, 8)?.cast::<u64>();
        assert!(place.is_aligned(), "a word must be aligned to 8 bytes");
        // SAFETY: eight bytes are mapped from `place` on, aligned, and readable. A relaxed load of a word
        // is sound on memory that is mapped for reading only; the fence gives it acquire order.
        let value = unsafe { AtomicU64::from_ptr(place.cast_mut()) }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (!self.has_poison()).then(|| u64::from_le(value))
    }

    #[inline]
    fn place(&self, at: u64, len: u64) -> Option<*const u8> {
        let space = self.space.as_ref()?;
        let end = at.checked_add(len)?;
        let place = || space.range.base.cast_const().wrapping_add(to_usize(at));
        (end <= space.range.mapped()).then(place)
    }

    #[inline]
    fn has_poison(&self) -> bool {
        self.space.as_ref().is_some_and(|space| space.registration.poisoned().any())
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.is_mapped() { "mapped" } else { "by its table" };
        write!(f, "Window({} of {} regions, {how})", self.regions(), self.regions_max())
    }
}

/// Address space for the runs of a window, mapped for reading at its front.
pub(crate) struct WindowSpace {
    /// Declared before `range`, hence dropped before it: the handler must forget the range first.
    registration: Registration,
    range: ReservedRange,
}

/// Reserved address space with a mapped front. Released when dropped.
struct ReservedRange {
    raw: *mut c_void,
    raw_len: usize,
    base: *mut u8,
    /// Bytes mapped from `base` on.
    mapped: AtomicU64,
    /// The range past `mapped` may have become someone else's: it must be neither mapped nor unmapped.
    tail_lost: AtomicBool,
}

// SAFETY: the range is shared memory without thread affinity, which is only read, through raw pointers;
// the other fields are atomics or never change.
unsafe impl Send for ReservedRange {}
// SAFETY: as above; `extend` is serialised by its caller.
unsafe impl Sync for ReservedRange {}

impl WindowSpace {
    /// Reserves address space for so many regions of memory in pages of `page` bytes; `None` if the space, or
    /// a slot to catch its memory errors, is missing.
    pub(crate) fn reserve(regions: u64, page: u64) -> Option<Self> {
        let (raw, raw_len) = reserve_range(regions.checked_mul(WINDOW_REGION_BYTES)?).ok()?;
        let base = raw.cast::<u8>().wrapping_add(raw.addr().next_multiple_of(ALIGN) - raw.addr());
        let (mapped, tail_lost) = (AtomicU64::new(0), AtomicBool::new(false));
        let range = ReservedRange { raw, raw_len, base, mapped, tail_lost };
        let registered = Registration::new(base.addr(), raw_len - ALIGN, to_usize(page));
        Some(Self { registration: registered.ok()??, range })
    }
}

impl ReservedRange {
    /// Bytes mapped from its start on.
    #[inline]
    fn mapped(&self) -> u64 {
        self.mapped.load(Ordering::Acquire)
    }

    /// Maps the run at `run` of `file` as region number `region`, if all before it are mapped and the
    /// system lets it. Not to be called by two threads at a time.
    fn extend(&self, region: u64, file: &File, flags: MapFlags, run: PoolOffset) {
        let at = region * WINDOW_REGION_BYTES;
        if self.mapped() != at || self.tail_lost.load(Ordering::Relaxed) {
            return;
        }
        let (place, bytes) = (self.base.wrapping_add(to_usize(at)), to_usize(WINDOW_REGION_BYTES));
        // Elsewhere first, so that errors show before a part of the reservation is released.
        // SAFETY: the kernel chooses a free place.
        let Ok(elsewhere) =
            (unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, flags, file, run.0) })
        else {
            return;
        };
        // SAFETY: mapped above, and known to nobody else. It cannot fail for such a range.
        let _cannot_fail = unsafe { munmap(elsewhere, bytes) };
        let fixed = flags | MapFlags::FIXED;
        // SAFETY: replaces inaccessible memory of our own reservation.
        match unsafe { mmap(place.cast(), bytes, ProtFlags::READ, fixed, file, run.0) } {
            Ok(_) => {
                let _best_effort = own_memory::exempt(place, bytes);
                self.mapped.store(at + WINDOW_REGION_BYTES, Ordering::Release);
            }
            // The kernel may have unmapped the region before it failed.
            Err(_) => self.tail_lost.store(true, Ordering::Relaxed),
        }
    }
}

impl Drop for ReservedRange {
    fn drop(&mut self) {
        let (start, len) = if *self.tail_lost.get_mut() {
            (self.base.cast(), to_usize(*self.mapped.get_mut()))
        } else {
            (self.raw, self.raw_len)
        };
        if len > 0 {
            // SAFETY: our own range, to which nobody holds a pointer any more. It cannot fail for such a
            // range, and there would be nothing to do about it.
            let _cannot_fail = unsafe { munmap(start, len) };
        }
    }
}
