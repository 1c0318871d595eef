//! Allocations of this program, counted for each thread.
//!
//! The counter wraps the system's allocator without other changes. It is active in every suite, because a program has
//! one allocator. It costs an addition to a thread-local word.

#![allow(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() {
    // A thread that is ending has no count any more, and nobody asks for it.
    let _ending = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller promises what the system's allocator asks for.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from the system's allocator with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Allocations that this thread has made so far.
pub(super) fn allocations_of_this_thread() -> u64 {
    ALLOCATIONS.try_with(Cell::get).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_count_per_thread() {
        let before = allocations_of_this_thread();
        std::thread::spawn(|| vec![1; 100]).join().unwrap();
        let spawned = allocations_of_this_thread();
        std::hint::black_box(vec![1; 100]);
        assert_eq!(allocations_of_this_thread(), spawned + 1);
        assert!(before <= spawned);
    }
}
