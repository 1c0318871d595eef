//! The library's own heap: memory that never pages.
//!
//! Two users: everything that is written in Rust here, the pager first of all, which must not wait for
//! itself; and what the program allocates before its own heap is there. A child by `vfork` has mappings of its own
//! from here instead, and changes nothing else. Invariant: its pages come from
//! the kernel directly, never through the functions that this library puts in the C library's place.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use dlmalloc::{Allocator, Dlmalloc};

use crate::kernel::{self, PAGE};
use crate::lock::Lock;
use crate::vfork;

/// Bytes before each allocation of the program's that say how large it is, and where it begins: two words.
const HEAD: usize = 16;
/// In the second of them, of a mapping of its own. Both alignments and the places where such allocations begin in their
/// mappings are multiples of 16.
const IS_MAPPED: usize = 1;

struct PrivatePages;

// SAFETY: `alloc` returns fresh pages of the kernel's, and the rest gives nothing back.
unsafe impl Allocator for PrivatePages {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        let at = kernel::map_private(bytes);
        if at.is_null() { (ptr::null_mut(), 0, 0) } else { (at, bytes, 0) }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

struct Blocks(Dlmalloc<PrivatePages>);

// SAFETY: it owns pointers to memory without thread affinity, and is used under a lock.
unsafe impl Send for Blocks {}

static BLOCKS: Lock<Blocks> = Lock::new(Blocks(Dlmalloc::new_with_allocator(PrivatePages)));

/// The global allocator of this library's Rust.
struct InternalHeap;

#[global_allocator]
static INTERNAL_HEAP: InternalHeap = InternalHeap;

// SAFETY: dlmalloc's contract is that of `GlobalAlloc`, under the lock.
unsafe impl GlobalAlloc for InternalHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a layout's size and alignment are what dlmalloc asks for.
        unsafe { BLOCKS.lock().0.malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { BLOCKS.lock().0.calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller has `at` from `alloc` with this layout.
        unsafe { BLOCKS.lock().0.free(at, layout.size(), layout.align()) }
    }
}

/// Keeps others out, for the time of a fork.
pub(crate) fn hold() {
    std::mem::forget(BLOCKS.lock());
}

/// Ends what [`hold`] began.
pub(crate) fn release() {
    BLOCKS.release();
}

/// Allocates for the program: zeroed, aligned to at least 16. Null if there is no memory.
pub(crate) fn allocate(bytes: usize, align: usize) -> *mut u8 {
    let align = align.max(HEAD);
    if vfork::is_child() {
        return allocate_mapping(bytes, align);
    }
    let Some(total) = bytes.checked_add(align) else { return ptr::null_mut() };
    // SAFETY: the alignment is a power of two, as callers see to.
    let base = unsafe { BLOCKS.lock().0.calloc(total, align) };
    if base.is_null() {
        return base;
    }
    let at = base.wrapping_add(align);
    // SAFETY: the head lies in the allocation, in front of what the program gets, and is aligned.
    unsafe { write_head(at, bytes, align) };
    at
}

/// # Safety
/// The bytes before `at` are the allocation's, and `at` is a multiple of 16.
unsafe fn write_head(at: *mut u8, bytes: usize, second: usize) {
    let head = at.wrapping_sub(HEAD).cast::<usize>();
    // SAFETY: the caller's promise.
    unsafe { head.write(bytes) };
    // SAFETY: as above.
    unsafe { head.wrapping_add(1).write(second) };
}

/// The same as a mapping of its own, of which nobody but the kernel keeps anything.
fn allocate_mapping(bytes: usize, align: usize) -> *mut u8 {
    let total = bytes.checked_add(align).and_then(|len| len.checked_next_multiple_of(PAGE));
    let Some(total) = total else { return ptr::null_mut() };
    let base = kernel::map_private(total);
    if base.is_null() {
        return base;
    }
    // At most the alignment behind the beginning of a page, and at least a head.
    let at = base.wrapping_add(align).map_addr(|at| at & !(align - 1));
    let before = at.addr() - base.addr();
    let used = (before + bytes).next_multiple_of(PAGE);
    if used < total {
        // SAFETY: these pages were mapped here, and nobody has them.
        unsafe { kernel::munmap(base.wrapping_add(used).cast(), total - used) };
    }
    // SAFETY: a head lies in the mapping, in front of what the program gets.
    unsafe { write_head(at, bytes, before | IS_MAPPED) };
    at
}

/// Bytes of an allocation.
///
/// # Safety
/// It is one of [`allocate`]'s.
pub(crate) unsafe fn size(at: *mut u8) -> usize {
    // SAFETY: the head was written by `allocate`.
    unsafe { at.wrapping_sub(HEAD).cast::<usize>().read() }
}

/// Frees an allocation.
///
/// # Safety
/// It is one of [`allocate`]'s, and nobody uses it any more.
pub(crate) unsafe fn free(at: *mut u8) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { size(at) };
    // SAFETY: the head was written by `allocate`.
    let second = unsafe { at.wrapping_sub(HEAD / 2).cast::<usize>().read() };
    let before = second & !IS_MAPPED;
    let base = at.wrapping_sub(before);
    if second & IS_MAPPED != 0 {
        let errno = kernel::errno();
        // SAFETY: that is what was mapped; the kernel rounds the length up.
        unsafe { kernel::munmap(base.cast(), before + bytes) };
        kernel::set_errno(errno);
    } else if !vfork::is_child() {
        // SAFETY: that is what was allocated, with that size and alignment.
        unsafe { BLOCKS.lock().0.free(base, bytes + before, before) };
    }
}
