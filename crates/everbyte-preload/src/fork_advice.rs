//! Advice for forks: parts of the heap that a child lacks (MADV_DONTFORK) or finds as zeroes
//! (MADV_WIPEONFORK). The kernel's own advice would end at the next preparation of a fork.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use crate::heap::Heap;
use crate::kernel;
use crate::lock::Lock;

/// Parts with advice, disjoint for each kind. A vector of ranges, because programs give few.
struct Advice {
    absent: Vec<Range<usize>>,
    wiped: Vec<Range<usize>>,
}

static ADVICE: Lock<Advice> = Lock::new(Advice { absent: Vec::new(), wiped: Vec::new() });
/// The program has given advice. Without it no call takes the lock.
static IS_GIVEN: AtomicBool = AtomicBool::new(false);

/// Records or removes advice for whole pages.
pub(crate) fn note(part: &Range<usize>, advice: c_int) {
    IS_GIVEN.store(true, Ordering::SeqCst);
    let Advice { absent, wiped } = &mut *ADVICE.lock();
    let (parts, is_set) = match advice {
        libc::MADV_DONTFORK => (absent, true),
        libc::MADV_DOFORK => (absent, false),
        libc::MADV_WIPEONFORK => (wiped, true),
        _ => (wiped, false),
    };
    remove(parts, part);
    if is_set {
        parts.push(part.clone());
    }
}

/// Removes all advice for memory that becomes other memory.
pub(crate) fn forget(part: &Range<usize>) {
    if IS_GIVEN.load(Ordering::SeqCst) {
        let Advice { absent, wiped } = &mut *ADVICE.lock();
        remove(absent, part);
        remove(wiped, part);
    }
}

/// Gives memory the advice of the memory moved to it, as the kernel does. Advice for the last page
/// also covers the added bytes.
pub(crate) fn carry(from: &Range<usize>, to: &Range<usize>) {
    if !IS_GIVEN.load(Ordering::SeqCst) {
        return;
    }
    let place = |address: usize| address - from.start + to.start;
    let Advice { absent, wiped } = &mut *ADVICE.lock();
    for parts in [absent, wiped] {
        let carried = |part: &Range<usize>| {
            let end = if part.end >= from.end { to.end } else { place(part.end.max(from.start)) };
            place(part.start.max(from.start))..end
        };
        let overlapping =
            parts.iter().filter(|part| part.start < from.end && from.start < part.end);
        let moved: Vec<_> = overlapping.map(carried).collect();
        remove(parts, to);
        parts.extend(moved);
    }
}

fn remove(parts: &mut Vec<Range<usize>>, part: &Range<usize>) {
    let rest = |from: &Range<usize>| {
        [from.start..from.end.min(part.start), from.start.max(part.end)..from.end]
    };
    *parts = parts.iter().flat_map(rest).filter(|range| !range.is_empty()).collect();
}

/// Locks the advice until [`release`], for a fork.
pub(crate) fn hold() {
    std::mem::forget(ADVICE.lock());
}

/// Ends [`hold`], also in the child.
pub(crate) fn release() {
    ADVICE.release();
}

/// Follows the advice in a child.
pub(crate) fn follow(heap: &Heap) {
    if !IS_GIVEN.load(Ordering::SeqCst) {
        return;
    }
    let Advice { absent, wiped } = &*ADVICE.lock();
    for part in wiped {
        let at = std::ptr::with_exposed_provenance_mut(part.start);
        // SAFETY: the program asked for zeroes in its children.
        unsafe { kernel::madvise(at, part.end - part.start, libc::MADV_DONTNEED) };
    }
    for part in absent {
        // Inaccessible, not unmapped: the addresses stay the heap's.
        heap.note_protected();
        let at = std::ptr::with_exposed_provenance_mut(part.start);
        // SAFETY: the program asked for a child without this memory.
        unsafe { kernel::mprotect(at, part.end - part.start, libc::PROT_NONE) };
    }
}
