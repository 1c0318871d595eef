//! The pages of a region: real memory behind the pager's steps.
//!
//! Owns the address range, registered with its userfaultfd. Invariant: a page appears only by copy
//! or zero-fill, and is removed only by zap. Zap first checks that the descriptor still is this
//! range's userfaultfd: without it the kernel would fill removed pages with zeroes. Locks by the
//! program (`mlock`) do not keep pages, if the kernel can remove locked pages.

#![allow(unsafe_code, reason = "mapping the region, moving its pages and reading them")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use libc::c_void;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::region::paged::engine::WINDOW;
use crate::region::paged::memory::{Memory, MemoryError};
use crate::region::paged::uffd::Uffd;
use crate::region::threads::pause;
use crate::region::units::UnitNo;
use crate::region::units::UnitRun;
use crate::slots::SlotNo;
use crate::slots::index;
use crate::store::{SwapSpace, UNIT};

const WINDOW_BYTES: usize = index(WINDOW) * UNIT;
/// Names this process where a descriptor of one is asked for (Linux 6.15).
const PIDFD_SELF_THREAD_GROUP: RawFd = -10_001;
/// Bytes for each page in the kernel's map of them.
const PAGEMAP_ENTRY: usize = 8;
/// Pages of it read by one call.
const PAGEMAP_PART: usize = 8192;
/// Maximum number of runs removed by one call.
const RUNS_MAX: usize = 64;

static ZEROES: [u8; WINDOW_BYTES] = [0; WINDOW_BYTES];

/// The pages of a region.
pub(crate) struct UffdMemory {
    base: *mut u8,
    raw: *mut c_void,
    raw_len: usize,
    /// Existing bytes at the beginning. They stay if the set-up fails: 0 after
    /// [`keep`](Self::keep).
    lent: AtomicUsize,
    /// The first unit behind existing memory. The kernel has two mappings there and refuses to fill
    /// or protect a range across both.
    seam: u64,
    pub(crate) uffd: Uffd,
    space: Arc<SwapSpace>,
    /// The kernel takes a list of ranges.
    zaps_lists: AtomicBool,
    /// The kernel removes pages locked by the program.
    zaps_locked: AtomicBool,
}

// SAFETY: the range is memory without thread affinity, and the pointers never change. The pager
// decides which thread may access a page.
unsafe impl Send for UffdMemory {}
// SAFETY: as above.
unsafe impl Sync for UffdMemory {}

impl UffdMemory {
    /// Maps `len` bytes without pages, aligned to a window.
    pub(crate) fn map(len: usize, uffd: Uffd, space: Arc<SwapSpace>) -> io::Result<Self> {
        let raw_len = len + WINDOW_BYTES;
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the kernel chooses a free place.
        let raw = unsafe { mmap_anonymous(ptr::null_mut(), raw_len, access, flags) }?;
        let skip = raw.addr().next_multiple_of(WINDOW_BYTES) - raw.addr();
        let base = raw.cast::<u8>().wrapping_add(skip);
        Self::of(base, raw, raw_len, 0, uffd, space).registered(len)
    }

    /// Takes existing memory, whole pages from a multiple of a window on, as the first of `len`
    /// bytes, and maps the rest behind it. Its contents stay; [`present`](Self::present) reports
    /// the units with pages. Until [`keep`](Self::keep) the memory is on loan: if this is dropped
    /// before, without an eviction, the memory is unchanged.
    ///
    /// # Safety
    /// The range is private anonymous memory, and from now on only this type changes its mapping.
    pub(crate) unsafe fn over(
        existing: &Range<usize>,
        len: usize,
        uffd: Uffd,
        space: Arc<SwapSpace>,
    ) -> io::Result<Self> {
        let raw = ptr::with_exposed_provenance_mut::<c_void>(existing.start);
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        let behind = raw.wrapping_byte_add(existing.len());
        let more = len - existing.len();
        if more > 0 {
            let flags = flags | MapFlags::FIXED_NOREPLACE;
            // SAFETY: the kernel refuses an address with an existing mapping.
            let found = unsafe { mmap_anonymous(behind, more, access, flags) }?;
            if found != behind {
                // SAFETY: just mapped by an old kernel, for which the address is a hint.
                unsafe { munmap(found, more) }?;
                return Err(io::ErrorKind::AlreadyExists.into());
            }
        }
        let (base, seam) = (raw.cast(), (existing.len() / UNIT) as u64);
        let pages = Self::of(base, raw, len, seam, uffd, space);
        pages.lent.store(existing.len(), Relaxed);
        pages.registered(len)
    }

