//! The C library's allocation functions.
//!
//! Each address determines its owner: the allocator if it lies in the region, `aligned` if it has
//! the alignment of that module, else `internal_heap`.
//!
//! These functions are never inlined: if Rust's library frees an allocation of the C library
//! (`realpath`), both must reach the same allocator, the program's if it has one.

use std::ptr;

use libc::{c_int, c_void, size_t};
use libmimalloc_sys as mi;

use crate::heap::{ArenaOutcome, Heap};
use crate::kernel::PAGE;
use crate::{aligned, any_heap, heap, internal_heap, kernel, outside_heap, vfork};

/// The alignment of allocations larger than a [`WORD`].
const ALIGN: usize = 16;
/// The alignment of everything: smaller objects than this can do with it.
const WORD: usize = size_of::<usize>();
/// Arenas added for one allocation: other threads may take from a new one first.
const ARENAS_MAX: u32 = 4;

fn out_of_memory() -> *mut c_void {
    kernel::set_errno(libc::ENOMEM);
    ptr::null_mut()
}

/// Tries to allocate, and gives the allocator more to allocate from if it fails.
fn with_room(heap: &Heap, bytes: usize, allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    let mut added = 0;
    loop {
        let seen = heap.arenas();
        let at = allocate();
        if !at.is_null() {
            return at;
        }
        if bytes > isize::MAX as usize || added == ARENAS_MAX {
            return out_of_memory();
        }
        match outside_heap(|| heap.add_arena(seen, bytes)) {
            ArenaOutcome::Now => added += 1,
            ArenaOutcome::ByAnother => {}
            ArenaOutcome::Not => return out_of_memory(),
        }
    }
}

fn allocate(bytes: usize, align: usize, zeroed: bool) -> *mut c_void {
    let Some(heap) = heap() else {
        let at = internal_heap::allocate(bytes, align);
        return if at.is_null() { out_of_memory() } else { at.cast() };
    };
    if align >= aligned::ALIGN_MIN {
        let at = aligned::allocate(heap, bytes, align);
        return if at.is_null() { out_of_memory() } else { at };
    }
    let room = bytes.saturating_add(align);
    if !heap.has_memory(room) {
        return out_of_memory();
    }
    let is_plain = align <= WORD || align <= ALIGN && bytes > WORD;
    with_room(heap, room, || match (is_plain, zeroed) {
        // SAFETY: any size may be asked for.
        (true, false) => unsafe { mi::mi_malloc(bytes) },
        // SAFETY: as above.
        (true, true) => unsafe { mi::mi_zalloc(bytes) },
        // SAFETY: as above; callers give powers of two.
        (false, _) => unsafe { mi::mi_malloc_aligned(bytes, align) },
    })
}

/// The heap, if an address lies in it.
fn heap_of(at: *mut c_void) -> Option<&'static Heap> {
    any_heap().filter(|heap| heap.contains(at.addr()))
}

/// As `malloc(3)`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    allocate(bytes, WORD, false)
}

/// As `calloc(3)`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn calloc(count: size_t, each: size_t) -> *mut c_void {
    match count.checked_mul(each) {
        Some(bytes) => allocate(bytes, WORD, true),
        None => out_of_memory(),
    }
}

/// As `free(3)`.
///
/// # Safety
/// As there.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(at: *mut c_void) {
    if at.is_null() {
        return;
    }
    let Some(heap) = heap_of(at) else {
        // SAFETY: the caller's promise; an allocation outside the heap is from the internal heap.
        return unsafe { internal_heap::free(at.cast()) };
    };
    // The parent may still use an allocation freed by the child.
    if vfork::is_child() {
        return;
    }
    if aligned::is_over_aligned(at) {
        // SAFETY: the caller's promise; no other allocation of the heap has this alignment.
        unsafe { aligned::free(heap, at) };
    } else {
        // The allocator may discard earlier freed memory, and the kernel may refuse locked memory.
        let errno = kernel::errno();
        // SAFETY: the caller's promise; it lies in the allocator's arenas.
        unsafe { mi::mi_free(at) };
        kernel::set_errno(errno);
    }
}

/// As `realloc(3)`.
///
/// # Safety
/// As there.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realloc(at: *mut c_void, bytes: size_t) -> *mut c_void {
    if at.is_null() {
        return malloc(bytes);
    }
    if let Some(heap) = heap().filter(|heap| heap.contains(at.addr())) {
        if bytes == 0 {
            // SAFETY: the caller's promise.
            unsafe { free(at) };
            return ptr::null_mut();
        }
        if !aligned::is_over_aligned(at) {
            // SAFETY: the caller's promise.
            // SAFETY: the caller's promise.
            let grows = bytes > unsafe { mi::mi_usable_size(at) };
            if grows && !heap.has_memory(bytes) {
                return out_of_memory();
            }
            // SAFETY: the caller's promise.
            return with_room(heap, bytes, || unsafe { mi::mi_realloc(at, bytes) });
        }
    }
    // SAFETY: the caller's promise.
    unsafe { move_to_new(at, bytes) }
}

/// # Safety
/// As `realloc(3)`, for an existing allocation.
unsafe fn move_to_new(at: *mut c_void, bytes: usize) -> *mut c_void {
    let new = malloc(bytes);
    if !new.is_null() {
        // SAFETY: the caller's promise.
        let len = unsafe { malloc_usable_size(at) }.min(bytes);
        // SAFETY: both have `len` bytes, and the new one has no other user.
        unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast(), len) };
        // SAFETY: the caller's promise.
        unsafe { free(at) };
    }
    new
}

/// As `reallocarray(3)`.
///
/// # Safety
/// As there.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn reallocarray(
    at: *mut c_void,
    count: size_t,
    each: size_t,
) -> *mut c_void {
    match count.checked_mul(each) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(at, bytes) },
        None => out_of_memory(),
    }
}

/// As `malloc_usable_size(3)`.
///
/// # Safety
/// As there.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> size_t {
    if at.is_null() {
        0
    } else if heap_of(at).is_none() {
        // SAFETY: the caller's promise.
        unsafe { internal_heap::size(at.cast()) }
    } else if aligned::is_over_aligned(at) {
        // SAFETY: the caller's promise; no other allocation of the heap has this alignment.
        unsafe { aligned::size(at) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { mi::mi_usable_size(at) }
    }
}

/// As `posix_memalign(3)`.
///
/// # Safety
/// As there.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_memalign(
    to: *mut *mut c_void,
    align: size_t,
    bytes: size_t,
) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let errno = kernel::errno();
    let at = allocate(bytes, align, false);
    kernel::set_errno(errno);
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(at) };
    0
}

/// As `aligned_alloc(3)`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void {
    if !align.is_power_of_two() {
        kernel::set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    allocate(bytes, align, false)
}

/// As `memalign(3)`, for any alignment.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn memalign(align: size_t, bytes: size_t) -> *mut c_void {
    match align.max(1).checked_next_power_of_two() {
        Some(align) => allocate(bytes, align, false),
        None => out_of_memory(),
    }
}

/// As `valloc(3)`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn valloc(bytes: size_t) -> *mut c_void {
    allocate(bytes, PAGE, false)
}

/// As `pvalloc(3)`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn pvalloc(bytes: size_t) -> *mut c_void {
    match bytes.checked_next_multiple_of(PAGE) {
        Some(bytes) => allocate(bytes, PAGE, false),
        None => out_of_memory(),
    }
}
