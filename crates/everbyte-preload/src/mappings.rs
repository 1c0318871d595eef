//! The C library's functions about mappings.
//!
//! Private anonymous mappings of a sufficient size become parts of the heap; all other mappings go
//! to the kernel. In the heap, `madvise` and `mremap` have their usual effect. A call that removes
//! all access has no effect: an unreadable page cannot page, so it stays accessible. For a child by
//! `vfork` the heap is its parent's memory: the child maps, unmaps and pins no part of it. If a
//! range lies in the heap only in part, as a variable can, the rest goes to the kernel.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicBool;

use libc::{c_int, c_uint, c_void, off_t, size_t};

use crate::heap::Heap;
use crate::kernel::{PAGE, READ_WRITE};
use crate::stderr::{print, print_once};
use crate::{any_heap, fork_advice, heap, kernel, outside_heap, vfork};

/// Mappings from this size on are paged.
const PAGED_MIN: usize = 1 << 20;
/// Flags of private mappings left to the kernel.
const NOT_PAGED: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_32BIT;

/// Advice for guard pages (Linux 6.13).
const MADV_GUARD_INSTALL: c_int = 102;

/// The message about unlocked memory was printed.
static MLOCK_REPORTED: AtomicBool = AtomicBool::new(false);

/// Refusals printed already.
static MMAP_REPORTED: AtomicBool = AtomicBool::new(false);
static MREMAP_REPORTED: AtomicBool = AtomicBool::new(false);

fn report_once(what: &str, is_reported: &AtomicBool) {
    outside_heap(|| print_once(&format!("{what} fails: the memory would not page"), is_reported));
}

fn failed(error: c_int) -> *mut c_void {
    kernel::set_errno(error);
    kernel::FAILED
}

fn refused(error: c_int) -> c_int {
    kernel::set_errno(error);
    -1
}

fn pages(at: *mut c_void, len: usize) -> Option<Range<usize>> {
    let end = at.addr().checked_add(len.checked_next_multiple_of(PAGE)?)?;
    Some(at.addr()..end)
}

/// The heap and the part of a range in it.
fn in_heap(at: *mut c_void, len: usize) -> Option<(&'static Heap, Range<usize>)> {
    let heap = any_heap()?;
    let part = heap.overlap(&pages(at, len)?);
    (!part.is_empty()).then_some((heap, part))
}

/// Applies `call` to the parts of a range before and behind `part`, the heap's part. Returns the
/// first nonzero result.
fn around(
    at: *mut c_void,
    len: usize,
    part: &Range<usize>,
    call: impl Fn(*mut c_void, usize) -> c_int,
) -> c_int {
    let all = pages(at, len).unwrap_or_else(|| part.clone());
    for rest in [all.start..part.start, part.end..all.end] {
        if !rest.is_empty() {
            let result = call(ptr::with_exposed_provenance_mut(rest.start), rest.len());
            if result != 0 {
                return result;
            }
        }
    }
    0
}

/// As `mmap(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // Excludes shared mappings, and mappings neither shared nor private, refused by the kernel.
    let is_private_anonymous =
        flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    // The whole heap is mapped, so the kernel itself refuses mappings there that must not replace
    // others.
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED
        && let Some((heap, part)) = in_heap(at, len)
    {
        let is_inside = pages(at, len).is_some_and(|all| all == part);
        let is_whole = is_inside && at.addr().is_multiple_of(PAGE);
        // Memory shared by children and parents cannot page; made private, it would be two
        // memories.
        if !is_private_anonymous || !is_whole || vfork::is_child() {
            report_once("mmap of a file or of shared memory over paged memory", &MMAP_REPORTED);
            return failed(libc::EINVAL);
        }
        outside_heap(|| fork_advice::forget(&part));
        if !outside_heap(|| heap.renew(part)) {
            return failed(libc::ENOMEM);
        }
        // SAFETY: the caller's promise.
        let is_done = prot == READ_WRITE || unsafe { mprotect(at, len, prot) } == 0;
        return if is_done { at } else { kernel::FAILED };
    }
    let is_paged = is_private_anonymous && flags & NOT_PAGED == 0 && prot == READ_WRITE;
    if is_paged
        && len >= PAGED_MIN
        && let Some(heap) = heap()
        && let Some(whole) = len.checked_next_multiple_of(PAGE)
    {
        if let Some(found) = outside_heap(|| heap.take(whole, PAGE)) {
            return ptr::with_exposed_provenance_mut(found);
        }
        // Address space with usually little use may be left to the kernel.
        if flags & libc::MAP_NORESERVE == 0 {
            return failed(libc::ENOMEM);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { kernel::mmap(at, len, prot, flags, fd, offset) }
}

/// As `mmap64(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(at, len, prot, flags, fd, offset) }
}