    /// Takes ownership of the existing memory.
    pub(crate) fn keep(&self) {
        self.lent.store(0, Relaxed);
    }

    fn of(
        base: *mut u8,
        raw: *mut c_void,
        raw_len: usize,
        seam: u64,
        uffd: Uffd,
        space: Arc<SwapSpace>,
    ) -> Self {
        let (zaps_lists, zaps_locked) = (AtomicBool::new(true), AtomicBool::new(true));
        let lent = AtomicUsize::new(0);
        Self { base, raw, raw_len, lent, seam, uffd, space, zaps_lists, zaps_locked }
    }

    /// The units of the first `len` bytes with pages.
    pub(crate) fn present(&self, len: usize) -> io::Result<Vec<UnitNo>> {
        let found = self.in_dram_or_swap(len).or_else(|_no_pagemap| self.in_dram(len))?;
        let units = (0..).map(UnitNo).zip(found);
        Ok(units.filter_map(|(at, is_there)| is_there.then_some(at)).collect())
    }

    /// Presence of the pages of the first `len` bytes, in DRAM or swapped out by the system.
    fn in_dram_or_swap(&self, len: usize) -> io::Result<Vec<bool>> {
        let map = File::open("/proc/self/pagemap")?;
        let (first, units) = (self.base.addr() / UNIT, len / UNIT);
        let mut entries = vec![0u8; units.min(PAGEMAP_PART) * PAGEMAP_ENTRY];
        let mut found = Vec::with_capacity(units);
        while found.len() < units {
            let some = &mut entries[..(units - found.len()).min(PAGEMAP_PART) * PAGEMAP_ENTRY];
            map.read_exact_at(some, ((first + found.len()) * PAGEMAP_ENTRY) as u64)?;
            // The highest two bits mark a page in DRAM and a page in swap.
            let highest = some.chunks_exact(PAGEMAP_ENTRY).map(|entry| entry[PAGEMAP_ENTRY - 1]);
            found.extend(highest.map(|byte| byte >> 6 != 0));
        }
        Ok(found)
    }

