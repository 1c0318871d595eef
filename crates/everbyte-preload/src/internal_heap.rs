//! The library's internal heap: memory without paging.
//!
//! It has two users. The first is all Rust code here, above all the pager, because the pager must
//! not wait for its own faults. The second is the program before its heap exists. A child by
//! `vfork` gets separate mappings from here and changes nothing else. Invariant: its pages come
//! from the kernel directly, never through the functions replaced by this library.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use dlmalloc::{Allocator, Dlmalloc};

use crate::kernel::{self, PAGE};
use crate::lock::Lock;
use crate::vfork;

/// Bytes before each allocation of the program, two words: its size and its beginning.
const HEAD: usize = 16;
/// Flag in the second word of an allocation with a separate mapping. Alignments and the offsets of
/// such allocations in their mappings are multiples of 16.
const IS_MAPPED: usize = 1;

struct PrivatePages;

// SAFETY: `alloc` returns fresh pages of the kernel, and the other methods free none.
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

/// Size from which an allocation of Rust code is a mapping of its own: its pages take memory at
/// their first access, and none after its end.
const MAPPED_MIN: usize = 1 << 20;

/// True if a layout gets a mapping of its own.
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MAPPED_MIN && layout.align() <= PAGE
}

/// The global allocator of this library's Rust.
struct InternalHeap;

#[global_allocator]
static INTERNAL_HEAP: InternalHeap = InternalHeap;

// SAFETY: dlmalloc has the contract of `GlobalAlloc`, under the lock.
unsafe impl GlobalAlloc for InternalHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return kernel::map_private(layout.size());
        }
        // SAFETY: dlmalloc takes a layout's size and alignment.
        unsafe { BLOCKS.lock().0.malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return kernel::map_private(layout.size());
        }
        // SAFETY: as above.
        unsafe { BLOCKS.lock().0.calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            // SAFETY: `alloc` mapped these pages for this layout, and they have no user any more.
            unsafe { kernel::munmap(at.cast(), layout.size()) };
            return;
        }
        // SAFETY: the caller has `at` from `alloc` with this layout.
        unsafe { BLOCKS.lock().0.free(at, layout.size(), layout.align()) }
    }
}

/// Keeps others out, for the time of a fork.
pub(crate) fn hold() {
    std::mem::forget(BLOCKS.lock());
}

/// Ends the effect of [`hold`].
pub(crate) fn release() {
    BLOCKS.release();
}

/// Allocates for the program: zeroed, aligned to at least 16. Null without memory.
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
    // SAFETY: the head lies in the allocation, before the program's bytes, and is aligned.
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

/// As `allocate`, with a separate mapping recorded only by the kernel.
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
        // SAFETY: these pages were mapped here, and have no user.
        unsafe { kernel::munmap(base.wrapping_add(used).cast(), total - used) };
    }
    // SAFETY: a head lies in the mapping, before the program's bytes.
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
/// The allocation is from [`allocate`], and unused from now on.
pub(crate) unsafe fn free(at: *mut u8) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { size(at) };
    // SAFETY: the head was written by `allocate`.
    let second = unsafe { at.wrapping_sub(HEAD / 2).cast::<usize>().read() };
    let before = second & !IS_MAPPED;
    let base = at.wrapping_sub(before);
    if second & IS_MAPPED != 0 {
        let errno = kernel::errno();
        // SAFETY: the mapped range; the kernel rounds the length up.
        unsafe { kernel::munmap(base.cast(), before + bytes) };
        kernel::set_errno(errno);
    } else if !vfork::is_child() {
        // SAFETY: the allocated block, with its size and alignment.
        unsafe { BLOCKS.lock().0.free(base, bytes + before, before) };
    }
}