/// As `munmap(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    let Some((heap, part)) = in_heap(at, len) else {
        // SAFETY: the caller's promise.
        return unsafe { kernel::munmap(at, len) };
    };
    if !at.addr().is_multiple_of(PAGE) {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    let result = around(at, len, &part, |at, len| unsafe { kernel::munmap(at, len) });
    if result == 0 && !vfork::is_child() {
        outside_heap(|| {
            fork_advice::forget(&part);
            heap.free(part);
        });
    }
    result
}

/// As `mremap(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    let target = in_heap(new_at, new_len).filter(|_| flags & libc::MREMAP_FIXED != 0);
    let Some((heap, part)) = in_heap(at, old_len.max(1)) else {
        if target.is_some() {
            report_once("mremap over paged memory", &MREMAP_REPORTED);
            return failed(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        return unsafe { kernel::mremap(at, old_len, new_len, flags, new_at) };
    };
    let (Some(old), Some(new)) = (pages(at, old_len), pages(at, new_len)) else {
        return failed(libc::EINVAL);
    };
    let keeps_old = flags == libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let is_plain = flags & !libc::MREMAP_MAYMOVE == 0;
    if !is_plain && !keeps_old {
        report_once("mremap of paged memory to a given place", &MREMAP_REPORTED);
    }
    if !(is_plain || keeps_old && old == new)
        || old_len == 0
        || new_len == 0
        || !old.start.is_multiple_of(PAGE)
    {
        return failed(libc::EINVAL);
    }
    if part != old || outside_heap(|| heap.has_free(&old)) {
        return failed(libc::EFAULT);
    }
    if vfork::is_child() {
        return failed(libc::ENOMEM);
    }
    if keeps_old {
        // SAFETY: the caller's promise; the range is the heap's.
        return unsafe { move_contents(heap, &old) };
    }
    if new.end < old.end {
        outside_heap(|| {
            fork_advice::forget(&(new.end..old.end));
            heap.free(new.end..old.end);
        });
    }
    if new.end <= old.end {
        return at;
    }
    // SAFETY: the caller's promise; the range is the heap's.
    unsafe { lengthen(heap, &old, new.end - new.start, flags & libc::MREMAP_MAYMOVE != 0) }
}

/// Changes the length of a part of the heap to `len` bytes, in place or elsewhere. Locked memory
/// stays locked, including the added bytes.
///
/// # Safety
/// The caller owns the part. If it moves, the old place is unused.
unsafe fn lengthen(heap: &Heap, old: &Range<usize>, len: usize, may_move: bool) -> *mut c_void {
    let at: *mut c_void = ptr::with_exposed_provenance_mut(old.start);
    let is_locked = outside_heap(|| heap.is_pinned(old));
    let more = old.end..old.start + len;
    if outside_heap(|| heap.take_at(more.clone())) {
        if !is_locked || outside_heap(|| heap.pin(&more)).is_ok() {
            outside_heap(|| fork_advice::carry(old, &(old.start..more.end)));
            return at;
        }
        outside_heap(|| heap.free(more));
        return failed(libc::EAGAIN);
    }
    if !may_move {
        return failed(libc::ENOMEM);
    }
    let Some(found) = outside_heap(|| heap.take(len, PAGE)) else {
        return failed(libc::ENOMEM);
    };
    let new = found..found + len;
    // Pins both places together if the limit allows it: locked memory must not leave DRAM during
    // the move.
    if is_locked && !outside_heap(|| heap.pin(&new).is_ok() || heap.move_pins(old, &new)) {
        outside_heap(|| heap.free(new));
        return failed(libc::EAGAIN);
    }
    let to: *mut c_void = ptr::with_exposed_provenance_mut(found);
    // SAFETY: the caller owns the old range, and the new one is larger and unused.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), to.cast(), old.end - old.start) };
    outside_heap(|| {
        fork_advice::carry(old, &new);
        fork_advice::forget(old);
        heap.free(old.clone());
    });
    to
}

/// Moves the contents of a part to a new place, and leaves zeroes.
///
/// # Safety
/// The caller owns the part.
unsafe fn move_contents(heap: &Heap, old: &Range<usize>) -> *mut c_void {
    let len = old.end - old.start;
    // Locked memory cannot become zeroes without its pages.
    if outside_heap(|| heap.is_pinned(old)) {
        return failed(libc::EINVAL);
    }
    let Some(found) = outside_heap(|| heap.take(len, PAGE)) else {
        return failed(libc::ENOMEM);
    };
    let at: *const u8 = ptr::with_exposed_provenance(old.start);
    let to: *mut c_void = ptr::with_exposed_provenance_mut(found);
    // SAFETY: the caller owns the old range, and the new one is as large and unused.
    unsafe { ptr::copy_nonoverlapping(at, to.cast(), len) };
    if !outside_heap(|| heap.discard_writable(old)) {
        outside_heap(|| heap.free(found..found + len));
        return failed(libc::ENOMEM);
    }
    outside_heap(|| fork_advice::carry(old, &(found..found + len)));
    to
}

/// As `madvise(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn madvise(at: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let Some((heap, part)) = in_heap(at, len) else {
        // SAFETY: the caller's promise.
        return unsafe { kernel::madvise(at, len, advice) };
    };
    if !at.addr().is_multiple_of(PAGE) {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    if around(at, len, &part, |at, len| unsafe { kernel::madvise(at, len, advice) }) != 0 {
        return -1;
    }
    match advice {
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED if vfork::is_child() => {
            let at = ptr::with_exposed_provenance_mut::<u8>(part.start);
            // SAFETY: the caller's promise: these bytes may become zeroes.
            unsafe { at.write_bytes(0, part.end - part.start) };
        }
        libc::MADV_FREE if vfork::is_child() => {}
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED | libc::MADV_FREE => {
            // Locked memory is not discarded, as in ordinary memory.
            if outside_heap(|| heap.is_pinned(&part)) {
                return refused(libc::EINVAL);
            }
            if !outside_heap(|| heap.discard_writable(&part)) {
                return refused(libc::ENOMEM);
            }
        }
        libc::MADV_DONTFORK | libc::MADV_WIPEONFORK | libc::MADV_DOFORK | libc::MADV_KEEPONFORK => {
            outside_heap(|| fork_advice::note(&part, advice));
        }
        // The heap does not allow these changes.
        libc::MADV_REMOVE | MADV_GUARD_INSTALL => return refused(libc::EINVAL),
        // The rest are hints or unknown to the kernel. The call with no bytes reports the latter.
        // SAFETY: of no bytes the advice does nothing.
        _ => return unsafe { kernel::madvise(at, 0, advice) },
    }
    0
}

