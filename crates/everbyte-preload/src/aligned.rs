//! Allocations with an alignment above the allocator's maximum in its arenas: separate parts of the
//! heap.
//!
//! Invariant: such an allocation begins at a multiple of [`ALIGN_MIN`], and no allocation of the
//! allocator does, because each of its segments has a head there. The last word before the
//! allocation is its length, in a separate page.

use std::ptr;

use libc::c_void;

use crate::heap::{ARENA, Heap};
use crate::kernel::PAGE;
use crate::outside_heap;

/// The smallest alignment unsupported by the allocator; its segments are aligned to it.
pub(crate) const ALIGN_MIN: usize = ARENA;

/// True if an address in the heap begins such an allocation.
#[inline]
pub(crate) fn is_over_aligned(at: *mut c_void) -> bool {
    at.addr().is_multiple_of(ALIGN_MIN)
}

/// Allocates `bytes` bytes of zeroes at a multiple of `align`, a power of two and at least
/// [`ALIGN_MIN`]. Null without memory.
pub(crate) fn allocate(heap: &Heap, bytes: usize, align: usize) -> *mut c_void {
    let taken = bytes.max(1).checked_next_multiple_of(PAGE).and_then(|len| {
        let at = outside_heap(|| heap.take_behind_page(len, align))?;
        Some((ptr::with_exposed_provenance_mut::<c_void>(at), len))
    });
    let Some((at, len)) = taken else { return ptr::null_mut() };
    // SAFETY: the page before it was taken with it.
    unsafe { at.cast::<usize>().wrapping_sub(1).write(len) };
    at
}

/// Bytes of an allocation.
///
/// # Safety
/// It is one of [`allocate`]'s.
pub(crate) unsafe fn size(at: *mut c_void) -> usize {
    // SAFETY: `allocate` wrote it.
    unsafe { at.cast::<usize>().wrapping_sub(1).read() }
}

/// Frees an allocation.
///
/// # Safety
/// The allocation is from [`allocate`], and unused from now on.
pub(crate) unsafe fn free(heap: &Heap, at: *mut c_void) {
    // SAFETY: the caller's promise.
    let len = unsafe { size(at) };
    outside_heap(|| heap.free(at.addr() - PAGE..at.addr() + len));
}