    /// Presence in DRAM of the pages of the first `len` bytes.
    fn in_dram(&self, len: usize) -> io::Result<Vec<bool>> {
        let mut found = vec![0u8; len / UNIT];
        // SAFETY: the vector has a byte for each page of the mapped range.
        if unsafe { libc::mincore(self.base.cast(), len, found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(found.into_iter().map(|found| found & 1 == 1).collect())
    }

    /// Registers the range for faults on missing pages, and excludes it from forked children.
    fn registered(self, len: usize) -> io::Result<Self> {
        let (raw, raw_len) = (self.raw, self.raw_len);
        // A child must not read zeroes instead of bytes in a slot: it does not get this memory.
        // SAFETY: our own range, and the advice changes nothing in this process.
        unsafe { madvise(raw, raw_len, Advice::LinuxDontFork) }?;
        // An optimisation only: the kernel makes no large pages of registered memory without a
        // request.
        // SAFETY: as above.
        let _best_effort = unsafe { madvise(raw, raw_len, Advice::LinuxNoHugepage) };
        self.uffd.register(self.base.addr(), len)?;
        Ok(self)
    }

    /// Slots of the space, free and used.
    pub(crate) fn slots(&self) -> u64 {
        self.space.slots()
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Shares the present pages of the region with forked children, or nothing of it. On failure of
    /// the former it shares nothing.
    pub(crate) fn share_with_children(&self, share: bool) -> io::Result<()> {
        let advise = |advice| {
            // SAFETY: our own range, and the advice changes nothing in this process.
            unsafe { madvise(self.raw, self.raw_len, advice) }
        };
        if !share {
            return Ok(advise(Advice::LinuxDontFork)?);
        }
        let shared = advise(Advice::LinuxDoFork);
        if shared.is_err() {
            // Some of several mappings may be shared by now. The caller gets the first error.
            let _as_before = advise(Advice::LinuxDontFork);
        }
        Ok(shared?)
    }

    /// Splits a run at the border of two mappings.
    fn split(&self, run: UnitRun) -> [UnitRun; 2] {
        let (first, end) = (run.first.0, run.first.0 + run.units);
        let middle = self.seam.clamp(first, end);
        let part = |from: u64, to: u64| UnitRun { first: UnitNo(from), units: to - from };
        [part(first, middle), part(middle, end)]
    }

    /// Units from `at` on, at most `units`, within one mapping.
    fn together(&self, at: UnitNo, units: u64) -> u64 {
        let [before, behind] = self.split(UnitRun { first: at, units });
        if before.units > 0 { before.units } else { behind.units }
    }

    fn set_protected(&self, run: UnitRun, protect: bool) -> Result<(), MemoryError> {
        for part in self.split(run).into_iter().filter(|part| part.units > 0) {
            let (start, len) = (self.place(part.first).addr(), index(part.units) * UNIT);
            let mut done = self.uffd.protect(start, len, protect);
            if len > UNIT && lies_in_several(&done) {
                let mut pages = (start..start + len).step_by(UNIT);
                done = pages.try_for_each(|page| self.uffd.protect(page, UNIT, protect));
            }
            done.map_err(|error| reason(&error))?;
        }
        Ok(())
    }

    fn place(&self, at: UnitNo) -> *mut u8 {
        self.base.wrapping_add(index(at.0) * UNIT)
    }

    /// Takes runs away by one call.
    fn zap_list(runs: &[UnitRun], place: impl Fn(UnitNo) -> *mut u8) -> bool {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut list = [empty; RUNS_MAX];
        let mut bytes = 0;
        for (entry, run) in list.iter_mut().zip(runs) {
            entry.iov_base = place(run.first).cast();
            entry.iov_len = index(run.units) * UNIT;
            bytes += entry.iov_len;
        }
        // SAFETY: the list names pages of our own range, whose units the caller owns.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                PIDFD_SELF_THREAD_GROUP,
                list.as_ptr(),
                runs.len(),
                libc::MADV_DONTNEED_LOCKED,
                0,
            )
        };
        usize::try_from(done) == Ok(bytes)
    }

    /// Takes a run away, also where the program has locked it, if the kernel can (Linux 5.18).
    fn zap_run(&self, run: UnitRun) -> io::Result<()> {
        let (start, len) = (self.place(run.first), index(run.units) * UNIT);
        if self.zaps_locked.load(Relaxed) {
            // SAFETY: pages of our own range, whose units the caller owns: their bytes are
            // elsewhere or unwanted.
            let done = unsafe { advise(start, len, libc::MADV_DONTNEED_LOCKED) };
            if !is_refused(&done) {
                return done;
            }
        }
        // SAFETY: as above.
        let done = unsafe { advise(start, len, libc::MADV_DONTNEED) };
        if done.is_ok() {
            self.zaps_locked.store(false, Relaxed);
        }
        done
    }
}

impl Memory for UffdMemory {
    fn copy_in(
        &self,
        at: UnitNo,
        slot: SlotNo,
        units: u64,
        protect: bool,
    ) -> Result<u64, MemoryError> {
        let store = self.space.store();
        // Behind the end of a group of slots the next one is elsewhere.
        let mut units = self.together(at, units.min(512 - slot.0 % 512));
        if !store.is_readable(slot, units) {
            if units == 1 || !store.is_readable(slot, 1) {
                return Err(MemoryError::Unreadable);
            }
            // The requested unit gets the slot; the others were for read-ahead.
            units = 1;
        }
        let (to, from) = (self.place(at).addr(), store.address(slot));
        fill(units, |len| {
            // SAFETY: the caller owns the units, which have no pages, so no code has seen other
            // bytes than the slots' since.
            unsafe { self.uffd.copy(to, from, len, protect) }
        })
    }

    fn zero_in(&self, at: UnitNo, units: u64, is_store: bool) -> Result<u64, MemoryError> {
        let units = self.together(at, units);
        let to = self.place(at).addr();
        fill(units, |len| {
            if is_store || units > 1 {
                // A private page now, because a store to a zero page would fault again.
                // SAFETY: the caller owns the units, which hold zeroes and have no pages.
                unsafe { self.uffd.copy(to, ZEROES.as_ptr(), len, false) }
            } else {
                // SAFETY: as above.
                unsafe { self.uffd.zero(to, len) }
            }
        })
    }