/// As `mprotect(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mprotect(at: *mut c_void, len: size_t, prot: c_int) -> c_int {
    let mut prot = prot;
    if let Some((heap, part)) = in_heap(at, len) {
        // On this processor writable memory is readable.
        if prot & READ_WRITE == 0 && !heap.is_child() {
            if !at.addr().is_multiple_of(PAGE) {
                return refused(libc::EINVAL);
            }
            // SAFETY: the caller's promise.
            return around(at, len, &part, |at, len| unsafe { kernel::mprotect(at, len, prot) });
        }
        // Unmapped memory has no access rights to change.
        if outside_heap(|| heap.has_free(&part)) {
            return refused(libc::ENOMEM);
        }
        if prot & libc::PROT_WRITE != 0 {
            prot |= libc::PROT_READ;
        }
        heap.note_protected();
    }
    // SAFETY: the caller's promise.
    unsafe { kernel::mprotect(at, len, prot) }
}

/// Extends a range down to the start of its first page.
fn from_page(at: *const c_void, len: usize) -> (*mut c_void, usize) {
    let before = at.addr() % PAGE;
    (at.cast_mut().map_addr(|at| at - before), len.saturating_add(before))
}

/// The heap of this process, and the part of a range.
fn pinnable(at: *mut c_void, len: usize) -> Option<(&'static Heap, Range<usize>)> {
    in_heap(at, len).filter(|(heap, _)| !heap.is_child())
}

fn pin(heap: &Heap, part: &Range<usize>) -> c_int {
    if vfork::is_child() {
        return refused(libc::ENOMEM);
    }
    match outside_heap(|| heap.pin(part)) {
        Ok(()) => 0,
        Err(error) => {
            outside_heap(|| print_once(&format!("mlock fails: {error}"), &MLOCK_REPORTED));
            refused(libc::ENOMEM)
        }
    }
}

/// Locks a range: the part in the heap by pins, the rest by `lock`.
fn lock_range(at: *const c_void, len: usize, lock: impl Fn(*mut c_void, usize) -> c_int) -> c_int {
    let (first, bytes) = from_page(at, len);
    let Some((heap, part)) = pinnable(first, bytes) else {
        return lock(at.cast_mut(), len);
    };
    match around(first, bytes, &part, lock) {
        0 => pin(heap, &part),
        failed => failed,
    }
}

/// As `mlock(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(at: *const c_void, len: size_t) -> c_int {
    lock_range(at, len, |at, len| {
        // SAFETY: the caller's promise.
        kernel::status(unsafe { libc::syscall(libc::SYS_mlock, at, len) })
    })
}

/// As `mlock2(2)`. In the heap MLOCK_ONFAULT also brings in all pages immediately.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(at: *const c_void, len: size_t, flags: c_uint) -> c_int {
    if flags & !libc::MLOCK_ONFAULT != 0 {
        return refused(libc::EINVAL);
    }
    lock_range(at, len, |at, len| {
        // SAFETY: the caller's promise.
        kernel::status(unsafe { libc::syscall(libc::SYS_mlock2, at, len, flags) })
    })
}

/// As `munlock(2)`.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(at: *const c_void, len: size_t) -> c_int {
    let unlock = |at: *mut c_void, len: usize| {
        // SAFETY: the caller's promise.
        kernel::status(unsafe { libc::syscall(libc::SYS_munlock, at, len) })
    };
    let (first, bytes) = from_page(at, len);
    let Some((heap, part)) = pinnable(first, bytes) else {
        return unlock(at.cast_mut(), len);
    };
    // An unlocked part is not an error.
    if !vfork::is_child() {
        outside_heap(|| heap.unpin(&part));
    }
    around(first, bytes, &part, unlock)
}

/// As `mlockall(2)`. It fails, because it would keep the whole heap in DRAM.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlockall(flags: c_int) -> c_int {
    if any_heap().is_some_and(|heap| !heap.is_child()) {
        if vfork::is_child() {
            return refused(libc::ENOMEM);
        }
        outside_heap(|| {
            print("mlockall fails, because it would keep the whole heap in DRAM: mlock works")
        });
        return refused(libc::ENOMEM);
    }
    // SAFETY: the call takes flags alone.
    kernel::status(unsafe { libc::syscall(libc::SYS_mlockall, flags) })
}

/// As `munlockall(2)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn munlockall() -> c_int {
    if let Some(heap) = any_heap().filter(|heap| !heap.is_child()) {
        if vfork::is_child() {
            return 0;
        }
        outside_heap(|| heap.unpin_all());
    }
    // SAFETY: the call takes no arguments.
    kernel::status(unsafe { libc::syscall(libc::SYS_munlockall) })
}