    fn protect(&self, run: UnitRun) -> Result<(), MemoryError> {
        self.set_protected(run, true)
    }

    fn unprotect(&self, run: UnitRun) -> Result<(), MemoryError> {
        self.set_protected(run, false)
    }

    fn zap(&self, runs: &[UnitRun]) -> Result<(), MemoryError> {
        self.uffd.wake(self.base.addr(), UNIT).map_err(|error| reason(&error))?;
        for some in runs.chunks(RUNS_MAX) {
            if self.zaps_lists.load(Relaxed) && some.len() > 1 {
                if Self::zap_list(some, |at| self.place(at)) {
                    continue;
                }
                self.zaps_lists.store(false, Relaxed);
            }
            for run in some {
                let done = self.zap_run(*run);
                if is_refused(&done) {
                    return Err(MemoryError::Locked);
                }
                done.map_err(|error| reason(&error))?;
            }
        }
        Ok(())
    }

    fn is_zero(&self, at: UnitNo) -> bool {
        let words = self.place(at).cast::<u64>();
        (0..UNIT / size_of::<u64>()).all(|nth| {
            // SAFETY: within a page of our range; any bytes are a word. A concurrent store
            // invalidates the result, and the pager detects it.
            unsafe { words.wrapping_add(nth).read_volatile() == 0 }
        })
    }

    fn copy_out(&self, at: UnitNo, slot: SlotNo) {
        // SAFETY: a page of our range, which is not part of a store. A concurrent store invalidates
        // the copy, and the pager detects it.
        unsafe { self.space.write(slot, self.place(at)) }
    }

    fn check_copied(&self) -> Result<(), MemoryError> {
        self.space.store().check().map_err(|_reason| MemoryError::StoreFailed)
    }

    fn pause(&self, tries: u32) {
        pause(tries);
    }
}

impl Drop for UffdMemory {
    fn drop(&mut self) {
        let lent = *self.lent.get_mut();
        if lent > 0 {
            // Its registration ends with the descriptor.
            // SAFETY: the range is mapped, and the advice changes nothing in this process.
            let _cannot_fail = unsafe { madvise(self.raw, lent, Advice::LinuxDoFork) };
        }
        if self.raw_len > lent {
            // SAFETY: our own range, unused from now on. The call cannot fail for such a range, and
            // a failure has no remedy.
            let _cannot_fail =
                unsafe { munmap(self.raw.wrapping_byte_add(lent), self.raw_len - lent) };
        }
    }
}

/// `madvise` by system call, because the program may replace the C library's function.
///
/// # Safety
/// As `madvise(2)`.
unsafe fn advise(start: *mut u8, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: the caller's promise.
    match unsafe { libc::syscall(libc::SYS_madvise, start, len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// True if the kernel knows no such advice, or gives it up for such memory.
fn is_refused(done: &io::Result<()>) -> bool {
    done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

/// Fills `units` units, at least 1, by a call with their bytes. Fills only the first one if the
/// program has split the mapping by a change of access rights.
fn fill(units: u64, call: impl Fn(usize) -> io::Result<usize>) -> Result<u64, MemoryError> {
    let mut filled = call(index(units) * UNIT);
    if units > 1 && lies_in_several(&filled) {
        filled = call(UNIT);
    }
    pages_of(filled)
}

/// True if the kernel may have refused a range because it spans several mappings. For a single page
/// this means that it is in no mapping of the region.
fn lies_in_several<T>(done: &io::Result<T>) -> bool {
    done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
}

fn pages_of(filled: io::Result<usize>) -> Result<u64, MemoryError> {
    match filled {
        Ok(bytes) if bytes >= UNIT => Ok((bytes / UNIT) as u64),
        Ok(_) => Err(MemoryError::Again),
        Err(error) => Err(reason(&error)),
    }
}

/// The meaning of a kernel's error for the pager.
fn reason(error: &io::Error) -> MemoryError {
    match error.raw_os_error() {
        Some(libc::EEXIST) => MemoryError::AlreadyThere,
        Some(libc::EFAULT | libc::EHWPOISON | libc::EIO) => MemoryError::Unreadable,
        Some(libc::EAGAIN | libc::ENOMEM | libc::EINTR) => MemoryError::Again,
        _ => MemoryError::DescriptorLost,
    }
}
